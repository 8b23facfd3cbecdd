"""A message consumed on an operator's order (request 309): the answer in RocketMQ's words.

The broker sends one stored message; the listener is called with it, whoever owns its queue. Nothing
is settled, committed or sent back: the operator learns what the listener made of it.

Not here: calling the listener (``ConsumeService.consume_directly``), the request (``instance.py``).
"""

from typing import Final

from penstock.client.consumer.assigned import DirectOutcome
from penstock.client.consumer.results import ConsumeResult, Finished, Later, Suspend

SUCCESS: Final = "CR_SUCCESS"
LATER: Final = "CR_LATER"
ROLLBACK: Final = "CR_ROLLBACK"
COMMIT: Final = "CR_COMMIT"
RAISED: Final = "CR_THROW_EXCEPTION"

REMARK_CHARS_MAX: Final = 1_000
"""Of an exception's text: it goes to a terminal."""

_NAMES: Final = {
    None: SUCCESS,
    ConsumeResult.SUCCESS: SUCCESS,
    ConsumeResult.LATER: LATER,
    ConsumeResult.SUSPEND: LATER,
    ConsumeResult.COMMIT: COMMIT,
    ConsumeResult.ROLLBACK: ROLLBACK,
}


def direct_outcome(
    finished: Finished, *, is_ordered: bool, is_auto_commit: bool = True
) -> DirectOutcome:
    """What a call of the listener came to."""
    error, answer = finished.error, finished.answer
    if error is not None:
        result, remark = RAISED, f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]
    elif isinstance(answer, (Later, Suspend)):
        result, remark = LATER, ""
    else:
        result, remark = _NAMES[answer], ""
    return DirectOutcome(result, remark, int(finished.spent_ms), is_ordered, is_auto_commit)


def outcome_body(outcome: DirectOutcome) -> dict[str, object]:
    """The body of the answer (``spentTimeMills`` is RocketMQ's spelling)."""
    return {
        "order": outcome.is_ordered,
        "autoCommit": outcome.is_auto_commit,
        "consumeResult": outcome.result,
        "remark": outcome.remark or None,
        "spentTimeMills": outcome.spent_ms,
    }
