"""The way in: bytes of one connection become events, many publishes at a time.

    bytes -> Layout fits? -> yes: this message, and by columns all that are like it
                          -> no: frame by frame through the Assembler, and learn the layout

Most reads are one run from end to end: that is tried first, everything else is scanned.
A kind seen twice in a row, or a few times, is worth learning. A layout that keeps not fitting is
forgotten, and must be seen more often before it is learnt again: odd traffic costs looks, not
lessons.

Invariants: the events are those of the assembler fed frame by frame, but for runs being longer;
an error ends the stream: events before it are returned, ``failure`` says why, what follows is
ignored. Of an incomplete frame no more than the frame is kept, and it is not looked at again until
it is complete: one byte at a time costs linear time. A publish that begins as one that is known is
awaited as a whole. What is a lot of work is read in parts (``has_more``; law 5).
Bounds: ``LAYOUTS_MAX`` layouts; contents in progress are the assembler's (``held_bytes``).
Not here: whether a channel is open, and what is done with an event (``adapters/amqp``).
"""

from collections.abc import Set
from typing import Final

from penstock.model.record import Record
from penstock.wire.amqp.codes import (
    FRAME_END,
    FRAME_HEADER,
    FRAME_MAX_MIN,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    MESSAGE_BYTES_MAX,
    AmqpError,
    frame_error,
)
from penstock.wire.amqp.content import (
    CONTENT_FRONT,
    AckRun,
    Assembler,
    Event,
    PublishRun,
)
from penstock.wire.amqp.frame import HEAD, bad_end, check_greeting, payload_max
from penstock.wire.amqp.layout import FREE_SPANS_MAX, PATIENCE, Layout
from penstock.wire.amqp.origin import PUBLISH_IDS, publish_head
from penstock.wire.amqp.settlements import (
    RUN_TAGS_MAX,
    SETTLE,
    SETTLE_FRONTS,
    SETTLE_IDS,
    read_settlements,
)

LAYOUTS_MAX: Final = 256
"""Kinds of publishes one connection is remembered by; then it is got to know anew."""
SIGHTINGS_MIN: Final = 5
SIGHTINGS_IN_A_ROW: Final = 4
"""What a publish of the same kind as the one before it counts: two in a row are learnt."""
SIGHTINGS_AFTER_MISSES: Final = -60
WORK_AT_ONCE: Final = 4800
"""How much one call reads: a run counts 1, a frame by itself ``FRAME_WORK``; both a few us."""
FRAME_WORK: Final = 4


class Inflow:
    """One connection's bytes in, events out."""

    __slots__ = (
        "_assembler", "_body_max", "_is_greeted", "_last_key", "_layout", "_layouts",
        "_payload_max", "_rest", "_wanted", "failure", "has_more", "held_bytes", "is_clear",
    )  # fmt: skip

    def __init__(
        self, *, message_bytes_max: int = MESSAGE_BYTES_MAX, is_greeted: bool = False
    ) -> None:
        self._assembler = Assembler(message_bytes_max=message_bytes_max)
        self._is_greeted = is_greeted
        self._rest = bytearray()
        self._wanted = 0
        self._last_key = b""
        self._layout: Layout | None = None
        # Method frame and the head of the header frame -> layout, or how often it was seen.
        self._layouts: dict[bytes, Layout | int] = {}
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
                after = self._short_cut(data, at, stop, events, now_ms)
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

    def _awaited(self, layout: Layout, data: bytes, at: int) -> int:
        """How long the publish at ``at`` is when it is of this layout and not complete; else 0."""
        if layout.channel in self._assembler.partials or not data.startswith(layout.fixed[0], at):
            return 0
        return layout.awaits(data, at, self._body_max)

    def _short_cut(self, data: bytes, at: int, stop: int, events: list[Event], now_ms: int) -> int:
        """Take what is known of this method and those behind it; ``at`` when it is nothing."""
        ids = data[at + 7 : at + 11]
        if ids == PUBLISH_IDS:
            # With less than the next frame's head nothing can be said of its kind.
            if stop + HEAD.size > len(data):
                return at
            key = data[at : stop + HEAD.size]
            known = self._layouts.get(key, 0)
            layout = known if isinstance(known, Layout) else self._get_to_know(key, data, at, known)
            if layout is not None:
                after = self._take_like(layout, data, at, events, now_ms)
                if after > at:
                    self._layout = layout
                    layout.patience = PATIENCE
                elif not layout.is_at(data, at):
                    layout.patience -= 1
                    if not layout.patience:
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

    def _get_to_know(self, key: bytes, data: bytes, at: int, sightings: int) -> Layout | None:
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
        self, layout: Layout, data: bytes, at: int, events: list[Event], now_ms: int
    ) -> int:
        """Take the publishes of this layout that lie at ``at``; where the first other thing is."""
        if layout.channel in self._assembler.partials:
            return at
        records: list[Record] = []
        if (usual := layout.usual) is not None and data.startswith(usual.front, at):
            records = usual.take(layout, data, at, now_ms)
            at += len(records) * usual.size
        if at + layout.size <= len(data):
            at = self._take_sizes(layout, data, at, records, now_ms)
        if records:
            run = PublishRun(layout.channel, layout.head, layout.reading.claims, records)
            if events:
                _add(run, events)
            else:
                events.append(run)
        return at

    def _take_sizes(
        self, layout: Layout, data: bytes, at: int, records: list[Record], now_ms: int
    ) -> int:
        """Take publishes of this layout with bodies of any size; the same answer."""
        fixed, unpack, size, sizes = layout.fixed, layout.unpack_from, layout.size, layout.sizes
        names, props_at = layout.head.names, layout.props_at
        born_ms = layout.reading.born_ms or now_ms
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
                layout.usual = stretch = layout.stretch(body_size)
                more = stretch.take(layout, data, at, now_ms)
                records += more
                at += len(more) * stretch.size
            layout.last_size = body_size
        return at


def learn(data: bytes, at: int, method_bytes: int) -> Layout | None:
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
        layout = Layout(data[at:header_at], head, data[header_at + 19 : stop - 1])
    except AmqpError:
        # Somebody else finds the words for it.
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
