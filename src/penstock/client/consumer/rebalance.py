"""Rebalancing: the queues a consumer owns become those that are allocated to it now.

    allocation --> plan --> stop what is not ours --> lock (ordered) --> first offset --> start

An allocation that cannot be known keeps the queues. A queue that goes is persisted before it is
forgotten; one that comes begins at the group's stored offset, whatever was remembered of it. A
queue whose pull loop has died (no pull for 120 s; throttled ones pull, as far as this is concerned)
or whose lock was lost is stopped and made anew.

Invariants: one rebalance of a consumer at a time; stopping comes before starting; a queue is
started only while it is not owned; after ``close`` nothing is started.
Not here: when to rebalance (``client/instance.py``), allocation by the broker (``pop.py``), the
making of queues (a ``QueueOwner``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.ordered import BrokerLocks
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.errors import ClientError
from penstock.client.message import RETRY_PREFIX
from penstock.model.assignment import (
    CONFIG,
    MACHINE_ROOM,
    MACHINE_ROOM_NEARBY,
    STRATEGIES,
    QueueRef,
    Strategy,
)
from penstock.model.clock import Clock

_log = logging.getLogger(__name__)

QueuesOf = Callable[[str], Sequence[QueueRef] | None]
"""The readable queues of a topic by the last route known; None without a route."""

MembersOf = Callable[[str], Awaitable[Sequence[str]]]
"""The client ids of the group, asked of a broker of this topic; raises ``ClientError``."""


class Rebalancer:
    """Keeps the queues of one consumer in step with its allocation."""

    def __init__(
        self,
        owner: QueueOwner,
        allocator: Allocator,
        clock: Clock,
        *,
        heartbeat: Callable[[], Awaitable[None]],
        locks: BrokerLocks | None = None,
    ) -> None:
        self._owner = owner
        self._allocator = allocator
        self._clock = clock
        self._heartbeat = heartbeat
        self._locks = locks
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def rebalance(self, topics: Iterable[str]) -> bool:
        """One round over the subscribed topics; True when everything that is ours is in work."""
        async with self._turn:
            wanted = sorted(set(topics))
            is_balanced = await self._stop(
                [queue for queue in self._owner.owned() if queue.topic not in wanted]
            )
            is_changed = False
            for topic in wanted:
                allocation = None if self._is_closed else await self._allocator.allocate(topic)
                if allocation is None:
                    is_balanced = self._is_closed and is_balanced
                    continue
                is_balanced = allocation.is_known_member and is_balanced
                # A broker that does not know us learns it from the heartbeat below.
                is_changed = not allocation.is_known_member or is_changed
                if await self._apply(topic, allocation):
                    is_changed = True
                is_balanced = self._is_settled(topic, allocation.mine) and is_balanced
            if is_changed and not self._is_closed:
                await self._heartbeat()
            return is_balanced

    async def reset_offsets(
        self, wanted: Mapping[QueueRef, int], offsets: OffsetTable
    ) -> dict[QueueRef, int]:
        """Move the owned ones of these queues (request 220) and return them; then rebalance.

        They are stopped, the new offset is stored as it is (back or forward), and the next
        rebalance starts them again there. RocketMQ's client lets ten seconds pass in between, for
        listeners to end; here stopping waits for the ordered ones, and results of others find their
        queue dropped: no result of a call that began before moves an offset after it.
        """
        async with self._turn:
            moved = {queue: at for queue, at in wanted.items() if queue in self._owner.owned()}
            await self._stop(moved)
            for queue, offset in moved.items():
                lingering = self._owner.owned().get(queue)
                if lingering is not None:
                    # An ordered listener still runs. It keeps the broker's lock until it ends; what
                    # it comes to is not noted any more.
                    lingering.is_locked = False
                offsets.note(queue, offset, is_increase_only=False)
            await offsets.persist(list(moved))
            for queue in moved:
                offsets.forget(queue)
        if moved:
            _log.info("offsets reset", extra={"queues": len(moved)})
        return moved

    async def close(self) -> None:
        """Start nothing any more, and wait for the round that runs."""
        self._is_closed = True
        async with self._turn:
            pass

    async def _apply(self, topic: str, allocation: Allocation) -> bool:
        """Bring one topic in line; True when the owned queues changed."""
        owner = self._owner
        before = {id(assigned) for assigned in owner.owned().values()}
        plan = plan_rebalance(owner.owned(), topic, allocation.mine, self._clock.monotonic_ms())
        await self._stop(plan.stop)
        await self._start([queue for queue in plan.start if queue not in owner.owned()])
        if {id(assigned) for assigned in owner.owned().values()} == before:
            return False
        mine = [queue for queue in owner.owned() if queue.topic == topic]
        _log.info(
            "rebalanced",
            extra={"topic": topic, "queues": len(allocation.queues), "mine": len(mine)},
        )
        owner.assignment_changed(topic, allocation.queues, mine)
        return True

    async def _stop(self, queues: Iterable[QueueRef]) -> bool:
        """Together: each may have to wait for its listener."""
        stopped = await asyncio.gather(*map(self._stop_one, list(queues)))
        return all(stopped)

    async def _stop_one(self, queue: QueueRef) -> bool:
        try:
            return await self._owner.stop_queue(queue)
        except ClientError as problem:
            _log.warning("queue not stopped", extra={"queue": queue, "error": str(problem)})
            return False

    async def _start(self, queues: list[QueueRef]) -> None:
        if not queues:
            return
        grants: Mapping[QueueRef, int] | None = None
        if self._locks is not None:
            grants = await self._locks.acquire(queues)
            queues = [queue for queue in queues if queue in grants]
        await asyncio.gather(*(self._start_one(queue, grants) for queue in queues))
        if self._locks is not None:
            unused = [queue for queue in queues if queue not in self._owner.owned()]
            if unused:
                await self._locks.give_back(unused)

    async def _start_one(self, queue: QueueRef, grants: Mapping[QueueRef, int] | None) -> None:
        try:
            offset = await self._owner.first_offset(queue)
        except ClientError as problem:
            _log.warning("first offset not known", extra={"queue": queue, "error": str(problem)})
            return
        if offset is None or self._is_closed or queue in self._owner.owned():
            return
        await self._owner.start_queue(queue, offset)
        assigned = self._owner.owned().get(queue)
        if grants is not None and self._locks is not None and assigned is not None:
            self._locks.granted(assigned, grants[queue])

    def _is_settled(self, topic: str, mine: Collection[QueueRef]) -> bool:
        owned = {q: each for q, each in self._owner.owned().items() if q.topic == topic}
        return set(owned) == set(mine) and not any(each.is_dropped for each in owned.values())


class RebalancePlan(NamedTuple):
    """What an allocation asks of a topic's queues."""

    stop: list[QueueRef]
    start: list[QueueRef]


