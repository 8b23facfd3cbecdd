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
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, Protocol

from penstock.client.consumer.listening import Listening
from penstock.client.consumer.pop_assignment import Assigned, changes
from penstock.client.consumer.pop_figures import PopFigures
from penstock.client.consumer.pop_loop import PopHost, PopLoop, PopRequests, PopTerms, start_loop
from penstock.client.consumer.pop_queue import PoppedMessage, PopQueue
from penstock.client.consumer.pop_receipts import retry_topic
from penstock.client.consumer.pop_service import PopService
from penstock.client.consumer.pop_settling import Settling, SettlingCalls
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.consumer.subscription import FilterHook, Subscriptions
from penstock.client.consumer.thresholds import QueueThresholds
from penstock.client.errors import StateError
from penstock.client.message import RETRY_PREFIX, ReceivedMessage
from penstock.flow.thresholds import Thresholds
from penstock.model.assignment import ALL_QUEUES, QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.bodies import RequestMode

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
        listening: Listening,
        terms: PopTerms,
        *,
        is_pulled: Callable[[QueueRef], bool] = lambda _: False,
        has_route: HasRoute | None = None,
        consume_batch: int = 1,
        suspend_ms: int = 1_000,
        reconsume_times_max: int | None = None,
    ) -> None:
        self._clock = consumer.clock
        self._listening = listening
        self._group = consumer.group
        self._subscriptions = consumer.subscriptions
        self._has_route = has_route
        self._settling = Settling(calls, consumer.group, consumer.clock)
        self._service = PopService(
            listening,
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
        self._leaving: set[PopQueue] = set()

    def places(self) -> dict[QueueRef, PopQueue]:
        """Where it pops from now."""
        return {ref: loop.queue for ref, loop in self._loops.items()}

    def retain(self, topic: str, places: Collection[QueueRef]) -> bool:
        """Pop from these places of a topic, and from no others; True when that is a change."""
        now = [ref for ref in self._loops if ref.topic == topic]
        found = changes((), now, Assigned(pop=frozenset(places)))
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
        asking = self._listening.asking()
        # A listener that stops its own consumer has messages, which nobody can wait for.
        own = 0 if asking is None else len(asking.batch)
        while sum(each.unacked for each in self._leaving) > own and (
            self._clock.monotonic_ms() < until_ms
        ):
            await asyncio.sleep(DRAIN_LOOK_S)
        # Pops under way are not cancelled: should they bring something, it is handed back.
        await self._settling.drain()

    def figures(self) -> PopFigures:
        """As it is now."""
        settling = self._settling
        places = self.places()
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
            for ref, queue in self.places().items()
        }

    def _start(self, ref: QueueRef) -> None:
        queue = PopQueue(ref, self._clock.monotonic_ms())
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
