"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): read from an offset, or wait for something new.

    PullProcessor.serve     checks, a commit that comes along, the read; held when nothing is new
    PullChecks              what a pull must pass; its queue and filter
    get_message_result      RocketMQ's status, code and next offset for what the engine read
    ShortPolling            the other way of waiting
    OffsetMovedReporter     tells when a reader's offset had to be corrected

A response is a header and the stored messages one behind the other, as they lie in the log. A pull
that finds nothing new (19) waits if it may: until a message arrives that its filter wants, or its
time is up; then it is answered with whatever there is, and not held again. The offset a consumer
commits with its pull counts once, when the pull comes in (sheet 2.2).

What counts as "on disk" (smaller answers, so that a reader far behind does not hold the loop):
messages more than ``rocketmq.resident_bytes`` behind the end of the log, for which the page cache
is as unlikely as for RocketMQ's 40 % of memory. Sizes are those of log records. There is no second
copy of a broker, so ``suggestWhichBrokerId`` is always 0.

Invariants: a pull is answered exactly once; nothing that is not durable is shown (D7).
Not here: reading and long polling (``engine/pull.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapters.rocketmq.filters import FilterBitMaps, FilterCache, language_of
from penstock.adapters.rocketmq.group_registry import GroupRegistry, OffsetRegistry
from penstock.adapters.rocketmq.naming import OFFSET_MOVED_TOPIC, wire_name
from penstock.adapters.rocketmq.present import present
from penstock.adapters.rocketmq.requests import ErrorResponse, no_permission, system_error
from penstock.adapters.rocketmq.send import CallbackPublication
from penstock.engine.filter.filters import Filter, Prefilter
from penstock.engine.pull import Pull, PullResult, PullStatus
from penstock.engine.topic import Queue
from penstock.flow.rate import TokenBucket
from penstock.log.index import IndexFlag
from penstock.model.errors import SelectorInvalid
from penstock.model.record import Wire
from penstock.wire.rocketmq.bodies import (
    Body,
    MessageQueue,
    SubscriptionGroupConfig,
    encode_body,
)
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.frames import pull_answer_head
from penstock.wire.rocketmq.headers import PullAnswer, PullFlag, PullHeader, fields, parse
from penstock.wire.rocketmq.properties import KEYS, TAGS, format_properties
from penstock.wire.rocketmq.stored import stored_record

if TYPE_CHECKING:
    from penstock.adapters.contract import Peer
    from penstock.adapters.rocketmq.broker import RocketmqBroker
    from penstock.adapters.rocketmq.connection import RocketmqConnection

_log = logging.getLogger(__name__)

HOLDS_MAX: Final = 100_000
"""Pulls that short polling keeps."""

EVENTS_PER_S: Final = 10
EVENTS_BURST: Final = 100
"""Messages about corrected offsets: a client that asks wrongly again and again is counted only."""

_COMMIT: Final = int(PullFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_ROCKETMQ: Final = int(Wire.ROCKETMQ)
_RELEASED: Final = int(IndexFlag.RELEASED)

Answered = Callable[[Pull, PullResult], None]


def pull_message(connection: RocketmqConnection, command: Command) -> None:
    connection.broker.service(PullProcessor).serve(connection, command)


class PullProcessor:
    """Serves the pulls of all connections."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._offsets = broker.service(OffsetRegistry)
        self._events = broker.service(OffsetMovedReporter)
        self._checks = broker.service(PullChecks)
        self._short = ShortPolling(broker)
        self._token = 0
        self.counts: dict[str, int] = dict.fromkeys(GetMessageStatus, 0)
        """Answers by status."""
        broker.engine.counter_families.register(
            "rocketmq_pulls", "Answers to pulls, by RocketMQ's status", "status", self.counts
        )
        self.messages = 0
        """Messages given out."""

    def serve(self, connection: RocketmqConnection, command: Command) -> None:
        """ErrorResponse a pull, now or later."""
        header = parse(PullHeader, command)
        queue, chosen, prefilter = self._checks.check(header, connection.peer)
        group = header.consumer_group
        reset = self._offsets.take_reset(queue, group)
        if reset is not None:
            nothing = (queue.index.min_offset, queue.visible_end(False))
            self._write(connection, command, reset_result(reset), nothing, [])
            return
        pull = self._pull(connection, header, queue)
        pull.filter, pull.prefilter = chosen, prefilter
        may_wait = bool(header.sys_flag & _SUSPEND) and not command.is_oneway
        if may_wait and self._settings.is_long_polling:
            wait_ms = min(header.suspend_timeout_millis, self._settings.suspend_ms_max)
            pull.deadline_ms = self._broker.clock.monotonic_ms() + wait_ms

        def answered(pull: Pull, result: PullResult) -> None:
            self._answer(connection, command, group, queue, pull=pull, result=result)

        if header.sys_flag & _COMMIT:
            self._offsets.commit(queue, group, header.commit_offset, connection.name)
        result = self._broker.engine.pulls.pull(pull)
        if result is None:
            self._offsets.pulled(queue, group, pull.offset, begin=pull.offset)
            connection.await_pull(pull.token, answered)
            return
        if may_wait and not self._settings.is_long_polling:
            wait_ms = self._settings.short_polling_ms
            deadline_ms = self._broker.clock.monotonic_ms() + wait_ms
            held = ShortPolledPull(connection, queue, pull, deadline_ms, answered)
            if get_message_result(pull, result).code == _NOT_FOUND and self._short.hold(held):
                return
        answered(pull, result)

    def _pull(self, connection: RocketmqConnection, header: PullHeader, queue: Queue) -> Pull:
        self._token += 1
        settings = self._settings
        messages_max, bytes_max = settings.pull_messages_max, settings.pull_bytes_max
        if self._is_on_disk(queue, header.queue_offset):
            messages_max = settings.pull_disk_messages_max
            bytes_max = settings.pull_disk_bytes_max
        if header.max_msg_bytes is not None and header.max_msg_bytes > 0:
            bytes_max = min(bytes_max, header.max_msg_bytes)
        return Pull(
            connection,
            queue,
            header.queue_offset,
            messages_max=min(header.max_msg_nums, messages_max),
            bytes_max=bytes_max,
            token=self._token,
        )

    def _is_on_disk(self, queue: Queue, offset: int) -> bool:
        cold_end = self._broker.engine.log_end - self._settings.resident_bytes
        if cold_end <= 0:
            return False
        found = queue.index.entries(offset, 1) if offset >= 0 else []
        return bool(found) and found[0][0] < cold_end

    def _answer(
        self,
        connection: RocketmqConnection,
        command: Command,
        group: str,
        queue: Queue,
        *,
        pull: Pull,
        result: PullResult,
    ) -> None:
        if connection.is_closed:
            return
        end = get_message_result(pull, result)
        if end.code == _MOVED:
            move = (pull.offset, end.next_offset)
            self._events.moved(connection, group, queue, move, end.status)
        body = self._body(queue, pull, result) if result.records else []
        given = {"begin": pull.offset, "messages": len(body)}
        self._offsets.pulled(queue, group, end.next_offset, **given)
        self._write(connection, command, end, (result.min_offset, result.max_offset), body)

    def _body(self, queue: Queue, pull: Pull, result: PullResult) -> list[bytes]:
        """The messages, one behind the other."""
        messages: list[bytes] = []
        for record, entry in zip(result.records, result.entries, strict=True):
            if record.wire == _ROCKETMQ and not entry[7] & _RELEASED:
                messages.append(record.origin)
            else:
                found = present(self._broker, queue, record, entry)
                # A batch of another protocol may begin below the offset that was asked for.
                messages += found[max(0, pull.offset - entry[1]) :] or found
        self.messages += len(messages)
        return messages

    def _write(
        self,
        connection: RocketmqConnection,
        command: Command,
        end: GetMessageResult,
        span: tuple[int, int],
        body: list[bytes],
    ) -> None:
        self.counts[end.status] += 1
        if command.is_oneway:
            return
        if command.serialization:
            answer = PullAnswer(
                next_begin_offset=end.next_offset, min_offset=span[0], max_offset=span[1]
            )
            connection.answer(
                command, end.code, ext=fields(answer), body=b"".join(body), remark=end.status
            )
            return
        head = pull_answer_head(
            command.opaque,
            end.next_offset,
            *span,
            body_bytes=sum(map(len, body)),
            code=end.code,
            remark=end.status,
        )
        connection.write(head, *body)


class PullTarget(NamedTuple):
    """A pull that may read."""

    queue: Queue
    filter: Filter | None
    prefilter: Prefilter | None = None


class PullChecks:
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

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._groups = broker.service(GroupRegistry)
        self._filters = broker.service(FilterCache)
        self._maps = broker.service(FilterBitMaps)

    def check(self, header: PullHeader, peer: Peer) -> PullTarget:
        """Queue and filter of a pull; raises ``ErrorResponse``."""
        broker = self._broker
        group, topic = header.consumer_group, header.topic
        if not broker.settings.is_readable:
            raise no_permission(f"the broker[{broker.broker_name}] pulling message is forbidden")
        config = self.group(group, peer.maker)
        rmq_topic = broker.topics.require(topic)
        if not rmq_topic.is_readable:
            raise no_permission(f"the topic[{topic}] pulling message is forbidden")
        number = header.queue_id
        # Another protocol may have given the topic more queues than RocketMQ was told of.
        if not 0 <= number < min(rmq_topic.config.read_queue_nums, len(rmq_topic.topic.queues)):
            raise ErrorResponse(
                broker.settings.invalid_parameter_code,
                f"queueId[{number}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{rmq_topic.config.read_queue_nums}] consumer:[{peer}]",
            )
        queue = rmq_topic.topic.queues[number]
        prefilter: Prefilter | None = None
        if header.sys_flag & _SUBSCRIPTION:
            chosen, language = self._brought(header)
        else:
            chosen, language = self._registered(header, config)
            prefilter = self._maps.prefilter(group, topic, queue, chosen)
        refusal = self._filters.refusal(language)
        if refusal is not None:
            raise system_error(refusal)
        wanted = broker.consumers.wanted
        final = self._filters.for_topic(topic, group, chosen, wanted)
        return PullTarget(queue, final, prefilter if final is chosen else None)

    def group(self, group: str, maker: str) -> SubscriptionGroupConfig:
        """The group, if it exists and may consume."""
        config = self._groups.find(group, maker)
        if config is None:
            raise ErrorResponse(
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
            raise ErrorResponse(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {problem}",
            ) from None

    def _registered(
        self, header: PullHeader, config: SubscriptionGroupConfig
    ) -> tuple[Filter | None, str]:
        name = header.consumer_group
        group = self._broker.consumers.group(name)
        if group is None or group.is_empty:
            raise ErrorResponse(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if group.traits.is_broadcast and not config.consume_broadcast_enable:
            raise no_permission(f"the consumer group[{name}] can not consume by broadcast way")
        wanted = group.wanted.get(header.topic)
        if wanted is None:
            raise ErrorResponse(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if wanted.version < header.sub_version:
            raise ErrorResponse(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        try:
            return self._filters.build(wanted.expression, wanted.language), wanted.language
        except SelectorInvalid as problem:
            raise ErrorResponse(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong! "
                f"{problem}",
            ) from None


class GetMessageStatus(StrEnum):
    """How a pull ended in RocketMQ's words: the remark, and with it code and next offset.

    FOUND                                        0   behind the last one looked at
    NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING     20  behind the last one looked at
    NO_MESSAGE_IN_QUEUE, NO_MATCHED_LOGIC_QUEUE  19  (offset 0) or 21: go on at 0
    OFFSET_OVERFLOW_ONE                          19  the same offset: the end
    OFFSET_FOUND_NULL                            19  behind the hole
    OFFSET_OVERFLOW_BADLY                        21  the end
    OFFSET_TOO_SMALL                             21  the oldest that is there
    OFFSET_RESET                                 21  where an operator moved the group

    Only 19 may be held.
    """

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_RESET = "OFFSET_RESET"


class GetMessageResult(NamedTuple):
    status: GetMessageStatus
    code: int
    next_offset: int


_CODES: Final = {
    GetMessageStatus.FOUND: int(ResponseCode.SUCCESS),
    GetMessageStatus.NO_MATCHED_MESSAGE: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetMessageStatus.MESSAGE_WAS_REMOVING: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetMessageStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetMessageStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: _MOVED,
    GetMessageStatus.OFFSET_RESET: _MOVED,
}
"""Of those whose code does not depend on the offset."""

_STATUSES: Final = {
    PullStatus.FOUND: GetMessageStatus.FOUND,
    PullStatus.FILTERED: GetMessageStatus.NO_MATCHED_MESSAGE,
    PullStatus.REMOVED: GetMessageStatus.MESSAGE_WAS_REMOVING,
    PullStatus.CANCELLED: GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
    PullStatus.NO_NEW: GetMessageStatus.OFFSET_OVERFLOW_ONE,
    PullStatus.OFFSET_TOO_SMALL: GetMessageStatus.OFFSET_TOO_SMALL,
    PullStatus.OFFSET_TOO_LARGE: GetMessageStatus.OFFSET_OVERFLOW_BADLY,
}
_AT_AN_EDGE: Final = (
    PullStatus.NO_NEW,
    PullStatus.OFFSET_TOO_SMALL,
    PullStatus.OFFSET_TOO_LARGE,
)


def get_message_result(pull: Pull, result: PullResult) -> GetMessageResult:
    """RocketMQ's words for the engine's result."""
    status = _STATUSES[result.status]
    if result.status in _AT_AN_EDGE and result.max_offset == 0:
        status = GetMessageStatus.NO_MESSAGE_IN_QUEUE
    elif result.status is PullStatus.FILTERED and _is_hole(pull, result.max_offset):
        status = GetMessageStatus.OFFSET_FOUND_NULL
    code = _CODES.get(status)
    if code is None:
        return GetMessageResult(status, _NOT_FOUND if pull.offset == 0 else _MOVED, 0)
    return GetMessageResult(status, code, result.next_offset)


def reset_result(offset: int) -> GetMessageResult:
    """An operator moved the group."""
    return GetMessageResult(GetMessageStatus.OFFSET_RESET, _MOVED, offset)


def _is_hole(pull: Pull, end: int) -> bool:
    """True when nothing is there at all from the offset on: records lost to corruption."""
    found = pull.queue.index.entries(pull.offset, 1)
    return not found or found[0][1] >= end


_CANCELLED: Final = PullResult(PullStatus.CANCELLED, [], [], 0, 0, 0)
_NOTHING: Final = (PullStatus.NO_NEW, PullStatus.FILTERED)


class ShortPolledPull(NamedTuple):
    connection: RocketmqConnection
    queue: Queue
    pull: Pull
    deadline_ms: int
    answered: Answered


class ShortPolling:
    """Pulls that found nothing and are looked at every second, and only then (sheet 2.2).

    The alternative to long polling, for whoever wants few wake-ups at the price of latency: an
    arrival wakes nobody; each sweep reads for every held pull and answers those that found
    something, and those whose time is up. Long polling is the engine's ``PullService`` (F12). A
    held pull is answered exactly once, unless its peer goes first.
    """

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._held: list[ShortPolledPull] = []
        self._sweep_ms: int | None = None
        broker.timers.add(self)

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, held: ShortPolledPull) -> bool:
        """Keep a pull until a sweep finds something for it; False when there are too many."""
        if len(self._held) >= HOLDS_MAX:
            return False
        self._held.append(held)
        if self._sweep_ms is None:
            now_ms = self._broker.clock.monotonic_ms()
            self._sweep_ms = now_ms + self._broker.settings.short_polling_ms
            self._broker.timers.reschedule()
        return True

    def next_deadline_ms(self) -> int | None:
        """The next sweep; None while nobody waits."""
        return self._sweep_ms

    def due(self, now_ms: int) -> None:
        if self._sweep_ms is None or now_ms < self._sweep_ms:
            return
        held, self._held = self._held, []
        read = self._broker.engine.pulls.read
        for each in held:
            if each.connection.is_closed:
                continue
            if each.queue.is_deleted:
                each.answered(each.pull, _CANCELLED)
                continue
            result = read(each.pull)
            if result.status in _NOTHING and now_ms < each.deadline_ms:
                self._held.append(each)
            else:
                each.answered(each.pull, result)
        step_ms = self._broker.settings.short_polling_ms
        self._sweep_ms = now_ms + step_ms if self._held else None


class OffsetMovedEvent(Body, kw_only=True):
    """The body of a message in the topic OFFSET_MOVED_EVENT."""

    consumer_group: str
    message_queue: MessageQueue
    offset_request: int
    offset_new: int


class OffsetMovedReporter:
    """A reader asked for what is not there and was sent elsewhere.

    It means lost or repeated messages for somebody, so it is said three times: a line in the log, a
    counter by reason, and a message in the topic OFFSET_MOVED_EVENT with the group as tag and key,
    as RocketMQ does it.
    """

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._bucket = TokenBucket(EVENTS_PER_S, EVENTS_BURST)
        self.counts: dict[str, int] = {}
        """Corrections by status."""
        broker.engine.counter_families.register(
            "rocketmq_offset_moves", "Offsets of readers that were corrected", "status", self.counts
        )
        self.unwritten = 0
        """Corrections that got no message: too many, or nobody wants them."""

    def moved(
        self,
        connection: RocketmqConnection,
        group: str,
        queue: Queue,
        move: tuple[int, int],
        status: str,
    ) -> None:
        """A reader asked for offset ``move[0]`` and goes on at ``move[1]``."""
        self.counts[status] = self.counts.get(status, 0) + 1
        topic = wire_name(queue.topic.name)
        _log.warning(
            "PULL_OFFSET_MOVED:correction offset",
            extra={
                "topic": topic,
                "queue": queue.number,
                "group": group,
                "from": move[0],
                "to": move[1],
                "status": status,
                "peer": connection.name,
            },
        )
        broker = self._broker
        is_wanted = broker.settings.is_telling_offset_moves and topic != OFFSET_MOVED_TOPIC
        if not is_wanted or not self._bucket.take(1, broker.clock.monotonic_ms()):
            self.unwritten += 1
            return
        event = OffsetMovedEvent(
            consumer_group=group,
            message_queue=MessageQueue(
                topic=topic, broker_name=broker.broker_name, queue_id=queue.number
            ),
            offset_request=move[0],
            offset_new=move[1],
        )
        rmq_topic = broker.topics.ensure(OFFSET_MOVED_TOPIC)
        record = stored_record(
            OFFSET_MOVED_TOPIC,
            0,
            encode_body(event),
            format_properties({TAGS: group, KEYS: group}),
            born_ms=broker.clock.wall_ms(),
            born_host=broker.store_host,
            store_host=broker.store_host,
        )
        keys = (group.encode(),)
        connection.sends.store([CallbackPublication(record, route=rmq_topic.routes[0], keys=keys)])
