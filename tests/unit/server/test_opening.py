"""Opening a data directory: made, refused, locked, and a recovery that says it takes long."""

import threading

import pytest

from penstock.adapters.timers import Timers
from penstock.log.storage import DiskStorage
from penstock.model.errors import StartRefused
from penstock.model.record import Wire
from penstock.server import opening
from penstock.server.lifecycle import SystemClock
from penstock.server.opening import (
    LOOK_MS,
    DeadlineDriver,
    RecoveryProgress,
    built_in,
    lock_directory,
    make_directory,
    open_engine,
    readers,
)
from penstock.server.probes import boot_id
from penstock.settings.broker import ListenerSettings
from penstock.settings.load import Settings
from penstock.testing.clock import ManualClock


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


# ---- protocols ----------------------------------------------------------------------------------
# Which protocols a broker speaks, by its settings.


def names(**ports):
    found = built_in(Settings(listeners=ListenerSettings(**ports)))
    return [each.factory.protocol for each in found]


def test_amqp_listens_on_its_port():
    (amqp,) = [each for each in built_in(Settings()) if each.factory.protocol == "amqp"]
    assert amqp.port == 5672
    assert amqp.open is not None


@pytest.mark.parametrize(
    ("off", "left"),
    [
        ("amqp", {"rocketmq", "rocketmq_broker"}),
        ("rocketmq", {"amqp", "rocketmq_broker"}),
    ],
)
def test_what_is_off_is_not_there(off, left):
    assert set(names(**{off: "off"})) == left


def test_stored_bytes_of_both_wires_are_read_whoever_listens():
    assert set(readers()) >= {int(Wire.AMQP), int(Wire.ROCKETMQ)}


# ---- household ----------------------------------------------------------------------------------
# Deadlines that belong to no connection are met, late by a second at most.


class Handle:
    def __init__(self, at_ms, callback):
        self.at_ms, self.callback, self.is_cancelled = at_ms, callback, False

    def cancel(self):
        self.is_cancelled = True


class HandLoop:
    """A loop whose time is a manual clock's."""

    def __init__(self, clock):
        self.clock, self.timers, self.soon = clock, [], []

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_later(self, seconds, callback):
        handle = Handle(self.clock.monotonic_ms() + round(seconds * 1000), callback)
        self.timers.append(handle)
        return handle

    def run(self, ms):
        end_ms = self.clock.monotonic_ms() + ms
        while True:
            while self.soon:
                self.soon.pop(0)()
            due = [each for each in self.timers if not each.is_cancelled and each.at_ms <= end_ms]
            if not due:
                break
            first = min(due, key=lambda each: each.at_ms)
            self.timers.remove(first)
            self.clock.advance(max(0, first.at_ms - self.clock.monotonic_ms()))
            first.callback()
        self.clock.advance(end_ms - self.clock.monotonic_ms())


class Task:
    def __init__(self, clock, at_ms=None):
        self.clock, self.at_ms, self.met = clock, at_ms, []

    def next_deadline_ms(self):
        return self.at_ms

    def due(self, now_ms):
        self.met.append(now_ms - self.at_ms)
        self.at_ms = None


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def loop(clock):
    return HandLoop(clock)


def keep(clock, loop, *tasks):
    timers, turns = Timers(), []
    for task in tasks:
        timers.add(task)
    keeper = DeadlineDriver(timers, clock, loop, lambda: turns.append(clock.monotonic_ms()))
    return timers, keeper, turns


def test_a_deadline_is_met_and_a_turn_asked_for(clock, loop):
    task = Task(clock, clock.monotonic_ms() + 2500)
    _, _, turns = keep(clock, loop, task)
    loop.run(2499)
    assert (task.met, turns) == ([], [])
    loop.run(1)
    assert task.met == [0]
    assert len(turns) == 1


def test_a_deadline_that_comes_nearer_with_a_word_is_met_in_time(clock, loop):
    task = Task(clock)
    timers, _, _ = keep(clock, loop, task)
    loop.run(300)
    task.at_ms = clock.monotonic_ms() + 50
    timers.reschedule()
    timers.reschedule()
    loop.run(50)
    assert task.met == [0]


def test_a_deadline_that_comes_nearer_without_a_word_is_late_by_a_look_at_most(clock, loop):
    task = Task(clock)
    keep(clock, loop, task)
    loop.run(300)
    task.at_ms = clock.monotonic_ms() + 1
    loop.run(LOOK_MS)
    (late,) = task.met
    assert 0 <= late <= LOOK_MS


def test_only_those_that_are_due_are_called(clock, loop):
    now_ms = clock.monotonic_ms()
    first, second = Task(clock, now_ms + 10), Task(clock, now_ms + 20)
    keep(clock, loop, first, second)
    loop.run(15)
    assert (first.met, second.met) == ([0], [])
    loop.run(15)
    assert second.met == [0]


def test_after_the_stop_nobody_is_called(clock, loop):
    task = Task(clock, clock.monotonic_ms() + 10)
    timers, keeper, turns = keep(clock, loop, task)
    timers.reschedule()
    keeper.stop()
    timers.reschedule()
    loop.run(5000)
    assert (task.met, turns) == ([], [])
