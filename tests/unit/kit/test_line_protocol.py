import pytest

from kit.line_protocol import LINE_BYTES_MAX, LineFactory
from penstock.adapters.contract import Peer
from penstock.testing.broker import in_memory_engine


class Wire:
    """An adapter on an engine in memory, driven line by line."""

    def __init__(self):
        self.core = in_memory_engine()
        self.woken = 0
        self.adapter = LineFactory().make(
            1, Peer("127.0.0.1", 1, "127.0.0.1", 2), self.core.engine, self.core.clock, self.wake
        )

    def wake(self):
        self.woken += 1

    def say(self, *lines):
        self.adapter.receive("".join(f"{line}\n" for line in lines).encode())
        return self.hear()

    def hear(self):
        self.core.settle()
        heard = b"".join(self.adapter.outgoing()).decode().splitlines()
        self.adapter.flushed(0)
        return heard


@pytest.fixture
def wire():
    return Wire()


def test_a_topic_is_answered_once_it_is_durable(wire):
    wire.adapter.receive(b"TOPIC t\n")
    assert wire.adapter.outgoing() == []
    assert wire.hear() == ["TOPIC t"]


def test_publish_confirm_deliver_and_acknowledge(wire):
    wire.say("TOPIC t", "SUB t s 10")
    heard = wire.say("PUB t 7 hello", "PUB t 8 world")
    assert [line for line in heard if line.startswith("CONFIRM")] == [
        "CONFIRM 7 1 0",
        "CONFIRM 8 1 1",
    ]
    assert [line for line in heard if line.startswith("MSG")] == [
        "MSG t s 1 0 0 hello",
        "MSG t s 1 1 0 world",
    ]
    wire.say("ACK t s 1 0 1")
    subscription = next(iter(wire.core.engine.topics()[0].subscriptions.values()))
    assert subscription.low_mark(1) == 2


def test_what_is_given_back_comes_again_with_the_mark(wire):
    wire.say("TOPIC t", "SUB t s 10", "PUB t 1 x")
    assert "MSG t s 1 0 1 x" in wire.say("BACK t s 1 0")


def test_lines_may_arrive_byte_by_byte(wire):
    for byte in b"PING a b\n":
        wire.adapter.receive(bytes([byte]))
    assert wire.hear() == ["PONG a b"]


@pytest.mark.parametrize(
    "line", ["NOISE", "PUB nowhere 1 x", "PUB t", "SUB nowhere s 1", "ACK t s 1 1", "TOPIC \x01"]
)
def test_what_is_not_in_the_protocol_is_answered_and_closes_the_connection(wire, line):
    heard = wire.say(line)
    assert heard[-1].startswith("ERROR ")
    assert wire.adapter.wants_close


def test_an_endless_line_is_refused(wire):
    wire.adapter.receive(b"x" * (LINE_BYTES_MAX + 1))
    assert wire.hear() == [f"ERROR line longer than {LINE_BYTES_MAX} bytes"]


def test_a_closed_connection_gives_back_what_it_held(wire):
    wire.say("TOPIC t", "SUB t s 10", "PUB t 1 x")
    wire.adapter.closed("gone")
    wire.adapter.closed("gone")
    wire.core.settle()
    subscription = next(iter(wire.core.engine.topics()[0].subscriptions.values()))
    assert subscription.statistics().unacked == 0
    assert wire.core.engine.connections == []
    assert wire.adapter.outgoing() == []


def test_an_alarm_is_told_and_its_end_too(wire):
    wire.say("TOPIC t")
    wire.core.engine.set_alarm("disk", 1 << 40)
    wire.core.engine.set_alarm_limits(memory_bytes=100, disk_free_bytes=1)
    wire.core.engine.set_alarm("memory", 200)
    assert "BLOCKED memory" in wire.say("PUB t 1 x")
    wire.core.engine.set_alarm("memory", 1)
    assert "UNBLOCKED" in wire.hear()


def test_the_adapter_wakes_its_pump_whenever_it_has_something_to_say(wire):
    wire.say("TOPIC t")
    before = wire.woken
    wire.say("PUB t 1 x")
    assert wire.woken > before
