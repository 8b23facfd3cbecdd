"""Episodes: a stage's history of being held, told so that a person can use it.

Who writes: ``Stage`` and ``Gate`` at every stall and release. Who reads: ``journal`` (edges),
metrics (stalled seconds by reason) and the flow page (since when, share of the last 10 s).

Credit may stop and release a stage hundreds of times a second. Each of those *stalls* is counted
with its exact time; but they belong to one *episode* as long as the next one begins within
``memory_ms`` of the last one's end. Only the edges of episodes are events, so neither log nor
dashboard flickers, and an episode is reported once however many messages it concerned.

A reason may have several holders at once (a stage's credit and its gate): each enters and leaves
once, and the stall lasts from the first to the last of them.

Invariants: at most one episode per reason is open; everything entered is left exactly once, also
when the stage dies (law 7); the history is bounded.
Not here: what a stage is held by now (``stage.blocked_by``, ``gate.reasons``).
"""

from collections import deque
from typing import Final, Protocol

import msgspec

from penstock.flow.reason import Reason
from penstock.flow.stall_share import StallShare

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


class EdgeSink(Protocol):
    """Who hears of the edges; ``journal.Journal`` in a broker."""

    def entered(self, episodes: "Episodes", reason: Reason, culprit: str, at_ms: int) -> None:
        """An episode began."""
        ...

    def ended(self, episodes: "Episodes", episode: Episode) -> None:
        """An episode is over."""
        ...


class _Open:
    """An episode that is held now, or was left less than ``memory_ms`` ago."""

    __slots__ = (
        "culprit",
        "held_since_ms",
        "holders",
        "left_ms",
        "since_ms",
        "stalled_ms",
        "stalls",
    )

    def __init__(self, culprit: str, now_ms: int) -> None:
        self.culprit = culprit
        self.since_ms = now_ms
        self.held_since_ms: int | None = now_ms
        self.holders = 1
        self.left_ms = now_ms
        self.stalled_ms = 0
        self.stalls = 1


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
        sink: EdgeSink | None = None,
    ) -> None:
        self.kind = kind
        self.name = name
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
        ended = [self.left(reason, now_ms) for reason in list(self._open)]
        rest = [self._end(reason, open_) for reason, open_ in list(self._open.items())]
        return [episode for episode in ended if episode is not None] + rest

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
            reason, open_.culprit, open_.since_ms, open_.left_ms, open_.stalled_ms, open_.stalls
        )
        if self._history is None:
            self._history = deque(maxlen=HISTORY_MAX)
        self._history.append(episode)
        if self._sink is not None:
            self._sink.ended(self, episode)
        return episode
