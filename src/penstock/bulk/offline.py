"""Rows of a stopped or copied data directory, without a broker (``path = DIR``).

``OfflineBulk`` answers what ``client.BulkClient`` answers, for a directory that does not change:
the same tickets give the same rows. It refuses a directory that a living broker has.

Not here: the rows (``reading.py``).
"""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from google_crc32c import value as crc32c

from penstock.bulk.columns import known_origins
from penstock.bulk.gather import SegmentMaps
from penstock.bulk.layout import Column, entries_in
from penstock.bulk.reading import read_ticket
from penstock.bulk.tickets import BulkError, Summary, Ticket
from penstock.engine.registry import TOPIC_KIND, TopicRow
from penstock.log.catalog import (
    CATALOG_NAME,
    DEFINITION_PREFIX,
    META_KIND,
    RUN_KEY,
    SNAPSHOT_KEY,
    RowKey,
    RunRow,
    SnapshotRow,
    SqliteCatalog,
)
from penstock.log.encode import UNINDEXED
from penstock.log.format import (
    FORMAT_NAME,
    FORMAT_VERSION,
    INDEX_DEFERRED,
    INDEX_EXPIRES,
    INDEX_RELEASED,
    INDEX_TRANSIENT,
    decode_release,
)
from penstock.log.index import ENTRY, ENTRY_BYTES, INDEX_DIRECTORY, QUEUE_KIND, QueueState, queue_of
from penstock.log.reader import LogReader, ScannedRecord
from penstock.log.scan import LogScan
from penstock.log.segment import SegmentSet
from penstock.log.side_files import FILE_KIND
from penstock.log.staging import decode_commit, staged_records
from penstock.log.storage import LOCK_NAME, DiskStorage
from penstock.model.errors import FormatTooNew, PenstockError
from penstock.model.names import HIDDEN_PREFIXES, TopicName
from penstock.model.queries import (
    IndexFile,
    LocateResponse,
    OffsetMap,
    QueueRange,
    ResolveResponse,
    TopicRange,
)
from penstock.model.record import RecordFlag, RecordKind
from penstock.model.spark_batch import BAD_REQUEST, NO_TOPIC, UNREACHABLE


