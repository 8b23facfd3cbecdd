import errno

import pytest

from kit.log_maker import LogMaker, recover
from penstock.log.format import HEAD_BYTES, parse_head
from penstock.log.scan import LogScan
from penstock.log.segment import SegmentSet
from penstock.log.storage import DiskStorage
from penstock.log.writer import LogWriter
from penstock.model.errors import AppendFailed, InvariantBroken
from penstock.testing.storage import MemoryFile, MemoryStorage


class AwkwardFile(MemoryFile):
    """Does as it is told by its storage."""

    def __init__(self, storage, path):
        super().__init__(storage.files[path])
        self.storage, self.path = storage, path

    def write(self, data):
        if self.storage.write_error is not None:
            super().write(data[: self.storage.taken_bytes])
            raise self.storage.write_error
        if self.storage.taken_bytes is not None:
            return super().write(data[: self.storage.taken_bytes])
        return super().write(data)

    def truncate(self, size):
        if self.storage.truncate_error is not None:
            raise self.storage.truncate_error
        super().truncate(size)

    def sync(self):
        self.storage.events.append(("sync", self.path))

    def close(self):
        self.storage.events.append(("close", self.path))


class AwkwardStorage(MemoryStorage):
    def __init__(self):
        super().__init__()
        self.events = []
        self.write_error = self.truncate_error = self.open_error = self.taken_bytes = None

    def open(self, path, *, create):
        if create and self.open_error is not None:
            raise self.open_error
        super().open(path, create=create)
        return AwkwardFile(self, path)

    def sync_dir(self, path):
        self.events.append(("sync_dir", path))

    def take_events(self):
        events, self.events = self.events, []
        return events


@pytest.fixture
def storage():
    return AwkwardStorage()


def path(base):
    return f"log/{base:020d}.seg"


def test_frames_lie_one_behind_the_other_and_are_chained(storage):
    maker = LogMaker(storage)
    maker.append(b"one", durable_upto=0)
    maker.append(b"two", b"three", durable_upto=48)
    data = bytes(storage.files[path(0)])
    first = parse_head(data, 0, 0)
    second = parse_head(data, first.end_position, first.end_position)
    assert (first.records, first.prev_head_crc, first.durable_upto) == (1, 0, 0)
    assert (second.records, second.prev_head_crc, second.durable_upto) == (2, first.head_crc, 48)
    assert second.end_position == len(data) == maker.writer.end_position
    assert maker.writer.prev_head_crc == second.head_crc


def test_the_epoch_is_written_into_each_frame(storage):
    writer = LogWriter(storage, SegmentSet(), end_position=0, segment_bytes_max=1 << 20, epoch=9)
    writer.append_mark(durable_upto=0)
    assert parse_head(bytes(storage.files[path(0)]), 0, 0).epoch == 9


def test_a_frame_is_one_write_on_disk(tmp_path):
    disk = DiskStorage(tmp_path)
    maker = LogMaker(disk)
    writes = []
    _, real = maker.writer._roll()
    maker.writer._file = type(
        "Counting", (), {"write": lambda _, data: writes.append(len(data)) or real.write(data)}
    )()
    maker.append(b"a", b"b", b"c")
    assert writes == [disk.size(path(0))]
    real.close()


def test_a_frame_that_would_pass_the_limit_begins_a_segment(storage):
    maker = LogMaker(storage, segment_bytes_max=1000)
    for _ in range(4):
        maker.append(bytes(300))
    assert [s.base for s in maker.segments] == [0, 2 * 448]
    assert all(s.size_bytes <= 1000 for s in maker.segments)


def test_a_frame_larger_than_a_segment_gets_its_own(storage):
    maker = LogMaker(storage, segment_bytes_max=1000)
    maker.append(b"small")
    maker.append(bytes(5000))
    maker.append(b"small")
    assert [len(storage.files[s.path]) for s in maker.segments] == [160, 5152, 160]


def test_a_frame_that_just_fits_stays(storage):
    maker = LogMaker(storage, segment_bytes_max=2 * 448)
    maker.append(bytes(300))
    maker.append(bytes(300))
    assert len(maker.segments) == 1


def test_every_file_with_unsynced_bytes_is_handed_out(storage):
    maker = LogMaker(storage, segment_bytes_max=1000)
    for _ in range(5):
        maker.append(bytes(300))
    taken = maker.writer.take_unsynced()
    assert taken.upto == maker.writer.end_position
    storage.take_events()
    taken.run()
    synced = [path(0), path(896), path(1792)]
    assert storage.take_events() == [
        ("sync_dir", "log"),
        *(("sync", p) for p in synced),
        *(("close", p) for p in synced[:2]),
    ]
    assert maker.writer.take_unsynced() is None


def test_a_sync_without_a_new_segment_leaves_the_directory_alone(storage):
    maker = LogMaker(storage)
    maker.append(b"first")
    maker.mark()
    storage.take_events()
    maker.writer.take_unsynced().run()
    assert storage.take_events() == [("sync", path(0))]


