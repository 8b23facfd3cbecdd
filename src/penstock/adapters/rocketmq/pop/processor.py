"""POP_MESSAGE, PEEK_MESSAGE and NOTIFICATION: messages of shared queues, each for a limited time.

Order of a pop (sheet 2.7): with a chance of 20 % the group's retry topic first; then the queue
asked for, or all queues of the topic from a random one on; then, if there is room and it was not
looked at, the retry topic. An orderly pop takes from one queue after the other, too, but never
retries, and from a queue only while nothing of it is out. Nothing found: the request waits
(``service.PopLongPolling``).

Responses carry lists from which the client makes a receipt for every message. What a filter refuses
is settled and passed over; a place that retention removed is corrected by the read itself.

Not here: receipts coming back (``ack.py``), where a group begins and what is in flight
(``service.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapters.rocketmq.filters import FilterCache, language_of
from penstock.adapters.rocketmq.pop.service import (
    HeldPop,
    PollingResult,
    PopEvent,
    PopOutcome,
    PopService,
    PopStatistics,
    PopSubscription,
)
from penstock.adapters.rocketmq.present import place_of, present
from penstock.adapters.rocketmq.pull import PullChecks
from penstock.adapters.rocketmq.requests import ErrorResponse, no_permission, system_error
from penstock.engine.pull import Pull, PullStatus
from penstock.engine.subscription.subscription import PopLimits
from penstock.log.index import IndexFlag
from penstock.model.errors import SelectorInvalid
from penstock.model.record import Wire
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.headers import (
    NotificationAnswer,
    NotificationHeader,
    PeekHeader,
    PopAnswer,
    PopHeader,
    fields,
    parse,
)
from penstock.wire.rocketmq.pop_handle import (
    PopQueueKey,
    format_offsets,
    format_order_counts,
    format_start_offsets,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker
    from penstock.adapters.rocketmq.connection import RocketmqConnection
    from penstock.engine.filter.filters import Filter
    from penstock.engine.host import IndexEntry
    from penstock.engine.subscription.consumer import Delivery
    from penstock.engine.topic import Queue
    from penstock.wire.rocketmq.command import Command

MESSAGES_MAX: Final = 32
"""One checkpoint of RocketMQ has 32 bits."""

INVISIBLE_MS_MAX: Final = 7 * 24 * 3_600_000
"""RocketMQ has no limit; without one a mistyped unit hides a message for a century."""

RETRY_FIRST_PERCENT: Final = 20
"""``popFromRetryProbability``."""

BYTES_MAX: Final = 256 * 1024
"""Bytes after which a response ends; its last message may cross the line."""

_ROCKETMQ: Final = int(Wire.ROCKETMQ)
_RELEASED: Final = int(IndexFlag.RELEASED)

Source = tuple[PopSubscription, "Queue"]


def pop(connection: RocketmqConnection, command: Command) -> None:
    PopRequest(connection, command, parse(PopHeader, command)).run()


class PopRequest:
    """One pop, from its arrival to its answer."""

    __slots__ = (
        "_command",
        "_connection",
        "_counts",
        "_header",
        "_pop_service",
        "_rest",
        "_target",
    )

    def __init__(self, connection: RocketmqConnection, command: Command, header: PopHeader) -> None:
        self._connection = connection
        self._command = command
        self._header = header
        self._pop_service = connection.broker.service(PopService)
        self._target = check_pop(connection.broker, header, connection.peer.maker)
        self._counts = connection.broker.service(PopStatistics)
        self._rest = 0
        """Messages that are left, or that order keeps from us, as of the last look."""

    def run(self) -> None:
        """Serve it now, or let it wait."""
        target, init_mode = self._target, self._header.init_mode
        started = [target.pop_sub.start(queue, init_mode) for queue in target.queues]
        if any(started):
            self._connection.broker.engine.after_durable(self._resume)
        else:
            self._serve_or_wait()

    def _resume(self) -> None:
        """The group's beginning is stored."""
        if self._connection.is_closed or self._target.pop_sub.subscription.is_closed:
            return
        self._target.pop_sub.confirm_start(self._target.queues)
        try:
            self._serve_or_wait()
        except ErrorResponse as error:
            self._connection.answer(self._command, error.code, remark=error.remark)

    def _serve_or_wait(self) -> None:
        if self._serve():
            return
        header = self._header
        poll = HeldPop(
            self._connection,
            (header.topic, header.consumer_group, max(-1, header.queue_id)),
            kind=(header.order, header.exp_type, header.exp, header.attempt_id),
            try_serve=self._serve,
            expire=self._expire,
        )
        result = self._pop_service.long_polling.wait(
            poll, born_ms=header.born_time, poll_ms=header.poll_time
        )
        if result is PollingResult.FULL:
            self._answer_empty(PopOutcome.POLLING_FULL, ResponseCode.POLLING_FULL, "POLLING_FULL")
        elif result is PollingResult.TIMED_OUT:
            self._expire()
        elif result is PollingResult.NOT_POLLING:
            self._answer_empty(PopOutcome.NOT_FOUND, ResponseCode.PULL_NOT_FOUND)

    def _expire(self) -> None:
        self._answer_empty(PopOutcome.POLLING_TIMEOUT, ResponseCode.POLLING_TIMEOUT)

    def _answer_empty(
        self, outcome: PopOutcome, code: int, remark: str = "NO_MESSAGE_IN_QUEUE"
    ) -> None:
        """Nothing to hand out; the fields are those of any pop, and 5.x clients read them."""
        self._counts.answers[outcome] += 1
        header, pop_service = self._header, self._pop_service
        answer = PopAnswer(
            pop_time=pop_service.pop_ms(is_again=False),
            invisible_time=header.invisible_time,
            revive_qid=pop_service.next_revive_qid(is_orderly=header.order),
            rest_num=self._rest,
        )
        self._connection.answer(self._command, code, ext=fields(answer), remark=remark)

    def _serve(self) -> bool:
        """Take what there is and answer; False when there is nothing."""
        header, pop_service = self._header, self._pop_service
        if self._target.pop_sub.subscription.is_closed:
            return False
        response = PopResponse(self._connection.broker, is_orderly=header.order)
        rest = 0
        for pop_sub, queue in self._sources():
            rest += self._take(pop_sub, queue, response)
        self._rest = rest
        if not response.messages:
            return False
        revive_qid = pop_service.next_revive_qid(is_orderly=header.order)
        # Orderly pops and those after a reset begin again at places that were out already.
        is_again = response.has_again or header.order or self._target.pop_sub.is_rewound
        pop_ms = pop_service.pop_ms(is_again=is_again)
        response.sign(pop_ms, revive_qid)
        answer = response.answer(
            pop_ms=pop_ms, invisible_ms=header.invisible_time, revive_qid=revive_qid, rest=rest
        )
        self._counts.answers[PopOutcome.FOUND] += 1
        self._counts.messages[PopEvent.POPPED] += response.messages
        self._connection.answer(
            self._command, ext=fields(answer), body=response.body(), remark="FOUND"
        )
        return True

    def _sources(self) -> list[Source]:
        target, header = self._target, self._header
        normal: list[Source] = [(target.pop_sub, queue) for queue in self._queues(target)]
        if header.order or target.pop_sub.flag:
            return normal
        retry = self._pop_service.retry_subscription(header.topic, header.consumer_group)
        if retry is None:
            return normal
        retries: list[Source] = [(retry, queue) for queue in retry.topic.queues]
        if self._connection.broker.random.randrange(100) < RETRY_FIRST_PERCENT:
            return retries + normal
        return normal + retries

    def _queues(self, target: PopTarget) -> list[Queue]:
        queues = target.queues
        if len(queues) < 2:
            return list(queues)
        first = self._connection.broker.random.randrange(len(queues))
        return [*queues[first:], *queues[:first]]

    def _take(self, pop_sub: PopSubscription, queue: Queue, response: PopResponse) -> int:
        """Add what one queue has; returns how many messages are left in it."""
        header = self._header
        pop_sub.start(queue, header.init_mode)  # retries begin at their oldest, whatever happens
        room = header.max_msg_nums - response.messages
        room_bytes = BYTES_MAX - response.size
        if room <= 0 or room_bytes <= 0:
            return pop_sub.ready(queue)
        consumer = pop_sub.plain
        if header.order:
            if pop_sub.is_blocked(queue, header.attempt_id):
                return pop_sub.ready(queue)
            pop_sub.begin_attempt(queue, header.attempt_id)
            consumer = pop_sub.orderly
        order = PopLimits(room, room_bytes, header.invisible_time, self._wanted(pop_sub))
        deliveries = pop_sub.subscription.pop(consumer, queue.queue_id, order)
        if deliveries:
            response.add(pop_sub, queue, deliveries)
        return pop_sub.ready(queue)

    def _wanted(self, pop_sub: PopSubscription) -> Filter | None:
        target = self._target
        return target.wanted if pop_sub is target.pop_sub else target.wanted_again


