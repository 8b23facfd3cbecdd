"""connection.blocked and unblocked: what a publisher is told of memory and disk alarms (F2, F3).

Told once per episode, to clients that announced the capability, in RabbitMQ's words; never for
flow, holds or rates. The engine names resource reasons only for connections that publish.

Not here: whether the socket is read meanwhile (``Connection.may_read``).
"""

from collections.abc import Iterable
from typing import Final

from penstock.flow.reason import Reason
from penstock.wire.amqp.methods.connection import Blocked, Unblocked
from penstock.wire.amqp.methods.method import Method

WORDS: Final = {Reason.MEMORY: "low on memory", Reason.DISK: "low on disk"}
CAPABILITY: Final = "connection.blocked"


class BlockedNotices:
    """What one peer was told last."""

    __slots__ = ("_is_blocked",)

    def __init__(self) -> None:
        self._is_blocked = False

    @property
    def is_blocked(self) -> bool:
        """True while an alarm holds its publishes."""
        return self._is_blocked

    def changed(self, reasons: Iterable[Reason]) -> Method | None:
        """What to say about these reasons, if anything."""
        words = [text for reason, text in WORDS.items() if reason in set(reasons)]
        if bool(words) == self._is_blocked:
            return None
        self._is_blocked = bool(words)
        return Blocked(" & ".join(words)) if words else Unblocked()
