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

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from math import exp
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError, SyncFailed
from penstock.settings.broker import StorageSettings
from penstock.telemetry.statistics import COMMIT_MESSAGES, SYNC_SECONDS, Histogram

if TYPE_CHECKING:
    from penstock.log.commit import SyncJob


# ---- commit thread ------------------------------------------------------------------------------
# The one thread that waits for the disk (D8): a sync job in, done or failed out.
#
# At most one job is under way; ``turns.py`` sees to that and ``submit`` asserts it. The thread
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
# Not here: when a commit starts (``commit_policy.py``), what a job does (``log/store.py``).


HAND_OVER_S: Final = 0.0003
"""How long the loop gives way at most; a thread that takes longer is not waited for."""


class Job(Protocol):
    """Something that blocks on the disk; raises when the disk says no."""

    def run(self) -> None:
        """Do it; called in the commit thread."""
        ...


J = TypeVar("J", bound=Job)


class Outcome(NamedTuple, Generic[J]):
    """What became of a job."""

    job: J
    error: Exception | None
    seconds: float
    """How long the disk took, for ``penstock_fsync_seconds``."""


class CommitThread(Generic[J]):
    """Runs one job at a time beside the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[Outcome[J]], None],
        before: Callable[[], None] | None = None,
    ) -> None:
        self._loop = loop
        self._done = done
        self._before = before
        self._jobs: SimpleQueue[J | None] = SimpleQueue()
        self._is_busy = False
        self._taken = threading.Lock()
        """Let go by the thread when it has taken a job."""
        # A daemon: a disk that never answers must not keep a process that was told to stop.
        self._thread: Final = threading.Thread(
            target=self._run, name="penstock-commit", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: J, gives_way: bool = False) -> None:
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
            outcome = Outcome(job, error, time.perf_counter() - started)
            try:
                self._loop.call_soon_threadsafe(self._finished, outcome)
            except RuntimeError:  # the loop is closed: the process is ending without us
                return

    def _finished(self, outcome: Outcome[J]) -> None:
        self._is_busy = False
        self._done(outcome)


# ---- turns --------------------------------------------------------------------------------------


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

    def turn(self) -> None: ...

    def next_deadline_ms(self) -> int | None:
        """When a turn is wanted without any arrival; monotonic."""
        ...

    def next_sync_ms(self) -> int | None:
        """From when on there is a commit to make; None = nothing waits, or one is out."""
        ...

    def take_sync_job(self) -> SyncJob | None:
        """The next commit, if anything wants one."""
        ...

    def synced(self, job: SyncJob, error: Exception | None) -> None: ...


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
        make_commits: Callable[..., CommitThread[SyncJob]] = CommitThread,
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

    def _synced(self, outcome: Outcome[SyncJob]) -> None:
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


# ---- commit policy ------------------------------------------------------------------------------
# When a commit starts: at once when much waits or nobody else will come, else a short linger (D8).
#
# A sync costs about the same for one message as for a thousand, so at middling rates the syncs are
# the CPU cost; at high rates every wait is lost throughput; at low rates a linger is lost time and
# saves nothing, because nobody joins. The rule:
#
# * at once, when ``commit_linger_messages`` or ``commit_linger_bytes`` wait, or somebody waits for
#   a definition (D6: a declare-ok);
# * at once, when the recent rate lets fewer than ``COMPANY_MIN`` messages be expected meanwhile;
# * else ``commit_linger_ms`` after the first waiter.
#
# At middling rates syncs keep a distance besides (``sync_pace.py``).
#
# While a sync runs, arrivals gather by themselves: group commit needs no timer then.
#
# Measured (line protocol over loopback, 128 B, fsync on ext4/virtio, medians of 3 interleaved
# rounds of 1.5-2 s on 2 cores at load 2-3 from other work), confirm p50/p99 in ms, CPU a message:
#
# ===================  ===================  ===================  ===================
# load                 no linger            always 1 ms          this rule with 1 ms
# ===================  ===================  ===================  ===================
# 1 in flight          0.65/5.4, 896/s      1.94/7.8, 462/s      0.81/3.2, 1127/s
# 500/s, 1 peer        0.83/2.6, 434 us     1.95/4.9, 429 us     0.75/2.8, 406 us
# 2000/s, 4 peers      1.08/3.5, 145 us     2.57/8.0, 169 us     1.12/12.9, 184 us
# 5000/s, 4 peers      1.58/8.3, 109 us     2.91/7.0, 92 us      2.77/5.8, 92 us
# saturated, 4 peers   29/59, 115 k/s       36/84, 89 k/s        23/53, 137 k/s
# ===================  ===================  ===================  ===================
#
# What they show: the p50 of few publishers. What they do not: the last row is noise, because there
# all three start at once (an earlier run had 109, 124 and no third); the p99s and the CPU at 2000/s
# are within what the neighbours cause; 15 % of CPU at 5000/s is suggestive, no more. 2 ms gained
# nothing over 1 ms at 5000/s. The table was taken with a ``COMPANY_MIN`` of 4. It is 8 since AMQP
# at 4000/s was measured (four pairs, load 3 to 8): no linger had a confirm p50 of 2.9 to 3.1 ms
# against 3.1 to 3.5, and 4 to 8 % more CPU; one pair was spoilt by the disk. Repeat on a quiet
# machine.
#
# Pure arithmetic over numbers given in; the timer is in ``turns.py``, and what ``interval:MS`` and
# ``os`` ask of the disk is the store's business (``log/commit.py``).


COMPANY_MIN: Final = 8
"""Fewer expected arrivals are not worth a millisecond of everybody's time."""

