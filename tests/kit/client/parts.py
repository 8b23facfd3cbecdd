"""The client's consumer without a network: time, listeners, locks and offsets in a test's hands.

Coroutines under test run on a real event loop, which never waits: ``ManualRuntime.advance`` moves
the clock from timer to timer, and ``calm`` lets everything that can run do so.
"""

import asyncio
import functools
import heapq
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, cast

from penstock.client.consumer.executor import (
    Answer,
    ConsumeExecutor,
    ConsumeRequest,
    ConsumeResult,
    Finished,
    ResultKind,
    Running,
)
from penstock.client.consumer.offsets import OffsetStore, OffsetTable
from penstock.client.consumer.ordered import (
    BrokerLocks,
    ConsumeMessageOrderlyService,
    OrderlySettings,
)
from penstock.client.consumer.process_queue import AssignedQueue, ConsumeMessageService
from penstock.client.consumer.rebalance import Allocation, Rebalancer
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.errors import Unreachable
from penstock.client.message import ReceivedMessage
from penstock.client.requests import BrokerRequests
from penstock.engine.group.locks import QueueLocks
from penstock.model.assignment import QueueRef
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.stored import StoredMessage

TURNS: Final = 12
"""Turns of the event loop after which nothing moves any more without time."""


async def calm() -> None:
    """Let everything run that can."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def received_message(
    queue: QueueRef, offset: int, body: bytes = b"12345", reconsume_times: int = 0
) -> ReceivedMessage:
    """A message as a pull brings it."""
    stored = StoredMessage(
        topic=queue.topic,
        body=body,
        queue_id=queue.queue,
        queue_offset=offset,
        reconsume_times=reconsume_times,
    )
    return ReceivedMessage(stored, queue)


class _Timer:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class ManualRuntime:
    """Tasks and timers over a ``ManualClock``."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tasks: list[asyncio.Task[object]] = []
        self._timers: list[tuple[int, int, _Timer]] = []
        self._made = 0

    def part(self) -> "RuntimePart":
        """A process of its own under the same clock: it can be killed."""
        return RuntimePart(self)

    def monotonic_ms(self) -> int:
        """Now."""
        return self.clock.monotonic_ms()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> object:
        """Run it; ``failures`` shows what went wrong."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self.tasks.append(task)
        return task

    def later(self, delay_ms: int, call: Callable[..., object], *args: Any) -> _Timer:
        """Call it when the clock was advanced so far."""
        timer = _Timer(lambda: call(*args))
        self._made += 1
        heapq.heappush(self._timers, (self.monotonic_ms() + delay_ms, self._made, timer))
        return timer

    async def advance(self, ms: int) -> None:
        """Let time pass, timer by timer."""
        until_ms = self.monotonic_ms() + ms
        await calm()
        while self._timers and self._timers[0][0] <= until_ms:
            due_ms, _, timer = heapq.heappop(self._timers)
            self.clock.advance(max(0, due_ms - self.monotonic_ms()))
            if timer.call is not None:
                timer.call()
                await calm()
        self.clock.advance(until_ms - self.monotonic_ms())
        await calm()

    async def close(self) -> None:
        """End what still runs; raises what a task raised."""
        for task in self.tasks:
            task.cancel()
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


class RuntimePart:
    """Tasks and timers of one simulated process."""

    def __init__(self, whole: ManualRuntime) -> None:
        self._whole = whole
        self.clock = whole.clock
        self._tasks: list[asyncio.Task[object]] = []
        self.is_dead = False

    def monotonic_ms(self) -> int:
        """Now."""
        return self.clock.monotonic_ms()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> object:
        """Run it while the process lives."""
        if self.is_dead:
            coroutine.close()
            return None
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks = [*(each for each in self._tasks if not each.done()), task]
        self._whole.tasks.append(task)
        return task

    def later(self, delay_ms: int, call: Callable[..., object], *args: Any) -> _Timer:
        """Call it if the process still lives then."""
        return self._whole.later(delay_ms, lambda: None if self.is_dead else call(*args))

    def kill(self) -> None:
        """SIGKILL: nothing of it happens any more."""
        self.is_dead = True
        for task in self._tasks:
            task.cancel()


class ManualExecutor:
    """Workers that call nobody: the test says what the listener answered."""

    def __init__(self) -> None:
        self.works: list[ConsumeRequest] = []
        """Of which no worker has taken all, oldest first."""
        self.begun: list[tuple[ConsumeRequest, list[ReceivedMessage]]] = []
        """Calls that run, oldest first."""
        self.is_stopped = False

    def start(self) -> None:
        """Nothing to start."""

    def submit(self, work: ConsumeRequest) -> None:
        """Taken by a worker at once."""
        self.works.append(work)

    def waiting(self) -> list[ConsumeRequest]:
        """What a worker could take now; workers take nothing of dropped queues."""
        self.works = [each for each in self.works if each.batches]
        return [each for each in self.works if not each.assigned.is_dropped]

    def begin(self, at: int = 0) -> list[ReceivedMessage]:
        """A worker takes a call: it cannot be withdrawn any more."""
        work = self.waiting()[at]
        batch = work.batches.popleft()
        self.begun.append((work, batch))
        return batch

    def finish(
        self, answer: Answer = None, error: BaseException | None = None, *, at: int = 0
    ) -> None:
        """A call that began ends."""
        work, batch = self.begun.pop(at)
        is_done = error is None and answer in (None, ConsumeResult.SUCCESS, ConsumeResult.COMMIT)
        kind = ResultKind.SUCCESS if is_done else ResultKind.LATER
        work.done(work, [Finished(batch, answer, error, kind, 1.0)])

    def answer(self, answer: Answer = None, error: BaseException | None = None) -> list[int]:
        """Begin the oldest call and end it; returns its offsets."""
        batch = self.begin()
        self.finish(answer, error)
        return [message.offset for message in batch]

    def current_call(self) -> Running | None:
        """Nobody."""
        return None

    def running(self) -> list[Running]:
        """None that anybody has to look after."""
        return []

    async def stop(self, wait_ms: int) -> bool:
        """Remember it."""
        self.is_stopped = True
        return not self.begun


class MemoryOffsetStore:
    """An offset store that all members of a group share, with a list of what was written."""

    def __init__(self) -> None:
        self.stored: dict[QueueRef, int] = {}
        self.is_reachable = True

    async def read(self, queue: QueueRef) -> int | None:
        """What was stored last."""
        if not self.is_reachable:
            raise Unreachable("broker", "the test says so")
        return self.stored.get(queue)

    async def write(self, offsets: Mapping[QueueRef, int]) -> Collection[QueueRef]:
        """Store, if reachable."""
        if not self.is_reachable:
            return []
        self.stored.update(offsets)
        return list(offsets)


class LockingBroker:
    """The broker's own table of locks, and who may reach it."""

    def __init__(self, clock: ManualClock) -> None:
        self.locks: QueueLocks[QueueRef] = QueueLocks()
        self.clock = clock
        self.is_reachable = True
        self.asked: list[tuple[str, list[QueueRef]]] = []

    def calls_of(self, client_id: str) -> "LockRequests":
        """The requests of one client."""
        return LockRequests(self, client_id)

    def owner(self, group: str, queue: QueueRef) -> str | None:
        """Who holds it now."""
        return self.locks.owner(group, queue, self.clock.monotonic_ms())


