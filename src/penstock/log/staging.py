"""Staged rows: beside the log in files of their own, then in it, then visible all at once (D19).

    stage/<sink>/<query>/<batch>/<partition>.<uuid>

A file is a row of blocks, each with records of one queue, in order. The records are as the log has
them (``format.py``), but for what only the log can know: position, store time, crc.

    byte  0       4     6     8          12     16      20    24
          | magic | ver | flg | queue_id | rows | bytes | crc |
          24
          | length u32, messages u32, tag_hash i32, flags u32 | x rows   (``index.ENTRY_FACTS``)
          | deliver_ms i64 | x rows, if the block is of delayed rows
          | ``bytes`` of records

``crc`` is the crc32c of the block without it. A commit copies blocks into the log as records with
``NO_INDEX``, which mean nothing by themselves; one ``STAGE_COMMIT`` record, written when all of
them are durable, gives them their offsets: runs of (position, bytes, rows, queue, first offset).
Delayed rows get theirs later, by the timer of D14. What was copied and never committed is dead
space.

Invariants: a record of a block is never larger than its block; nothing in a file is believed that
its crc does not cover; a name never leads out of ``stage/``.

Not here: who writes the files (``bulk/staging.py``), who may commit what, and when
(``engine/spark/staging.py``), the rows' index entries (``index.py``).
"""

from __future__ import annotations

import hashlib
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from penstock.log.catalog import Op, RowKey
from penstock.log.format import HEADER_BYTES, TARGET_BYTES
from penstock.log.reader import LogReader, ScannedRecord, read_frame, salvage
from penstock.log.side_files import SideFiles
from penstock.log.storage import File, Storage
from penstock.model.errors import LogCorrupt
from penstock.model.record import Record, RecordKind, Shape

STAGE_DIRECTORY: Final = "stage"
PART_SUFFIX: Final = ".part"
"""Of a file that is being written; it loses it when all of it is durable."""
NAME_CHARACTERS_MAX: Final = 120
"""Of a directory; longer names are cut, and told apart by a digest."""
_STAGE_NAME: Final = re.compile(r"\d{1,10}\.[0-9A-Za-z-]{1,64}")

MAGIC: Final = b"PSTG"
VERSION: Final = 1
DELAYED: Final = 1
"""Flag: the rows are delayed, and have their times in the block."""
BLOCK_BYTES_MAX: Final = 256 * 1024
"""Records of a block, unless one alone is larger: what is read, and copied, at a time."""
BLOCK_ROWS_MAX: Final = 2048
_HEAD: Final = Struct("<4sHHIIII")
HEAD_BYTES: Final = _HEAD.size
_CRC_AT: Final = 20
FACTS_BYTES: Final = 16
_TIME_BYTES: Final = 8
_PLACE: Final = Struct("<Qq").pack_into
"""Position and store time, which lie side by side in a record's header."""
_PLACE_AT: Final = 20
_SEAL: Final = Struct("<I").pack_into


class StageDamaged(LogCorrupt):
    """A stage file is not what its writer wrote; the batch must be written again."""


def batch_path(sink: str, query: str, batch: int) -> str:
    """Where the rows of a batch wait."""
    return f"{STAGE_DIRECTORY}/{_safe(sink)}/{_safe(query)}/{batch}"


def batch_key(path: str) -> SinkKey:
    """Sink and query of a path, for people: what was cut of a long name ends in an ellipsis."""
    sink, query = path.split("/")[1:3]
    return _shown(sink), _shown(query)


def is_stage_name(name: str) -> bool:
    """True for ``<partition>.<uuid>``: what a file may be called."""
    return _STAGE_NAME.fullmatch(name) is not None


def _safe(text: str) -> str:
    """A directory for a name of any characters; two names never share one."""
    quoted = quote(text, safe="").replace(".", "%2E") or "%"
    if len(quoted) <= NAME_CHARACTERS_MAX:
        return quoted
    # No quoted name has two of these together.
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{quoted[:60]}%%{digest}"


