"""An ordered consumer without a network: rebalancer, locks, offsets, service and a listener.

@ordered_scene(reconsume_max=2)
async def test_...(member): ...
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.client.consumer.ordered import BrokerLocks, OrderedService, OrderedTerms
from penstock.client.consumer.rebalance import Rebalancer, Share, reset_offsets
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef
from penstock.testing.client_parts import (
    LockingBroker,
    ManualListening,
    ManualRuntime,
    MemoryOffsets,
    PlainKeeper,
    RuntimePart,
)

TOPIC: Final = "t"
GROUP: Final = "g"
QUEUES: Final = [QueueRef(TOPIC, "b", n) for n in range(2)]


class OrderedMember:
    """One ordered consumer, from rebalancer to listener."""

    def __init__(
        self,
        runtime: ManualRuntime | RuntimePart,
        broker: LockingBroker,
        store: MemoryOffsets,
        *,
        name: str = "me",
        is_broadcasting: bool = False,
        **terms: Any,
    ) -> None:
        self.runtime = runtime
        self.broker = broker
        self.listening = ManualListening()
        self.keeper = PlainKeeper(runtime, store)
        self.store = store
        self.name = name
        self.mine = Share(QUEUES, QUEUES)
        self.dead: list[int] = []
        self.buried: list[tuple[QueueRef, int]] = []
        self.takes_dead = True
        self.losses = 0
        self.requests = broker.calls_of(name)
        self.locks: BrokerLocks | None = None
        if not is_broadcasting:
            self.locks = BrokerLocks(
                self.requests, GROUP, owned=self.keeper.owned, clock=runtime.clock
            )
        self.statistics = ConsumerStatistics()
        self.service = self.keeper.service = OrderedService(
            runtime,
            self.listening,
            self.keeper.offsets,
            self.statistics,
            give_up=self._give_up,
            locks=self.locks,
            lost=self._lost,
            terms=OrderedTerms(**terms),
        )
        self.rebalancer = Rebalancer(
            self.keeper, self, runtime.clock, heartbeat=self._heartbeat, locks=self.locks
        )

    async def rebalance(self, *mine: QueueRef) -> bool:
        """These queues are its share now."""
        self.mine = Share(QUEUES, list(mine))
        return await self.rebalancer.rebalance([TOPIC])

    async def share(self, topic: str) -> Share | None:
        """What the rebalancer is told."""
        return self.mine

    async def reset(self, wanted: dict[QueueRef, int]) -> dict[QueueRef, int]:
        """An operator moves the group."""
        return await reset_offsets(
            wanted,
            owned=self.keeper.owned,
            rebalancer=self.rebalancer,
            offsets=self.keeper.offsets,
        )

    def noted(self, queue: QueueRef = QUEUES[0]) -> int | None:
        """The offset it would persist."""
        return self.keeper.offsets.get(queue)

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
            member = OrderedMember(runtime, broker, MemoryOffsets(), **options)
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
