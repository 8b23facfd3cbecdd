"""How a limit of rows is divided among queues, where no broker does it: by what each has waiting.

Invariants: the shares add up to the limit or to all there is; no queue goes back; the same question
has the same answer.
Not here: the broker's own way, which knows bytes (``poll`` of the bulk lane).
"""

from penstock.spark.offsets import Marks, queue_order


def ends_within(start: Marks, ends: Marks, rows_max: int) -> Marks:
    """Ends for at most ``rows_max`` rows from ``start`` (0 = no limit); all queues are in both."""
    waiting = {
        (topic, queue): end - start[topic][queue]
        for topic, queues in ends.items()
        for queue, end in queues.items()
        if end > start[topic][queue]
    }
    total = sum(waiting.values())
    found = {topic: dict(start[topic]) for topic in ends}
    limit = min(rows_max, total) if rows_max else total
    if not limit:
        return found
    shares = {key: rows * limit // total for key, rows in waiting.items()}
    left = limit - sum(shares.values())
    # Rounding left fewer rows than there are queues; those with most waiting get one each.
    for key in sorted(waiting, key=lambda key: (-waiting[key], key[0], queue_order(key[1]))):
        extra = min(left, waiting[key] - shares[key], 1)
        shares[key] += extra
        left -= extra
    for (topic, queue), rows in shares.items():
        found[topic][queue] += rows
    return found
