"""Pulling: the loop of one queue of a push consumer, and single pulls of the other consumers.

``PullLoop`` has one request under way, held by the broker until messages come. Before each pull it
checks, in RocketMQ's order:

    dropped -> over        last-pull time is set here: whatever holds the loop below, it lives
    paused                 looked at again after 1 s, or at once when resumed
    thresholds (F15)       after 50 ms, or as soon as the cache has fallen to half
    no subscription        after the wait for errors
    gate (ordered: locked) likewise

Answers:

    found                  into the cache and to the consume service; on at the next offset
    nothing new or wanted  on at the next offset; with an empty cache that offset may be committed
    offset moved           the queue is dropped and begins anew where the broker says
    subscription not known a heartbeat tells it, then again
    busy (215)             again after 20 ms; any other error: after the wait for errors

Where to pull follows the broker's suggestion; an offset is committed along with a pull through a
master only, since slaves keep none. The next pull is sent before the messages of the last one are
read, while there is room for both.

Invariant: at most one pull of a queue is under way; a dropped queue pulls and consumes nothing.
Not here: which queues are owned (``rebalance.py``), background pulls of the lite pull consumer
(``lite_reader.py``), pops (``pop.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

import msgspec

from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.process_queue import (
    AssignedQueue,
    ConsumeMessageService,
    Later,
    Pauses,
    later_on_loop,
)
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.consumer.subscription import (
    FilterHook,
    Subscription,
    Subscriptions,
    wanted_of,
)
from penstock.client.errors import BrokerRefused, ClientError, NoRoute, Unreachable
from penstock.client.instance import ClientInstance
from penstock.client.message import RETRY_PREFIX, ReceivedMessage, received_messages
from penstock.client.requests import Pulled
from penstock.client.routes import MASTER_ID, BrokerAddress, RouteCache
from penstock.flow.thresholds import Cached, Throttle
from penstock.model.assignment import QueueRef
from penstock.model.errors import PenstockError
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import PullFlag, PullHeader

_log = logging.getLogger(__name__)

PAUSED_WAIT_MS: Final = 1_000
HELD_WAIT_MS: Final = 50
BUSY_WAIT_MS: Final = 20
"""RocketMQ's waits: paused by the user, over a threshold, the broker is under flow control."""

_SUBSCRIPTION_UNKNOWN: Final = frozenset(
    (
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
    )
)
"""The broker does not know what we want: a heartbeat tells it."""

_SUSPEND: Final = int(PullFlag.SUSPEND)
_COMMIT: Final = int(PullFlag.COMMIT_OFFSET)
_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)


class PullSettings(NamedTuple):
    """The options of a push consumer that its pull loops read."""

    batch: int = 32
    batch_bytes: int = 256 * 1024
    interval_ms: int = 0
    suspend_ms: int = 15_000
    timeout_ms: int = 30_000
    error_wait_ms: int = 1_000
    is_subscription_posted: bool = False
    is_broadcasting: bool = False


class PullHost(Protocol):
    """What a loop uses of its consumer: ``PushMember``, which starts the loops."""

    instance: ClientInstance
    group: str
    pull_settings: PullSettings
    subscriptions: Subscriptions
    offsets: OffsetTable
    service: ConsumeMessageService
    statistics: ConsumerStatistics
    filters: Sequence[FilterHook]
    is_paused: bool

    async def offset_moved(self, assigned: AssignedQueue, offset: int) -> None:
        """The queue begins anew at ``offset``."""
        ...


