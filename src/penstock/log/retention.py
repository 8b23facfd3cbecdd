"""Which segments may go, and what each is still needed for (D11, D12).

For every segment this file remembers, for each queue, the end offset of the queue's last entry that
points into it (or whose release record lies in it), how many delayed records in it are pending, and
when it was last written to. A segment is *dead* when

* it is not the last one, and the last durable snapshot covers all of it (its settle records are
  replayed by nobody),
* no delayed record in it is pending,
* the segments of the delayed records that were released in it are gone, durably (else a rebuild
  would find these pending again), and
* every queue's lowest needed offset is at or past that queue's end offset in it, and
* no copy of staged rows that is under way, or not entered into its queues yet, has begun before
  its end (``pinned``).

A dead segment stays for ``settled_keep_ms`` while all dead ones together have at most
``settled_keep_bytes_max``; the oldest go first. It may lie anywhere: positions never change. Both
are kept only if there is room: whoever sweeps says how much the disk is short of, and so much goes
at once, oldest first. If that is not enough and nobody needs the last segment, it is rolled
(``is_last_idle``), so that it may go with the next sweep.

Both questions are asked queue by queue, and others have their turns in between: first which
segments are dead (``Retention.sweep``), then, for those that go, each queue once more, which lets
go of its entries at that moment (``Retention.let_go``): they can be read no more, so whoever comes
to the queue later begins behind them and cannot need what is about to go. Only when all queues of a
segment have let go of it does it leave. One that needs it again meanwhile keeps it.

The queues of the last segment are not written down: they are those whose ``last_position`` lies in
it. A segment's row is written once it is full, and again when a release points back into it.

Not here: who needs what (``engine``), unlinking (``store.py`` lets the commit thread do it).
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from struct import Struct
from typing import Final

import msgspec

from penstock.log.catalog import Op
from penstock.log.index import QueueIndex
from penstock.log.segment import Segment, SegmentSet, segment_path
from penstock.model.ids import is_transient_id

SEGMENT_KIND: Final = "segment"
NOTHING_NEEDED: Final = 1 << 63
"""Lowest needed offset of a queue that does not exist any more."""

NOT_PINNED: Final = 1 << 63
"""Behind every position."""

ROLL_BYTES_MIN: Final = 64 * 1024
"""A last segment smaller than the smallest one that can be set is not worth a new file."""

_PAIR: Final = Struct("<IQ")

Needs = Callable[[int], int]
"""The lowest offset that somebody needs of a queue now; ``NOTHING_NEEDED`` if there is no such."""
Trim = Callable[[int, int], None]
"""Nothing of a queue below an offset can be read any more."""


class SegmentRow(msgspec.Struct, frozen=True):
    """A segment's catalog row."""

    delayed: int
    last_ms: int
    ends: bytes
    """Packed (queue_id u32, end_offset u64) pairs."""
    origins: list[int] = []
    """Bases of segments with delayed records that were released in this one."""


class SegmentUse:
    """What one segment is needed for."""

    __slots__ = ("_packed", "_pinned", "base", "delayed", "fresh", "last_ms", "origins")

    def __init__(self, base: int) -> None:
        self.base: Final = base
        self.delayed = 0
        self.last_ms = 0
        self.fresh: dict[int, int] = {}
        """queue_id -> end offset, noted since the pairs were packed."""
        self.origins: set[int] = set()
        """Bases of older segments whose delayed records were released in this one."""
        self._packed = b""
        # The queue that needed it the last time, and its end: mostly it still does.
        self._pinned: tuple[int, int] | None = None

    def ends(self) -> Iterable[tuple[int, int]]:
        """(queue_id, end offset), possibly more than one for a queue: the largest counts.

        As of the first look, whatever is noted or packed until the last.
        """
        packed, fresh = self._packed, list(self.fresh.items())
        yield from _PAIR.iter_unpack(packed)
        yield from fresh

    def pack(self) -> None:
        """Trade the dictionary for 12 bytes a queue; transient queues keep no segment alive."""
        if self.fresh:
            ends: dict[int, int] = {}
            for queue_id, end in self.ends():
                ends[queue_id] = max(end, ends.get(queue_id, 0))
            self._packed = b"".join([_PAIR.pack(*pair) for pair in ends.items()])
            self.fresh = {}

    def row(self, *, has_ends: bool) -> Op:
        """The catalog row as of now; the ends of the last segment's queues are left out."""
        durable = b""
        if has_ends:
            self.pack()
            durable = b"".join(
                [_PAIR.pack(*pair) for pair in self.ends() if not is_transient_id(pair[0])]
            )
        row = SegmentRow(self.delayed, self.last_ms, durable, sorted(self.origins))
        return (SEGMENT_KIND, str(self.base), msgspec.json.encode(row))

    def restore(self, row: SegmentRow) -> None:
        self.delayed, self.last_ms, self._packed = row.delayed, row.last_ms, row.ends
        self.origins = set(row.origins)

    def is_needed(self, needs: Needs) -> Generator[int, None, bool]:
        """Whether a queue or a pending delay needs a record in it; yields once for each queue."""
        if self.delayed > 0:
            return True
        if self._pinned is not None:
            yield 1
            queue_id, end = self._pinned
            if end > needs(queue_id):
                return True
        for queue_id, end in self.ends():
            yield 1
            if end > needs(queue_id):
                self._pinned = queue_id, end
                return True
        return False


