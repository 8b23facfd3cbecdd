"""Rebalancing: the queues a consumer owns become those that are its share now.

    share --> differ --> stop what is not ours --> lock (ordered) --> first offset --> start

A share that cannot be known keeps the assignment. A queue that goes is persisted before it is
forgotten; one that comes begins at the group's stored offset, whatever was remembered of it. A
queue whose pull loop has died (no pull for 120 s; throttled ones pull, as far as this is concerned)
or whose lock was lost is stopped and made anew.

Invariants: one rebalance of a consumer at a time; stopping comes before starting; a queue is
started only while it is not owned; after ``close`` nothing is started.
Not here: who gets what (``sharing.py``), when to rebalance (``rebalance_timer.py``), the making of
queues (a ``QueueOwner``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.process_queue import AssignedQueue, QueueOwner
from penstock.client.errors import ClientError
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


class RebalancePlan(NamedTuple):
    """What a share asks of a topic's queues."""

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


class LockBook(Protocol):
    """Ordered consumers own a queue only with the broker's lock on it (``locks.py``)."""

    async def acquire(self, queues: Collection[QueueRef]) -> Mapping[QueueRef, int]:
        """Which of them were granted, and when that was asked for."""
        ...

    def granted(self, assigned: AssignedQueue, asked_ms: int) -> None:
        """The queue was made under this grant."""
        ...

    async def give_back(self, queues: Collection[QueueRef]) -> None:
        """Unlock queues that are not taken after all."""
        ...


class Rebalancer:
    """Keeps one consumer's queues in step with its share."""

    def __init__(
        self,
        keeper: QueueOwner,
        sharing: Allocator,
        clock: Clock,
        *,
        heartbeat: Callable[[], Awaitable[None]],
        locks: LockBook | None = None,
    ) -> None:
        self._keeper = keeper
        self._sharing = sharing
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
                [queue for queue in self._keeper.owned() if queue.topic not in wanted]
            )
            is_changed = False
            for topic in wanted:
                allocation = None if self._is_closed else await self._sharing.allocate(topic)
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

    async def while_stopped(
        self, queues: Collection[QueueRef], change: Callable[[list[QueueRef]], Awaitable[None]]
    ) -> None:
        """Stop those that are owned, change them, let the next rebalance start what is ours."""
        async with self._turn:
            stopped = [queue for queue in queues if queue in self._keeper.owned()]
            await self._stop(stopped)
            await change(stopped)

    async def close(self) -> None:
        """Start nothing any more, and wait for the round that runs."""
        self._is_closed = True
        async with self._turn:
            pass

    async def _apply(self, topic: str, allocation: Allocation) -> bool:
        """Bring one topic in line; True when the owned queues changed."""
        keeper = self._keeper
        before = {id(assigned) for assigned in keeper.owned().values()}
        plan = plan_rebalance(keeper.owned(), topic, allocation.mine, self._clock.monotonic_ms())
        await self._stop(plan.stop)
        await self._start([queue for queue in plan.start if queue not in keeper.owned()])
        if {id(assigned) for assigned in keeper.owned().values()} == before:
            return False
        mine = [queue for queue in keeper.owned() if queue.topic == topic]
        _log.info(
            "rebalanced",
            extra={"topic": topic, "queues": len(allocation.queues), "mine": len(mine)},
        )
        keeper.assignment_changed(topic, allocation.queues, mine)
        return True

    async def _stop(self, queues: Iterable[QueueRef]) -> bool:
        """Together: each may have to wait for its listener."""
        stopped = await asyncio.gather(*map(self._stop_one, list(queues)))
        return all(stopped)

    async def _stop_one(self, queue: QueueRef) -> bool:
        try:
            return await self._keeper.stop_queue(queue)
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
            unused = [queue for queue in queues if queue not in self._keeper.owned()]
            if unused:
                await self._locks.give_back(unused)

    async def _start_one(self, queue: QueueRef, grants: Mapping[QueueRef, int] | None) -> None:
        try:
            offset = await self._keeper.first_offset(queue)
        except ClientError as problem:
            _log.warning("first offset not known", extra={"queue": queue, "error": str(problem)})
            return
        if offset is None or self._is_closed or queue in self._keeper.owned():
            return
        await self._keeper.start_queue(queue, offset)
        assigned = self._keeper.owned().get(queue)
        if grants is not None and self._locks is not None and assigned is not None:
            self._locks.granted(assigned, grants[queue])

    def _is_settled(self, topic: str, mine: Collection[QueueRef]) -> bool:
        owned = {q: each for q, each in self._keeper.owned().items() if q.topic == topic}
        return set(owned) == set(mine) and not any(each.is_dropped for each in owned.values())


