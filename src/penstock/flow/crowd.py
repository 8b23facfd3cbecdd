"""The consumers of one reader as the diagnosis sees them: of very many the worst of each kind.

A few are a view each. Of thousands nearly all are alike: whatever the diagnosis asks (does it want
more, is it at its limit, does it read, what keeps messages from it), they give the same answers.
Those are of one *kind*; of every kind the worst are kept and the others counted, so that a
judgement finds whatever it would find among all of them, and a page has an end.

Invariants: at most ``SHOWN_MAX`` of the worst are kept, and as many for whom they wait; with no
more than ``SHOWN_MAX`` in all each is, in the order in which they came; who is kept is the same in
every look while nothing changes. Not here: what follows from them (``delivery.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Set
from heapq import heappush, heappushpop
from itertools import islice
from typing import Final

from msgspec.structs import replace

from penstock.flow.delivery import IDLE_MS, USUAL_TIMES
from penstock.flow.demand import ClientCause
from penstock.flow.progress import STUCK_MS, UNSETTLED_MIN
from penstock.flow.views import ConsumerView

SHOWN_MAX: Final = 64
"""Consumers of one reader that have a view: more than anybody reads, and 15 KB on a page."""

Entry = tuple[tuple[int, int, int], int, ConsumerView]
"""(how bad it is, which came first, downwards, and the consumer)."""


class Crowd:
    """Consumers that are offered one by one, and what is kept of them."""

    __slots__ = ("_count_max", "_counts", "_kinds", "total")

    def __init__(self, count_max: int = SHOWN_MAX) -> None:
        self._count_max = count_max
        # Of each kind the worst, a heap, and how many there are.
        self._kinds: dict[Hashable, list[Entry]] = {}
        self._counts: dict[Hashable, int] = {}
        self.total = 0

    def add(self, view: ConsumerView) -> None:
        self.total += 1
        kind = _kind(view)
        heap = self._kinds.setdefault(kind, [])
        self._counts[kind] = self._counts.get(kind, 0) + 1
        entry = (_badness(view), -self.total, view)
        if len(heap) < self._count_max:
            heappush(heap, entry)
        else:
            heappushpop(heap, entry)

    def shown(
        self, views_of: Callable[[Set[str]], Iterable[ConsumerView]]
    ) -> tuple[ConsumerView, ...]:
        """Those that are kept; each that stands for others says for how many.

        ``views_of`` makes the views of consumers by their names: of those for whom others wait.
        """
        kept = self._worst()
        if self.total > len(kept):
            awaited = {each[2].waits_for for each in kept} - {each[2].name for each in kept} - {""}
            found = islice(views_of(awaited), self._count_max)
            kept += [((0, 0, 0), -self.total, view) for view in found]
        left = dict(self._counts)
        for _, _, view in kept:
            left[_kind(view)] = left.get(_kind(view), 1) - 1
        shown: list[ConsumerView] = []
        for _, _, view in sorted(kept, key=lambda each: -each[1]):
            others, left[_kind(view)] = left[_kind(view)], 0
            shown.append(replace(view, others=others) if others > 0 else view)
        return tuple(shown)

    def _worst(self) -> list[Entry]:
        """One of each kind first, then whoever is worst."""
        first: list[Entry] = []
        rest: list[Entry] = []
        for heap in self._kinds.values():
            worst, *others = sorted(heap, reverse=True)
            first.append(worst)
            rest += others
        first.sort(reverse=True)
        rest.sort(reverse=True)
        return (first + rest)[: self._count_max]


def _kind(view: ConsumerView) -> Hashable:
    """Consumers for whom this is the same are alike to every rule of the diagnosis."""
    return (
        view.is_passive,
        view.has_demand,
        view.is_at_limit,
        view.is_unsent_high,
        view.has_settled,
        (view.unsettled_ms or 0) >= STUCK_MS,
        bool(view.unacked),
        view.unacked >= UNSETTLED_MIN,
        view.blocked_by,
        None if view.says is None else view.says.cause,
    )


def _badness(view: ConsumerView) -> tuple[int, int, int]:
    """By what the diagnosis chooses whom it names: how little it does, and how much it has."""
    says = view.says
    if says is not None and says.cause is not ClientCause.UNACKED:
        return _stillness(says.lasted_ms, STUCK_MS), says.waiting, view.unacked
    stuck_ms = max(STUCK_MS, USUAL_TIMES * view.usual_ms)
    return _stillness(view.unsettled_ms or 0, stuck_ms), view.unacked, 0


def _stillness(ms: int, stuck_ms: int) -> int:
    return (ms >= IDLE_MS) + (ms >= stuck_ms)
