"""Looking into a log without touching it: for ``penstock log check`` and ``penstock log dump``.

Nothing here writes, locks or cuts, so it may run on a copy, on a read-only mount or beside a living
broker. Beside one, an unfinished write at the end is usually just the write of this moment.

Not here: putting a log in order (``scan.py``), printing (``cli/log.py``).
"""

from collections.abc import Callable, Iterator

import msgspec

from penstock.log.entry import Targets
from penstock.log.reader import LogReader
from penstock.log.scan import LogScan
from penstock.log.scan_report import ScanReport
from penstock.log.segment import SegmentSet
from penstock.log.storage import Storage
from penstock.model.record import Record, RecordFlag, RecordKind, Wire


class Seen(msgspec.Struct, frozen=True):
    """One record as a person wants to see it."""

    position: int
    length: int
    kind: str
    wire: str
    flags: list[str]
    messages: int
    priority: int
    store_ms: int
    born_ms: int
    expire_ms: int
    deliver_ms: int
    targets: list[tuple[int, int]]
    """(queue, offset of its first message there)."""
    key: str
    tag: str
    body_bytes: int
    body: bytes
    """The payload; for records that are not messages all origin bytes."""


def log_bytes(storage: Storage) -> int:
    """How much there is to walk."""
    return SegmentSet.load(storage).size_bytes


def check(storage: Storage, *, progress: Callable[[int], None] | None = None) -> ScanReport:
    """Walk every frame and record; the report says what is wrong, if anything."""
    scan = LogScan(storage, SegmentSet.load(storage), progress=progress)
    for _ in scan.batches():
        pass
    return scan.report


class Dump:
    """Records from a position on; ``report`` tells what was met on the way."""

    def __init__(self, storage: Storage, *, from_position: int = 0) -> None:
        segments = SegmentSet.load(storage)
        first = segments.find(from_position)
        # A scan begins at a frame, and the only frame whose place is known is a segment's first.
        start = from_position if first is None else first.base
        self._from_position = from_position
        self._reader = LogReader(storage, segments)
        self._scan = LogScan(storage, segments, from_position=start)

    @property
    def report(self) -> ScanReport:
        """Findings so far; complete when ``records`` has been read to its end."""
        return self._scan.report

    def records(self) -> Iterator[Seen]:
        """Every good record that ends behind the given position."""
        try:
            for position, length, *_, targets, _ in self._scan.records():
                if position + length <= self._from_position:
                    continue
                record = self._reader.read(position, length)
                if record is not None:
                    yield _seen(record, length, targets)
        finally:
            self._reader.close()


def _seen(record: Record, length: int, targets: Targets) -> Seen:
    is_message = record.kind == RecordKind.MESSAGE
    return Seen(
        position=record.position,
        length=length,
        kind=_name(RecordKind, record.kind),
        wire=_name(Wire, record.wire),
        flags=[
            flag.name.lower()
            for flag in RecordFlag
            if record.flags & flag and flag.name is not None
        ],
        messages=record.messages,
        priority=record.shape.priority,
        store_ms=record.store_ms,
        born_ms=record.born_ms,
        expire_ms=record.expire_ms,
        deliver_ms=record.deliver_ms,
        targets=[(queue_id, offset) for queue_id, offset in targets],
        key=record.key.decode("utf-8", "backslashreplace"),
        tag=record.tag.decode("utf-8", "backslashreplace"),
        body_bytes=record.shape.body_len,
        body=record.body if is_message else record.origin,
    )


def _name(meanings: type[RecordKind] | type[Wire], value: int) -> str:
    """The word for a number; the number itself when it has none."""
    try:
        return meanings(value).name.lower()
    except ValueError:
        return str(value)
