"""Where a query begins and a batch read ends: earliest, latest, offsets by queue, or times.

A queue that the user's JSON does not name begins at its earliest offset and ends at its latest one;
a topic or queue in it that does not exist is an error, as is an offset above what there is.

Not here: the JSON's own rules (``offsets.py``), continuing from a checkpoint (``query.py``).
"""

import difflib
from typing import Final

from penstock.spark.offsets import EARLIEST, LATEST, BadOffsets, Marks, Position, users_marks
from penstock.spark.options import SourceOptions
from penstock.spark.upstream import Found, Upstream

EARLIEST_WORD: Final = "earliest"
LATEST_WORD: Final = "latest"


def starting(
    options: SourceOptions, upstream: Upstream, found: Found, *, default: str = EARLIEST_WORD
) -> Position:
    """The first position of a query."""
    earliest = found.marks("earliest")
    if options.starting_at_ms >= 0:
        times = {topic: {"": options.starting_at_ms} for topic in earliest}
        offsets = _at_times(times, upstream, found, "earliest")
    elif options.starting_times:
        times = users_marks("startingOffsetsByTimestamp", options.starting_times, is_nested=False)
        offsets = _at_times(times, upstream, found, "earliest")
    else:
        word = options.starting or default
        offsets = _by_word_or_offset("startingOffsets", word, found, "earliest")
        if not options.fails_on_data_loss:
            offsets = _not_below(offsets, earliest)
    return Position(epoch=found.epoch, offsets=offsets, incarnations=found.marks("incarnation"))


def ending(options: SourceOptions, upstream: Upstream, found: Found) -> Position:
    """Where a batch read ends."""
    if options.ending_at_ms >= 0:
        times = {topic: {"": options.ending_at_ms} for topic in found.marks("end")}
        offsets = _at_times(times, upstream, found, "end")
    elif options.ending_times:
        times = users_marks("endingOffsetsByTimestamp", options.ending_times, is_nested=False)
        offsets = _at_times(times, upstream, found, "end")
    else:
        if options.ending == EARLIEST_WORD:
            raise BadOffsets("option endingOffsets: earliest would end before it begins")
        offsets = _by_word_or_offset("endingOffsets", options.ending or LATEST_WORD, found, "end")
    return Position(epoch=found.epoch, offsets=offsets, incarnations=found.marks("incarnation"))


def _by_word_or_offset(option: str, text: str, found: Found, otherwise: str) -> Marks:
    if text.lower() == EARLIEST_WORD:
        return found.marks("earliest")
    if text.lower() == LATEST_WORD:
        return found.marks("end")
    earliest, ends = found.marks("earliest"), found.marks("end")
    given = users_marks(option, text)
    offsets = found.marks(otherwise)
    for topic, queues in _known(option, given, ends).items():
        for queue, offset in queues.items():
            end = ends[topic][queue]
            if offset > end:
                raise BadOffsets(
                    f"option {option}: offset {offset} of queue {queue} of topic {topic!r} is above"
                    f" its end {end}"
                )
            special = {EARLIEST: earliest[topic][queue], LATEST: end}
            offsets[topic][queue] = special.get(offset, offset)
    return offsets


def _at_times(times: Marks, upstream: Upstream, found: Found, otherwise: str) -> Marks:
    offsets = found.marks(otherwise)
    for topic, queues in _known("offsets by timestamp", times, offsets).items():
        for wanted, at_ms in queues.items():
            for queue, offset in upstream.at_time(topic, at_ms).items():
                if wanted in ("", queue) and queue in offsets[topic]:
                    offsets[topic][queue] = offset
    return offsets


def _known(option: str, given: Marks, there: Marks) -> Marks:
    """What the user named, after a look whether it is there."""
    for topic, queues in given.items():
        if topic not in there:
            close = difflib.get_close_matches(topic, there, n=1, cutoff=0.4)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise BadOffsets(f"option {option}: topic {topic!r} is not read by this query{hint}")
        for queue in queues:
            if queue and queue not in there[topic]:
                raise BadOffsets(
                    f"option {option}: topic {topic!r} has no queue {queue!r}; it has"
                    f" {', '.join(there[topic])}"
                )
    return given


def _not_below(offsets: Marks, earliest: Marks) -> Marks:
    return {
        topic: {queue: max(offset, earliest[topic][queue]) for queue, offset in queues.items()}
        for topic, queues in offsets.items()
    }
