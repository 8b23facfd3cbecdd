"""Send window: how much a producing client may have in flight, by number and by bytes (F16).

Who spends: the caller of a send, before the message is encoded. Who grants: the broker, by
answering (or the send's deadline). Who stops: the caller alone, at the first of the two ceilings;
it waits for a permit within its own deadline. What wakes it: the answer that makes room, first
come, first served, so that a large message is not overtaken for ever by small ones.

Invariants: nobody passes while somebody waits; at most one message beyond ``bytes_max`` is in
flight, and only when it is the only one: a message larger than the window is slow, never stuck.

Not here: threads, deadlines, what a waiter is (``client/producer/in_flight.py``).
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

W = TypeVar("W")


class SendWindow(Generic[W]):
    """Two counts with ceilings and a queue of those who wait; ``W`` is whatever the owner wakes."""

    __slots__ = ("_waiting", "bytes", "bytes_max", "messages", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        if messages_max < 1 or bytes_max < 1:
            raise ValueError(f"a window of {messages_max} messages, {bytes_max} bytes; at least 1")
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0
        # Bounded by the callers: each waits in one place.
        self._waiting: OrderedDict[W, tuple[int, int]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many stand in the queue."""
        return len(self._waiting)

    @property
    def waits_since_ms(self) -> int | None:
        """Since when the first of them has been waiting."""
        for _, since_ms in self._waiting.values():
            return since_ms
        return None

    @property
    def full(self) -> str:
        """Which ceiling the first waiter waits for: ``messages``, ``bytes`` or nothing."""
        for size_bytes, _ in self._waiting.values():
            return "messages" if self.messages >= self.messages_max else self._bytes(size_bytes)
        return ""

    def take(self, size_bytes: int) -> bool:
        """A permit, if there is one now and nobody waits for it."""
        if self._waiting or not self._has_room(size_bytes):
            return False
        self.messages += 1
        self.bytes += size_bytes
        return True

    def wait(self, waiter: W, size_bytes: int, now_ms: int) -> None:
        """Stand in the queue; ``give`` hands the permit over."""
        self._waiting[waiter] = (size_bytes, now_ms)

    def give(self, size_bytes: int) -> list[W]:
        """A message is answered; those who hold a permit by this, in the order they came."""
        self.messages -= 1
        self.bytes -= size_bytes
        assert self.messages >= 0, "more messages answered than sent"
        assert self.bytes >= 0, "more bytes answered than sent"
        return self._admit() if self._waiting else []

    def waiters(self) -> list[W]:
        """Those who wait, first come first."""
        return list(self._waiting)

    def forget(self, waiters: Iterable[W]) -> list[W]:
        """These wait no more; those who hold a permit by this.

        Who leaves may have been too large for the room that those behind fit into.
        """
        for waiter in waiters:
            self._waiting.pop(waiter, None)
        return self._admit()

    def forget_all(self) -> list[W]:
        """The producer stops: everybody who waited, without a permit."""
        waiters = list(self._waiting)
        self._waiting.clear()
        return waiters

    def _admit(self) -> list[W]:
        admitted: list[W] = []
        while self._waiting:
            waiter = next(iter(self._waiting))
            size_bytes, _ = self._waiting[waiter]
            if not self._has_room(size_bytes):
                break
            del self._waiting[waiter]
            self.messages += 1
            self.bytes += size_bytes
            admitted.append(waiter)
        return admitted

    def _has_room(self, size_bytes: int) -> bool:
        if self.messages >= self.messages_max:
            return False
        return not self.messages or self.bytes + size_bytes <= self.bytes_max

    def _bytes(self, size_bytes: int) -> str:
        return "" if self._has_room(size_bytes) else "bytes"
