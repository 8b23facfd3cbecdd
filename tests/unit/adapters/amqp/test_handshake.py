"""From the protocol header to an open virtual host."""

import platform

import pytest

from kit.amqp.peer import cut_off
from penstock.wire.amqp.codes import PROTOCOL_HEADER
from penstock.wire.amqp.frames import HEARTBEAT, method_frame
from penstock.wire.amqp.methods.channel import Open as OpenChannel
from penstock.wire.amqp.methods.connection import (
    Close,
    CloseOk,
    Open,
    OpenOk,
    StartOk,
    Tune,
    TuneOk,
    UpdateSecret,
    UpdateSecretOk,
)
from penstock.wire.amqp.table import encode_table

ALL = frozenset(
    [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ]
)


@pytest.fixture
def peer(bench):
    return bench.peer()


def test_nothing_is_said_before_the_header_is_complete(peer):
    peer.raw(PROTOCOL_HEADER[:7])
    assert peer.session.outgoing() == []
    peer.raw(PROTOCOL_HEADER[7:])
    assert peer.session.outgoing()


@pytest.mark.parametrize("header", [PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"])
def test_both_spellings_of_0_9_are_taken(peer, header):
    peer.raw(header)
    assert peer.hear()
    assert not peer.session.wants_close


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"GET / HT", b"\0" * 8]
)
def test_another_protocol_is_told_ours_and_cut_off(peer, header):
    peer.raw(header)
    assert peer.session.outgoing() == [PROTOCOL_HEADER]
    assert peer.session.wants_close


def test_start_says_rabbitmq_with_its_capabilities_and_our_own_name(peer):
    start = peer.greet()
    properties = start.server_properties
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms == b"PLAIN AMQPLAIN"
    assert start.locales == b"en_US"
    assert properties["product"] == "RabbitMQ"
    assert properties["version"].startswith("3.13.")
    assert "Penstock" in properties["information"]
    assert properties["cluster_name"]
    assert properties["platform"] == "Python"
    assert properties["copyright"]
    assert {name for name, is_there in properties["capabilities"].items() if is_there} == ALL


def test_nothing_said_before_the_login_tells_which_python_runs(peer):
    properties = peer.greet().server_properties
    assert platform.python_version() not in repr(properties)


def test_the_whole_way_in(bench, peer):
    peer.greet()
    assert peer.login() == Tune(2047, 131_072, 60)
    assert not peer.session.is_established
    peer.send(0, TuneOk(2047, 131_072, 60))
    assert peer.call(0, Open("/")) == OpenOk()
    assert peer.session.is_established
    assert bench.broker.connections == {peer.session.connection_id: peer.session}


def test_the_whole_way_in_byte_by_byte(bench):
    peer = bench.peer()
    response = StartOk({}, "PLAIN", b"\0guest\0guest")
    for octet in (
        PROTOCOL_HEADER
        + method_frame(0, response)
        + method_frame(0, TuneOk(2047, 131_072, 0))
        + method_frame(0, Open("/"))
    ):
        peer.raw(bytes((octet,)))
    assert peer.session.is_established


def test_amqplain_logs_in(peer):
    peer.greet()
    response = encode_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    assert isinstance(peer.call(0, StartOk({}, "AMQPLAIN", response)), Tune)


def test_a_client_may_say_what_its_connection_is_called(peer):
    peer.handshake(connection_name="stock keeper")
    assert peer.session.connection_name == "stock keeper"
    assert "basic.nack" in peer.session.client_capabilities


def test_bad_credentials_are_told_to_clients_that_understand_it(peer):
    peer.greet()
    text = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile."
    )
    assert cut_off(peer.login("guest", "wrong")) == (403, text)


def test_bad_credentials_of_others_end_the_connection_without_a_word(peer):
    peer.greet()
    peer.send(0, StartOk({}, "PLAIN", b"\0guest\0wrong"))
    assert peer.session.outgoing() == []
    assert peer.session.wants_close


