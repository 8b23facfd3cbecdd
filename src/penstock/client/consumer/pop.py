"""Pop mode of a push consumer: the places it pops from, and everything about them.

The push consumer makes one ``PopMode``, uses its ``sharing`` to rebalance, pauses and resumes it
with itself, and stops it before its listeners. A group may be switched to pop and back at any time:
then rebalancing gives queues to one side and takes them from the other.

Stopping: no more pops, what no worker has taken is handed back, running listeners may end within
the time given, and their results are still told to the brokers.

Not here: one loop (``pop_loop.py``), results (``pop_service.py``), requests
(``pop_settling.py``).
"""

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
    SettlingCalls,
    new_attempt,
    receipts,
    retry_topic,
)
from penstock.client.consumer.process_queue import Pauses
from penstock.client.consumer.rebalance import Allocation, Allocator, QueuesOf
from penstock.client.consumer.statistics import ConsumerStatistics, PopFigures, QueueThresholds
from penstock.client.consumer.subscription import FilterHook, Subscription, Subscriptions, wanted_of
from penstock.client.errors import BrokerRefused, ClientError, StateError
from penstock.client.message import RETRY_PREFIX, ReceivedMessage, stored_messages
from penstock.client.requests import Popped
from penstock.flow.thresholds import Thresholds, Throttle
from penstock.model.assignment import ALL_QUEUES, AVG, QueueRef, Strategy
from penstock.model.clock import Clock
from penstock.wire.rocketmq.bodies import QueueAssignment, RequestMode
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import PopHeader

# ---- pop loop -----------------------------------------------------------------------------------
# The pop loops: one per assigned place, one pop under way in each.
#
# Who spends: answers to pops, as messages without a result. Who grants: results of the listener.
# Who stops: the loop of one place, above ``unacked_max``. What wakes it: results that bring it down
# to half, or 50 ms.
#
# | before a pop   paused 1 s; above the limit 50 ms; no subscription, or the same queues are still
# |                being pulled (the group was switched a moment ago): wait
# | answer         messages: consume them, pop again at once
# |                nothing (19, 210): pop again at once
# |                too many wait at the broker (209), any error: ``error_wait_ms``
# |                flow control (215): 20 ms
#
# Messages whose tag only looked right to the broker, and those that a filter hook does not want,
# are acknowledged unseen. An answer that comes after its place was dropped is handed back, so that
# nobody has to wait for its invisible time.
#
# Not here: results (``pop_service.py``), which places there are (``pop_sharing.py``).


_log = logging.getLogger(__name__)

PAUSED_LOOK_MS: Final = 1_000
HELD_LOOK_MS: Final = 50
BUSY_WAIT_MS: Final = 20
ANSWER_MS: Final = 10_000
"""How long an answer may take beyond the time the broker holds the pop."""


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


class PopRequests(Protocol):
    """The requests that are needed here; ``BrokerRequests`` has them."""

    async def master_of(self, queue: QueueRef) -> str:
        """Where the master of a queue listens."""
        ...

    async def pop(self, address: str, header: PopHeader, *, timeout_ms: int) -> Popped:
        """POP_MESSAGE."""
        ...


class PopHost(NamedTuple):
    """What the loops of one consumer share."""

    group: str
    terms: PopSettings
    calls: PopRequests
    clock: Clock
    subscriptions: Subscriptions
    service: ConsumeMessagePopService
    settling: PopSettler
    statistics: ConsumerStatistics
    filters: Sequence[FilterHook]
    is_paused: Callable[[], bool]
    is_pulled: Callable[[QueueRef], bool]
    """True while this client still pulls of that place."""