MEMORY_MS: Final = 10
"""How far back the rate looks: longer than a sync, shorter than anybody notices."""


class CommitPolicy:
    """Decides how long what waits may wait for company."""

    __slots__ = ("_appended", "_bytes", "_last_ms", "_linger_ms", "_messages", "messages_per_ms")

    def __init__(self, settings: StorageSettings) -> None:
        self._messages = settings.commit_linger_messages
        self._bytes = settings.commit_linger_bytes
        self._linger_ms = settings.commit_linger_ms
        self._appended = 0
        self._last_ms = 0
        self.messages_per_ms = 0.0
        """What came of late."""

    def reached(self, appended: int, now_ms: int) -> bool:
        """So many messages were appended by now, in all; True when some are new."""
        messages = appended - self._appended
        if not messages:
            return False
        self._appended = appended
        gap_ms = now_ms - self._last_ms
        self._last_ms = now_ms
        # By time, not by turns: a pause of an hour is forgotten as fast as one of a moment.
        past = exp(-gap_ms / MEMORY_MS)
        share = (1 - past) / gap_ms if gap_ms else 1 / MEMORY_MS
        self.messages_per_ms = past * self.messages_per_ms + share * messages
        return True

    def is_little(self, messages: int, byte_count: int) -> bool:
        """True when so much is not worth a sync of its own."""
        return messages < self._messages and byte_count < self._bytes

    @property
    def linger_ms(self) -> int:
        """How long little waits for company, from the first waiter on; 0 = nobody would come."""
        expected = self.messages_per_ms * self._linger_ms
        return self._linger_ms if expected >= COMPANY_MIN else 0


