"""What scripted AMQP clients do; ``record.py`` makes a tape of each."""

from clients import amqp_client, amqp_peer

from penstock.wire.amqp.methods.basic import (
    Ack,
    Cancel,
    Consume,
    Get,
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
    TxCommit,
    TxRollback,
    TxSelect,
)
from penstock.wire.amqp.methods.connection import Close as CloseConnection
from penstock.wire.amqp.methods.exchange import Bind as BindExchange
from penstock.wire.amqp.methods.exchange import Declare as DeclareExchange
from penstock.wire.amqp.methods.exchange import Delete as DeleteExchange
from penstock.wire.amqp.methods.exchange import Unbind as UnbindExchange
from penstock.wire.amqp.methods.queue import Bind, Declare, Delete, Purge, Unbind
from penstock.wire.amqp.properties import Properties, encode_properties

KINDS = ("direct", "fanout", "topic", "headers")
FULL = encode_properties(
    Properties(
        content_type="text/plain", content_encoding="utf-8", headers={"n": 1, "s": "x", "b": True},
        delivery_mode=2, priority=3, correlation_id="c", reply_to="r", message_id="m",
        timestamp=1_700_000_000, type="t", app_id="a",
    )
)  # fmt: skip
PERSISTENT = encode_properties(Properties(delivery_mode=2))


def with_headers(**headers):
    return encode_properties(Properties(headers=headers, delivery_mode=2))


def handshake(bench):
    amqp_client(bench, 1).call(0, CloseConnection(200, "bye"))
    amqp_peer(bench, 2).raw(b"AMQP\x00\x01\x00\x00")
    wrong = amqp_peer(bench, 3)
    wrong.greet()
    wrong.login(password="wrong")
    amqp_peer(bench, 4).handshake("nowhere")
    beating = amqp_client(bench, 5, heartbeat=10, frame_max=8192)
    bench.pass_time(6_000)
    beating.send(0, CloseConnection(200, ""))
    silent = amqp_client(bench, 6, heartbeat=10)
    bench.pass_time(25_000)
    silent.hear()


def topology(bench):
    peer = amqp_client(bench)
    for kind in KINDS:
        peer.call(1, DeclareExchange(exchange=f"x-{kind}", kind=kind, is_durable=True))
        peer.call(1, DeclareExchange(exchange=f"x-{kind}", kind=kind, is_passive=True))
        peer.call(1, Declare(queue=f"q-{kind}", is_durable=True))
    peer.call(1, Bind(0, "q-direct", "x-direct", "k"))
    peer.call(1, Bind(0, "q-fanout", "x-fanout", ""))
    peer.call(1, Bind(0, "q-topic", "x-topic", "a.*.#"))
    match = {"x-match": "any", "n": 1, "s": "y"}
    peer.call(1, Bind(0, "q-headers", "x-headers", "", arguments=match))
    peer.call(1, BindExchange(0, "x-fanout", "x-topic", "a.#"))
    for exchange, key in (
        ("x-direct", "k"), ("x-direct", "other"), ("x-fanout", "z"), ("x-topic", "a.b.c"),
        ("x-topic", "b"), ("x-headers", ""), ("", "q-direct"),
    ):  # fmt: skip
        peer.publish(1, exchange, key, b"to " + exchange.encode(), FULL, is_mandatory=True)
        peer.turn()
    peer.publish(1, "x-headers", "", b"no match", with_headers(n=2), is_mandatory=True)
    for kind in KINDS:
        peer.call(1, Declare(queue=f"q-{kind}", is_passive=True))
        peer.call(1, Get(0, f"q-{kind}", True))
    peer.call(1, UnbindExchange(0, "x-fanout", "x-topic", "a.#"))
    peer.call(1, Unbind(0, "q-direct", "x-direct", "k"))
    peer.call(1, Purge(0, "q-topic"))
    peer.call(1, DeleteExchange(0, "x-direct"))
    peer.call(1, Delete(0, "q-fanout"))


def confirms(bench):
    peer = amqp_client(bench)
    peer.call(1, Declare(queue="q", is_durable=True))
    full = {"x-max-length": 2, "x-overflow": "reject-publish"}
    peer.call(1, Declare(queue="full", is_durable=True, arguments=full))
    peer.call(1, ConfirmSelect())
    for body in (b"one", b"two" * 100, b""):
        peer.publish(1, "", "q", body, FULL)
        peer.turn()
    for _ in range(4):
        peer.publish(1, "", "full", b"x", PERSISTENT)
        peer.turn()
    peer.publish(1, "", "nobody", b"back", PERSISTENT, is_mandatory=True)
    small = amqp_client(bench, 2, frame_max=4096)
    small.publish(1, "", "q", b"frames " * 2000, PERSISTENT)
    small.call(1, Get(0, "q", True))
    small.call(1, Purge(0, "q"))


