"""Hostile AMQP peers (T11, T12): the right close code or a cut, flat memory, nobody else is hurt.

Peers of one broker say: frames at random, conversations with a few bytes changed, lengths that lie,
frames out of order, one byte at a time, half of a message and nothing more. A well-behaved
connection works beside each of them. ``--long`` runs a hundred times as many.
"""

import random
import tracemalloc
from dataclasses import replace

import pytest

from kit.amqp.peer import AmqpBench
from penstock.settings.load import Settings
from penstock.wire.amqp.codes import PROTOCOL_HEADER, AmqpError, ReplyCode
from penstock.wire.amqp.frames import (
    CONTENT_HEAD,
    HEARTBEAT,
    content_frames,
    encode_frame,
    method_frame,
)
from penstock.wire.amqp.methods.basic import (
    Ack,
    Cancel,
    Consume,
    Get,
    GetOk,
    Nack,
    Publish,
    Qos,
    Recover,
    Reject,
)
from penstock.wire.amqp.methods.channel import (
    Close,
    CloseOk,
    ConfirmSelect,
    Flow,
    Open,
    TxCommit,
    TxRollback,
    TxSelect,
)
from penstock.wire.amqp.methods.connection import Close as CloseConnection
from penstock.wire.amqp.methods.connection import Open as OpenConnection
from penstock.wire.amqp.methods.connection import StartOk, TuneOk, UpdateSecret
from penstock.wire.amqp.methods.exchange import Bind as BindExchange
from penstock.wire.amqp.methods.exchange import Declare as DeclareExchange
from penstock.wire.amqp.methods.exchange import Delete as DeleteExchange
from penstock.wire.amqp.methods.method import METHODS
from penstock.wire.amqp.methods.queue import Bind, Declare, Delete, Purge, Unbind

PEERS = 60
GROWTH_BYTES_MAX = 8 << 20
CODES = {int(code) for code in ReplyCode}
NAMES = ("", "q", "r", "e", "amq.topic", "amq.direct", "a.b", "\r\n", "x" * 255, "\u00fc")
BODIES = (b"", b"x", b"y" * 5000)
PROPERTIES = (b"\0\0", b"\x10\x00\x02", b"\x01\x00\x0560000", b"\x01\x00\x04none", b"\xff\xff")
ARGUMENTS = (
    {}, {"x-max-length": 2}, {"x-max-length": -1}, {"x-expires": "soon"}, {"x-max-priority": 3},
    {"x-dead-letter-exchange": "e"}, {"x-match": "any", "a": 1}, {"x-message-ttl": 0},
)  # fmt: skip


@pytest.fixture(scope="module")
def peers(request):
    return PEERS * (100 if request.config.getoption("--long") else 1)


def greeting():
    return (
        PROTOCOL_HEADER
        + method_frame(0, StartOk({}, "PLAIN", b"\0guest\0guest"))
        + method_frame(0, TuneOk(100, 8192, 0))
        + method_frame(0, OpenConnection("/"))
        + method_frame(1, Open())
        + method_frame(2, Open())
    )


def any_method(rng):
    name, other, table = rng.choice(NAMES), rng.choice(NAMES), rng.choice(ARGUMENTS)
    bits = [rng.random() < 0.3 for _ in range(5)]
    tag = rng.choice((0, 1, 2, 7, 1 << 63))
    return rng.choice(
        (
            Declare(0, name, *bits, table), Bind(0, name, other, "k", bits[0], table),
            Unbind(0, name, other, "k", table), Purge(0, name, bits[0]), Delete(0, name, *bits[:3]),
            DeclareExchange(0, name, rng.choice(("direct", "topic", "nonsense")), *bits, table),
            DeleteExchange(0, name, *bits[:2]), BindExchange(0, name, other, "#", bits[0], table),
            Consume(0, name, rng.choice(("", "c")), *bits[:4], table), Cancel("c", bits[0]),
            Get(0, name, bits[0]), Qos(0, rng.choice((0, 1, 65_535)), bits[0]),
            Ack(tag, bits[0]), Nack(tag, bits[0], bits[1]), Reject(tag, bits[0]), Recover(bits[0]),
            ConfirmSelect(bits[0]), TxSelect(), TxCommit(), TxRollback(), Flow(True), Flow(bits[0]),
            Open(), Close(200, "", 0, 0), CloseOk(), UpdateSecret(b"s", "r"),
        )
    )  # fmt: skip


