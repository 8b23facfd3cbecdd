"""The broker's parser: bytes of one connection become events, many publishes at a time.

    bytes -> like the last messages? -> yes: this one, and by columns all that are like it
                                     -> no: frame by frame through the ``ContentAssembler``

Why it is not a plain loop over frames. A client sends the same few kinds of messages again and
again: same names, same properties present, same lengths; what changes is the body and the text of
ids and headers. Of a kind seen a few times the parser learns a ``MessageLayout``: which bytes
decide and which are free. A message that has the deciding bytes is taken without reading its
frames, and of many such messages in one read all are compared by columns, with a few calls into C.
What this buys was measured on 2026-11-17 (CPython 3.11, not compiled, a busy machine, bodies of 128
bytes) against a plain parser that reads the three frames of a publish in one go and remembers
publish heads and property blocks: 0.5 us a message instead of 3.4 in reads of 64 KiB (0.4 and 3.7
when every message has an id of its own); in reads of 2 KiB 1.5 instead of 2.3 (0.9 and 4.0). If the
tree is compiled one day, measure again: ``ContentAssembler`` alone is correct, this is only faster.

A kind seen twice in a row, or a few times, is worth learning. A layout that keeps not fitting is
forgotten, and must be seen more often before it is learnt again: odd traffic costs looks, not
lessons.

Invariants: the events are those of the ``ContentAssembler`` fed frame by frame, but for runs being
longer (``tests/property/test_amqp_wire.py`` compares them); an error ends the stream: events before
it are returned, ``failure`` says why, what follows is ignored. Of an incomplete frame no more than
the frame is kept, and it is not looked at again until it is complete: one byte at a time costs
linear time. A publish that begins as one that is known is awaited as a whole. What is a lot of work
is read in parts (``has_more``; law 5).
Bounds: ``LAYOUTS_MAX`` layouts; contents in progress are the assembler's (``held_bytes``).
Not here: whether a channel is open, and what is done with an event (``adapters/amqp``).
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from itertools import repeat
from struct import Struct
from typing import Final

from penstock.model.record import Record, Shape
from penstock.wire.amqp.codes import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_MAX_MIN,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    MESSAGE_BYTES_MAX,
    AmqpError,
    frame_error,
)
from penstock.wire.amqp.frames import (
    CONTENT_FRONT,
    CONTENT_HEAD,
    END,
    HEAD,
    AckRun,
    ContentAssembler,
    Event,
    PublishRun,
    SettleRun,
    bad_end,
    check_greeting,
    payload_max,
)
from penstock.wire.amqp.methods.basic import Ack, Nack, Reject
from penstock.wire.amqp.origin import (
    PUBLISH_IDS,
    ContentHeader,
    PublishHead,
    publish_head,
    read_content_header,
    shape_of,
)

LAYOUTS_MAX: Final = 256
"""Kinds of publishes remembered per connection; then learning begins anew."""
SIGHTINGS_MIN: Final = 5
SIGHTINGS_IN_A_ROW: Final = 4
"""What a publish of the same kind as the one before it counts: two in a row are learnt."""
SIGHTINGS_AFTER_MISSES: Final = -60
WORK_AT_ONCE: Final = 4800
"""How much one call reads: a run counts 1, a frame by itself ``FRAME_WORK``; both a few us."""
FRAME_WORK: Final = 4


class AmqpParser:
    """One connection's bytes in, events out."""

    __slots__ = (
        "_assembler", "_body_max", "_is_greeted", "_last_key", "_layout", "_layouts",
        "_payload_max", "_rest", "_wanted", "failure", "has_more", "held_bytes", "is_clear",
    )  # fmt: skip

    def __init__(
        self, *, message_bytes_max: int = MESSAGE_BYTES_MAX, is_greeted: bool = False
    ) -> None:
        self._assembler = ContentAssembler(message_bytes_max=message_bytes_max)
        self._is_greeted = is_greeted
        self._rest = bytearray()
        self._wanted = 0
        self._last_key = b""
        self._layout: MessageLayout | None = None
        # Method frame and the head of the header frame -> layout, or how often it was seen.
        self._layouts: dict[bytes, MessageLayout | int] = {}
        self._payload_max = self._body_max = 0
        self.failure: AmqpError | None = None
        self.has_more = False
        """True when frames that are complete were left for the next call: it was a lot of work."""
        self.held_bytes = 0
        """What is kept of frames and contents that are not complete."""
        self.is_clear = is_greeted
        """True when a frame begins with the next byte, none is kept, and nothing was wrong."""
        self.tune(FRAME_MAX_MIN)

    @property
    def is_greeted(self) -> bool:
        """True once the peer has said that it speaks AMQP 0-9-1."""
        return self._is_greeted

    @property
    def content_channels(self) -> Set[int]:
        """Channels on which a publish has begun to arrive and is not complete."""
        return self._assembler.partials.keys()

    def tune(self, frame_max: int, channel_max: int = 0) -> None:
        """Take what was negotiated; 0 = no limit."""
        self._payload_max = payload_max(frame_max)
        self._body_max = min(self._payload_max, self._assembler.message_bytes_max)
        self._assembler.channel_max = channel_max or self._assembler.channel_max
        self._layout = None
        self._layouts.clear()

    def feed(self, data: bytes, now_ms: int) -> list[Event]:
        """What these bytes complete, or as much of it as is read at once: ``has_more``."""
        events: list[Event] = []
        at = 0
        if self.is_clear:
            # Most reads are settlements, or publishes like the last ones, and nothing else.
            layout = self._layout
            if data[3:11] in SETTLE_FRONTS:
                at = _take_settlements(data, events)
            elif layout is not None:
                at = self._take_like(layout, data, 0, events, now_ms)
            if at == len(data):
                return events
        self.has_more = False
        if self.failure is not None:
            return events
        if self._rest:
            if len(self._rest) + len(data) < self._wanted:
                self._rest += data
                self.held_bytes += len(data)
                return events
            data = b"".join((self._rest, data))
            self._rest.clear()
        try:
            at = self._scan(data, at, events, now_ms)
        except AmqpError as problem:
            self.failure = problem
            at = len(data)
        if at < len(data):
            self._rest += data[at:] if at else data
        self.held_bytes = self._assembler.held_bytes + len(self._rest)
        self.is_clear = not self.held_bytes and self.failure is None and self._is_greeted
        return events

    def _scan(self, data: bytes, at: int, events: list[Event], now_ms: int) -> int:
        """Take every whole frame from ``at`` on; where the first incomplete one begins."""
        end = len(data)
        if not self._is_greeted:
            if end < 8:
                self._wanted = 8
                return 0
            check_greeting(data[:8])
            self._is_greeted = True
            at = 8
        left = WORK_AT_ONCE
        while left > 0:
            left -= 1
            layout = self._layout
            if layout is not None and data.startswith(layout.fixed[0], at):
                at = self._take_like(layout, data, at, events, now_ms)
                self._wanted = self._awaited(layout, data, at) if at < end else 8
                if self._wanted:
                    return at
            if at + 7 > end:
                self._wanted = 8
                return at
            kind, channel, size = HEAD.unpack_from(data, at)
            if size > self._payload_max:
                text = f"frame of {size} bytes announced, limit {self._payload_max}"
                raise frame_error(text).about(channel)
            stop = at + FRAME_OVERHEAD + size
            if stop > end:
                self._wanted = FRAME_OVERHEAD + size
                return at
            if data[stop - 1] != FRAME_END:
                raise bad_end(data[stop - 1]).about(channel)
            if kind == FRAME_METHOD:
                after = self._take_known(data, at, stop, events, now_ms)
                if after > at:
                    at = after
                    continue
            left -= FRAME_WORK - 1
            event = self._assembler.take(kind, channel, data[at + 7 : stop - 1], now_ms)
            if event is not None:
                _add(event, events)
            at = stop
        self.has_more = at < end
        self._wanted = 0 if at < end else 8
        return at

    def _awaited(self, layout: MessageLayout, data: bytes, at: int) -> int:
        """How long the publish at ``at`` is when it is of this layout and not complete; else 0."""
        if layout.channel in self._assembler.partials or not data.startswith(layout.fixed[0], at):
            return 0
        return layout.awaits(data, at, self._body_max)

    def _take_known(self, data: bytes, at: int, stop: int, events: list[Event], now_ms: int) -> int:
        """Take what is known of this method and those behind it; ``at`` when it is nothing."""
        ids = data[at + 7 : at + 11]
        if ids == PUBLISH_IDS:
            # With less than the next frame's head nothing can be said of its kind.
            if stop + HEAD.size > len(data):
                return at
            key = data[at : stop + HEAD.size]
            known = self._layouts.get(key, 0)
            layout = (
                known
                if isinstance(known, MessageLayout)
                else self._count_sighting(key, data, at, known)
            )
            if layout is not None:
                after = self._take_like(layout, data, at, events, now_ms)
                if after > at:
                    self._layout = layout
                    layout.misses_left = MISSES_MAX
                elif not layout.is_at(data, at):
                    layout.misses_left -= 1
                    if not layout.misses_left:
                        self._layouts[key] = SIGHTINGS_AFTER_MISSES
                return after
        elif ids in SETTLE_IDS and stop - at == SETTLE.size:
            run = read_settlements(data, at)
            if run is not None and run.channel not in self._assembler.partials:
                if events:
                    _add(run, events)
                else:
                    events.append(run)
                return at + len(run.tags) * SETTLE.size
        return at

    def _count_sighting(
        self, key: bytes, data: bytes, at: int, sightings: int
    ) -> MessageLayout | None:
        """Count one more of this kind; its layout when it was seen often enough."""
        if len(self._layouts) >= LAYOUTS_MAX:
            self._layouts.clear()
        sightings += SIGHTINGS_IN_A_ROW if key == self._last_key else 1
        self._layouts[key] = sightings
        self._last_key = key
        if sightings < SIGHTINGS_MIN:
            return None
        layout = learn(data, at, len(key) - HEAD.size)
        if layout is not None:
            self._layouts[key] = layout
        return layout

    def _take_like(
        self, layout: MessageLayout, data: bytes, at: int, events: list[Event], now_ms: int
    ) -> int:
        """Take the publishes of this layout that lie at ``at``; where the first other thing is."""
        if layout.channel in self._assembler.partials:
            return at
        records: list[Record] = []
        if (fixed_size := layout.last_fixed) is not None and data.startswith(fixed_size.front, at):
            records = fixed_size.take(layout, data, at, now_ms)
            at += len(records) * fixed_size.size
        if at + layout.size <= len(data):
            at = self._take_sizes(layout, data, at, records, now_ms)
        if records:
            run = PublishRun(layout.channel, layout.head, layout.header.claims, records)
            if events:
                _add(run, events)
            else:
                events.append(run)
        return at

    def _take_sizes(
        self, layout: MessageLayout, data: bytes, at: int, records: list[Record], now_ms: int
    ) -> int:
        """Take publishes of this layout with bodies of any size; the same answer."""
        fixed, unpack, size, sizes = layout.fixed, layout.unpack_from, layout.size, layout.sizes
        names, props_at = layout.head.names, layout.props_at
        born_ms = layout.header.born_ms or now_ms
        end, body_max = len(data), self._body_max
        while at + size <= end:
            row = unpack(data, at)
            body_size = row[1]
            if row[::2] != fixed or body_size > body_max:
                break
            shape, front = sizes.get(body_size) or layout.sized(body_size, now_ms)
            body_at = at + size
            if body_size:
                stop = body_at + FRAME_OVERHEAD + body_size
                if stop > end or data[stop - 1] != FRAME_END or not data.startswith(front, body_at):
                    break
                body = data[body_at + 7 : stop - 1]
            else:
                stop, body = body_at, b""
            origin = names + data[at + props_at : body_at - 1] + body
            records.append(Record(origin, shape, born_ms))
            at = stop
            if body_size == layout.last_size and body_size:
                # Two of one size in a row: the rest is probably like them.
                layout.last_fixed = fixed_size = layout.fixed_size(body_size)
                more = fixed_size.take(layout, data, at, now_ms)
                records += more
                at += len(more) * fixed_size.size
            layout.last_size = body_size
        return at


