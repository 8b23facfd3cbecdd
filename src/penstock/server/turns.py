"""Who calls the engine, and when: turns on the loop, timers, and one commit beside it (D8).

* **A turn per batch of arrivals.** Whoever has something for the engine calls ``request_turn``; the
  first call schedules a turn with ``call_soon``, the rest join it. The loop polls its sockets
  between two turns, so all that is readable is received before the next turn, and HTTP is answered
  however busy the broker is.
* **Not too many small ones.** A turn costs nearly the same for one message as for fifty: while many
  come in small pieces, turns keep their distance (``pacing.py``), and what arrives meanwhile waits
  as bytes in its pump.
* **First the bytes**: every scheduled connection gives its adapter all that arrived, at once
  (``pump.feed``). Then the engine's turn.
* **Then one look at every scheduled connection**: one joined write each (``pump.flush``).
* **Timers.** One loop timer, armed for ``engine.next_deadline_ms()``.
* **Last the commit.** One sync at a time, in the commit thread; when it returns, confirms leave at
  once and the next sync starts with everything that gathered meanwhile (``pacing.py``).
  Last, because from then on the commit thread wants the interpreter, too.

A sync that failed is never tried again (P4): the engine refuses what it covered, the refusals are
written, and ``failed`` is called, which stops the process. An exception out of the engine is our
own mistake and ends the process too: prefer a stop to a lie.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError, SyncFailed
from penstock.server.pacing import Pacing
from penstock.telemetry.statistics import COMMIT_MESSAGES, SYNC_SECONDS, Histogram

if TYPE_CHECKING:
    from penstock.engine.broker import Engine
    from penstock.log.commit import SyncJob


logger = logging.getLogger(__name__)


TIMER_GRAIN_US: Final = 1000
"""uvloop's timers are whole milliseconds and may be early by one; ``data_arrived`` is exact."""


class TurnConnection(Protocol):
    """A connection that a turn serves: bytes in at its beginning, bytes out at its end."""

    def feed(self) -> None:
        """Give the adapter what has arrived; never raises."""
        ...

    def flush(self) -> None:
        """Write what is outgoing and look at the adapter's wishes; never raises."""
        ...


class Turns:
    """Drives one engine on one event loop: turns, its timer and its commits.

    Everything that touches the engine runs in a turn or between two of them, on the loop's thread.
    At most one turn is scheduled and at most one sync is out at any time. It decides nothing about
    messages, and nothing about time but through ``pacing``.
    """

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        pacing: Pacing,
        *,
        failed: Callable[[PenstockError], None],
        before_sync: Callable[[], None] | None = None,
        after_turn: Callable[[], None] | None = None,
        make_commits: Callable[..., CommitThread] | None = None,
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._clock = clock
        self.pacing: Final = pacing
        self._failed = failed
        self._after_turn = after_turn or (lambda: None)
        self._commits = (make_commits or CommitThread)(loop, self._synced, before_sync)
        self._scheduled: list[TurnConnection] = []
        self._is_scheduled = False
        self.delayed: asyncio.TimerHandle | None = None
        """A turn that keeps its distance to the last one."""
        self._is_stopped = self._is_committing = False
        self._waiting_since_ms: int | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._linger_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._idle: asyncio.Future[None] | None = None
        self.count = 0
        self.turns_delayed = 0
        """Turns that waited for company."""
        self.sync_seconds = Histogram(SYNC_SECONDS)
        self.commit_messages = Histogram(COMMIT_MESSAGES)

    def start(self) -> None:
        """Start the commit thread and take the first turn."""
        self._commits.start()
        self.request_turn()

    def schedule(self, connection: TurnConnection) -> None:
        """Serve ``connection`` in the next turn; it calls this once per turn."""
        self._scheduled.append(connection)
        self.request_turn()

    def request_turn(self) -> None:
        """Ask for a turn; many requests are one turn."""
        if not self._is_scheduled and not self._is_stopped:
            self._is_scheduled = True
            if wait_us := self._wait_us():
                self.turns_delayed += 1
                seconds = (wait_us + TIMER_GRAIN_US) / 1e6
                self.delayed = self._loop.call_later(seconds, self._turn)
            else:
                self._loop.call_soon(self._turn)

    def data_arrived(self) -> None:
        """Bytes came while a turn is ``delayed``: it may have waited enough."""
        if self.delayed is not None and self.pacing.turn_left_us <= 0:
            self.delayed.cancel()
            self.delayed = None
            self._loop.call_soon(self._turn)

    async def drain(self, seconds_max: float) -> bool:
        """Take turns and commits until nothing is left; False when that cannot be had."""
        if self._is_stopped:
            return False
        self._idle = self._loop.create_future()
        self._waiting_since_ms = None
        self.request_turn()
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
        for timer in (self._linger, self._timer, self.delayed):
            if timer is not None:
                timer.cancel()
        return self._commits.stop(seconds_max)

    def _turn(self) -> None:
        if self.delayed is not None:
            self.delayed.cancel()
            self.delayed = None
        if self._is_stopped:
            return
        try:
            self.count += 1
            self.pacing.turn_began()
            self._is_scheduled = True  # who is scheduled by what happens now has this turn
            for connection in self._scheduled:
                connection.feed()
            if not self._is_stopped:  # by a mistake that one of them found
                self._engine.turn()
                self._is_scheduled = False
                self._after_turn()
                self.pacing.appended(self._engine.appended_messages, self._clock.monotonic_ms())
                self._after()
                self.pacing.turn_ended()
        except Exception as error:
            self.broken(error)

    def _wait_us(self) -> int:
        """How long a turn that is asked for now waits for company."""
        engine = self._engine
        if self._idle is not None or not self.pacing.is_small(
            engine.unsynced_messages, engine.unsynced_bytes
        ):
            return 0
        return self.pacing.turn_wait_us()

    def _flush(self) -> None:
        connections, self._scheduled = self._scheduled, []
        for connection in connections:
            connection.flush()

    def _after(self) -> None:
        """What follows every turn and every sync: writes, the next turn or timer, the commit."""
        self._flush()
        if self._engine.needs_turn:
            self.request_turn()
        if not self._is_scheduled:  # else that turn looks when the next one is wanted
            self._arm()
        self._commit()
        if self._idle is not None and not self._idle.done() and self._is_idle:
            self._idle.set_result(None)

    @property
    def _is_idle(self) -> bool:
        return not (self._is_committing or self._is_scheduled or self._scheduled)

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
        engine, pacing = self._engine, self.pacing
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        is_awaited = engine.is_durability_awaited or self._idle is not None
        if is_awaited or not pacing.is_small(engine.unsynced_messages, engine.unsynced_bytes):
            return now_ms
        due_ms = self._waiting_since_ms + pacing.linger_ms
        if left_us := pacing.sync_wait_us():
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
        self.pacing.sync_began()
        self.commit_messages.observe(messages)
        self._commits.submit(job, self.pacing.is_rate_middling)

    def _synced(self, outcome: SyncOutcome) -> None:
        self._is_committing = False
        self.sync_seconds.observe(outcome.seconds)
        self.pacing.sync_ended(outcome.seconds)
        try:
            # Who is scheduled by it is looked at right behind it, and needs no turn for that.
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


