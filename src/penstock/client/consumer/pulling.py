"""The pull loop of one owned queue: one request at a time, held by the broker until messages come.

Order of checks before each pull, as RocketMQ's:

    dropped -> over        last-pull time is set here: whatever holds the loop below, it lives
    paused                 looked at again after 1 s, or at once when resumed
    thresholds (F15)       after 50 ms, or as soon as the cache has fallen to half
    gate (ordered: locked) after the wait for errors
    no subscription        likewise

Answers:

    found                  into the cache and to the consume service; on at the next offset
    nothing new or wanted  on at the next offset; with an empty cache that offset may be committed
    offset moved           the queue is dropped and begins anew where the broker says
    subscription not known a heartbeat tells it, then again
    busy (215)             again after 20 ms; any other error: after the wait for errors

Where to pull follows the broker's suggestion; an offset is committed along with a pull through a
master only, since slaves keep none.

The next pull is sent before the messages of the last one are read, while there is room for both.

Invariant: at most one pull of a queue is under way; a dropped queue pulls and consumes nothing.
Not here: which queues are owned (``rebalance.py``), the requests themselves (``calls_consume.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec

from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.process_queue import AssignedQueue, ConsumeMessageService
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.consumer.subscription import (
    ConsumeFrom,
    FilterHook,
    Subscription,
    Subscriptions,
    wanted_of,
)
from penstock.client.errors import BrokerRefused, ClientError, NoRoute, Unreachable
from penstock.client.instance import ClientInstance
from penstock.client.message import RETRY_PREFIX, ReceivedMessage, received_messages
from penstock.client.options import InstanceOptions, Option
from penstock.client.routes import MASTER_ID, BrokerAddress
from penstock.flow.thresholds import Cached, Throttle
from penstock.model.assignment import AVG, QueueRef, Strategy
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import PullFlag, PullHeader

_log = logging.getLogger(__name__)

PAUSED_LOOK_MS: Final = 1_000
HELD_LOOK_MS: Final = 50
BUSY_WAIT_MS: Final = 20

_UNTOLD: Final = frozenset(
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


class Pulled(NamedTuple):
    """An answer to a pull that is no error."""

    status: PullStatus
    next_offset: int
    suggested_broker: int
    body: bytes = b""
    """Stored messages, not read yet."""


class PullSettings(NamedTuple):
    """The options of pulling."""

    batch: int = 32
    batch_bytes: int = 256 * 1024
    interval_ms: int = 0
    suspend_ms: int = 15_000
    error_wait_ms: int = 1_000
    is_subscription_posted: bool = False
    is_broadcasting: bool = False


class PullHost(Protocol):
    """What a loop needs of its consumer."""

    clock: Clock
    group: str
    terms: PullSettings
    subscriptions: Subscriptions
    offsets: OffsetTable
    service: ConsumeMessageService
    statistics: ConsumerStatistics
    filters: Sequence[FilterHook]
    is_paused: bool

    async def readable(self, queue: QueueRef, suggested_id: int) -> BrokerAddress:
        """Where to pull; raises ``NoRoute`` when nobody knows."""
        ...

    async def pull(self, address: str, header: PullHeader, queue: QueueRef) -> Pulled:
        """One pull; errors are raised."""
        ...

    def read(self, body: bytes, queue: QueueRef) -> list[ReceivedMessage]:
        """The messages of an answer; errors are raised."""
        ...

    async def heartbeat_now(self) -> None:
        """Tell brokers the subscriptions."""
        ...

    async def offset_moved(self, assigned: AssignedQueue, offset: int) -> None:
        """The queue begins anew at ``offset``."""
        ...


Gate = Callable[[AssignedQueue], Awaitable[bool]]
"""False: this queue may not be pulled yet (ordered: not locked). May set ``next_offset``."""


class PullLoop:
    """Pulls for one queue until it is dropped."""

    def __init__(
        self,
        host: PullHost,
        assigned: AssignedQueue,
        throttle: Throttle,
        *,
        gate: Gate | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._host = host
        self._assigned = assigned
        self._throttle = throttle
        self._gate = gate
        self._pause = pause
        self._is_failing = False
        self._ahead: asyncio.Task[Pulled] | None = None
        """The next pull, under way while the messages of the last one are read."""
        self._is_untold = False
        """The broker did not know our subscription, and was told."""

    async def run(self) -> None:
        """Until dropped or cancelled."""
        assigned = self._assigned
        try:
            while not assigned.is_dropped:
                wait_ms = await self.step()
                if wait_ms and not assigned.is_dropped:
                    await self._pause(wait_ms / 1000)
        finally:
            if self._ahead is not None:
                self._ahead.cancel()

    async def step(self) -> int:
        """One round of checks and, if they allow it, one pull; returns how long to wait then."""
        host, assigned = self._host, self._assigned
        now_ms = host.clock.monotonic_ms()
        assigned.last_pull_ms = now_ms
        if host.is_paused or assigned.is_paused:
            await self._wait_for_wake(PAUSED_LOOK_MS, self._look_resumed)
            return 0
        if self._throttle.look(self._cached(), now_ms) is not None:
            await self._wait_for_wake(HELD_LOOK_MS, self._look_free)
            return 0
        try:
            return await self._pull(now_ms)
        except BrokerRefused as problem:
            return await self._refused(problem)
        except PenstockError as problem:
            self._failed(problem)
            return host.terms.error_wait_ms

    async def _pull(self, now_ms: int) -> int:
        host, assigned = self._host, self._assigned
        subscription = host.subscriptions.get(assigned.queue.topic)
        if subscription is None or (self._gate is not None and not await self._gate(assigned)):
            return host.terms.error_wait_ms
        ahead, self._ahead = self._ahead, None
        pulled = await (ahead or self._ask(subscription))
        self._is_failing = self._is_untold = False
        if assigned.is_dropped:
            return 0
        return await self._answered(pulled, subscription, now_ms)

    async def _ask(self, subscription: Subscription) -> Pulled:
        host, assigned = self._host, self._assigned
        found = await host.readable(assigned.queue, assigned.broker_id)
        header = pull_header(host, assigned, subscription, found)
        return await host.pull(found.address, header, assigned.queue)

    async def _run_ahead(self, body_bytes: int, subscription: Subscription) -> None:
        """Send the next pull before this answer is read, so that broker and client work at once.

        Only with room for both answers, so that no limit is passed further than without it.
        """
        host, cached = self._host, self._cached()
        batch = 2 * host.terms.batch
        size_bytes = cached.size_bytes + 2 * body_bytes
        coming = Cached(cached.messages + batch, size_bytes, cached.span + batch)
        if self._gate is not None or host.terms.interval_ms or not self._throttle.is_free(coming):
            return
        self._ahead = asyncio.ensure_future(self._ask(subscription))
        self._ahead.add_done_callback(_heard)
        # One turn for the request to be written, and one for it to be sent.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _answered(self, pulled: Pulled, subscription: Subscription, asked_ms: int) -> int:
        host, assigned = self._host, self._assigned
        assigned.broker_id = pulled.suggested_broker
        cache = assigned.process_queue
        if pulled.status is PullStatus.OFFSET_MOVED:
            _log.warning(
                "offset is outside the queue",
                extra={
                    "queue": assigned.queue,
                    "offset": assigned.next_offset,
                    "begins_anew_at": pulled.next_offset,
                },
            )
            await host.offset_moved(assigned, pulled.next_offset)
            return 0
        assigned.next_offset = pulled.next_offset
        messages: list[ReceivedMessage] = []
        if pulled.status is PullStatus.FOUND:
            await self._run_ahead(len(pulled.body), subscription)
            if assigned.is_dropped:
                return 0
            messages = host.read(pulled.body, assigned.queue)
        if messages:
            now_ms = host.clock.monotonic_ms()
            topic = host.statistics.topic(assigned.queue.topic)
            topic.pulled(len(messages), now_ms - asked_ms, now_ms)
            messages = wanted_of(messages, subscription, host.filters)
            cache.put(messages)
        cache.reached(pulled.next_offset)
        if messages:
            host.service.submit(assigned, messages)
        elif cache.count == 0:
            # Nothing of all this concerns us: the next owner need not look at it again.
            host.offsets.note(assigned.queue, cache.commit_offset)
        return host.terms.interval_ms if messages else 0

    async def _refused(self, problem: BrokerRefused) -> int:
        if problem.code == ResponseCode.FLOW_CONTROL:
            return BUSY_WAIT_MS
        if problem.code in _UNTOLD:
            # Usual after a rebalance: this pull was faster than the heartbeat that tells of it.
            await self._host.heartbeat_now()
            if not self._is_untold:
                self._is_untold = True
                return BUSY_WAIT_MS
        self._failed(problem)
        return self._host.terms.error_wait_ms

    def _failed(self, problem: PenstockError) -> None:
        """Log the first of a row; a retry topic may not exist yet, which is no news."""
        if not self._is_failing and not self._assigned.queue.topic.startswith(RETRY_PREFIX):
            _log.warning("pull failed", extra={"queue": self._assigned.queue, "why": str(problem)})
        self._is_failing = True

    def _cached(self) -> Cached:
        cache = self._assigned.process_queue
        return Cached(cache.count, cache.size_bytes, cache.span)

    def _look_free(self) -> bool:
        return self._throttle.is_free(self._cached())

    def _look_resumed(self) -> bool:
        return not (self._host.is_paused or self._assigned.is_paused)

    async def _wait_for_wake(self, wait_ms: int, is_over: Callable[[], bool]) -> None:
        """Wait so long, or until somebody calls ``assigned.wake`` and it is over."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done() and is_over():
                woken.set_result(None)

        self._assigned.wake = wake
        timer = asyncio.ensure_future(self._pause(wait_ms / 1000))
        try:
            await asyncio.wait((timer, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._assigned.wake = None
            timer.cancel()


def _heard(ahead: asyncio.Task[Pulled]) -> None:
    """Its error is seen by whoever awaits it; a dropped queue awaits nothing any more."""
    if not ahead.cancelled():
        ahead.exception()


def pull_header(
    host: PullHost, assigned: AssignedQueue, subscription: Subscription, found: BrokerAddress
) -> PullHeader:
    """The pull of this queue from where it is now, committing what is settled if it may."""
    terms, queue = host.terms, assigned.queue
    committed = None if terms.is_broadcasting else host.offsets.get(queue)
    flags = _SUSPEND
    if committed and not found.is_slave:
        flags |= _COMMIT
    data = subscription.data
    text = None
    if terms.is_subscription_posted:
        flags |= _SUBSCRIPTION
        text = data.sub_string
    return PullHeader(
        consumer_group=host.group,
        topic=queue.topic,
        queue_id=queue.queue,
        queue_offset=assigned.next_offset,
        max_msg_nums=terms.batch,
        sys_flag=flags,
        commit_offset=committed or 0,
        suspend_timeout_millis=terms.suspend_ms,
        subscription=text,
        sub_version=data.sub_version,
        expression_type=data.expression_type,
        max_msg_bytes=terms.batch_bytes,
    )


def no_route(queue: QueueRef) -> NoRoute:
    """Nobody knows the broker of a queue."""
    return NoRoute(queue.topic, f"broker {queue.broker} has no address")


# ---- pull request -------------------------------------------------------------------------------
# One pull as consumers without a listener make it: with its own subscription, from any offset.
#
# The subscription travels in the request, so a broker needs to know nothing of the group
# beforehand. Brokers may suggest a slave for the next pull of a queue; the suggestion is followed.
# A broker that cannot be reached is looked up anew for the next time.
#
# Not here: when to pull (``pull_consumer.py``, ``lite_pulling.py``), the push consumer's pulls
# (``pulling.py``).


class PullClient:
    """The pulls of one consumer."""

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
        found = await self._readable(queue)
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
        """The queue is not read any more."""
        self._suggested.pop(queue, None)

    def _follow(self, queue: QueueRef, suggested_id: int) -> None:
        if suggested_id == MASTER_ID:
            self._suggested.pop(queue, None)
        else:
            self._suggested[queue] = suggested_id

    async def _readable(self, queue: QueueRef) -> BrokerAddress:
        routes = self._instance.routes
        suggested_id = self._suggested.get(queue, MASTER_ID)
        found = routes.readable(queue.broker, suggested_id)
        if found is None:
            await routes.look_up(queue.topic)
            found = routes.readable(queue.broker, suggested_id)
        if found is None:
            raise NoRoute(queue.topic, f"broker {queue.broker} has no address")
        return found


# ---- pull result --------------------------------------------------------------------------------
# What one pull brought: messages, or why there are none, and where to go on.
#
# Not here: asking (``pull_consumer.py``, ``lite_pulling.py``).


class PullStatus(Enum):
    """How a pull ended."""

    FOUND = "found"
    NO_NEW_MESSAGE = "no new message"
    """Nothing behind the offset yet."""
    NO_MATCHED_MESSAGE = "no matched message"
    """There are messages, and none of those looked at is wanted: go on at ``next_offset``."""
    OFFSET_MOVED = "offset moved"
    """The offset is outside the queue (removed, or never there): go on at ``next_offset``."""


PULL_CODES: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MESSAGE,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}
"""Answers that are no errors."""


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


# ---- pull options -------------------------------------------------------------------------------
# Options of the pull consumer and the lite pull consumer.
#
# Not here: what they do (``pull_consumer.py``, ``lite_pull_consumer.py``).


QueuesChanged = Callable[[str, list[QueueRef], list[QueueRef]], object]
"""Gets a topic, all its queues, and this consumer's share of them; called on a thread."""


class PullOptions(InstanceOptions, total=False):
    """Options of ``PullConsumer``."""

    registers_group: Annotated[
        bool,
        Option(
            True,
            "Brokers are told of this consumer, and divide queues with the other members of its"
            " group. False: nobody hears of it; for readers that know their queues and offsets.",
        ),
    ]
    pull_timeout_ms: Annotated[
        int, Option(10_000, "How long an answer may take, beyond the time a pull may wait.", 1)
    ]
    pull_bytes_max: Annotated[
        int | None,
        Option(None, "Bytes of messages one pull asks for; None: the broker's limit.", 1),
    ]
    strategy: Annotated[
        str | Strategy,
        Option(AVG, "How queues are divided: the name of a strategy, or a function of your own."),
    ]
    retries_max: Annotated[
        int, Option(16, "How often a message can be sent back before it is a dead letter.", 0)
    ]


class LitePullOptions(InstanceOptions, total=False):
    """Options of ``LitePullConsumer``."""

    is_auto_commit: Annotated[
        bool, Option(True, "Offsets of what earlier polls gave are stored by ``poll()`` itself.")
    ]
    auto_commit_interval_ms: Annotated[int, Option(5_000, "How often they are.", minimum=1_000)]
    poll_timeout_ms: Annotated[int, Option(5_000, "How long ``poll()`` waits for messages.", 0)]
    pull_batch: Annotated[
        int, Option(10, "Messages one pull asks for, and one poll gives.", 1, 1024)
    ]
    pull_threshold_all: Annotated[
        int, Option(10_000, "Messages pulled and not polled, of all queues; 0: no limit.", 0)
    ]
    pull_threshold_messages: Annotated[
        int,
        Option(1_000, "Messages pulled and not polled above which a queue waits.", 1, 65_535),
    ]
    pull_threshold_bytes: Annotated[
        int, Option(100 << 20, "Bytes pulled and not polled, likewise.", 1)
    ]
    pull_threshold_span: Annotated[
        int, Option(2_000, "Distance of the first and last such offset, likewise.", 1, 65_535)
    ]
    pull_suspend_ms: Annotated[
        int, Option(20_000, "How long a broker holds a pull that finds nothing.", 1)
    ]
    pull_timeout_ms: Annotated[
        int, Option(10_000, "How long an answer may take, beyond the time a pull is held.", 1)
    ]
    pull_error_wait_ms: Annotated[
        int, Option(1_000, "Wait after a pull that failed; 20 ms when the broker says busy.", 1)
    ]
    consume_from: Annotated[
        str, Option("last", "Where a group without stored offsets begins.", choices=[*ConsumeFrom])
    ]
    consume_timestamp: Annotated[
        datetime | str | int | None,
        Option(
            None,
            "Where consume_from='timestamp' begins: a datetime, yyyyMMddHHmmss in local time, or"
            " milliseconds since 1970. Default: half an hour ago.",
        ),
    ]
    is_broadcasting: Annotated[
        bool,
        Option(False, "Every member reads every queue; offsets are kept in a local file."),
    ]
    strategy: Annotated[
        str | Strategy,
        Option(AVG, "How queues are divided: the name of a strategy, or a function of your own."),
    ]
    queue_listener: Annotated[
        QueuesChanged | None,
        Option(None, "Called with (topic, all queues, mine) when the share changes."),
    ]
    metadata_check_interval_ms: Annotated[
        int, Option(30_000, "How often it is looked whether a topic has other queues.", 10)
    ]
    offset_store: Annotated[
        Any,
        Option(
            None,
            "Where offsets are kept: an object with read(queue) and write(offsets), plain or"
            " coroutines. Default: the broker, or a local file when broadcasting.",
        ),
    ]
    offsets_directory: Annotated[
        str | None, Option(None, "Where local offset files are; default ~/.penstock_offsets.")
    ]
