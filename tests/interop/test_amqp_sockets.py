"""Peers on real sockets that are no clients: what they get, and that nobody else notices (T10-T12).

The session's own fuzz is ``tests/property/test_amqp_session_fuzz.py``; this is what pump, listener
and clock add to it.
"""

import contextlib
import socket
import time

import pika
import pytest

from penstock.testing.running import running_broker
from penstock.wire.amqp.codes import PROTOCOL_HEADER
from penstock.wire.amqp.frames import AmqpFrames, content_frames, method_frame
from penstock.wire.amqp.methods import decode_method
from penstock.wire.amqp.methods.basic import Consume, Publish
from penstock.wire.amqp.methods.channel import Open as OpenChannel
from penstock.wire.amqp.methods.connection import Close, CloseOk, Open, StartOk, TuneOk

PATIENCE_S = 20.0
HANDSHAKE_MS = 700
FLAGS = (
    "--bind", "localhost", "--set", f"listeners.handshake_ms_max={HANDSHAKE_MS}",
    "--set", "amqp.close_ms_max=300",
)  # fmt: skip


@pytest.fixture(scope="module")
def broker():
    with running_broker(*FLAGS) as running:
        yield running


@pytest.fixture
def raw(broker):
    """Makes sockets that have said nothing yet."""
    with contextlib.ExitStack() as stack:

        def dial(host="127.0.0.1"):
            made = socket.create_connection((host, broker.address("amqp")[1]), PATIENCE_S)
            return stack.enter_context(made)

        yield dial


@pytest.fixture
def client(broker):
    """Somebody who behaves."""
    host, port = broker.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    yield connection
    connection.close()


def greet(peer, heartbeat=0):
    peer.sendall(PROTOCOL_HEADER)
    peer.recv(4096)
    peer.sendall(method_frame(0, StartOk({}, "PLAIN", b"\0guest\0guest")))
    peer.recv(4096)
    peer.sendall(
        method_frame(0, TuneOk(10, 8192, heartbeat))
        + method_frame(0, Open("/"))
        + method_frame(1, OpenChannel())
    )
    heard = b""
    while len(heard) < 29:
        heard += peer.recv(4096)


def until_closed(peer):
    """Everything the broker still says, until it hangs up."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := peer.recv(65536):
            heard += data
    return heard


def last_method(data):
    frames = AmqpFrames(is_greeted=True)
    frames.feed(data)
    return decode_method(frames.frames()[-1].payload)


def works(client, queue="beside"):
    channel = client.channel()
    channel.queue_declare(queue)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"x")
    got = channel.basic_get(queue, auto_ack=True)[2]
    channel.close()
    return got == b"x"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_loopbacks_are_served(raw, host):
    try:
        peer = raw(host)
    except OSError:
        pytest.skip("this machine has no IPv6")
    greet(peer)


def test_another_protocol_gets_our_header_and_the_end(raw):
    peer = raw()
    peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert until_closed(peer) == PROTOCOL_HEADER


@pytest.mark.parametrize("said", [b"", b"AM", PROTOCOL_HEADER], ids=["nothing", "half", "header"])
def test_a_handshake_that_does_not_end_is_cut_off(raw, client, said):
    peer = raw()
    began = time.monotonic()
    peer.sendall(said)
    until_closed(peer)
    assert time.monotonic() - began >= HANDSHAKE_MS / 1000 * 0.9
    assert works(client)


def test_a_length_that_lies_is_told_and_then_the_peer_is_cut_off(raw, client):
    peer = raw()
    greet(peer)
    peer.sendall(b"\x01\x00\x01\xff\xff\xff\xff")
    close = last_method(until_closed(peer))
    assert isinstance(close, Close)
    assert close.reply_code == 501
    assert works(client)


def test_a_close_is_answered_before_the_socket_goes_also_when_more_was_sent(raw):
    peer = raw()
    greet(peer)
    more = method_frame(1, Publish(0, "", "beside")) + content_frames(1, b"\0\0", b"x", 4096)
    peer.sendall(method_frame(0, Close(200, "done")) + more * 2000)
    assert isinstance(last_method(until_closed(peer)), CloseOk)


def test_a_consumer_that_vanishes_without_a_word_is_missed_and_its_messages_go_on(raw, client):
    channel = client.channel()
    channel.queue_declare("vanished")
    channel.basic_publish("", "vanished", b"work")
    peer = raw()
    greet(peer, heartbeat=1)
    peer.sendall(method_frame(1, Consume(0, "vanished", "c")))
    assert peer.recv(4096)
    until = time.monotonic() + PATIENCE_S
    found = None
    while found is None and time.monotonic() < until:
        found, _, body = channel.basic_get("vanished", auto_ack=True)
        client.process_data_events(0.05)
    assert found is not None
    assert found.redelivered
    assert body == b"work"


def test_a_consumer_that_does_not_read_holds_nobody_else(raw, client):
    channel = client.channel()
    for queue in ("unread", "read"):
        channel.queue_declare(queue)
    peer = raw()
    greet(peer)
    peer.sendall(method_frame(1, Consume(0, "unread", "c", is_no_ack=True)))
    for _ in range(400):
        channel.basic_publish("", "unread", bytes(20_000))
    channel.basic_publish("", "read", b"mine")
    got = []
    channel.basic_consume("read", lambda *message: got.append(message[3]), auto_ack=True)
    until = time.monotonic() + PATIENCE_S
    while not got and time.monotonic() < until:
        client.process_data_events(0.1)
    assert got == [b"mine"]
    left = channel.queue_declare("unread", passive=True).method.message_count
    assert left > 0, "all was taken for a peer that reads nothing"
