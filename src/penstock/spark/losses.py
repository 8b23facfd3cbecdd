"""What can have happened to a queue since a checkpoint was written, and what is done about it.

    gone         the topic or queue does not exist any more
    made anew    same name, another incarnation: its offsets name other messages
    behind       retention removed messages that were not read
    ahead        the log ends below the position: it lost its end

With ``failOnDataLoss`` each is an error that says what to do. Without, the query goes on with what
there is, and the log says so: made anew begins at the earliest, ahead at the end.

Not here: messages that are missing inside a range (``reading.py``).
"""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.bulk.link import DATA_LOSS, BulkError
from penstock.spark.offsets import Marks, Position
from penstock.spark.upstream import Answer

_log = logging.getLogger(__name__)

ADVICE: Final = (
    "; set failOnDataLoss=false to go on with what there is, or begin with a new checkpoint"
)

TOLD_MAX: Final = 5
"""Queues that one error names."""


class Loss(msgspec.Struct, frozen=True):
    """One queue whose messages are not what the checkpoint says."""

    kind: str
    topic: str
    queue: str
    text: str


def losses(start: Position, answer: Answer) -> list[Loss]:
    """Everything that is wrong with a start, by queue."""
    found = []
    for topic, queues in start.offsets.items():
        for queue, offset in queues.items():
            where = f"queue {queue} of topic {topic!r}"
            end = answer.latest.get(topic, {}).get(queue)
            earliest = answer.starts.get(topic, {}).get(queue, 0)
            before = start.incarnations.get(topic, {}).get(queue, 0)
            now = answer.incarnations.get(topic, {}).get(queue, before)
            if end is None:
                found.append(Loss("gone", topic, queue, f"{where} is gone"))
            elif before and now != before:
                text = f"{where} was deleted and made anew since offset {offset} was read"
                found.append(Loss("made anew", topic, queue, text))
            elif earliest > offset:
                text = f"{earliest - offset} messages of {where} were removed before they were read"
                text += f" (position {offset}, earliest {earliest})"
                found.append(Loss("behind", topic, queue, text))
            elif end < offset:
                text = f"{where} ends at {end}, below the position {offset}: its log lost its end"
                found.append(Loss("ahead", topic, queue, text))
    return found


def judge(
    start: Position, answer: Answer, *, earliest: Callable[[], Marks] | None
) -> tuple[Position, Marks]:
    """The start to go on from, and where queues begin that are not continued.

    Without ``earliest``, which looks up where queues begin now, every loss is a ``BulkError``.
    """
    found = losses(start, answer)
    if not found:
        return start, {}
    if earliest is None:
        texts = [each.text for each in found[:TOLD_MAX]]
        if len(found) > TOLD_MAX:
            texts.append(f"and {len(found) - TOLD_MAX} more")
        raise BulkError(DATA_LOSS, "; ".join(texts) + _reason(answer) + ADVICE)
    offsets = {topic: dict(queues) for topic, queues in start.offsets.items()}
    begins: Marks = {}
    for each in found:
        _log.warning("data loss, going on: %s%s", each.text, _reason(answer))
        topic, queue = each.topic, each.queue
        if each.kind == "gone":
            del offsets[topic][queue]
        elif each.kind != "behind":
            there = answer.latest if each.kind == "ahead" else earliest()
            offsets[topic][queue] = there[topic][queue]
            begins.setdefault(topic, {})[queue] = there[topic][queue]
    kept = {topic: queues for topic, queues in offsets.items() if queues}
    return msgspec.structs.replace(start, offsets=kept, epoch=answer.epoch), begins


def _reason(answer: Answer) -> str:
    """What the broker knows of it: a lease that was broken is not the query's fault."""
    return f"; the broker says: {answer.lost}" if answer.lost else ""
