"""Three ways in which a sender hears the end: a thread that blocks, a future, a callback.

The end comes on the client's thread, which must not run a user's code nor wait for it. Blocked
threads are woken, futures settled through the relay of their loop (many results, one wake-up), and
callbacks run one after the other on a thread of the producer's own.

Bound: a callback's send keeps its permit until the callback begins, so at most
``in_flight_messages_max`` outcomes wait for slow callbacks.
Not here: the send itself (``sending.py``).
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from penstock.client.errors import ClientError, StateError
from penstock.client.message import SendResult
from penstock.client.producer.send import Outcome, Send

_log: Final = logging.getLogger(__name__)

GRACE_S: Final = 5.0
"""How long a blocked thread waits beyond its deadline for a client that does not answer at all."""

OnDone = Callable[[SendResult | ClientError], object]


class Blocked:
    """One thread that waits for one outcome."""

    __slots__ = ("_lock", "_outcome")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._outcome: Outcome | None = None

    def settle(self, outcome: Outcome) -> None:
        """On the client's thread."""
        self._outcome = outcome
        self._lock.release()

    def result(self, timeout_ms: int) -> SendResult:
        """On the thread that waits; raises what went wrong."""
        self._lock.acquire(timeout=timeout_ms / 1000 + GRACE_S)
        outcome = self._outcome
        if outcome is None:
            raise StateError("the client's thread does not answer; was the process forked?")
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome


def settle_future(future: "asyncio.Future[SendResult]", outcome: Outcome) -> None:
    """On the future's loop."""
    if future.done():
        return
    if isinstance(outcome, ClientError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class CallbackThread:
    """Runs callbacks in the order in which their sends ended; started with the first one."""

    def __init__(self, group: str, give_back: Callable[[Send], object]) -> None:
        self._name = f"penstock-callbacks-{group}"
        self._give_back = give_back
        self._outcomes: SimpleQueue[tuple[Send, OnDone, Outcome] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def is_current(self) -> bool:
        """True on this thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Before the first callback is needed; from any thread."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def put(self, send: Send, on_done: OnDone, outcome: Outcome) -> None:
        """A send ended."""
        self._outcomes.put((send, on_done, outcome))

    def stop(self, timeout_ms: int) -> None:
        """Return when the callbacks put so far have run, or the time is up."""
        thread = self._thread
        if thread is None:
            return
        self._outcomes.put(None)
        if not self.is_current:
            thread.join(timeout_ms / 1000)

    def _run(self) -> None:
        while (item := self._outcomes.get()) is not None:
            send, on_done, outcome = item
            self._give_back(send)
            try:
                on_done(outcome)
            except Exception:
                _log.exception("send callback failed", extra={"topic": send.topic})
