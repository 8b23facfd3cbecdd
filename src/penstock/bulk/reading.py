"""Reading a ticket: entries, records, filter, columns; batch by batch, with nothing kept between.

Memory: entries of one index file, the maps of ``gather.py`` and one batch of at most
``rows_per_batch`` rows whose records have ``BATCH_BYTES_MAX`` (or one larger record), and at most
``columns.OWN_BYTES_MAX`` of inflated bodies. The next batch is made when it is asked for.

Every offset of the range is accounted for: read, lost or dropped. Lost is what the index has not,
what retention removed and what is damaged; unless the ticket says otherwise that ends the read.

Not here: sending batches (``flight.py``), who knows where entries are (a ``RowSource``).
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.bulk.columns import Origin, Rows
from penstock.bulk.gather import DamagedRecord, IndexFileGone, SegmentMaps, gather, index_entries
from penstock.bulk.layout import Column, arrow_schema
from penstock.bulk.tickets import (
    COLUMNS,
    TAG,
    WIRE_NAMES,
    BulkError,
    RowFilter,
    Summary,
    Ticket,
)
from penstock.engine.filter.filters import parse_tags
from penstock.engine.filter.sql92 import Selector, compile_selector
from penstock.log.format import INDEX_TRANSIENT
from penstock.model.errors import SelectorInvalid
from penstock.model.queries import LocateResponse
from penstock.model.record import tag_hash
from penstock.model.spark_batch import BAD_REQUEST, DATA_LOSS, EPOCH

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Record bytes of one batch: larger ones gain nothing, and gRPC buffers what it is given."""
LOCATE_TRIES: Final = 3
"""Files may be removed between being named and being opened; not again and again."""

BatchStream = Iterator[tuple[pa.RecordBatch, Summary]]


class RowSource(Protocol):
    """A data directory whose queues can be found."""

    @property
    def directory(self) -> Path:
        """Where ``index/`` and ``log/`` are."""
        ...

    @property
    def maps(self) -> SegmentMaps: ...

    @property
    def origins(self) -> Mapping[int, Origin]:
        """How records are read, by wire."""
        ...

    def locate(self, ticket: Ticket, start: int) -> LocateResponse:
        """Where the entries of [start, ticket.end) are; raises ``BulkError``."""
        ...


def read_ticket(source: RowSource, ticket: Ticket) -> BatchStream:
    """The rows of a ticket, and after each batch what became of the range so far."""
    reader = _TicketReader(source, ticket)
    return reader.batches()