def plan_rebalance(
    owned: Mapping[QueueRef, AssignedQueue], topic: str, mine: Collection[QueueRef], now_ms: int
) -> RebalancePlan:
    """Queues to stop (not ours any more, or to be made anew), and queues to start."""
    wanted = dict.fromkeys(mine)
    stop = [
        queue
        for queue, assigned in owned.items()
        if queue.topic == topic
        and (queue not in wanted or assigned.is_dropped or assigned.is_idle(now_ms))
    ]
    gone = set(stop)
    return RebalancePlan(stop, [queue for queue in wanted if queue not in owned or queue in gone])


class QueueOwner(Protocol):
    """Who owns assigned queues and pulls for them: a member of a group (``member.py``)."""

    def owned(self) -> Mapping[QueueRef, AssignedQueue]:
        """The queues owned now, of all topics."""
        ...

    async def first_offset(self, queue: QueueRef) -> int | None:
        """Where to begin with a new queue, stale knowledge forgotten; None: not now, try later."""
        ...

    async def start_queue(self, queue: QueueRef, offset: int) -> None:
        """It is ours: make it and pull; the first pull begins after this has returned."""
        ...

    async def stop_queue(self, queue: QueueRef) -> bool:
        """Not ours any more: drop, ``service.dropped``, persist, forget, ``service.released``.

        False: not yet, ask again.
        """
        ...

    def assignment_changed(
        self, topic: str, queues: Collection[QueueRef], mine: Collection[QueueRef]
    ) -> None:
        """After a change: limits are divided anew, listeners of changes hear of it."""
        ...


