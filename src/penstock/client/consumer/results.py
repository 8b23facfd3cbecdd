"""What a listener may answer, and what became of a call: the words shared by every consume service.

A concurrent listener returns nothing (or ``SUCCESS``) when its messages are done, and raises or
returns ``LATER`` when they are to come again. An ordered one may also say ``SUSPEND``, ``COMMIT``
and ``ROLLBACK``. ``Later`` and ``Suspend`` are the same answers with a number.

Not here: who calls listeners (``listening.py``), what follows from an answer (``concurrent.py``,
``ordered.py``).
"""

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

if TYPE_CHECKING:
    from penstock.client.message import ReceivedMessage


class ConsumeResult(Enum):
    """A listener's answer; None is SUCCESS."""

    SUCCESS = "success"
    LATER = "later"
    """Concurrent: the broker gives it again after a delay that grows with each try."""
    SUSPEND = "suspend"
    """Ordered: the same messages again in a moment, nothing of this queue before."""
    COMMIT = "commit"
    """Ordered without automatic commit: everything so far is done."""
    ROLLBACK = "rollback"
    """Ordered without automatic commit: everything since the last commit again."""


class Later(NamedTuple):
    """``LATER`` with numbers."""

    delay_level: int = 0
    """1-18; 0 lets the broker choose (grows with each try); below 0: a dead letter at once."""
    done: int = 0
    """How many messages at the front of a batch are done; only the others come again."""


class Suspend(NamedTuple):
    """``SUSPEND`` with a time; 0 takes the consumer's own."""

    suspend_ms: int = 0


Answer: TypeAlias = ConsumeResult | Later | Suspend | None


class ResultKind(Enum):
    """What became of one call of a listener, for hooks and statistics."""

    SUCCESS = "success"
    TIME_OUT = "time-out"
    """It took longer than the consume time-out, whatever it returned."""
    EXCEPTION = "exception"
    LATER = "later"
    """It said so: LATER, SUSPEND or ROLLBACK."""


class Finished(msgspec.Struct, gc=False):
    """One ended call of a listener, on its way back to the client's loop."""

    messages: "list[ReceivedMessage]"
    answer: Answer
    error: BaseException | None
    kind: ResultKind
    spent_ms: float

    @property
    def is_success(self) -> bool:
        """True when the listener neither raised nor asked for any of its messages again."""
        return self.error is None and self.answer in (
            None,
            ConsumeResult.SUCCESS,
            ConsumeResult.COMMIT,
        )
