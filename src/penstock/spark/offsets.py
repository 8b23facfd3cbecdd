"""Positions as they stand in Spark's checkpoint, and offsets as users write them.

    {"version": 1, "epoch": 3, "offsets": {"orders": {"0": 120, "1": 98}},
     "incarnations": {"orders": {"0": 17, "1": 18}}}

Spark compares positions as text, so the same position is always the same JSON: topics by name,
queues by number. ``incarnations`` tell a topic that was deleted and made anew. ``begins`` stands in
the end of a batch only, for queues that were not there at its start: where they begin is part of
the batch, or else a batch that is done again after a crash could begin elsewhere.

Queues are texts here: the number in the topic, or ``broker:number`` for RocketMQ.
Not here: what "earliest" and times mean today (``beginning.py``).
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.model.errors import PenstockError

VERSION: Final = 1
LATEST: Final = -1
EARLIEST: Final = -2
"""In users' JSON, as in Kafka's."""

Marks = dict[str, dict[str, int]]
"""{topic: {queue: number}}."""


class BadOffsets(PenstockError):
    """Offsets that cannot be read."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a query is in every queue."""

    epoch: int = 0
    offsets: Marks = {}
    incarnations: Marks = {}
    begins: Marks = {}

    def as_json(self) -> dict[str, Any]:
        """What Spark stores; equal positions give equal text."""
        found: dict[str, Any] = {
            "version": VERSION,
            "epoch": self.epoch,
            "offsets": ordered(self.offsets),
            "incarnations": ordered(self.incarnations),
        }
        if self.begins:
            found["begins"] = ordered(self.begins)
        return found

    def begin_of(self, end: "Position", topic: str, queue: str) -> int:
        """Where the batch from here to ``end`` begins in a queue of ``end``."""
        begins = end.begins.get(topic, {})
        if queue in begins:
            return begins[queue]
        return self.offsets.get(topic, {}).get(queue, 0)


def position(data: Mapping[str, Any]) -> Position:
    """The position in a checkpoint; raises ``BadOffsets``."""
    version = data.get("version")
    if version != VERSION:
        raise BadOffsets(
            f"this checkpoint holds offsets of version {version!r}, known is {VERSION}: it was"
            " written by another Penstock or another source; use that one, or a new checkpoint"
        )
    try:
        return msgspec.convert(
            {name: value for name, value in data.items() if name != "version"}, Position
        )
    except msgspec.ValidationError as problem:
        raise BadOffsets(f"this checkpoint holds no offsets of Penstock: {problem}") from None


def rows_between(start: Position, end: Position) -> int:
    """Messages of a batch, if none of them is missing."""
    return sum(
        max(0, offset - start.begin_of(end, topic, queue))
        for topic, queues in end.offsets.items()
        for queue, offset in queues.items()
    )


def ordered(marks: Marks) -> Marks:
    """Topics by name, queues by broker and number."""
    return {
        topic: dict(sorted(marks[topic].items(), key=lambda item: queue_order(item[0])))
        for topic in sorted(marks)
    }


def queue_order(queue: str) -> tuple[str, int, str]:
    """By broker, then by number: "10" comes behind "9"."""
    broker, _, number = queue.rpartition(":")
    return (broker, int(number), "") if number.isdigit() else (broker, -1, number)


def users_marks(option: str, text: str, *, is_nested: bool = True) -> Marks:
    """Offsets (or times) as users write them: ``{"orders": {"0": 23, "1": -2}}``.

    Without ``is_nested`` a topic may have one number for all its queues, kept under "".
    """
    example = '{"orders": {"0": 23, "1": -2}}'
    try:
        given = json.loads(text)
    except ValueError as problem:
        raise BadOffsets(
            f"option {option}: {text[:80]!r} is neither earliest, latest nor JSON like {example}"
            f" ({problem})"
        ) from None
    if not isinstance(given, dict) or not given:
        raise BadOffsets(f"option {option}: JSON like {example} is wanted, not {text[:80]}")
    return {topic: _queues(option, topic, each, is_nested) for topic, each in given.items()}


def _queues(option: str, topic: str, given: Any, is_nested: bool) -> dict[str, int]:
    if not is_nested and _is_number(given):
        return {"": given}
    if not isinstance(given, dict) or not given:
        raise BadOffsets(f"option {option}: topic {topic!r} needs its queues, like {{'0': 23}}")
    for queue, number in given.items():
        if queue_order(queue)[1] < 0:
            raise BadOffsets(f"option {option}: {queue!r} of topic {topic!r} is no queue")
        if not _is_number(number) or number < EARLIEST:
            raise BadOffsets(
                f"option {option}: {number!r} at queue {queue} of topic {topic!r} is no offset;"
                f" they begin at 0, {LATEST} is latest and {EARLIEST} earliest"
            )
    return dict(given)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
