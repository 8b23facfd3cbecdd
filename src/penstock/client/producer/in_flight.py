"""Permits of asynchronous sends (F16): taken by the caller's thread, given back by the client's.

A send that gets no permit stands in the queue of the window. The answer that makes room starts it
at once, on the client's thread; a caller that blocks is told then. One whose deadline comes first
leaves the queue, and its sender hears that the broker is too slow for it.

Held and released many times a second is one episode (``flow/episodes.py``): one line in the log
when it begins, one when it is over.

Threads: callers take, the client's thread gives; a lock is between them.
Not here: the arithmetic (``flow/budgets.py``), what a send is (``sending.py``).
"""

import logging
import threading
from typing import Final

from penstock.client.errors import WouldBlock
from penstock.client.producer.send import Send
from penstock.flow.budgets import SendWindow
from penstock.flow.episodes import Episode, Episodes
from penstock.flow.reason import Reason
from penstock.model.clock import Clock

_log: Final = logging.getLogger(__name__)


class InFlight:
    """The window of one producer."""

    def __init__(self, group: str, messages_max: int, bytes_max: int, clock: Clock) -> None:
        self._window: SendWindow[Send] = SendWindow(messages_max, bytes_max)
        self._clock = clock
        self._lock = threading.Lock()
        self.episodes: Final = Episodes(kind="producer", name=group, sink=EpisodeLog())

    def take(self, size_bytes: int) -> bool:
        """A permit, if there is one now."""
        with self._lock:
            return self._window.take(size_bytes)

    def take_or_wait(self, send: Send, size_bytes: int) -> bool:
        """True with a permit; False: it waits, and ``give`` or ``leave`` will name it."""
        with self._lock:
            window = self._window
            if window.take(size_bytes):
                return True
            now_ms = self._clock.monotonic_ms()
            window.wait(send, size_bytes, now_ms)
            if window.waiting == 1:
                self.episodes.entered(Reason.PENDING, self._culprit(), now_ms)
            return False

    def give(self, size_bytes: int) -> list[Send]:
        """A send is over; those who have a permit by this."""
        with self._lock:
            admitted = self._window.give(size_bytes)
            if admitted:
                self._left()
            return admitted

    def leave_overdue(self, now_ms: int) -> tuple[list[Send], list[Send]]:
        """(those whose time is up or whom nobody waits for; those who have a permit by that)."""
        with self._lock:
            window = self._window
            left = [
                each for each in window.waiters() if each.deadline_ms <= now_ms or each.is_given_up
            ]
            admitted = window.forget(left) if left else []
            if left:
                self._left()
            return left, admitted

    def leave_all(self) -> list[Send]:
        """The producer stops; everybody who waited."""
        with self._lock:
            waiters = self._window.forget_all()
            self.episodes.close(self._clock.monotonic_ms())
            return waiters

    @property
    def waiting(self) -> int:
        """How many sends wait for a permit."""
        return self._window.waiting

    @property
    def messages(self) -> int:
        """Sends in flight."""
        return self._window.messages

    @property
    def bytes(self) -> int:
        """Bytes in flight."""
        return self._window.bytes

    @property
    def waits_since_ms(self) -> int | None:
        """Since when the first of those who wait has been waiting (monotonic)."""
        with self._lock:
            return self._window.waits_since_ms

    @property
    def full(self) -> str:
        """Which ceiling holds those who wait: ``messages``, ``bytes`` or none."""
        with self._lock:
            return self._window.full

    def refusal(self, send: Send) -> WouldBlock:
        """What a send is told that got no permit in time."""
        window = self._window
        return WouldBlock(
            f"message for topic {send.topic!r} was not sent: {window.messages} of"
            f" {window.messages_max} sends and {window.bytes} of {window.bytes_max} bytes were not"
            f" answered, and it waited {send.timeout_ms} ms (in_flight_messages_max,"
            f" in_flight_bytes_max); send slower"
        )

    def settle(self) -> None:
        """End the episode that is over since more than its memory."""
        with self._lock:
            self.episodes.settle(self._clock.monotonic_ms())

    def _left(self) -> None:
        if not self._window.waiting:
            self.episodes.left(Reason.PENDING, self._clock.monotonic_ms())

    def _culprit(self) -> str:
        window = self._window
        if window.full == "bytes":
            return f"{window.bytes} of {window.bytes_max} bytes are not answered"
        return f"{window.messages} of {window.messages_max} sends are not answered"


class EpisodeLog:
    """One line when sends begin to wait, one when they no longer do."""

    def entered(self, episodes: Episodes, _reason: Reason, culprit: str, _at_ms: int) -> None:
        """The first send waits."""
        _log.warning("sends wait for permits", extra={"group": episodes.name, "why": culprit})

    def ended(self, episodes: Episodes, episode: Episode) -> None:
        """Nobody has waited for a while."""
        _log.info(
            "sends wait no more",
            extra={
                "group": episodes.name,
                "lasted_ms": episode.until_ms - episode.since_ms,
                "waited_ms": episode.stalled_ms,
                "stalls": episode.stalls,
            },
        )
