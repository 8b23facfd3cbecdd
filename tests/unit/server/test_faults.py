"""Faults on purpose: each order does what it says, wrong ones are refused, clear ends them."""

import errno
import threading

import pytest

from penstock.log.storage import DiskStorage
from penstock.model.errors import SettingsError
from penstock.server.faults import FaultOrder, Faults, FaultyStorage


@pytest.fixture
def faults():
    return Faults()


@pytest.fixture
def storage(tmp_path, faults):
    storage = FaultyStorage(DiskStorage(tmp_path), faults)
    storage.make_dir("log")
    return storage


def test_a_held_store_waits_until_it_is_cleared(faults):
    faults.order(FaultOrder("store-hold", ms=60_000))
    done = threading.Event()
    thread = threading.Thread(target=lambda: (faults.before_sync(), done.set()))
    thread.start()
    assert not done.is_set()
    faults.order(FaultOrder("clear"))
    thread.join(10)
    assert done.is_set()


def test_without_a_fault_a_sync_does_not_wait(faults):
    faults.before_sync()
    assert faults.view()["store_hold_ms"] == 0


@pytest.mark.parametrize(("word", "number"), [("enospc", errno.ENOSPC), ("eio", errno.EIO)])
def test_writes_to_the_log_fail_as_often_as_ordered(faults, storage, word, number):
    file = storage.open("log/0.seg", create=True)
    faults.order(FaultOrder("write-error", count=2, error=word))
    for _ in range(2):
        with pytest.raises(OSError, match="on purpose") as caught:
            file.write(b"x")
        assert caught.value.errno == number
    assert file.write(b"x") == 1
    assert file.size() == 1
    file.close()


def test_other_files_never_fail_on_purpose(faults, storage):
    faults.order(FaultOrder("write-error", count=1))
    file = storage.open("format", create=True)
    assert file.write(b"1") == 1
    file.close()


def test_pretended_figures_last_until_cleared(faults):
    faults.order(FaultOrder("memory", bytes=10))
    faults.order(FaultOrder("disk", bytes=20))
    assert (faults.memory_bytes, faults.disk_bytes) == (10, 20)
    faults.order(FaultOrder("clear"))
    assert (faults.memory_bytes, faults.disk_bytes) == (None, None)


@pytest.mark.parametrize(
    "order",
    [
        FaultOrder("unplug"),
        FaultOrder("store-hold", ms=-1),
        FaultOrder("store-hold", ms=10_000_000),
        FaultOrder("write-error", error="epipe"),
        FaultOrder("queue-delay", ms=10),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_with_a_sentence(faults, order):
    with pytest.raises(SettingsError):
        faults.order(order)
