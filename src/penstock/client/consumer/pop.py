"""Pop mode of a push consumer: what it pops from, and everything about it.

The push consumer makes one ``PopMode``, rebalances through its ``BrokerAllocator``, pauses and
resumes it with itself, and stops it before its listeners. A group may be switched to pop and back
(request 401) at any time: then rebalancing gives queues to one side and takes them from the other.

A ``PopLoop`` has one pop under way; its queue is one queue of a broker, or all of them (-1).

    before a pop   paused 1 s; above the limit 50 ms; no subscription, or the same queues are still
                   being pulled (the group was switched a moment ago): wait
    answer         messages: consume them, pop again at once
                   nothing (19, 210): pop again at once
                   too many wait at the broker (209), any error: ``error_wait_ms``
                   flow control (215): 20 ms

Who spends: answers to pops, as messages without a result. Who grants: results of the listener.
Who stops: the loop of one queue, above ``unacked_max``. What wakes it: results that bring it down
to half, or 50 ms.

Stopping: no more pops, what no worker has taken is handed back, running listeners may end within
the time given, and their results are still told to the brokers.

Not here: results, settlements and receipts (``pop_settling.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from penstock.client.consumer.executor import ConsumeExecutor
from penstock.client.consumer.pop_settling import (
    RETURN_MS,
    ConsumeMessagePopService,
    PoppedMessage,
    PopProcessQueue,
    PopSettler,
    new_attempt,
    pop_retry_topic,
    receipts,
)
from penstock.client.consumer.process_queue import Pauses
from penstock.client.consumer.pulling import BUSY_WAIT_MS, HELD_WAIT_MS, PAUSED_WAIT_MS
from penstock.client.consumer.rebalance import Allocation, Allocator, QueuesOf
from penstock.client.consumer.statistics import ConsumerStatistics, PopFigures, QueueThresholds
from penstock.client.consumer.subscription import FilterHook, Subscription, Subscriptions, wanted_of
from penstock.client.errors import BrokerRefused, ClientError, StateError
from penstock.client.message import RETRY_PREFIX, ReceivedMessage, stored_messages
from penstock.client.requests import BrokerRequests, Popped
from penstock.flow.thresholds import Thresholds, Throttle
from penstock.model.assignment import ALL_QUEUES, QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.bodies import QueueAssignment, RequestMode
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import PopHeader

_log = logging.getLogger(__name__)

ANSWER_MS: Final = 10_000
"""How long an answer may take beyond the time the broker holds the pop."""
SWEEP_S: Final = 1.0
"""How often messages that wait for a worker are looked at for being too late."""
DRAIN_LOOK_S: Final = 0.01

HasRoute = Callable[[str], Awaitable[bool]]
"""Whether a topic exists, as a name server says."""
AskAssignment = Callable[[str], Awaitable[Sequence[QueueAssignment] | None]]
"""What a broker says of a topic (request 400); None is "keep"."""


class PopMode:
    """Everything one consumer pops: a loop per assigned queue, and one service for all."""

    def __init__(
        self,
        consumer: PopConsumer,
        requests: BrokerRequests,
        executor: ConsumeExecutor,
        settings: PopSettings,
        *,
        is_pulled: Callable[[QueueRef], bool] = lambda _: False,
        has_route: HasRoute | None = None,
        consume_batch: int = 1,
        suspend_ms: int = 1_000,
        reconsume_times_max: int | None = None,
    ) -> None:
        self.consumer = consumer
        self.clock = consumer.clock
        self.requests = requests
        self.settings = settings
        self.is_pulled = is_pulled
        """True while this client still pulls what a queue would pop."""
        self.settler = PopSettler(requests, consumer.group, consumer.clock)
        self.service = ConsumeMessagePopService(
            executor,
            self.settler,
            consumer.statistics,
            consumer.clock,
            is_ordered=settings.is_ordered,
            consume_batch=consume_batch,
            suspend_ms=suspend_ms,
            reconsume_times_max=reconsume_times_max,
        )
        self._executor = executor
        self._has_route = has_route
        self._limits = QueueThresholds(consumer.group, Thresholds(settings.unacked_max, 0, 0))
        self._loops: dict[QueueRef, PopLoop] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._popped = 0
        """By loops that have ended."""
        self._leaving: set[PopProcessQueue] = set()

    def queues(self) -> dict[QueueRef, PopProcessQueue]:
        return {ref: loop.queue for ref, loop in self._loops.items()}

    def retain(self, topic: str, queues: Collection[QueueRef]) -> None:
        """Pop from these queues of a topic, and from no others."""
        now, wanted = {ref for ref in self._loops if ref.topic == topic}, set(queues)
        for ref in now - wanted:
            self._stop(ref)
        for ref in sorted(wanted - now):
            self._start(ref)

    async def mode_seen(self, topic: str, mode: RequestMode | None) -> None:
        """Pull what earlier pops left in the retry topic, while the group pulls; pops read it."""
        if topic.startswith(RETRY_PREFIX) or self._has_route is None or mode is None:
            return
        left = pop_retry_topic(topic, self.consumer.group)
        if mode is RequestMode.POP:
            self.consumer.subscriptions.remove(left)
        elif left not in self.consumer.subscriptions and await self._has_route(left):
            self.consumer.subscriptions.add(left)

    def retain_topics(self, topics: Collection[str]) -> None:
        """Pop no more from topics that are not subscribed any more."""
        for ref in [ref for ref in self._loops if ref.topic not in topics]:
            self._stop(ref)

    def wake(self) -> None:
        for loop in self._loops.values():
            loop.wake()

    async def extend(self, message: ReceivedMessage, invisible_ms: int) -> None:
        """Keep a message that is in work from others for so long from now on."""
        if not isinstance(message, PoppedMessage):
            raise StateError(f"{message!r} was not popped: it has no invisible time to change")
        await self.settler.extend(message, invisible_ms)

    async def stop(self, wait_ms: int) -> None:
        """Pop no more, and wait for running listeners and for the last settlements."""
        for ref in list(self._loops):
            self._stop(ref)
        if self._sweeper is not None:
            self._sweeper.cancel()
        until_ms = self.clock.monotonic_ms() + wait_ms
        current = self._executor.current_call()
        # A listener that stops its own consumer has messages, which nobody can wait for.
        own = 0 if current is None else len(current.batch)
        while sum(each.unacked for each in self._leaving) > own and (
            self.clock.monotonic_ms() < until_ms
        ):
            await asyncio.sleep(DRAIN_LOOK_S)
        # Pops under way are not cancelled: should they bring something, it is handed back.
        await self.settler.drain()

    def figures(self) -> PopFigures:
        settler, queues = self.settler, self.queues()
        return PopFigures(
            unacked={ref: queue.unacked for ref, queue in queues.items()},
            popped=self._popped + sum(queue.popped for queue in queues.values()),
            acked=settler.acked,
            given_back=settler.given_back,
            buried=settler.buried,
            too_late=self.service.too_late,
            lost=settler.lost,
            held=self._limits.held(self.clock.monotonic_ms()),
        )

    def table(self) -> dict[QueueRef, dict[str, Any]]:
        """Its queues as a broker that asks for them is told (request 307)."""
        ahead_ms = self.clock.wall_ms() - self.clock.monotonic_ms()
        return {
            ref: {
                "waitAckCount": queue.unacked,
                "droped": queue.is_dropped,
                "lastPopTimestamp": queue.last_pull_ms + ahead_ms,
            }
            for ref, queue in self.queues().items()
        }

    def _start(self, ref: QueueRef) -> None:
        queue = PopProcessQueue(ref, self.clock.monotonic_ms())
        loop = self._loops[ref] = PopLoop(self, queue, self._limits.open(ref))
        task = asyncio.get_running_loop().create_task(loop.run(), name=f"pop {ref}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="pop sweep")

    def _stop(self, ref: QueueRef) -> None:
        loop = self._loops.pop(ref)
        queue = loop.queue
        queue.drop()
        # Its task goes on until the pop under way is answered: what comes is handed back.
        loop.wake()
        self._popped += queue.popped
        self._leaving = {each for each in self._leaving if each.unacked}
        self._leaving.add(queue)
        self.service.dropped(queue)
        self._limits.close(ref, loop.throttle, self.clock.monotonic_ms())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.service.sweep()


class PopConsumer(Protocol):
    """What pop mode uses of its consumer: ``PushMember``, which makes it."""

    group: str
    clock: Clock
    subscriptions: Subscriptions
    statistics: ConsumerStatistics
    filters: Sequence[FilterHook]
    is_paused: bool


class PopSettings(NamedTuple):
    """The options of popping."""

    batch: int = 32
    invisible_ms: int = 60_000
    poll_ms: int = 15_000
    unacked_max: int = 96
    error_wait_ms: int = 1_000
    is_ordered: bool = False
    is_from_first: bool = False
    """Where a new group begins: at the oldest message, or at the newest."""


class PopLoop:
    """Pops from one queue until it is dropped.

    Messages whose tag only looked right to the broker, and those that a filter hook does not want,
    are acknowledged unseen. An answer that comes after its queue was dropped is handed back, so
    that nobody has to wait for its invisible time.
    """

    def __init__(self, mode: PopMode, queue: PopProcessQueue, throttle: Throttle) -> None:
        self._mode = mode
        self.queue = queue
        self.throttle = throttle
        self._pauses = Pauses()
        self._is_failing = False

    async def run(self) -> None:
        while not self.queue.is_dropped:
            try:
                wait_ms = await self.step()
            except Exception:
                # A loop that dies leaves its queue unread, and nobody would notice.
                _log.exception("pop failed", extra={"queue": self.queue.queue})
                wait_ms = self._mode.settings.error_wait_ms
            if wait_ms and not self.queue.is_dropped:
                self.queue.wake = self._look_free if self.throttle.is_held else None
                await self._pauses.pause(self, wait_ms)
                self.queue.wake = None

    async def step(self) -> int:
        """One round of checks and, if they allow it, one pop; returns how long to wait then."""
        now_ms = self._mode.clock.monotonic_ms()
        subscription = self._mode.consumer.subscriptions.get(self.queue.queue.topic)
        wait_ms = self._hold_ms(subscription, now_ms)
        if wait_ms or subscription is None:
            return wait_ms
        try:
            popped = await self._pop(subscription)
        except ClientError as problem:
            if isinstance(problem, BrokerRefused) and problem.code == ResponseCode.FLOW_CONTROL:
                return BUSY_WAIT_MS
            return self._failed(problem)
        return self._answered(popped, subscription, now_ms)

    def _hold_ms(self, subscription: Subscription | None, now_ms: int) -> int:
        mode, queue = self._mode, self.queue
        queue.last_pull_ms = now_ms
        if mode.consumer.is_paused or queue.is_paused:
            return PAUSED_WAIT_MS
        if self.throttle.look(queue.cached, now_ms) is not None:
            return HELD_WAIT_MS
        if subscription is None:
            return mode.settings.error_wait_ms
        return HELD_WAIT_MS if mode.is_pulled(queue.queue) else 0

    async def _pop(self, subscription: Subscription) -> Popped:
        mode, settings = self._mode, self._mode.settings
        ref = self.queue.queue
        header = PopHeader(
            consumer_group=mode.consumer.group,
            topic=ref.topic,
            queue_id=ref.queue,
            max_msg_nums=settings.batch,
            invisible_time=settings.invisible_ms,
            poll_time=settings.poll_ms,
            born_time=mode.clock.wall_ms(),
            init_mode=0 if settings.is_from_first else 1,
            exp_type=subscription.data.expression_type,
            exp=subscription.data.sub_string,
            order=settings.is_ordered,
            attempt_id=self.queue.attempt_id if settings.is_ordered else None,
        )
        address = await mode.requests.master_of(ref)
        return await mode.requests.pop(address, header, timeout_ms=settings.poll_ms + ANSWER_MS)

    def _answered(self, popped: Popped, subscription: Subscription, asked_ms: int) -> int:
        mode, queue = self._mode, self.queue
        self._is_failing = False
        queue.attempt_id = new_attempt()
        if popped.code == ResponseCode.POLLING_FULL:
            _log.warning("too many pops wait at the broker", extra={"queue": queue.queue})
            return mode.settings.error_wait_ms
        if popped.header is None:
            # A broker that does not hold pops would be asked without a pause.
            return 0 if mode.settings.poll_ms else HELD_WAIT_MS
        try:
            messages = self._messages(popped)
        except Malformed as problem:
            return self._failed(ClientError(f"the answer to a pop cannot be read: {problem}"))
        if queue.is_dropped:
            mode.settler.give_back(messages, RETURN_MS)
            return 0
        now_ms = mode.clock.monotonic_ms()
        mode.consumer.statistics.topic(queue.queue.topic).pulled(
            len(messages), now_ms - asked_ms, now_ms
        )
        chosen = set(map(id, wanted_of([*messages], subscription, mode.consumer.filters)))
        if len(chosen) < len(messages):
            mode.settler.ack([each for each in messages if id(each) not in chosen])
        if chosen:
            mode.service.submit(queue, [each for each in messages if id(each) in chosen])
        return 0

    def _messages(self, popped: Popped) -> list[PoppedMessage]:
        assert popped.header is not None
        ref = self.queue.queue
        stored = stored_messages(popped.body)
        real_topics = [each.topic for each in stored]
        deadline_ms = self._mode.clock.monotonic_ms() + popped.header.invisible_time
        return [
            PoppedMessage(
                each.message,
                QueueRef(topic, ref.broker, each.handle.queue_id),
                each.handle,
                each.text,
                deadline_ms=deadline_ms,
            )
            for topic, each in zip(
                real_topics, receipts(popped.header, stored, ref.topic, ref.broker), strict=True
            )
        ]

    def _failed(self, problem: ClientError) -> int:
        """Log the first of a row. The attempt id stays: what was lost is asked for again."""
        if not self._is_failing and not self.queue.is_dropped:
            _log.warning("pop failed", extra={"queue": self.queue.queue, "why": str(problem)})
        self._is_failing = True
        return self._mode.settings.error_wait_ms

    def _look_free(self) -> None:
        if self.throttle.is_free(self.queue.cached):
            self.wake()

    def wake(self) -> None:
        self._pauses.cut(self)


def takes_from(popped: QueueRef, queue: QueueRef) -> bool:
    """True when popping from ``popped`` would take messages of ``queue``."""
    return (popped.topic, popped.broker) == (queue.topic, queue.broker) and (
        popped.queue in (ALL_QUEUES, queue.queue)
    )


class BrokerAllocator:
    """A broker divides the queues, and says which of them to pull and which to pop.

    The queues to pull are the allocation that rebalancing gets; those to pop go to ``PopMode`` on
    the way. A broker that cannot say (no answer, or "keep") leaves both as they are; an empty
    answer leaves every queue. One that does not know the question (before 5.0) is not asked again:
    the members divide the queues themselves.
    """

    def __init__(
        self, ask: AskAssignment, pop: PopMode, queues_of: QueuesOf, fallback: Allocator
    ) -> None:
        self._ask = ask
        self._pop = pop
        self._queues_of = queues_of
        self._fallback = fallback
        self._is_supported = True

    async def allocate(self, topic: str) -> Allocation | None:
        if not self._is_supported:
            return await self._fallback.allocate(topic)
        try:
            answer = await self._ask(topic)
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                _keep(topic, refusal)
                return None
            _log.warning("brokers here do not assign queues, members do", extra={"topic": topic})
            self._is_supported = False
            return await self._fallback.allocate(topic)
        except ClientError as problem:
            _keep(topic, problem)
            return None
        if answer is None:
            return None
        wanted = parse_assignment(topic, answer)
        self._pop.retain(topic, wanted.pop)
        await self._pop.mode_seen(topic, wanted.mode)
        queues = sorted(self._queues_of(topic) or wanted.pull | wanted.pop)
        return Allocation(queues, sorted(wanted.pull))


def _keep(topic: str, problem: ClientError) -> None:
    _log.warning("assignment not known", extra={"topic": topic, "error": str(problem)})


class BrokerAssignment(msgspec.Struct, gc=False, frozen=True):
    """The queues of one topic by mode."""

    pull: frozenset[QueueRef] = frozenset()
    pop: frozenset[QueueRef] = frozenset()

    @property
    def mode(self) -> RequestMode | None:
        """The one mode all its queues have; None when it has none or both."""
        if bool(self.pull) == bool(self.pop):
            return None
        return RequestMode.POP if self.pop else RequestMode.PULL


def parse_assignment(topic: str, answer: Sequence[QueueAssignment]) -> BrokerAssignment:
    """The answer of a broker by mode; what is not of this topic is not ours to read."""
    pull: set[QueueRef] = set()
    pop: set[QueueRef] = set()
    for each in answer:
        queue = each.message_queue
        if queue.topic == topic:
            into = pop if each.mode is RequestMode.POP else pull
            into.add(QueueRef(queue.topic, queue.broker_name, queue.queue_id))
    return BrokerAssignment(frozenset(pull), frozenset(pop))
