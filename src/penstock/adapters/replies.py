"""What a channel sends, in order, although some replies are known later than others (D6).

A reply to a durable change leaves after the commit that holds it; everything the channel says
later, deliveries too, stays behind it. Such a reply has a ``ReplySlot`` in the queue; without one
nothing is kept::

    reply (slot, not durable yet) | deliver | reply (slot, durable) | deliver

Bounds: a connection stops reading when too much is kept here (``held_bytes``); deliveries kept here
count as unsent (F14), which ``HandOverCount`` sees to.
Not here: frames, the connection's outbox, the limit of what is unsent (``flow/budgets.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from penstock.flow.budgets import UnsentLimit

SLOT_BYTES: Final = 256
"""What a slot weighs, beside the reply in it."""


class ReplyQueue:
    """One channel's bytes between its handlers and the connection's outbox, in order."""

    __slots__ = (
        "_changed",
        "_kept",
        "_send",
        "deliveries",
        "delivery_bytes",
        "held_bytes",
        "is_waiting",
    )

    def __init__(self, send: Callable[[bytes], None], changed: Callable[[], None]) -> None:
        """``changed`` is called when something waits, and whenever less does."""
        self._send = send
        self._changed = changed
        self._kept: deque[bytes | ReplySlot] = deque()
        self.is_waiting = False
        """True while something is kept."""
        self.held_bytes = 0
        self.deliveries = 0
        """Messages among what is kept, so that nobody takes them for sent."""
        self.delivery_bytes = 0

    def send(self, data: bytes) -> None:
        """Now, or behind what waits."""
        if self.is_waiting:
            self._kept.append(data)
            self.held_bytes += len(data)
        else:
            self._send(data)

    def reserve(self) -> ReplySlot:
        """A slot for a reply; what is sent from now on stays behind it."""
        slot = ReplySlot(self)
        self._kept.append(slot)
        self.is_waiting = True
        self.held_bytes += SLOT_BYTES
        self._changed()
        return slot

    def advance(self) -> None:
        """A slot was filled: send everything up to the next empty one."""
        kept = self._kept
        while kept:
            first = kept[0]
            if isinstance(first, ReplySlot):
                if not first.is_filled:
                    break
                self.held_bytes -= SLOT_BYTES
                data = first.data
            else:
                self.held_bytes -= len(first)
                data = first
            kept.popleft()
            if data:
                self._send(data)
        self.is_waiting = bool(kept)
        if not kept:
            self.deliveries = self.delivery_bytes = 0
        self._changed()

    def note_deliveries(self, messages: int, size_bytes: int) -> None:
        """Messages are about to be sent that may be kept here."""
        if self.is_waiting:
            self.deliveries += messages
            self.delivery_bytes += size_bytes

    def clear(self) -> None:
        """Nobody waits for any of it."""
        self._kept.clear()
        self.is_waiting = False
        self.held_bytes = self.deliveries = self.delivery_bytes = 0


class ReplySlot:
    """Where a reply will be that is not known, or may not leave, yet."""

    __slots__ = ("_queue", "data", "is_filled")

    def __init__(self, queue: ReplyQueue) -> None:
        self._queue: Final = queue
        self.data = b""
        self.is_filled = False

    def fill(self, data: bytes) -> None:
        """The reply, or nothing; it leaves when all before it have left. Once is enough."""
        if not self.is_filled:
            self.is_filled = True
            self.data = data
            self._queue.advance()


class HandOverCount:
    """Which deliveries a socket has taken (F14), by the only thing it says: "everything so far".

    The engine counts a delivery as unsent when it makes it; the connection hands it over at the end
    of a turn, unless it stays behind a reply that waits. So only what was handed over may be called
    sent, not all that is unsent by now.
    """

    __slots__ = ("_bytes", "_messages", "_unsent")

    def __init__(self, unsent: UnsentLimit) -> None:
        self._unsent: Final = unsent
        self._messages = 0
        self._bytes = 0

    def count(self, waiting: Iterable[ReplyQueue]) -> None:
        """All that is unsent is handed over, but for what waits in these queues."""
        self._messages, self._bytes = self._unsent.messages, self._unsent.bytes
        for queue in waiting:
            self._messages -= queue.deliveries
            self._bytes -= queue.delivery_bytes

    def taken(self) -> bool:
        """The socket took it all; True when this lets deliveries go on."""
        messages, size_bytes = self._messages, self._bytes
        self._messages = self._bytes = 0
        return bool(messages) and self._unsent.sent(messages, size_bytes)