# ---- pace ---------------------------------------------------------------------------------------
# How far apart turns are when much comes in small pieces: fewer and larger ones.
#
# A turn costs nearly the same for one message as for fifty, and so does the sync behind it. A
# stream of single publishes, one per packet, would have a turn for every two or three messages and
# keep a core busy with little; then whatever else happens is a queue. So while messages come fast
# enough for company, turns keep a distance between their beginnings: ``TIMES`` what they took of
# late, at most ``PACE_MAX_US``. So the loop rests a little after each; then the commit thread gets
# the interpreter, and whoever shares the core gets the core.
#
# * Messages decide, not packets or turns: they are as many however they are cut, so the rule does
#   not swing when it works. The rate is that of the turns (``commit_policy.py``).
# * A client that waits for each answer never waits here: its next message comes a sync later.
# * A turn that takes longer than the pace is followed by the next one at once; so is one that
#   leaves much for the disk.
#
# Measured (AMQP over loopback, 128 B, publisher and consumer, one publish a packet, 4,000/s, fsync
# on ext4/virtio, 2 cores): three batches, in each of them rounds of 4 s in turns, medians in ms;
# the last column is which part of RabbitMQ's both p99s are in the same batch. The host decides most
# of a p99: differences below a fifth are noise.
#
# ====================  ======  ======  ========  ============  ===========  ==========
# pace                  rounds  CPU us  delivery  delivery p99  confirm p99  of theirs
# ====================  ======  ======  ========  ============  ===========  ==========
# none                  12      253     0.59      2.7           10.0         0.67, 1.54
# 1.3, on and off       12      245     0.57      2.5           8.7          0.63, 1.33
# 2 times a turn        12      215     0.80      2.8           6.5          0.69, 0.99
# 1.3 times a turn      14      229     0.69      2.7           6.7          0.60, 0.98
# 2 times a turn        14      214     0.85      2.8           5.9          0.63, 0.86
# 1.3 times a turn      26      228     0.74      2.8           6.8          0.58, 0.92
# 2 times a turn        26      210     0.88      3.3           7.8          0.71, 1.07
# RabbitMQ 3.10         26      236     0.99      4.7           7.3
# ====================  ======  ======  ========  ============  ===========  ==========
#
# (CPU per message. "On and off": with a ``COMPANY_MIN`` of 1.5, so that a turn that happened to be
# short had no pace behind it, the next one little company, and so on.) Tried without effect: longer
# paces, to sleep through the pace with the sockets unread, to spin, and an exact timer
# (``timerfd``). The timers of uvloop are whole milliseconds, so a timer is only the last resort:
# what arrives looks at the clock, too.


PACE_MAX_US: Final = 800
"""Longest time between the beginnings of two turns; every delivery may wait for so long."""

TURN_TIMES: Final = 1.3
"""Turns begin so many times as far apart as they take."""

TURN_MEMORY: Final = 0.9
"""Weight of the past against the latest turn."""

TURN_COMPANY_MIN: Final = 0.5
"""Messages that must be expected within the pace; for fewer nobody waits."""


