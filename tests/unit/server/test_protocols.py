"""Which protocols a broker speaks, by its settings; deadlines that belong to no connection."""

import subprocess
import sys

import pytest

from kit.pulsar_payload import PulsarMessage, batch_tail, single_tail
from penstock.adapters.timers import Timers
from penstock.engine.ports import BatchCodec, OrderingKeyReader
from penstock.model.record import Wire
from penstock.server.protocols import LOOK_MS, DeadlineDriver, built_in, fact_readers
from penstock.settings.broker import ListenerSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.testing.clock import ManualClock
from penstock.wire.pulsar.facts import PulsarFacts
from penstock.wire.pulsar.metadata import make_record


def names(**ports):
    found = built_in(Settings(listeners=ListenerSettings(**ports)))
    return [each.factory.protocol for each in found]


def test_amqp_listens_on_its_port():
    (amqp,) = [each for each in built_in(Settings()) if each.factory.protocol == "amqp"]
    assert amqp.port == 5672
    assert amqp.open is not None
    assert amqp.routes is not None, "RabbitMQ's management API"


@pytest.mark.parametrize(
    ("off", "left"),
    [
        ("amqp", {"rocketmq", "rocketmq_broker", "rocketmq_vip", "pulsar"}),
        ("rocketmq", {"amqp", "rocketmq_broker", "rocketmq_vip", "pulsar"}),
        ("pulsar", {"amqp", "rocketmq", "rocketmq_broker", "rocketmq_vip"}),
    ],
)
def test_what_is_off_is_not_there(off, left):
    assert set(names(**{off: "off"})) == left


def test_the_vip_channel_is_two_below_the_brokers_port_and_may_be_missing():
    (vip,) = [each for each in built_in(Settings()) if each.factory.protocol == "rocketmq_vip"]
    assert vip.port == 10909
    assert "is_vip_open" in vip.when_taken


@pytest.mark.parametrize("port", ["0", "2"])
def test_a_port_that_has_none_two_below_it_has_no_vip_channel(port):
    assert names(rocketmq_broker=port) == ["rocketmq_broker", "rocketmq", "amqp", "pulsar"]


def test_the_vip_channel_can_be_off():
    settings = Settings(rocketmq=RocketmqSettings(is_vip_open=False))
    assert "rocketmq_vip" not in [each.factory.protocol for each in built_in(settings)]


def test_stored_bytes_of_all_wires_are_read_whoever_listens():
    assert set(fact_readers()) == set(Wire) - {Wire.NEUTRAL}


def test_the_reader_of_pulsar_is_imported_late_and_does_all_that_the_reader_does():
    deferred = fact_readers()[int(Wire.PULSAR)]
    assert isinstance(deferred, BatchCodec)
    assert isinstance(deferred, OrderingKeyReader)
    record = make_record(single_tail(PulsarMessage(b"body", "k", {"a": "1"})), 5)
    reader = PulsarFacts()
    for name in ("keys", "properties", "facts", "ordering_key"):
        assert getattr(deferred, name)(record) == getattr(reader, name)(record)
    assert deferred.body(record, 100) == b"body"
    batch = make_record(batch_tail(b"a", b"b"), 5)
    assert deferred.open_batch(batch, 1000) == reader.open_batch(batch, 1000)
    code = "import sys, penstock.server.protocols as p; p.fact_readers(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "google.protobuf" not in loaded.stdout.split()


# ---- deadlines ----------------------------------------------------------------------------------
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


def drive(clock, loop, *tasks):
    timers, turns = Timers(), []
    for task in tasks:
        timers.add(task)
    driver = DeadlineDriver(timers, clock, loop, lambda: turns.append(clock.monotonic_ms()))
    return timers, driver, turns


def test_a_deadline_is_met_and_a_turn_asked_for(clock, loop):
    task = Task(clock, clock.monotonic_ms() + 2500)
    _, _, turns = drive(clock, loop, task)
    loop.run(2499)
    assert (task.met, turns) == ([], [])
    loop.run(1)
    assert task.met == [0]
    assert len(turns) == 1


def test_a_deadline_that_comes_nearer_with_a_word_is_met_in_time(clock, loop):
    task = Task(clock)
    timers, _, _ = drive(clock, loop, task)
    loop.run(300)
    task.at_ms = clock.monotonic_ms() + 50
    timers.reschedule()
    timers.reschedule()
    loop.run(50)
    assert task.met == [0]


def test_a_deadline_that_comes_nearer_without_a_word_is_late_by_a_look_at_most(clock, loop):
    task = Task(clock)
    drive(clock, loop, task)
    loop.run(300)
    task.at_ms = clock.monotonic_ms() + 1
    loop.run(LOOK_MS)
    (late,) = task.met
    assert 0 <= late <= LOOK_MS


def test_only_those_that_are_due_are_called(clock, loop):
    now_ms = clock.monotonic_ms()
    first, second = Task(clock, now_ms + 10), Task(clock, now_ms + 20)
    drive(clock, loop, first, second)
    loop.run(15)
    assert (first.met, second.met) == ([0], [])
    loop.run(15)
    assert second.met == [0]


def test_after_the_stop_nobody_is_called(clock, loop):
    task = Task(clock, clock.monotonic_ms() + 10)
    timers, driver, turns = drive(clock, loop, task)
    timers.reschedule()
    driver.stop()
    timers.reschedule()
    loop.run(5000)
    assert (task.met, turns) == ([], [])