class LockRequests:
    """Requests 41 and 42 of one client."""

    def __init__(self, broker: LockingBroker, client_id: str) -> None:
        self._broker = broker
        self._client_id = client_id
        self.is_reachable = True

    async def lock(
        self, broker: str, group: str, queues: Collection[QueueRef]
    ) -> Collection[QueueRef]:
        """Those granted."""
        self._broker.asked.append((self._client_id, sorted(queues)))
        self._check(broker)
        now_ms = self._broker.clock.monotonic_ms()
        return self._broker.locks.lock(group, list(queues), self._client_id, now_ms)

    async def unlock(self, broker: str, group: str, queues: Collection[QueueRef]) -> None:
        """Given back."""
        self._check(broker)
        self._broker.locks.unlock(group, list(queues), self._client_id)

    def _check(self, broker: str) -> None:
        if not (self.is_reachable and self._broker.is_reachable):
            raise Unreachable(broker, "the test says so")


class PlainQueueOwner:
    """A ``QueueOwner`` that pulls nothing: queues, offsets and changes, as the test sees them."""

    def __init__(self, runtime: "ManualRuntime | RuntimePart", store: OffsetStore) -> None:
        self._runtime = runtime
        self.offsets = OffsetTable(store)
        self.queues: dict[QueueRef, AssignedQueue] = {}
        self.service: ConsumeMessageService | None = None
        self.changes: list[tuple[str, list[QueueRef], list[QueueRef]]] = []
        self.events: list[tuple[str, QueueRef]] = []

    def owned(self) -> Mapping[QueueRef, AssignedQueue]:
        """The queues."""
        return self.queues

    async def first_offset(self, queue: QueueRef) -> int | None:
        """The stored one, else 0."""
        self.offsets.forget(queue)
        return await self.offsets.read(queue) or 0

    async def start_queue(self, queue: QueueRef, offset: int) -> None:
        """Make it."""
        self.events.append(("start", queue))
        self.queues[queue] = AssignedQueue(queue, offset, self._runtime.monotonic_ms())

    async def stop_queue(self, queue: QueueRef) -> bool:
        """In the order the contract asks for."""
        assigned = self.queues.get(queue)
        if assigned is None:
            return True
        assigned.drop()
        if self.service is not None and not await self.service.dropped(assigned):
            return False
        await self.offsets.persist([queue])
        self.offsets.forget(queue)
        del self.queues[queue]
        self.events.append(("stop", queue))
        if self.service is not None:
            await self.service.released(assigned)
        return True

    def assignment_changed(
        self, topic: str, queues: Collection[QueueRef], mine: Collection[QueueRef]
    ) -> None:
        """Remember it."""
        self.changes.append((topic, sorted(queues), sorted(mine)))

    def pulled(self, queue: QueueRef, offsets: Sequence[int]) -> AssignedQueue:
        """A pull brought messages with these offsets."""
        assigned = self.queues[queue]
        messages = [received_message(queue, offset) for offset in offsets]
        assigned.process_queue.put(messages)
        if self.service is not None:
            self.service.submit(assigned, messages)
        return assigned