def learn(data: bytes, at: int, method_bytes: int) -> MessageLayout | None:
    """The layout of the publish at ``at``; None when it is incomplete, not plain or not right."""
    header_at = at + method_bytes
    kind, channel, size = HEAD.unpack_from(data, header_at)
    stop = header_at + FRAME_OVERHEAD + size
    front = data[header_at + 7 : header_at + 11]
    if (
        kind != FRAME_HEADER
        or channel != HEAD.unpack_from(data, at)[1]
        or stop > len(data)
        or data[stop - 1] != FRAME_END
        or front != CONTENT_FRONT
    ):
        return None
    try:
        head = publish_head(data[at + 7 : header_at - 1])
        layout = MessageLayout(data[at:header_at], head, data[header_at + 19 : stop - 1])
    except AmqpError:
        # The assembler reads it next and words the error.
        return None
    return layout if len(layout.fixed) <= FREE_SPANS_MAX else None


def _take_settlements(data: bytes, events: list[Event]) -> int:
    """Take the settlements with which a read begins; where the first other thing is."""
    size = SETTLE.size
    if len(data) < size or data[0] != FRAME_METHOD or data[size - 1] != FRAME_END:
        return 0
    run = read_settlements(data, 0)
    if run is None:
        return 0
    events.append(run)
    return len(run.tags) * size


