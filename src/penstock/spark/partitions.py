"""How a batch is cut into tasks: by queue, and queues into ranges when more tasks are wanted.

``maxRecordsPerPartition`` bounds a range; ``minPartitions`` cuts the longest queues until there are
so many ranges. Order is kept inside a range only.

Invariant: the same start and end always give the same ranges, and they cover it exactly: a batch
that is done again after a crash reads the same rows.
Not here: reading (``reading.py``).
"""

from pyspark.sql.datasource import InputPartition

from penstock.spark.offsets import Position, queue_order
from penstock.spark.options import SourceOptions
from penstock.spark.upstream import Range


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: Range) -> None:
        self.wanted = wanted

    def __repr__(self) -> str:
        each = self.wanted
        return f"RangePartition({each.topic}/{each.queue} [{each.start}, {each.end}))"


def partitions(
    start: Position, end: Position, options: SourceOptions, columns: tuple[str, ...]
) -> list[InputPartition]:
    """The tasks of a batch; empty queues have none."""
    wholes = [
        Range(
            topic=topic,
            queue=queue,
            start=start.begin_of(end, topic, queue),
            end=end.offsets[topic][queue],
            epoch=end.epoch,
            incarnation=end.incarnations.get(topic, {}).get(queue, 0),
            columns=columns,
        )
        for topic in sorted(end.offsets)
        for queue in sorted(end.offsets[topic], key=queue_order)
        if end.offsets[topic][queue] > start.begin_of(end, topic, queue)
    ]
    return [RangePartition(each) for each in cut(wholes, options)]


def cut(wholes: list[Range], options: SourceOptions) -> list[Range]:
    """Ranges of at most ``maxRecordsPerPartition`` rows, and at least ``minPartitions`` of them."""
    total = sum(each.end - each.start for each in wholes)
    found = []
    for each in wholes:
        rows = each.end - each.start
        pieces = 1
        if options.partition_rows_max:
            pieces = -(-rows // options.partition_rows_max)
        if options.partitions_min > len(wholes):
            pieces = max(pieces, -(-rows * options.partitions_min // total))
        found += _cut_one(each, min(pieces, rows))
    return found


def _cut_one(whole: Range, pieces: int) -> list[Range]:
    rows = whole.end - whole.start
    edges = [whole.start + rows * number // pieces for number in range(pieces + 1)]
    return [
        Range(
            topic=whole.topic,
            queue=whole.queue,
            start=edges[number],
            end=edges[number + 1],
            epoch=whole.epoch,
            incarnation=whole.incarnation,
            columns=whole.columns,
        )
        for number in range(pieces)
    ]
