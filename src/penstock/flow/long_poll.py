"""Held pulls: a request for messages that waits for them instead of asking again (F12).

Who grants: the client, once per pull. Who spends: the answer, which ends the pull. Who stops:
nobody; a pull holds nothing but its own place in the table. What wakes it: an arrival for its key,
or its deadline, whichever is first; never a poll.

Invariants: a pull leaves the table exactly once (arrival, deadline or cancel); bounded in total and
per key; an arrival returns everything held for its key, so none is lost (law 4): the holder looks
at the data *before* it holds and after it is woken, in one turn. Pulls are known by identity, they
need not be hashable. Not here: whether the new data matches a pull's filter (pass ``wants``), what
is answered (``engine``).
"""

import heapq
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

PullT = TypeVar("PullT")

PULLS_MAX: Final = 100_000
"""RocketMQ's capacity of its pull queue: one held pull is some 500 bytes."""

PULLS_PER_KEY_MAX: Final = 10_000

_STALE_MIN: Final = 64
"""Below this many stale heap entries nothing is tidied up."""


class _Held(Generic[PullT]):
    __slots__ = ("deadline_ms", "key", "owner", "pull", "ticket")

    def __init__(
        self, pull: PullT, key: Hashable, owner: Hashable, deadline_ms: int, ticket: int
    ) -> None:
        self.pull = pull
        self.key = key
        self.owner = owner
        self.deadline_ms = deadline_ms
        self.ticket = ticket


class HeldPulls(Generic[PullT]):
    """The table of pulls that wait."""

    __slots__ = (
        "_by_key",
        "_by_owner",
        "_deadlines",
        "_tickets",
        "held",
        "per_key_max",
        "total_max",
    )

    def __init__(self, total_max: int = PULLS_MAX, per_key_max: int = PULLS_PER_KEY_MAX) -> None:
        self.total_max = total_max
        self.per_key_max = per_key_max
        self._tickets = 0
        self.held: dict[int, _Held[PullT]] = {}
        """By the ids of the pulls; to be looked at only, empty while nobody waits."""
        self._by_key: dict[Hashable, dict[int, _Held[PullT]]] = {}
        self._by_owner: dict[Hashable, dict[int, _Held[PullT]]] = {}
        # (deadline, ticket, id of the pull); entries of pulls that left are skipped when met.
        self._deadlines: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, pull: PullT) -> bool:
        return id(pull) in self.held

    def count(self, key: Hashable) -> int:
        return len(self._by_key.get(key, ()))

    def hold(self, key: Hashable, pull: PullT, deadline_ms: int, *, owner: Hashable = None) -> bool:
        """Hold a pull; False when the table is full: then it is answered now, with nothing."""
        if len(self.held) >= self.total_max or self.count(key) >= self.per_key_max:
            return False
        name = id(pull)
        assert name not in self.held, "a pull is held twice"
        self._tickets += 1
        held = _Held(pull, key, owner, deadline_ms, self._tickets)
        self.held[name] = held
        self._by_key.setdefault(key, {})[name] = held
        if owner is not None:
            self._by_owner.setdefault(owner, {})[name] = held
        heapq.heappush(self._deadlines, (deadline_ms, held.ticket, name))
        return True

    def arrived(self, key: Hashable, wants: Callable[[PullT], bool] | None = None) -> list[PullT]:
        """Something new for this key: the pulls to answer, oldest first (only those it suits)."""
        waiting = self._by_key.get(key)
        if not waiting:
            return []
        woken = [held for held in waiting.values() if wants is None or wants(held.pull)]
        return self._leave(woken)

    def due(self, now_ms: int) -> list[PullT]:
        """The pulls whose time is up, earliest deadline first."""
        late = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _, ticket, name = heapq.heappop(deadlines)
            held = self.held.get(name)
            if held is not None and held.ticket == ticket:
                late.append(held)
        return self._leave(late)

    def cancel(self, pull: PullT) -> bool:
        """Its peer does not want it any more; False when it had left already."""
        held = self.held.get(id(pull))
        return bool(held is not None and self._leave([held]))

    def cancel_owner(self, owner: Hashable) -> list[PullT]:
        """The peer is gone: drop everything it holds."""
        return self._leave(list(self._by_owner.get(owner, {}).values()))

    def cancel_key(self, key: Hashable) -> list[PullT]:
        """The queue is gone: hand back everything that waits for it."""
        return self.arrived(key)

    @property
    def next_deadline_ms(self) -> int | None:
        """When ``due`` has something to do; None while nothing is held."""
        deadlines = self._deadlines
        while deadlines:
            deadline_ms, ticket, name = deadlines[0]
            held = self.held.get(name)
            if held is not None and held.ticket == ticket:
                return deadline_ms
            heapq.heappop(deadlines)
        return None

    def _leave(self, leaving: list[_Held[PullT]]) -> list[PullT]:
        for held in leaving:
            name = id(held.pull)
            del self.held[name]
            _remove(self._by_key, held.key, name)
            if held.owner is not None:
                _remove(self._by_owner, held.owner, name)
        # Woken pulls leave their deadline behind; without this the heap would outgrow the table.
        if len(self._deadlines) > 2 * len(self.held) + _STALE_MIN:
            self._deadlines = [
                (held.deadline_ms, held.ticket, name) for name, held in self.held.items()
            ]
            heapq.heapify(self._deadlines)
        return [held.pull for held in leaving]


def _remove(table: dict[Hashable, dict[int, _Held[PullT]]], key: Hashable, name: int) -> None:
    pulls = table[key]
    del pulls[name]
    if not pulls:
        del table[key]