class PopResponse:
    """What a pop took, and the response it makes: messages, and the lists for their receipts.

    The client pairs a message with its receipt by (retry flag, queue id) and offset, so the lists
    name every message of the body, queue by queue, with ascending offsets
    (``wire/rocketmq/pop_handle.py``).
    """

    __slots__ = (
        "_broker",
        "_counts",
        "_is_orderly",
        "_offsets",
        "_parts",
        "_taken",
        "has_again",
        "messages",
        "size",
    )

    def __init__(self, broker: RocketmqBroker, *, is_orderly: bool) -> None:
        self._broker = broker
        self._is_orderly = is_orderly
        self._taken: list[tuple[PopSubscription, list[Delivery]]] = []
        self._parts: list[bytes] = []
        self._offsets: dict[PopQueueKey, list[int]] = {}
        self._counts: dict[tuple[int, int, int], int] = {}
        self.messages = 0
        self.size = 0
        """Bytes, as the log counts them."""
        self.has_again = False
        """Whether a message may have been out before, so that an older receipt exists."""

    def add(self, pop_sub: PopSubscription, queue: Queue, deliveries: list[Delivery]) -> None:
        deliveries.sort(key=_offset_of)
        self._taken.append((pop_sub, deliveries))
        offsets = self._offsets.setdefault((pop_sub.flag, queue.number), [])
        for delivery, entry in zip(deliveries, _entries(queue, deliveries), strict=True):
            record = delivery.record
            if record.wire == _ROCKETMQ and not entry[7] & _RELEASED:
                offsets.append(delivery.offset)
                self._parts.append(record.origin)
            else:
                self._add_shown(pop_sub, queue, delivery, entry)
            if self._is_orderly:
                self._counts[pop_sub.flag, queue.number, delivery.offset] = delivery.attempts
            self.messages += delivery.messages
            self.size += delivery.size
            self.has_again = self.has_again or delivery.is_redelivered

    def _add_shown(
        self, pop_sub: PopSubscription, queue: Queue, delivery: Delivery, entry: IndexEntry
    ) -> None:
        """A message that is not its own answer; one of another protocol may be several."""
        settled = pop_sub.subscription.cursor(queue.queue_id).settled
        offsets = self._offsets[pop_sub.flag, queue.number]
        messages = present(self._broker, queue, delivery.record, entry)
        for offset, data in enumerate(messages, delivery.offset):
            # Of a batch some may be acknowledged already.
            if len(messages) == 1 or not settled.is_settled(offset):
                offsets.append(offset)
                self._parts.append(data)

    def sign(self, pop_ms: int, revive_qid: int) -> None:
        for pop_sub, deliveries in self._taken:
            pop_sub.sign(deliveries, pop_ms, revive_qid)

    def answer(self, *, pop_ms: int, invisible_ms: int, revive_qid: int, rest: int) -> PopAnswer:
        return PopAnswer(
            pop_time=pop_ms,
            invisible_time=invisible_ms,
            revive_qid=revive_qid,
            rest_num=rest,
            start_offset_info=format_start_offsets(
                {key: offsets[0] for key, offsets in self._offsets.items()}
            ),
            msg_offset_info=format_offsets(self._offsets),
            order_count_info=format_order_counts(self._counts) if self._is_orderly else None,
        )

    def body(self) -> bytes:
        """The messages, one behind the other."""
        return b"".join(self._parts)