# ---- ordered member -----------------------------------------------------------------------------
# An ordered consumer without a network: rebalancer, locks, offsets, service and a listener.
#
# @ordered_scene(reconsume_max=2)
# async def test_...(member): ...


TOPIC: Final = "t"
GROUP: Final = "g"
QUEUES: Final = [QueueRef(TOPIC, "b", n) for n in range(2)]


class OrderedMember:
    """One ordered consumer, from rebalancer to listener."""

    def __init__(
        self,
        runtime: ManualRuntime | RuntimePart,
        broker: LockingBroker,
        store: MemoryOffsetStore,
        *,
        name: str = "me",
        is_broadcasting: bool = False,
        **terms: Any,
    ) -> None:
        self.runtime = runtime
        self.broker = broker
        self.executor = ManualExecutor()
        self.queue_owner = PlainQueueOwner(runtime, store)
        self.store = store
        self.name = name
        self.mine = Allocation(QUEUES, QUEUES)
        self.dead: list[int] = []
        self.buried: list[tuple[QueueRef, int]] = []
        self.takes_dead = True
        self.losses = 0
        self.requests = broker.calls_of(name)
        self.locks: BrokerLocks | None = None
        if not is_broadcasting:
            self.locks = BrokerLocks(
                cast("BrokerRequests", self.requests),
                GROUP,
                owned=self.queue_owner.owned,
                clock=runtime.clock,
            )
        self.statistics = ConsumerStatistics()
        self.service = self.queue_owner.service = ConsumeMessageOrderlyService(
            runtime,
            cast("ConsumeExecutor", self.executor),
            self.queue_owner.offsets,
            self.statistics,
            give_up=self._give_up,
            locks=self.locks,
            lost=self._lost,
            settings=OrderlySettings(**terms),
        )
        self.rebalancer = Rebalancer(
            self.queue_owner, self, runtime.clock, heartbeat=self._heartbeat, locks=self.locks
        )

    async def rebalance(self, *mine: QueueRef) -> bool:
        """These queues are its share now."""
        self.mine = Allocation(QUEUES, list(mine))
        return await self.rebalancer.rebalance([TOPIC])

    async def allocate(self, topic: str) -> Allocation | None:
        """What the rebalancer is told."""
        return self.mine

    async def reset(self, wanted: dict[QueueRef, int]) -> dict[QueueRef, int]:
        """An operator moves the group."""
        return await self.rebalancer.reset_offsets(wanted, self.queue_owner.offsets)

    def noted(self, queue: QueueRef = QUEUES[0]) -> int | None:
        """The offset it would persist."""
        return self.queue_owner.offsets.get(queue)

    async def _give_up(self, message: ReceivedMessage) -> bool:
        if self.takes_dead:
            self.dead.append(message.offset)
            self.buried.append((message.queue, message.offset))
        return self.takes_dead

    def _lost(self) -> None:
        self.losses += 1

    async def _heartbeat(self) -> None:
        pass


def ordered_scene(
    **options: Any,
) -> Callable[[Callable[[OrderedMember], Awaitable[None]]], Callable[[], None]]:
    """Make a test of a coroutine function: it gets a member that owns all queues."""

    def wrap(play: Callable[[OrderedMember], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            runtime = ManualRuntime()
            broker = LockingBroker(runtime.clock)
            member = OrderedMember(runtime, broker, MemoryOffsetStore(), **options)
            member.service.start()
            await member.rebalance(*QUEUES)
            await play(member)
            await runtime.close()

        @functools.wraps(play)
        def test() -> None:
            asyncio.run(run())

        # Otherwise pytest takes the argument of the play for a fixture.
        delattr(test, "__wrapped__")
        return test

    return wrap
