"""A connection once it is open: heartbeats, alarms, its end, and what it gives back."""

import pytest

from kit.amqp.peer import FAR_ABOVE, AmqpBench, alarm, cut_off, declared
from penstock.adapters.amqp.connection import (
    CLOSE_OK,
    AwaitedCloseOk,
    BlockedNotices,
    Heartbeat,
    close_frame,
    shutdown,
)
from penstock.adapters.amqp.handshake import Credentials, credentials
from penstock.adapters.amqp.users import check_claims
from penstock.flow.reason import Reason
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.frames import HEARTBEAT, encode_frame, method_frame
from penstock.wire.amqp.methods.basic import Ack, Consume, Get, GetOk, Publish
from penstock.wire.amqp.methods.channel import Open as OpenChannel
from penstock.wire.amqp.methods.channel import OpenOk as ChannelOpenOk
from penstock.wire.amqp.methods.channel import TxSelect
from penstock.wire.amqp.methods.connection import Blocked, Close, CloseOk, StartOk, Tune, Unblocked
from penstock.wire.amqp.methods.queue import Declare, DeclareOk
from penstock.wire.amqp.origin import Claims
from penstock.wire.amqp.table import encode_table

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
    alarm(bench, True)
    peer.publish(1, "", "q", b"one")
    peer.turn()
    assert peer.methods(0) == [Blocked("low on memory")]
    bench.engine.set_alarm("disk", 0)
    bench.settle()
    assert peer.methods(0) == [Blocked("low on memory")]
    bench.engine.set_alarm("disk", FAR_ABOVE)
    alarm(bench, False)
    assert peer.methods(0) == [Blocked("low on memory"), Unblocked()]


def test_a_connection_that_published_once_is_not_told_until_it_publishes_again(bench):
    peer = bench.client()
    declared(peer)
    peer.publish(1, "", "q", b"one")
    peer.turn()
    peer.take()
    alarm(bench, True)
    assert peer.methods(0) == [], "pika's blocked_connection_timeout would cut off a consumer"
    peer.publish(1, "", "q", b"two")
    peer.turn()
    assert peer.methods(0) == [Blocked("low on memory")]
    alarm(bench, False)
    alarm(bench, True)
    assert peer.methods(0) == [Blocked("low on memory"), Unblocked()]


@pytest.mark.parametrize("is_in_tx", [False, True])
def test_a_publish_that_stays_with_the_adapter_makes_a_publisher(bench, is_in_tx):
    peer = bench.client()
    declared(peer)
    if is_in_tx:
        peer.call(1, TxSelect())
    key = "q" if is_in_tx else "nowhere"
    peer.publish(1, "", key, b"one")
    peer.turn()
    peer.take()
    alarm(bench, True)
    peer.publish(1, "", key, b"two")
    peer.turn()
    assert peer.methods(0) == [Blocked("low on memory")]


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
    assert bench.broker.connections == {}
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
    assert (
        session.engine_connection.stage.name
        == f"amqp-{session.connection_id} {session.peer}{shown}"
    )


def test_an_operator_may_end_a_connection(bench):
    peer = bench.client()
    assert bench.broker.close_connection(peer.session.connection_id, "told so")
    assert cut_off(peer.answer(0)) == (320, "CONNECTION_FORCED - told so")
    assert not bench.broker.close_connection(peer.session.connection_id, "again")


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
    (tally,) = [each for each in bench.engine.counter_families if each.name == "amqp_closes"]
    assert tally.counts == {"NOT_FOUND": 1, "CHANNEL_ERROR": 1}


def test_a_part_that_fails_to_close_leaves_nothing_else_behind(bench, monkeypatch):
    peer = bench.client()
    peer.open(2)
    declared(peer, "mine", is_exclusive=True)
    peer.call(2, Consume(0, "mine", "c"))

    def broken():
        raise RuntimeError("for a test")

    monkeypatch.setattr(peer.session.channels[1].publisher, "close", broken)
    with pytest.raises(RuntimeError):
        peer.leave()
    bench.settle()
    assert bench.broker.connections == {}
    assert bench.engine.statistics().connections == 0
    other = bench.client()
    assert other.call(1, Declare(0, "mine", is_passive=True)).reply_code == 404


# ---- caller -------------------------------------------------------------------------------------
# What a client says of itself, and what is made of it.


@pytest.fixture
def peer():
    made = AmqpBench().peer()
    made.greet()
    return made


def introduce(peer, properties):
    answer = peer.call(0, StartOk(properties, "PLAIN", b"\0guest\0guest"))
    assert isinstance(answer, Tune)
    return peer.session


def test_capabilities_are_those_that_are_true(peer):
    session = introduce(peer, {"capabilities": {"a": True, "b": False, "c": "yes", "d": 1}})
    assert session.client_capabilities == {"a"}


@pytest.mark.parametrize("capabilities", [None, 5, "all", [True], {}])
def test_capabilities_of_another_kind_are_none(peer, capabilities):
    session = introduce(peer, {"capabilities": capabilities})
    assert session.client_capabilities == frozenset()


@pytest.mark.parametrize("name", [None, 5, {}, b"raw"])
def test_a_connection_name_that_is_no_text_is_none(peer, name):
    assert introduce(peer, {"connection_name": name}).connection_name == ""


def test_a_connection_name_can_always_be_printed(peer):
    session = introduce(peer, {"connection_name": b"caf\xe9".decode("utf-8", "surrogateescape")})
    assert session.connection_name == "caf?"
    assert session.connection_name.encode()


def test_messages_may_carry_the_login_and_no_other_user(peer):
    session = introduce(peer, {})
    assert session.user.name == "guest"
    assert session.auth_mechanism == "PLAIN"
    check_claims(Claims(user_id=b"guest"), session.user)
    with pytest.raises(AmqpError):
        check_claims(Claims(user_id=b"root"), session.user)


