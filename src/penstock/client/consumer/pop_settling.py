"""Popped messages: their receipts, what follows from a listener's answer, and the settlements.

    success                    acknowledged
    failure                    invisible for a time that grows with its deliveries
    failure, too often         acknowledged once it is older than four hours
    a level below 0            a dead letter
    ordered failure            it and all behind it in its queue: invisible for the suspend time
    longer than the invisible  ignored: the broker has given the message to somebody else already
    time, whatever it says

Nothing is committed by the client: a message is settled by its receipt (``POP_CK``), within its
invisible time, or it comes again. Nothing is tried twice either: a message whose acknowledgement is
lost comes again after its invisible time, and that is what this promises.

Not here: calling the listener (``executor.py``), pops (``pop.py``), retries of pulled messages
(``send_back.py``).
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from penstock.client.consumer.executor import (
    Batch,
    ConsumeExecutor,
    ConsumeRequest,
    Done,
    Finished,
    Later,
    batches_of,
)
from penstock.client.consumer.ordered import suspend_ms
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.consumer.send_back import DEAD_LETTER_LEVEL
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.errors import BrokerRefused, ClientError
from penstock.client.message import RETRY_PREFIX, ReceivedMessage
from penstock.client.requests import BrokerRequests
from penstock.flow.thresholds import Cached
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.bodies import BATCH_ACK_BYTES_MAX, BatchAck, BatchAckBody
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.headers import (
    AckHeader,
    ChangeInvisibleAnswer,
    ChangeInvisibleHeader,
    PopAnswer,
    SendBackHeader,
)
from penstock.wire.rocketmq.pop_handle import (
    REVIVE_ORDERLY,
    PopHandle,
    RetryFlag,
    parse_offsets,
    parse_order_counts,
    parse_start_offsets,
)
from penstock.wire.rocketmq.properties import NAME_END, PAIR_END
from penstock.wire.rocketmq.stored import StoredMessage

_log = logging.getLogger(__name__)

RETURN_MS: Final = 1
"""Invisible time of what is handed back unread: somebody else may have it at once."""
SPAN_MAX: Final = BATCH_ACK_BYTES_MAX * 8
"""Offsets that one entry can reach; a pop takes 32 messages, filters leave gaps."""
ENTRIES_MAX: Final = 256
"""Entries of one request."""
DELAYS_S: Final = (
    10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""RocketMQ's ``popDelayLevel``."""
RECONSUME_TIMES_MAX: Final = 16
AGE_MS_MAX: Final = DELAYS_S[-1] * 1000 * 2
"""Older than this after ``RECONSUME_TIMES_MAX`` deliveries: acknowledged, 4 hours."""
POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
_FIRST_POP: Final = FIRST_POP_TIME.encode() + NAME_END


