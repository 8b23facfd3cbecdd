"""Three ways in which a sender hears the end: a thread that blocks, a future, a callback.

The end comes on the client's thread, which must not run a user's code nor wait for it. Blocked
threads are woken, futures settled through a relay to their loop (many results, one wake-up), and
callbacks run one after the other on a thread of the producer's own, which gets them in lists.

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
from penstock.client.loop import Relay
from penstock.client.message import SendResult
from penstock.client.producer.send import Outcome, Send

_log: Final = logging.getLogger(__name__)

GRACE_S: Final = 5.0
"""How long a blocked thread waits beyond its deadline for a client that does not answer at all."""

OnDone = Callable[[SendResult | ClientError], object]


class BlockedSend(Send, kw_only=True):
    """A thread waits for the end."""

    lock: threading.Lock
    """Held until then."""
    outcome: Outcome | None = None

    def done(self, outcome: Outcome) -> None:
        """Wake the thread."""
        self.outcome = outcome
        self.lock.release()

    def result(self) -> SendResult:
        """On the thread that waits; raises what went wrong."""
        self.lock.acquire(timeout=self.timeout_ms / 1000 + GRACE_S)
        outcome = self.outcome
        if outcome is None:
            raise StateError("the client's thread does not answer; was the process forked?")
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome


class AwaitedSend(Send, kw_only=True):
    """A future gets the end."""

    future: "asyncio.Future[SendResult]"
    relay: "Relay[AwaitedSend] | None" = None
    """To the future's loop; None when that is the client's own."""
    outcome: Outcome | None = None

    def done(self, outcome: Outcome) -> None:
        """Send it to the future's loop."""
        self.outcome = outcome
        if self.relay is None:
            settle(self)
        else:
            self.relay.put(self)

    @property
    def is_given_up(self) -> bool:
        """True when the future was cancelled."""
        return self.future.cancelled()


def settle(send: AwaitedSend) -> None:
    """Give the future its result; on its loop."""
    future, outcome = send.future, send.outcome
    if future.done():
        return
    if isinstance(outcome, SendResult):
        future.set_result(outcome)
    elif outcome is not None:
        future.set_exception(outcome)


class CalledSend(Send, kw_only=True):
    """A callback gets the end."""

    on_done: OnDone
    thread: "CallbackThread"
    outcome: Outcome | None = None

    def done(self, outcome: Outcome) -> None:
        """Have the callback called."""
        self.outcome = outcome
        self.thread.put(self)

    def call(self) -> None:
        """On the thread for callbacks; an error of the callback stays here."""
        if self.outcome is None:
            return
        try:
            self.on_done(self.outcome)
        except Exception:
            _log.exception("send callback failed", extra={"topic": self.topic})


class CallbackThread:
    """Runs callbacks in the order in which their sends ended; started with the first one."""

    def __init__(
        self,
        group: str,
        give_back: Callable[[Send], object],
        call_soon: Callable[[Callable[[], object]], object],
    ) -> None:
        self._name = f"penstock-callbacks-{group}"
        self._give_back = give_back
        self._call_soon = call_soon
        """Calls at the end of a turn of the client's loop."""
        self._ended: list[CalledSend] = []
        """Of this turn."""
        self._handed: SimpleQueue[list[CalledSend] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def is_current(self) -> bool:
        """True on this thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Before the first callback is needed; from any thread."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def put(self, send: CalledSend) -> None:
        """A send ended; on the client's thread."""
        self._ended.append(send)
        if len(self._ended) == 1:
            self._call_soon(self._hand_over)

    def stop(self, timeout_ms: int) -> None:
        """Return when the callbacks put so far have run, or the time is up."""
        thread = self._thread
        if thread is None:
            return
        self._handed.put(None)
        if not self.is_current:
            thread.join(timeout_ms / 1000)

    def _hand_over(self) -> None:
        self._handed.put(self._ended)
        self._ended = []

    def _run(self) -> None:
        while (ended := self._handed.get()) is not None:
            for send in ended:
                self._give_back(send)
                send.call()
