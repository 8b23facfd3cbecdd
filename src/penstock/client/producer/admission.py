"""Sends that waited for a permit: begun when they have one, sent away when they get none.

Lives on the client's thread. Not here: the queue itself (``in_flight.py``).
"""

from collections import deque
from collections.abc import Callable, Sequence

from penstock.client.errors import ClientError, StateError
from penstock.client.producer.counts import SendCounts
from penstock.client.producer.in_flight import InFlight
from penstock.client.producer.send import Send


class Admission:
    """Between the window and the sender of one producer."""

    def __init__(
        self, in_flight: InFlight, counts: SendCounts, begin: Callable[[Send], None]
    ) -> None:
        self._in_flight = in_flight
        self._counts = counts
        self._begin = begin
        self._admitted: deque[Send] = deque()
        """Bounded by the window."""
        self._is_admitting = False

    def give_back(self, send: Send) -> None:
        """Its permit is free; whoever has one by this begins."""
        if send.has_permit:
            send.has_permit = False
            admitted = self._in_flight.give(send.encoded.size_bytes)
            if admitted:
                self.admit(admitted)

    def leave_overdue(self, now_ms: int) -> None:
        """Send away those whose time is up."""
        left, admitted = self._in_flight.leave_overdue(now_ms)
        for send in left:
            self._give_up(send, self._in_flight.refusal(send))
        self.admit(admitted)

    def turn_away(self) -> None:
        """The producer stops."""
        for send in self._in_flight.leave_all():
            self._give_up(send, StateError("the producer was stopped"))

    def admit(self, sends: Sequence[Send]) -> None:
        """These have a permit by now: they begin."""
        # A loop: one that fails as soon as it begins admits others, thousands perhaps.
        self._admitted.extend(sends)
        if self._is_admitting:
            return
        self._is_admitting = True
        try:
            while self._admitted:
                send = self._admitted.popleft()
                send.has_permit = True
                if send.entered is not None:
                    send.entered.set()
                if send.is_given_up:
                    self.give_back(send)
                else:
                    self._begin(send)
        finally:
            self._is_admitting = False

    def _give_up(self, send: Send, error: ClientError) -> None:
        self._counts.ended(error)
        if send.entered is not None:
            send.entered.set()
        send.done(error)