class ConsumeMessagePopService:
    """Consumes popped messages of one group.

    Messages wait here for a free worker; what waits longer than its invisible time is not consumed
    at all. An ordered queue's messages are given to the listener batch after batch, each after the
    one before it succeeded; queues of one pop run side by side.

    Invariant: every message handed in is ended exactly once in its ``PopProcessQueue``.
    """

    def __init__(
        self,
        executor: ConsumeExecutor,
        settler: PopSettler,
        statistics: ConsumerStatistics,
        clock: Clock,
        *,
        is_ordered: bool = False,
        consume_batch: int = 1,
        suspend_ms: int = 1_000,
        reconsume_times_max: int | None = None,
    ) -> None:
        self._executor = executor
        self._settler = settler
        self._statistics = statistics
        self._clock = clock
        self._is_ordered = is_ordered
        self._consume_batch = consume_batch
        self._suspend_ms = suspend_ms
        self._reconsume_times_max = reconsume_times_max
        self._requests: set[PopConsumeRequest] = set()
        self.too_late = 0
        """Messages whose invisible time was over before a result was there."""

    def submit(self, queue: PopProcessQueue, messages: Sequence[PoppedMessage]) -> None:
        queue.found(len(messages))
        if not self._is_ordered:
            self._begin(queue, batches_of(messages, self._consume_batch))
            return
        by_queue: dict[int, list[PoppedMessage]] = {}
        for message in messages:
            by_queue.setdefault(message.handle.queue_id, []).append(message)
        for each in by_queue.values():
            first, *rest = batches_of(each, self._consume_batch)
            self._begin(queue, [first], rest)

    def sweep(self) -> None:
        """Leave what has waited for a worker longer than its invisible time."""
        now_ms = self._clock.monotonic_ms()
        for request in list(self._requests):
            late: list[Batch] = []
            for _ in range(len(request.batches)):
                batch = self._take(request)
                if batch is None:
                    break
                if _popped(batch)[0].is_too_late(now_ms):
                    late.append(batch)
                else:
                    request.batches.append(batch)
            for batch in late:
                self._leave(request, _popped(batch))

    def dropped(self, queue: PopProcessQueue) -> None:
        """The queue is not ours any more: hand back what no worker has taken yet."""
        for request in list(self._requests):
            if request.popped_from is not queue:
                continue
            waiting: list[Batch] = []
            while (batch := self._take(request)) is not None:
                waiting.append(batch)
            waiting += request.rest
            request.rest = []
            for batch in waiting:
                self._settler.give_back(_popped(batch), RETURN_MS)
                self._end(request, len(batch))

    def _begin(
        self, queue: PopProcessQueue, batches: list[Batch], rest: Iterable[Batch] = ()
    ) -> None:
        request = PopConsumeRequest(queue, batches, list(rest), self._done)
        self._requests.add(request)
        self._executor.submit(request)

    def _done(self, request: ConsumeRequest, calls: list[Finished]) -> None:
        """Calls of the listener ended; on the client's loop."""
        assert isinstance(request, PopConsumeRequest)
        now_ms = self._clock.monotonic_ms()
        self._statistics.topic(request.popped_from.queue.topic).finished(calls, now_ms)
        request.popped_from.last_consume_ms = now_ms
        for call in calls:
            messages = _popped(call.messages)
            if any(each.is_too_late(now_ms) for each in messages):
                self._too_late(request, messages)
            elif self._is_ordered:
                self._settle_in_order(request, call, messages)
            else:
                self._settle(call, messages)
            self._end(request, len(messages))
        if self._is_ordered and request.rest and not request.batches:
            self._go_on(request)

    def _settle(self, call: Finished, messages: list[PoppedMessage]) -> None:
        if call.is_success:
            self._settler.ack(messages)
            return
        answer = call.answer
        level, done = (answer.delay_level, answer.done) if isinstance(answer, Later) else (0, 0)
        if done:
            self._settler.ack(messages[:done])
        if level < 0:
            self._settler.bury(messages[done:])
            return
        most = self._reconsume_times_max
        for message in messages[done:]:
            delay_ms = retry_delay_ms(
                message.reconsume_times,
                self._clock.wall_ms() - message.born_at_ms,
                level=level,
                reconsume_times_max=RECONSUME_TIMES_MAX if most is None else most,
            )
            if delay_ms is None:
                _log.warning(
                    "message given up: consumed too often, too old",
                    extra={"message_id": message.message_id, "times": message.reconsume_times},
                )
                self._settler.ack([message])
            else:
                self._settler.give_back([message], delay_ms)

    def _settle_in_order(
        self, request: PopConsumeRequest, call: Finished, messages: list[PoppedMessage]
    ) -> None:
        if call.is_success:
            self._settler.ack(messages)
            return
        most = self._reconsume_times_max
        if most is not None and all(each.reconsume_times >= most for each in messages):
            self._settler.bury(messages)
            return
        wait_ms = suspend_ms(call, self._suspend_ms)
        rest, request.rest = request.rest, []
        behind = [message for batch in rest for message in _popped(batch)]
        # Also what was not tried: the broker must not give it out before the failed one.
        self._settler.give_back([*messages, *behind], wait_ms)
        self._end(request, len(behind))

    def _go_on(self, request: PopConsumeRequest) -> None:
        batch = request.rest.pop(0)
        late = any(each.is_too_late(self._clock.monotonic_ms()) for each in _popped(batch))
        if late or request.popped_from.is_dropped:
            # Those behind it are of the same pop: their time is over, too.
            rest, request.rest = [batch, *request.rest], []
            for each in rest:
                self._leave(request, _popped(each))
            return
        request.batches.append(batch)
        self._executor.submit(request)

    def _too_late(self, request: PopConsumeRequest, messages: list[PoppedMessage]) -> None:
        self.too_late += len(messages)
        _log.warning(
            "result ignored: consuming took longer than the invisible time",
            extra={"queue": request.popped_from.queue, "messages": len(messages)},
        )

    def _leave(self, request: PopConsumeRequest, messages: list[PoppedMessage]) -> None:
        self.too_late += len(messages)
        self._end(request, len(messages))

    def _end(self, request: PopConsumeRequest, messages: int) -> None:
        request.popped_from.ended(messages)
        request.left -= messages
        if request.left == 0:
            self._requests.discard(request)

    def _take(self, request: PopConsumeRequest) -> Batch | None:
        # Workers take from the same end at the same time.
        try:
            return request.batches.popleft()
        except IndexError:
            return None


