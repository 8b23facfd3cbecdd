"""Layouts: publishes that differ in text and body only are recognised by their other bytes.

    | method frame | 02 ch size, class, weight | body size | flags .. | text | .. | CE | 03 ..
    |<------------- the same in all ---------->|           |<- same ->| free | same |

A client sends the same few kinds of messages again and again: same names, same properties present,
same lengths; what changes is the text of ids, headers and types. Of one such message, read at
leisure, a ``Layout`` learns which bytes decide (lengths, delivery mode, priority, timestamp,
expiration, reply-to, user-id and everything in a headers table but the text of its values) and
which are free. Another message that has the deciding bytes is known without reading it.

``Stretch`` is the same for a layout and a body size: then every message has the same length, and
many are taken apart and compared by columns, a few calls into C for all of them.

Invariant: a message that fits gives the record that ``content.Assembler`` would give.
Not here: finding the layout to try (``inflow.py``).
"""

from collections.abc import Iterable
from itertools import repeat
from struct import Struct
from typing import Final

from penstock.model.record import Record, Shape
from penstock.wire.amqp.codes import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_OVERHEAD
from penstock.wire.amqp.content import CONTENT_FRONT, CONTENT_HEAD
from penstock.wire.amqp.frame import END, HEAD
from penstock.wire.amqp.origin import PublishHead, Reading, examine, shape_of

FREE_SPANS_MAX: Final = 32
"""Messages with more pieces of free text are read at leisure: columns would cost more."""
PATIENCE: Final = 4
"""Misses in a row after which a layout is given up."""
FEW: Final = 16
"""Messages of a stretch read one by one; then it is long, and columns are cheaper."""
COLUMNS_FIRST: Final = 256
"""Messages looked at by columns at first; then ever more of them."""
BODY_SIZES_KEPT: Final = 64
"""Shapes and stretches a layout remembers, by body size."""
_FREE: Final = (
    "content_type", "content_encoding", "correlation_id", "message_id", "type", "app_id",
    "cluster_id",
)  # fmt: skip
_U64: Final = Struct(">Q")


class Layout:
    """What one kind of publish has in common; ``unpack_from`` gives fixed bytes at even places.

    Place 1 is the body size, the other odd ones are free text.
    """

    __slots__ = (
        "_pieces", "_stretches", "channel", "fixed", "head", "last_size", "patience", "props_at",
        "reading", "size", "sizes", "unpack_from", "usual",
    )  # fmt: skip

    def __init__(self, method_frame: bytes, head: PublishHead, properties: bytes) -> None:
        channel = HEAD.unpack_from(method_frame)[1]
        self.channel: Final[int] = channel
        self.head: Final = head
        self.reading: Final[Reading] = examine(properties)
        front = HEAD.pack(FRAME_HEADER, channel, CONTENT_HEAD.size + len(properties))
        first = b"".join((method_frame, front, CONTENT_FRONT))
        self._pieces: Final = _cut(properties, free_spans(self.reading))
        last = self._pieces[-1] + END
        # fixed, body size, then fixed and free in turns; the last one is fixed.
        parts = [*self._pieces[:-1], last]
        layout = Struct(f">{len(first)}sQ" + "".join([f"{len(part)}s" for part in parts]))
        self.fixed: Final = (first, *parts[::2])
        self.unpack_from: Final = layout.unpack_from
        self.size: Final = layout.size
        self.patience = PATIENCE
        self.props_at: Final = len(first) + 8
        self.sizes: dict[int, tuple[Shape, bytes]] = {}
        self._stretches: dict[int, Stretch] = {}
        self.last_size = 0
        """The body size of the message before: two of one size in a row are worth a stretch."""
        self.usual: Stretch | None = None
        """What is tried first: the stretch that was used last."""

    def is_at(self, data: bytes, at: int) -> bool:
        """False when what lies there is different; too little of it may still become the same."""
        return at + self.size > len(data) or self.unpack_from(data, at)[::2] == self.fixed

    def awaits(self, data: bytes, at: int, body_max: int) -> int:
        """Bytes to wait for: those of the message at ``at`` while it is not all there, else 0.

        It must begin as these do.
        """
        left, size = len(data) - at, self.size
        if left < size:
            return size
        row = self.unpack_from(data, at)
        body_size = row[1]
        if row[::2] != self.fixed or not 0 < body_size <= body_max:
            return 0
        if left < size + HEAD.size:
            return size + HEAD.size
        if HEAD.unpack_from(data, at + size) != (FRAME_BODY, self.channel, body_size):
            return 0
        whole = size + FRAME_OVERHEAD + body_size
        return whole if left < whole else 0

    def sized(self, body_size: int, now_ms: int) -> tuple[Shape, bytes]:
        """Of a message with such a body: its shape, and the head of its body frame."""
        props_len = self.size - self.props_at - 1
        shape = shape_of(self.head, self.reading, props_len, body_size, now_ms)
        found = shape, HEAD.pack(FRAME_BODY, self.channel, body_size)
        # One that expires has a shape for its own millisecond.
        if not shape.expire_ms:
            if len(self.sizes) >= BODY_SIZES_KEPT:
                self.sizes.clear()
            self.sizes[body_size] = found
        return found

    def stretch(self, body_size: int) -> "Stretch":
        """How many messages with such a body are read at once."""
        stretch = self._stretches.get(body_size)
        if stretch is None:
            if len(self._stretches) >= BODY_SIZES_KEPT:
                self._stretches.clear()
            stretch = self._stretches[body_size] = Stretch(self, self._pieces, body_size)
        return stretch