def _shown(safe: str) -> str:
    quoted, _, is_cut = safe.partition("%%")
    return f"{unquote(quoted, errors='ignore')}…" if is_cut else unquote(safe)


# ---- blocks -------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Rows of one queue."""

    queue_id: int
    is_delayed: bool
    rows: int
    facts: bytes
    """The last 16 bytes of the index entry of each."""
    times: bytes
    """When each is to be delivered, if the rows are delayed."""
    records: bytes

    @property
    def size_bytes(self) -> int:
        """Of the block in its file."""
        return HEAD_BYTES + len(self.facts) + len(self.times) + len(self.records)


def encode_block(block: Block) -> list[bytes]:
    """The pieces of a block, to be written one behind the other."""
    flags = DELAYED if block.is_delayed else 0
    size = len(block.records)
    head = _HEAD.pack(MAGIC, VERSION, flags, block.queue_id, block.rows, size, 0)[:_CRC_AT]
    crc = crc32c(head)
    for part in (block.facts, block.times, block.records):
        crc = crc32c_extend(crc, part)
    return [head + crc.to_bytes(4, "little"), block.facts, block.times, block.records]


class BlockHead(NamedTuple):
    """What a block says of itself."""

    queue_id: int
    is_delayed: bool
    rows: int
    size_bytes: int
    """Of its records."""
    crc: int

    @property
    def facts_bytes(self) -> int:
        return self.rows * FACTS_BYTES

    @property
    def rest_bytes(self) -> int:
        """Everything behind the head."""
        times = self.rows * _TIME_BYTES if self.is_delayed else 0
        return self.facts_bytes + times + self.size_bytes


def read_head(file: File, at: int) -> BlockHead | None:
    """The head of the block at byte ``at``; None at the end of the file."""
    data = file.read(at, HEAD_BYTES)
    if not data:
        return None
    if len(data) < HEAD_BYTES:
        raise StageDamaged(f"a stage file ends in the midst of a block, at byte {at}")
    magic, version, flags, queue_id, rows, size, crc = _HEAD.unpack(data)
    if magic != MAGIC or version != VERSION or not rows:
        raise StageDamaged(f"byte {at} of a stage file is no block that this Penstock knows")
    return BlockHead(queue_id, bool(flags & DELAYED), rows, size, crc)


def read_block(file: File, at: int, head: BlockHead) -> Block:
    """The whole block, checked."""
    front, rest = file.read(at, _CRC_AT), file.read(at + HEAD_BYTES, head.rest_bytes)
    if len(rest) != head.rest_bytes or crc32c_extend(crc32c(front), rest) != head.crc:
        raise StageDamaged(f"the block at byte {at} of a stage file fails its checksum")
    times_at = head.facts_bytes
    records_at = len(rest) - head.size_bytes
    return Block(
        head.queue_id,
        head.is_delayed,
        head.rows,
        rest[:times_at],
        rest[times_at:records_at],
        rest[records_at:],
    )


def lengths_of(facts: bytes) -> list[int]:
    """Bytes of each record."""
    words = array("I", facts)
    if sys.byteorder == "big":
        words.byteswap()
    return words[::4].tolist()


def placed(block: Block, position: int, store_ms: int) -> bytearray:
    """The records of a block as they lie in the log from ``position`` on."""
    lengths = lengths_of(block.facts)
    if sum(lengths) != len(block.records) or min(lengths) < HEADER_BYTES + TARGET_BYTES:
        raise StageDamaged("a block of a stage file has other records than it says")
    ends = list(accumulate(lengths))
    starts = [0, *ends[:-1]]
    records = bytearray(block.records)
    place, seal = _PLACE, _SEAL
    for start in starts:
        place(records, start + _PLACE_AT, position + start, store_ms)
    whole = bytes(records)
    sealed = [whole[start + 4 : end] for start, end in zip(starts, ends, strict=True)]
    for start, crc in zip(starts, map(crc32c, sealed), strict=True):
        seal(records, start, crc)
    return records


# ---- the copy, and the record that makes it count -----------------------------------------------


