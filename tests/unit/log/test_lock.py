import os

import pytest

from penstock.log.lock import LOCK_NAME, DirectoryLock
from penstock.model.errors import StartRefused


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
