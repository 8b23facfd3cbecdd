"""Rows as Arrow columns: a function for each column, called only when the column is asked for.

A row is one message. Of a record with one message, laid out as most are, every column is made
without a loop. The others (batches, compressed bodies, origins that are not laid out) are read one
by one and put among them: ``_Uncommon``.

    timestamp       when the message got its offset, as the index has it: never decreasing
    born_timestamp  what the producer said; null when it said nothing
    key, tag        null when there is none

Not here: which rows (``entries.py``), types (``schema.py``), what an origin is (``origins.py``).
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.bulk.gather import Gathered
from penstock.bulk.layout import Column, kinds
from penstock.bulk.origins import NEUTRAL, Message, Origin, wire_name
from penstock.bulk.property_maps import maps_of
from penstock.bulk.schema import TYPES, arrow_schema
from penstock.bulk.views import Buffers, Spans
from penstock.model.record import RecordFlag

OWN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of inflated bodies in one batch of rows; what is behind them comes with the next."""
_COMPRESSED: Final = int(RecordFlag.COMPRESSED)
_SLOW_COLUMNS: Final = frozenset({"key", "tag", "properties", "body"})


class Rows:
    """The rows of some good records, and their columns."""

    def __init__(
        self,
        gathered: Gathered,
        span: tuple[int, int],
        names: tuple[str, int],
        origins: Mapping[int, Origin],
    ) -> None:
        """``span`` is the range of offsets that is wanted, ``names`` are topic and queue."""
        self._topic, self._queue = names
        self._origins = origins
        entries = gathered.entries
        first, messages = entries["first_offset"].astype(np.int64), entries["messages"]
        self._number: Column = np.zeros(len(entries), np.int64)
        """Which message of its record a row is."""
        if len(entries) and messages.max() > 1:
            record = np.repeat(np.arange(len(entries)), messages)
            starts = np.repeat(np.cumsum(messages, dtype=np.int64) - messages, messages)
            number = np.arange(len(record)) - starts
            offsets = first[record] + number
            wanted = (offsets >= span[0]) & (offsets < span[1])
            gathered = gathered.take(record[wanted])
            self._number, first = number[wanted], offsets[wanted]
        self.gathered = gathered
        self.offsets = first
        self._uncommon: dict[int, Message] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, rows: Column) -> None:
        """Go on with some of the rows only."""
        self.gathered, self.offsets = self.gathered.take(rows), self.offsets[rows]
        self._number = self._number[rows]

    def tags(self) -> pa.Array:
        """The tags of all rows."""
        self._read_uncommon(is_body_wanted=False)
        return self._tags()

    def batch(self, columns: list[str]) -> pa.RecordBatch:
        """The next rows as a batch, nearly always all of them; the caller goes on behind them."""
        self._uncommon = {}
        if _SLOW_COLUMNS.intersection(columns):
            taken = self._read_uncommon(is_body_wanted="body" in columns)
            if taken < len(self):
                self.take(np.arange(taken))
        arrays = [_MAKERS[name](self) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))

    def origin(self, wire: int) -> Origin:
        """How records of a wire are read."""
        return self._origins.get(wire, NEUTRAL)

    def _read_uncommon(self, *, is_body_wanted: bool) -> int:
        """Read what is not to be read by columns; the number of rows that have room in memory."""
        headers = self.gathered.headers
        self._uncommon = {}
        is_slow = headers["messages"] > 1
        if is_body_wanted:
            is_slow |= headers["flags"] & _COMPRESSED > 0
        for wire in kinds(headers["proto"]):
            if not self.origin(wire).is_laid_out:
                is_slow |= headers["proto"] == wire
        size, last = 0, (-1, list[Message]())
        for row in np.flatnonzero(is_slow).tolist():
            position = int(headers["position"][row])
            if last[0] != position:
                record = self.gathered.record(row)
                last = (position, self.origin(record.wire).reader.messages(record))
            message = last[1][int(self._number[row])]
            if not is_body_wanted:
                message.body = b""
            size += len(message.body)
            if size > OWN_BYTES_MAX and row:
                return int(row)
            self._uncommon[row] = message
        return len(self)

    # Columns

    def _topics(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._topic, pa.string()), len(self))

    def _queues(self) -> pa.Array:
        return pa.array(np.full(len(self), self._queue, np.int32))

    def _offsets(self) -> pa.Array:
        return pa.array(self.offsets)

    def _timestamps(self) -> pa.Array:
        return _times(self.gathered.entries["store_ms"])

    def _born_timestamps(self) -> pa.Array:
        born = self.gathered.headers["born_ms"]
        return _times(born, missing=born == 0)

    def _keys(self) -> pa.Array:
        buffers, spans = self._values("key")
        return buffers.text(spans, is_empty_null=True)

    def _tags(self) -> pa.Array:
        buffers, spans = self._values("tag")
        return buffers.text(spans, is_empty_null=True)

    def _bodies(self) -> pa.Array:
        buffers, spans = self._values("body")
        return buffers.binary(spans)

    def _values(self, part: str) -> tuple[Buffers, Spans]:
        """Where a part of each message is, those that were read one by one included."""
        buffers, spans = self.gathered.buffers(), self.gathered.spans(part)
        for row, message in self._uncommon.items():
            buffers.put(spans, row, getattr(message, part))
        return buffers, spans

    def _protocols(self) -> pa.Array:
        wires = self.gathered.headers["proto"]
        found = kinds(wires)
        if len(found) == 1:
            return pa.repeat(pa.scalar(wire_name(found[0]), pa.string()), len(self))
        names = pa.array([wire_name(wire) for wire in found], pa.string())
        return names.take(pa.array(np.searchsorted(found, wires)))

    def _properties(self) -> pa.Array:
        wires = self.gathered.headers["proto"]
        buffers, spans = self.gathered.buffers(), self.gathered.spans("props")
        for row in self._uncommon:
            spans.length[row] = 0
        found = kinds(wires)
        groups = [(self.origin(wire).maps, np.flatnonzero(wires == wire)) for wire in found]
        if len(groups) == 1 and not self._uncommon:
            return groups[0][0](buffers.binary(spans))
        parts = [maps(buffers.binary(spans.take(rows))) for maps, rows in groups]
        rows = np.concatenate([rows for _, rows in groups]) if groups else np.empty(0, np.int64)
        parts.append(maps_of([message.properties for message in self._uncommon.values()]))
        source = np.empty(len(self), np.int64)
        source[rows] = np.arange(len(rows))
        for number, row in enumerate(self._uncommon):
            source[row] = len(self) + number
        return pa.concat_arrays(parts).take(pa.array(source))


_MAKERS: Final[dict[str, Callable[[Rows], pa.Array]]] = {
    "topic": Rows._topics,
    "queue": Rows._queues,
    "offset": Rows._offsets,
    "timestamp": Rows._timestamps,
    "born_timestamp": Rows._born_timestamps,
    "key": Rows._keys,
    "tag": Rows._tags,
    "properties": Rows._properties,
    "protocol": Rows._protocols,
    "body": Rows._bodies,
}


def _times(milliseconds: Column, missing: Column | None = None) -> pa.Array:
    return pa.array(milliseconds.astype(np.int64) * 1000, mask=missing).cast(TYPES["timestamp"])
