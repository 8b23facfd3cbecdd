"""Opening a data directory: made, refused, locked, and a recovery that says it takes long."""

import threading

import pytest

from penstock.log.storage import DiskStorage
from penstock.model.errors import StartRefused
from penstock.server import opening
from penstock.server.lifecycle import SystemClock
from penstock.server.opening import (
    RecoveryProgress,
    lock_directory,
    make_directory,
    open_engine,
)
from penstock.server.probes import boot_id
from penstock.settings.load import Settings


def test_a_missing_directory_is_made_with_its_parents(tmp_path):
    assert make_directory(str(tmp_path / "a" / "b")).is_dir()


def test_a_directory_without_rights_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(opening.os, "access", lambda path, mode: False)
    with pytest.raises(StartRefused, match="not writable"):
        make_directory(str(tmp_path))


def test_an_error_of_the_disk_while_opening_is_a_refusal_that_names_the_place(
    tmp_path, monkeypatch
):
    def full(self, path, *, create):
        raise OSError(28, "No space left on device", path)

    directory, lock = lock_directory(str(tmp_path))
    monkeypatch.setattr(DiskStorage, "open", full)
    with pytest.raises(StartRefused, match=f"{tmp_path}.*No space left.*--data"):
        open_engine(directory, lock, Settings(), SystemClock(), None)
    lock.release()


def test_a_quick_recovery_says_nothing(capsys):
    with RecoveryProgress("recovering"):
        pass
    assert capsys.readouterr().err == ""


def test_a_long_recovery_says_what_it_does(monkeypatch):
    said = threading.Event()
    monkeypatch.setattr(opening, "SILENCE_SECONDS", 0.001)
    monkeypatch.setattr("builtins.print", lambda text, **_: said.set() if "recov" in text else None)
    with RecoveryProgress("recovering the log"):
        assert said.wait(10)


def test_the_clock_of_the_machine_moves():
    clock = SystemClock()
    assert clock.monotonic_ms() <= clock.monotonic_ms()
    assert clock.wall_ms() > 1_700_000_000_000


def test_the_boot_id_is_empty_where_nobody_tells(tmp_path):
    assert boot_id(tmp_path) == ""