def _add(event: Event, events: list[Event]) -> None:
    """Put an event behind the others, or into the last one when it goes on with it."""
    last = events[-1] if events else None
    if type(event) is PublishRun and type(last) is PublishRun:
        is_same = last.channel == event.channel and last.head == event.head
        if is_same and last.claims == event.claims:
            last.records += event.records
            return
    elif (
        type(event) is AckRun
        and type(last) is AckRun
        and last.channel == event.channel
        and last.is_multiple == event.is_multiple
        and len(last.tags) < RUN_TAGS_MAX
    ):
        last.tags += event.tags
        return
    events.append(event)


# ---- layouts ------------------------------------------------------------------------------------
# | | method frame | 02 ch size, class, weight | body size | flags .. | text | .. | CE | 03 ..
# | |<------------- the same in all ---------->|           |<- same ->| free | same |
#
# What decides: lengths, delivery mode, priority, timestamp, expiration, reply-to, user-id and
# everything in a headers table but the text of its values. Invariant: a message that fits gives the
# record that ``ContentAssembler`` would give.

FREE_SPANS_MAX: Final = 32
"""Messages with more pieces of free text go frame by frame: columns would cost more."""
MISSES_MAX: Final = 4
"""Misses in a row after which a layout is given up."""
FEW: Final = 16
"""Messages read one by one before columns are tried: making columns has a fixed cost."""
COLUMNS_FIRST: Final = 256
"""Messages looked at by columns at first; then ever more of them."""
BODY_SIZES_KEPT: Final = 64
"""Shapes and fixed-size layouts that a layout remembers, by body size."""
_FREE: Final = (
    "content_type", "content_encoding", "correlation_id", "message_id", "type", "app_id",
    "cluster_id",
)  # fmt: skip
_U64: Final = Struct(">Q")


