"""The pull consumer: messages of a queue from an offset, when the caller asks.

    with PullConsumer("127.0.0.1:9876", "readers") as consumer:
        for queue in consumer.queues("orders"):
            result = consumer.pull(queue, consumer.committed(queue) or 0)
            ...
            consumer.commit(queue, result.next_offset)

Nothing happens by itself: which queues are read, from where, and what is stored is the caller's
business. With ``registers_group=False`` brokers do not even hear of the consumer: no heartbeats, no
share of the queues, no offsets unless ``commit`` is called. That is for readers which know exactly
what they want, in as many processes as they like (make the consumer after a fork, not before).

Every method has a twin ending in ``_async``.

Not here: pulls in the background (``lite_pull_consumer.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Final, Unpack

from penstock.client.consumer.member import GroupMember
from penstock.client.consumer.options import PullOptions, QueueListener
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.consumer.pulling import PullClient, PullResult
from penstock.client.consumer.rebalance import Rebalancer
from penstock.client.consumer.send_back import SEND_BACK_TIMEOUT_MS, back_header
from penstock.client.consumer.subscription import Subscriptions, subscription, timestamp_ms
from penstock.client.errors import ClientError, StateError
from penstock.client.instance import ClientInstance, client_id, instance, local_ip, process_name
from penstock.client.loop import awaitable, blocking, client_loop
from penstock.client.message import ReceivedMessage
from penstock.client.options import InstanceOptions, pick, resolve
from penstock.client.routes import NameServerList, parse_name_servers
from penstock.client.states import Lifecycle, StartStop, State
from penstock.model.assignment import QueueRef, Strategy
from penstock.wire.rocketmq.bodies import SUBSCRIBE_ALL

PULL_MESSAGES: Final = 32
READ_MESSAGES: Final = 1024
"""Messages of one pull of ``read``; a broker gives fewer when they are large."""
CHECKED_MAX: Final = 1024
"""Expressions remembered as compiled."""

PullDone = Callable[[PullResult | ClientError], object]
"""Called on the client's thread with what a pull brought; it must not wait for anything."""


