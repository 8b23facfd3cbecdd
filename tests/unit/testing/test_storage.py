import errno

import pytest

from penstock.testing.storage import (
    ANY,
    Fault,
    FaultKind,
    FaultPlan,
    MemoryStorage,
    SimulatedStorage,
)

SEEDS = range(40)


@pytest.fixture(params=[MemoryStorage, SimulatedStorage])
def storage(request):
    return request.param()


def test_what_is_written_is_read_back(storage):
    storage.make_dir("log")
    file = storage.open("log/a", create=True)
    assert file.write(b"hello") == 5
    file.write(b" world")
    assert file.read(6, 100) == b"world"
    assert file.size() == storage.size("log/a") == 11
    file.truncate(5)
    assert storage.open("log/a", create=False).read(0, 100) == b"hello"


def test_a_missing_file_is_not_made_by_reading(storage):
    with pytest.raises(FileNotFoundError):
        storage.open("a", create=False)
    with pytest.raises(FileNotFoundError):
        storage.size("a")
    assert not storage.exists("a")


def test_a_directory_lists_only_its_own_names(storage):
    storage.make_dir("log/cut")
    storage.open("log/b", create=True)
    storage.open("log/a", create=True)
    storage.open("log/cut/x", create=True)
    assert storage.list("log") == ["a", "b", "cut"]
    assert storage.list("") == ["log"]


def test_rename_replaces_and_remove_unlinks(storage):
    storage.open("a", create=True).write(b"new")
    storage.open("b", create=True).write(b"old")
    storage.rename("a", "b")
    assert storage.list("") == ["b"]
    file = storage.open("b", create=False)
    storage.remove("b")
    assert file.read(0, 10) == b"new"
    assert storage.list("") == []


def durable_file(storage, name, data):
    file = storage.open(name, create=True)
    file.write(data)
    file.sync()
    storage.sync_dir("")
    return file


def test_synced_bytes_survive_every_power_cut():
    for seed in SEEDS:
        storage = SimulatedStorage(seed)
        durable_file(storage, "a", b"synced").write(b"-not")
        found = storage.crash().open("a", create=False).read(0, 100)
        assert found.startswith(b"synced")


def test_unsynced_bytes_are_lost_kept_torn_or_holed_by_chance():
    found = set()
    for seed in range(300):
        storage = SimulatedStorage(seed)
        durable_file(storage, "a", b"s").write(b"12")
        found.add(storage.crash().open("a", create=False).read(0, 100))
    assert {b"s", b"s1", b"s12"} <= found
    assert any(b"\0" in content for content in found)


def test_a_killed_process_loses_nothing_but_a_later_power_cut_still_can():
    lost = 0
    for seed in SEEDS:
        storage = SimulatedStorage(seed)
        durable_file(storage, "a", b"s").write(b"1")
        heir = storage.kill()
        assert heir.open("a", create=False).read(0, 9) == b"s1"
        lost += heir.crash().open("a", create=False).read(0, 9) == b"s"
    assert lost


def test_a_name_is_lost_or_kept_until_its_directory_is_synced():
    found = set()
    for seed in SEEDS:
        storage = SimulatedStorage(seed)
        storage.open("a", create=True).sync()
        found.add(storage.crash().exists("a"))
    assert found == {True, False}


def test_an_unsynced_rename_leaves_the_old_name_or_the_new_one():
    for seed in SEEDS:
        storage = SimulatedStorage(seed)
        durable_file(storage, "a", b"x")
        storage.rename("a", "b")
        assert storage.crash().list("") in (["a"], ["b"])


def test_an_unsynced_cut_may_come_back_whole():
    found = set()
    for seed in SEEDS:
        storage = SimulatedStorage(seed)
        durable_file(storage, "a", b"12345").truncate(2)
        found.add(storage.crash().open("a", create=False).read(0, 9))
    assert found == {b"12", b"12345"}


def test_bytes_of_a_failed_sync_are_not_saved_by_the_next_one():
    lost = 0
    for seed in SEEDS:
        storage = SimulatedStorage(seed)
        file = durable_file(storage, "a", b"s")
        file.write(b"1")
        storage.plan.fail_next("sync", FaultKind.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()
        assert file.read(0, 9) == b"s1"
        lost += storage.crash().open("a", create=False).read(0, 9) != b"s1"
    assert lost


def test_a_full_disk_takes_a_part_and_then_refuses():
    storage = SimulatedStorage()
    storage.capacity_bytes = 4
    file = storage.open("a", create=True)
    assert file.write(b"123456") == 4
    with pytest.raises(OSError, match="No space") as raised:
        file.write(b"56")
    assert raised.value.errno == errno.ENOSPC
    file.truncate(0)
    assert storage.free_bytes() == 4


def test_the_nth_call_of_a_verb_or_of_any_fails():
    plan = FaultPlan(Fault("write", 2, FaultKind.SHORT), Fault(ANY, 5, FaultKind.ENOSPC))
    storage = SimulatedStorage(plan=plan)
    file = storage.open("a", create=True)
    assert file.write(b"1234") == 4
    assert file.write(b"1234") == 2
    file.sync()
    with pytest.raises(OSError, match="No space"):
        file.sync()
    file.sync()
    assert plan.struck == 2


def test_handles_of_a_dead_process_do_nothing():
    storage = SimulatedStorage()
    file = storage.open("a", create=True)
    storage.kill()
    with pytest.raises(OSError, match="died"):
        file.write(b"late")


def test_the_same_seed_crashes_the_same_way():
    def found(seed):
        storage = SimulatedStorage(seed)
        for name in "abcdef":
            durable_file(storage, name, b"x" * 1000).write(b"y" * 5000)
        after = storage.crash()
        return [after.open(name, create=False).read(0, 9000) for name in "abcdef"]

    assert found(7) == found(7)
    assert found(7) != found(8)