class Pace:
    """Knows when the next turn may begin."""

    __slots__ = ("_now_ns", "_pace_us", "_took_us", "_turned_us")

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._turned_us = 0
        self._took_us = 0.0
        self._pace_us = 0

    def turned(self) -> None:
        self._turned_us = self._now_ns() // 1000

    def ended(self) -> None:
        took_us = min(self._now_ns() // 1000 - self._turned_us, PACE_MAX_US)
        self._took_us = TURN_MEMORY * self._took_us + (1 - TURN_MEMORY) * took_us
        self._pace_us = min(int(TURN_TIMES * self._took_us), PACE_MAX_US)

    @property
    def left_us(self) -> int:
        """How long until the next turn may begin; negative = it is late."""
        return self._turned_us + self._pace_us - self._now_ns() // 1000

    def wait_us(self, messages_per_ms: float) -> int:
        """How long a turn that is asked for now waits at this rate; 0 = it runs at once."""
        if messages_per_ms * self._pace_us < TURN_COMPANY_MIN * 1000:
            return 0
        return max(0, self.left_us)


# ---- sync pace ----------------------------------------------------------------------------------
# How far apart syncs are at middling rates: fewer of them, for whoever does not wait for each.
#
# A sync costs both cores, ours and the disk's, and about the same for three messages as for thirty.
# Between some 1,700 and 10,000 messages a second, syncs as fast as the disk gives them are most of
# the CPU and of the noise that everybody else's deliveries feel. So there they keep a distance
# between their beginnings: ``TIMES`` what they took of late, at most
# ``storage.commit_distance_us``. A quick disk is hardly waited for, a slow or disturbed one gets
# fewer and larger syncs. At lower rates nobody would join; at higher ones they are large anyway.
#
# * **Only for streams.** Clients that wait for a confirm before they send on, a hundred of them or
#   one with a small window, would only wait longer. They show themselves: while a sync waits for
#   company, nothing comes. Then syncs begin at once again, and the distance is tried anew after
#   some of them, in the end after ``AT_ONCE_MAX``: such clients wait once in a hundred times.
# * Much that waits, or a definition that somebody waits for, is never kept (``commit_policy.py``).
#
# Measured in ``benchmarks/README.md``. The timers of uvloop are whole milliseconds: the turn that
# finds the time come begins the sync, a timer only when no turn does.


SYNC_TIMES: Final = 3
"""Syncs begin so many times as far apart as they take: the disk rests twice as long as it works."""

SYNC_MEMORY: Final = 0.8
"""Weight of the past against the latest sync."""

EXPECTED_MIN: Final = 5
"""Messages that must be expected within the longest distance; fewer are not worth a wait."""

EXPECTED_MAX: Final = 30
"""So many share a sync without our help."""

SLACK_US: Final = 150
"""A turn so little before its time begins the sync: the next turn would be much later."""

AT_ONCE_MIN: Final = 8
AT_ONCE_MAX: Final = 128
"""Syncs that begin at once after one waited in vain: twice as many each time in a row, because a
stall of the machine looks like silence once, and clients that wait for us every time."""


class SyncPace:
    """Knows when the next sync may begin."""

    __slots__ = (
        "_at_once",
        "_began_us",
        "_distance_us",
        "_has_company",
        "_has_waited",
        "_next_at_once",
        "_now_ns",
        "_took_us",
        "kept",
    )  # fmt: skip

    def __init__(
        self, settings: StorageSettings, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._distance_us = settings.commit_distance_us
        self._now_ns = now_ns
        self._began_us = 0
        self._has_waited = False
        self._has_company = False
        self._at_once = 0
        self._next_at_once = AT_ONCE_MIN
        self._took_us = 0.0
        self.kept = 0
        """Syncs that waited."""

    def brought(self) -> None:
        self._has_company = self._has_waited

    def began(self) -> None:
        if self._at_once:
            self._at_once -= 1
        elif self._has_company:
            self._next_at_once = AT_ONCE_MIN
        elif self._has_waited:
            self._at_once = self._next_at_once
            self._next_at_once = min(2 * self._next_at_once, AT_ONCE_MAX)
        self.kept += self._has_waited
        self._has_waited = self._has_company = False
        self._began_us = self._now_ns() // 1000

    def ended(self, seconds: float) -> None:
        took_us = min(seconds * 1e6, self._distance_us)  # one that hung says little of the next
        self._took_us = SYNC_MEMORY * self._took_us + (1 - SYNC_MEMORY) * took_us

    def is_middling(self, messages_per_ms: float) -> bool:
        """True when some messages, but not many, come within the longest distance."""
        return EXPECTED_MIN <= messages_per_ms * self._distance_us / 1000 <= EXPECTED_MAX

    def left_us(self, messages_per_ms: float) -> int:
        """How long a sync of little waits at this rate; 0 = it begins at once."""
        if self._at_once or not self.is_middling(messages_per_ms):
            return 0
        distance_us = min(int(SYNC_TIMES * self._took_us), self._distance_us)
        left_us = self._began_us + distance_us - self._now_ns() // 1000
        if left_us <= SLACK_US:
            return 0
        self._has_waited = True
        return left_us