class PopLoop:
    """Pops from one place until it is dropped."""

    def __init__(
        self,
        host: PopHost,
        queue: PopProcessQueue,
        throttle: Throttle,
        pauses: Pauses | None = None,
    ) -> None:
        self._host = host
        self.queue = queue
        self.throttle = throttle
        self._pauses = pauses or Pauses()
        self._is_failing = False

    async def run(self) -> None:
        """Until dropped or cancelled."""
        while not self.queue.is_dropped:
            try:
                wait_ms = await self.step()
            except Exception:
                # A loop that dies leaves its place unread, and nobody would notice.
                _log.exception("pop failed", extra={"queue": self.queue.queue})
                wait_ms = self._host.terms.error_wait_ms
            if wait_ms and not self.queue.is_dropped:
                self.queue.wake = self._look_free if self.throttle.is_held else None
                await self._pauses.pause(self, wait_ms)
                self.queue.wake = None

    async def step(self) -> int:
        """One round of checks and, if they allow it, one pop; returns how long to wait then."""
        now_ms = self._host.clock.monotonic_ms()
        subscription = self._host.subscriptions.get(self.queue.queue.topic)
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
        host, queue = self._host, self.queue
        queue.last_pull_ms = now_ms
        if host.is_paused() or queue.is_paused:
            return PAUSED_LOOK_MS
        if self.throttle.look(queue.cached, now_ms) is not None:
            return HELD_LOOK_MS
        if subscription is None:
            return host.terms.error_wait_ms
        return HELD_LOOK_MS if host.is_pulled(queue.queue) else 0

    async def _pop(self, subscription: Subscription) -> Popped:
        host, terms = self._host, self._host.terms
        ref = self.queue.queue
        header = PopHeader(
            consumer_group=host.group,
            topic=ref.topic,
            queue_id=ref.queue,
            max_msg_nums=terms.batch,
            invisible_time=terms.invisible_ms,
            poll_time=terms.poll_ms,
            born_time=host.clock.wall_ms(),
            init_mode=0 if terms.is_from_first else 1,
            exp_type=subscription.data.expression_type,
            exp=subscription.data.sub_string,
            order=terms.is_ordered,
            attempt_id=self.queue.attempt_id if terms.is_ordered else None,
        )
        address = await host.calls.master_of(ref)
        return await host.calls.pop(address, header, timeout_ms=terms.poll_ms + ANSWER_MS)

    def _answered(self, popped: Popped, subscription: Subscription, asked_ms: int) -> int:
        host, queue = self._host, self.queue
        self._is_failing = False
        queue.attempt_id = new_attempt()
        if popped.code == ResponseCode.POLLING_FULL:
            _log.warning("too many pops wait at the broker", extra={"queue": queue.queue})
            return host.terms.error_wait_ms
        if popped.header is None:
            # A broker that does not hold pops would be asked without a pause.
            return 0 if host.terms.poll_ms else HELD_LOOK_MS
        try:
            messages = self._messages(popped)
        except Malformed as problem:
            return self._failed(ClientError(f"the answer to a pop cannot be read: {problem}"))
        if queue.is_dropped:
            host.settling.give_back(messages, RETURN_MS)
            return 0
        now_ms = host.clock.monotonic_ms()
        host.statistics.topic(queue.queue.topic).pulled(len(messages), now_ms - asked_ms, now_ms)
        chosen = set(map(id, wanted_of([*messages], subscription, host.filters)))
        if len(chosen) < len(messages):
            host.settling.ack([each for each in messages if id(each) not in chosen])
        if chosen:
            host.service.submit(queue, [each for each in messages if id(each) in chosen])
        return 0

    def _messages(self, popped: Popped) -> list[PoppedMessage]:
        assert popped.header is not None
        ref = self.queue.queue
        stored = stored_messages(popped.body)
        real_topics = [each.topic for each in stored]
        deadline_ms = self._host.clock.monotonic_ms() + popped.header.invisible_time
        return [
            PoppedMessage(
                each.message,
                QueueRef(topic, ref.broker, each.handle.queue_id),
                each.handle,
                each.text,
                popped_from=self.queue,
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
        return self._host.terms.error_wait_ms

    def _look_free(self) -> None:
        if self.throttle.is_free(self.queue.cached):
            self.wake()

    def wake(self) -> None:
        """Look now instead of later."""
        self._pauses.cut(self)


def start_loop(loop: PopLoop) -> "asyncio.Task[None]":
    """Run a loop beside."""
    return asyncio.get_running_loop().create_task(loop.run(), name=f"pop {loop.queue.queue}")


# ---- pop ----------------------------------------------------------------------------------------


SWEEP_S: Final = 1.0
"""How often messages that wait for a worker are looked at for being too late."""
DRAIN_LOOK_S: Final = 0.01

HasRoute = Callable[[str], Awaitable[bool]]
"""Whether a topic exists, as a name server says."""


class PopConsumer(Protocol):
    """What pop mode needs of its consumer; the push consumer is one."""

    @property
    def group(self) -> str:
        """Its consumer group."""
        ...

    @property
    def clock(self) -> Clock:
        """Where time comes from."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """What it wants of which topic."""
        ...

    @property
    def statistics(self) -> ConsumerStatistics:
        """Where results are counted."""
        ...

    @property
    def filters(self) -> Sequence[FilterHook]:
        """What chooses among the messages that came."""
        ...

    @property
    def is_paused(self) -> bool:
        """True while nothing is to be read."""
        ...


class ModeCalls(PopRequests, SettlingCalls, Protocol):
    """All requests of pop mode."""


class PopMode:
    """The places of one consumer."""

    def __init__(
        self,
        consumer: PopConsumer,
        calls: ModeCalls,
        executor: ConsumeExecutor,
        terms: PopSettings,
        *,
        is_pulled: Callable[[QueueRef], bool] = lambda _: False,
        has_route: HasRoute | None = None,
        consume_batch: int = 1,
        suspend_ms: int = 1_000,
        reconsume_times_max: int | None = None,
    ) -> None:
        self._clock = consumer.clock
        self._executor = executor
        self._group = consumer.group
        self._subscriptions = consumer.subscriptions
        self._has_route = has_route
        self._settling = PopSettler(calls, consumer.group, consumer.clock)
        self._service = ConsumeMessagePopService(
            executor,
            self._settling,
            consumer.statistics,
            consumer.clock,
            is_ordered=terms.is_ordered,
            consume_batch=consume_batch,
            suspend_ms=suspend_ms,
            reconsume_times_max=reconsume_times_max,
        )
        self._host = PopHost(
            group=consumer.group,
            terms=terms,
            calls=calls,
            clock=consumer.clock,
            subscriptions=consumer.subscriptions,
            service=self._service,
            settling=self._settling,
            statistics=consumer.statistics,
            filters=consumer.filters,
            is_paused=lambda: consumer.is_paused,
            is_pulled=is_pulled,
        )
        self._limits = QueueThresholds(consumer.group, Thresholds(terms.unacked_max, 0, 0))
        self._loops: dict[QueueRef, PopLoop] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._popped = 0
        self._leaving: set[PopProcessQueue] = set()

    def queues(self) -> dict[QueueRef, PopProcessQueue]:
        """Where it pops from now."""
        return {ref: loop.queue for ref, loop in self._loops.items()}

    def retain(self, topic: str, places: Collection[QueueRef]) -> bool:
        """Pop from these places of a topic, and from no others; True when that is a change."""
        now = [ref for ref in self._loops if ref.topic == topic]
        found = changes((), now, BrokerAssignment(pop=frozenset(places)))
        for ref in found.stop_pop:
            self._stop(ref)
        for ref in sorted(found.start_pop):
            self._start(ref)
        return bool(found)

    async def mode_seen(self, topic: str, mode: RequestMode | None) -> None:
        """Pull what earlier pops left in the retry topic, while the group pulls; pops read it."""
        if topic.startswith(RETRY_PREFIX) or self._has_route is None or mode is None:
            return
        left = retry_topic(topic, self._group)
        if mode is RequestMode.POP:
            self._subscriptions.remove(left)
        elif left not in self._subscriptions and await self._has_route(left):
            self._subscriptions.add(left)

    def retain_topics(self, topics: Collection[str]) -> None:
        """Leave every place of a topic that is not subscribed any more."""
        for ref in [ref for ref in self._loops if ref.topic not in topics]:
            self._stop(ref)

    def wake(self) -> None:
        """The consumer was resumed."""
        for loop in self._loops.values():
            loop.wake()

    async def extend(self, message: ReceivedMessage, invisible_ms: int) -> None:
        """Keep a message that is in work from others for so long from now on."""
        if not isinstance(message, PoppedMessage):
            raise StateError(f"{message!r} was not popped: it has no invisible time to change")
        await self._settling.extend(message, invisible_ms)

    async def stop(self, wait_ms: int) -> None:
        """Pop no more, and wait for running listeners and for the last settlements."""
        for ref in list(self._loops):
            self._stop(ref)
        if self._sweeper is not None:
            self._sweeper.cancel()
        until_ms = self._clock.monotonic_ms() + wait_ms
        current_call = self._executor.current_call()
        # A listener that stops its own consumer has messages, which nobody can wait for.
        own = 0 if current_call is None else len(current_call.batch)
        while sum(each.unacked for each in self._leaving) > own and (
            self._clock.monotonic_ms() < until_ms
        ):
            await asyncio.sleep(DRAIN_LOOK_S)
        # Pops under way are not cancelled: should they bring something, it is handed back.
        await self._settling.drain()

    def figures(self) -> PopFigures:
        """As it is now."""
        settling = self._settling
        places = self.queues()
        return PopFigures(
            unacked={ref: queue.unacked for ref, queue in places.items()},
            popped=self._popped + sum(queue.popped for queue in places.values()),
            acked=settling.acked,
            given_back=settling.given_back,
            buried=settling.buried,
            too_late=self._service.too_late,
            lost=settling.lost,
            held=self._limits.held(self._clock.monotonic_ms()),
        )

    def table(self) -> dict[QueueRef, dict[str, Any]]:
        """The places as a broker that asks for them is told (request 307)."""
        ahead_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        return {
            ref: {
                "waitAckCount": queue.unacked,
                "droped": queue.is_dropped,
                "lastPopTimestamp": queue.last_pull_ms + ahead_ms,
            }
            for ref, queue in self.queues().items()
        }

    def _start(self, ref: QueueRef) -> None:
        queue = PopProcessQueue(ref, self._clock.monotonic_ms())
        loop = self._loops[ref] = PopLoop(self._host, queue, self._limits.open(ref))
        task = start_loop(loop)
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
        self._service.dropped(queue)
        self._limits.close(ref, loop.throttle, self._clock.monotonic_ms())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._service.sweep()


def is_same_place(place: QueueRef, queue: QueueRef) -> bool:
    """True when popping from ``place`` would take messages of ``queue``."""
    return (place.topic, place.broker) == (queue.topic, queue.broker) and (
        place.queue in (ALL_QUEUES, queue.queue)
    )


# ---- pop sharing --------------------------------------------------------------------------------
# Sharing by the broker's word: which queues of a topic to pull, which to pop.
#
# The queues to pull are the share that rebalancing gets; the places to pop from go to ``PopPlaces``
# on the way. A broker that cannot say (no answer, or "keep") leaves both as they are. One that does
# not know the question (before 5.0) is not asked again: the members divide the queues themselves.
#
# Not here: the difference to what there is (``pop_assignment.py``), the pops (``pop.py``).


AskAssignment = Callable[[str], Awaitable[Sequence[QueueAssignment] | None]]
"""What a broker says of a topic; None is "keep"."""


class PopPlaces(Protocol):
    """Who pops."""

    def retain(self, topic: str, places: Collection[QueueRef]) -> bool:
        """Pop from these places of a topic, and from no others; True when that is a change."""
        ...

    async def mode_seen(self, topic: str, mode: RequestMode | None) -> None:
        """How the broker has a topic read now."""
        ...


class BrokerAllocator:
    """A broker divides the queues, and says how to read them."""

    def __init__(
        self, ask: AskAssignment, places: PopPlaces, queues_of: QueuesOf, divided: Allocator
    ) -> None:
        self._ask = ask
        self._places = places
        self._queues_of = queues_of
        self._divided = divided
        self._is_known = True

    async def allocate(self, topic: str) -> Allocation | None:
        """The queues of a topic to pull; None keeps what there is."""
        if not self._is_known:
            return await self._divided.allocate(topic)
        try:
            answer = await self._ask(topic)
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                _kept(topic, refusal)
                return None
            _log.warning("brokers here do not assign queues, members do", extra={"topic": topic})
            self._is_known = False
            return await self._divided.allocate(topic)
        except ClientError as problem:
            _kept(topic, problem)
            return None
        if answer is None:
            return None
        wanted = assigned(topic, answer)
        self._places.retain(topic, wanted.pop)
        await self._places.mode_seen(topic, wanted.mode)
        queues = sorted(self._queues_of(topic) or wanted.pull | wanted.pop)
        return Allocation(queues, sorted(wanted.pull))


class AssignmentCalls(Protocol):
    """Who asks a broker; ``BrokerRequests`` does."""

    async def query_assignment(
        self, topic: str, group: str, *, strategy: str
    ) -> Sequence[QueueAssignment] | None:
        """QUERY_ASSIGNMENT; None is "keep"."""
        ...


def asker(calls: AssignmentCalls, group: str, strategy: str | Strategy) -> AskAssignment:
    """Ask for a group; a strategy of the user's own cannot be sent, AVG stands in for it."""
    name = strategy if isinstance(strategy, str) else AVG

    async def ask(topic: str) -> Sequence[QueueAssignment] | None:
        return await calls.query_assignment(topic, group, strategy=name)

    return ask


def _kept(topic: str, problem: ClientError) -> None:
    _log.warning("assignment not known", extra={"topic": topic, "error": str(problem)})


# ---- pop assignment -----------------------------------------------------------------------------
# What a broker's assignment changes: queues to pull, queues to pop, queues to leave.
#
# With broker-side assignment a member asks (request 400) what to read of each topic. The answer
# says for every queue *how*: a group can be switched between PULL and POP (request 401) while it
# runs, and a queue that changes its mode is left in the old one before it begins in the new one.
#
# | None   the broker cannot say now: keep what there is
# | []     nothing for this member: leave everything
#
# Not here: starting and stopping (``pop.py``, the push consumer), asking (``BrokerRequests``).


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


class Changes(msgspec.Struct, gc=False, frozen=True):
    """What is to be done, in this order: stop, then start."""

    stop_pull: frozenset[QueueRef] = frozenset()
    stop_pop: frozenset[QueueRef] = frozenset()
    start_pull: frozenset[QueueRef] = frozenset()
    start_pop: frozenset[QueueRef] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.stop_pull or self.stop_pop or self.start_pull or self.start_pop)


def assigned(topic: str, answer: Sequence[QueueAssignment]) -> BrokerAssignment:
    """The answer of a broker by mode; what is not of this topic is not ours to read."""
    pull: set[QueueRef] = set()
    pop: set[QueueRef] = set()
    for each in answer:
        queue = each.message_queue
        if queue.topic == topic:
            into = pop if each.mode is RequestMode.POP else pull
            into.add(QueueRef(queue.topic, queue.broker_name, queue.queue_id))
    return BrokerAssignment(frozenset(pull), frozenset(pop))


def changes(
    pulled: Collection[QueueRef], popped: Collection[QueueRef], wanted: BrokerAssignment | None
) -> Changes:
    """From what is read now to what the broker wants; None keeps all."""
    if wanted is None:
        return Changes()
    pulled, popped = frozenset(pulled), frozenset(popped)
    return Changes(
        stop_pull=pulled - wanted.pull,
        stop_pop=popped - wanted.pop,
        start_pull=wanted.pull - pulled,
        start_pop=wanted.pop - popped,
    )
