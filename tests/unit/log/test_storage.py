import os

import pytest

from penstock.log.storage import LOCK_NAME, DirectoryLock, DiskStorage, File, Storage
from penstock.model.errors import StartRefused


@pytest.fixture
def storage(tmp_path):
    return DiskStorage(tmp_path)


def test_disk_storage_satisfies_the_protocols(storage):
    as_storage: Storage = storage
    as_file: File = as_storage.open("a", create=True)
    assert as_file.size() == 0
    as_file.close()


def test_what_is_written_is_read_back_from_any_place(storage):
    file = storage.open("a", create=True)
    assert file.write(b"hello ") == 6
    assert file.write(b"world") == 5
    assert (file.read(0, 5), file.read(6, 100), file.read(11, 4)) == (b"hello", b"world", b"")
    assert file.size() == storage.size("a") == 11
    file.close()


def test_appends_follow_the_end_after_a_truncation(storage):
    file = storage.open("a", create=True)
    file.write(b"0123456789")
    file.truncate(4)
    file.write(b"x")
    assert file.read(0, 10) == b"0123x"
    file.sync()
    file.close()


def test_reads_go_on_when_the_system_gives_less_than_asked(storage, monkeypatch):
    file = storage.open("a", create=True)
    file.write(b"0123456789")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 3), at))
    assert file.read(1, 8) == b"12345678"
    assert file.read(5, 100) == b"56789"
    file.close()


def test_missing_names_are_file_not_found(storage):
    for attempt in (
        lambda: storage.open("none", create=False),
        lambda: storage.size("none"),
        lambda: storage.list("none"),
        lambda: storage.remove("none"),
        lambda: storage.rename("none", "other"),
    ):
        with pytest.raises(FileNotFoundError):
            attempt()
    assert not storage.exists("none")


def test_directories_are_made_listed_renamed_into_and_synced(storage):
    storage.make_dir("a/b")
    storage.make_dir("a/b")
    for name in ("y", "x"):
        storage.open(f"a/b/{name}", create=True).close()
    assert storage.list("a/b") == ["x", "y"]
    storage.rename("a/b/x", "a/z")
    storage.sync_dir("a/b")
    storage.sync_dir("")
    assert (storage.list("a"), storage.list("a/b")) == (["b", "z"], ["y"])
    storage.remove("a/z")
    assert not storage.exists("a/z")


def test_a_read_only_storage_creates_and_changes_nothing(tmp_path, storage):
    storage.open("a", create=True).close()
    looking = DiskStorage(tmp_path, is_read_only=True)
    file = looking.open("a", create=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(b"x")
    file.close()


def test_handles_do_not_leak_into_children_and_close_once(storage):
    file = storage.open("a", create=True)
    fd = file._fd
    assert not os.get_inheritable(fd)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_free_bytes_is_what_statvfs_grants(storage, tmp_path):
    room = os.statvfs(tmp_path)
    assert 0 < storage.free_bytes() <= room.f_blocks * room.f_frsize


# ---- lock ---------------------------------------------------------------------------------------


def test_a_second_broker_is_refused_and_told_which_process_has_the_directory(tmp_path):
    first = DirectoryLock(tmp_path)
    first.acquire()
    with pytest.raises(StartRefused, match=f"process {os.getpid()}"):
        DirectoryLock(tmp_path).acquire()
    first.release()
    again = DirectoryLock(tmp_path)
    again.acquire()
    again.release()


def test_a_file_left_behind_or_scrambled_locks_nobody_out(tmp_path):
    (tmp_path / LOCK_NAME).write_bytes(b"\xff garbage " * 20)
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"
    lock.release()
    lock.release()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartRefused, match="--data"):
        DirectoryLock(tmp_path / "file" / "data").acquire()
