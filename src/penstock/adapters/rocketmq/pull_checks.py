"""What a pull must pass, in RocketMQ's order and with its codes and words (sheet 1.7).

    broker readable 16, group exists 26, group may consume 16, topic exists 17, topic readable 16,
    queue id 29 (1 before 5.3.2), then the filter:
    brought along: cannot be built 23
    registered: no group or no subscription 24, no broadcasting 16, older than asked for 25,
                expression that cannot be compiled 27
    property filters turned off 1

28 (filter data older than the subscription) cannot happen here: a filter is built from the
registered subscription itself, so whoever passes 25 has the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.adapters.rocketmq.filter_maps import FilterMaps
from penstock.adapters.rocketmq.filters import Filters, language_of
from penstock.adapters.rocketmq.group_book import GroupBook
from penstock.adapters.rocketmq.replies import Answer, no_permission, system_error
from penstock.engine.filter.filters import Filter, Prefilter
from penstock.engine.topic import Queue
from penstock.model.errors import SelectorInvalid
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.headers import PullFlag, PullHeader

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House

_SUBSCRIPTION = int(PullFlag.SUBSCRIPTION)


class Passed(NamedTuple):
    """A pull that may read."""

    queue: Queue
    filter: Filter | None
    prefilter: Prefilter | None = None


class PullChecks:
    """The checks of one house."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._groups = house.part(GroupBook)
        self._filters = house.part(Filters)
        self._maps = house.part(FilterMaps)

    def check(self, header: PullHeader, peer: str) -> Passed:
        """Queue and filter of a pull; raises ``Answer``."""
        house = self._house
        group, topic = header.consumer_group, header.topic
        if not house.settings.is_readable:
            raise no_permission(f"the broker[{house.broker_name}] pulling message is forbidden")
        config = self.group(group)
        place = house.topics.require(topic)
        if not place.is_readable:
            raise no_permission(f"the topic[{topic}] pulling message is forbidden")
        number = header.queue_id
        # Another protocol may have given the topic more queues than RocketMQ was told of.
        if not 0 <= number < min(place.config.read_queue_nums, len(place.topic.queues)):
            raise Answer(
                house.settings.invalid_parameter_code,
                f"queueId[{number}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{place.config.read_queue_nums}] consumer:[{peer}]",
            )
        queue = place.topic.queues[number]
        judge: Prefilter | None = None
        if header.sys_flag & _SUBSCRIPTION:
            chosen, language = self._brought(header)
        else:
            chosen, language = self._registered(header, config)
            judge = self._maps.judge(group, topic, queue, chosen)
        refusal = self._filters.refusal(language)
        if refusal is not None:
            raise system_error(refusal)
        wanted = house.consumers.wanted
        final = self._filters.for_topic(topic, group, chosen, wanted)
        return Passed(queue, final, judge if final is chosen else None)

    def group(self, group: str) -> SubscriptionGroupConfig:
        """The group, if it exists and may consume."""
        config = self._groups.find(group)
        if config is None:
            raise Answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, create it first",
            )
        if not config.consume_enable:
            raise no_permission(f"subscription group no permission, {group}")
        return config

    def _brought(self, header: PullHeader) -> tuple[Filter | None, str]:
        language = language_of(header.expression_type)
        try:
            return self._filters.build(header.subscription or "*", language), language
        except SelectorInvalid as problem:
            raise Answer(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {problem}",
            ) from None

    def _registered(
        self, header: PullHeader, config: SubscriptionGroupConfig
    ) -> tuple[Filter | None, str]:
        name = header.consumer_group
        group = self._house.consumers.group(name)
        if group is None or group.is_empty:
            raise Answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if group.traits.is_broadcast and not config.consume_broadcast_enable:
            raise no_permission(f"the consumer group[{name}] can not consume by broadcast way")
        wanted = group.wanted.get(header.topic)
        if wanted is None:
            raise Answer(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if wanted.version < header.sub_version:
            raise Answer(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        try:
            return self._filters.build(wanted.expression, wanted.language), wanted.language
        except SelectorInvalid as problem:
            raise Answer(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong! "
                f"{problem}",
            ) from None
