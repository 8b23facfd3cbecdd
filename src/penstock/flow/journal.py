"""The journal: the turn's time, and the edges of every stage's episodes, in one place.

Who writes: the engine calls ``tick`` once per turn, so that a stage blocked deep inside a credit's
arithmetic knows when it happened without reading a clock or being handed the time at every spend.
Who reads: the server takes the edges (``take_edges``) to log them, count them and tell them in the
system topic ``penstock.flow``.

Invariants: time never goes back; an edge not taken in time is dropped and counted.
"""

from collections import deque
from typing import Final

import msgspec

from penstock.flow.episodes import MEMORY_MS, WINDOW_MS, Episode, Episodes
from penstock.flow.reason import Reason

EDGES_MAX: Final = 4096
"""Edges waiting to be taken. Each stage makes at most two per second and reason."""

SETTLE_EVERY_MS: Final = 100
"""Episodes past their memory are looked for this often: lateness of a 'left' line in the log."""


class FlowEdge(msgspec.Struct, frozen=True, gc=False):
    """A stage entered (``episode`` is None) or left an episode."""

    kind: str
    name: str
    reason: Reason
    culprit: str
    at_ms: int
    episode: Episode | None = None


class Journal:
    """Time and edges shared by all stages of one engine."""

    __slots__ = (
        "_edges",
        "_settle_at_ms",
        "edges_dropped",
        "memory_ms",
        "now_ms",
        "open",
        "window_ms",
    )

    def __init__(
        self, now_ms: int = 0, *, window_ms: int = WINDOW_MS, memory_ms: int = MEMORY_MS
    ) -> None:
        self.now_ms = now_ms
        self.window_ms = window_ms
        self.memory_ms = memory_ms
        self.edges_dropped = 0
        self._edges: deque[FlowEdge] = deque()
        self.open: dict[Episodes, None] = {}
        """Episodes that go on, or ended a moment ago; to be looked at only."""
        self._settle_at_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """A turn begins."""
        if now_ms <= self.now_ms:
            return
        self.now_ms = now_ms
        if self.open and now_ms >= self._settle_at_ms:
            self._settle_at_ms = now_ms + SETTLE_EVERY_MS
            for episodes in list(self.open):
                episodes.settle(now_ms)

    def episodes(self, kind: str, name: str) -> Episodes:
        """A stage's history that reports here."""
        return Episodes(self.window_ms, self.memory_ms, kind=kind, name=name, sink=self)

    def take_edges(self) -> list[FlowEdge]:
        """The edges since the last call, oldest first."""
        taken = list(self._edges)
        self._edges.clear()
        return taken

    def unfinished(self, now_ms: int) -> list[tuple[str, Reason, int]]:
        """(kind, reason, time held so far) of every open episode of any stage."""
        return [
            (episodes.kind, reason, held_ms)
            for episodes in self.open
            for reason, held_ms in episodes.unfinished(now_ms)
        ]

    @property
    def next_deadline_ms(self) -> int | None:
        """When ``tick`` has something to end; None while no episode is open."""
        return self._settle_at_ms if self.open else None

    def entered(self, episodes: Episodes, reason: Reason, culprit: str, at_ms: int) -> None:
        """An episode began (called by ``Episodes``)."""
        if not self.open:
            self._settle_at_ms = at_ms + SETTLE_EVERY_MS
        self.open[episodes] = None
        self._note(FlowEdge(episodes.kind, episodes.name, reason, culprit, at_ms))

    def ended(self, episodes: Episodes, episode: Episode) -> None:
        """An episode is over (called by ``Episodes``)."""
        if not episodes.is_lingering:
            self.open.pop(episodes, None)
        self._note(
            FlowEdge(
                episodes.kind,
                episodes.name,
                episode.reason,
                episode.culprit,
                episode.until_ms,
                episode,
            )
        )

    def _note(self, edge: FlowEdge) -> None:
        if len(self._edges) >= EDGES_MAX:
            self._edges.popleft()
            self.edges_dropped += 1
        self._edges.append(edge)