class Run(NamedTuple):
    """Records of one queue that lie one behind the other."""

    position: int
    size_bytes: int
    rows: int
    queue_id: int
    flags: int
    """``DELAYED`` or 0."""
    first_offset: int
    """Of the first row; 0 when they are delayed."""


_RUN: Final = Struct("<QIIIIQ")
RUN_BYTES_MAX: Final = 1 << 30
"""Of runs that are told as one."""


class Copied(NamedTuple):
    """A block that is in the log."""

    position: int
    block: Block
    """Without its records."""
    size_bytes: int


class StagedCopy:
    """Blocks on their way into the log, until a commit makes them count.

    Memory: 16 bytes a row, 24 when it is delayed.
    """

    def __init__(self) -> None:
        self.copied: list[Copied] = []
        self.rows = 0

    @property
    def position(self) -> int | None:
        """Where it begins; None while nothing of it is in the log."""
        return self.copied[0].position if self.copied else None

    def add(self, position: int, block: Block) -> None:
        kept = block._replace(records=b"")
        self.copied.append(Copied(position, kept, len(block.records)))
        self.rows += block.rows

    def queue_rows(self) -> dict[int, tuple[int, int]]:
        """(rows, bytes) of each queue that get an offset at once."""
        totals: dict[int, tuple[int, int]] = {}
        for each in self.copied:
            if not each.block.is_delayed:
                rows, size = totals.get(each.block.queue_id, (0, 0))
                totals[each.block.queue_id] = (rows + each.block.rows, size + each.size_bytes)
        return totals

    def runs(self, first_offsets: dict[int, int]) -> list[Run]:
        """All of it, with the offsets it gets; neighbours of one queue are one run."""
        offsets = dict(first_offsets)
        runs: list[Run] = []
        for position, block, size in self.copied:
            offset = 0
            if not block.is_delayed:
                offset = offsets[block.queue_id]
                offsets[block.queue_id] += block.rows
            run = Run(position, size, block.rows, block.queue_id, int(block.is_delayed), offset)
            last = runs[-1] if runs else None
            if (
                last is not None
                and last.position + last.size_bytes == position
                and (last.queue_id, last.flags) == (run.queue_id, run.flags)
                and last.size_bytes + size <= RUN_BYTES_MAX
            ):
                runs[-1] = last._replace(
                    size_bytes=last.size_bytes + size, rows=last.rows + block.rows
                )
            else:
                runs.append(run)
        return runs


class StageCommit(msgspec.Struct, array_like=True):
    """What a stage-commit record says."""

    sink: str
    query: str
    batch: int
    rows: int
    checkpoint: str
    is_single: bool
    packed_runs: bytes = b""

    def runs(self) -> Iterator[Run]:
        return map(Run._make, _RUN.iter_unpack(self.packed_runs))


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(StageCommit)
_SHAPE: Final = Shape(kind=int(RecordKind.STAGE_COMMIT))


def commit_record(commit: StageCommit, runs: Iterable[Run]) -> Record:
    """The record that makes these runs count; it has no target queues."""
    commit.packed_runs = b"".join([_RUN.pack(*run) for run in runs])
    return Record(_ENCODER.encode(commit), _SHAPE)


def decode_commit(origin: bytes) -> StageCommit:
    try:
        return _DECODER.decode(origin)
    except msgspec.MsgspecError as problem:
        raise LogCorrupt(f"a stage-commit record holds no commit: {problem}") from problem


def staged_records(reader: LogReader, run: Run) -> list[tuple[int, ScannedRecord]]:
    """(number in the run, record) of all that can be read; for whoever has only the log."""
    data = reader.stretch(run.position, run.size_bytes)
    records = read_frame(data, 0, len(data), run.position)
    if records is not None and len(records) == run.rows:
        return list(enumerate(records))
    good, bad = salvage(data, 0, len(data), run.position, run.rows)
    spans = sorted([*good, *bad])
    if len(spans) != run.rows:
        # How many the damage holds is not known, so nothing behind it can be numbered.
        spans = [span for span in spans if not bad or span < bad[0]]
    return [
        (number, record)
        for number, (start, end) in enumerate(spans)
        for record in read_frame(data, start, end, run.position) or ()
    ]


