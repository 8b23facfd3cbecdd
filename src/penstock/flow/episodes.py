"""Episodes: a stage's history of being held, told so that a person can use it.

Who writes: ``Stage`` and ``Gate`` at every stall and release. Who reads: ``Journal`` (edges),
metrics (stalled seconds by reason) and the flow page (since when, share of the last 10 s).

Credit may stop and release a stage hundreds of times a second. Each of those *stalls* is counted
with its exact time; but they belong to one *episode* as long as the next one begins within
``memory_ms`` of the last one's end. Only the edges of episodes are events, so neither log nor
dashboard flickers, and an episode is reported once however many messages it concerned.

A reason may have several holders at once (a stage's credit and its gate): each enters and leaves
once, and the stall lasts from the first to the last of them.

Invariants: at most one episode per reason is open; everything entered is left exactly once, also
when the stage dies (law 7); the history is bounded.
Not here: what a stage is held by now (``Stage.blocked_by``, ``Gate.reasons``).
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

import msgspec

from penstock.flow.reason import Reason

HISTORY_MAX: Final = 16
"""Ended episodes kept per stage: enough to see a pattern, small enough for 100,000 stages."""

WINDOW_MS: Final = 10_000
MEMORY_MS: Final = 1000
"""RabbitMQ's STATE_CHANGE_INTERVAL: a state lasts at least this long for whoever looks at it."""


class Episode(msgspec.Struct, frozen=True, gc=False):
    """One ended episode."""

    reason: Reason
    culprit: str
    since_ms: int
    until_ms: int
    """End of its last stall; the memory after it is not counted."""
    stalled_ms: int
    """Time truly held; less than until - since when the episode had gaps."""
    stalls: int
    ended: str = "released"
    """How: ``released``, ``refused``, ``channel-closed``, ``connection-lost`` or ``deleted``."""


class EdgeSink(Protocol):
    """Who hears of the edges; ``journal.Journal`` in a broker."""

    def entered(self, episodes: "Episodes", reason: Reason, culprit: str, at_ms: int) -> None: ...

    def left(self, episodes: "Episodes") -> None: ...

    def ended(self, episodes: "Episodes", episode: Episode) -> None: ...


class _Open:
    """An episode that is held now, or was left less than ``memory_ms`` ago."""

    __slots__ = (
        "culprit",
        "ended",
        "held_since_ms",
        "holders",
        "left_ms",
        "since_ms",
        "stalled_ms",
        "stalls",
    )

    def __init__(self, culprit: str, now_ms: int) -> None:
        self.culprit = culprit
        self.ended = "released"
        self.since_ms = now_ms
        self.held_since_ms: int | None = now_ms
        self.holders = 1
        self.left_ms = now_ms
        self.stalled_ms = 0
        self.stalls = 1


_GONE: Final = {
    "connection": "connection-lost",
    "channel": "channel-closed",
    "queue": "deleted",
}
"""Kind of stage -> how an episode ends that ends with it."""