class MessageLayout:
    """What one kind of publish has in common.

    ``unpack_from`` gives fixed bytes at even places; place 1 is the body size, the other odd ones
    are free text.
    """

    __slots__ = (
        "_fixed_sizes",
        "_pieces",
        "channel",
        "fixed",
        "head",
        "header",
        "last_fixed",
        "last_size",
        "misses_left",
        "props_at",
        "size",
        "sizes",
        "unpack_from",
    )  # fmt: skip

    def __init__(self, method_frame: bytes, head: PublishHead, properties: bytes) -> None:
        channel = HEAD.unpack_from(method_frame)[1]
        self.channel: Final[int] = channel
        self.head: Final = head
        self.header: Final[ContentHeader] = read_content_header(properties)
        front = HEAD.pack(FRAME_HEADER, channel, CONTENT_HEAD.size + len(properties))
        first = b"".join((method_frame, front, CONTENT_FRONT))
        self._pieces: Final = _cut(properties, free_spans(self.header))
        last = self._pieces[-1] + END
        # fixed, body size, then fixed and free in turns; the last one is fixed.
        parts = [*self._pieces[:-1], last]
        layout = Struct(f">{len(first)}sQ" + "".join([f"{len(part)}s" for part in parts]))
        self.fixed: Final = (first, *parts[::2])
        self.unpack_from: Final = layout.unpack_from
        self.size: Final = layout.size
        self.misses_left = MISSES_MAX
        self.props_at: Final = len(first) + 8
        self.sizes: dict[int, tuple[Shape, bytes]] = {}
        self._fixed_sizes: dict[int, FixedSizeLayout] = {}
        self.last_size = 0
        """The body size of the message before."""
        self.last_fixed: FixedSizeLayout | None = None
        """What is tried first: the one that was used last."""

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
        shape = shape_of(self.head, self.header, props_len, body_size, now_ms)
        found = shape, HEAD.pack(FRAME_BODY, self.channel, body_size)
        # One that expires has a shape for its own millisecond.
        if not shape.expire_ms:
            if len(self.sizes) >= BODY_SIZES_KEPT:
                self.sizes.clear()
            self.sizes[body_size] = found
        return found

    def fixed_size(self, body_size: int) -> FixedSizeLayout:
        """The layout of messages with such a body."""
        found = self._fixed_sizes.get(body_size)
        if found is None:
            if len(self._fixed_sizes) >= BODY_SIZES_KEPT:
                self._fixed_sizes.clear()
            found = self._fixed_sizes[body_size] = FixedSizeLayout(self, self._pieces, body_size)
        return found