# ---- commit thread ------------------------------------------------------------------------------
# The one thread that waits for the disk (D8): a sync job in, done or failed out.
#
# At most one job is under way; ``Turns`` sees to that and ``submit`` asserts it. The thread
# calls ``before`` (faults on purpose), then ``job.run()``, and posts the outcome to the loop;
# nothing of the engine is ever touched from here.
#
# Two threads share one interpreter, and the one that runs keeps it for up to 5 ms: a loop with
# something to do would begin its next turn while the sync it has asked for still waits to begin
# (0.4 ms in the mean at 4,000 messages/s, 0.5 to 0.8 ms at the 95th percentile). So ``submit`` can
# give way: it returns when the thread has taken the job, some 0.07 ms later, or after
# ``HAND_OVER_S``. At such rates the loop has that time; at high ones it would be 3 to 8 % of what
# the broker can do. To make the 5 ms shorter instead was tried without effect.
#
# Not here: when a commit starts (``pacing.py``), what a job does (``log/commit.py``).


HAND_OVER_S: Final = 0.0003
"""How long the loop gives way at most; a thread that takes longer is not waited for."""


class SyncOutcome(NamedTuple):
    """What became of a job."""

    job: SyncJob
    error: Exception | None
    seconds: float
    """How long the disk took, for ``penstock_fsync_seconds``."""


class CommitThread:
    """Runs one sync job at a time beside the event loop, and reports each outcome on the loop.

    It never touches the engine. A job that fails is reported like any other; nothing is retried.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[SyncOutcome], None],
        before: Callable[[], None] | None = None,
    ) -> None:
        self._loop = loop
        self._done = done
        self._before = before
        self._jobs: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._is_busy = False
        self._taken = threading.Lock()
        """Let go by the thread when it has taken a job."""
        # A daemon: a disk that never answers must not keep a process that was told to stop.
        self._thread: Final = threading.Thread(
            target=self._run, name="penstock-commit", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: SyncJob, gives_way: bool = False) -> None:
        """Run ``job`` in the thread; ``done`` is called in the loop when it ended."""
        assert not self._is_busy, "one sync in flight (D8)"
        self._is_busy = True
        self._taken.acquire(blocking=False)  # it is free when nobody waited for the last job
        self._jobs.put(job)
        if gives_way:
            self._taken.acquire(timeout=HAND_OVER_S)

    def stop(self, seconds_max: float) -> bool:
        """End the thread after the job under way; False when the disk did not answer in time."""
        self._jobs.put(None)
        self._thread.join(seconds_max)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._taken.release()
            started = time.perf_counter()
            error: Exception | None = None
            try:
                if self._before is not None:
                    self._before()
                job.run()
            except Exception as failure:  # any failure means "not durable"; the loop decides
                error = failure
            outcome = SyncOutcome(job, error, time.perf_counter() - started)
            try:
                self._loop.call_soon_threadsafe(self._finished, outcome)
            except RuntimeError:  # the loop is closed: the process is ending without us
                return

    def _finished(self, outcome: SyncOutcome) -> None:
        self._is_busy = False
        self._done(outcome)