def consuming(bench):
    peer = amqp_client(bench)
    peer.call(1, Declare(queue="q", is_durable=True))
    for number in range(8):
        peer.publish(1, "", "q", b"%d" % number, PERSISTENT)
    peer.turn()
    peer.call(1, Qos(0, 3))
    peer.call(1, Consume(0, "q", "c1"))
    peer.send(1, Ack(1))
    peer.send(1, Ack(3, True))
    peer.send(1, Nack(4, False, True))
    peer.send(1, Nack(6, True, True))
    peer.send(1, Reject(7, False))
    peer.call(1, Flow(True))
    peer.call(1, Recover(True))
    peer.call(1, Cancel("c1"))
    other = amqp_client(bench, 2)
    other.call(1, Get(0, "q", False))
    other.session.closed("")
    third = amqp_client(bench, 3)
    third.call(1, Consume(0, "q", "c3", is_no_ack=True, arguments={"x-priority": 5}))
    third.open(2)
    third.call(2, Delete(0, "q"))


def getting(bench):
    peer = amqp_client(bench)
    peer.call(1, Declare(queue="q", is_durable=True, arguments={"x-max-priority": 4}))
    peer.call(1, Get(0, "q", False))
    for priority in (0, 3, 1, 9):
        properties = encode_properties(Properties(delivery_mode=2, priority=priority))
        peer.publish(1, "", "q", b"priority %d" % priority, properties)
    peer.turn()
    peer.call(1, Get(0, "q", False))
    peer.call(1, Get(0, "q", True))
    peer.send(1, Nack(1, False, True))
    peer.call(1, Get(0, "q", False))
    peer.send(1, Ack(0, True))
    peer.call(1, Close(200, "done"))
    peer.open(1)
    peer.call(1, Get(0, "q", True))


def transactions(bench):
    peer = amqp_client(bench)
    peer.call(1, Declare(queue="q", is_durable=True))
    peer.call(1, TxSelect())
    peer.publish(1, "", "q", b"never", PERSISTENT)
    peer.call(1, TxRollback())
    peer.publish(1, "", "q", b"ever", FULL)
    peer.publish(1, "", "nobody", b"back", PERSISTENT, is_mandatory=True)
    peer.call(1, TxCommit())
    peer.call(1, Get(0, "q", False))
    peer.send(1, Ack(1))
    peer.call(1, TxRollback())
    peer.send(1, Ack(1))
    peer.call(1, TxCommit())
    peer.call(1, Get(0, "q", False))
    peer.call(1, ConfirmSelect())


def dead_letters(bench):
    peer = amqp_client(bench)
    peer.call(1, DeclareExchange(exchange="dlx", kind="fanout", is_durable=True))
    peer.call(1, Declare(queue="dead", is_durable=True))
    peer.call(1, Bind(0, "dead", "dlx", ""))
    for name, more in (
        ("rejects", {}), ("expires", {"x-message-ttl": 1000}), ("short", {"x-max-length": 1}),
        ("again", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}),
    ):  # fmt: skip
        arguments = {"x-dead-letter-exchange": "dlx", **more}
        peer.call(1, Declare(queue=name, is_durable=True, arguments=arguments))
        peer.publish(1, "", name, b"one " + name.encode(), FULL)
        peer.publish(1, "", name, b"two " + name.encode(), PERSISTENT)
        peer.turn()
    peer.call(1, Get(0, "rejects", False))
    peer.send(1, Nack(1, False, False))
    peer.call(1, Get(0, "again", False))
    peer.send(1, Reject(2, False))
    bench.pass_time(1500)
    expiring = encode_properties(Properties(delivery_mode=2, expiration="500"))
    peer.publish(1, "", "rejects", b"expiring", expiring)
    bench.pass_time(2000)
    peer.call(1, Consume(0, "dead", "undertaker", is_no_ack=True))
    bench.pass_time(100)


def errors(bench):
    peer = amqp_client(bench)
    peer.call(1, Declare(queue="q", is_durable=True))
    for wrong in (
        Declare(queue="q"), Declare(queue="nobody", is_passive=True), Declare(queue="amq.mine"),
        DeclareExchange(exchange="x", kind="odd"), DeleteExchange(0, "amq.topic"),
        DeclareExchange(exchange="amq.direct", kind="topic"), Bind(0, "q", "nowhere", "k"),
        Ack(77), Consume(0, "nobody", "c"), Get(0, "nobody"), TxCommit(),
        Declare(queue="w", arguments={"x-message-ttl": -1}),
    ):  # fmt: skip
        peer.send(1, wrong)
        peer.send(1, CloseOk())
        peer.open(1)
    peer.publish(1, "nowhere", "k", b"lost")
    peer.send(1, CloseOk())
    amqp_client(bench, 2).send(9, Get(0, "q"))
    amqp_client(bench, 3).raw(b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x03\xe7\xce")
    amqp_client(bench, 4).raw(b"\x01\x00\x01\x00\x00\x00\x01\x00\xff")
    amqp_client(bench, 5).send(1, Publish(0, "", "q"), Get(0, "q"))
    twice = amqp_client(bench, 6)
    twice.call(1, Consume(0, "q", "same"))
    twice.send(1, Consume(0, "q", "same"))
    amqp_client(bench, 7).send(1, Flow(False))


SCRIPTS = {
    f"amqp-{each.__name__.replace('_', '-')}": each
    for each in (
        handshake, topology, confirms, consuming, getting, transactions, dead_letters, errors,
    )
}  # fmt: skip