def _offset_of(delivery: Delivery) -> int:
    return delivery.offset


def _entries(queue: Queue, deliveries: list[Delivery]) -> list[IndexEntry]:
    """The index entries of deliveries, which ascend; one look when there are no gaps."""
    first, last = deliveries[0].offset, deliveries[-1].offset
    if last - first + 1 == len(deliveries):
        found = queue.index.entries(first, len(deliveries))
        if found[0][1] == first and found[-1][1] == last and found[-1][5] == 1:
            return found
    return [place_of(queue, delivery.record, delivery.offset) for delivery in deliveries]


class PopTarget(NamedTuple):
    """Where a group may pop from."""

    pop_sub: PopSubscription
    queues: tuple[Queue, ...]
    wanted: Filter | None = None
    wanted_again: Filter | None = None
    """The filter on what comes back from the retry topic."""


def check_pop(broker: RocketmqBroker, header: PopHeader, maker: str) -> PopTarget:
    """What a pop must pass, in RocketMQ's order and with its codes; raises ``ErrorResponse``.

    broker readable 16, more than 32 messages 1, times that make no sense 29, topic exists 17, topic
    readable 16, queue id 29 (1 before 5.3.2), group exists 26, group may consume 16, filter cannot
    be built 23, property filters turned off 1
    """
    if not 0 < header.max_msg_nums <= MESSAGES_MAX:
        raise system_error(
            f"the broker[{broker.broker_name}] pop message's num is greater than {MESSAGES_MAX}, "
            f"or not positive: {header.max_msg_nums}"
        )
    if not 0 < header.invisible_time <= INVISIBLE_MS_MAX:
        raise ErrorResponse(
            broker.settings.invalid_parameter_code,
            f"invisibleTime[{header.invisible_time}] is illegal, use 1 to {INVISIBLE_MS_MAX} ms",
        )
    target = readable(broker, header, maker)
    filters = broker.service(FilterCache)
    language = language_of(header.exp_type)
    try:
        wanted = filters.build(header.exp or "*", language)
    except SelectorInvalid as problem:
        raise ErrorResponse(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {problem}",
        ) from None
    refusal = filters.refusal(language)
    if refusal is not None:
        raise system_error(refusal)
    # What comes back passed the filter before; a changed one applies only by option.
    again = wanted if filters.is_filtering_retries else None
    return target._replace(wanted=wanted, wanted_again=again)