def any_publish(rng, channel):
    head = method_frame(
        channel, Publish(0, rng.choice(NAMES), rng.choice(NAMES), rng.random() < 0.3)
    )
    return head + content_frames(channel, rng.choice(PROPERTIES), rng.choice(BODIES), 4096)


def any_said(rng):
    channel = rng.choice((1, 1, 1, 2, 2, 0, 3))
    if rng.random() < 0.4:
        return any_publish(rng, channel)
    return method_frame(channel, any_method(rng))


def conversation(rng, count=30):
    return greeting() + b"".join([any_said(rng) for _ in range(rng.randrange(count))])


def any_frames(rng):
    """Frames that are frames and nothing else."""
    said = [greeting()]
    for _ in range(rng.randrange(20)):
        kind = rng.choice((1, 1, 1, 2, 3, 8, 4, 0, 255))
        ids = rng.choice(tuple(METHODS)) if rng.random() < 0.8 else (rng.randrange(100), 10)
        payload = (
            ids[0].to_bytes(2, "big") + ids[1].to_bytes(2, "big") + rng.randbytes(rng.randrange(30))
        )
        if kind == 2 and rng.random() < 0.5:
            payload = CONTENT_HEAD.pack(60, 0, rng.choice((0, 5, 1 << 20, 1 << 40))) + b"\0\0"
        said.append(encode_frame(kind, rng.randrange(4), payload))
    return b"".join(said)


def mutated(rng):
    data = bytearray(conversation(rng))
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(data))
        choice = rng.randrange(3)
        if choice == 0:
            data[at] = rng.randrange(256)
        elif choice == 1:
            del data[at : at + rng.randrange(1, 9)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data)


def giant(rng):
    """Lengths that announce more than will ever come."""
    size = rng.choice((8185, 1 << 20, 1 << 31, (1 << 32) - 1))
    head = (
        bytes((rng.choice((1, 2, 3)),)) + rng.choice((b"\0\1", b"\0\0")) + size.to_bytes(4, "big")
    )
    return greeting() + head + rng.randbytes(rng.randrange(200))


def shuffled(rng):
    """The frames of publishes in an order of their own."""
    pieces = [any_publish(rng, 1) for _ in range(4)]
    header = encode_frame(2, 1, CONTENT_HEAD.pack(60, 0, 6) + b"\0\0")
    pieces += [header, encode_frame(3, 1, b"abc"), encode_frame(3, 1, b"a" * 9), HEARTBEAT]
    pieces += [method_frame(1, Publish(0, "", "q")), method_frame(0, any_method(rng))]
    rng.shuffle(pieces)
    return greeting() + b"".join(pieces)


def half_open(rng):
    data = conversation(rng)
    return data[: rng.randrange(len(data))]


KINDS = (any_frames, conversation, mutated, giant, shuffled, half_open)


def cut(rng, data):
    """The bytes as a socket gives them."""
    how = rng.randrange(3)
    if how == 0:
        return [data]
    step = 1 if how == 1 else rng.randrange(2, 400)
    return [data[at : at + step] for at in range(0, len(data), step)]


def play(bench, rng, data):
    """One peer from its first byte to its end; how it was closed, or 0."""
    peer = bench.peer()
    for piece in cut(rng, data):
        peer.raw(piece)
        if peer.session.wants_close:
            break
        if rng.random() < 0.1:
            bench.turns()
    bench.settle()
    try:
        peer.hear()
        codes = [
            heard.method.reply_code
            for heard in peer.received
            if isinstance(heard.method, (Close, CloseConnection))
        ]
    except AmqpError:
        assert peer.session.wants_close, "only the protocol header is no frame"
        codes = []
    if rng.random() < 0.5:
        peer.session.eof()
        assert peer.session.wants_close
    peer.leave()
    bench.settle()
    assert set(codes) <= CODES
    return codes