class Allocation(NamedTuple):
    """The queues of a topic, and which of them are ours."""

    queues: list[QueueRef]
    mine: list[QueueRef]
    is_known_member: bool = True
    """False when the broker does not know us (yet): we get nothing, and ask again soon."""


class Allocator(Protocol):
    """Finds out which queues of a topic are ours, anew at every rebalance.

    None is "cannot say": no route, no member list, a strategy that raised. Then the consumer keeps
    what it has; a name server that is away must not stop consumption.
    """

    async def allocate(self, topic: str) -> Allocation | None: ...


class GroupAllocator:
    """Clustering: the members of the group divide the queues.

    They do not talk to each other. Each asks a broker who the members are, and divides the same
    sorted queues among the same sorted ids by the same rule; so all come to one result as soon as
    all know the same members. Until then two of them may believe they own a queue: a concurrent
    group then reads some messages twice, an ordered one is kept apart by locks.
    """

    def __init__(
        self, client_id: str, strategy: Strategy, queues_of: QueuesOf, members_of: MembersOf
    ) -> None:
        self._client_id = client_id
        self._strategy = strategy
        self._queues_of = queues_of
        self._members_of = members_of

    async def allocate(self, topic: str) -> Allocation | None:
        queues = _sorted_queues(self._queues_of, topic)
        if queues is None:
            return None
        try:
            members = sorted(await self._members_of(topic))
        except ClientError as problem:
            _log.warning("members not known", extra={"topic": topic, "error": str(problem)})
            return None
        if self._client_id not in members:
            return Allocation(queues, [], is_known_member=False)
        try:
            chosen = self._strategy(self._client_id, queues, members)
        except Exception:
            # Often the user's own function; whatever it raises, queues in work stay in work.
            _log.exception("allocation failed", extra={"topic": topic, "members": len(members)})
            return None
        # A fixed list may name queues of several topics: each is taken with its own.
        return Allocation(queues, [queue for queue in chosen if queue.topic == topic])


class BroadcastAllocator:
    """Broadcasting: every member reads every queue."""

    def __init__(self, queues_of: QueuesOf) -> None:
        self._queues_of = queues_of

    async def allocate(self, topic: str) -> Allocation | None:
        queues = _sorted_queues(self._queues_of, topic)
        return None if queues is None else Allocation(queues, queues)


def _sorted_queues(queues_of: QueuesOf, topic: str) -> list[QueueRef] | None:
    queues = queues_of(topic)
    if queues:
        return sorted(queues)
    # A retry topic is made by the broker with the first heartbeat: its absence is no news.
    if not topic.startswith(RETRY_PREFIX):
        _log.warning("topic has no queues to read", extra={"topic": topic})
    return None


_MADE_BY: Final = {
    CONFIG: "fixed(queues)",
    MACHINE_ROOM: "machine_room(rooms)",
    MACHINE_ROOM_NEARBY: "machine_room_nearby(inner, queue_room, member_room)",
}


def strategy_of(chosen: str | Strategy) -> Strategy:
    """The strategy with this name, or the caller's own function."""
    if not isinstance(chosen, str):
        return chosen
    found = STRATEGIES.get(chosen)
    if found is not None:
        return found
    maker = _MADE_BY.get(chosen)
    if maker is not None:
        raise ValueError(
            f"allocation {chosen!r} needs its own settings: give penstock.client.{maker}"
        )
    raise ValueError(
        f"allocation {chosen!r} is not known; one of {', '.join(STRATEGIES)}, or a function "
        "(own id, queues, members) -> queues"
    )
