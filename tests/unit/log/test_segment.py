import pytest

from kit.log_maker import LogMaker
from penstock.log.segment import (
    Segment,
    SegmentSet,
    make_log_dir,
    remove_segment,
    segment_path,
    walk_heads,
)
from penstock.log.storage import DiskStorage
from penstock.testing.storage import MemoryStorage


@pytest.fixture
def storage():
    return MemoryStorage()


def test_segments_are_named_by_their_first_position():
    assert segment_path(67108800) == "log/00000000000067108800.seg"
    assert Segment(8, 16).end == 24


def test_a_missing_log_has_no_segments(storage):
    segments = SegmentSet.load(storage)
    assert (len(segments), segments.last, segments.find(0)) == (0, None, None)


def test_loading_takes_segments_in_order_and_nothing_else(storage):
    make_log_dir(storage)
    for path, size in (("log/00000000000000000064.seg", 8), (segment_path(0), 64)):
        storage.open(path, create=True).write(bytes(size))
    storage.open("log/00000000000000000064.seg.new", create=True)
    storage.open("log/notes.txt", create=True)
    segments = SegmentSet.load(storage)
    assert [(s.base, s.size_bytes) for s in segments] == [(0, 64), (64, 8)]
    assert segments.size_bytes == 72


def test_bytes_behind_the_next_base_do_not_count(storage):
    make_log_dir(storage)
    storage.open(segment_path(0), create=True).write(bytes(100))
    storage.open(segment_path(64), create=True)
    assert [s.size_bytes for s in SegmentSet.load(storage)] == [64, 0]


def test_positions_are_found_in_their_segment_or_nowhere():
    segments = SegmentSet()
    first, third = segments.add(0, 100), segments.add(200, 50)
    assert [segments.find(p) for p in (0, 99, 100, 199, 200, 249, 250)] == [
        first, first, None, None, third, third, None,
    ]  # fmt: skip
    assert segments.at_or_after(100) == [third]
    assert segments.at_or_after(99) == [first, third]


def test_an_empty_last_segment_is_at_its_base():
    segments = SegmentSet()
    segments.add(0, 64)
    empty = segments.add(64)
    assert segments.at_or_after(64) == [empty]


def test_the_last_segment_is_the_newest_that_is_left():
    segments = SegmentSet()
    first, second, third = (segments.add(base, 64) for base in (0, 64, 128))
    assert segments.last is third
    segments.discard(third)
    assert segments.last is second
    segments.discard(first)
    assert segments.last is second
    segments.discard(second)
    assert segments.last is None


def test_removing_a_segment_unlinks_its_file(storage):
    make_log_dir(storage)
    storage.open(segment_path(0), create=True).write(bytes(8))
    segments = SegmentSet.load(storage)
    remove_segment(storage, segments, segments.last)
    assert (len(segments), storage.list("log")) == (0, [])


def test_the_log_directory_is_made_once(tmp_path):
    storage = DiskStorage(tmp_path)
    make_log_dir(storage)
    make_log_dir(storage)
    assert storage.list("") == ["log"]


@pytest.mark.parametrize("body_bytes", [10, 500, 100_000])
def test_walking_heads_meets_every_frame(storage, body_bytes):
    maker = LogMaker(storage, segment_bytes_max=1 << 30)
    for _ in range(300 if body_bytes < 1000 else 5):
        maker.append(bytes(body_bytes))
    segment = maker.segments.last
    file = storage.open(segment.path, create=False)
    assert [h.base_position for h in walk_heads(file, segment)] == maker.frame_positions
    middle = maker.frame_positions[3]
    assert next(walk_heads(file, segment, middle)).base_position == middle


@pytest.mark.parametrize("body_bytes", [10, 70_000])
def test_walking_heads_goes_on_behind_a_damaged_one(storage, body_bytes):
    maker = LogMaker(storage, segment_bytes_max=1 << 30)
    for _ in range(5):
        maker.append(bytes(body_bytes))
    segment = maker.segments.last
    storage.files[segment.path][maker.frame_positions[2] + 5] ^= 1
    file = storage.open(segment.path, create=False)
    found = [h.base_position for h in walk_heads(file, segment)]
    assert found == [p for p in maker.frame_positions if p != maker.frame_positions[2]]


def test_walking_heads_of_garbage_ends():
    storage = MemoryStorage()
    make_log_dir(storage)
    for size in (0, 1, 47, 48, 49, 65_536, 65_537, 200_003):
        path = segment_path(0)
        storage.files[path] = bytearray(b"PNST" * (size // 4 + 1))[:size]
        file = storage.open(path, create=False)
        assert list(walk_heads(file, Segment(0, size))) == []