class Retention:
    """The uses of all segments; decides what goes."""

    def __init__(self, segments: SegmentSet, *, keep_ms: int, keep_bytes_max: int) -> None:
        self._segments = segments
        self._keep_ms = keep_ms
        self._keep_bytes_max = keep_bytes_max
        self._uses: dict[int, SegmentUse] = {}
        self._changed: set[int] = set()
        self._active: SegmentUse | None = None
        self.pinned = NOT_PINNED
        """Nothing goes that ends behind this position."""
        # Paths and sizes of segments that are forgotten and not yet gone for good from the disk.
        self._leaving: dict[str, int] = {}
        # The segment whose row was last written without its queues, because it was the last one.
        self._bare: int | None = None

    def note(self, touched: Iterable[QueueIndex], store_ms: int) -> None:
        """A frame with entries for these queues was written into the last segment."""
        use, last = self._active, self._segments.last
        assert last is not None, "a frame was written, so there is a segment"
        if use is None or use.base != last.base:
            use = self._begin(last.base)
        use.last_ms = store_ms
        fresh = use.fresh
        for index in touched:
            fresh[index.queue_id] = index.staged_offset

    def note_at(self, position: int, touched: Iterable[QueueIndex], store_ms: int) -> None:
        """Recovery: the frame around ``position`` made entries for these queues."""
        use = self._at(position)
        if use is not None:
            use.last_ms = max(store_ms, use.last_ms)
            for index in touched:
                use.fresh[index.queue_id] = index.next_offset
            self._changed.add(use.base)

    def clear(self) -> None:
        """Recovery: forget everything before the whole log is read."""
        self._uses.clear()
        self._changed.update(segment.base for segment in self._segments)

    def note_delayed(self, position: int, change: int) -> None:
        """A delayed record at ``position`` became pending (+1) or is over (-1)."""
        use = self._at(position)
        if use is not None:
            use.delayed += change
            self._changed.add(use.base)

    def note_released(
        self, position: int, released_at: int, ends: Iterable[tuple[int, int]]
    ) -> None:
        """The delayed record at ``position`` was released by the one at ``released_at``.

        Entries up to these (queue_id, end offset) point back at it.
        """
        self.note_delayed(position, -1)
        use, releasing = self._at(position), self._at(released_at)
        if use is None:
            return
        for queue_id, end in ends:
            use.fresh[queue_id] = max(end, use.fresh.get(queue_id, 0))
        if releasing is not None and releasing is not use:
            releasing.origins.add(use.base)
            self._changed.add(releasing.base)

    def note_staged(self, position: int, ends: Iterable[tuple[int, int]]) -> None:
        """Records around ``position`` got offsets from a commit elsewhere, up to these ends."""
        use = self._at(position)
        if use is not None:
            for queue_id, end in ends:
                use.fresh[queue_id] = max(end, use.fresh.get(queue_id, 0))
            self._changed.add(use.base)

    def capture(self) -> list[Op]:
        """Rows of every segment whose use changed, without the last one's queues."""
        ops: list[Op] = []
        active = self._segments.last
        if active is not None:
            self._changed.add(active.base)
            if self._bare is not None and self._bare != active.base:
                self._changed.add(self._bare)
            self._bare = active.base
        for base in sorted(self._changed):
            use = self._uses.get(base)
            if use is None:
                ops.append((SEGMENT_KIND, str(base), None))
            else:
                ops.append(use.row(has_ends=active is None or base != active.base))
        self._changed.clear()
        return ops

    def sweep(
        self, needs: Needs, now_ms: int, covered: int, shortage_bytes: int = 0
    ) -> Generator[int, None, list[Segment]]:
        """Segments that may go, the oldest first; yields how many queues it looked at.

        ``covered`` is the position of the last durable snapshot; so much as ``shortage_bytes`` goes
        at any age. Turns may pass meanwhile, so each queue is to be asked again (``let_go``).
        """
        asked: dict[int, int] = {}

        def once(queue_id: int) -> int:
            need = asked.get(queue_id)
            if need is None:
                need = asked[queue_id] = needs(queue_id)
            return need

        dead: list[Segment] = []
        for segment in self._segments:
            if segment is self._segments.last or segment.end > min(covered, self.pinned):
                continue
            yield 1
            if not (yield from self._use(segment.base).is_needed(once)):
                dead.append(segment)
        excess = sum(segment.size_bytes for segment in dead) - self._keep_bytes_max
        excess = max(excess, shortage_bytes - self.leaving_bytes)
        alive = {segment.path for segment in self._segments} | self._leaving.keys()
        going: list[Segment] = []
        for segment in dead:
            use = self._use(segment.base)
            is_over = excess > 0 or use.last_ms <= now_ms - self._keep_ms
            if is_over and alive.isdisjoint(map(segment_path, use.origins)):
                going.append(segment)
                excess -= segment.size_bytes
        return going

    def let_go(
        self, going: list[Segment], needs: Needs, trim: Trim
    ) -> Generator[int, None, list[Segment]]:
        """Those of these segments that every queue has let go of; yields as ``sweep``.

        From the moment a queue lets go of a segment nothing up to its end there can be read any
        more, in older segments that others need neither: a gap would be kept for nobody, and could
        be needed by somebody who comes to the queue before the segment has left.
        """
        free = list(going)
        for segment in going:
            if not (yield from _is_let_go(self._use(segment.base), needs, trim)):
                free.remove(segment)
        return free

    @property
    def leaving_bytes(self) -> int:
        """What the disk gets back as soon as the commit thread has unlinked it."""
        return sum(self._leaving.values())

    def is_last_idle(self, needs: Needs) -> Generator[int, None, bool]:
        """Whether nobody needs the last segment and a new one in its place would free much."""
        last = self._segments.last
        if last is None or last.size_bytes < ROLL_BYTES_MIN:
            return False
        return not (yield from self._use(last.base).is_needed(needs))

    def last_ms(self, segment: Segment) -> int:
        """When the segment was last written to (wall time)."""
        return self._use(segment.base).last_ms

    def forget(self, segment: Segment) -> None:
        """The segment goes; ``left`` says when it is gone."""
        self._uses.pop(segment.base, None)
        self._changed.add(segment.base)
        self._leaving[segment.path] = segment.size_bytes

    def left(self, paths: Iterable[str]) -> None:
        """These files are gone, whatever happens to the machine."""
        for path in paths:
            self._leaving.pop(path, None)

    def restore(
        self, rows: Mapping[int, SegmentRow], indexes: Iterable[QueueIndex], covered: int
    ) -> bool:
        """Take rows over; False when a segment that should have one has none."""
        for base, row in rows.items():
            if self._segments.find(base) is None:
                self._changed.add(base)
                continue
            self._use(base).restore(row)
        holder = self._segments.find(covered - 1) if covered else None
        if holder is not None:
            self._bare = holder.base
            for index in indexes:
                if index.last_position >= holder.base:
                    self._use(holder.base).fresh[index.queue_id] = index.next_offset
        return all(
            segment.base in rows
            for segment in self._segments
            # One that was rolled before its time may have nothing in it, and then has no row.
            if segment.size_bytes and segment.end <= covered and segment is not holder
        )

    def _begin(self, base: int) -> SegmentUse:
        """The first frame was written into this segment; the one before it is full."""
        if self._active is not None:
            self._active.pack()
            self._changed.add(self._active.base)
        self._active = active = self._use(base)
        self._changed.add(base)
        return active

    def _at(self, position: int) -> SegmentUse | None:
        segment = self._segments.find(position)
        return self._use(segment.base) if segment is not None else None

    def _use(self, base: int) -> SegmentUse:
        use = self._uses.get(base)
        if use is None:
            use = self._uses[base] = SegmentUse(base)
        return use


def _is_let_go(use: SegmentUse, needs: Needs, trim: Trim) -> Generator[int, None, bool]:
    """Let queue after queue let go of a segment; False when one does need it, or a delay does."""
    if use.delayed > 0:
        return False
    for queue_id, end in use.ends():
        yield 1
        # Asked and let go in one step: nobody comes to the queue in between.
        if end > needs(queue_id):
            return False
        trim(queue_id, end)
    return True
