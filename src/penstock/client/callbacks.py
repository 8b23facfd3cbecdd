"""How who sent hears the end, which comes on the client's thread: a user's code must not stop it.

A thread that waits is woken (``result_of``), a future settled on its own loop (``settle_future``),
callbacks run on a thread of their own. What ended in one turn of the client's loop is handed over
to that as one list: a wake-up of the thread for each send would cost more than the sends. Who uses
it says what is done with such a list.

Bound: the caller's. Both producers give a send's place back only when its callback begins, so that
slow callbacks hold no more of them than may be in flight.
Invariants: lists are run one after the other, in the order in which their sends ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from penstock.client.failures import ClientError, StateError

Ended = TypeVar("Ended")
Result = TypeVar("Result")

GRACE_S: Final = 5.0
"""How long a blocked thread waits beyond its time-out for a client that does not answer at all."""


class Blocked(Protocol[Result]):
    """A send whose end a thread waits for."""

    lock: threading.Lock
    """Held until then."""
    outcome: Result | ClientError | None


class Awaited(Protocol[Result]):
    """A send whose end a future gets."""

    future: asyncio.Future[Result]
    outcome: Result | ClientError | None


def result_of(send: Blocked[Result], timeout_ms: int | None) -> Result:
    """On the thread that waits, None = for ever; raises what went wrong."""
    send.lock.acquire(timeout=-1 if timeout_ms is None else timeout_ms / 1000 + GRACE_S)
    outcome = send.outcome
    if outcome is None:
        raise StateError("the client's thread does not answer; was the process forked?")
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome


def settle_future(send: Awaited[Result]) -> None:
    """Give the future its result; on its loop."""
    future, outcome = send.future, send.outcome
    if future.done():
        return
    if isinstance(outcome, ClientError):
        future.set_exception(outcome)
    elif outcome is not None:
        future.set_result(outcome)


class CallbackThread(Generic[Ended]):
    """Runs lists of what ended; started when somebody first needs it."""

    def __init__(
        self,
        name: str,
        run: Callable[[list[Ended]], object],
        call_soon: Callable[[Callable[[], object]], object],
    ) -> None:
        """``run`` must not raise; ``call_soon`` calls at the end of a turn of the client's loop."""
        self._name = f"penstock-callbacks-{name}"
        self._run = run
        self._call_soon = call_soon
        self._ended: list[Ended] = []
        """Of this turn."""
        self._handed: SimpleQueue[list[Ended] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_running = False
        self._is_stopped = False
        self._lock = threading.Lock()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Before the first callback is needed; from any thread."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None and not self._is_stopped:
                self._run_thread()

    def put(self, ended: Ended) -> None:
        """One more ended; on the client's thread."""
        self._ended.append(ended)
        if len(self._ended) == 1:
            self._call_soon(self._hand_over)

    def stop(self, timeout_ms: int) -> None:
        """Return when the callbacks handed over so far have run, or the time is up.

        What is put later, by who sent just while it was stopped, is run by a thread that ends then.
        """
        with self._lock:
            self._is_stopped = True
            thread = self._thread
            if self._is_running:
                self._handed.put(None)
        if thread is not None and not self.is_current:
            thread.join(timeout_ms / 1000)

    async def stop_async(self, timeout_ms: int) -> None:
        """The same for any event loop."""
        if self.is_current:
            # On another thread nobody would see that it is a callback that would wait for itself.
            self.stop(timeout_ms)
        else:
            await asyncio.to_thread(self.stop, timeout_ms)

    def _hand_over(self) -> None:
        ended, self._ended = self._ended, []
        with self._lock:
            self._handed.put(ended)
            if self._is_stopped:
                self._handed.put(None)
                if not self._is_running:
                    self._run_thread()

    def _run_thread(self) -> None:
        """Under the lock."""
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._is_running = True
        self._thread.start()

    def _work(self) -> None:
        while True:
            ended = self._handed.get()
            if ended is not None:
                self._run(ended)
                continue
            with self._lock:
                # What is there now has its own end behind it.
                self._is_running = not self._handed.empty()
                if not self._is_running:
                    return
