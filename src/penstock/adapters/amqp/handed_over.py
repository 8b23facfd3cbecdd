"""Which deliveries a socket has taken (F14), by the only thing it says: "everything so far".

The engine counts a delivery as unsent when it makes it; the session hands it over at the end of a
turn, unless it stays behind an answer that waits (``answer_line.py``). So only what was handed over
may be called sent, not all that is unsent by now.

Not here: the limit itself (``flow/budgets.py``).
"""

from collections.abc import Iterable
from typing import Final

from penstock.adapters.amqp.answer_line import AnswerLine
from penstock.flow.budgets import UnsentLimit


class HandedOver:
    """Deliveries of one connection that its socket has, or had."""

    __slots__ = ("_bytes", "_messages", "_unsent")

    def __init__(self, unsent: UnsentLimit) -> None:
        self._unsent: Final = unsent
        self._messages = 0
        self._bytes = 0

    def count(self, waiting: Iterable[AnswerLine]) -> None:
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
