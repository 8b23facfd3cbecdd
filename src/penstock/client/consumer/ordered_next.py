"""What follows from an ordered listener's answer: a table.

    answer               auto commit    without
    None, SUCCESS        COMMIT         KEEP       taken, not committed yet
    COMMIT               COMMIT         COMMIT
    SUSPEND, LATER       AGAIN          AGAIN      these messages, after a moment
    ROLLBACK             AGAIN          ROLL_BACK  everything since the last commit
    an exception         AGAIN          AGAIN

RocketMQ takes a ROLLBACK under auto commit for a success (with a warning). Here it is what it says
as far as it can be: nothing a listener did not accept is committed.
"""

from enum import Enum, auto
from typing import Final

from penstock.client.consumer.results import ConsumeResult, Finished, Later, Suspend

SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30_000
"""RocketMQ's bounds of a suspension."""


class Next(Enum):
    """What to do with the messages of a call."""

    COMMIT = auto()
    KEEP = auto()
    AGAIN = auto()
    ROLL_BACK = auto()


def judge(finished: Finished, is_auto_commit: bool) -> Next:
    """The row and column of the table."""
    answer = finished.answer
    if finished.error is not None or isinstance(answer, (Suspend, Later)):
        return Next.AGAIN
    if answer is ConsumeResult.SUSPEND or answer is ConsumeResult.LATER:
        return Next.AGAIN
    if answer is ConsumeResult.ROLLBACK:
        return Next.AGAIN if is_auto_commit else Next.ROLL_BACK
    if is_auto_commit or answer is ConsumeResult.COMMIT:
        return Next.COMMIT
    return Next.KEEP


def suspend_ms(finished: Finished, default_ms: int) -> int:
    """How long the queue waits: what the listener said, or the consumer's own; within bounds."""
    answer = finished.answer
    wanted = answer.suspend_ms if isinstance(answer, Suspend) else 0
    return min(max(wanted or default_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)
