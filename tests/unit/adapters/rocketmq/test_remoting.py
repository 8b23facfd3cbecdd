"""Frames that are not complete: what they may cost, in time and in memory, and whom."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.contract import UNTAKEN_BYTES_MAX, Peer
from penstock.adapters.rocketmq.name_server.server import (
    HANDLERS,
    REQUEST_BYTES_MAX,
    NameServerConnection,
)
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import FLAG_RESPONSE, Command
from penstock.wire.rocketmq.frames import decode, encode

MIB = 1024 * 1024
FRAME_MS_MAX = 10_000
GOOD = encode(Command(4711, opaque=1))


def begun(announced=16 * MIB - 100, sent=0):
    """A frame that announces much, and its first bytes."""
    return announced.to_bytes(4, "big") + bytes(sent)


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def session(bench):
    return bench.client().session


@pytest.fixture
def name_server(bench):
    return NameServerConnection(
        Peer("127.0.0.1", 40_000, "127.0.0.1", 9876), bench.broker, HANDLERS, lambda: None
    )


def wait(bench, session, ms):
    """Time passes, and the pump asks whenever it was told to."""
    end_ms = bench.clock.monotonic_ms() + ms
    while (due_ms := session.next_deadline_ms()) <= end_ms and not session.wants_close:
        bench.clock.advance(max(0, due_ms - bench.clock.monotonic_ms()))
        session.due(bench.clock.monotonic_ms())
    bench.clock.advance(max(0, end_ms - bench.clock.monotonic_ms()))


@pytest.mark.parametrize("which", ["session", "name_server"])
def test_a_peer_is_a_stranger_until_a_request_of_it_could_be_read(request, which):
    peer = request.getfixturevalue(which)
    assert not peer.is_established
    peer.receive(encode(Command(0, opaque=77, flag=FLAG_RESPONSE)))
    assert not peer.is_established
    peer.receive(GOOD)
    assert peer.is_established


def test_a_send_makes_a_peer_known(bench):
    client = bench.client()
    client.send("orders")
    assert client.session.is_established


def test_a_frame_that_was_begun_and_not_ended_costs_the_connection(bench, session):
    session.receive(GOOD + begun(sent=100))
    wait(bench, session, FRAME_MS_MAX - 1)
    assert not session.wants_close
    wait(bench, session, 1)
    assert session.wants_close


def test_dribbled_bytes_do_not_lengthen_the_time_of_a_frame(bench, session):
    session.receive(GOOD + begun())
    for _ in range(10):
        wait(bench, session, FRAME_MS_MAX // 10)
        session.receive(b"x")
    assert session.wants_close


def test_each_frame_has_its_own_time(bench, session):
    for _ in range(5):
        session.receive(GOOD[:9])
        wait(bench, session, FRAME_MS_MAX - 1)
        session.receive(GOOD[9:])
    assert not session.wants_close
    wait(bench, session, FRAME_MS_MAX)
    assert not session.wants_close


def test_a_peer_that_is_not_read_is_not_blamed_for_its_frame(bench, session):
    session.receive(GOOD + begun())
    session.flushed(UNTAKEN_BYTES_MAX + 1)
    wait(bench, session, 2 * FRAME_MS_MAX)
    assert not session.wants_close
    session.flushed(0)
    wait(bench, session, FRAME_MS_MAX)
    assert session.wants_close


def test_the_stranger_that_keeps_bytes_longest_goes_when_room_is_short(bench):
    strangers = [bench.client().session for _ in range(5)]
    for each in strangers:
        each.receive(begun(sent=8 * MIB))
    assert [each.wants_close for each in strangers] == [True, True, False, False, False]
    assert bench.broker.first_requests.held_bytes <= 32 * MIB
    honest = bench.client()
    assert honest.send("orders", bytes(2 * MIB)).code == 0
    for each in strangers:
        each.closed("test")
    assert bench.broker.first_requests.held_bytes == 0


def test_a_first_request_may_be_a_large_send_in_pieces(bench):
    client = bench.client()
    assert client.send("orders", bytes(3 * MIB)).code == 0
    assert bench.broker.first_requests.held_bytes == 0


def test_an_unfinished_frame_takes_room_in_the_in_flight_pool_until_it_is_gone(bench, session):
    before = bench.engine.inflight_bytes
    session.receive(GOOD + begun(sent=MIB))
    assert bench.engine.inflight_bytes >= before + MIB
    session.closed("test")
    assert bench.engine.inflight_bytes == before


def test_who_finds_no_room_for_its_frame_is_not_read(bench):
    pool = bench.engine.inflight_pool
    sessions = []
    while pool.used + 15 * MIB <= pool.bytes_max:
        sessions.append(bench.client().session)
        sessions[-1].receive(GOOD + begun(sent=15 * MIB))
    late = [bench.client().session for _ in range(2)]
    for each in late:
        each.receive(GOOD + begun(sent=15 * MIB))
    # It is frames that fill the pool: the first in line goes on, or nobody ever would.
    assert [each.is_reading for each in late] == [True, False]
    late[0].closed("test")
    sessions[0].closed("test")
    assert late[1].is_reading


def question(size):
    """A question to the name server with a body that it has no use for."""
    return encode(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "t"}, bytes(size), 5))


def test_a_name_server_refuses_a_large_question_before_its_body_came(name_server):
    name_server.receive(question(REQUEST_BYTES_MAX + 1)[:1000])
    (answer,) = [decode(each) for each in name_server.outgoing()]
    assert (answer.code, answer.opaque) == (1, 5)
    assert str(REQUEST_BYTES_MAX) in answer.remark
    assert name_server.wants_close


def test_a_name_server_refuses_a_large_question_that_came_at_once(name_server):
    name_server.receive(question(REQUEST_BYTES_MAX + 1))
    assert name_server.wants_close


def test_a_name_server_takes_a_large_registration_and_no_larger_one(name_server):
    ext = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0"}
    frame = encode(Command(RequestCode.REGISTER_BROKER, ext, bytes(8 * MIB), 6))
    name_server.receive(frame[:MIB])
    assert not name_server.wants_close
    name_server.receive(frame[MIB:])
    assert len(name_server.outgoing()) == 1
    name_server.receive(begun(announced=9 * MIB))
    assert name_server.wants_close


def test_a_name_server_frame_that_announces_too_much_is_refused_from_its_length(name_server):
    name_server.receive(begun(announced=9 * MIB))
    assert name_server.wants_close
