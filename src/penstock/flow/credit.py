"""Credit between two stages: how far a sender may be ahead of its receiver (F1).

Who grants: the receiver, ``more`` after every ``more`` it has processed. Who spends: the sender,
one per message (or one per byte: the same class counts either). Who stops: the sender, when its
credit reaches zero; the send that crosses zero still happens, so a list is never split. What wakes
it: a grant that lifts the credit above zero.

The rule that carries pressure upstream: a receiver that is itself blocked *defers* its grants, and
sends them all when its own set of blockers is empty (``stage.relieve``).

Invariants (law 1): available = initial - in flight - processed but not yet granted, so it never
exceeds ``initial``, and in flight never exceeds ``initial`` plus one list. Because 0 < more <=
initial, a receiver that has processed everything has always granted enough to make it positive
again: a credit alone cannot deadlock. Not here: who is blocked by whom (``stage``).
"""

from penstock.flow.stage import Stage, relieve
from penstock.model.errors import InvariantBroken


class Credit:
    """One hop sender -> receiver."""

    __slots__ = (
        "_deferred",
        "_is_blocking",
        "_is_closed",
        "_owed",
        "available",
        "initial",
        "more",
        "receiver",
        "sender",
    )

    def __init__(self, sender: Stage, receiver: Stage, *, initial: int, more: int) -> None:
        _check(initial, more)
        self.sender = sender
        self.receiver = receiver
        self.initial = initial
        self.more = more
        self.available = initial
        # Processed since the last grant; and granted while the receiver was blocked.
        self._owed = 0
        self._deferred = 0
        self._is_blocking = False
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Sent and not yet processed."""
        return self.initial - self.available - self._owed - self._deferred

    @property
    def is_blocking(self) -> bool:
        """True while this credit holds its sender."""
        return self._is_blocking

    def spend(self, n: int = 1) -> None:
        """The sender hands over n; at zero or below it is blocked by the receiver from now on."""
        self.available -= n
        if self.available <= 0 and not self._is_blocking and not self._is_closed:
            self._is_blocking = True
            self.sender.block(self.receiver, self)

    def processed(self, n: int = 1) -> None:
        """The receiver finished n; grants what that makes due, or defers it while blocked."""
        owed = self._owed + n
        if owed < self.more:
            self._owed = owed
            return
        self._owed = owed % self.more
        self._deferred += owed - self._owed
        if self._is_closed:
            return
        if self.receiver.is_blocked:
            self.receiver.defer(self)
        elif self.flush():
            relieve(self.sender)

    def flush(self) -> bool:
        """Hand over what is due; True when that freed the sender (the caller then relieves it)."""
        self.available += self._deferred
        self._deferred = 0
        if self.available + self._owed > self.initial and not self._is_closed:
            raise InvariantBroken(
                f"{self.receiver.label} processed more than {self.sender.label} sent: "
                f"credit {self.available} of {self.initial}"
            )
        if not self._is_blocking or self.available <= 0:
            return False
        self._is_blocking = False
        return self.sender.released(self)

    def resize(self, *, initial: int, more: int) -> None:
        """Change both figures under way; what is in flight stays counted."""
        _check(initial, more)
        self.available += initial - self.initial
        self.initial = initial
        self.more = more
        # A smaller step may make owed processing due; a smaller initial may block at once.
        self.processed(0)
        self.spend(0)
        if self._is_blocking and self.available > 0:
            self._is_blocking = False
            self.sender.unblock(self.receiver, self)

    def close(self) -> None:
        """A side died: the sender is not held by this hop any more, and nothing is owed on it."""
        if self._is_closed:
            return
        self._is_closed = True
        self.receiver.forget(self)
        self._deferred = 0
        if self._is_blocking:
            self._is_blocking = False
            self.sender.unblock(self.receiver, self)


def _check(initial: int, more: int) -> None:
    if not 0 < more <= initial:
        raise ValueError(
            f"credit of {initial} given back {more} at a time: more must be between 1 and initial"
        )
