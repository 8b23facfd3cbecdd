"""The one thread that waits for the disk (D8): a sync job in, done or failed out.

At most one job is under way; ``turns.py`` sees to that and ``submit`` asserts it. The thread calls
``before`` (faults on purpose), then ``job.run()``, and posts the outcome to the loop; nothing of
the engine is ever touched from here.

Two threads share one interpreter, and the one that runs keeps it for up to 5 ms: a loop with
something to do would begin its next turn while the sync it has asked for still waits to begin
(0.4 ms in the mean at 4,000 messages/s, 0.5 to 0.8 ms at the 95th percentile). So ``submit`` can
give way: it returns when the thread has taken the job, some 0.07 ms later, or after
``HAND_OVER_S``. At such rates the loop has that time; at high ones it would be 3 to 8 % of what the
broker can do. To make the 5 ms shorter instead was tried without effect.

Not here: when a commit starts (``commit_policy.py``), what a job does (``log/store.py``).
"""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

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
        """Start the thread."""
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
