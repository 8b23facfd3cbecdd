import pytest

from penstock.log.catalog import Definitions
from penstock.log.index import ENTRY, ENTRY_BYTES, QUEUE_TAIL_BYTES_MAX, IndexSet
from penstock.log.side_files import SideFiles
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.ids import TRANSIENT_ID_MIN
from penstock.testing.storage import MemoryStorage

TAIL_MAX = 64 * 1024


@pytest.fixture
def indexes():
    files = SideFiles(MemoryStorage())
    return IndexSet(files, Definitions({}), entries_max=1000, tail_bytes_max=TAIL_MAX)


def put(indexes, index, count=1):
    for _ in range(count):
        first = index.next_offset
        index.staged.append(ENTRY.pack(0, first, 0, 0, 64, 1, 0, 0))
        index.staged_offset = first + 1
        indexes.take_in((index,), 0, ENTRY_BYTES)


def in_memory(indexes):
    return sum(index.unplanned_bytes for index in indexes.by_id.values())


def test_a_queue_is_written_down_when_it_is_made(indexes):
    indexes.create(5, 77)
    ((kind, key, body),) = indexes._definitions.take_ops()
    assert (kind, key) == ("queue", "5")
    assert b'"incarnation":77' in body


def test_a_transient_queue_is_never_written_down(indexes):
    index = indexes.create(TRANSIENT_ID_MIN, 1)
    put(indexes, index)
    assert indexes.capture() == []
    indexes.drop(TRANSIENT_ID_MIN)
    assert not indexes._definitions.ops


def test_an_id_names_one_queue(indexes):
    indexes.create(5, 1)
    with pytest.raises(AlreadyExists):
        indexes.create(5, 2)
    indexes.drop(5)
    with pytest.raises(NotFound):
        indexes.get(5)


def test_one_busy_queue_is_written_before_its_tail_grows_large(indexes):
    indexes._planned_at_bytes = 1 << 40
    index = indexes.create(1, 1)
    put(indexes, index, 3 * QUEUE_TAIL_BYTES_MAX // ENTRY_BYTES)
    assert index.unplanned_bytes < QUEUE_TAIL_BYTES_MAX


def test_many_quiet_queues_are_written_before_their_tails_grow_large_together(indexes):
    for queue_id in range(3000):
        put(indexes, indexes.create(queue_id, 1))
        assert in_memory(indexes) <= TAIL_MAX // 2 + ENTRY_BYTES


def test_a_snapshot_has_the_rows_of_changed_queues_only_once(indexes):
    first, second = indexes.create(1, 1), indexes.create(2, 1)
    put(indexes, first)
    put(indexes, second)
    put(indexes, second)
    assert [key for _, key, _ in indexes.capture()] == ["1", "2"]
    assert in_memory(indexes) == 0
    put(indexes, second)
    assert indexes.dirty_count == 1
    indexes.trim(1, 1)
    assert [key for _, key, _ in indexes.capture()] == ["2", "1"]
    assert indexes.capture() == []


def test_a_dropped_queue_is_not_in_the_snapshot(indexes):
    put(indexes, indexes.create(1, 1))
    indexes.drop(1)
    indexes.trim(1, 1)
    assert indexes.capture() == []
