"""The lite pull consumer: messages are pulled in the background, and taken when the user asks.

    with LitePullConsumer("127.0.0.1:9876", "readers") as consumer:
        consumer.subscribe("orders")
        for message in consumer:
            ...

``subscribe`` shares a topic with the other members of the group, ``assign`` reads exactly the
queues named; one excludes the other. ``poll`` gives a list of messages of one queue; iteration
gives them one by one, ``async for`` as well.

Offsets: by itself the consumer stores, every 5 seconds, how far *earlier* polls came: asking for
more says that what was given is done. ``commit`` stores everything given so far. Leaving the with
block does that, too, when the commits are automatic; an exception stores earlier polls only.

Every method has a twin ending in ``_async``. Not here: what happens inside (``lite_member.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime
from typing import Any, Self, Unpack

from penstock import __version__
from penstock.client.consumer.lite_reader import LiteFigures, LiteQueue, LiteReader
from penstock.client.consumer.offsets import (
    LocalFileOffsetStore,
    OffsetStore,
    OffsetTable,
    RemoteBrokerOffsetStore,
    UserOffsetStore,
    offsets_file,
)
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.consumer.pulling import (
    LitePullOptions,
    PullClient,
    PullResult,
    QueuesChanged,
)
from penstock.client.consumer.rebalance import (
    Allocator,
    BroadcastAllocator,
    GroupAllocator,
    Rebalancer,
    strategy_of,
)
from penstock.client.consumer.statistics import ConsumerFacts, running_info
from penstock.client.consumer.subscription import (
    ConsumeFrom,
    Subscription,
    Subscriptions,
    first_offset,
    subscription,
    timestamp_ms,
)
from penstock.client.errors import ClientError, StateError
from penstock.client.instance import ClientInstance, MachineClock, instance
from penstock.client.loop import awaitable, blocking
from penstock.client.message import ReceivedMessage
from penstock.client.options import resolve
from penstock.client.routes import NameServerList, parse_name_servers
from penstock.client.states import Lifecycle, State
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import SUBSCRIBE_ALL, ConsumerData, ConsumeType, MessageModel
from penstock.wire.rocketmq.stored import StoredMessage

# ---- lite session -------------------------------------------------------------------------------
# The life of a lite pull consumer: made, started, stopped.
#
# Not here: what it does in between (``lite_pull_consumer.py``).


class LiteSession:
    """Start and stop, and what is known before and after."""

    def __init__(
        self, name_servers: NameServerList, group: str, **options: Unpack[LitePullOptions]
    ) -> None:
        if not group:
            raise ValueError("a consumer needs a group")
        self.group = group
        self._name_servers = parse_name_servers(name_servers)
        self._options = resolve(LitePullOptions, options)
        self._life = Lifecycle(f"lite pull consumer {group!r}")
        self._subscriptions = Subscriptions(MachineClock().wall_ms)
        self._is_subscribed = False
        self._assigned: list[QueueRef] | None = None
        self._member: LiteMember | None = None
        self._given: deque[ReceivedMessage] = deque()
        """Polled by an iterator, and not yet given to the user."""

    @property
    def state(self) -> State:
        """Created, running, stopped or failed."""
        return self._life.state

    async def _start(self) -> None:
        """Join the group and pull."""
        self._life.begin()
        shared = instance(
            self._name_servers,
            self._options,
            is_named_by_process=not self._options["is_broadcasting"],
        )
        member = LiteMember(shared, self.group, self._options, self._subscriptions)
        await member.start(self._assigned)
        self._member = member
        self._life.started()

    start = blocking(_start)
    start_async = awaitable(_start)

    async def _stop(self, *, is_clean: bool = True) -> None:
        """Commit (if that is automatic) and leave; not ``is_clean``: earlier polls only."""
        member, self._member = self._member, None
        if member is None:
            return
        self._life.state = State.STOPPING
        try:
            await member.stop(is_clean=is_clean, held=self._held())
        finally:
            self._life.state = State.STOPPED

    stop = blocking(_stop)
    stop_async = awaitable(_stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(is_clean=kind is None)

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.stop_async(is_clean=kind is None)

    def _held(self) -> dict[QueueRef, int]:
        """Where the messages begin that an iterator holds for the user."""
        found: dict[QueueRef, int] = {}
        for message in list(self._given):
            found.setdefault(message.queue, message.offset)
        return found

    def _running(self) -> LiteMember:
        self._life.check_running()
        if self._member is None:
            raise StateError(f"lite pull consumer {self.group!r} is stopping")
        return self._member


# ---- lite member --------------------------------------------------------------------------------
# A lite pull consumer on the client's loop: which queues are its own, and its word to brokers.
#
# Queues come by subscription (divided with the group by rebalancing) or by assignment (exactly
# those the user named); one excludes the other. An assigned queue whose first offset cannot be had
# yet is tried again with every rebalance.
#
# Not here: the API of users (``lite_pull_consumer.py``), reading (``lite_reader.py``).


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
        self._requests = PullClient(
            instance, group, timeout_ms=options["pull_timeout_ms"], is_lite=True
        )
        offsets = OffsetTable(_store(instance, group, options))
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
            await self.instance.requests.check_client(self.group, wanted.data)

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

    def _sharing(self) -> Allocator:
        if self._options["is_broadcasting"]:
            return BroadcastAllocator(self._queues_of)
        strategy = strategy_of(self._options["strategy"])
        return GroupAllocator(self.instance.client_id, strategy, self._queues_of, self._members_of)

    def _queues_of(self, topic: str) -> list[QueueRef] | None:
        route = self.instance.routes.get(topic)
        return None if route is None else route.read_queues()

    async def _members_of(self, topic: str) -> list[str]:
        return await self.instance.requests.consumers_of(self.group, topic)

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
        return await first_offset(queue, stored, self._where, self._from_ms, self.instance.requests)

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
        return UserOffsetStore(own)
    if options["is_broadcasting"]:
        directory = options["offsets_directory"]
        return LocalFileOffsetStore(offsets_file(directory, instance.client_id, group))
    return RemoteBrokerOffsetStore(instance.requests, group)


# ---- lite watch ---------------------------------------------------------------------------------
# Looking whether topics have other queues than before, for consumers that choose their own.
#
# Who assigns queues by hand has to hear of new ones. Every 30 s the routes of all watched topics
# are asked for; a difference is told to the listener, a topic that cannot be asked for keeps its
# queues.
#
# Not here: sharing queues with a group, which sees new ones by itself (``rebalance.py``).


TopicQueuesChanged = Callable[[str, list[QueueRef]], object]
"""Gets a topic and its queues, on a thread, when they are others than before."""


class TopicWatch:
    """The watched topics of one consumer."""

    def __init__(self, instance: ClientInstance, interval_ms: int) -> None:
        self._instance = instance
        self._interval_ms = interval_ms
        self._watched: dict[str, tuple[TopicQueuesChanged, list[QueueRef]]] = {}
        self._task: asyncio.Task[None] | None = None

    def topics(self) -> set[str]:
        """What is watched."""
        return set(self._watched)

    async def add(self, topic: str, listener: TopicQueuesChanged) -> None:
        """Watch a topic from its queues of now on; raises ``NoRoute``."""
        route = await self._instance.routes.look_up(topic)
        self._watched[topic] = (listener, route.read_queues())
        if self._task is None:
            self._task = self._instance.spawn(self._run(), "queues of topics")

    def stop(self) -> None:
        """Watch nothing any more."""
        if self._task is not None:
            self._task.cancel()

    async def look(self) -> None:
        """Look at all watched topics now."""
        for topic, (listener, known) in list(self._watched.items()):
            try:
                queues = (await self._instance.routes.look_up(topic)).read_queues()
            except ClientError as problem:
                _log.warning("queues not known", extra={"topic": topic, "why": str(problem)})
                continue
            if queues != known:
                self._watched[topic] = (listener, queues)
                try:
                    await asyncio.to_thread(listener, topic, list(queues))
                except Exception:
                    _log.exception("listener of queues failed", extra={"topic": topic})

    async def _run(self) -> None:
        while True:
            await self._instance.sleep(self._interval_ms)
            await self.look()


# ---- lite pull consumer -------------------------------------------------------------------------


class LitePullConsumer(LiteSession):
    """Reads topics or queues in the background, and gives what it read to ``poll``."""

    # --- what is read ---------------------------------------------------------------------------

    async def _subscribe(
        self, topic: str, *, tags: str | Sequence[str] = SUBSCRIBE_ALL, sql: str | None = None
    ) -> None:
        """Read a topic, shared with the other members of the group."""
        self._life.check_open()
        if self._assigned is not None:
            raise StateError("queues are assigned to this consumer: it cannot subscribe as well")
        self._is_subscribed = True
        if self._member is None:
            self._subscriptions.add(topic, tags=tags, sql=sql)
        else:
            await self._member.subscribe(topic, tags, sql)

    subscribe = blocking(_subscribe)
    subscribe_async = awaitable(_subscribe)

    async def _unsubscribe(self, topic: str) -> None:
        """Read a topic no more."""
        self._life.check_open()
        if self._member is None:
            self._subscriptions.remove(topic)
        else:
            await self._member.unsubscribe(topic)

    unsubscribe = blocking(_unsubscribe)
    unsubscribe_async = awaitable(_unsubscribe)

    async def _assign(
        self,
        queues: Iterable[QueueRef],
        *,
        tags: str | Sequence[str] = SUBSCRIBE_ALL,
        sql: str | None = None,
    ) -> None:
        """Read exactly these queues, whoever else does; a second time replaces the first."""
        self._life.check_open()
        if self._is_subscribed:
            raise StateError("this consumer subscribes: queues cannot be assigned to it as well")
        self._assigned = list(queues)
        if self._member is not None:
            await self._member.assign(self._assigned, tags, sql)
            return
        for topic in {queue.topic for queue in self._assigned}:
            self._subscriptions.add(topic, tags=tags, sql=sql)

    assign = blocking(_assign)
    assign_async = awaitable(_assign)

    async def _topic_queues(self, topic: str) -> list[QueueRef]:
        """The queues of a topic that can be read, as a name server says now."""
        return (await self._running().instance.routes.look_up(topic)).read_queues()

    topic_queues = blocking(_topic_queues)
    topic_queues_async = awaitable(_topic_queues)

    async def _queues(self) -> list[QueueRef]:
        """The queues read now."""
        return sorted(self._running().owned())

    queues = blocking(_queues)
    queues_async = awaitable(_queues)

    async def _on_topic_queues_changed(self, topic: str, listener: TopicQueuesChanged) -> None:
        """Call ``listener(topic, queues)`` when a topic has other queues; looked for every 30 s."""
        await self._running().watch.add(topic, listener)

    on_topic_queues_changed = blocking(_on_topic_queues_changed)
    on_topic_queues_changed_async = awaitable(_on_topic_queues_changed)

    # --- messages -------------------------------------------------------------------------------

    async def _poll(
        self, timeout_ms: int | None = None, *, max_messages: int | None = None
    ) -> list[ReceivedMessage]:
        """The next messages of one queue, an empty list when none come in time.

        It also says that everything given before is done.
        """
        member = self._running()
        if self._given:
            given, self._given = list(self._given), deque()
            return given
        wait_ms = self._options["poll_timeout_ms"] if timeout_ms is None else timeout_ms
        return await member.reader.poll(wait_ms, max_messages)

    poll = blocking(_poll)
    poll_async = awaitable(_poll)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        while not self._given:
            if self._life.is_over:
                raise StopIteration
            self._given.extend(self.poll())
        return self._given.popleft()

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        while not self._given:
            if self._life.is_over:
                raise StopAsyncIteration
            self._given.extend(await self.poll_async())
        return self._given.popleft()

    async def _pause(self, queues: Iterable[QueueRef]) -> None:
        """Neither pull these queues nor give out what was pulled of them."""
        self._running().reader.pause(queues)

    pause = blocking(_pause)
    pause_async = awaitable(_pause)

    async def _resume(self, queues: Iterable[QueueRef]) -> None:
        """Go on with these queues."""
        self._running().reader.resume(queues)

    resume = blocking(_resume)
    resume_async = awaitable(_resume)

    # --- offsets --------------------------------------------------------------------------------

    async def _seek(self, queue: QueueRef, offset: int) -> None:
        """Go on with a queue at this offset; what was pulled of it is forgotten."""
        calls = self._running().instance.requests
        lowest, end = await calls.min_offset(queue), await calls.max_offset(queue)
        if not lowest <= offset <= end:
            raise ValueError(f"offset {offset} is outside {queue}: it holds {lowest} to {end}")
        self._seek_to(queue, offset)

    seek = blocking(_seek)
    seek_async = awaitable(_seek)

    async def _seek_to_begin(self, queue: QueueRef) -> None:
        """Go on with the oldest message."""
        self._seek_to(queue, await self._running().instance.requests.min_offset(queue))

    seek_to_begin = blocking(_seek_to_begin)
    seek_to_begin_async = awaitable(_seek_to_begin)

    async def _seek_to_end(self, queue: QueueRef) -> None:
        """Go on with the next message that comes."""
        self._seek_to(queue, await self._running().instance.requests.max_offset(queue))

    seek_to_end = blocking(_seek_to_end)
    seek_to_end_async = awaitable(_seek_to_end)

    async def _seek_to_time(self, queue: QueueRef, at: datetime | int) -> None:
        """Go on with the first message stored at or after a time (wall milliseconds)."""
        calls = self._running().instance.requests
        self._seek_to(queue, await calls.search_offset(queue, timestamp_ms(at, 0)))

    seek_to_time = blocking(_seek_to_time)
    seek_to_time_async = awaitable(_seek_to_time)

    async def _commit(self, offsets: Mapping[QueueRef, int] | None = None) -> None:
        """Store how far the group is: all messages given so far, or the offsets named."""
        reader = self._running().reader
        if offsets is None:
            await reader.store(is_user=True, held=self._held())
            return
        for queue, offset in offsets.items():
            reader.offsets.note(reader.owned(queue).queue, offset, is_increase_only=False)
        await reader.offsets.persist(list(offsets))

    commit = blocking(_commit)
    commit_async = awaitable(_commit)

    async def _committed(self, queue: QueueRef) -> int | None:
        """What is stored for the group; None when nothing is."""
        return await self._running().reader.offsets.store.read(queue)

    committed = blocking(_committed)
    committed_async = awaitable(_committed)

    async def _position(self, queue: QueueRef) -> int:
        """The offset of the next message of a queue that the user will get."""
        position = self._running().reader.owned(queue).position
        return min(position, self._held().get(queue, position))

    position = blocking(_position)
    position_async = awaitable(_position)

    async def _statistics(self) -> LiteFigures:
        """Caches, positions and lags, and which limit holds which queue since when."""
        return self._running().reader.figures()

    statistics = blocking(_statistics)
    statistics_async = awaitable(_statistics)

    def _seek_to(self, queue: QueueRef, offset: int) -> None:
        self._running().reader.seek(queue, offset)
        self._given = deque(each for each in self._given if each.queue != queue)
