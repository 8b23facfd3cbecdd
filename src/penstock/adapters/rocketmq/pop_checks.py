"""What a pop, a peek and a notification must pass, in RocketMQ's order and with its codes.

broker readable 16, more than 32 messages 1, times that make no sense 29, topic exists 17,
topic readable 16, queue id 29 (1 before 5.3.2), group exists 26, group may consume 16,
filter cannot be built 23, property filters turned off 1
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapters.rocketmq.filters import Filters, language_of
from penstock.adapters.rocketmq.pop_reader import PopReader
from penstock.adapters.rocketmq.pops import Pops
from penstock.adapters.rocketmq.pull_checks import PullChecks
from penstock.adapters.rocketmq.replies import Answer, no_permission, system_error
from penstock.model.errors import SelectorInvalid
from penstock.wire.rocketmq.codes import ResponseCode

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.engine.filter.filters import Filter
    from penstock.engine.topic import Queue
    from penstock.wire.rocketmq.headers import NotificationHeader, PeekHeader, PopHeader

MESSAGES_MAX: Final = 32
"""One checkpoint of RocketMQ has 32 bits."""

INVISIBLE_MS_MAX: Final = 7 * 24 * 3_600_000
"""RocketMQ has no limit; without one a mistyped unit hides a message for a century."""


class PopPlace(NamedTuple):
    """Where a group may pop from."""

    reader: PopReader
    queues: tuple[Queue, ...]
    wanted: Filter | None = None
    wanted_again: Filter | None = None
    """The filter on what comes back from the retry topic."""


def checked(house: House, header: PopHeader) -> PopPlace:
    """The place of a pop; raises ``Answer``."""
    if not 0 < header.max_msg_nums <= MESSAGES_MAX:
        raise system_error(
            f"the broker[{house.broker_name}] pop message's num is greater than {MESSAGES_MAX}, "
            f"or not positive: {header.max_msg_nums}"
        )
    if not 0 < header.invisible_time <= INVISIBLE_MS_MAX:
        raise Answer(
            house.settings.invalid_parameter_code,
            f"invisibleTime[{header.invisible_time}] is illegal, use 1 to {INVISIBLE_MS_MAX} ms",
        )
    place = readable(house, header)
    filters = house.part(Filters)
    language = language_of(header.exp_type)
    try:
        wanted = filters.build(header.exp or "*", language)
    except SelectorInvalid as problem:
        raise Answer(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {problem}",
        ) from None
    refusal = filters.refusal(language)
    if refusal is not None:
        raise system_error(refusal)
    # What comes back passed the filter before; a changed one applies only by option.
    again = wanted if filters.is_filtering_retries else None
    return place._replace(wanted=wanted, wanted_again=again)


def readable(house: House, header: PopHeader | PeekHeader | NotificationHeader) -> PopPlace:
    """The queues a request names and the group's hold on them; raises ``Answer``."""
    topic, number = header.topic, header.queue_id
    if not house.settings.is_readable:
        raise no_permission(f"the broker[{house.broker_name}] pop message is forbidden")
    place = house.topics.require(topic)
    if not place.is_readable:
        raise no_permission(f"the topic[{topic}] pop message is forbidden")
    queues = place.topic.queues[: max(1, place.config.read_queue_nums)]
    if number >= len(queues):
        raise Answer(
            house.settings.invalid_parameter_code,
            f"queueId[{number}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{place.config.read_queue_nums}]",
        )
    house.part(PullChecks).group(header.consumer_group)
    reader = house.part(Pops).reader(place.topic, header.consumer_group)
    return PopPlace(reader, queues if number < 0 else (queues[number],))
