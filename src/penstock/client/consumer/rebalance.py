"""Rebalancing: the queues a consumer owns become those that are its share now.

    share --> differ --> stop what is not ours --> lock (ordered) --> first offset --> start

A share that cannot be known keeps the assignment. A queue that goes is persisted before it is
forgotten; one that comes begins at the group's stored offset, whatever was remembered of it. A
queue whose pull loop has died (no pull for 120 s; throttled ones pull, as far as this is concerned)
or whose lock was lost is stopped and made anew.

Invariants: one rebalance of a consumer at a time; stopping comes before starting; a queue is
started only while it is not owned; after ``close`` nothing is started.
Not here: who gets what (``sharing.py``), when to rebalance (``rebalance_timer.py``), the making of
queues (a ``QueueKeeper``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from penstock.client.consumer.assigned import AssignedQueue, QueueKeeper
from penstock.client.consumer.sharing import Share, Sharing
from penstock.client.errors import ClientError
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock

_log = logging.getLogger(__name__)


class Plan(NamedTuple):
    """What a share asks of a topic's queues."""

    stop: list[QueueRef]
    start: list[QueueRef]


def differ(
    owned: Mapping[QueueRef, AssignedQueue], topic: str, mine: Collection[QueueRef], now_ms: int
) -> Plan:
    """Queues to stop (not ours any more, or to be made anew), and queues to start."""
    wanted = dict.fromkeys(mine)
    stop = [
        queue
        for queue, assigned in owned.items()
        if queue.topic == topic
        and (queue not in wanted or assigned.is_dropped or assigned.is_idle(now_ms))
    ]
    gone = set(stop)
    return Plan(stop, [queue for queue in wanted if queue not in owned or queue in gone])


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
        keeper: QueueKeeper,
        sharing: Sharing,
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
                share = None if self._is_closed else await self._sharing.share(topic)
                if share is None:
                    is_balanced = self._is_closed and is_balanced
                    continue
                is_balanced = share.is_known_member and is_balanced
                # A broker that does not know us learns it from the heartbeat below.
                is_changed = not share.is_known_member or is_changed
                if await self._apply(topic, share):
                    is_changed = True
                is_balanced = self._is_settled(topic, share.mine) and is_balanced
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

    async def _apply(self, topic: str, share: Share) -> bool:
        """Bring one topic in line; True when the owned queues changed."""
        keeper = self._keeper
        before = {id(assigned) for assigned in keeper.owned().values()}
        plan = differ(keeper.owned(), topic, share.mine, self._clock.monotonic_ms())
        await self._stop(plan.stop)
        await self._start([queue for queue in plan.start if queue not in keeper.owned()])
        if {id(assigned) for assigned in keeper.owned().values()} == before:
            return False
        mine = [queue for queue in keeper.owned() if queue.topic == topic]
        _log.info(
            "rebalanced",
            extra={"topic": topic, "queues": len(share.queues), "mine": len(mine)},
        )
        keeper.assignment_changed(topic, share.queues, mine)
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