def readable(
    broker: RocketmqBroker, header: PopHeader | PeekHeader | NotificationHeader, maker: str
) -> PopTarget:
    """The queues a request names and the group's hold on them; raises ``ErrorResponse``."""
    topic, number = header.topic, header.queue_id
    if not broker.settings.is_readable:
        raise no_permission(f"the broker[{broker.broker_name}] pop message is forbidden")
    rmq_topic = broker.topics.require(topic)
    if not rmq_topic.is_readable:
        raise no_permission(f"the topic[{topic}] pop message is forbidden")
    queues = rmq_topic.topic.queues[: max(1, rmq_topic.config.read_queue_nums)]
    if number >= len(queues):
        raise ErrorResponse(
            broker.settings.invalid_parameter_code,
            f"queueId[{number}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{rmq_topic.config.read_queue_nums}]",
        )
    broker.service(PullChecks).group(header.consumer_group, maker)
    pop_sub = broker.service(PopService).open(rmq_topic.topic, header.consumer_group)
    return PopTarget(pop_sub, queues if number < 0 else (queues[number],))


def peek(connection: RocketmqConnection, command: Command) -> None:
    """PEEK_MESSAGE: what a group would pop next, without taking it (sheet 1.8).

    The response looks like that of a pop, but there are no receipts in it, and nothing is in
    flight.
    """
    broker = connection.broker
    header = parse(PeekHeader, command)
    if not 0 < header.max_msg_nums <= MESSAGES_MAX:
        raise system_error(f"peek 1 to {MESSAGES_MAX} messages, not {header.max_msg_nums}")
    target = readable(broker, header, connection.peer.maker)
    sources: list[tuple[PopSubscription, Queue]] = [
        (target.pop_sub, queue) for queue in target.queues
    ]
    first = broker.random.randrange(len(sources))
    sources = sources[first:] + sources[:first]
    retry = broker.service(PopService).retry_subscription(header.topic, header.consumer_group)
    if retry is not None:
        retries = [(retry, queue) for queue in retry.topic.queues]
        is_first = broker.random.randrange(100) < RETRY_FIRST_PERCENT
        sources = retries + sources if is_first else sources + retries
    messages: list[bytes] = []
    rest = 0
    for pop_sub, queue in sources:
        rest += pop_sub.waiting(queue)
        messages += _look(connection, pop_sub, queue, header.max_msg_nums - len(messages))
    if not messages:
        raise ErrorResponse(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    answer = PopAnswer(
        pop_time=broker.clock.wall_ms(), invisible_time=0, rest_num=max(0, rest - len(messages))
    )
    connection.answer(command, ext=fields(answer), body=b"".join(messages), remark="FOUND")


def _look(
    connection: RocketmqConnection, pop_sub: PopSubscription, queue: Queue, messages_max: int
) -> list[bytes]:
    if messages_max <= 0:
        return []
    offset = pop_sub.next_offset(queue)
    pull = Pull(connection, queue, offset, messages_max=messages_max, bytes_max=BYTES_MAX)
    found = connection.broker.engine.pulls.read(pull)
    if found.status in (PullStatus.OFFSET_TOO_SMALL, PullStatus.OFFSET_TOO_LARGE):
        pull.offset = found.next_offset
        found = connection.broker.engine.pulls.read(pull)
    return [
        data
        for record, entry in zip(found.records, found.entries, strict=True)
        for data in present(connection.broker, queue, record, entry)
    ]


def notification(connection: RocketmqConnection, command: Command) -> None:
    """NOTIFICATION: wait until there is something to pop, without popping it (sheet 1.8).

    Proxies use it to hold many clients with one request. It waits in the same table as pops do, and
    is answered with ``hasMsg`` either way; a full table says so instead of waiting.
    """
    header = parse(NotificationHeader, command)
    target = readable(connection.broker, header, connection.peer.maker)
    pop_service = connection.broker.service(PopService)

    def say(has_msg: bool, *, is_full: bool = False) -> None:
        answer = NotificationAnswer(has_msg=has_msg, polling_full=is_full)
        connection.answer(command, ext=fields(answer))

    def try_serve() -> bool:
        has_msg = any(_has_ready(header, target.pop_sub, each) for each in target.queues)
        if not has_msg and not header.order and not target.pop_sub.flag:
            retry = pop_service.retry_subscription(header.topic, header.consumer_group)
            if retry is not None:
                has_msg = any(_has_ready(header, retry, each) for each in retry.topic.queues)
        if has_msg:
            say(True)
        return has_msg

    if try_serve():
        return
    poll = HeldPop(
        connection,
        (header.topic, header.consumer_group, max(-1, header.queue_id)),
        kind=("notification", header.order, header.attempt_id),
        try_serve=try_serve,
        expire=lambda: say(False),
    )
    result = pop_service.long_polling.wait(poll, born_ms=header.born_time, poll_ms=header.poll_time)
    if result is not PollingResult.HELD:
        say(False, is_full=result is PollingResult.FULL)


def _has_ready(header: NotificationHeader, pop_sub: PopSubscription, queue: Queue) -> bool:
    """Whether a pop of this kind would find something."""
    if header.order and pop_sub.is_blocked(queue, header.attempt_id):
        return False
    return pop_sub.waiting(queue) > 0