class FixedSizeLayout:
    """A layout and a body size: every message has the same length, so many are read by columns."""

    __slots__ = (
        "_body_size", "_fixed", "_iter_unpack", "_join", "_names", "_prefix", "_props",
        "_unpack_from", "front", "size",
    )  # fmt: skip

    def __init__(self, layout: MessageLayout, pieces: list[bytes], body_size: int) -> None:
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

    def take(self, layout: MessageLayout, data: bytes, at: int, now_ms: int) -> list[Record]:
        """The messages at ``at`` that fit; ``layout`` is the one it is of."""
        size, body_size = self.size, self._body_size
        shape = (layout.sizes.get(body_size) or layout.sized(body_size, now_ms))[0]
        born_ms = layout.header.born_ms or now_ms
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
        fits = min(map(_leading_equal, columns[::2], self._fixed))
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


def free_spans(header: ContentHeader) -> list[tuple[int, int]]:
    """Where text lies that decides nothing, in order; empty pieces are left out."""
    spans = [header.spans.spans[name] for name in _FREE if name in header.spans.spans]
    return sorted(span for span in spans + header.spans.texts if span[1] > span[0])


def _cut(properties: bytes, spans: list[tuple[int, int]]) -> list[bytes]:
    """Fixed and free pieces in turns, a fixed one first and last (it may be empty)."""
    pieces: list[bytes] = []
    at = 0
    for start, end in spans:
        pieces += (properties[at:start], properties[start:end])
        at = end
    pieces.append(properties[at:])
    return pieces


