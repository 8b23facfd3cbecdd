"""A consumer on the client's loop, as its instance, its group and rebalancing know it.

Every consumer is two objects: the one whose methods users call from any thread (``PushConsumer``,
``PullConsumer``, ``LitePullConsumer``), and its member, which owns the queues, answers the instance
(heartbeats, rebalances, questions of operators) and runs on the client's loop only. Here is what
all members have in common.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from penstock import __version__
from penstock.client.consumer.offsets import (
    LocalFileOffsetStore,
    OffsetStore,
    OffsetTable,
    RemoteBrokerOffsetStore,
    UserOffsetStore,
    offsets_file,
)
from penstock.client.consumer.options import MemberOptions, QueueListener
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.consumer.rebalance import (
    Allocator,
    BroadcastAllocator,
    GroupAllocator,
    strategy_of,
)
from penstock.client.consumer.statistics import (
    ConsumerFacts,
    HeldQueue,
    TopicFigures,
    running_info,
)
from penstock.client.consumer.subscription import (
    ConsumeFrom,
    Subscription,
    Subscriptions,
    first_offset,
    timestamp_ms,
)
from penstock.client.errors import StateError
from penstock.client.instance import ClientInstance
from penstock.model.assignment import AVG, QueueRef
from penstock.wire.rocketmq.bodies import ConsumerData, ConsumeType, MessageModel
from penstock.wire.rocketmq.stored import StoredMessage


class GroupMember(ABC):
    """One consumer as a member of its group; ``QueueOwner`` of what is allocated to it."""

    kind: ClassVar[str]
    """Its name in sentences."""
    consume_type: ClassVar[ConsumeType] = ConsumeType.ACTIVELY

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Subscriptions,
        options: MemberOptions,
    ) -> None:
        self.instance = instance
        self.clock = instance.clock
        self.group = group
        self.subscriptions = subscriptions
        self.is_broadcasting = options.get("is_broadcasting", False)
        self.offsets = OffsetTable(self._make_offset_store(options))
        self._consume_from = ConsumeFrom(options.get("consume_from", ConsumeFrom.LAST))
        self._started_ms = self.clock.wall_ms()
        self._from_ms = timestamp_ms(options.get("consume_timestamp"), self._started_ms)
        self._strategy = options.get("strategy", AVG)
        self._queue_listener = options.get("queue_listener")
        self._queues_before: dict[str, frozenset[QueueRef]] = {}
        """Topic -> the queues it had when it was subscribed; all of a later one is new."""
        self._is_registered = False
        """Brokers have heard of it: before, they would not count it among the members."""
        self._notifying = asyncio.Lock()

    async def _join(self, topics: Collection[str]) -> None:
        """Join the instance; raises when the group is taken or a broker refuses a subscription."""
        self.instance.add_consumer(self)
        try:
            await self.instance.start()
            await self._look_up(topics)
            for each in self.subscriptions.all():
                await self._check(each)
        except BaseException:
            await self.instance.remove_consumer(self)
            raise

    async def _look_up(self, topics: Collection[str]) -> None:
        """Routes of topics that are read from now on."""
        await self.instance.routes.refresh(sorted(topics))
        for topic in topics:
            self._queues_before[topic] = frozenset(self._queues_of(topic) or ())

    async def _check(self, wanted: Subscription) -> None:
        """A broker compiles an expression now, so that a mistake is seen at once."""
        if wanted.is_sql:
            await self.instance.requests.check_client(self.group, wanted.data)

    def _make_offset_store(self, options: MemberOptions) -> OffsetStore:
        own = options.get("offset_store")
        if own is not None:
            return UserOffsetStore(own)
        if self.is_broadcasting:
            directory = options.get("offsets_directory")
            return LocalFileOffsetStore(
                offsets_file(directory, self.instance.client_id, self.group)
            )
        return RemoteBrokerOffsetStore(self.instance.requests, self.group)

    def _make_allocator(self) -> Allocator:
        if self.is_broadcasting:
            return BroadcastAllocator(self._queues_of)
        strategy = strategy_of(self._strategy)
        return GroupAllocator(self.instance.client_id, strategy, self._queues_of, self._members_of)

    def _queues_of(self, topic: str) -> list[QueueRef] | None:
        route = self.instance.routes.get(topic)
        return None if route is None else route.read_queues()

    async def _members_of(self, topic: str) -> list[str]:
        return await self.instance.requests.consumers_of(self.group, topic)

    # --- for rebalancing (QueueOwner) -----------------------------------------------------------

    @abstractmethod
    def owned(self) -> Mapping[QueueRef, AssignedQueue]:
        """The queues it has now."""

    async def first_offset(self, queue: QueueRef) -> int | None:
        """Where to begin with a queue: the stored offset, or what ``consume_from`` says."""
        self.offsets.forget(queue)
        stored = await self.offsets.read(queue)
        where = self._consume_from
        before = self._queues_before.get(queue.topic)
        if where is ConsumeFrom.LAST and before is not None and queue not in before:
            where = ConsumeFrom.FIRST
        begin = await first_offset(queue, stored, where, self._from_ms, self.instance.requests)
        if stored is None and begin is not None and self._consume_from is ConsumeFrom.LAST:
            # Stored with the next persist: who takes the queue over must not look for an end that
            # has moved on.
            self.offsets.note(queue, begin)
        return begin

    def assignment_changed(
        self, topic: str, queues: Collection[QueueRef], mine: Collection[QueueRef]
    ) -> None:
        """Tell brokers, and whoever wants to know."""
        self.subscriptions.renew(topic)
        if self._queue_listener is not None:
            self._notify(self._queue_listener, topic, queues, mine)

    def _notify(
        self,
        listener: QueueListener,
        topic: str,
        queues: Collection[QueueRef],
        mine: Collection[QueueRef],
    ) -> None:
        call = self._call(listener, topic, sorted(queues), sorted(mine))
        self.instance.spawn(call, "queue listener")

    async def _call(
        self, listener: QueueListener, topic: str, queues: list[QueueRef], mine: list[QueueRef]
    ) -> None:
        """Call a user's listener of changes: on a thread, and the last change last."""
        async with self._notifying:
            await asyncio.to_thread(listener, topic, queues, mine)

    # --- for the instance (ConsumerMember) ------------------------------------------------------

    def heartbeat(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=(
                MessageModel.BROADCASTING if self.is_broadcasting else MessageModel.CLUSTERING
            ),
            consume_from_where=self._consume_from.wire,
            subscription_data_set=[each.data for each in self.subscriptions.all()],
        )

    def topics(self) -> set[str]:
        return self.subscriptions.topics()

    def route_changed(self, topic: str) -> None:
        """Nothing to do: the instance rebalances by itself."""
        del topic

    @abstractmethod
    async def rebalance(self) -> bool:
        """Divide the queues anew; True when they are divided, False asks for another try soon."""

    async def persist_offsets(self) -> None:
        await self.offsets.persist()

    @abstractmethod
    async def reset_offsets(self, topic: str, offsets: dict[QueueRef, int]) -> None:
        """An operator moves the group: go on there."""

    def consume_status(self, topic: str) -> dict[QueueRef, int]:
        return self.offsets.snapshot(topic)

    def running_info(self, with_stacks: bool) -> dict[str, Any]:
        return self._running_info(with_stacks)

    def _running_info(
        self,
        with_stacks: bool,
        *,
        is_ordered: bool = False,
        threads: int = 0,
        topics: Mapping[str, TopicFigures] | None = None,
        held: Sequence[HeldQueue] = (),
        popped: Mapping[QueueRef, dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        facts = ConsumerFacts(
            ";".join(self.instance.name_servers.addresses),
            is_ordered,
            self.is_broadcasting,
            threads,
            self._started_ms,
            __version__,
        )
        return running_info(
            facts,
            subscriptions=[each.data for each in self.subscriptions.all()],
            owned=self.owned(),
            committed=self.offsets.snapshot(),
            topics=topics or {},
            held=held,
            popped=popped,
            clock=self.clock,
            with_stacks=with_stacks,
        )

    async def consume_directly(self, message: StoredMessage, broker: str) -> dict[str, Any]:
        raise StateError(f"{self.kind} {self.group!r} has no listener")
