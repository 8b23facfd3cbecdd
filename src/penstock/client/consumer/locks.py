"""The broker's lock on each queue of an ordered consumer: asked for, renewed, lost, given back.

    free --acquire--> held --renewed every 20 s--> held
                       | no answer for 30 s: stale, nothing new begins; renewed: held again
                       | refused, or silent for as long as a broker keeps a lock: lost
                       | dropped: let go when no listener runs, at the latest 20 s later

The broker gives a lock to somebody else after 60 s of silence; we stop beginning after 30 s,
counted from the moment we asked and not from the answer. So a listener may run for 30 s after its
lock went stale, and for 20 s after its queue was dropped, before another member can begin.

A lost lock was another member's in the meantime: what is cached is out of date. The queue is
dropped, and the next rebalance makes it anew if it can have the lock.

Invariant: work begins only between a grant and ``stale_ms`` after it was asked for.
Not here: the work (``ordered.py``), the broker's side (``engine/group/locks.py``).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.errors import ClientError
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock

_log = logging.getLogger(__name__)


class LockTerms(NamedTuple):
    """The times of a lock's life."""

    first_renewal_ms: int = 1_000
    renewal_ms: int = 20_000
    stale_ms: int = 30_000
    """Our own lock is not trusted any more this long after we asked for it."""
    lost_ms: int = 60_000
    """The broker may have given it to another member and got it back: what a broker keeps it."""
    drop_wait_ms: int = 500
    """How long one rebalance waits for the listener of a dropped queue."""
    drop_forced_ms: int = 20_000
    """A dropped queue is unlocked after this although its listener still runs."""


TERMS: Final = LockTerms()


def is_held(assigned: AssignedQueue, now_ms: int, terms: LockTerms = TERMS) -> bool:
    """True while work may begin under the lock."""
    return assigned.is_locked and now_ms - assigned.last_locked_ms <= terms.stale_ms


def note_grant(assigned: AssignedQueue, asked_ms: int, terms: LockTerms = TERMS) -> bool:
    """A grant asked for at ``asked_ms``; False: the lock was lost in between, and the queue."""
    if assigned.is_dropped:
        return False
    if assigned.is_locked and asked_ms - assigned.last_locked_ms > terms.lost_ms:
        note_refusal(assigned)
        return False
    assigned.is_locked = True
    # Answers may overtake each other: the later question counts.
    assigned.last_locked_ms = max(assigned.last_locked_ms, asked_ms)
    return True


def note_refusal(assigned: AssignedQueue) -> None:
    """Another member has it: this object of the queue is over."""
    assigned.is_locked = False
    assigned.drop()


def may_let_go(is_working: bool, dropped_for_ms: int, terms: LockTerms = TERMS) -> bool:
    """Whether a dropped queue may be unlocked now."""
    return not is_working or dropped_for_ms >= terms.drop_forced_ms


class LockCalls(Protocol):
    """What a broker is asked; ``Calls`` answers it."""

    async def lock(
        self, broker: str, group: str, queues: Collection[QueueRef]
    ) -> Collection[QueueRef]:
        """Request 41: those granted."""
        ...

    async def unlock(self, broker: str, group: str, queues: Collection[QueueRef]) -> None:
        """Request 42."""
        ...


class BrokerLocks:
    """All locks of one ordered consumer."""

    def __init__(
        self,
        calls: LockCalls,
        group: str,
        *,
        owned: Callable[[], Mapping[QueueRef, AssignedQueue]],
        clock: Clock,
        terms: LockTerms = TERMS,
    ) -> None:
        self._calls = calls
        self._group = group
        self._owned = owned
        self._clock = clock
        self.terms = terms

    def is_held(self, assigned: AssignedQueue) -> bool:
        """True while work on the queue may begin."""
        return is_held(assigned, self._clock.monotonic_ms(), self.terms)

    async def acquire(self, queues: Collection[QueueRef]) -> dict[QueueRef, int]:
        """Ask for queues not owned yet; the granted ones, and when they were asked for."""
        asked_ms = self._clock.monotonic_ms()
        answers = await asyncio.gather(*(self._ask(*each) for each in by_broker(queues)))
        return {queue: asked_ms for granted in answers if granted for queue in granted}

    def granted(self, assigned: AssignedQueue, asked_ms: int) -> None:
        """A queue was made under this grant."""
        note_grant(assigned, asked_ms, self.terms)

    async def renew(self, queues: Collection[AssignedQueue] | None = None) -> list[QueueRef]:
        """Ask again for owned queues, all unless told which; returns those lost to others."""
        chosen = self._owned().values() if queues is None else queues
        asked = {each.queue: each for each in chosen if not each.is_dropped}
        asked_ms = self._clock.monotonic_ms()
        lost: list[QueueRef] = []

        async def renew_at(broker: str, wanted: list[QueueRef]) -> None:
            granted = await self._ask(broker, wanted)
            if granted is None:
                # No answer is no refusal: the lock goes stale by itself if this goes on.
                return
            for queue in wanted:
                assigned = asked[queue]
                if assigned.is_dropped:
                    continue
                if queue not in granted:
                    note_refusal(assigned)
                elif note_grant(assigned, asked_ms, self.terms):
                    continue
                lost.append(queue)

        await asyncio.gather(*(renew_at(*each) for each in by_broker(asked)))
        if lost:
            _log.warning("locks lost to other members", extra={"queues": lost})
        return lost

    async def give_back(self, queues: Collection[QueueRef]) -> None:
        """Unlock; a broker that cannot be told forgets the lock after 60 s."""
        await asyncio.gather(*(self._unlock(*each) for each in by_broker(queues)))

    async def _ask(self, broker: str, queues: list[QueueRef]) -> Collection[QueueRef] | None:
        try:
            return await self._calls.lock(broker, self._group, queues)
        except ClientError as problem:
            _log.warning("locks not asked for", extra={"broker": broker, "error": str(problem)})
            return None

    async def _unlock(self, broker: str, queues: list[QueueRef]) -> None:
        try:
            await self._calls.unlock(broker, self._group, queues)
        except ClientError as problem:
            _log.info("locks not given back", extra={"broker": broker, "error": str(problem)})


def by_broker(queues: Iterable[QueueRef]) -> list[tuple[str, list[QueueRef]]]:
    """Queues in groups of one request each."""
    groups: dict[str, list[QueueRef]] = {}
    for queue in queues:
        groups.setdefault(queue.broker, []).append(queue)
    return list(groups.items())