class _TicketReader:
    """One pass over one range."""

    def __init__(self, source: RowSource, ticket: Ticket) -> None:
        self._source = source
        self._ticket = ticket
        self._columns = list(ticket.columns or COLUMNS)
        self._wanted = CompiledFilter(ticket.filter)
        self._at = ticket.start
        """Everything below is accounted for."""
        self._summary = Summary(next_offset=ticket.start)
        self._run_start = 0

    def batches(self) -> BatchStream:
        tries, reported = 0, -1
        while self._at < self._ticket.end:
            before = self._at
            located = self._located()
            try:
                for entries in index_entries(
                    self._source.directory, located, self._at, located.end
                ):
                    for batch in self._read_entries(entries):
                        reported = self._at
                        yield batch, self._so_far()
                    if reported != self._at:
                        # Nothing was wanted: the reader should know that we are alive.
                        reported = self._at
                        yield self._no_rows(), self._so_far()
            except IndexFileGone:
                tries = 0 if self._at > before else tries + 1
                if tries < LOCATE_TRIES:
                    continue
            self._lose(located.end, "the index has no entry of them")
        if reported != self._ticket.end:
            yield self._no_rows(), self._so_far()

    def _located(self) -> LocateResponse:
        """Where to go on; checks that it is still the same queue, and counts what is gone."""
        ticket, at = self._ticket, self._at
        located = self._source.locate(ticket, at)
        for what, asked, found in (
            ("epoch", ticket.epoch, located.epoch),
            ("incarnation", ticket.incarnation, located.incarnation),
        ):
            if asked and asked != found:
                raise BulkError(
                    EPOCH,
                    f"queue {ticket.queue} of '{ticket.topic}' has {what} {found}, the offsets are "
                    f"of {asked}: they may name other messages now; start from new offsets",
                )
        self._run_start = located.run_start
        if located.earliest > at:
            self._lose(min(located.earliest, ticket.end), "retention has removed them")
        if located.end <= self._at < ticket.end:
            raise BulkError(
                BAD_REQUEST,
                f"queue {ticket.queue} of '{ticket.topic}' ends at {located.end}, "
                f"the ticket asks for [{ticket.start}, {ticket.end})",
            )
        return located

    def _read_entries(self, entries: Column) -> Iterator[pa.RecordBatch]:
        """Cut entries into batches and read them."""
        is_wanted = self._wanted.entries(entries)
        is_dropped = (entries["flags"] & INDEX_TRANSIENT > 0) & (
            entries["position"] < self._run_start
        )
        if is_dropped.any():
            is_wanted = ~is_dropped if is_wanted is None else is_wanted & ~is_dropped
        rows, size = entries["messages"].astype(np.int64), entries["length"].astype(np.int64)
        if is_wanted is not None:
            rows, size = np.where(is_wanted, rows, 0), np.where(is_wanted, size, 0)
        rows_upto, bytes_upto = np.cumsum(rows), np.cumsum(size)
        at = 0
        while at < len(entries):
            rows_max = (rows_upto[at - 1] if at else 0) + self._ticket.rows_per_batch
            bytes_max = (bytes_upto[at - 1] if at else 0) + BATCH_BYTES_MAX
            end = min(
                int(np.searchsorted(rows_upto, rows_max, "right")),
                int(np.searchsorted(bytes_upto, bytes_max, "right")),
            )
            end = max(end, at + 1)
            chunk = slice(at, end)
            wanted = entries[chunk] if is_wanted is None else entries[chunk][is_wanted[chunk]]
            self._summary.bytes += int(bytes_upto[end - 1] - (bytes_upto[at - 1] if at else 0))
            yield from self._chunk(entries[chunk], wanted, is_dropped[chunk])
            at = end

    def _chunk(
        self, entries: Column, wanted: Column, is_dropped: Column
    ) -> Iterator[pa.RecordBatch]:
        """Read one chunk; usually one batch, more when its bodies inflate to very much."""
        start, ticket = self._at, self._ticket
        first = entries["first_offset"].astype(np.int64)
        behind = first + entries["messages"]
        end = min(int(behind[-1]), ticket.end)
        counts = np.minimum(behind, ticket.end) - np.maximum(first, start)
        holes = end - start - int(counts.sum())
        if holes:
            self._count_lost(holes, "the index has no entry of them")
        dropped = int(counts[is_dropped].sum())
        self._summary.dropped += dropped
        lost = holes
        while True:
            gathered, missing = gather(self._source.maps, wanted, is_checked=ticket.check)
            if len(missing):
                gone = wanted[missing]
                lost += self._count_gone(gone, start)
            rows = Rows(
                gathered, (start, ticket.end), (ticket.topic, ticket.queue), self._source.origins
            )
            try:
                self._wanted.keep(rows)
                all_offsets = rows.offsets
                batch = rows.batch(self._columns)
            except DamagedRecord as damage:
                is_bad = gathered.entries["position"] == damage.args[0]
                lost += self._count_gone(gathered.entries[is_bad][:1], start)
                wanted = gathered.entries[~is_bad]
                continue
            self._summary.rows += batch.num_rows
            if batch.num_rows == len(all_offsets):
                break
            # The bodies were too large for one batch: what is not given yet is read again.
            rest = int(all_offsets[batch.num_rows])
            behind = (
                gathered.entries["first_offset"].astype(np.int64) + gathered.entries["messages"]
            )
            wanted = gathered.entries[behind > rest]
            self._summary.read += rest - self._at
            self._at = start = rest
            yield batch
        self._summary.read += end - self._at - lost - dropped
        self._at = end
        if batch.num_rows:
            yield batch

    def _so_far(self) -> Summary:
        """The state of things, for one batch."""
        return replace(self._summary, next_offset=self._at)

    def _no_rows(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], arrow_schema(self._columns))

    def _count_gone(self, entries: Column, start: int) -> int:
        """Count records that are indexed and cannot be read."""
        first = entries["first_offset"].astype(np.int64)
        behind = np.minimum(first + entries["messages"], self._ticket.end)
        lost = int((behind - np.maximum(first, start)).sum())
        self._count_lost(lost, f"the record at position {int(entries['position'][0])} is damaged "
                               "or its segment was removed")  # fmt: skip
        return lost

    def _lose(self, upto: int, why: str) -> None:
        """Everything from here up to an offset is lost."""
        if upto > self._at:
            lost, self._at = upto - self._at, upto
            self._count_lost(lost, why)

    def _count_lost(self, lost: int, why: str) -> None:
        ticket = self._ticket
        if ticket.fail_on_data_loss:
            raise BulkError(
                DATA_LOSS,
                f"{lost} messages of [{ticket.start}, {ticket.end}) in queue {ticket.queue} of "
                f"'{ticket.topic}' are lost: {why}; to go on without them set fail_on_data_loss "
                "(Spark: failOnDataLoss) to false",
            )
        self._summary.lost += lost