class Stretch:
    """Consecutive messages of one layout and body size."""

    __slots__ = (
        "_body_size", "_fixed", "_iter_unpack", "_join", "_names", "_prefix", "_props",
        "_unpack_from", "front", "size",
    )  # fmt: skip

    def __init__(self, layout: Layout, pieces: list[bytes], body_size: int) -> None:
        names = layout.head.names
        body_front = END + HEAD.pack(FRAME_BODY, layout.channel, body_size)
        first = layout.fixed[0] + _U64.pack(body_size) + pieces[0]
        parts = [first, *pieces[1:]]
        parts[-1] += body_front
        text = "".join([f"{len(part)}s" for part in parts])
        rows = Struct(f">{text}{body_size}sB")
        self._fixed: Final = (*parts[::2], FRAME_END)
        self.front: Final = parts[0]
        """What each begins with: a quick way to see that something else lies there."""
        self._iter_unpack: Final = rows.iter_unpack
        self._unpack_from: Final = rows.unpack_from
        self.size: Final = rows.size
        self._body_size: Final = body_size
        self._names: Final = names
        self._props: Final = (layout.props_at, layout.size - 1)
        self._prefix: Final = names + pieces[0]
        self._join: Final = pieces[2::2]

    def take(self, layout: Layout, data: bytes, at: int, now_ms: int) -> list[Record]:
        """The messages at ``at`` that fit; ``layout`` is the one it is of."""
        size, body_size = self.size, self._body_size
        shape = (layout.sizes.get(body_size) or layout.sized(body_size, now_ms))[0]
        born_ms = layout.reading.born_ms or now_ms
        count = (len(data) - at) // size
        few = count if count <= 2 * FEW else FEW
        records: list[Record] = []
        starts = range(at, at + few * size, size)
        if len(self._fixed) == 2:
            # Nothing but the body is free: it lies behind the front.
            front, prefix, end_at = self.front, self._prefix, size - 1
            body_at = len(front)
            for start in starts:
                if not data.startswith(front, start) or data[start + end_at] != FRAME_END:
                    return records
                origin = prefix + data[start + body_at : start + end_at]
                records.append(Record(origin, shape, born_ms))
        else:
            unpack, fixed, names = self._unpack_from, self._fixed, self._names
            props_at, props_end = self._props
            for start in starts:
                row = unpack(data, start)
                if row[::2] != fixed:
                    return records
                origin = names + data[start + props_at : start + props_end] + row[-2]
                records.append(Record(origin, shape, born_ms))
        if count > few:
            origins = self._many(memoryview(data)[at + few * size : at + count * size])
            records += map(Record, origins, repeat(shape), repeat(born_ms))
        return records

    def _many(self, data: memoryview) -> list[bytes]:
        """Origins of the messages at the front of ``data`` that fit, by ever longer columns."""
        origins: list[bytes] = []
        count, size = COLUMNS_FIRST, self.size
        at, left = 0, len(data) // size
        while left:
            count = min(count, left)
            found = self._columns(data[at : at + count * size])
            origins += found
            if len(found) < count:
                break
            at += count * size
            left -= count
            count *= 16
        return origins

    def _columns(self, data: memoryview) -> list[bytes]:
        """The same, all of them looked at together; it holds whole messages only."""
        columns = list(zip(*self._iter_unpack(data), strict=True))
        count = len(columns[0])
        fits = min(map(_same, columns[::2], self._fixed))
        free = columns[1::2]
        if len(free) == 1:
            origins = list(map(self._prefix.__add__, free[0]))
        else:
            texts: list[Iterable[bytes]] = [repeat(self._prefix), free[0]]
            for fixed, column in zip(self._join, free[1:], strict=True):
                texts += (repeat(fixed), column) if fixed else (column,)
            # Not strict: what repeats has no end.
            origins = list(map(b"".join, zip(*texts, strict=False)))
        return origins if fits == count else origins[:fits]


def free_spans(reading: Reading) -> list[tuple[int, int]]:
    """Where text lies that decides nothing, in order; empty pieces are left out."""
    spans = [reading.walk.spans[name] for name in _FREE if name in reading.walk.spans]
    return sorted(span for span in spans + reading.walk.texts if span[1] > span[0])


def _cut(properties: bytes, spans: list[tuple[int, int]]) -> list[bytes]:
    """Fixed and free pieces in turns, a fixed one first and last (it may be empty)."""
    pieces: list[bytes] = []
    at = 0
    for start, end in spans:
        pieces += (properties[at:start], properties[start:end])
        at = end
    pieces.append(properties[at:])
    return pieces


def _same(column: tuple[object, ...], value: object) -> int:
    """How many at the front of a column are this value."""
    count = len(column)
    if column.count(value) == count:
        return count
    return next(place for place, found in enumerate(column) if found != value)
