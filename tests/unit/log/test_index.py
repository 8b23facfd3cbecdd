"""The index against a plain list, with batches, holes, flushes and trims."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.index import (
    ENTRY,
    ENTRY_BYTES,
    QueueIndex,
    QueueState,
    find_offset,
    find_time,
    queue_of,
)
from penstock.log.side_files import SideFiles
from penstock.testing.storage import MemoryStorage


def new_index(storage=None, entries_max=8):
    files = SideFiles(storage if storage is not None else MemoryStorage())
    return QueueIndex(3, 33, files, entries_max=entries_max), files


def entry(index, *, hole=0, messages=1, length=64, store_ms=0):
    first = index.next_offset + hole
    return (1000 + first, first, index.end_bytes, store_ms, length, messages, 0, 0)


def put(index, new):
    index.staged.append(ENTRY.pack(*new))
    index.staged_offset = new[1] + new[5]
    index.staged_bytes = new[2] + new[4]
    index.take_staged(new[0])


def snapshot(files):
    files.run_all()
    files.take_rows()
    files.snapshot_written()
    files.run_all()


def expected(model, min_offset, from_offset, count):
    low = max(min_offset, from_offset)
    return [each for each in model if each[1] + each[5] > low][:count]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 4), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("run"), st.integers(1, 12)),
        st.tuples(st.just("plan")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("trim"), st.integers(0, 60)),
        st.tuples(st.just("look"), st.integers(0, 60)),
        st.tuples(st.just("restart")),
    ),
    max_size=30,
)


class Model:
    def __init__(self):
        self.storage = MemoryStorage()
        self.index, self.files = new_index(self.storage)
        self.entries = []
        self.now_ms = 0

    def put(self, messages, hole, later_ms):
        self.now_ms += later_ms
        new = entry(self.index, hole=hole, messages=messages, store_ms=self.now_ms)
        put(self.index, new)
        self.entries.append(new)

    def run(self, count):
        for _ in range(count):
            self.put(1, 0, 1)

    def plan(self):
        self.index.plan_flush()

    def flush(self):
        self.index.plan_flush()
        self.files.run_all()

    def trim(self, offset):
        self.index.trim(offset)

    def look(self, offset):
        """Twice, and whatever comes in between: what was found may be kept."""
        for _ in range(2):
            wanted = expected(self.entries, self.index.min_offset, offset, 1)
            assert self.index.entries(offset, 1) == wanted

    def restart(self):
        self.flush()
        rows = [(path, body) for _, path, body in self.files.take_rows() if body is not None]
        state = self.index.state()
        index, files = new_index(self.storage)
        assert files.restore(self.known_rows(rows)) == []
        index.restore(msgspec.json.decode(state, type=QueueState), files.paths("index/"))
        self.index, self.files = index, files

    def known_rows(self, rows):
        self.rows = {**getattr(self, "rows", {}), **dict(rows)}
        living = {f"index/{name}" for name in self.storage.list("index")} if self.rows else set()
        return [(path, body) for path, body in sorted(self.rows.items()) if path in living]


@given(OPERATIONS, st.lists(st.tuples(st.integers(0, 80), st.integers(1, 20)), max_size=8))
def test_every_read_gives_what_a_list_would_give(operations, reads):
    model = Model()
    for name, *arguments in operations:
        getattr(model, name)(*arguments)
    index = model.index
    for from_offset, count in [*reads, (0, 1000)]:
        found = index.entries(from_offset, count)
        assert found == expected(model.entries, index.min_offset, from_offset, count)
        plain = index.plain_run(from_offset, count)
        if plain is not None:
            assert list(zip(*plain, strict=True)) == [(each[0], each[4]) for each in found]
            assert [each[1] for each in found] == list(range(from_offset, found[-1][1] + 1))
            assert all(each[5] == 1 for each in found)
    for start, count in reads:
        inside = [each for each in model.entries if start <= each[1] < start + count]
        if start >= index.min_offset:
            assert index.bytes_between(start, start + count) == sum(each[4] for each in inside)
    for store_ms in range(0, model.now_ms + 2, max(1, model.now_ms // 5)):
        later = [each[1] for each in model.entries if each[3] >= store_ms]
        wanted = max(later[0], index.min_offset) if later else index.next_offset
        found = index.search_time(store_ms)
        # Below the lowest readable offset everything is the same place.
        assert found == wanted or found == index.min_offset >= wanted


@pytest.fixture
def index():
    return new_index()[0]


def test_an_empty_index_gives_nothing(index):
    assert index.entries(0, 10) == []
    assert index.bytes_between(0, 10) == 0
    assert index.search_time(5) == 0
    assert (index.next_offset, index.min_offset, index.messages) == (0, 0, 0)


def test_an_offset_inside_a_batch_gives_the_batch(index):
    put(index, entry(index, messages=10))
    put(index, entry(index))
    assert [each[1] for each in index.entries(7, 5)] == [0, 10]


def test_single_messages_without_flags_are_a_plain_run(index):
    for _ in range(3):
        put(index, entry(index))
    assert index.plain_run(1, 9) == ([1001, 1002], [64, 64])
    assert index.plain_run(0, 2) == ([1000, 1001], [64, 64])
    assert index.plain_run(3, 9) is None
    put(index, (*entry(index)[:7], 8))
    assert index.plain_run(2, 1) == ([1002], [64])
    assert index.plain_run(2, 2) is None
    index.trim(2)
    assert index.plain_run(1, 1) is None
    put(index, entry(index, messages=2))
    assert index.plain_run(2, 1) is None


@pytest.mark.parametrize("count", [1, 2, 64, 65, 66, 200])
def test_few_and_many_entries_make_the_same_columns(index, count):
    for at in range(count):
        put(index, (*entry(index)[:4], 64 + 8 * at, 1, 7, 0))
    wanted = [(each[0], each[4]) for each in index.entries(0, count)]
    assert list(zip(*index.plain_run(0, count), strict=True)) == wanted
    put(index, (*entry(index)[:7], 1))
    assert index.plain_run(0, count + 1) is None
    assert index.plain_run(0, count) is not None


def test_a_staged_entry_is_seen_by_nobody_until_it_is_taken_in(index):
    put(index, entry(index))
    new = entry(index)
    index.staged.append(ENTRY.pack(*new))
    index.staged_offset, index.staged_bytes = 2, 128
    assert len(index.entries(0, 10)) == 1
    index.undo_staged()
    assert (index.staged_offset, index.staged_bytes, index.staged) == (1, 64, [])


def test_the_tail_leaves_memory_once_it_is_on_file():
    index, files = new_index(entries_max=100)
    for _ in range(1000):
        put(index, entry(index))
    assert index.tail_bytes == 1000 * ENTRY_BYTES
    index.plan_flush()
    assert index.unplanned_bytes == 0
    assert index.tail_bytes == 1000 * ENTRY_BYTES
    files.run_all()
    assert index.tail_bytes == 0
    assert len(index.entries(0, 5000)) == 1000
    assert len(files.paths("index/")) == 10


def test_trimming_removes_whole_files_and_a_dropped_queue_leaves_none():
    storage = MemoryStorage()
    index, files = new_index(storage)
    for _ in range(30):
        put(index, entry(index))
    index.plan_flush()
    files.run_all()
    index.trim(17)
    snapshot(files)
    assert storage.list("index") == [f"0000000003-{first:020d}.idx" for first in (16, 24)]
    assert index.entries(0, 1)[0][1] == 17
    put(index, entry(index))
    index.plan_flush()
    index.drop()
    snapshot(files)
    assert storage.list("index") == []


def test_who_still_looks_at_a_dropped_queue_finds_nothing_in_it():
    index, files = new_index()
    for _ in range(30):
        put(index, entry(index))
    index.plan_flush()
    files.run_all()
    assert index.bytes_between(3, 30) == 27 * 64
    index.drop()
    snapshot(files)
    assert index.entries(3, 1) == []
    assert index.bytes_between(3, 30) == 0


def test_offsets_handed_out_before_are_not_handed_out_again(index):
    put(index, entry(index))
    index.lift(10)
    assert (index.next_offset, index.staged_offset) == (10, 10)
    put(index, entry(index))
    assert [each[1] for each in index.entries(0, 10)] == [0, 10]
    index.lift(5)
    assert index.next_offset == 11


# ---- index files --------------------------------------------------------------------------------


def run(*entries):
    """Reads from packed (first_offset, messages, store_ms) entries."""
    data = b"".join(ENTRY.pack(0, first, 0, ms, 8, count, 0, 0) for first, count, ms in entries)
    reads = []

    def read(at, size):
        reads.append(at // ENTRY_BYTES)
        return data[at : at + size]

    return read, len(entries), reads


def test_single_messages_without_holes_are_found_without_a_read():
    read, count, reads = run((10, 1, 0), (11, 1, 0), (12, 1, 0))
    assert [find_offset(read, count, (10, 13), offset) for offset in (10, 11, 12)] == [0, 1, 2]
    assert reads == []


def test_batches_and_holes_are_found_by_halving():
    read, count, _ = run((10, 5, 0), (15, 1, 0), (20, 3, 0))
    found = [find_offset(read, count, (10, 23), offset) for offset in range(8, 24)]
    assert found == [0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 3]


def test_a_time_between_entries_gives_the_later_one():
    read, count, _ = run((0, 1, 10), (1, 1, 10), (2, 1, 20))
    assert [find_time(read, count, ms) for ms in (5, 10, 11, 20, 21)] == [0, 0, 2, 2, 3]


def test_the_queue_of_a_file_is_in_its_name():
    assert queue_of("index/0000000042-00000000000000065536.idx") == 42
