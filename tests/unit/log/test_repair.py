import errno

import pytest

from kit.log_maker import LogMaker, recover
from penstock.log import repair
from penstock.log.format import parse_head
from penstock.log.repair import cut_tail, drop_frames, forget_old_cuts, remove_leftovers
from penstock.log.segment import SegmentSet
from penstock.testing.storage import MemoryFile, MemoryStorage


@pytest.fixture
def maker():
    maker = LogMaker(MemoryStorage(), segment_bytes_max=1000)
    for number in range(8):
        maker.append(bytes([number]) * 100)
    return maker


def test_a_cut_keeps_what_it_takes_away(maker):
    storage, segment = maker.storage, maker.segments.last
    tail = bytes(storage.files[segment.path][20:])
    assert cut_tail(storage, maker.segments, segment, 20) == [f"cut/{segment.base + 20:020d}"]
    assert storage.files[f"cut/{segment.base + 20:020d}"] == tail
    assert storage.size(segment.path) == segment.size_bytes == 20


def test_later_segments_are_moved_aside_whole(maker):
    storage = maker.storage
    first, second = list(maker.segments)
    content = bytes(storage.files[second.path])
    kept = cut_tail(storage, maker.segments, first, 248)
    assert kept == [f"cut/{p:020d}" for p in (248, second.base)]
    assert storage.files[kept[1]] == content
    assert list(maker.segments) == [first]


def test_a_repeated_cut_does_not_append_to_what_was_kept(maker):
    storage, segment = maker.storage, maker.segments.last
    storage.make_dir("cut")
    storage.open(f"cut/{segment.base + 20:020d}", create=True).write(b"half of an earlier attempt")
    tail = bytes(storage.files[segment.path][20:])
    (kept,) = cut_tail(storage, maker.segments, segment, 20)
    assert storage.files[kept] == tail


def test_a_full_disk_keeps_what_fits_and_cuts_all_the_same(maker, monkeypatch):
    storage, segment = maker.storage, maker.segments.last
    append = MemoryFile.write
    taken = []

    def nearly_full(self, data):
        if taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken.append(data)
        return append(self, data[:7])

    monkeypatch.setattr(MemoryFile, "write", nearly_full)
    (kept,) = cut_tail(storage, maker.segments, segment, 248)
    assert len(storage.files[kept]) == 7
    assert storage.size(segment.path) == 248


def test_other_errors_while_keeping_stop_before_anything_is_cut(maker, monkeypatch):
    storage, segment = maker.storage, maker.segments.last
    size = segment.size_bytes

    def fail(self, data):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(MemoryFile, "write", fail)
    with pytest.raises(OSError, match="Input/output"):
        cut_tail(storage, maker.segments, segment, 248)
    assert storage.size(segment.path) == size


def test_dropped_frames_become_void_ones_of_the_same_length(maker):
    storage = maker.storage
    first = next(iter(maker.segments))
    spans = [(248, 496), (744, 992)]
    before = bytes(storage.files[first.path])
    kept = drop_frames(storage, first, spans[:1], durable_upto=0)
    after = bytes(storage.files[first.path])
    assert (after[:248], after[496:]) == (before[:248], before[496:])
    head = parse_head(after, 248, 248)
    assert (head.is_void, head.frame_len, head.records) == (True, 248, 0)
    assert storage.files[kept[0]] == before[248:496]
    assert not storage.exists(first.path + ".new")


def test_a_frame_dropped_at_the_end_of_a_file_is_cut_off_together_with_others(maker):
    storage = maker.storage
    first = next(iter(maker.segments))
    assert first.size_bytes == 992
    drop_frames(storage, first, [(0, 248), (744, 992)], durable_upto=0)
    positions, report = recover(storage)
    assert positions == [m.position for m in maker.records if not 0 <= m.position < 248
                         and not 744 <= m.position < 992]  # fmt: skip
    assert report.gaps == [(744, 992)]
    assert not report.is_damaged


def test_unfinished_copies_are_removed(maker):
    storage = maker.storage
    leftover = maker.segments.last.path + ".new"
    storage.open(leftover, create=True).write(b"half")
    remove_leftovers(storage)
    assert not storage.exists(leftover)
    assert len(SegmentSet.load(storage)) == 2
    remove_leftovers(MemoryStorage())


@pytest.fixture
def cuts():
    """Five files of 100 bytes that crashes left."""
    storage = MemoryStorage()
    storage.make_dir("cut")
    for number in range(5):
        storage.open(f"cut/{number:020d}", create=True).write(bytes(100))
    return storage


@pytest.mark.parametrize(
    ("bound", "value"), [("CUT_FILES_MAX", 2), ("CUT_BYTES_MAX", 250)], ids=["files", "bytes"]
)
def test_the_newest_cuts_stay_within_the_bounds(cuts, monkeypatch, bound, value):
    monkeypatch.setattr(repair, bound, value)
    assert forget_old_cuts(cuts, []) == [f"cut/{number:020d}" for number in (2, 1, 0)]
    assert cuts.list("cut") == [f"{number:020d}" for number in (3, 4)]


def test_what_was_just_kept_stays_whatever_its_size(cuts, monkeypatch):
    monkeypatch.setattr(repair, "CUT_BYTES_MAX", 50)
    forget_old_cuts(cuts, [f"cut/{number:020d}" for number in (1, 4)])
    assert cuts.list("cut") == [f"{number:020d}" for number in (1, 4)]


def test_cuts_that_cannot_be_removed_are_no_reason_not_to_start(cuts, monkeypatch):
    def fail(self, path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(repair, "CUT_FILES_MAX", 1)
    monkeypatch.setattr(MemoryStorage, "remove", fail)
    assert forget_old_cuts(cuts, []) == []
    assert len(cuts.list("cut")) == 5


def test_a_crash_after_many_leaves_no_more_than_the_bound(maker, monkeypatch):
    monkeypatch.setattr(repair, "CUT_FILES_MAX", 1)
    storage = maker.storage
    storage.make_dir("cut")
    storage.open(f"cut/{0:020d}", create=True).write(b"of an earlier crash")
    segment = maker.segments.last
    storage.files[segment.path] += b"torn"
    recover(storage)
    assert storage.list("cut") == [f"{segment.base + segment.size_bytes:020d}"]