def test_a_handle_is_not_closed_while_a_sync_may_still_use_it(storage):
    maker = LogMaker(storage, segment_bytes_max=1000)
    maker.append(bytes(300))
    running = maker.writer.take_unsynced()
    maker.append(bytes(900))
    assert ("close", path(0)) not in storage.events
    running.run()
    maker.writer.take_unsynced().run()
    assert storage.take_events()[-1] == ("close", path(0))


def test_appends_during_a_sync_belong_to_the_next(storage):
    maker = LogMaker(storage)
    maker.append(b"first")
    running = maker.writer.take_unsynced()
    upto = maker.writer.end_position
    maker.append(b"second")
    assert running.upto == upto
    assert maker.writer.take_unsynced().upto == maker.writer.end_position > upto


@pytest.mark.parametrize("taken_bytes", [0, 1, HEAD_BYTES, 100])
@pytest.mark.parametrize("error", [None, OSError(errno.ENOSPC, "No space left on device")])
def test_a_write_that_fails_leaves_everything_as_it_was(storage, taken_bytes, error):
    maker = LogMaker(storage)
    maker.append(b"kept")
    before = bytes(storage.files[path(0)])
    state = (maker.writer.end_position, maker.writer.prev_head_crc)
    storage.taken_bytes, storage.write_error = taken_bytes, error
    with pytest.raises(AppendFailed, match=path(0)):
        maker.append(b"refused" * 10)
    assert bytes(storage.files[path(0)]) == before
    assert (maker.writer.end_position, maker.writer.prev_head_crc) == state
    storage.taken_bytes = storage.write_error = None
    maker.append(b"after")
    positions, report = recover(storage)
    assert positions == [made.position for made in maker.records]
    assert not report.is_damaged


def test_a_segment_that_cannot_be_created_refuses_the_frame_and_no_more(storage):
    maker = LogMaker(storage, segment_bytes_max=1000)
    maker.append(bytes(900))
    storage.open_error = OSError(errno.EMFILE, "Too many open files")
    with pytest.raises(AppendFailed, match="cannot create log segment"):
        maker.append(bytes(900))
    storage.open_error = None
    maker.append(bytes(900))
    assert len(maker.segments) == 2
    assert recover(storage)[0] == [made.position for made in maker.records]


def test_a_first_frame_that_fails_leaves_an_empty_segment_to_go_on_with(storage):
    maker = LogMaker(storage)
    storage.taken_bytes = 5
    with pytest.raises(AppendFailed):
        maker.append(b"refused")
    storage.taken_bytes = None
    maker.append(b"stored")
    assert recover(storage)[0] == [48]


def test_an_end_that_cannot_be_put_back_poisons_the_writer(storage):
    maker = LogMaker(storage)
    maker.append(b"kept")
    storage.taken_bytes, storage.truncate_error = 60, OSError(errno.EIO, "Input/output error")
    with pytest.raises(AppendFailed, match="restart the broker"):
        maker.append(b"refused")
    storage.taken_bytes = storage.truncate_error = None
    assert maker.writer.is_poisoned
    with pytest.raises(AppendFailed, match="unknown"):
        maker.append(b"refused too")
    positions, report = recover(storage)
    assert positions == [made.position for made in maker.records]
    assert report.torn_tail.length == 60


def test_a_writer_goes_on_in_the_last_segment(storage):
    maker = LogMaker(storage)
    maker.append(b"one")
    again = LogMaker(storage)
    again.append(b"two")
    assert len(again.segments) == 1
    assert len(recover(storage)[0]) == 2


def test_a_writer_that_must_not_reuse_positions_begins_a_segment(storage):
    maker = LogMaker(storage)
    maker.append(b"one")
    writer = LogWriter(
        storage, SegmentSet.load(storage), end_position=800, segment_bytes_max=1 << 20
    )
    assert writer.append_mark(durable_upto=0) == (800, 848)
    scan = LogScan(storage, SegmentSet.load(storage))
    assert len(list(scan.records())) == 1
    assert scan.report.gaps == [(152, 800)]


def test_closing_gives_every_handle_back(storage):
    maker = LogMaker(storage, segment_bytes_max=1000)
    maker.append(bytes(900))
    maker.append(bytes(900))
    maker.writer.close()
    assert [event for event in storage.events if event[0] == "close"] == [
        ("close", path(0)),
        ("close", path(1048)),
    ]


def test_a_frame_of_another_size_than_announced_is_not_written():
    maker = LogMaker(MemoryStorage())
    before = maker.writer.end_position
    with pytest.raises(InvariantBroken, match="a frame of 56 bytes was announced as 64"):
        maker.writer.append([bytes(8)], 1, durable_upto=0, size=16)
    assert maker.writer.end_position == before
    assert maker.writer.append([bytes(8)], 1, durable_upto=0, size=8) == (before, before + 56)
