"""Good frames with some bytes changed (T11), at the broker and at the name server."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.name_server.server import NameServerFactory
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.frames import decode, encode
from penstock.wire.rocketmq.stored import BatchItem, join_batch

SEND = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "g": "1", "i": "TAGS\x01a\x02"}
BATCH = join_batch([BatchItem(b"one"), BatchItem(b"two", b"k\x01v\x02")])
FRAMES = [
    encode(Command(310, SEND, b"body", 1)),
    encode(Command(310, SEND, b"body", 2, serialization=1)),
    encode(Command(320, SEND | {"m": "true"}, BATCH, 3)),
    encode(Command(17, {"topic": "orders", "perm": "6"}, opaque=4)),
    encode(Command(215, {"topic": "orders"}, opaque=5)),
    encode(Command(105, {"topic": "orders"}, opaque=6)),
    encode(Command(103, {"brokerName": "b", "brokerAddr": "h:1"}, b'{"filterServerList":[]}', 7)),
]


@pytest.fixture(scope="module")
def bench():
    return RocketmqBench()


def still_serves(bench):
    client = bench.client()
    assert client.send("control").code == 0
    client.close()


def feed(bench, *pieces):
    """A client that sends these pieces; what it was answered."""
    client = bench.client()
    for piece in pieces:
        if client.session.wants_close:
            break
        client.session.receive(piece)
        bench.settle()
    answers = [decode(each) for each in client.session.outgoing()]
    client.close()
    return answers


@given(st.sampled_from(FRAMES), st.data())
@settings(max_examples=150, deadline=None)
def test_a_frame_with_some_bytes_changed(bench, frame, data):
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    feed(bench, bytes(changed[:cut]), bytes(changed[cut:]))
    still_serves(bench)


@given(st.sampled_from(FRAMES), st.binary(max_size=60), st.integers(0, 200))
@settings(max_examples=100, deadline=None)
def test_the_name_server_survives_it_too(bench, frame, junk, at):
    factory = NameServerFactory(lambda: bench.broker)
    peer = Peer("127.0.0.1", 1, "127.0.0.1", 9876)
    session = factory.make(1, peer, bench.engine, bench.clock, lambda: None)
    session.receive(frame[:at] + junk + frame[at:])
    bench.settle()
    session.closed("test")
    fresh = factory.make(2, peer, bench.engine, bench.clock, lambda: None)
    fresh.receive(encode(Command(105, {"topic": "TBW102"}, opaque=3)))
    assert [decode(each).code for each in fresh.outgoing()] == [0]