class OfflineBulk:
    """The queues of one directory; satisfies ``reading.RowSource``."""

    def __init__(self, path: str | Path) -> None:
        self.directory: Final = Path(path)
        self.maps: Final = SegmentMaps(self.directory)
        self.origins: Final = known_origins()
        self.summary = Summary()
        """Of the last ``read`` that was read to its end."""
        self._opened: StoppedDirectory | None = None

    def __reduce__(self) -> tuple[Callable[..., OfflineBulk], tuple[str]]:
        """The path only; the copy opens it by itself."""
        return OfflineBulk, (str(self.directory),)

    def __enter__(self) -> OfflineBulk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resolve(
        self, topics: list[str] | None = None, *, pattern: str | None = None
    ) -> ResolveResponse:
        """Topics, their queues and what can be read of each."""
        opened = self._open()
        names = list(topics) if topics is not None else self._matching(pattern)
        found = []
        for name in sorted(names):
            queues = []
            for number, queue_id in enumerate(self._queue_ids(name)):
                queue = opened.queues[queue_id]
                queues.append(
                    QueueRange(
                        queue=number,
                        queue_id=queue_id,
                        incarnation=queue.state.incarnation,
                        earliest=queue.state.min_offset,
                        end=queue.end,
                    )
                )
            found.append(TopicRange(name=name, queues=queues))
        return ResolveResponse(epoch=opened.epoch, topics=found)

    def by_time(self, topic: str, at_ms: int) -> OffsetMap:
        """First offsets stored at or after a time."""
        opened = self._open()
        ids = enumerate(self._queue_ids(topic))
        return {topic: {number: opened.first_at(queue_id, at_ms) for number, queue_id in ids}}

    def read(self, ticket: Ticket) -> Iterator[pa.RecordBatch]:
        for batch, so_far in read_ticket(self, ticket):
            self.summary = so_far
            if batch.num_rows:
                yield batch

    def locate(self, ticket: Ticket, start: int) -> LocateResponse:
        """Where the entries of a ticket are."""
        opened = self._open()
        queue = self._queue(ticket)
        return LocateResponse(
            epoch=opened.epoch,
            queue_id=self._queue_ids(ticket.topic)[ticket.queue],
            incarnation=queue.state.incarnation,
            earliest=queue.state.min_offset,
            end=min(ticket.end, queue.end),
            files=queue.files,
            tail=bytes(queue.scanned),
            run_start=opened.end_position,
        )

    def close(self) -> None:
        self.maps.close()
        self._opened = None

    def _open(self) -> StoppedDirectory:
        if self._opened is None:
            self._opened = StoppedDirectory(self.directory)
        return self._opened

    def _matching(self, pattern: str | None) -> list[str]:
        names = [
            name
            for name in self._open().topics
            if not name.rpartition("/")[2].startswith(HIDDEN_PREFIXES)
        ]
        if pattern is None:
            return names
        try:
            expression = re.compile(pattern)
        except re.error as problem:
            raise BulkError(BAD_REQUEST, f"pattern {pattern!r} cannot be used: {problem}") from None
        return [name for name in names if expression.fullmatch(name)]

    def _queue_ids(self, topic: str) -> list[int]:
        topics = self._open().topics
        found = topics.get(topic)
        if found is None:
            near = difflib.get_close_matches(topic, topics, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise BulkError(NO_TOPIC, f"there is no topic '{topic}' in {self.directory}{hint}")
        return found

    def _queue(self, ticket: Ticket) -> StoppedQueue:
        ids = self._queue_ids(ticket.topic)
        if ticket.queue >= len(ids):
            raise BulkError(
                BAD_REQUEST,
                f"topic '{ticket.topic}' has queues 0 to {len(ids) - 1}, no {ticket.queue}",
            )
        return self._open().queues[ids[ticket.queue]]


# ---- stopped ------------------------------------------------------------------------------------
# The queues of a data directory that no broker is using: catalog, index files, end of the log.
#
# Nothing is written, not even a lock: the directory may be a copy, a backup or read-only. The
# catalog is read from a copy, since SQLite would write beside it. Index files count as far as the
# last snapshot describes them, as they would at a start; what the log has behind it is scanned, and
# all of the log when an index file is missing or damaged. That costs 48 bytes of memory for each
# message that is scanned.
#
# Not here: rows (``reading.py``), putting a directory in order (``log/recovery.py``).


_MESSAGE: Final = int(RecordKind.MESSAGE)
_RELEASE: Final = int(RecordKind.RELEASE)
_STAGE_COMMIT: Final = int(RecordKind.STAGE_COMMIT)
_TRANSIENT: Final = int(RecordFlag.TRANSIENT)


class StoppedQueue:
    """One queue: its files, and the entries of the log behind them."""

    __slots__ = ("end", "files", "scanned", "state")

    def __init__(self, state: QueueState) -> None:
        self.state: Final = state
        self.end = state.next_offset
        self.files: list[IndexFile] = []
        self.scanned = bytearray()
        """Packed entries that are in no file."""

    @property
    def tail(self) -> Column:
        """The entries that are in no file."""
        return entries_in(bytes(self.scanned))

    def add(self, position: int, facts: tuple[int, int, int, int], offset: int, ms: int) -> None:
        """Index a record, unless it is indexed already."""
        length, messages, tag, flags = facts
        if offset >= self.end:
            self.scanned += ENTRY.pack(position, offset, 0, ms, length, messages, tag, flags)
            self.end = offset + messages


class StoppedDirectory:
    """A data directory as it was when its broker stopped."""

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory
        self.topics: Final[dict[str, list[int]]] = {}
        """Queue ids by name of topic."""
        self.queues: Final[dict[int, StoppedQueue]] = {}
        self.end_position = 0
        self.epoch = 0
        self._index_ms = 0
        refuse_living(directory)
        try:
            _check_format(directory)
            self._load(_catalog_rows(directory))
        except PenstockError as problem:
            raise BulkError(BAD_REQUEST, f"cannot read {directory}: {problem}") from problem

    def _load(self, rows: dict[RowKey, bytes]) -> None:
        run = rows.get((META_KIND, RUN_KEY))
        snapshot = rows.get((META_KIND, SNAPSHOT_KEY))
        covered = msgspec.json.decode(snapshot, type=SnapshotRow) if snapshot else SnapshotRow(0)
        self._index_ms = covered.index_ms
        for (kind, key), body in sorted(rows.items()):
            if kind == DEFINITION_PREFIX + TOPIC_KIND:
                topic = msgspec.json.decode(body, type=TopicRow)
                self.topics[str(TopicName(topic.space, topic.name))] = topic.queues
            elif kind == QUEUE_KIND:
                self.queues[int(key)] = StoppedQueue(msgspec.json.decode(body, type=QueueState))
        is_whole = self._load_files(rows)
        if not is_whole:
            self._index_ms = 0
            for queue in self.queues.values():
                queue.files.clear()
                queue.end = queue.state.min_offset
        storage = DiskStorage(self.directory, is_read_only=True)
        segments = SegmentSet.load(storage)
        reader = LogReader(storage, segments)
        scan = LogScan(
            storage,
            segments,
            from_position=covered.position if is_whole else 0,
            known_mark=covered.position,
        )
        for batch in scan.batches():
            for scanned in batch:
                if scanned[2] == _STAGE_COMMIT:
                    self._take_commit(scanned, reader)
                else:
                    self._take(scanned)
        reader.close()
        self.end_position = scan.report.end_position
        epoch = msgspec.json.decode(run, type=RunRow).epoch if run else 0
        self.epoch = max(epoch, scan.report.epoch)
        for queue in self.queues.values():
            # Offsets that were given out stay given out: what is missing is a hole.
            queue.end = max(queue.end, queue.state.next_offset)

    def _load_files(self, rows: dict[RowKey, bytes]) -> bool:
        """Index files that are what the snapshot says; False when one is not."""
        for (kind, path), body in sorted(rows.items()):
            if kind != FILE_KIND or not path.startswith(INDEX_DIRECTORY + "/"):
                continue
            queue = self.queues.get(queue_of(path))
            if queue is None:
                continue
            size, crc = msgspec.json.decode(body, type=tuple[int, int])
            try:
                data = (self.directory / path).read_bytes()[:size]
            except OSError:
                return False
            if len(data) != size or crc32c(data) != crc:
                return False
            first = int(path.rpartition("-")[2].removesuffix(".idx"))
            queue.files.append(IndexFile(path, first, size // ENTRY_BYTES))
        return True

    def _take(self, scanned: ScannedRecord) -> None:
        """Index a record as the broker did when it was appended (``log/recovery.py``)."""
        # fmt: off
        (
            position, length, kind, flags, messages, store_ms, expire_ms, deliver_ms, tag, targets,
            payload,
        ) = scanned
        # fmt: on
        self._index_ms = max(self._index_ms, store_ms)
        if kind == _RELEASE:
            release = decode_release(payload)
            position, length, tag = release.position, release.length, release.tag_hash
            entry_flags = release.flags | INDEX_RELEASED
        elif kind != _MESSAGE or flags & UNINDEXED:
            return
        else:
            entry_flags = INDEX_TRANSIENT if flags & _TRANSIENT else 0
            entry_flags |= INDEX_DEFERRED if deliver_ms else 0
            entry_flags |= INDEX_EXPIRES if expire_ms else 0
        for queue_id, offset in targets:
            queue = self.queues.get(queue_id)
            if queue is not None:
                queue.add(position, (length, messages, tag, entry_flags), offset, self._index_ms)

    def _take_commit(self, scanned: ScannedRecord, reader: LogReader) -> None:
        """Index staged rows, which lie before their commit (D19)."""
        self._index_ms = max(self._index_ms, scanned[5])
        for run in decode_commit(scanned[10]).runs():
            queue = self.queues.get(run.queue_id)
            if queue is None or run.flags:
                continue
            for number, row in staged_records(reader, run):
                facts = (row[1], row[4], row[8], INDEX_EXPIRES if row[6] else 0)
                queue.add(row[0], facts, run.first_offset + number, self._index_ms)

    def first_at(self, queue_id: int, at_ms: int) -> int:
        """Offset of the first entry stored at or after a time; the end if there is none."""
        queue = self.queues[queue_id]
        for file in queue.files:
            data = (self.directory / file.path).read_bytes()[: file.entries * ENTRY_BYTES]
            found = _first_at(entries_in(data), at_ms)
            if found >= 0:
                return max(found, queue.state.min_offset)
        found = _first_at(queue.tail, at_ms)
        return queue.end if found < 0 else max(found, queue.state.min_offset)


def refuse_living(directory: Path) -> None:
    """Raise when a broker has the directory; its lock goes with it, a copied file says nothing."""
    if not (directory / CATALOG_NAME).is_file():
        raise BulkError(
            BAD_REQUEST, f"{directory} is no data directory of Penstock: it has no {CATALOG_NAME}"
        )
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        raise BulkError(
            UNREACHABLE if not owner else BAD_REQUEST,
            f"{directory} is in use by the broker of process {owner or 'unknown'}; read it through "
            "its Flight port (endpoint), or stop it first",
        ) from None
    finally:
        os.close(fd)


def _check_format(directory: Path) -> None:
    """As ``log/format.py`` does, which would write the file if it were missing."""
    try:
        words = (directory / FORMAT_NAME).read_text("ascii").split()
    except (OSError, UnicodeDecodeError):
        return
    if words and words[-1].isdecimal() and int(words[-1]) > FORMAT_VERSION:
        raise FormatTooNew(
            f"its format is {words[-1]}, this Penstock knows {FORMAT_VERSION}; use the newer "
            "Penstock that wrote it"
        )


def _catalog_rows(directory: Path) -> dict[RowKey, bytes]:
    """All rows, those in SQLite's write-ahead file included; the directory stays as it is."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as copy:
        for suffix in ("", "-wal"):
            source = directory / (CATALOG_NAME + suffix)
            if source.is_file():
                shutil.copyfile(source, Path(copy) / source.name)
        catalog = SqliteCatalog(Path(copy) / CATALOG_NAME)
        try:
            return catalog.load()
        finally:
            catalog.close()


def _first_at(entries: Column, at_ms: int) -> int:
    at = int(np.searchsorted(entries["store_ms"], at_ms))
    return int(entries["first_offset"][at]) if at < len(entries) else -1
