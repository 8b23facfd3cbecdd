"""A connection once it is open: heartbeats, alarms, its end, and what it gives back."""

import pytest

from penstock.testing.amqp_deeds import FAR_ABOVE, alarm, cut_off, declared
from penstock.wire.amqp.frames import HEARTBEAT, encode_frame, method_frame
from penstock.wire.amqp.methods.basic import Ack, Consume, Get, GetOk, Publish
from penstock.wire.amqp.methods.channel import Open as OpenChannel
from penstock.wire.amqp.methods.channel import OpenOk as ChannelOpenOk
from penstock.wire.amqp.methods.connection import Blocked, Close, CloseOk, StartOk, Unblocked
from penstock.wire.amqp.methods.queue import Declare, DeclareOk

PERSISTENT = b"\x10\x00\x02"


# Heartbeats.


def test_a_heartbeat_is_sent_after_half_an_interval_of_silence(bench):
    peer = bench.client(heartbeat=10)
    peer.take()
    session = peer.session
    assert session.next_deadline_ms() == bench.clock.monotonic_ms() + 5_000
    bench.clock.advance(4_999)
    session.due(bench.clock.monotonic_ms())
    assert session.outgoing() == []
    bench.clock.advance(1)
    session.due(bench.clock.monotonic_ms())
    assert session.outgoing() == [HEARTBEAT]


def test_a_peer_that_is_silent_for_two_intervals_is_dropped(bench):
    peer = bench.client(heartbeat=10)
    bench.clock.advance(19_999)
    peer.session.due(bench.clock.monotonic_ms())
    assert not peer.session.wants_close
    peer.raw(HEARTBEAT[:1])
    bench.clock.advance(19_999)
    peer.session.due(bench.clock.monotonic_ms())
    assert not peer.session.wants_close
    bench.clock.advance(1)
    peer.session.due(bench.clock.monotonic_ms())
    assert peer.session.wants_close


def test_the_watch_for_silence_rests_while_publishes_are_blocked(bench):
    peer = bench.client(heartbeat=10)
    declared(peer)
    peer.publish(1, "", "q", b"x")
    alarm(bench, True)
    bench.clock.advance(60_000)
    peer.session.due(bench.clock.monotonic_ms())
    assert not peer.session.wants_close
    alarm(bench, False)
    bench.clock.advance(20_000)
    peer.session.due(bench.clock.monotonic_ms())
    assert peer.session.wants_close


def test_without_heartbeats_there_is_no_deadline(bench):
    peer = bench.client(heartbeat=0)
    assert peer.session.next_deadline_ms() is None


# connection.blocked.


def test_a_publisher_is_told_of_an_alarm_once_and_of_its_end(bench):
    peer = bench.client()
    declared(peer)
    peer.publish(1, "", "q", b"one")
    peer.turn()
    peer.take()
    alarm(bench, True)
    assert peer.methods(0) == [Blocked("low on memory")]
    bench.engine.set_alarm("disk", 0)
    bench.settle()
    assert peer.methods(0) == [Blocked("low on memory")]
    bench.engine.set_alarm("disk", FAR_ABOVE)
    alarm(bench, False)
    assert peer.methods(0) == [Blocked("low on memory"), Unblocked()]


def test_a_connection_that_never_published_is_not_told(bench):
    peer = bench.client()
    alarm(bench, True)
    assert peer.methods(0) == []
    assert isinstance(declared(peer), DeclareOk)


def test_the_first_byte_of_a_publish_makes_a_publisher(bench):
    peer = bench.client()
    alarm(bench, True)
    peer.send(1, Publish(0, "", "q"))
    bench.settle()
    assert peer.methods(0) == [Blocked("low on memory")]


def test_clients_without_the_capability_are_not_told(bench):
    peer = bench.client(capabilities=())
    declared(peer)
    alarm(bench, True)
    peer.publish(1, "", "q", b"one")
    peer.turn()
    assert peer.methods(0) == []


def test_acks_and_requests_are_served_while_publishes_are_held(bench):
    peer = bench.client()
    declared(peer, is_durable=True)
    peer.publish(1, "", "q", b"one", PERSISTENT)
    peer.turn()
    assert isinstance(peer.call(1, Get(0, "q")), GetOk)
    alarm(bench, True)
    peer.publish(1, "", "q", b"two", PERSISTENT)
    peer.turn()
    assert peer.session.is_reading
    peer.send(1, Ack(1))
    assert declared(peer, is_durable=True) == DeclareOk("q", 0, 0)
    alarm(bench, False)
    assert declared(peer, is_durable=True) == DeclareOk("q", 1, 0)


# Ends.


def test_the_clients_close_is_answered_and_everything_is_given_back(bench):
    peer = bench.client()
    declared(peer, "mine", is_exclusive=True)
    declared(peer, "ours", is_durable=True)
    peer.publish(1, "", "ours", b"work", PERSISTENT)
    assert peer.call(1, Consume(0, "ours", "c"))
    assert peer.bodies() == [b"work"]
    assert peer.call(0, Close(200, "done")) == CloseOk()
    assert bench.house.sessions == {}
    other = bench.client()
    other.send(1, Get(0, "ours"))
    other.turn()
    answer, _, body = other.answer_with_content(1)
    assert (answer.is_redelivered, body) == (True, b"work")
    assert other.call(1, Declare(0, "mine", is_passive=True)).reply_code == 404


