"""How many messages a broker may send ahead: the arithmetic of FLOW (B26, B28-B33, B4).

Who grants: this consumer, its receiver queue's size when it is connected, and again what the
application took. Who spends: the broker, one for each message it sends; a batch may be larger than
what is left, then the broker owes. Who stops: ``pause``; a lost connection. What wakes it: an
application that takes messages, ``resume``, a connection.

    outstanding   granted and not yet delivered; below zero when a batch was larger
    gathered      taken by the application, and not yet granted again

Invariants, of a queue of size n: ``outstanding`` never exceeds n (of size 0: the receivers that
wait); while connected and started, ``outstanding + gathered + unreceived`` is n; ``gathered`` is
below half of n unless paused, so that an application that takes is never starved.
Pure: each step says how much FLOW is to be sent now, and 0 means none at all (B33).
"""

from __future__ import annotations

from typing import Final


class Permits:
    """The permits of a consumer of one partition."""

    __slots__ = (
        "_is_connected", "_is_started", "delivered", "gathered", "granted", "is_paused",
        "outstanding", "queue_size", "refill_at",
    )  # fmt: skip

    def __init__(self, queue_size: int) -> None:
        self.queue_size: Final = queue_size
        self.refill_at: Final = max(1, queue_size // 2)
        """Half of the queue: fewer permits are not worth a FLOW (B4, B31)."""
        self.outstanding = 0
        self.gathered = 0
        self.is_paused = False
        self.granted = 0
        self.delivered = 0
        self._is_connected = False
        self._is_started = False

    @property
    def is_waiting_for_start(self) -> bool:
        """Subscribed, and its parent has not let it begin."""
        return self._is_connected and not self._is_started

    def connected(self, *, may_start: bool = True) -> int:
        """SUBSCRIBE succeeded: all begins at 0, here and at the broker (B26).

        ``may_start`` is False for a durable child that is connected for the first time: its parent
        starts all of them when all are there (B29).
        """
        self._is_connected = True
        self._is_started = False
        self.outstanding = self.gathered = 0
        return self.start() if may_start else 0

    def start(self) -> int:
        """The whole queue is granted (B28); nothing for a queue of 0 (B30)."""
        if not self._is_connected or self._is_started:
            return 0
        self._is_started = True
        self.gathered += self.queue_size
        return self._flow()

    def disconnected(self) -> None:
        self._is_connected = False
        self.outstanding = self.gathered = 0

    def arrived(self, messages: int) -> None:
        """The broker sent these, and charged them."""
        self.outstanding -= messages
        self.delivered += messages

    def taken(self, messages: int) -> int:
        """The application has them, or they were thrown away: their places are free."""
        if not self._is_connected or self.queue_size == 0:
            return 0
        self.gathered += messages
        return self._flow()

    def wanted(self, receivers: int) -> int:
        """A queue of 0 (B30): so many receivers wait for one message each."""
        if not self._is_connected or not self._is_started or self.is_paused or self.queue_size:
            return 0
        return self._grant(max(0, receivers - self.outstanding))

    def pause(self) -> None:
        """No FLOW from here on (B32)."""
        self.is_paused = True

    def resume(self) -> int:
        """What gathered meanwhile, if it is worth it."""
        self.is_paused = False
        return self._flow()

    def _flow(self) -> int:
        is_due = self.gathered >= self.refill_at
        if not is_due or self.is_paused or not self._is_connected or not self._is_started:
            return 0
        messages, self.gathered = self.gathered, 0
        return self._grant(messages)

    def _grant(self, messages: int) -> int:
        self.outstanding += messages
        self.granted += messages
        return messages
