"""What the log says of AMQP clients: who came, who went, who was refused and why."""

import logging

import pytest

from kit.amqp.peer import AmqpBench
from penstock.adapters.client_log import FOLD_LINES_MAX, FOLD_MS, FOLDED_MAX
from penstock.telemetry.log_format import TextFormatter, extra_of
from penstock.wire.amqp.methods.connection import Close, StartOk
from penstock.wire.amqp.methods.queue import Declare, Delete

PASSWORD = "hunter2"
FORGED = "eve\n2026-11-18 00:00:00.000 INFO amqp: connection opened  user=root\x1b[2J"


@pytest.fixture
def bench():
    return AmqpBench()


@pytest.fixture
def said(caplog):
    """(level, message, fields) of every line of the AMQP adapter so far."""
    caplog.set_level(logging.INFO, "penstock.adapters.amqp")

    def lines():
        return [(each.levelname, each.message, extra_of(each)) for each in caplog.records]

    return lines


def printed(caplog):
    return [TextFormatter().format(each) for each in caplog.records]


def fail_to_log_in(bench, user="mallory", host="127.0.0.1", capabilities=()):
    peer = bench.peer(host=host)
    peer.greet()
    properties = {"capabilities": dict.fromkeys(capabilities, True)}
    peer.send(0, StartOk(properties, "PLAIN", f"\0{user}\0{PASSWORD}".encode()))
    return peer


def test_a_connection_is_told_when_it_opens_and_when_its_client_closes_it(bench, said):
    peer = bench.client()
    where = {"connection": 1_000_001, "peer": "127.0.0.1:40001"}
    opened = {**where, "user": "guest", "vhost": "/", "client": ""}
    assert said() == [("INFO", "connection opened", opened)]
    peer.send(0, Close(200, "bye"))
    peer.session.closed("the connection was closed")
    closed = {**where, "user": "guest", "reason": "by its client: 200 bye"}
    assert said()[1:] == [("INFO", "connection closed", closed)]


def test_a_peer_that_vanishes_is_told_once_with_the_reason(bench, said):
    peer = bench.client()
    peer.session.closed("the connection broke: reset by peer")
    level, message, fields = said()[-1]
    assert (level, message) == ("INFO", "connection lost")
    assert fields["reason"] == "the connection broke: reset by peer"
    assert len(said()) == 2


def test_a_silent_peer_is_told_once_with_its_heartbeats(bench, said):
    peer = bench.client(heartbeat=10)
    bench.clock.advance(20_000)
    peer.session.due(bench.clock.monotonic_ms())
    peer.session.closed("the connection was closed")
    assert [message for _, message, _ in said()] == ["connection opened", "connection lost"]
    assert said()[-1][2]["reason"] == "it was silent for 20 s, two heartbeat intervals"


def test_who_never_said_a_word_is_not_told(bench, said):
    bench.peer().session.closed("the connection was closed")
    assert said() == []


@pytest.mark.parametrize("capabilities", [(), ("authentication_failure_close",)])
def test_a_failed_log_in_names_user_and_address_once_and_never_the_password(
    bench, said, caplog, capabilities
):
    peer = fail_to_log_in(bench, host="10.0.0.9", capabilities=capabilities)
    peer.session.closed("the connection was closed")
    ((level, message, fields),) = said()
    assert (level, message) == ("WARNING", "log-in refused")
    assert (fields["user"], fields["peer"]) == ("mallory", "10.0.0.9:40001")
    assert PASSWORD not in "".join(printed(caplog))


def test_a_channel_error_has_code_and_text(bench, said):
    peer = bench.client()
    peer.call(1, Declare(0, "missing", is_passive=True))
    level, message, fields = said()[-1]
    assert (level, message) == ("WARNING", "channel error")
    assert (fields["code"], fields["channel"], fields["user"]) == (404, 1, "guest")
    assert fields["text"] == "NOT_FOUND - no queue 'missing' in vhost '/'"


def test_a_connection_error_has_code_and_text(bench, said):
    peer = bench.client()
    peer.send(7, Delete(0, "q"))
    level, message, fields = said()[-1]
    assert (level, message) == ("WARNING", "connection error")
    assert (fields["code"], fields["channel"]) == (504, 7)
    peer.session.closed("the connection was closed")
    assert len(said()) == 2


def test_a_broker_that_stops_is_no_error_of_its_clients(bench, said):
    bench.client().session.stopping("shutdown")
    level, message, fields = said()[-1]
    assert (level, message) == ("INFO", "connection closed")
    assert "shutdown" in fields["reason"]


def test_names_of_clients_forge_no_line(bench, said, caplog):
    fail_to_log_in(bench, user=FORGED)
    peer = bench.client()
    peer.call(1, Declare(0, FORGED, is_passive=True))
    peer.send(0, Close(200, FORGED))
    lines = printed(caplog)
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


def test_many_lines_of_one_kind_and_address_are_folded_into_one(bench, said):
    for _ in range(FOLD_LINES_MAX + 90):
        fail_to_log_in(bench)
    fail_to_log_in(bench, host="10.0.0.9")
    assert len(said()) == FOLD_LINES_MAX + 1, "another address has lines of its own"
    timers = bench.broker.timers
    assert timers.next_deadline_ms() <= bench.clock.monotonic_ms() + FOLD_MS
    bench.clock.advance(FOLD_MS)
    timers.due(bench.clock.monotonic_ms())
    level, message, fields = said()[-1]
    assert (level, message) == ("WARNING", "log-in refused: more of the same")
    assert (fields["count"], fields["host"]) == (90, "127.0.0.1")
    fail_to_log_in(bench)
    assert said()[-1][1] == "log-in refused"


def test_ever_new_addresses_share_their_lines_when_there_are_too_many(bench, said):
    for each in range(FOLDED_MAX + 100):
        fail_to_log_in(bench, host=f"10.0.{each >> 8}.{each & 255}")
    assert len(said()) == FOLDED_MAX + FOLD_LINES_MAX