class PopConsumeRequest(ConsumeRequest):
    """Messages of one pop on their way through the listener."""

    __slots__ = ("left", "popped_from", "rest")

    def __init__(
        self, queue: PopProcessQueue, batches: list[Batch], rest: list[Batch], done: Done
    ) -> None:
        super().__init__(queue, batches, done)
        self.popped_from = queue
        self.rest = rest
        """Ordered: batches that wait for those in front of them."""
        self.left = sum(map(len, batches)) + sum(map(len, rest))
        """Messages not reported yet."""


def _popped(batch: Batch) -> list[PoppedMessage]:
    return [message for message in batch if isinstance(message, PoppedMessage)]


class PopSettler:
    """Settles popped messages at their brokers: acknowledged, given back, or buried.

    Acknowledgements of one turn of the event loop go out together. A broker that does not know the
    shared request gets single ones from then on.

    Invariants: a message is settled with its newest receipt; ``drain`` returns when every request
    under way is answered.
    """

    def __init__(self, requests: BrokerRequests, group: str, clock: Clock) -> None:
        self._requests = requests
        self._group = group
        self._clock = clock
        self._acks: list[PoppedMessage] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._singles_only: set[str] = set()
        """Brokers that do not know the shared request."""
        self.acked = 0
        self.given_back = 0
        self.buried = 0
        self.lost = 0
        """Settlements that failed: these messages come again."""

    def ack(self, messages: Iterable[PoppedMessage]) -> None:
        """Done; they never come again."""
        if not self._acks:
            asyncio.get_running_loop().call_soon(self._flush)
        self._acks += messages

    def give_back(self, messages: Iterable[PoppedMessage], invisible_ms: int) -> None:
        """Not done; they come again when the new invisible time has passed."""
        for message in messages:
            self._try("change of the invisible time", message, self._change, invisible_ms)

    def bury(self, messages: Iterable[PoppedMessage]) -> None:
        """Not done, and never to come again: dead letters."""
        for message in messages:
            self._try("burial", message, self._bury)

    async def extend(self, message: PoppedMessage, invisible_ms: int) -> None:
        """More time (or less) for a message in work, from now on; raises ``ClientError``."""
        handle = message.handle
        address = await self._address(message)
        begun_ms = self._clock.monotonic_ms()
        header = ChangeInvisibleHeader(
            consumer_group=self._group,
            topic=real_topic(handle, message.topic, self._group),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.offset,
            invisible_time=invisible_ms,
        )
        answer = await self._requests.change_invisible(address, header)
        message.renew(renewed(handle, answer), begun_ms + invisible_ms)

    async def drain(self) -> None:
        """Wait for everything under way."""
        self._flush()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _flush(self) -> None:
        acks, self._acks = self._acks, []
        by_broker: dict[str, list[PoppedMessage]] = {}
        for message in acks:
            by_broker.setdefault(message.handle.broker_name, []).append(message)
        for broker, messages in by_broker.items():
            shared = [each for each in messages if can_share(each.handle)]
            if len(shared) < 2 or broker in self._singles_only:
                shared = []
            if shared:
                self._spawn(self._ack_together(shared))
            alone = messages if not shared else [m for m in messages if not can_share(m.handle)]
            for message in alone:
                self._try("acknowledgement", message, self._ack_one)

    async def _ack_together(self, messages: Sequence[PoppedMessage]) -> None:
        broker = messages[0].handle.broker_name
        pairs = [(message.topic, message.handle) for message in messages]
        try:
            address = await self._address(messages[0])
            for _, body in batched(self._group, pairs):
                await self._requests.batch_ack(address, body)
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._failed("acknowledgement", messages, refusal)
                return
            self._singles_only.add(broker)
            for message in messages:
                self._try("acknowledgement", message, self._ack_one)
        except ClientError as problem:
            self._failed("acknowledgement", messages, problem)
        else:
            self.acked += len(messages)

    async def _ack_one(self, message: PoppedMessage) -> None:
        header = single(message.topic, self._group, message.handle)
        await self._requests.ack(await self._address(message), header)
        self.acked += 1

    async def _change(self, message: PoppedMessage, invisible_ms: int) -> None:
        await self.extend(message, invisible_ms)
        self.given_back += 1

    async def _bury(self, message: PoppedMessage) -> None:
        header = SendBackHeader(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=DEAD_LETTER_LEVEL,
            origin_msg_id=message.message_id,
            origin_topic=message.queue.topic,
        )
        await self._requests.send_back(await self._address(message), header)
        # Buried first: a crash in between makes two of it, the other order none.
        await self._requests.ack(
            await self._address(message), single(message.topic, self._group, message.handle)
        )
        self.buried += 1

    def _try(
        self,
        what: str,
        message: PoppedMessage,
        settle: Callable[..., Awaitable[None]],
        *more: int,
    ) -> None:
        async def settle_or_log() -> None:
            try:
                await settle(message, *more)
            except ClientError as problem:
                self._failed(what, [message], problem)

        self._spawn(settle_or_log())

    async def _address(self, message: PoppedMessage) -> str:
        # The route of the topic: that of a retry topic need not be known here.
        queue = QueueRef(message.topic, message.handle.broker_name, message.handle.queue_id)
        return await self._requests.master_of(queue)

    def _failed(self, what: str, messages: Sequence[PoppedMessage], problem: ClientError) -> None:
        self.lost += len(messages)
        _log.warning(
            "popped messages not settled, they come again",
            extra={
                "group": self._group,
                "what": what,
                "messages": len(messages),
                "queue": messages[0].queue,
                "error": str(problem),
            },
        )

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