class PullConsumer(StartStop):
    """Reads queues as it is told."""

    def __init__(
        self, name_servers: NameServerList, group: str, **options: Unpack[PullOptions]
    ) -> None:
        if not group:
            raise ValueError("a consumer needs a group")
        self.group = group
        self._name_servers = parse_name_servers(name_servers)
        self._options = resolve(PullOptions, options)
        self._life = Lifecycle(f"pull consumer {group!r}")
        self._member: PullMember | None = None
        self._instance: ClientInstance | None = None
        self._pulls: PullClient | None = None
        self._checked: set[tuple[str, str]] = set()
        """Expressions that a broker has compiled."""

    @property
    def state(self) -> State:
        """Created, running, stopped or failed."""
        return self._life.state

    # --- life -----------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Be ready to pull."""
        self._life.begin()
        if self._options["registers_group"]:
            shared = instance(self._name_servers, self._options)
            member = PullMember(shared, self.group, self._options["strategy"])
            await member.start()
            self._member = member
        else:
            shared = self._own_instance()
        self._instance = shared
        self._pulls = PullClient(
            shared,
            self.group,
            timeout_ms=self._options["pull_timeout_ms"],
            bytes_max=self._options["pull_bytes_max"],
        )
        self._life.started()

    def _own_instance(self) -> ClientInstance:
        """Connections of its own, without timers: nobody hears of it."""
        chosen = pick(InstanceOptions, self._options)
        ip = chosen["client_ip"] or local_ip()
        identity = client_id(ip, f"reader-{process_name()}", chosen["unit_name"])
        return ClientInstance(self._name_servers, chosen, identity)

    start = blocking(_start)
    start_async = awaitable(_start)

    async def _stop(self) -> None:
        """Store noted offsets, and end."""
        if self._life.state is not State.RUNNING:
            return
        self._life.state = State.STOPPING
        try:
            if self._member is not None:
                await self._member.stop()
            elif self._instance is not None:
                await self._instance.network.close()
        finally:
            self._life.state = State.STOPPED

    stop = blocking(_stop)
    stop_async = awaitable(_stop)

    # --- queues and messages --------------------------------------------------------------------

    async def _queues(self, topic: str) -> list[QueueRef]:
        """The queues of a topic that can be read, as a name server says now."""
        return (await self._running().routes.look_up(topic)).read_queues()

    queues = blocking(_queues)
    queues_async = awaitable(_queues)

    async def _pull(
        self,
        queue: QueueRef,
        offset: int,
        *,
        max_messages: int = PULL_MESSAGES,
        tags: str | Sequence[str] = SUBSCRIBE_ALL,
        sql: str | None = None,
        wait_ms: int = 0,
    ) -> PullResult:
        """Messages of a queue from ``offset`` on, at most so many.

        Without ``wait_ms`` the answer comes at once, with or without messages; with it the broker
        waits so long for the first one (RocketMQ's clients say 20 seconds).
        """
        self._running()
        assert self._pulls is not None
        if offset < 0 or max_messages < 1:
            raise ValueError(f"pull of {max_messages} messages from offset {offset} makes no sense")
        wanted = subscription(queue.topic, tags=tags, sql=sql, version=0)
        if sql is not None and (queue.topic, sql) not in self._checked:
            # A pull with an expression it cannot compile is not refused by every broker.
            await self._running().requests.check_client(self.group, wanted.data)
            if len(self._checked) >= CHECKED_MAX:
                self._checked.clear()
            self._checked.add((queue.topic, sql))
        return await self._pulls.pull(queue, offset, wanted, count=max_messages, wait_ms=wait_ms)

    pull = blocking(_pull)
    pull_async = awaitable(_pull)

    def pull_callback(
        self,
        queue: QueueRef,
        offset: int,
        on_done: PullDone,
        *,
        max_messages: int = PULL_MESSAGES,
        tags: str | Sequence[str] = SUBSCRIBE_ALL,
        sql: str | None = None,
        wait_ms: int = 0,
    ) -> None:
        """The same; ``on_done`` gets the result or the error, on the client's thread."""

        async def pull_and_tell() -> None:
            try:
                result: PullResult | ClientError = await self._pull(
                    queue, offset, max_messages=max_messages, tags=tags, sql=sql, wait_ms=wait_ms
                )
            except ClientError as problem:
                result = problem
            on_done(result)

        client_loop().post(self._running().spawn, pull_and_tell(), "pull by callback")

    def read(
        self,
        queue: QueueRef,
        start: int,
        end: int,
        *,
        tags: str | Sequence[str] = SUBSCRIBE_ALL,
        sql: str | None = None,
    ) -> Iterator[ReceivedMessage]:
        """Every message of a queue with ``start <= offset < end`` that there is now.

        Offsets that were removed, or that the filter leaves out, are passed over; it ends where
        the queue ends.
        """
        offset = start
        while offset < end:
            count = min(READ_MESSAGES, end - offset)
            result = self.pull(queue, offset, max_messages=count, tags=tags, sql=sql)
            yield from (each for each in result if start <= each.offset < end)
            if result.next_offset <= offset or result.next_offset >= result.max_offset:
                return
            offset = result.next_offset

    async def _send_back(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have the group get a message again later (36); a level below 0 makes a dead letter."""
        calls = self._running().requests
        header = back_header(message, self.group, delay_level, self._options["retries_max"])
        address = await calls.master_of(message.queue)
        await calls.send_back(address, header, timeout_ms=SEND_BACK_TIMEOUT_MS)

    send_back = blocking(_send_back)
    send_back_async = awaitable(_send_back)

    # --- offsets --------------------------------------------------------------------------------

    async def _committed(self, queue: QueueRef) -> int | None:
        """Where the group is in a queue, as the broker says; None when it was never stored."""
        return await self._running().requests.query_offset(queue, self.group)

    committed = blocking(_committed)
    committed_async = awaitable(_committed)

    async def _commit(self, queue: QueueRef, offset: int) -> None:
        """Store now where the group is; may also move it back."""
        await self._running().requests.update_offset(queue, self.group, offset, oneway=False)
        if self._member is not None:
            self._member.offsets.forget(queue)

    commit = blocking(_commit)
    commit_async = awaitable(_commit)

    def note_offset(self, queue: QueueRef, offset: int) -> None:
        """Store this with the next round (every 5 s, and at ``stop``): cheap, for every pull."""
        self._running()
        if self._member is None:
            raise StateError("a reader without a group has no rounds; use commit()")
        note = partial(self._member.offsets.note, is_increase_only=False)
        client_loop().post(note, queue, offset)

    async def _min_offset(self, queue: QueueRef) -> int:
        """The offset of the oldest message of a queue."""
        return await self._running().requests.min_offset(queue)

    min_offset = blocking(_min_offset)
    min_offset_async = awaitable(_min_offset)

    async def _max_offset(self, queue: QueueRef) -> int:
        """The offset behind the newest message of a queue."""
        return await self._running().requests.max_offset(queue)

    max_offset = blocking(_max_offset)
    max_offset_async = awaitable(_max_offset)

    async def _search_offset(self, queue: QueueRef, at: datetime | int) -> int:
        """The offset of the first message stored at or after a time (wall milliseconds)."""
        return await self._running().requests.search_offset(queue, timestamp_ms(at, 0))

    search_offset = blocking(_search_offset)
    search_offset_async = awaitable(_search_offset)

    async def _earliest_store_time(self, queue: QueueRef) -> int:
        """Wall milliseconds at which the oldest message was stored; -1 when there is none."""
        return await self._running().requests.earliest_store_time(queue)

    earliest_store_time = blocking(_earliest_store_time)
    earliest_store_time_async = awaitable(_earliest_store_time)

    async def _on_queues_changed(self, topic: str, listener: QueueListener) -> None:
        """Divide a topic with the group: ``listener(topic, all queues, mine)`` at each change."""
        self._running()
        if self._member is None:
            raise StateError("a reader without a group has no share; use registers_group=True")
        await self._member.listen(topic, listener)

    on_queues_changed = blocking(_on_queues_changed)
    on_queues_changed_async = awaitable(_on_queues_changed)

    def _running(self) -> ClientInstance:
        self._life.check_running()
        assert self._instance is not None
        return self._instance


class PullMember(GroupMember):
    """A pull consumer on the client's loop, as a member of its group.

    It consumes nothing by itself. It is told which queues would be its share of the topics it
    listens to, keeps offsets that are to be stored, and answers brokers that ask about it.
    """

    kind = "pull consumer"

    def __init__(self, instance: ClientInstance, group: str, strategy: str | Strategy) -> None:
        subscriptions = Subscriptions(instance.clock.wall_ms)
        super().__init__(instance, group, subscriptions, {"strategy": strategy})
        self._listeners: dict[str, QueueListener] = {}
        self._owned: dict[QueueRef, AssignedQueue] = {}
        self._rebalancer = Rebalancer(
            self, self._make_allocator(), self.clock, heartbeat=instance.heartbeat
        )

    async def start(self) -> None:
        """Register; raises ``GroupTaken``."""
        await self._join(())

    async def stop(self) -> None:
        """Store what is to be stored, and leave."""
        await self._rebalancer.close()
        await self.offsets.persist()
        await self.instance.remove_consumer(self)

    async def listen(self, topic: str, listener: QueueListener) -> None:
        """Take part in the division of a topic's queues; the listener hears of each change."""
        await self.instance.routes.look_up(topic)
        self._listeners[topic] = listener
        self.subscriptions.add(topic)
        await self.instance.heartbeat()
        self.instance.rebalance_now()

    def topics(self) -> set[str]:
        return set(self._listeners)

    def owned(self) -> dict[QueueRef, AssignedQueue]:
        return self._owned

    async def first_offset(self, queue: QueueRef) -> int | None:
        """Where to begin is the user's business."""
        return 0

    async def start_queue(self, queue: QueueRef, offset: int) -> None:
        self._owned[queue] = AssignedQueue(queue, offset, self.clock.monotonic_ms())

    async def stop_queue(self, queue: QueueRef) -> bool:
        """Not in our share any more; what was noted of it is stored first."""
        dropped = self._owned.pop(queue, None)
        if dropped is not None:
            dropped.drop()
            await self.offsets.persist([queue])
            self.offsets.forget(queue)
        return True

    def assignment_changed(
        self, topic: str, queues: Collection[QueueRef], mine: Collection[QueueRef]
    ) -> None:
        self._notify(self._listeners[topic], topic, queues, mine)

    async def rebalance(self) -> bool:
        now_ms = self.clock.monotonic_ms()
        for assigned in self._owned.values():
            # Nobody pulls these by itself: silence does not mean that a loop has died.
            assigned.last_pull_ms = now_ms
        return await self._rebalancer.rebalance(self.topics())

    async def reset_offsets(self, topic: str, offsets: dict[QueueRef, int]) -> None:
        """An operator moved the group: what is noted here must not move it back."""
        for queue in offsets:
            self.offsets.forget(queue)