class Episodes:
    """The stalls and episodes of one stage."""

    __slots__ = (
        "_counts",
        "_held",
        "_history",
        "_open",
        "_share",
        "_sink",
        "_stalled_ms",
        "_stalled_since_ms",
        "id",
        "kind",
        "memory_ms",
        "name",
    )

    def __init__(
        self,
        window_ms: int = WINDOW_MS,
        memory_ms: int = MEMORY_MS,
        *,
        kind: str = "",
        name: str = "",
        stage_id: str = "",
        sink: EdgeSink | None = None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.id = stage_id
        self.memory_ms = memory_ms
        # Made at the first stall, like the share: most stages never stall, an empty deque is 600
        # bytes, and there may be 100,000 stages.
        self._history: deque[Episode] | None = None
        self._sink = sink
        self._open: dict[Reason, _Open] = {}
        self._held = 0
        self._stalled_since_ms: int | None = None
        self._share: StallShare | int = window_ms
        self._counts: dict[Reason, int] = {}
        self._stalled_ms: dict[Reason, int] = {}

    def entered(self, reason: Reason, culprit: str, now_ms: int) -> bool:
        """A stall began; True when it is a new episode, False when it continues one."""
        open_ = self._open.get(reason)
        if open_ is not None:
            if open_.held_since_ms is not None:
                open_.culprit = culprit
                open_.holders += 1
                return False
            if now_ms - open_.left_ms < self.memory_ms:
                open_.held_since_ms = now_ms
                open_.holders = 1
                open_.culprit = culprit
                open_.ended = "released"  # whatever became of the stall before
                open_.stalls += 1
                self._count_held(1, now_ms)
                return False
            self._end(reason, open_)
        self._open[reason] = _Open(culprit, now_ms)
        self._counts[reason] = self._counts.get(reason, 0) + 1
        self._count_held(1, now_ms)
        if self._sink is not None:
            self._sink.entered(self, reason, culprit, now_ms)
        return True

    def left(self, reason: Reason, now_ms: int) -> Episode | None:
        """A stall is over. The episode ends ``memory_ms`` later; with no memory it is returned."""
        open_ = self._open.get(reason)
        if open_ is None or open_.held_since_ms is None:
            return None
        open_.holders -= 1
        if open_.holders:
            return None
        stalled_ms = now_ms - open_.held_since_ms
        open_.stalled_ms += stalled_ms
        open_.held_since_ms = None
        open_.left_ms = now_ms
        self._stalled_ms[reason] = self._stalled_ms.get(reason, 0) + stalled_ms
        self._count_held(-1, now_ms)
        if self.memory_ms == 0:
            return self._end(reason, open_)
        if self._sink is not None:
            self._sink.left(self)
        return None

    def settle(self, now_ms: int) -> list[Episode]:
        """End the episodes that were left more than the memory ago."""
        over = [
            (reason, open_)
            for reason, open_ in self._open.items()
            if open_.held_since_ms is None and now_ms - open_.left_ms >= self.memory_ms
        ]
        return [self._end(reason, open_) for reason, open_ in over]

    def close(self, now_ms: int) -> list[Episode]:
        """The stage is gone: every stall is left and every episode ends now."""
        for open_ in self._open.values():
            open_.holders = 1
            open_.ended = _GONE.get(self.kind, "gone")
        ended = [self.left(reason, now_ms) for reason in list(self._open)]
        rest = [self._end(reason, open_) for reason, open_ in list(self._open.items())]
        return [episode for episode in ended if episode is not None] + rest

    def refused(self, reason: Reason) -> None:
        """What was held is told no: so the episode ends, if it does not go on with the next."""
        open_ = self._open.get(reason)
        if open_ is not None:
            open_.ended = "refused"

    def reasons(self, now_ms: int) -> dict[Reason, str]:
        """Reason -> culprit of what holds the stage now or held it within the memory.

        Alarms are told apart from credit: they do not flicker, so they are shown as they are.
        """
        return {
            reason: open_.culprit
            for reason, open_ in self._open.items()
            if open_.held_since_ms is not None
            or (now_ms - open_.left_ms < self.memory_ms and not reason.is_resource)
        }

    def state(self, now_ms: int) -> str:
        """``running``, ``flow`` or ``blocked``; ``blocking`` is for its gate to say."""
        shown = self.reasons(now_ms)
        if not shown:
            return "running"
        return "blocked" if any(reason.is_resource for reason in shown) else "flow"

    def since_ms(self, now_ms: int) -> int | None:
        """When the oldest episode that is shown now began; None while running."""
        shown = self.reasons(now_ms)
        return min((self._open[reason].since_ms for reason in shown), default=None)

    def share(self, now_ms: int, window_ms: int | None = None) -> float:
        """Fraction of the last window, or a smaller one, in which some reason held the stage."""
        if isinstance(self._share, int):
            if self._stalled_since_ms is None:
                return 0.0  # a look at very many makes nothing for each of them
            self._share = StallShare(self._share)
        return self._share.share(now_ms, self._stalled_since_ms, window_ms)

    def stalls(self, now_ms: int, window_ms: int) -> int:
        """Stalls that ended in about that window; one that lasts is one more."""
        ended = 0 if isinstance(self._share, int) else self._share.ended(now_ms, window_ms)
        return ended + (self._held > 0)

    def count(self, reason: Reason) -> int:
        """Episodes begun for this reason."""
        return self._counts.get(reason, 0)

    def stalled_ms(self, reason: Reason, now_ms: int) -> int:
        """Milliseconds this reason held the stage in its whole life."""
        open_ = self._open.get(reason)
        running = 0
        if open_ is not None and open_.held_since_ms is not None:
            running = now_ms - open_.held_since_ms
        return self._stalled_ms.get(reason, 0) + running

    @property
    def history(self) -> tuple[Episode, ...]:
        """The last ended episodes, oldest first."""
        return () if self._history is None else tuple(self._history)

    @property
    def seen(self) -> tuple[Reason, ...]:
        """Every reason that ever held the stage: the label values of its metrics."""
        return tuple(self._counts)

    def unfinished(self, now_ms: int) -> list[tuple[Reason, int]]:
        """(reason, time held so far) of every episode that is open: what no edge has told yet."""
        return [
            (reason, open_.stalled_ms + (0 if (at := open_.held_since_ms) is None else now_ms - at))
            for reason, open_ in self._open.items()
        ]

    @property
    def is_stalled(self) -> bool:
        """True while it is held, at this very moment."""
        return self._held > 0

    @property
    def ends_ms(self) -> int | None:
        """When ``settle`` has the next one to end; None while nothing is left."""
        left = [each.left_ms for each in self._open.values() if each.held_since_ms is None]
        return min(left) + self.memory_ms if left else None

    @property
    def is_lingering(self) -> bool:
        """True while some episode is open, so that ``settle`` will have something to end."""
        return bool(self._open)

    def _count_held(self, change: int, now_ms: int) -> None:
        before, self._held = self._held, self._held + change
        if before == 0:
            self._stalled_since_ms = now_ms
        elif self._held == 0 and self._stalled_since_ms is not None:
            if now_ms > self._stalled_since_ms:
                if isinstance(self._share, int):
                    self._share = StallShare(self._share)
                self._share.add(self._stalled_since_ms, now_ms)
            self._stalled_since_ms = None

    def _end(self, reason: Reason, open_: _Open) -> Episode:
        del self._open[reason]
        episode = Episode(
            reason,
            open_.culprit,
            open_.since_ms,
            open_.left_ms,
            open_.stalled_ms,
            open_.stalls,
            open_.ended,
        )
        if self._history is None:
            self._history = deque(maxlen=HISTORY_MAX)
        self._history.append(episode)
        if self._sink is not None:
            self._sink.ended(self, episode)
        return episode


# ---- stall share --------------------------------------------------------------------------------
# How much of the last ten seconds was spent standing still.
#
# Stalls may begin and end hundreds of times a second, so they are not kept one by one: the window
# is cut into slots and each slot holds the milliseconds stalled in it, and how many stalls ended in
# it. Memory is fixed, the answer is exact except in the oldest slot, which counts in proportion to
# the part of it still in the window.


SLOTS: Final = 20
"""Half a second each with the default window: the error is at most one slot in twenty."""


class StallShare:
    """Stalled milliseconds of a sliding window."""

    __slots__ = ("_ended", "_newest", "_slot_ms", "_slots", "window_ms")

    def __init__(self, window_ms: int) -> None:
        self._slot_ms = max(1, -(-window_ms // SLOTS))
        self.window_ms = self._slot_ms * SLOTS
        self._slots = [0] * (SLOTS + 1)
        self._ended = [0] * (SLOTS + 1)
        # Number of the newest slot written; slot k covers [k * slot_ms, (k + 1) * slot_ms).
        self._newest = -1

    def add(self, since_ms: int, until_ms: int) -> None:
        """Count one stall; stalls are added in the order in which they end and do not overlap."""
        slot_ms = self._slot_ms
        since_ms = max(since_ms, until_ms - self.window_ms)
        self._forget(until_ms // slot_ms)
        self._ended[until_ms // slot_ms % len(self._ended)] += 1
        while since_ms < until_ms:
            number = since_ms // slot_ms
            stop_ms = min(until_ms, (number + 1) * slot_ms)
            self._slots[number % len(self._slots)] += stop_ms - since_ms
            since_ms = stop_ms

    def stalled_ms(
        self, now_ms: int, open_since_ms: int | None = None, window_ms: int | None = None
    ) -> int:
        """Milliseconds stalled in the window that ends now, a stall still open included.

        A smaller window than the whole may be asked for.
        """
        slot_ms = self._slot_ms
        window_ms = self.window_ms if window_ms is None else min(window_ms, self.window_ms)
        self._forget(now_ms // slot_ms)
        start_ms = now_ms - window_ms
        oldest = start_ms // slot_ms
        count = len(self._slots)
        total = sum(self._slots[number % count] for number in range(oldest, self._newest + 1))
        # The oldest slot sticks out of the window at its far end: count only the part inside.
        outside_ms = start_ms - oldest * slot_ms
        total -= self._slots[oldest % count] * outside_ms // slot_ms
        if open_since_ms is not None:
            total += max(0, now_ms - max(open_since_ms, start_ms))
        return min(total, window_ms)

    def ended(self, now_ms: int, window_ms: int) -> int:
        """Stalls that ended in about that window, short as they may have been."""
        self._forget(now_ms // self._slot_ms)
        oldest = (now_ms - min(window_ms, self.window_ms)) // self._slot_ms
        count = len(self._ended)
        return sum(self._ended[number % count] for number in range(oldest, self._newest + 1))

    def share(
        self, now_ms: int, open_since_ms: int | None = None, window_ms: int | None = None
    ) -> float:
        """The same as a fraction between 0 and 1."""
        whole_ms = self.window_ms if window_ms is None else min(window_ms, self.window_ms)
        return self.stalled_ms(now_ms, open_since_ms, window_ms) / whole_ms

    def _forget(self, number: int) -> None:
        """Empty the slots that the window has left since the newest one written."""
        if number <= self._newest:
            return
        count = len(self._slots)
        for passed in range(max(self._newest + 1, number - count + 1), number + 1):
            self._slots[passed % count] = self._ended[passed % count] = 0
        self._newest = number


# ---- journal ------------------------------------------------------------------------------------
# The journal: the turn's time, and the edges of every stage's episodes, in one place.
#
# Who writes: the engine calls ``tick`` once per turn, so that a stage blocked deep inside a
# credit's arithmetic knows when it happened without reading a clock or being handed the time at
# every spend. Who reads: the server takes the edges (``take_edges``) to log them, count them and
# tell them in the system topic ``penstock.flow``.
#
# Invariants: time never goes back; an edge not taken in time is dropped and counted.


EDGES_MAX: Final = 4096
"""Edges waiting to be taken. Each stage makes at most two per second and reason."""

SETTLE_EVERY_MS: Final = 100
"""Episodes end in steps of it, so that very many make few turns: lateness of a 'left' line in the
log."""

SETTLED_AT_ONCE: Final = 200
"""Stages whose episodes end in one tick: half a millisecond. The end of an alarm makes thousands of
them due at once; the others come with the next ticks."""


class FlowEdge(msgspec.Struct, frozen=True, gc=False):
    """A stage entered (``episode`` is None) or left an episode."""

    kind: str
    name: str
    reason: Reason
    culprit: str
    at_ms: int
    episode: Episode | None = None
    stage_id: str = ""
    since_ms: int = 0
    """When the episode began."""


class Journal:
    """Time and edges shared by all stages of one engine."""

    __slots__ = (
        "_due",
        "_edges",
        "_leaving",
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
        # Of those, the ones that may have something to end, and when: five thousand publishers whom
        # an alarm holds for an hour need no look until then, nor when it is over before their time.
        self._leaving: dict[Episodes, int] = {}
        self._due: dict[int, dict[Episodes, None]] = {}

    def tick(self, now_ms: int) -> None:
        if now_ms <= self.now_ms:
            return
        self.now_ms = now_ms
        left = SETTLED_AT_ONCE
        while self._due and left > 0 and (due_ms := min(self._due)) <= now_ms:
            for episodes in list(islice(self._due[due_ms], left)):
                left -= 1
                self._disarm(episodes)
                episodes.settle(now_ms)
                # It may have been held again meanwhile, and left again later.
                self._arm(episodes)

    def episodes(self, kind: str, name: str, stage_id: str = "") -> Episodes:
        """A stage's history that reports here."""
        return Episodes(
            self.window_ms, self.memory_ms, kind=kind, name=name, stage_id=stage_id, sink=self
        )

    def take_edges(self, count_max: int = EDGES_MAX) -> list[FlowEdge]:
        """The edges since the last call, oldest first; of more than so many the first."""
        edges = self._edges
        return [edges.popleft() for _ in range(min(count_max, len(edges)))]

    def unfinished(self, now_ms: int) -> Iterator[tuple[str, Reason, int]]:
        """(kind, reason, time held so far) of every open episode of any stage."""
        for episodes in list(self.open):
            for reason, held_ms in episodes.unfinished(now_ms):
                yield episodes.kind, reason, held_ms

    @property
    def next_deadline_ms(self) -> int | None:
        """When ``tick`` may have something to end; None while no stall is over."""
        # What was left over has to wait for the next millisecond: that is a tick.
        return max(min(self._due), self.now_ms + 1) if self._due else None

    def entered(self, episodes: Episodes, reason: Reason, culprit: str, at_ms: int) -> None:
        """An episode began (called by ``Episodes``)."""
        self.open[episodes] = None
        self._note(
            FlowEdge(
                episodes.kind,
                episodes.name,
                reason,
                culprit,
                at_ms,
                stage_id=episodes.id,
                since_ms=at_ms,
            )
        )

    def left(self, episodes: Episodes) -> None:
        """A stall is over, and its episode may be (called by ``Episodes``)."""
        # A hundred stalls a second arm it once: whether it was held again is seen when it is due.
        if episodes not in self._leaving:
            self._arm(episodes)

    def ended(self, episodes: Episodes, episode: Episode) -> None:
        """An episode is over (called by ``Episodes``)."""
        if not episodes.is_lingering:
            self.open.pop(episodes, None)
            self._disarm(episodes)
        self._note(
            FlowEdge(
                episodes.kind,
                episodes.name,
                episode.reason,
                episode.culprit,
                episode.until_ms,
                episode,
                episodes.id,
                episode.since_ms,
            )
        )

    def _arm(self, episodes: Episodes) -> None:
        ends_ms = episodes.ends_ms
        if ends_ms is not None:
            ends_ms += -ends_ms % SETTLE_EVERY_MS
            self._leaving[episodes] = ends_ms
            self._due.setdefault(ends_ms, {})[episodes] = None

    def _disarm(self, episodes: Episodes) -> None:
        ends_ms = self._leaving.pop(episodes, None)
        if ends_ms is not None:
            due = self._due[ends_ms]
            del due[episodes]
            if not due:
                del self._due[ends_ms]

    def _note(self, edge: FlowEdge) -> None:
        if len(self._edges) >= EDGES_MAX:
            self._edges.popleft()
            self.edges_dropped += 1
        self._edges.append(edge)
