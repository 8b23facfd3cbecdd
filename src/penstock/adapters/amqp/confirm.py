"""Publisher confirms of one channel: which publishes were stored, in as few frames as can say it.

From confirm.select on, publishes are numbered from 1. An ack says "as safe as it was asked for":
persistent ones are durable, transient ones stored, unroutable ones dropped (they have no queue to
be lost from). A nack says "not stored": a full queue that rejects, a hold that lasted too long, a
disk that refused. What was answered in one turn leaves as one cumulative ack where that is true of
all before it, and singly where it is not (sheet 3.6).

Invariant: each publish is answered once; what was published before the select never is.
Bound: the open ones are bounded by what the engine holds of the connection (F9).
Not here: when something is durable (``engine/commit.py``), the arithmetic (``flow/confirms.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.flow.confirms import ConfirmLedger
from penstock.wire.amqp.methods.channel import ConfirmSelect, ConfirmSelectOk
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.serializer import ack_frame, confirms

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState


class Confirms:
    """The publishes of one channel that wait for an answer."""

    __slots__ = ("_acked", "_ledger", "_nacked", "_number", "expect")

    def __init__(self, channel_number: int) -> None:
        self._number = channel_number
        self._ledger = ConfirmLedger()
        self.expect: Final = self._ledger.expect
        """So many publishes came in -> the number of the first."""
        self._acked: list[int] = []
        self._nacked: list[int] = []

    @property
    def outstanding(self) -> int:
        """Publishes whose answer was not sent yet."""
        return self._ledger.outstanding

    def acked(self, tokens: list[int]) -> None:
        """These are safe; number 0 is from before the select and nobody's business."""
        self._acked += tokens if 0 not in tokens else [each for each in tokens if each]

    def nacked(self, tokens: list[int]) -> None:
        """These were not stored."""
        self._nacked += [each for each in tokens if each]

    def take(self) -> bytes:
        """The frames that say it; empty when there is nothing to say."""
        if not self._acked and not self._nacked:
            return b""
        if not self._nacked:
            first, last = self._acked[0], self._acked[-1]
            is_run = self._acked == list(range(first, last + 1))
            if is_run and self._ledger.answer_next(first, last):
                self._acked = []
                return ack_frame(self._number, last, is_multiple=last > first)
        acked, self._acked = self._acked, []
        nacked, self._nacked = self._nacked, []
        verdicts = self._ledger.answer(acked, nacked)
        return confirms(self._number, *verdicts.acks) + confirms(
            self._number, *verdicts.nacks, is_ack=False
        )


def select(channel: ChannelState, method: ConfirmSelect) -> None:
    """confirm.select."""
    channel.publishing.select_confirms()
    if not method.is_nowait:
        channel.answer(ConfirmSelectOk())


COMMANDS: Final[dict[type[Method], Callable[[ChannelState, Any], None]]] = {ConfirmSelect: select}
