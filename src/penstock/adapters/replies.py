"""What a channel sends, in order, although some answers are known later than others (D6).

An answer to a durable change leaves after the commit that holds it; everything the channel says
later, deliveries too, stays behind it. Such an answer has a ``ReplySlot`` in the line; without one
nothing is kept::

    declare-ok (place, not durable yet) | deliver | bind-ok (place, durable) | deliver

Bounds: the session stops reading at ``amqp.answers_held_bytes_max``; deliveries kept here count as
unsent (F14).
Not here: the connection's outbox (``session.py``).
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from penstock.flow.budgets import UnsentLimit

PLACE_BYTES: Final = 256
"""What a place weighs, beside the answer in it."""


class ReplySlot:
    """Where an answer will be that is not known, or may not leave, yet."""

    __slots__ = ("_line", "data", "is_filled")

    def __init__(self, line: "ReplyQueue") -> None:
        self._line = line
        self.data = b""
        self.is_filled = False

    def fill(self, data: bytes) -> None:
        """The answer, or nothing; it leaves when all before it have left. Once is enough."""
        if not self.is_filled:
            self.is_filled = True
            self.data = data
            self._line.advance()


class ReplyQueue:
    """One channel's frames between its handlers and the connection's outbox."""

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
        """A place for an answer; what is sent from now on stays behind it."""
        place = ReplySlot(self)
        self._kept.append(place)
        self.is_waiting = True
        self.held_bytes += PLACE_BYTES
        self._changed()
        return place

    def advance(self) -> None:
        """A place was filled: send everything up to the next empty one."""
        kept = self._kept
        while kept:
            first = kept[0]
            if isinstance(first, ReplySlot):
                if not first.is_filled:
                    break
                self.held_bytes -= PLACE_BYTES
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


# ---- handed over --------------------------------------------------------------------------------
# Which deliveries a socket has taken (F14), by the only thing it says: "everything so far".
#
# The engine counts a delivery as unsent when it makes it; the session hands it over at the end of a
# turn, unless it stays behind an answer that waits (``answer_line.py``). So only what was handed
# over may be called sent, not all that is unsent by now.
#
# Not here: the limit itself (``flow/budgets.py``).


class HandOverCount:
    """Deliveries of one connection that its socket has, or had."""

    __slots__ = ("_bytes", "_messages", "_unsent")

    def __init__(self, unsent: UnsentLimit) -> None:
        self._unsent: Final = unsent
        self._messages = 0
        self._bytes = 0

    def count(self, waiting: Iterable[ReplyQueue]) -> None:
        """All that is unsent is handed over, but for what waits in these lines."""
        self._messages, self._bytes = self._unsent.messages, self._unsent.bytes
        for line in waiting:
            self._messages -= line.deliveries
            self._bytes -= line.delivery_bytes

    def taken(self) -> bool:
        """The socket took it all; True when this lets deliveries go on."""
        messages, size_bytes = self._messages, self._bytes
        self._messages = self._bytes = 0
        return bool(messages) and self._unsent.sent(messages, size_bytes)
