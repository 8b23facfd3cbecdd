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

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from penstock.client.consumer.consume_from import timestamp_ms
from penstock.client.consumer.lite_reader import LiteFigures
from penstock.client.consumer.lite_session import LiteSession
from penstock.client.consumer.lite_watch import TopicQueuesChanged
from penstock.client.errors import StateError
from penstock.client.message import ReceivedMessage
from penstock.client.twins import awaitable, blocking
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import SUBSCRIBE_ALL


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
        calls = self._running().instance.calls
        lowest, end = await calls.min_offset(queue), await calls.max_offset(queue)
        if not lowest <= offset <= end:
            raise ValueError(f"offset {offset} is outside {queue}: it holds {lowest} to {end}")
        self._seek_to(queue, offset)

    seek = blocking(_seek)
    seek_async = awaitable(_seek)

    async def _seek_to_begin(self, queue: QueueRef) -> None:
        """Go on with the oldest message."""
        self._seek_to(queue, await self._running().instance.calls.min_offset(queue))

    seek_to_begin = blocking(_seek_to_begin)
    seek_to_begin_async = awaitable(_seek_to_begin)

    async def _seek_to_end(self, queue: QueueRef) -> None:
        """Go on with the next message that comes."""
        self._seek_to(queue, await self._running().instance.calls.max_offset(queue))

    seek_to_end = blocking(_seek_to_end)
    seek_to_end_async = awaitable(_seek_to_end)

    async def _seek_to_time(self, queue: QueueRef, at: datetime | int) -> None:
        """Go on with the first message stored at or after a time (wall milliseconds)."""
        calls = self._running().instance.calls
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