def clean(bench):
    """What peers left behind on purpose goes, so that what is left is a leak."""
    vhost = bench.broker.vhosts["/"]
    vhost.queues.drop_all()
    for exchange in [each for each in vhost.exchanges.values() if not each.name.startswith("amq.")]:
        if exchange.name:
            vhost.bindings.drop_exchange(exchange)
    bench.settle()


def works(peer, number):
    """The well-behaved one: publish, confirm, get."""
    body = b"%d" % number
    peer.publish(1, "", "home", body, b"\x10\x00\x02")
    peer.turn()
    assert [type(method) for method in peer.methods(1)] == [Ack]
    peer.take()
    peer.send(1, Get(0, "home", is_no_ack=True))
    peer.turn()
    answer, _, got = peer.answer_with_content(1)
    assert isinstance(answer, GetOk)
    assert got == body


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_whatever_a_peer_says_it_is_answered_or_cut_off_and_others_live(kind, peers):
    rng = random.Random(f"amqp session {kind.__name__}")
    bench = AmqpBench()
    good = bench.client()
    good.call(1, Declare(0, "home", is_exclusive=True))
    good.call(1, ConfirmSelect())
    seen = set()
    for number in range(peers):
        seen.update(play(bench, rng, kind(rng)))
        works(good, number)
    assert seen or kind is half_open, "no peer was ever told that it is wrong"
    statistics = bench.engine.statistics()
    assert (statistics.connections, len(bench.broker.connections)) == (1, 1)
    assert bench.engine.contents.drawn_bytes == 0
    assert not bench.engine.contents.waiting
    assert bench.engine.unsent_pool.bytes == 0


@pytest.mark.timeout(3600)
def test_memory_is_flat_however_many_hostile_peers_there_were(peers):
    rng = random.Random("amqp memory")
    bench = AmqpBench()

    def round_of_peers():
        for kind in KINDS:
            for _ in range(max(1, peers // 20)):
                play(bench, rng, kind(rng))
        clean(bench)

    round_of_peers()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        round_of_peers()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < GROWTH_BYTES_MAX


def test_a_large_content_byte_by_byte_costs_linear_time_and_its_own_size():
    bench = AmqpBench()
    peer = bench.peer()
    peer.raw(greeting())
    size = 300_000
    head = method_frame(1, Publish(0, "", "q")) + encode_frame(
        2, 1, CONTENT_HEAD.pack(60, 0, size) + b"\0\0"
    )
    peer.raw(head)
    for _ in range(size // 10):
        peer.raw(encode_frame(3, 1, b"0123456789"))
        assert peer.session.is_reading
    peer.turn()
    assert not peer.session.wants_close
    assert bench.engine.contents.drawn_bytes == 0


def test_contents_on_all_channels_at_once_are_bounded_by_one_message():
    settings = Settings()
    limit = 4 << 20
    bench = AmqpBench(replace(settings, amqp=replace(settings.amqp, message_bytes_max=limit)))
    peer = bench.peer()
    peer.raw(greeting() + b"".join([method_frame(n, Open()) for n in range(3, 101)]))
    peer.take()
    header = CONTENT_HEAD.pack(60, 0, limit) + b"\0\0"
    for number in range(1, 101):
        peer.send(number, Publish(0, "", "q"))
        peer.raw(encode_frame(2, number, header))
    sent = 0
    while not peer.session.is_over:
        for number in range(1, 101):
            peer.raw(encode_frame(3, number, bytes(8184)))
            sent += 8184
        assert sent <= limit + (1 << 20)
    assert peer.answer(0).reply_code == ReplyCode.RESOURCE_ERROR
    assert bench.engine.contents.drawn_bytes == 0
