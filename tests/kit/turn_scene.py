"""Turns driven by hand: a commit thread, connections and a pace that do as they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.model.errors import PenstockError
from penstock.server.pacing import PACE_MAX_US, Pacing
from penstock.server.turns import SyncOutcome, Turns
from penstock.settings.broker import StorageSettings
from penstock.testing.clock import ManualClock


class HandCommits:
    """A commit thread that ends a job when the test says so."""

    def __init__(self, loop: Any, done: Callable[[SyncOutcome], None], before: Any) -> None:
        self.done = done
        self.under_way: list[Any] = []
        self.has_given_way = False

    def start(self) -> None:
        """There is no thread."""

    def submit(self, job: Any, gives_way: bool = False) -> None:
        """Keep it."""
        assert not self.under_way, "one sync in flight"
        self.under_way.append(job)
        self.has_given_way = gives_way

    def stop(self, seconds_max: float) -> bool:
        """False while a job is out."""
        return not self.under_way

    def end(self, error: Exception | None = None) -> None:
        """The job that is out comes back."""
        self.done(SyncOutcome(self.under_way.pop(), error, 0.001))


class CountingConnection:
    """Counts how often it is looked at, and does what the test says then."""

    def __init__(self, on_flush: Callable[[], object] = lambda: None) -> None:
        self.flushes = 0
        self.on_flush = on_flush
        self.on_feed: Callable[[], object] = lambda: None

    def feed(self) -> None:
        """The turn begins."""
        self.on_feed()

    def flush(self) -> None:
        """The turn ends."""
        self.flushes += 1
        self.on_flush()


class LongestPacing(Pacing):
    """For turns that take no time: the pace is as long as it may be."""

    def turn_ended(self) -> None:
        """As if it had taken that long."""
        self._pace_us = PACE_MAX_US


class TurnScene:
    """Turns on a loop that runs by hand.

    ``commits`` turns brought ``each`` messages in the last millisecond, and the disk is slow. Only
    ``is_paced`` ones keep their distance; for others every look at the clock is long after the last
    turn.
    """

    def __init__(
        self,
        engine: Any,
        loop: Any,
        clock: ManualClock,
        *,
        commits: int = 20,
        each: int = 100,
        is_paced: bool = False,
        **storage: Any,
    ) -> None:
        self.engine = engine
        self.loop = loop
        self.failures: list[PenstockError] = []
        self.commits: Any = None
        settings = StorageSettings(**storage)
        self.now_us = 1_000_000
        self.is_paced = is_paced
        pacing = LongestPacing(settings, self.now_ns)
        for count in range(commits):
            pacing.appended(each * (count + 1), clock.monotonic_ms())
        engine.appended_messages = each * commits
        for _ in range(100):
            pacing.sync_ended(1)
        self.turns = Turns(
            engine,
            loop,
            clock,
            pacing,
            failed=self.failures.append,
            make_commits=self._make_commits,
        )

    def now_ns(self) -> int:
        """The clock of the pacing."""
        if not self.is_paced:
            self.now_us += PACE_MAX_US
        return self.now_us * 1000

    def _make_commits(self, *arguments: Any) -> Any:
        self.commits = HandCommits(*arguments)
        return self.commits