def test_a_connection_that_is_lost_gives_everything_back_once(bench):
    peer = bench.client()
    declared(peer, "mine", is_exclusive=True)
    declared(peer, "ours")
    peer.publish(1, "", "ours", b"work")
    peer.call(1, Consume(0, "ours", "c"))
    peer.leave()
    peer.leave()
    bench.settle()
    assert bench.engine.statistics().connections == 0
    assert bench.engine.unsent_pool.bytes == 0
    other = bench.client()
    assert other.call(1, Get(0, "ours", is_no_ack=True)).is_redelivered
    assert other.call(1, Declare(0, "mine", is_passive=True)).reply_code == 404


def test_after_our_close_only_its_answer_is_heard(bench):
    peer = bench.client()
    peer.send(7, Get(0, "q"))
    assert cut_off(peer.answer(0)) == (504, "CHANNEL_ERROR - expected 'channel.open'")
    peer.send(1, Get(0, "q"), OpenChannel())
    assert peer.take() == []
    assert not peer.session.wants_close
    peer.raw(method_frame(0, CloseOk()))
    assert peer.session.wants_close


def test_a_peer_that_does_not_answer_our_close_is_cut_off(bench):
    peer = bench.client(heartbeat=0)
    peer.send(7, Get(0, "q"))
    session = peer.session
    deadline = session.next_deadline_ms()
    assert deadline == bench.clock.monotonic_ms() + bench.settings.amqp.close_ms_max
    session.due(deadline - 1)
    assert not session.wants_close
    session.due(deadline)
    assert session.wants_close


def test_the_end_of_the_stream_ends_it(bench):
    peer = bench.client()
    peer.session.eof()
    assert peer.session.wants_close


def test_a_stopping_broker_says_so(bench):
    peer = bench.client()
    peer.session.stopping("whatever")
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    assert cut_off(peer.answer(0)) == (320, text)
    assert peer.session.wants_close


def test_a_stopping_broker_has_no_words_for_who_is_not_in_yet(bench):
    peer = bench.peer()
    peer.greet()
    peer.session.stopping("whatever")
    assert peer.take() == []
    assert peer.session.wants_close


@pytest.mark.parametrize(
    ("own", "shown"), [("", ""), ("orders", " orders"), ("x" * 100, " " + "x" * 64)]
)
def test_operators_meet_a_connection_by_its_address_and_by_the_name_it_gave_itself(
    bench, own, shown
):
    session = bench.client(connection_name=own).session
    assert session.connection.stage.name == f"amqp-{session.connection_id} {session.peer}{shown}"


def test_an_operator_may_end_a_connection(bench):
    peer = bench.client()
    assert bench.house.close_connection(peer.session.connection_id, "told so")
    assert cut_off(peer.answer(0)) == (320, "CONNECTION_FORCED - told so")
    assert not bench.house.close_connection(peer.session.connection_id, "again")


def test_bytes_that_are_no_frames_end_the_connection_with_501(bench):
    peer = bench.client()
    frame = bytearray(method_frame(1, Get(0, "q")))
    frame[-1] = 0
    peer.raw(bytes(frame))
    assert cut_off(peer.answer(0))[0] == 501


def test_commands_before_the_bad_bytes_are_done(bench):
    peer = bench.client()
    peer.raw(method_frame(2, OpenChannel()) + b"\x09\0\0\0\0\0\0\xce")
    assert peer.answer(2) == ChannelOpenOk()
    assert cut_off(peer.answer(0))[0] == 501


def test_an_unknown_method_is_invalid_and_names_itself(bench):
    peer = bench.client()
    peer.raw(encode_frame(1, 1, b"\0\x3c\x03\xe7"))
    close = peer.answer(0)
    assert cut_off(close)[0] == 503
    assert (close.failing_class, close.failing_method) == (60, 999)


@pytest.mark.parametrize("method", [StartOk({}, "PLAIN", b""), Get(0, "q"), OpenChannel()])
def test_channel_0_takes_no_other_methods_once_it_is_open(bench, method):
    peer = bench.client()
    assert cut_off(peer.call(0, method))[0] == 504


def test_closes_are_counted_by_their_reason(bench):
    peer = bench.client()
    assert peer.call(1, Declare(0, "none", is_passive=True)).reply_code == 404
    peer.send(7, Get(0, "q"))
    (tally,) = [each for each in bench.engine.tallies if each.name == "amqp_closes"]
    assert tally.counts == {"NOT_FOUND": 1, "CHANNEL_ERROR": 1}


def test_a_part_that_fails_to_close_leaves_nothing_else_behind(bench, monkeypatch):
    peer = bench.client()
    peer.open(2)
    declared(peer, "mine", is_exclusive=True)
    peer.call(2, Consume(0, "mine", "c"))

    def broken():
        raise RuntimeError("for a test")

    monkeypatch.setattr(peer.session.channels[1].publishing, "close", broken)
    with pytest.raises(RuntimeError):
        peer.leave()
    bench.settle()
    assert bench.house.sessions == {}
    assert bench.engine.statistics().connections == 0
    other = bench.client()
    assert other.call(1, Declare(0, "mine", is_passive=True)).reply_code == 404
