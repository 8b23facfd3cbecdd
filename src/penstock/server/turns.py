"""Who calls the engine, and when: turns on the loop, timers, and one commit beside it (D8).

* **A turn per batch of arrivals.** Whoever has something for the engine calls ``request``; the
  first call schedules a turn with ``call_soon``, the rest join it. The loop polls its sockets
  between two turns, so all that is readable is received before the next turn, and HTTP is answered
  however busy the broker is.
* **Not too many small ones.** A turn costs nearly the same for one message as for fifty: while many
  come in small pieces, turns keep their distance (``pace.py``), and what arrives meanwhile waits as
  bytes in its pump.
* **First the bytes**: every connection that stirred gives its adapter all that arrived, at once
  (``pump.feed``). Then the engine's turn.
* **Then one look at every connection that stirred**: one joined write each (``pump.flush``).
* **Timers.** One loop timer, armed for ``engine.next_deadline_ms()``.
* **Last the commit.** One sync at a time, in the commit thread; when it returns, confirms leave at
  once and the next sync starts with everything that gathered meanwhile (``commit_policy.py``,
  ``sync_pace.py``).
  Last, because from then on the commit thread wants the interpreter, too.

A sync that failed is never tried again (P4): the engine refuses what it covered, the refusals are
written, and ``failed`` is told, which stops the process. An exception out of the engine is our own
mistake and ends the process too: prefer a stop to a lie.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError, SyncFailed
from penstock.server.commit_policy import CommitPolicy
from penstock.server.commit_thread import CommitThread, Outcome
from penstock.server.pace import Pace
from penstock.server.sync_pace import SyncPace
from penstock.telemetry.statistics import COMMIT_MESSAGES, SYNC_SECONDS, Histogram

if TYPE_CHECKING:
    from penstock.log.commit import SyncJob

logger = logging.getLogger(__name__)


TIMER_GRAIN_US: Final = 1000
"""uvloop's timers are whole milliseconds and may be early by one; ``arrived`` is exact."""


class Driven(Protocol):
    """The part of the engine that has to be driven."""

    @property
    def needs_turn(self) -> bool:
        """True when a turn would move something."""
        ...

    @property
    def appended_messages(self) -> int:
        """Messages appended since the start."""
        ...

    @property
    def unsynced_messages(self) -> int:
        """Messages appended and not durable."""
        ...

    @property
    def unsynced_bytes(self) -> int:
        """Bytes appended and not durable."""
        ...

    @property
    def is_durability_awaited(self) -> bool:
        """True when somebody waits for a definition or settlement to become durable (D6)."""
        ...

    def turn(self) -> None:
        """Run one turn."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When a turn is wanted without any arrival; monotonic."""
        ...

    def next_sync_ms(self) -> int | None:
        """From when on there is a commit to make; None = nothing waits, or one is out."""
        ...

    def take_sync_job(self) -> "SyncJob | None":
        """The next commit, if anything wants one."""
        ...

    def synced(self, job: "SyncJob", error: Exception | None) -> None:
        """The commit returned."""
        ...


class Stirred(Protocol):
    """A connection that something happened to."""

    def feed(self) -> None:
        """Give the adapter what has arrived; never raises."""
        ...

    def flush(self) -> None:
        """Write what is outgoing and look at the adapter's wishes; never raises."""
        ...