def _leading_equal(column: tuple[object, ...], value: object) -> int:
    """How many at the front of a column are this value."""
    count = len(column)
    if column.count(value) == count:
        return count
    return next(place for place, found in enumerate(column) if found != value)


# ---- settlements --------------------------------------------------------------------------------
# | | 01 ch u16 size 13 | class 60 | 80 ack, 90 reject, 120 nack | tag u64 | bits | CE |
#
# All three are of one size, so a row of them is read by columns, whichever they are. Acks alone are
# an ``AckRun``; with nacks or rejects among them it is a ``SettleRun``. Those that speak of several
# messages (multiple) are runs of acks, or commands by themselves.
# Not here: what they mean (``adapters/amqp/consumer.py``).

_ACK: Final = Ack.method_id
_NACK: Final = Nack.method_id
_REJECT: Final = Reject.method_id
SETTLE: Final = Struct(">11sQBB")
"""Frame head with class and method, tag, bits, end."""
SETTLE_IDS: Final = frozenset(
    bytes((0, CLASS_BASIC, 0, kind.method_id)) for kind in (Ack, Nack, Reject)
)
SETTLE_FRONTS: Final = frozenset(b"\0\0\0\x0d" + ids for ids in SETTLE_IDS)
"""Size of the payload, class and method."""
RUN_TAGS_MAX: Final = 15_000
"""Tags of one run: more than one read of a socket brings at most times."""


def read_settlements(data: bytes, at: int) -> AckRun | SettleRun | None:
    """What lies at ``at``, with what follows of its kind; None when it is to be read by itself."""
    count = min((len(data) - at) // SETTLE.size, RUN_TAGS_MAX)
    fixed, tag, bits, last = SETTLE.unpack_from(data, at)
    channel = fixed[1] << 8 | fixed[2]
    if count == 1 and fixed[10] == _ACK and last == FRAME_END:
        return AckRun(channel, [tag], bool(bits & 1))
    view = memoryview(data)[at : at + count * SETTLE.size]
    if fixed[10] == _ACK:
        tags = _same_acks(view, fixed, bits)
        stop = len(tags) * SETTLE.size
        if bits & 1 or stop == len(view) or not _word_of(fixed, *SETTLE.unpack_from(view, stop)):
            return AckRun(channel, tags, bool(bits & 1))
    return _mixed(view, fixed, channel)


def _same_acks(view: memoryview, fixed: bytes, bits: int) -> list[int]:
    """The tags of the first rows that differ in nothing else."""
    tags: list[int] = []
    for front, tag, its_bits, last in SETTLE.iter_unpack(view):
        if front != fixed or its_bits != bits or last != FRAME_END:
            break
        tags.append(tag)
    return tags


def _mixed(view: memoryview, fixed: bytes, channel: int) -> SettleRun | None:
    tags: list[int] = []
    words = bytearray()
    known: dict[tuple[bytes, int, int], int] = {}
    for front, tag, bits, last in SETTLE.iter_unpack(view):
        word = known.get((front, bits, last))
        if word is None:
            word = known[front, bits, last] = _word_of(fixed, front, tag, bits, last)
        if not word:
            break
        tags.append(tag)
        words.append(word)
    return SettleRun(channel, tags, bytes(words)) if tags else None


def _word_of(fixed: bytes, front: bytes, _tag: int, bits: int, last: int) -> int:
    """The word of a row (``SettleRun.words``); 0 when it is none, or of another channel."""
    method = front[10]
    if front[:10] != fixed[:10] or last != FRAME_END:
        return 0
    if method == _REJECT:
        return method + (bits & 1)
    if bits & 1:
        return 0
    if method == _NACK:
        return method + (bits >> 1 & 1)
    return method if method == _ACK else 0
