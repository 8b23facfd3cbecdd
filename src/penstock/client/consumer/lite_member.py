"""A lite pull consumer on the client's loop: which queues are its own, and its word to brokers.

Queues come by subscription (divided with the group by rebalancing) or by assignment (exactly those
the user named); one excludes the other. An assigned queue whose first offset cannot be had yet is
tried again with every rebalance.

Not here: the API of users (``lite_pull_consumer.py``), reading (``lite_reader.py``).
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from penstock import __version__
from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.consumer.consume_from import ConsumeFrom, first_offset, timestamp_ms
from penstock.client.consumer.lite_cache import LiteQueue
from penstock.client.consumer.lite_reader import LiteReader
from penstock.client.consumer.lite_watch import TopicWatch
from penstock.client.consumer.offsets.local_file import LocalFileOffsets, offsets_file
from penstock.client.consumer.offsets.own import OwnOffsets
from penstock.client.consumer.offsets.remote import RemoteOffsets
from penstock.client.consumer.offsets.table import Offsets, OffsetStore
from penstock.client.consumer.pull_options import LitePullOptions, QueuesChanged
from penstock.client.consumer.pull_request import PullRequests
from penstock.client.consumer.pull_result import PullResult
from penstock.client.consumer.rebalance import Rebalancer
from penstock.client.consumer.running_info import ConsumerFacts, running_info
from penstock.client.consumer.sharing import DividedSharing, Sharing, WholeSharing, strategy_of
from penstock.client.consumer.subscription import Subscription, Subscriptions, subscription
from penstock.client.errors import ClientError, StateError
from penstock.client.instance import ClientInstance
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import ConsumerData, ConsumeType, MessageModel
from penstock.wire.rocketmq.stored import StoredMessage

_log = logging.getLogger(__name__)


class LiteMember:
    """One lite pull consumer, as the instance and rebalancing know it."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        options: LitePullOptions,
        subscriptions: Subscriptions,
    ) -> None:
        self.instance = instance
        self.group = group
        self.subscriptions = subscriptions
        self._options = options
        self._where = ConsumeFrom(options["consume_from"])
        self._started_ms = instance.clock.wall_ms()
        self._from_ms = timestamp_ms(options["consume_timestamp"], self._started_ms)
        self._assigned: set[QueueRef] | None = None
        self._is_member = False
        """Brokers have heard of it: before, they would not count it among the members."""
        self._requests = PullRequests(
            instance, group, timeout_ms=options["pull_timeout_ms"], is_lite=True
        )
        offsets = Offsets(_store(instance, group, options))
        self.reader = LiteReader(group, options, offsets, instance.clock, pull=self._pull)
        self._rebalancer = Rebalancer(
            self, self._sharing(), instance.clock, heartbeat=instance.heartbeat
        )
        self._telling = asyncio.Lock()
        self.watch = TopicWatch(instance, options["metadata_check_interval_ms"])

    async def start(self, assigned: Collection[QueueRef] | None) -> None:
        """Begin; raises when the group is taken."""
        self.instance.add_consumer(self)
        try:
            await self.instance.start()
            await self.instance.routes.refresh(sorted(self.subscriptions.topics()))
            for each in self.subscriptions.all():
                await self._check(each)
        except BaseException:
            await self.instance.remove_consumer(self)
            raise
        await self.instance.heartbeat()
        self._is_member = True
        if assigned is not None:
            self._assigned = set(assigned)
        # Not by the instance's timer, which may have to wait: the first poll would wait with it.
        if not await self.rebalance():
            self.instance.rebalance_now()

    async def stop(self, *, is_clean: bool, held: Mapping[QueueRef, int]) -> None:
        """End; the last commit is made, and nothing is owned any more."""
        self._is_member = False
        self.watch.stop()
        await self._rebalancer.close()
        self.reader.end_pulls()
        await self.reader.stop(is_clean=is_clean, held=held)
        await self.instance.remove_consumer(self)

    async def subscribe(self, topic: str, tags: str | Sequence[str], sql: str | None) -> None:
        """Share a topic with the group, or want other messages of it."""
        await self._want(topic, tags, sql)
        await self.instance.heartbeat()
        self.instance.rebalance_now()

    async def _want(self, topic: str, tags: str | Sequence[str], sql: str | None) -> None:
        wanted = subscription(topic, tags=tags, sql=sql, version=0)
        # Checked before it counts: a pull that carries nonsense may bring anything.
        await self.instance.routes.refresh([topic])
        await self._check(wanted)
        self.subscriptions.add(topic, tags=tags, sql=sql)
        self.reader.restart(topic)

    async def _check(self, wanted: Subscription) -> None:
        """A broker compiles an expression now, so that a mistake is seen at once."""
        if wanted.is_sql:
            await self.instance.calls.check_client(self.group, wanted.data)

    async def unsubscribe(self, topic: str) -> None:
        """Give up a topic."""
        if self.subscriptions.remove(topic):
            await self._rebalancer.rebalance(self.subscriptions.topics())
            await self.instance.heartbeat()

    async def assign(
        self, queues: Iterable[QueueRef], tags: str | Sequence[str], sql: str | None
    ) -> None:
        """Read exactly these; returns when those whose first offset can be had are read."""
        wanted = set(queues)
        topics = {queue.topic for queue in wanted}
        for topic in sorted(topics):
            await self._want(topic, tags, sql)
        self._assigned = wanted
        await self._follow_assignment()
        for topic in self.subscriptions.topics() - topics:
            self.subscriptions.remove(topic)

    async def _pull(self, queue: LiteQueue, offset: int) -> PullResult:
        wanted = self.subscriptions.get(queue.queue.topic)
        if wanted is None:
            raise StateError(f"topic {queue.queue.topic!r} is not subscribed any more")
        return await self._requests.pull(
            queue.queue,
            offset,
            wanted,
            count=self._options["pull_batch"],
            wait_ms=self._options["pull_suspend_ms"],
        )

    def _sharing(self) -> Sharing:
        if self._options["is_broadcasting"]:
            return WholeSharing(self._queues_of)
        strategy = strategy_of(self._options["strategy"])
        return DividedSharing(self.instance.client_id, strategy, self._queues_of, self._members_of)

    def _queues_of(self, topic: str) -> list[QueueRef] | None:
        route = self.instance.routes.get(topic)
        return None if route is None else route.read_queues()

    async def _members_of(self, topic: str) -> list[str]:
        return await self.instance.calls.consumers_of(self.group, topic)

    async def _follow_assignment(self) -> bool:
        assert self._assigned is not None
        for queue in set(self.owned()) - self._assigned:
            await self.stop_queue(queue)
        is_complete = True
        for queue in sorted(self._assigned - set(self.owned())):
            try:
                offset = await self.first_offset(queue)
            except ClientError as problem:
                _log.warning("first offset not known", extra={"queue": queue, "why": str(problem)})
                offset = None
            is_complete = offset is not None and is_complete
            if offset is not None and queue not in self.owned() and self._is_member:
                await self.start_queue(queue, offset)
        return is_complete

    # --- what rebalancing asks ------------------------------------------------------------------

    def owned(self) -> Mapping[QueueRef, AssignedQueue]:
        """The queues read now."""
        return self.reader.cache.queues

    async def first_offset(self, queue: QueueRef) -> int | None:
        """The stored one, or what "consume from" says."""
        self.reader.offsets.forget(queue)
        stored = await self.reader.offsets.read(queue)
        return await first_offset(queue, stored, self._where, self._from_ms, self.instance.calls)

    async def start_queue(self, queue: QueueRef, offset: int) -> None:
        """Read it."""
        self.reader.open(queue, offset)

    async def stop_queue(self, queue: QueueRef) -> bool:
        """Read it no more."""
        await self.reader.close(queue)
        self._requests.forget(queue)
        return True

    def assignment_changed(
        self, topic: str, queues: Collection[QueueRef], mine: Collection[QueueRef]
    ) -> None:
        """Tell brokers, and whoever wants to know."""
        self.subscriptions.renew(topic)
        listener = self._options["queue_listener"]
        if listener is not None:
            told = self._tell(listener, topic, sorted(queues), sorted(mine))
            self.instance.spawn(told, "queue listener")

    async def _tell(
        self, listener: QueuesChanged, topic: str, queues: list[QueueRef], mine: list[QueueRef]
    ) -> None:
        # One after the other: the last change must be the last one heard of.
        async with self._telling:
            await asyncio.to_thread(listener, topic, queues, mine)

    # --- what the instance asks -----------------------------------------------------------------

    def heartbeat(self) -> ConsumerData:
        """What brokers are told."""
        is_broadcasting = self._options["is_broadcasting"]
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.ACTIVELY,
            message_model=(
                MessageModel.BROADCASTING if is_broadcasting else MessageModel.CLUSTERING
            ),
            consume_from_where=self._where.wire,
            subscription_data_set=[each.data for each in self.subscriptions.all()],
        )

    def topics(self) -> set[str]:
        """Topics in use."""
        return self.subscriptions.topics() | self.watch.topics()

    def route_changed(self, topic: str) -> None:
        """The instance rebalances by itself."""

    async def rebalance(self) -> bool:
        """Divide the queues anew, or try assigned ones again."""
        if not self._is_member:
            return True
        if self._assigned is not None:
            return await self._follow_assignment()
        return await self._rebalancer.rebalance(self.subscriptions.topics())

    async def persist_offsets(self) -> None:
        """Store what was committed and could not be stored then."""
        await self.reader.offsets.persist()

    async def reset_offsets(self, topic: str, offsets: dict[QueueRef, int]) -> None:
        """An operator moved the group: go on there."""
        for queue, offset in offsets.items():
            if queue.topic == topic and queue in self.owned():
                self.reader.seek(queue, offset)
                self.reader.offsets.note(queue, offset, is_increase_only=False)

    def consume_status(self, topic: str) -> dict[QueueRef, int]:
        """How far each queue is."""
        return self.reader.offsets.snapshot(topic)

    def running_info(self, with_stacks: bool) -> dict[str, Any]:
        """All about it, for ``mqadmin`` and its like."""
        clock = self.instance.clock
        facts = ConsumerFacts(
            ";".join(self.instance.name_servers.addresses),
            is_ordered=False,
            is_broadcasting=self._options["is_broadcasting"],
            threads=0,
            started_at_ms=self._started_ms,
            version=__version__,
        )
        return running_info(
            facts,
            subscriptions=[each.data for each in self.subscriptions.all()],
            owned=self.owned(),
            committed=self.reader.offsets.snapshot(),
            topics={},
            held=self.reader.held(clock.monotonic_ms()),
            clock=clock,
            with_stacks=with_stacks,
        )

    async def consume_directly(self, message: StoredMessage, broker: str) -> dict[str, Any]:
        """It has no listener to give a message to."""
        raise StateError(f"lite pull consumer {self.group!r} has no listener")


def _store(instance: ClientInstance, group: str, options: LitePullOptions) -> OffsetStore:
    own = options["offset_store"]
    if own is not None:
        return OwnOffsets(own)
    if options["is_broadcasting"]:
        directory = options["offsets_directory"]
        return LocalFileOffsets(offsets_file(directory, instance.client_id, group))
    return RemoteOffsets(instance.calls, group)
