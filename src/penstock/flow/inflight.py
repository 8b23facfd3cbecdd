"""In-flight limits: delivered and not yet settled, by number and by bytes (F13).

Who spends: the dispatcher, with each delivery. Who grants: whoever settles or requeues. Who stops:
that consumer (or that subscription) only. What wakes it: the count *and* the bytes that stopped it
being back at half, as Pulsar resumes, so that it does not stop and start with every single ack.

One object per consumer and one per subscription. A delivery is never split, so the last one may
cross the limit. Not here: which messages they are (``engine/pending.py``).
"""

from penstock.flow.demand import UNLIMITED


class InflightLimit:
    """Two counts with ceilings; 0 = no ceiling."""

    __slots__ = (
        "_is_held_by_bytes",
        "_is_held_by_messages",
        "bytes",
        "bytes_max",
        "is_blocked",
        "messages",
        "messages_max",
    )

    def __init__(self, messages_max: int, bytes_max: int = 0) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0
        self._is_held_by_messages = False
        self._is_held_by_bytes = False
        self.is_blocked = False
        """True from reaching a ceiling until half of it."""

    def rooms(self) -> tuple[int, int]:
        """Messages and bytes that may be delivered now; ``UNLIMITED`` without a ceiling."""
        if self.is_blocked:
            return 0, 0
        return (
            self.messages_max - self.messages if self.messages_max else UNLIMITED,
            self.bytes_max - self.bytes if self.bytes_max else UNLIMITED,
        )

    def add(self, messages: int, size_bytes: int = 0) -> bool:
        """Delivered; True while blocked."""
        self.messages += messages
        self.bytes += size_bytes
        if self.messages >= self.messages_max > 0:
            self._is_held_by_messages = self.is_blocked = True
        if self.bytes >= self.bytes_max > 0:
            self._is_held_by_bytes = self.is_blocked = True
        return self.is_blocked

    def remove(self, messages: int, size_bytes: int = 0) -> bool:
        """Settled or requeued; True when this unblocked."""
        self.messages -= messages
        self.bytes -= size_bytes
        assert self.messages >= 0, "more messages settled than delivered"
        assert self.bytes >= 0, "more bytes settled than delivered"
        if not self.is_blocked:
            return False
        if self.messages <= self.messages_max // 2:
            self._is_held_by_messages = False
        if self.bytes <= self.bytes_max // 2:
            self._is_held_by_bytes = False
        self.is_blocked = self._is_held_by_messages or self._is_held_by_bytes
        return not self.is_blocked

    def resize(self, messages_max: int, bytes_max: int) -> bool:
        """New ceilings for what is in flight now; True when this unblocked."""
        was_blocked = self.is_blocked
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self._is_held_by_messages = self.messages >= messages_max > 0
        self._is_held_by_bytes = self.bytes >= bytes_max > 0
        self.is_blocked = self._is_held_by_messages or self._is_held_by_bytes
        return was_blocked and not self.is_blocked