# ---- filter -------------------------------------------------------------------------------------
# Which rows a reader wants: tags by the hash in the index first, SQL92 by the record's properties.
#
# Filters are the broker's own (``engine/filter``), so a query sees what a RocketMQ consumer with
# the same expression sees. A tag filter leaves records unread whose hash says no; SQL92 costs a
# loop.


class CompiledFilter:
    """A compiled filter; one that wants everything costs nothing."""

    def __init__(self, row_filter: RowFilter | None) -> None:
        self._tags: pa.Array | None = None
        self._hashes: Column | None = None
        self._selector: Selector | None = None
        if row_filter is None:
            return
        try:
            if row_filter.kind != TAG:
                self._selector = compile_selector(row_filter.text)
                return
            tags = parse_tags(row_filter.text)
        except SelectorInvalid as problem:
            raise BulkError(BAD_REQUEST, f"filter: {problem}") from None
        if tags is not None:
            self._tags = pa.array(sorted(tags), pa.string())
            self._hashes = np.array([tag_hash(tag.encode()) for tag in tags], np.int32)

    def entries(self, entries: Column) -> Column | None:
        """Which entries can be wanted by their hash and are a record of their own; None = all.

        Messages of a batch have tags of their own, and no hash.
        """
        if self._hashes is None:
            return None
        wanted: Column = np.isin(entries["tag_hash"], self._hashes) | (entries["messages"] > 1)
        return wanted

    def keep(self, rows: Rows) -> None:
        """Leave only the wanted rows."""
        if self._selector is not None:
            matches, selectable = self._selector.matches, rows.selectable
            judged = np.zeros(len(rows), np.bool_)
            for row in range(len(rows)):
                judged[row] = matches(selectable(row))
            rows.take(np.flatnonzero(judged))
        elif self._tags is not None:
            # Two tags may share a hash, so the text decides.
            is_wanted = pc.is_in(rows.tags(), self._tags)
            rows.take(np.flatnonzero(is_wanted.to_numpy(zero_copy_only=False)))


_TICKET_FIELDS: Final = {WIRE_NAMES.get(each.name, each.name): each.name for each in fields(Ticket)}


def decode_ticket(data: bytes) -> Ticket:
    """The ticket in a Flight ticket; raises ``BulkError`` that says what is wrong with it."""
    try:
        given = msgspec.json.decode(data, type=dict[str, Any])
        unknown = sorted(given.keys() - _TICKET_FIELDS.keys())
        if unknown:
            raise ValueError(f"it has {', '.join(map(repr, unknown))}")
        named = {_TICKET_FIELDS[name]: value for name, value in given.items()}
        return msgspec.convert(named, Ticket)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise BulkError(BAD_REQUEST, f"this is no ticket: {problem}") from None
