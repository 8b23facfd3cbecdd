import pytest

from penstock.log.key_index import KeyIndex, key_hash
from penstock.log.side_files import SideFiles
from penstock.testing.storage import MemoryStorage

ALWAYS = {"begin_ms": 0, "end_ms": 1 << 60}


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def files(storage):
    return SideFiles(storage)


@pytest.fixture
def keys(files):
    return KeyIndex(files, entries_max=100)


def fill(keys, count):
    """Message i is at position i, stored at i ms, with key k<i mod 10>."""
    for position in range(count):
        keys.add(1, [b"k%d" % (position % 10)], position, position)


@pytest.mark.parametrize("is_written", [False, True])
def test_positions_of_a_key_come_newest_first_whether_in_memory_or_on_file(keys, files, is_written):
    fill(keys, 450)
    if is_written:
        files.run_all()
    assert keys.file_count == 4
    found = keys.lookup(1, b"k3", count_max=1000, **ALWAYS)
    assert found == list(range(443, 0, -10))
    assert keys.lookup(1, b"k3", count_max=2, **ALWAYS) == [443, 433]
    assert keys.lookup(2, b"k3", count_max=2, **ALWAYS) == []
    assert keys.lookup(1, b"none", count_max=2, **ALWAYS) == []


def test_a_lookup_is_bounded_by_time(keys, files):
    fill(keys, 450)
    files.run_all()
    assert keys.lookup(1, b"k0", begin_ms=100, end_ms=140, count_max=100) == [
        140,
        130,
        120,
        110,
        100,
    ]


def test_a_message_may_have_several_keys(keys):
    keys.add(1, [b"a", b"b"], 7, 5)
    for key in (b"a", b"b"):
        assert keys.lookup(1, key, count_max=5, **ALWAYS) == [7]


def test_a_key_that_all_messages_share_is_found_completely(keys, files):
    for position in range(300):
        keys.add(1, [b"same"], position, position)
    files.run_all()
    assert len(keys.lookup(1, b"same", count_max=1000, **ALWAYS)) == 300


def test_sealed_keys_survive_a_restart_and_go_on(keys, files):
    fill(keys, 150)
    keys.seal()
    keys.seal()
    files.run_all()
    again = KeyIndex(files, entries_max=100)
    again.restore(files.paths("keys/"))
    assert len(again.lookup(1, b"k3", count_max=100, **ALWAYS)) == 15
    fill(again, 100)
    files.run_all()
    assert len(set(files.paths("keys/"))) == again.file_count == 3


def test_files_of_messages_that_are_gone_go(keys, files, storage):
    fill(keys, 450)
    files.run_all()
    keys.trim(250)
    files.take_rows()
    files.snapshot_written()
    files.run_all()
    assert keys.file_count == len(storage.list("keys")) == 2
    assert keys.lookup(1, b"k3", count_max=1000, **ALWAYS)[-1] == 203


def test_the_hash_of_a_key_does_not_change_between_processes():
    assert key_hash(1, b"order-1") == 0x82F744A005E8EE62