class PullLoop:
    """Pulls for one queue until it is dropped."""

    def __init__(
        self,
        host: PullHost,
        assigned: AssignedQueue,
        throttle: Throttle,
        *,
        gate: Callable[[AssignedQueue], bool] | None = None,
        later: Later = later_on_loop,
    ) -> None:
        self._host = host
        self._assigned = assigned
        self._throttle = throttle
        self._gate = gate
        """False: this queue may not be pulled yet (ordered: not locked)."""
        self._pauses = Pauses(later)
        self._is_failing = False
        self._ahead: asyncio.Task[Pulled] | None = None
        """The next pull, under way while the messages of the last one are read."""
        self._is_subscription_sent = False
        """The broker did not know our subscription, and a heartbeat told it."""

    async def run(self) -> None:
        assigned = self._assigned
        try:
            while not assigned.is_dropped:
                wait_ms = await self.step()
                if wait_ms and not assigned.is_dropped:
                    await self._pauses.pause(self, wait_ms)
        finally:
            if self._ahead is not None:
                self._ahead.cancel()

    async def step(self) -> int:
        """One round of checks and, if they allow it, one pull; returns how long to wait then."""
        host, assigned = self._host, self._assigned
        now_ms = host.instance.clock.monotonic_ms()
        assigned.last_pull_ms = now_ms
        if host.is_paused or assigned.is_paused:
            await self._wait_for_wake(PAUSED_WAIT_MS, self._is_resumed)
            return 0
        if self._throttle.look(assigned.cached, now_ms) is not None:
            await self._wait_for_wake(HELD_WAIT_MS, self._is_free)
            return 0
        try:
            return await self._pull(now_ms)
        except BrokerRefused as problem:
            return await self._refused(problem)
        except PenstockError as problem:
            return self._failed(problem)

    async def _pull(self, now_ms: int) -> int:
        host, assigned = self._host, self._assigned
        subscription = host.subscriptions.get(assigned.queue.topic)
        if subscription is None or (self._gate is not None and not self._gate(assigned)):
            return host.pull_settings.error_wait_ms
        ahead, self._ahead = self._ahead, None
        pulled = await (ahead or self._send(subscription))
        self._is_failing = self._is_subscription_sent = False
        if assigned.is_dropped:
            return 0
        return await self._answered(pulled, subscription, now_ms)

    async def _send(self, subscription: Subscription) -> Pulled:
        host, assigned = self._host, self._assigned
        instance, timeout_ms = host.instance, host.pull_settings.timeout_ms
        found = await readable_address(instance.routes, assigned.queue, assigned.broker_id)
        header = pull_header(host, assigned, subscription, found)
        return await instance.requests.pull(found.address, header, timeout_ms=timeout_ms)

    async def _send_ahead(self, body_bytes: int, subscription: Subscription) -> None:
        """Send the next pull before this answer is read, so that broker and client work at once.

        Only with room for both answers, so that no limit is passed further than without it.
        """
        settings, cached = self._host.pull_settings, self._assigned.cached
        batch = 2 * settings.batch
        size_bytes = cached.size_bytes + 2 * body_bytes
        coming = Cached(cached.messages + batch, size_bytes, cached.span + batch)
        if self._gate is not None or settings.interval_ms or not self._throttle.is_free(coming):
            return
        self._ahead = asyncio.ensure_future(self._send(subscription))
        self._ahead.add_done_callback(_retrieve_error)
        # One turn for the request to be written, and one for it to be sent.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _answered(self, pulled: Pulled, subscription: Subscription, asked_ms: int) -> int:
        host, assigned = self._host, self._assigned
        status, next_offset = PULL_CODES[pulled.code], pulled.header.next_begin_offset
        assigned.broker_id = pulled.header.suggest_which_broker_id
        cache = assigned.process_queue
        if status is PullStatus.OFFSET_MOVED:
            span = range(pulled.header.min_offset, pulled.header.max_offset + 1)
            log_move(assigned.queue, assigned.next_offset, next_offset, span)
            await host.offset_moved(assigned, next_offset)
            return 0
        assigned.next_offset = next_offset
        messages: list[ReceivedMessage] = []
        if status is PullStatus.FOUND:
            await self._send_ahead(len(pulled.body), subscription)
            if assigned.is_dropped:
                return 0
            messages = self._read(pulled.body)
        if messages:
            now_ms = host.instance.clock.monotonic_ms()
            topic = host.statistics.topic(assigned.queue.topic)
            topic.pulled(len(messages), now_ms - asked_ms, now_ms)
            messages = wanted_of(messages, subscription, host.filters)
            cache.put(messages)
        cache.reached(next_offset)
        if messages:
            host.service.submit(assigned, messages)
        elif cache.count == 0:
            # Nothing of all this concerns us: the next owner need not look at it again.
            host.offsets.note(assigned.queue, cache.commit_offset)
        return host.pull_settings.interval_ms if messages else 0

    def _read(self, body: bytes) -> list[ReceivedMessage]:
        queue = self._assigned.queue
        try:
            return received_messages(body, queue)
        except Malformed as problem:
            raise ClientError(f"messages of {queue} cannot be read: {problem}") from problem

    async def _refused(self, problem: BrokerRefused) -> int:
        if problem.code == ResponseCode.FLOW_CONTROL:
            return BUSY_WAIT_MS
        if problem.code in _SUBSCRIPTION_UNKNOWN:
            # Usual after a rebalance: this pull was faster than the heartbeat that tells of it.
            await self._host.instance.heartbeat()
            if not self._is_subscription_sent:
                self._is_subscription_sent = True
                return BUSY_WAIT_MS
        return self._failed(problem)

    def _failed(self, problem: PenstockError) -> int:
        """Log the first of a row; a retry topic may not exist yet, which is no news."""
        if not self._is_failing and not self._assigned.queue.topic.startswith(RETRY_PREFIX):
            _log.warning("pull failed", extra={"queue": self._assigned.queue, "why": str(problem)})
        self._is_failing = True
        return self._host.pull_settings.error_wait_ms

    def _is_free(self) -> bool:
        return self._throttle.is_free(self._assigned.cached)

    def _is_resumed(self) -> bool:
        return not (self._host.is_paused or self._assigned.is_paused)

    async def _wait_for_wake(self, wait_ms: int, is_over: Callable[[], bool]) -> None:
        """Wait so long, or until somebody calls ``assigned.wake`` and it is over."""

        def wake() -> None:
            if is_over():
                self._pauses.cut(self)

        self._assigned.wake = wake
        try:
            await self._pauses.pause(self, wait_ms)
        finally:
            self._assigned.wake = None