def test_guest_comes_from_this_machine_only(bench):
    peer = bench.peer(host="192.0.2.7")
    peer.greet()
    assert cut_off(peer.login())[0] == 403
    bench.broker.users.add("shop", "keeper")
    other = bench.peer(host="192.0.2.7")
    other.greet()
    assert isinstance(other.login("shop", "keeper"), Tune)


def test_an_unknown_mechanism_is_an_invalid_command(peer):
    peer.greet()
    assert cut_off(peer.call(0, StartOk({}, "EXTERNAL", b"")))[0] == 503


@pytest.mark.parametrize(
    ("channel_max", "frame_max", "text"),
    [
        (2048, 131_072, "channel_max = 2048 is higher than the maximum allowed value (2047)"),
        (0, 131_072, "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
        (100, 131_073, "frame_max = 131073 is higher than the maximum allowed value (131072)"),
        (100, 0, "frame_max = 0 (no limit) is higher than the maximum allowed value (131072)"),
        (100, 4095, "frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ],
)
def test_a_client_may_not_settle_for_more_or_less_than_is_offered(
    peer, channel_max, frame_max, text
):
    peer.greet()
    peer.login()
    close = peer.call(0, TuneOk(channel_max, frame_max, 60))
    assert cut_off(close) == (530, f"NOT_ALLOWED - negotiated {text}")
    assert (close.failing_class, close.failing_method) == (10, 31)


def test_the_heartbeat_of_the_client_is_taken_as_it_is(peer):
    peer.handshake(heartbeat=600)
    assert peer.session.heartbeat == 600


def test_an_unknown_virtual_host_is_not_allowed(peer):
    close = peer.handshake("nowhere")
    assert cut_off(close) == (530, "NOT_ALLOWED - vhost nowhere not found")
    assert (close.failing_class, close.failing_method) == (10, 40)


def test_a_virtual_host_that_was_made_is_open_also_after_a_restart(bench):
    bench.broker.make_vhost("shop")
    assert bench.peer().handshake("shop") == OpenOk()
    bench.settle()
    bench.stop()
    assert bench.peer().handshake("shop") == OpenOk()
    assert bench.broker.drop_vhost("shop")
    assert cut_off(bench.peer().handshake("shop"))[0] == 530


def test_a_dropped_virtual_host_takes_its_connections_with_it(bench):
    bench.broker.make_vhost("shop")
    peer = bench.client(vhost="shop")
    bench.broker.drop_vhost("shop")
    assert cut_off(peer.answer(0)) == (320, "CONNECTION_FORCED - vhost 'shop' is deleted")
    assert not bench.broker.drop_vhost("/")


@pytest.mark.parametrize("method", [TuneOk(1, 4096, 0), Open("/"), UpdateSecret(b"x", "y")])
def test_a_method_out_of_turn_is_a_channel_error(peer, method):
    peer.greet()
    assert cut_off(peer.call(0, method))[0] == 504


def test_a_channel_before_the_connection_is_open_is_an_unexpected_frame(peer):
    peer.greet()
    peer.send(1, OpenChannel())
    assert cut_off(peer.answer(0))[0] == 505


def test_a_client_may_leave_in_the_midst_of_the_handshake(peer):
    peer.greet()
    assert peer.call(0, Close(200, "bye")) == CloseOk()
    # The client ends the socket: a close from here could reset it and take close-ok along.
    assert not peer.session.wants_close
    peer.session.eof()
    assert peer.session.wants_close


def test_a_frame_larger_than_4_kib_is_refused_before_tune(peer):
    peer.greet()
    peer.raw(b"\x01\0\0\0\x01\0\0")
    assert cut_off(peer.answer(0))[0] == 501


def test_heartbeats_are_no_method_and_do_no_harm_in_a_handshake(peer):
    peer.greet()
    peer.raw(HEARTBEAT)
    assert isinstance(peer.login(), Tune)


def test_a_new_secret_is_taken(peer):
    peer.handshake()
    assert peer.call(0, UpdateSecret(b"new", "it was time")) == UpdateSecretOk()


def test_nothing_of_the_engine_is_touched_by_a_peer_that_leaves_early(bench, peer):
    peer.greet()
    peer.leave()
    assert bench.engine.statistics().connections == 0
    assert bench.broker.connections == {}