class Turns:
    """Drives one engine on one event loop."""

    def __init__(
        self,
        engine: Driven,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        policy: CommitPolicy,
        sync_pace: SyncPace,
        *,
        failed: Callable[[PenstockError], None],
        before_sync: Callable[[], None] | None = None,
        make_commits: "Callable[..., CommitThread[SyncJob]]" = CommitThread,
        pace: Pace | None = None,
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._clock = clock
        self._policy = policy
        self._failed = failed
        self._commits = make_commits(loop, self._synced, before_sync)
        self._stirred: list[Stirred] = []
        self._is_scheduled = False
        self._pace = pace or Pace()
        self.sync_pace = sync_pace
        self.gathering: asyncio.TimerHandle | None = None
        """A turn that keeps its distance to the last one."""
        self._is_stopped = self._is_committing = False
        self._waiting_since_ms: int | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._linger_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._idle: asyncio.Future[None] | None = None
        self.count = 0
        self.paced = 0
        """Turns that waited for company."""
        self.sync_seconds = Histogram(SYNC_SECONDS)
        self.commit_messages = Histogram(COMMIT_MESSAGES)

    def start(self) -> None:
        """Start the commit thread and take the first turn."""
        self._commits.start()
        self.request()

    def stir(self, connection: Stirred) -> None:
        """Look at ``connection`` at the end of the next turn; it calls this once per look."""
        self._stirred.append(connection)
        self.request()

    def request(self) -> None:
        """Ask for a turn; many requests are one turn."""
        if not self._is_scheduled and not self._is_stopped:
            self._is_scheduled = True
            if wait_us := self._wait_us():
                self.paced += 1
                seconds = (wait_us + TIMER_GRAIN_US) / 1e6
                self.gathering = self._loop.call_later(seconds, self._turn)
            else:
                self._loop.call_soon(self._turn)

    def arrived(self) -> None:
        """Bytes came while ``gathering``: look whether the turn has waited enough."""
        if self.gathering is not None and self._pace.left_us <= 0:
            self.gathering.cancel()
            self.gathering = None
            self._loop.call_soon(self._turn)

    async def drain(self, seconds_max: float) -> bool:
        """Take turns and commits until nothing is left; False when that cannot be had."""
        if self._is_stopped:
            return False
        self._idle = self._loop.create_future()
        self._waiting_since_ms = None
        self.request()
        try:
            await asyncio.wait_for(self._idle, seconds_max)
        except TimeoutError:
            return False
        finally:
            self._idle = None
        return True

    def stop(self, seconds_max: float) -> bool:
        """No more turns; ends the commit thread. False when a sync still hangs."""
        self._is_stopped = True
        for timer in (self._linger, self._timer, self.gathering):
            if timer is not None:
                timer.cancel()
        return self._commits.stop(seconds_max)

    def _turn(self) -> None:
        if self.gathering is not None:
            self.gathering.cancel()
            self.gathering = None
        if self._is_stopped:
            return
        try:
            self.count += 1
            self._pace.turned()
            self._is_scheduled = True  # who is stirred by what happens now has this turn
            for connection in self._stirred:
                connection.feed()
            if not self._is_stopped:  # by a mistake that one of them found
                self._engine.turn()
                self._is_scheduled = False
                if self._policy.reached(self._engine.appended_messages, self._clock.monotonic_ms()):
                    self.sync_pace.brought()
                self._after()
                self._pace.ended()
        except Exception as error:
            self.broken(error)

    def _wait_us(self) -> int:
        """How long a turn that is asked for now waits for company."""
        engine = self._engine
        if self._idle is not None or not self._policy.is_little(
            engine.unsynced_messages, engine.unsynced_bytes
        ):
            return 0
        return self._pace.wait_us(self._policy.messages_per_ms)

    def _flush(self) -> None:
        stirred, self._stirred = self._stirred, []
        for connection in stirred:
            connection.flush()

    def _after(self) -> None:
        """What follows every turn and every sync: writes, the next turn or timer, the commit."""
        self._flush()
        if self._engine.needs_turn:
            self.request()
        if not self._is_scheduled:  # else that turn looks when the next one is wanted
            self._arm()
        self._commit()
        if self._idle is not None and not self._idle.done() and self._is_idle:
            self._idle.set_result(None)

    @property
    def _is_idle(self) -> bool:
        return not (self._is_committing or self._is_scheduled or self._stirred)

    def _commit(self, at_least_ms: int = 0) -> None:
        if self._is_committing or self._is_stopped:
            return
        engine = self._engine
        due_ms = engine.next_sync_ms()
        if due_ms is None:
            self._waiting_since_ms = None
            return
        now_ms = max(self._clock.monotonic_ms(), at_least_ms)
        if due_ms <= now_ms and not at_least_ms:
            due_ms = self._commit_due_ms(now_ms)
        if due_ms <= now_ms:
            self._begin_commit()
        else:
            self._linger_until(due_ms, now_ms)

    def _commit_due_ms(self, now_ms: int) -> int:
        """When a commit that is wanted now begins: little may wait for company."""
        engine, policy = self._engine, self._policy
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        is_awaited = engine.is_durability_awaited or self._idle is not None
        if is_awaited or not policy.is_little(engine.unsynced_messages, engine.unsynced_bytes):
            return now_ms
        due_ms = self._waiting_since_ms + policy.linger_ms
        if left_us := self.sync_pace.left_us(policy.messages_per_ms):
            # A turn will find the time come; the timer is for when none does.
            due_ms = max(due_ms, now_ms + 1 + left_us // 1000)
        return due_ms

    def _linger_until(self, due_ms: int, now_ms: int) -> None:
        if self._linger is not None:
            if self._linger_ms <= due_ms:
                return
            self._linger.cancel()
        self._linger_ms = due_ms
        self._linger = self._loop.call_later((due_ms - now_ms) / 1000, self._lingered)

    def _lingered(self) -> None:
        self._linger = None
        # A loop whose timers are exact to a millisecond may fire a little early: it is time anyway.
        self._commit(at_least_ms=self._linger_ms)

    def _begin_commit(self) -> None:
        self._waiting_since_ms = None
        messages = self._engine.unsynced_messages
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        job = self._engine.take_sync_job()
        if job is None:
            # The store's own clock is a moment behind; without this nobody would ask again.
            if (due_ms := self._engine.next_sync_ms()) is not None:
                now_ms = self._clock.monotonic_ms()
                self._linger_until(max(due_ms, now_ms + 1), now_ms)
            return
        self._is_committing = True
        self.sync_pace.began()
        self.commit_messages.observe(messages)
        self._commits.submit(job, self.sync_pace.is_middling(self._policy.messages_per_ms))

    def _synced(self, outcome: "Outcome[SyncJob]") -> None:
        self._is_committing = False
        self.sync_seconds.observe(outcome.seconds)
        self.sync_pace.ended(outcome.seconds)
        try:
            # Who is stirred by it is looked at right behind it, and needs no turn for that.
            is_scheduled, self._is_scheduled = self._is_scheduled, True
            self._engine.synced(outcome.job, outcome.error)
            self._is_scheduled = is_scheduled
            if outcome.error is None:
                self._after()
                return
            # The refusals leave before anybody learns that the process goes down.
            self._engine.turn()
            self._flush()
            self._failed(_sync_failed(outcome.error))
        except Exception as error:
            self.broken(error)

    def _arm(self) -> None:
        due_ms = self._engine.next_deadline_ms()
        if due_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return  # it fires earlier, finds nothing due and is armed again
            self._timer.cancel()
        self._timer_ms = due_ms
        delay_ms = max(0, due_ms - self._clock.monotonic_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        self._turn()

    def broken(self, error: Exception) -> None:
        """Our own mistake: no further turn, and the process is told to end."""
        if self._is_stopped:
            return
        self._is_stopped = True
        logger.critical("the engine failed; the broker stops rather than lies", exc_info=error)
        if not isinstance(error, PenstockError):
            error = PenstockError(
                f"the broker stopped at a mistake of its own ({type(error).__name__}: {error}); "
                "what was confirmed is on disk; please report the log lines above"
            )
        self._failed(error)


def _sync_failed(error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return SyncFailed(
        f"the disk failed a sync ({error}); what it covered was not confirmed; "
        "check the disk, then start again: the log recovers to what is durable"
    )