def _retrieve_error(ahead: asyncio.Task[Pulled]) -> None:
    """Its error is seen by whoever awaits it; a dropped queue awaits nothing any more."""
    if not ahead.cancelled():
        ahead.exception()


def pull_header(
    host: PullHost, assigned: AssignedQueue, subscription: Subscription, found: BrokerAddress
) -> PullHeader:
    """The pull of this queue from where it is now, committing what is settled if it may."""
    settings, queue = host.pull_settings, assigned.queue
    committed = None if settings.is_broadcasting else host.offsets.get(queue)
    flags = _SUSPEND
    if committed and not found.is_slave:
        flags |= _COMMIT
    data = subscription.data
    text = None
    if settings.is_subscription_posted:
        flags |= _SUBSCRIPTION
        text = data.sub_string
    return PullHeader(
        consumer_group=host.group,
        topic=queue.topic,
        queue_id=queue.queue,
        queue_offset=assigned.next_offset,
        max_msg_nums=settings.batch,
        sys_flag=flags,
        commit_offset=committed or 0,
        suspend_timeout_millis=settings.suspend_ms,
        subscription=text,
        sub_version=data.sub_version,
        expression_type=data.expression_type,
        max_msg_bytes=settings.batch_bytes,
    )


async def readable_address(routes: RouteCache, queue: QueueRef, suggested_id: int) -> BrokerAddress:
    """Where to pull a queue: the broker suggested, or one that serves it; raises ``NoRoute``."""
    found = routes.readable(queue.broker, suggested_id)
    if found is None:
        await routes.look_up(queue.topic)
        found = routes.readable(queue.broker, suggested_id)
    if found is None:
        raise NoRoute(queue.topic, f"broker {queue.broker} has no address")
    return found


