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

Every method has a twin ending in ``_async``. Not here: pulls and the cache (``lite_reader.py``).
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

from penstock.client.consumer.lite_reader import LiteFigures, LiteQueue, LiteReader
from penstock.client.consumer.member import GroupMember
from penstock.client.consumer.options import LitePullOptions
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.consumer.pulling import PullClient, PullResult
from penstock.client.consumer.rebalance import Rebalancer
from penstock.client.consumer.subscription import Subscriptions, subscription, timestamp_ms
from penstock.client.errors import ClientError, StateError
from penstock.client.instance import ClientInstance, instance
from penstock.client.loop import MachineClock, awaitable, blocking
from penstock.client.message import ReceivedMessage
from penstock.client.options import resolve
from penstock.client.routes import NameServerList, parse_name_servers
from penstock.client.states import Lifecycle, State
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import SUBSCRIBE_ALL

_log = logging.getLogger(__name__)

TopicQueuesChanged = Callable[[str, list[QueueRef]], object]
"""Gets a topic and its queues, on a thread, when they are others than before."""


class LitePullConsumer:
    """Reads topics or queues in the background, and gives what it read to ``poll``."""

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


class LiteMember(GroupMember):
    """A lite pull consumer on the client's loop: which queues are its own.

    Queues come by subscription (divided with the group by rebalancing) or by assignment (exactly
    those the user named); one excludes the other. An assigned queue whose first offset cannot be
    had yet is tried again with every rebalance.
    """

    kind = "lite pull consumer"

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        options: LitePullOptions,
        subscriptions: Subscriptions,
    ) -> None:
        super().__init__(instance, group, subscriptions, options)
        self._options = options
        self._assigned: set[QueueRef] | None = None
        self._pulls = PullClient(
            instance, group, timeout_ms=options["pull_timeout_ms"], is_lite=True
        )
        self.reader = LiteReader(group, options, self.offsets, self.clock, pull=self._pull)
        self._rebalancer = Rebalancer(
            self, self._make_allocator(), self.clock, heartbeat=instance.heartbeat
        )
        self.watch = TopicWatch(instance, options["metadata_check_interval_ms"])

    async def start(self, assigned: Collection[QueueRef] | None) -> None:
        """Begin; raises when the group is taken."""
        await self._join(self.subscriptions.topics())
        await self.instance.heartbeat()
        self._is_registered = True
        if assigned is not None:
            self._assigned = set(assigned)
        # Not by the instance's timer, which may have to wait: the first poll would wait with it.
        if not await self.rebalance():
            self.instance.rebalance_now()

    async def stop(self, *, is_clean: bool, held: Mapping[QueueRef, int]) -> None:
        """End; the last commit is made, and nothing is owned any more."""
        self._is_registered = False
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
        await self._look_up([topic])
        await self._check(wanted)
        self.subscriptions.add(topic, tags=tags, sql=sql)
        self.reader.restart(topic)

    async def unsubscribe(self, topic: str) -> None:
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
        return await self._pulls.pull(
            queue.queue,
            offset,
            wanted,
            count=self._options["pull_batch"],
            wait_ms=self._options["pull_suspend_ms"],
        )

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
            if offset is not None and queue not in self.owned() and self._is_registered:
                await self.start_queue(queue, offset)
        return is_complete

    # --- for rebalancing ------------------------------------------------------------------------

    def owned(self) -> Mapping[QueueRef, AssignedQueue]:
        return self.reader.cache.queues

    async def start_queue(self, queue: QueueRef, offset: int) -> None:
        self.reader.open(queue, offset)

    async def stop_queue(self, queue: QueueRef) -> bool:
        await self.reader.close(queue)
        self._pulls.forget(queue)
        return True

    # --- for the instance -----------------------------------------------------------------------

    def topics(self) -> set[str]:
        return self.subscriptions.topics() | self.watch.topics()

    async def rebalance(self) -> bool:
        """Divide the queues anew, or try assigned ones again."""
        if not self._is_registered:
            return True
        if self._assigned is not None:
            return await self._follow_assignment()
        return await self._rebalancer.rebalance(self.subscriptions.topics())

    async def reset_offsets(self, topic: str, offsets: dict[QueueRef, int]) -> None:
        """An operator moved the group: go on there."""
        for queue, offset in offsets.items():
            if queue.topic == topic and queue in self.owned():
                self.reader.seek(queue, offset)
                self.offsets.note(queue, offset, is_increase_only=False)

    def running_info(self, with_stacks: bool) -> dict[str, Any]:
        held = self.reader.held(self.clock.monotonic_ms())
        return self._running_info(with_stacks, held=held)


class TopicWatch:
    """Looks whether topics have other queues than before, for consumers that choose their own.

    Every 30 s the routes of all watched topics are asked for; a difference is told to the listener,
    a topic that cannot be asked for keeps its queues.
    """

    def __init__(self, instance: ClientInstance, interval_ms: int) -> None:
        self._instance = instance
        self._interval_ms = interval_ms
        self._watched: dict[str, tuple[TopicQueuesChanged, list[QueueRef]]] = {}
        self._task: asyncio.Task[None] | None = None

    def topics(self) -> set[str]:
        return set(self._watched)

    async def add(self, topic: str, listener: TopicQueuesChanged) -> None:
        """Watch a topic from its queues of now on; raises ``NoRoute``."""
        route = await self._instance.routes.look_up(topic)
        self._watched[topic] = (listener, route.read_queues())
        if self._task is None:
            self._task = self._instance.spawn(self._run(), "queues of topics")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def look(self) -> None:
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
