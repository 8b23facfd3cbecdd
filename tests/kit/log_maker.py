"""A log made frame by frame, for tests that damage it afterwards and compare what comes back.

Not here: queues, cursors and definitions; for a whole store in memory see ``storage.py``.
"""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.log.format import encode_batch
from penstock.log.scan import LogScan, ScanReport
from penstock.log.segment import SegmentSet
from penstock.log.storage import Storage
from penstock.log.writer import LogWriter
from penstock.model.ids import QueueId, QueueOffset
from penstock.model.record import Record, neutral_record
from penstock.testing.storage import MemoryStorage

STORE_MS = 1_700_000_000_000


class Made(NamedTuple):
    """One record that was appended."""

    position: int
    length: int
    origin: bytes


class LogMaker:
    """Appends frames of records to a log and remembers what it appended."""

    def __init__(
        self,
        storage: Storage,
        *,
        segment_bytes_max: int = 64 * 1024,
        end_position: int | None = None,
        prev_head_crc: int = 0,
    ) -> None:
        """Go on at ``end_position``, by default at the end of what is there."""
        self.storage = storage
        self.segments = SegmentSet.load(storage)
        last = self.segments.last
        if end_position is None:
            end_position = 0 if last is None else last.end
        self.writer = LogWriter(
            storage,
            self.segments,
            end_position=end_position,
            segment_bytes_max=segment_bytes_max,
            prev_head_crc=prev_head_crc,
        )
        self.frames: list[list[Made]] = []
        self.frame_positions: list[int] = []
        self.next_offset = 0

    @property
    def records(self) -> list[Made]:
        """All records appended so far."""
        return [made for frame in self.frames for made in frame]

    def append(self, *bodies: bytes, durable_upto: int = 0) -> list[Made]:
        """Append one frame with a message to queue 1 for each body."""
        return self.append_records(*map(neutral_record, bodies), durable_upto=durable_upto)

    def append_records(self, *records: Record, durable_upto: int = 0) -> list[Made]:
        """Append one frame of these records, each to queue 1."""
        targets = []
        for record in records:
            targets.append(((QueueId(1), QueueOffset(self.next_offset)),))
            self.next_offset += record.messages
        position = self.writer.first_record_position
        parts, lengths = encode_batch(records, targets, position, STORE_MS)
        base, _ = self.writer.append(parts, len(records), durable_upto=durable_upto)
        made = [
            Made(record.position, length, record.origin)
            for record, length in zip(records, lengths, strict=True)
        ]
        self.frames.append(made)
        self.frame_positions.append(base)
        return made

    def mark(self) -> int:
        """Sync, and append an empty frame that says so; the mark it carries."""
        taken = self.writer.take_unsynced()
        if taken is not None:
            taken.run()
        mark = self.writer.end_position
        base, _ = self.writer.append_mark(durable_upto=mark)
        self.frames.append([])
        self.frame_positions.append(base)
        return mark

    def close(self) -> None:
        """Give the handles back."""
        self.writer.close()


def recover(
    storage: Storage, *, from_position: int = 0, known_mark: int = 0
) -> tuple[list[int], ScanReport]:
    """Scan and put in order; the positions of all records found, and the report."""
    scan = LogScan(
        storage, SegmentSet.load(storage), from_position=from_position, known_mark=known_mark
    )
    positions = [record[0] for record in scan.records()]
    return positions, scan.finish()


def positions_of(made: Iterable[Made]) -> list[int]:
    return [each.position for each in made]


def fill(maker: LogMaker, frames: int = 12, each: int = 3, size: int = 100) -> list[Made]:
    """Frames of some records each, all of one size; everything that is in the log."""
    for number in range(frames):
        maker.append(*(f"{number}.{i}".encode().ljust(size, b".") for i in range(each)))
    return maker.records


def content_at(storage: MemoryStorage, maker: LogMaker, position: int) -> tuple[bytearray, int]:
    """The file that holds a position, and the byte in it."""
    segment = maker.segments.find(position)
    assert segment is not None, position
    return storage.files[segment.path], position - segment.base


def flip(storage: MemoryStorage, maker: LogMaker, position: int, bit: int = 0) -> None:
    content, at = content_at(storage, maker, position)
    content[at] ^= 1 << bit