class PullStatus(Enum):
    """How a pull ended."""

    FOUND = "found"
    NO_NEW_MESSAGE = "no new message"
    """Nothing behind the offset yet."""
    NO_MATCHED_MESSAGE = "no matched message"
    """There are messages, and none of those looked at is wanted: go on at ``next_offset``."""
    OFFSET_MOVED = "offset moved"
    """Outside the queue (removed, or never there), or reset: go on at ``next_offset``."""


PULL_CODES: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MESSAGE,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}
"""Answers that are no errors."""


def log_move(queue: QueueRef, offset: int, next_offset: int, span: range) -> None:
    """Tell where a queue begins anew; ``span``: the offsets from which it can be read.

    A broker has one answer for an offset that is not there, which may mean lost messages, and for
    one that an operator reset, which is what somebody wanted.
    """
    level, what = logging.WARNING, "offset is outside the queue"
    if offset in span:
        level, what = logging.INFO, "offset was reset"
    extra = {"queue": queue, "offset": offset, "begins_anew_at": next_offset}
    _log.log(level, what, extra=extra)


class PullResult(msgspec.Struct, frozen=True, gc=False):
    """The answer to one pull; iterate over it for its messages."""

    queue: QueueRef
    status: PullStatus
    messages: Sequence[ReceivedMessage]
    next_offset: int
    """Where the next pull begins."""
    min_offset: int
    max_offset: int
    """The queue holds offsets from ``min_offset`` up to, not including, ``max_offset``."""

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return bool(self.messages)


class PullClient:
    """Single pulls from any offset, for consumers without a listener.

    The subscription travels in the request, so a broker needs to know nothing of the group
    beforehand. A suggested slave is followed; a broker that cannot be reached is looked up anew for
    the next time.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        timeout_ms: int,
        bytes_max: int | None = None,
        is_lite: bool = False,
    ) -> None:
        self._instance = instance
        self._group = group
        self._timeout_ms = timeout_ms
        self._bytes_max = bytes_max
        self._is_lite = is_lite
        self._suggested: dict[QueueRef, int] = {}

    async def pull(
        self, queue: QueueRef, offset: int, subscription: Subscription, *, count: int, wait_ms: int
    ) -> PullResult:
        """Messages from ``offset`` on; ``wait_ms`` is how long the broker may wait for some."""
        suggested_id = self._suggested.get(queue, MASTER_ID)
        found = await readable_address(self._instance.routes, queue, suggested_id)
        flags = PullFlag.SUBSCRIPTION
        if wait_ms:
            flags |= PullFlag.SUSPEND
        if self._is_lite:
            flags |= PullFlag.LITE
        header = PullHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=int(flags),
            suspend_timeout_millis=wait_ms,
            subscription=subscription.data.sub_string,
            sub_version=subscription.data.sub_version,
            expression_type=subscription.data.expression_type,
            max_msg_bytes=self._bytes_max,
        )
        try:
            answer = await self._instance.requests.pull(
                found.address,
                header,
                timeout_ms=self._timeout_ms + wait_ms,
                is_lite=self._is_lite,
            )
        except Unreachable:
            self._suggested.pop(queue, None)
            await self._instance.routes.refresh([queue.topic])
            raise
        self._follow(queue, answer.header.suggest_which_broker_id)
        try:
            messages = subscription.matching(received_messages(answer.body, queue))
        except Malformed as problem:
            raise ClientError(f"the answer of {found.address} cannot be read: {problem}") from None
        return PullResult(
            queue,
            PULL_CODES[answer.code],
            messages,
            answer.header.next_begin_offset,
            answer.header.min_offset,
            answer.header.max_offset,
        )

    def forget(self, queue: QueueRef) -> None:
        self._suggested.pop(queue, None)

    def _follow(self, queue: QueueRef, suggested_id: int) -> None:
        if suggested_id == MASTER_ID:
            self._suggested.pop(queue, None)
        else:
            self._suggested[queue] = suggested_id