Receipt = tuple[str, PopHandle]
"""(subscribed topic, handle)."""

_EntryKey = tuple[str, str, int, int, int, int, int]


def single(topic: str, group: str, handle: PopHandle) -> AckHeader:
    return AckHeader(
        consumer_group=group,
        topic=real_topic(handle, topic, group),
        queue_id=handle.queue_id,
        extra_info=str(handle),
        offset=handle.offset,
    )


def batched(group: str, receipts: Iterable[Receipt]) -> Iterator[tuple[str, BatchAckBody]]:
    """(broker, request) for all receipts that can share requests.

    The messages of one pop of one queue are one entry (bit i = start offset + i), and many entries
    one request. Different pops never share an entry: their receipts expire at different times.
    """
    bits: dict[_EntryKey, int] = {}
    heads: dict[_EntryKey, Receipt] = {}
    for topic, handle in receipts:
        key = (
            handle.broker_name, topic, handle.retry_flag, handle.queue_id,
            handle.start_offset, handle.pop_time, handle.revive_qid,
        )  # fmt: skip
        heads.setdefault(key, (topic, handle))
        bits[key] = bits.get(key, 0) | 1 << (handle.offset - handle.start_offset)
    entries: dict[str, list[BatchAck]] = {}
    for key, (topic, handle) in heads.items():
        entries.setdefault(handle.broker_name, []).append(_entry(group, topic, handle, bits[key]))
    for broker, acks in entries.items():
        for at in range(0, len(acks), ENTRIES_MAX):
            yield broker, BatchAckBody(broker_name=broker, acks=acks[at : at + ENTRIES_MAX])


