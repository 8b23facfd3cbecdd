"""A sweep: segments nobody needs leave the store, and what pointed into them follows (D12).

They are forgotten here, in the loop, so that no read starts on them any more; the commit thread
unlinks the files. A crash in between leaves files that the next sweep finds dead again.

Not here: which segments are dead (``retention.py``), who needs what (``engine/``).
"""

from collections.abc import Mapping

from penstock.log.recovery import StoreParts
from penstock.log.segment import Segment


def sweep(parts: StoreParts, needs: Mapping[int, int], now_ms: int, covered: int) -> list[Segment]:
    """Forget what may go; ``needs`` and ``now_ms`` as in ``Store.sweep``."""
    lowest = {index.queue_id: index.min_offset for index in parts.indexes.by_id.values()}
    lowest.update(needs)
    segments, retention = parts.segments, parts.retention
    removed, trims = retention.sweep(lowest, now_ms, covered)
    for segment in removed:
        if segment is segments.first:  # nothing stored before its end is left
            parts.keys.trim(retention.last_ms(segment))
        parts.reader.forget(segment)
        segments.discard(segment)
        retention.forget(segment)
    for queue_id, min_offset in trims.items():
        parts.indexes.trim(queue_id, min_offset)
    return removed
