"""A pull consumer on the client's loop, as a member of its group.

It consumes nothing by itself. As a member it is told which queues would be its share of the topics
it listens to, keeps offsets that are to be stored, and answers brokers that ask about it.

Not here: the API of users (``pull_consumer.py``), pulls (``pull_request.py``).
"""

import asyncio
from collections.abc import Collection
from typing import Any

from penstock import __version__
from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.consumer.offsets.remote import RemoteOffsets
from penstock.client.consumer.offsets.table import Offsets
from penstock.client.consumer.pull_options import QueuesChanged
from penstock.client.consumer.rebalance import Rebalancer
from penstock.client.consumer.running_info import ConsumerFacts, running_info
from penstock.client.consumer.sharing import DividedSharing, strategy_of
from penstock.client.consumer.subscription import Subscriptions
from penstock.client.errors import StateError
from penstock.client.instance import ClientInstance
from penstock.model.assignment import QueueRef, Strategy
from penstock.wire.rocketmq.bodies import ConsumerData, ConsumeType
from penstock.wire.rocketmq.stored import StoredMessage


class PullMember:
    """One pull consumer, as the instance and rebalancing know it."""

    def __init__(self, instance: ClientInstance, group: str, strategy: str | Strategy) -> None:
        self.instance = instance
        self.group = group
        self.offsets = Offsets(RemoteOffsets(instance.calls, group))
        self._subscriptions = Subscriptions(instance.clock.wall_ms)
        self._listeners: dict[str, QueuesChanged] = {}
        self._owned: dict[QueueRef, AssignedQueue] = {}
        self._started_ms = instance.clock.wall_ms()
        self._telling = asyncio.Lock()
        self._rebalancer = Rebalancer(
            self,
            DividedSharing(
                instance.client_id, strategy_of(strategy), self._queues_of, self._members_of
            ),
            instance.clock,
            heartbeat=instance.heartbeat,
        )

    async def start(self) -> None:
        """Register; raises ``GroupTaken``."""
        self.instance.add_consumer(self)
        try:
            await self.instance.start()
        except BaseException:
            await self.instance.remove_consumer(self)
            raise

    async def stop(self) -> None:
        """Store what is to be stored, and leave."""
        await self._rebalancer.close()
        await self.offsets.persist()
        await self.instance.remove_consumer(self)

    async def listen(self, topic: str, listener: QueuesChanged) -> None:
        """Take part in the division of a topic's queues; the listener hears of each change."""
        await self.instance.routes.look_up(topic)
        self._listeners[topic] = listener
        self._subscriptions.add(topic)
        await self.instance.heartbeat()
        self.instance.rebalance_now()

    # --- what rebalancing asks ------------------------------------------------------------------

    def owned(self) -> dict[QueueRef, AssignedQueue]:
        """The share now."""
        return self._owned

    async def first_offset(self, queue: QueueRef) -> int | None:
        """Where to begin is the user's business."""
        return 0

    async def start_queue(self, queue: QueueRef, offset: int) -> None:
        """It is in our share."""
        now_ms = self.instance.clock.monotonic_ms()
        self._owned[queue] = AssignedQueue(queue, offset, now_ms)

    async def stop_queue(self, queue: QueueRef) -> bool:
        """It is not any more; what was noted of it is stored first."""
        dropped = self._owned.pop(queue, None)
        if dropped is not None:
            dropped.drop()
            await self.offsets.persist([queue])
            self.offsets.forget(queue)
        return True

    def assignment_changed(
        self, topic: str, queues: Collection[QueueRef], mine: Collection[QueueRef]
    ) -> None:
        """Tell the listener of this topic."""
        self.instance.spawn(self._tell(topic, sorted(queues), sorted(mine)), "queue listener")

    async def _tell(self, topic: str, queues: list[QueueRef], mine: list[QueueRef]) -> None:
        # One after the other: the last change must be the last one heard of.
        async with self._telling:
            await asyncio.to_thread(self._listeners[topic], topic, queues, mine)

    def _queues_of(self, topic: str) -> list[QueueRef] | None:
        route = self.instance.routes.get(topic)
        return None if route is None else route.read_queues()

    async def _members_of(self, topic: str) -> list[str]:
        return await self.instance.calls.consumers_of(self.group, topic)

    # --- what the instance asks -----------------------------------------------------------------

    def heartbeat(self) -> ConsumerData:
        """What brokers are told."""
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.ACTIVELY,
            subscription_data_set=[each.data for each in self._subscriptions.all()],
        )

    def topics(self) -> set[str]:
        """Topics somebody listens to."""
        return set(self._listeners)

    def route_changed(self, topic: str) -> None:
        """The instance rebalances by itself."""

    async def rebalance(self) -> bool:
        """Divide the queues anew."""
        now_ms = self.instance.clock.monotonic_ms()
        for assigned in self._owned.values():
            # Nobody pulls these by itself: silence does not mean that a loop has died.
            assigned.last_pull_ms = now_ms
        return await self._rebalancer.rebalance(self.topics())

    async def persist_offsets(self) -> None:
        """Store what was noted since the last time."""
        await self.offsets.persist()

    async def reset_offsets(self, topic: str, offsets: dict[QueueRef, int]) -> None:
        """An operator moved the group: what is noted here must not move it back."""
        for queue in offsets:
            self.offsets.forget(queue)

    def consume_status(self, topic: str) -> dict[QueueRef, int]:
        """How far each queue is, as noted."""
        return self.offsets.snapshot(topic)

    def running_info(self, with_stacks: bool) -> dict[str, Any]:
        """All about it, for ``mqadmin`` and its like."""
        facts = ConsumerFacts(
            ";".join(self.instance.name_servers.addresses),
            is_ordered=False,
            is_broadcasting=False,
            threads=0,
            started_at_ms=self._started_ms,
            version=__version__,
        )
        return running_info(
            facts,
            subscriptions=[each.data for each in self._subscriptions.all()],
            owned=self._owned,
            committed=self.offsets.snapshot(),
            topics={},
            held=(),
            clock=self.instance.clock,
            with_stacks=with_stacks,
        )

    async def consume_directly(self, message: StoredMessage, broker: str) -> dict[str, Any]:
        """It has no listener to give a message to."""
        raise StateError(f"pull consumer {self.group!r} has no listener")