def can_share(handle: PopHandle) -> bool:
    """False for receipts that need a request of their own: ordered ones, and far-off offsets."""
    return (
        handle.revive_qid != REVIVE_ORDERLY and 0 <= handle.offset - handle.start_offset < SPAN_MAX
    )


def _entry(group: str, topic: str, handle: PopHandle, bits: int) -> BatchAck:
    return BatchAck(
        consumer_group=group,
        topic=topic,
        retry=str(int(handle.retry_flag)),
        start_offset=handle.start_offset,
        queue_id=handle.queue_id,
        revive_queue_id=handle.revive_qid,
        pop_time=handle.pop_time,
        invisible_time=handle.invisible_time,
        bits=bits.to_bytes((bits.bit_length() + 7) // 8, "little"),
    )


def delay_ms(reconsume_times: int, level: int = 0) -> int:
    """How long a failed message stays invisible; ``level`` is the listener's wish, 0 = none."""
    at = level if level > 0 else reconsume_times
    return DELAYS_S[min(max(at, 0), len(DELAYS_S) - 1)] * 1000


def retry_delay_ms(
    reconsume_times: int,
    age_ms: int,
    *,
    level: int = 0,
    reconsume_times_max: int = RECONSUME_TIMES_MAX,
) -> int | None:
    """The wait before the next delivery of a failed message; None = give it up, acknowledge it.

    It is not sent anywhere: the broker hands it out again when its new invisible time has passed.
    After 16 deliveries the age of the message decides: the wait that fits it, until it is older
    than twice the longest wait, so that it does not go round for ever.
    """
    if reconsume_times < reconsume_times_max:
        return delay_ms(reconsume_times, level)
    if age_ms > AGE_MS_MAX:
        return None
    # The first wait that is longer than the message is old.
    return delay_ms(0, bisect_right(DELAYS_S, age_ms / 1000))


class PopProcessQueue(AssignedQueue):
    """A queue to pop from (or all of a broker: ``ALL_QUEUES``), and its unsettled messages.

    A message is counted from its pop until its result is in, or its time is up. Once dropped it
    pops nothing, but what it popped may still be settled: the receipts stay good.
    """

    __slots__ = ("attempt_id", "popped", "unacked")

    def __init__(self, queue: QueueRef, now_ms: int) -> None:
        # No offset of its own: the broker keeps it.
        super().__init__(queue, -1, now_ms)
        self.unacked = 0
        self.popped = 0
        """Messages popped since the beginning."""
        self.attempt_id = new_attempt()
        """The same in every try of one ordered pop: a lost answer can be asked for again."""

    @property
    def cached(self) -> Cached:
        return Cached(self.unacked, 0, 0)

    def found(self, messages: int) -> None:
        self.unacked += messages
        self.popped += messages

    def ended(self, messages: int) -> None:
        """So many are off our hands."""
        self.unacked -= messages
        assert self.unacked >= 0, "more popped messages ended than were popped"
        if self.wake is not None:
            self.wake()


class PoppedMessage(ReceivedMessage):
    """A received message with its receipt."""

    __slots__ = ("deadline_ms", "handle")

    def __init__(
        self,
        stored: StoredMessage,
        queue: QueueRef,
        handle: PopHandle,
        text: str,
        *,
        deadline_ms: int,
    ) -> None:
        super().__init__(stored, queue, text)
        self.handle = handle
        self.deadline_ms = deadline_ms
        """Monotonic; from then on the broker may have given it to somebody else."""

    def renew(self, handle: PopHandle, deadline_ms: int) -> None:
        """Its invisible time was changed: the old receipt is void."""
        self.handle = handle
        self.pop_handle = str(handle)
        self.deadline_ms = deadline_ms

    def is_too_late(self, now_ms: int) -> bool:
        """True when no result counts any more."""
        return now_ms >= self.deadline_ms


def new_attempt() -> str:
    return uuid4().hex


class PopReceipt(msgspec.Struct, gc=False):
    """One popped message and its receipt."""

    message: StoredMessage
    """Under the topic that was asked for."""
    handle: PopHandle
    text: str
    """The receipt as it is sent."""


def receipts(
    answer: PopAnswer, messages: list[StoredMessage], topic: str, broker: str
) -> list[PopReceipt]:
    """The messages of one answer with their receipts, in the order they came.

    The answer names, for each queue, where its batch begins (``startOffsetInfo``) and which offsets
    were taken (``msgOffsetInfo``). Messages that come back lie in a retry topic of their own; the
    listener shall see the topic it subscribed to, so the receipt alone names where it really is.
    """
    starts = parse_start_offsets(answer.start_offset_info or "")
    listed = parse_offsets(answer.msg_offset_info or "")
    counts = parse_order_counts(answer.order_count_info or "")
    nth: dict[tuple[int, int], int] = {}
    found: list[PopReceipt] = []
    for message in messages:
        flag = retry_flag(message.topic)
        key = (flag, message.queue_id)
        taken = nth.get(key, 0)
        nth[key] = taken + 1
        offsets = listed.get(key, ())
        # The list is the broker's word: offsets inside a message may be those of another queue.
        offset = offsets[taken] if taken < len(offsets) else message.queue_offset
        handle = PopHandle(
            starts.get(key, offset),
            answer.pop_time,
            answer.invisible_time,
            answer.revive_qid,
            flag,
            broker,
            message.queue_id,
            offset,
        )
        delivered = counts.get((*key, offset), counts.get((*key, -1), 0))
        found.append(_with_receipt(message, handle, topic, max(delivered, message.reconsume_times)))
    return found


def retry_flag(topic: str) -> RetryFlag:
    """Whether a topic is a retry topic, and in which way it is named."""
    if not topic.startswith(RETRY_PREFIX):
        return RetryFlag.NORMAL
    return RetryFlag.RETRY_V2 if "+" in topic else RetryFlag.RETRY_V1


def real_topic(handle: PopHandle, topic: str, group: str) -> str:
    """The topic in which the message of a receipt lies."""
    if handle.retry_flag == RetryFlag.RETRY_V1:
        return pop_retry_topic(topic, group)
    if handle.retry_flag == RetryFlag.RETRY_V2:
        return f"{RETRY_PREFIX}{group}+{topic}"
    return topic


def pop_retry_topic(topic: str, group: str) -> str:
    """Where popped messages of a topic come back for a group."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def renewed(handle: PopHandle, answer: ChangeInvisibleAnswer) -> PopHandle:
    # A batch of its own: the new checkpoint covers this message alone.
    return msgspec.structs.replace(
        handle,
        start_offset=handle.offset,
        pop_time=answer.pop_time,
        invisible_time=answer.invisible_time,
        revive_qid=answer.revive_qid,
    )


def _with_receipt(
    message: StoredMessage, handle: PopHandle, topic: str, delivered: int
) -> PopReceipt:
    text = str(handle)
    properties = message.properties
    more = f"{POP_CK}\x01{text}\x02"
    if _FIRST_POP not in properties:
        more += f"{FIRST_POP_TIME}\x01{handle.pop_time}\x02"
    if properties and not properties.endswith(PAIR_END):
        properties += PAIR_END
    message.topic = topic
    message.properties = properties + more.encode()
    message.reconsume_times = delivered
    return PopReceipt(message, handle, text)
