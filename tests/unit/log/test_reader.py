import errno
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.log_maker import LogMaker
from penstock.log.format import encode_batch
from penstock.log.reader import (
    MARK_BYTES,
    RUN_BYTES_MAX,
    LogReader,
    find_record,
    good_length,
    read_frame,
    salvage,
)
from penstock.log.segment import remove_segment
from penstock.model.record import Record, Shape, neutral_record
from penstock.testing.storage import MemoryFile, MemoryStorage


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def maker(storage):
    return LogMaker(storage, segment_bytes_max=4096)


@pytest.fixture
def reader(storage, maker):
    return LogReader(storage, maker.segments)


def wanted(made):
    return [(m.position, m.length) for m in made]


def origins(records):
    return [None if record is None else record.origin for record in records]


def fill(maker, frames=20, each=5, size=100):
    for number in range(frames):
        maker.append(*(f"{number}.{i}".encode().ljust(size, b".") for i in range(each)))
    return maker.records


def test_records_come_back_as_they_were_written(maker, reader):
    made = fill(maker)
    found = reader.read_many(wanted(made))
    assert origins(found) == [m.origin for m in made]
    assert [r.position for r in found] == [m.position for m in made]
    assert reader.read(*wanted(made)[7]) == found[7]
    assert len(maker.segments) > 3


def test_records_appended_later_are_read_through_the_same_reader(maker, reader):
    first = maker.append(b"one")
    assert reader.read(*wanted(first)[0]).body == b"one"
    second = maker.append(b"two")
    assert reader.read(*wanted(second)[0]).body == b"two"


def test_any_order_and_repetition_is_served(maker, reader):
    made = fill(maker)
    order = [50, 3, 3, 4, 99, 0, 98, 99]
    assert origins(reader.read_many([wanted(made)[i] for i in order])) == [
        made[i].origin for i in order
    ]


def test_neighbours_are_read_by_one_call(storage):
    maker = LogMaker(storage, segment_bytes_max=1 << 30)
    reader = LogReader(storage, maker.segments)
    made = fill(maker, frames=3, each=50)
    reader.read_many(wanted(made))
    assert reader.reads == 1
    reader.read_many(wanted(made)[::2])
    assert reader.reads == 2