def test_an_impersonator_may_claim_to_be_anybody():
    bench = AmqpBench()
    bench.broker.users.add("relay", "secret", ["impersonator"])
    peer = bench.peer()
    peer.handshake(user="relay", password="secret")
    check_claims(Claims(user_id=b"root"), peer.session.user)


def test_nothing_is_said_after_the_end(peer):
    peer.take()
    peer.leave()
    peer.session.send(b"late")
    assert peer.session.outgoing() == []


# ---- login --------------------------------------------------------------------------------------
# What clients say to prove who they are.


def test_plain_is_user_and_password_behind_nuls():
    assert credentials("PLAIN", b"\0guest\0secret") == Credentials("guest", "secret")


@pytest.mark.parametrize("response", [b"", b"guest", b"\0guest", b"\0a\0b\0c"])
def test_a_plain_response_of_another_form_says_nothing(response):
    assert credentials("PLAIN", response) is None


def test_amqplain_is_a_table_without_its_length():
    response = encode_table({"LOGIN": "guest", "PASSWORD": "secret"})[4:]
    assert credentials("AMQPLAIN", response) == Credentials("guest", "secret")


@pytest.mark.parametrize(
    "response", [b"", b"\xff\xff", encode_table({"LOGIN": "x"})[4:], encode_table({"LOGIN": 5})[4:]]
)
def test_an_amqplain_response_without_both_says_nothing(response):
    assert credentials("AMQPLAIN", response) is None


def test_another_mechanism_is_an_invalid_command():
    with pytest.raises(AmqpError) as caught:
        credentials("EXTERNAL", b"")
    assert caught.value.code is ReplyCode.COMMAND_INVALID


# ---- heartbeat ----------------------------------------------------------------------------------
# Heartbeats: half an interval of silence makes us speak, two of theirs end it.


def test_an_interval_of_zero_turns_both_directions_off():
    beat = Heartbeat(0, 5)
    assert beat.deadline_ms is None
    assert not beat.wants_beat(10**9)
    assert not beat.is_dead(10**9)


def test_a_beat_is_wanted_after_half_an_interval_without_a_write():
    beat = Heartbeat(10, 0)
    assert beat.deadline_ms == 5_000
    assert not beat.wants_beat(4_999)
    assert beat.wants_beat(5_000)
    beat.sent_ms = 4_000
    assert not beat.wants_beat(8_999)
    assert beat.wants_beat(9_000)


def test_the_peer_is_dead_after_two_silent_intervals_and_any_byte_counts():
    beat = Heartbeat(10, 0)
    assert not beat.is_dead(19_999)
    assert beat.is_dead(20_000)
    beat.heard_ms = 15_000
    assert not beat.is_dead(34_999)
    assert beat.is_dead(35_000)


def test_the_nearest_of_both_deadlines_is_the_next():
    beat = Heartbeat(10, 0)
    beat.sent_ms = 18_000
    beat.looked()
    assert beat.deadline_ms == 20_000


def test_the_deadline_is_never_late_and_right_once_somebody_looked():
    beat = Heartbeat(10, 0)
    for now_ms in range(0, 60_000, 700):
        beat.heard_ms = now_ms
        beat.sent_ms = now_ms - now_ms % 2100
        assert beat.deadline_ms <= min(beat.sent_ms + 5_000, beat.heard_ms + 20_000)
        if now_ms >= beat.deadline_ms:
            beat.looked()
            assert beat.deadline_ms == beat.sent_ms + 5_000


# ---- blocked ------------------------------------------------------------------------------------
# Notices of alarms: RabbitMQ's words, once per episode.


def test_an_alarm_is_told_once_and_its_end_once():
    notices = BlockedNotices()
    assert notices.changed([]) is None
    assert notices.changed([Reason.MEMORY]) == Blocked("low on memory")
    assert notices.is_blocked
    assert notices.changed([Reason.MEMORY, Reason.DISK]) is None
    assert notices.changed([Reason.DISK]) is None
    assert notices.changed([]) == Unblocked()
    assert not notices.is_blocked


def test_two_alarms_at_once_are_joined():
    notices = BlockedNotices()
    assert notices.changed([Reason.DISK, Reason.MEMORY]) == Blocked("low on memory & low on disk")


def test_flow_and_holds_are_nobodys_business():
    notices = BlockedNotices()
    assert notices.changed([Reason.FLOW, Reason.HELD, Reason.RATE, Reason.QUOTA]) is None


# ---- closing ------------------------------------------------------------------------------------
# How connections end in words.


def test_a_close_names_code_text_class_and_method():
    error = AmqpError(ReplyCode.NOT_ALLOWED, "no", class_id=10, method_id=40)
    assert close_frame(error) == method_frame(0, Close(530, "NOT_ALLOWED - no", 10, 40))


def test_shutdown_is_told_in_rabbitmqs_words():
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    assert str(shutdown()) == text


def test_close_ok_is_heard_however_it_is_cut():
    for cut in range(len(CLOSE_OK) + 1):
        farewell = AwaitedCloseOk(0)
        first = farewell.is_heard(b"rubbish" + CLOSE_OK[:cut])
        assert first is (cut == len(CLOSE_OK))
        assert first or farewell.is_heard(CLOSE_OK[cut:])


def test_close_ok_byte_by_byte_is_heard_with_the_last():
    farewell = AwaitedCloseOk(0)
    heard = [farewell.is_heard(bytes((octet,))) for octet in CLOSE_OK]
    assert heard == [False] * (len(CLOSE_OK) - 1) + [True]