# ---- the last batch of every sink ---------------------------------------------------------------
# Rows in the catalog, written with snapshots and only so: what they say the log says, too, so a
# crash never finds a batch noted that is not stored. A segment goes when a snapshot covers it.


SINK_KIND: Final = "sink"

SinkKey = tuple[str, str]
"""(sink, query)."""


class SinkRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last batch of a query in a sink."""

    sink: str
    query: str
    batch: int
    rows: int
    at_ms: int
    """Wall time of its commit."""
    checkpoint: str = ""
    is_single: bool = False

    @property
    def key(self) -> SinkKey:
        return self.sink, self.query


class SinkTable:
    """Every sink's last batch, and which of them the next snapshot has to write.

    In the order of their last use. Bounded by whoever puts (``oldest``, ``forget``).
    """

    def __init__(self, rows: dict[RowKey, bytes]) -> None:
        found = [
            msgspec.json.decode(body, type=SinkRow)
            for (kind, _), body in rows.items()
            if kind == SINK_KIND
        ]
        self.rows: dict[SinkKey, SinkRow] = {}
        """To be looked at only."""
        for row in sorted(found, key=lambda each: each.at_ms):
            self.rows[row.key] = row
        self._changed: dict[SinkKey, None] = {}

    def get(self, sink: str, query: str) -> SinkRow | None:
        return self.rows.get((sink, query))

    def put(self, row: SinkRow) -> None:
        """A batch was committed; its record is in the log."""
        self.rows.pop(row.key, None)
        self.rows[row.key] = row
        self._changed[row.key] = None

    def forget(self, key: SinkKey) -> None:
        if self.rows.pop(key, None) is not None:
            self._changed[key] = None

    def note(self, commit: StageCommit, at_ms: int) -> None:
        """The same as the log says it."""
        self.put(
            SinkRow(
                sink=commit.sink,
                query=commit.query,
                batch=commit.batch,
                rows=commit.rows,
                at_ms=at_ms,
                checkpoint=commit.checkpoint,
                is_single=commit.is_single,
            )
        )

    def capture(self) -> list[Op]:
        """Rows that changed since the last call."""
        ops: list[Op] = []
        for key in self._changed:
            row = self.rows.get(key)
            name = msgspec.json.encode(key).decode()
            ops.append((SINK_KIND, name, None if row is None else msgspec.json.encode(row)))
        self._changed.clear()
        return ops


# ---- files --------------------------------------------------------------------------------------


class StageFiles:
    """The files below ``stage/``: found at open, read by a commit, removed by the commit thread."""

    def __init__(self, storage: Storage, files: SideFiles) -> None:
        self._storage = storage
        self._files = files

    def found(self) -> dict[str, dict[str, int]]:
        """Bytes of each file by its name, for each directory of a batch."""
        sizes: dict[str, dict[str, int]] = {}
        for sink in self._names(STAGE_DIRECTORY):
            for query in self._names(sink):
                for batch in self._names(query):
                    files = ((each, self._storage.size(each)) for each in self._names(batch))
                    sizes[batch] = {path.rpartition("/")[2]: size for path, size in files}
        return sizes

    def open(self, batch: str, name: str) -> File:
        """A file whose rows count; raises ``FileNotFoundError``."""
        return self._storage.open(f"{batch}/{name}", create=False)

    def remove(self, batch: str, names: Sequence[str]) -> None:
        """Files of a batch go, with the next commit; a directory goes with its last file."""
        for name in names:
            self._files.discard(f"{batch}/{name}")
        self._files.prune(batch)

    def remove_all(self, batch: str) -> None:
        """All of them, also those that are being written."""
        self._files.discard_all(batch)

    def _names(self, directory: str) -> list[str]:
        try:
            return [f"{directory}/{name}" for name in self._storage.list(directory)]
        except (FileNotFoundError, NotADirectoryError):
            return []