def test_a_run_is_bounded_and_far_records_are_read_apart(storage):
    maker = LogMaker(storage, segment_bytes_max=1 << 30)
    reader = LogReader(storage, maker.segments)
    made = [maker.append(bytes(RUN_BYTES_MAX // 2 - 1000))[0] for _ in range(6)]
    assert origins(reader.read_many(wanted(made))) == [m.origin for m in made]
    assert reader.reads == 3
    reader.read_many([wanted(made)[0], wanted(made)[2]])
    assert reader.reads == 5


def test_a_record_larger_than_a_run_is_read_whole(storage):
    maker = LogMaker(storage)
    made = maker.append(bytes(3 * RUN_BYTES_MAX))
    assert (
        LogReader(storage, maker.segments).read(*wanted(made)[0]).shape.body_len
        == 3 * RUN_BYTES_MAX
    )


def test_a_removed_segment_is_gone_and_not_corrupt(storage, maker, reader):
    made = fill(maker)
    second = list(maker.segments)[1]
    inside = [second.base <= m.position < second.end for m in made]
    reader.read_many(wanted(made))
    reader.forget(second)
    remove_segment(storage, maker.segments, second)
    found = reader.read_many(wanted(made))
    assert [record is None for record in found] == inside
    assert (reader.gone_records, reader.corrupt_records) == (sum(inside), 0)


def test_a_file_that_vanished_is_gone(storage, maker, reader):
    made = fill(maker)
    storage.remove(next(iter(maker.segments)).path)
    assert reader.read(*wanted(made)[0]) is None
    assert (reader.gone_records, reader.corrupt_records) == (1, 0)


def test_a_damaged_record_is_none_counted_and_reported_with_its_place(
    storage, maker, reader, caplog
):
    made = fill(maker, frames=1)
    storage.files[maker.segments.last.path][made[2].position + 150] ^= 1
    with caplog.at_level(logging.WARNING):
        found = reader.read_many(wanted(made))
    assert [record is None for record in found] == [False, False, True, False, False]
    assert (reader.gone_records, reader.corrupt_records) == (0, 1)
    assert caplog.records[0].byte == made[2].position
    assert caplog.records[0].file == maker.segments.last.path


def test_a_wrong_position_or_length_is_never_a_record(maker, reader):
    made = fill(maker, frames=1)
    position, length = wanted(made)[1]
    assert reader.read(position + 8, length) is None
    assert reader.read(position, length - 8) is None
    assert reader.read(position, 4) is None


def test_a_sector_that_cannot_be_read_is_damage_other_errors_are_not(maker, reader, monkeypatch):
    made = fill(maker, frames=1)
    error = OSError(errno.EIO, "Input/output error")

    def fail(*_):
        raise error

    monkeypatch.setattr(MemoryFile, "read", fail)
    assert reader.read(*wanted(made)[0]) is None
    assert reader.corrupt_records == 1
    error = OSError(errno.EBADF, "Bad file descriptor")
    with pytest.raises(OSError, match="Bad file"):
        reader.read(*wanted(made)[0])


def test_open_files_are_bounded(storage, maker, monkeypatch):
    made = fill(maker)
    closed = []
    monkeypatch.setattr(MemoryFile, "close", lambda self: closed.append(id(self)))
    reader = LogReader(storage, maker.segments, files_max=2)
    reader.read_many(wanted(made))
    assert len(closed) == len(maker.segments) - 2
    reader.close()
    assert len(closed) == len(maker.segments)


def test_any_position_inside_a_record_locates_it(maker, reader):
    made = fill(maker, frames=6)
    for m in made:
        for inside in (0, 1, 17, m.length - 1):
            located = reader.locate(m.position + inside)
            assert located.record.position == m.position
            assert located.record.origin == m.origin
            assert located.number == inside
    assert list(located.targets) == [(1, len(made) - 1)]


def test_a_position_names_a_message_of_a_batch_or_a_target(storage, maker, reader):
    maker.append_records(Record(b"batch", Shape(messages=1000)))
    position = maker.records[0].position
    assert reader.locate(position + 999).number == 999
    assert reader.locate(position + 1000) is None


def test_positions_that_hold_no_record_locate_nothing(maker, reader):
    made = fill(maker, frames=2, each=1)
    assert reader.locate(maker.frame_positions[0] + 20) is None
    assert reader.locate(maker.frame_positions[1]) is None
    assert reader.locate(made[-1].position + made[-1].length) is None
    assert reader.corrupt_records == 0


def test_locating_walks_once_and_then_starts_at_marks(storage):
    maker = LogMaker(storage, segment_bytes_max=1 << 30)
    made = fill(maker, frames=400, each=10)
    reader = LogReader(storage, maker.segments)
    assert reader.locate(made[-1].position + 5).record.origin == made[-1].origin
    marks = reader._marks[0]
    assert len(marks) == pytest.approx(maker.segments.last.size_bytes / MARK_BYTES, abs=3)
    assert all(b - a >= MARK_BYTES for a, b in pairwise(marks))
    assert set(marks) <= set(maker.frame_positions)
    for m in (made[0], made[1999], made[2000], made[-1]):
        assert reader.locate(m.position + 3).record.origin == m.origin
    assert reader._marks[0] == marks


def test_remembered_marks_are_bounded(storage, monkeypatch):
    monkeypatch.setattr("penstock.log.reader.SEGMENTS_MARKED_MAX", 3)
    maker = LogMaker(storage, segment_bytes_max=1000)
    made = fill(maker)
    reader = LogReader(storage, maker.segments)
    assert all(reader.locate(m.position + 1) is not None for m in made)
    assert len(reader._marks) == 3


def test_locating_behind_damage_still_works(storage, maker, reader):
    made = fill(maker, frames=1, each=6, size=120)
    content = storage.files[maker.segments.last.path]
    content[made[1].position + 5] ^= 0x02  # its length: the walk is led astray
    assert reader.locate(made[1].position + 9) is None
    assert reader.corrupt_records == 1
    for m in (made[0], made[2], made[5]):
        assert reader.locate(m.position + 9).record.origin == m.origin


def test_a_record_that_only_pretends_inside_a_payload_is_not_located(storage, maker, reader):
    inner_position = 48 + 104
    parts, _ = encode_batch((neutral_record(b"forged"),), (((1, 0),),), inner_position, 0)
    body = bytes(4) + b"".join(parts)
    (made,) = maker.append(body)
    assert made.position + made.length > inner_position + 104
    assert reader.locate(inner_position).record.origin == body


# ---- salvage ------------------------------------------------------------------------------------


BASE = 8000


def written(*bodies):
    """Records one behind the other from ``BASE`` on, and where each lies."""
    records = [neutral_record(body) for body in bodies]
    parts, lengths = encode_batch(records, [((1, 0),)] * len(records), BASE, 0)
    spans, at = [], 0
    for length in lengths:
        spans.append((at, at + length))
        at += length
    return b"".join(parts), spans


def test_a_good_frame_is_read_at_once_and_a_bad_one_not_at_all():
    data, spans = written(b"a", b"bb", b"c" * 50)
    assert [
        (r[0] - BASE, r[0] - BASE + r[1]) for r in read_frame(data, 0, len(data), BASE)
    ] == spans
    assert read_frame(data, 0, len(data) - 8, BASE) is None
    assert read_frame(data, 8, len(data), BASE) is None
    assert read_frame(data, 0, len(data), BASE + 8) is None
    assert read_frame(b"", 0, 0, BASE) == []


def test_a_good_record_has_a_length_anything_else_has_none():
    data, spans = written(b"a", b"bb")
    assert good_length(data, 0, len(data), BASE) == spans[0][1]
    assert good_length(data, 8, len(data), BASE) == 0
    assert good_length(data, 0, spans[0][1] - 1, BASE) == 0
    assert good_length(bytes(200), 0, 200, 0) == 0


@given(junk=st.binary(max_size=300), body=st.binary(max_size=50))
def test_the_next_good_record_is_found_behind_any_junk(junk, body):
    junk = junk.ljust((len(junk) + 7) & -8, b"\0")
    parts, _ = encode_batch((neutral_record(body),), (((1, 0),),), BASE + len(junk), 0)
    data = junk + b"".join(parts)
    assert find_record(data, 0, len(data), BASE) == len(junk)
    assert find_record(data, len(junk) + 8, len(data), BASE) == len(data)


def test_a_record_is_found_across_search_steps(monkeypatch):
    monkeypatch.setattr("penstock.log.reader._SEARCH_STEPS", 3)
    parts, _ = encode_batch((neutral_record(b"x"),), (((1, 0),),), BASE + 800, 0)
    data = bytes(800) + b"".join(parts)
    assert find_record(data, 0, len(data), BASE) == 800


@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=8),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=4),
    knows_count=st.booleans(),
)
def test_salvage_gives_exactly_the_records_that_were_not_hit(bodies, flips, knows_count):
    data, spans = written(*bodies)
    broken = bytearray(data)
    for share, bit in flips:
        broken[int(share * len(data))] ^= 1 << bit
    untouched = [(start, end) for start, end in spans if broken[start:end] == data[start:end]]
    good, bad = salvage(bytes(broken), 0, len(data), BASE, len(bodies) if knows_count else None)
    assert good == untouched
    covered = sorted(good + bad)
    assert [start for start, _ in covered] == [0, *(end for _, end in covered[:-1])]
    assert covered[-1][1] == len(data)


def test_a_forged_record_in_a_damaged_payload_is_seen_through_when_the_count_is_known():
    inner_at = 88 + 12 + 4
    parts, _ = encode_batch((neutral_record(b"forged"),), (((1, 0),),), BASE + inner_at, 0)
    data, spans = written(bytes(4) + b"".join(parts) + b"tail", b"next")
    broken = bytearray(data)
    broken[spans[0][1] - 1 - 4] ^= 1
    good, bad = salvage(bytes(broken), 0, len(data), BASE, 2)
    assert (good, bad) == ([spans[1]], [spans[0]])