# ---- sharing ------------------------------------------------------------------------------------
# Which queues of a topic are this consumer's: asked anew at every rebalance.
#
# Members of a group do not talk to each other. Each asks a broker who the members are, and divides
# the same sorted queues among the same sorted ids by the same rule; so all come to one result as
# soon as all know the same members. Until then two of them may believe they own a queue: a
# concurrent group then reads some messages twice, an ordered one is kept apart by locks
# (``locks.py``).
#
# None as a share is "cannot say": no route, no member list, a strategy that raised. The caller
# keeps what it has; a name server that is away must not stop consumption.
#
# Not here: what follows from a share (``rebalance.py``), sharing by the broker's word (pop).


RETRY_PREFIX: Final = "%RETRY%"

QueuesOf = Callable[[str], Sequence[QueueRef] | None]
"""The readable queues of a topic by the last route known; None without a route."""

MembersOf = Callable[[str], Awaitable[Sequence[str]]]
"""The client ids of the group, asked of a broker of this topic; raises ``ClientError``."""

_MADE_BY: Final = {
    CONFIG: "fixed(queues)",
    MACHINE_ROOM: "machine_room(rooms)",
    MACHINE_ROOM_NEARBY: "machine_room_nearby(inner, queue_room, member_room)",
}


class Allocation(NamedTuple):
    """A topic's queues, and which of them are ours."""

    queues: list[QueueRef]
    mine: list[QueueRef]
    is_known_member: bool = True
    """False when the broker does not know us (yet): we get nothing, and ask again soon."""


class Allocator(Protocol):
    """A way to find out."""

    async def allocate(self, topic: str) -> Allocation | None:
        """What is ours now; None keeps what there is."""
        ...


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


class GroupAllocator:
    """Clustering: the group's members divide the queues."""

    def __init__(
        self, client_id: str, strategy: Strategy, queues_of: QueuesOf, members_of: MembersOf
    ) -> None:
        self._client_id = client_id
        self._strategy = strategy
        self._queues_of = queues_of
        self._members_of = members_of

    async def allocate(self, topic: str) -> Allocation | None:
        """Our part of the topic among the members a broker knows now."""
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
        """All queues of the topic."""
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


# ---- reset --------------------------------------------------------------------------------------
# An operator moves a group to other offsets (request 220, from brokers that leave it to clients).
#
# Every member is told about all queues, and moves those it owns: they are stopped, the new offset
# is stored as it is (back or forward), and a rebalance starts them again there. RocketMQ's client
# lets ten seconds pass in between, for listeners to end; here stopping waits for the ordered ones,
# and results of others find their queue dropped.
#
# Invariant: no result of a call that began before the reset moves an offset after it.
# Not here: brokers that reset by themselves (a pull then says where to go on).


async def reset_offsets(
    wanted: Mapping[QueueRef, int],
    *,
    owned: Callable[[], Mapping[QueueRef, AssignedQueue]],
    rebalancer: Rebalancer,
    offsets: OffsetTable,
) -> dict[QueueRef, int]:
    """Move the owned ones of these queues; returns them. Rebalance at once after this."""
    moved: dict[QueueRef, int] = {}

    async def move(queues: list[QueueRef]) -> None:
        for queue in queues:
            moved[queue] = wanted[queue]
            lingering = owned().get(queue)
            if lingering is not None:
                # An ordered listener still runs. It keeps the broker's lock until it ends; what
                # it comes to is not noted any more.
                lingering.is_locked = False
            offsets.note(queue, wanted[queue], is_increase_only=False)
        await offsets.persist(queues)
        for queue in queues:
            offsets.forget(queue)

    await rebalancer.while_stopped(list(wanted), move)
    if moved:
        _log.info("offsets reset", extra={"queues": len(moved)})
    return moved
