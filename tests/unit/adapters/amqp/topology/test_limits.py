"""How much may be declared: every limit refuses with its name, and what goes makes room."""

import pytest

from kit.amqp.peer import AmqpBench
from penstock.settings.load import Settings
from penstock.settings.protocols import AmqpSettings
from penstock.wire.amqp.methods import exchange, queue
from penstock.wire.amqp.methods.basic import Consume
from penstock.wire.amqp.methods.channel import Close

LONG = {"x-note": "n" * 9000}


def client_of(**settings):
    return AmqpBench(Settings(amqp=AmqpSettings(**settings))).client()


def refused(client, method, setting):
    answer = client.call(1, method)
    assert isinstance(answer, Close), answer
    assert answer.reply_code == 406
    assert setting in answer.reply_text


def test_exchanges_of_all_vhosts_together():
    client = client_of(exchanges_max=14)
    client.bench.broker.make_vhost("other")
    for name in ("a", "b"):
        client.call(1, exchange.Declare(0, name, "fanout"))
    client.call(1, exchange.Declare(0, "b", "fanout"))
    refused(client, exchange.Declare(0, "c", "fanout"), "amqp.exchanges_max")
    assert "c" not in client.bench.broker.vhosts["/"].exchanges


def test_bindings_of_all_kinds_together():
    client = client_of(bindings_max=3)
    client.call(1, queue.Declare(queue="q"))
    client.call(1, exchange.Declare(0, "e", "fanout"))
    for key in "ab":
        client.call(1, queue.Bind(0, "q", "amq.direct", key))
    client.call(1, exchange.Bind(0, "e", "amq.direct", "a"))
    client.call(1, queue.Bind(0, "q", "amq.direct", "a"))
    client.call(1, queue.Unbind(0, "q", "amq.direct", "a"))
    client.call(1, queue.Bind(0, "q", "amq.direct", "c"))
    refused(client, queue.Bind(0, "q", "amq.direct", "d"), "amqp.bindings_max")


def test_bindings_that_go_with_their_queue_make_room():
    client = client_of(bindings_max=1)
    for name in "abc":
        client.call(1, queue.Declare(queue=name))
        answer = client.call(1, queue.Bind(0, name, "amq.direct", "k"))
        assert isinstance(answer, queue.BindOk)
        client.call(1, queue.Delete(queue=name))


def test_virtual_hosts():
    broker = client_of(vhosts_max=2).bench.broker
    broker.make_vhost("a")
    broker.make_vhost("a")
    with pytest.raises(ValueError, match="vhosts_max"):
        broker.make_vhost("b")


@pytest.mark.parametrize(
    "method",
    [
        queue.Declare(queue="new", arguments=LONG),
        exchange.Declare(0, "new", "fanout", arguments=LONG),
        queue.Bind(0, "q", "amq.direct", "k", arguments=LONG),
        exchange.Bind(0, "amq.fanout", "amq.direct", "k", arguments=LONG),
        Consume(0, "q", "c", arguments=LONG),
    ],
)
def test_the_arguments_of_everything_that_is_kept(method):
    client = client_of(arguments_bytes_max=8192)
    client.call(1, queue.Declare(queue="q"))
    refused(client, method, "amqp.arguments_bytes_max")


def test_a_vhost_that_is_dropped_is_not_told_of_topics_any_more():
    client = client_of()
    broker, engine = client.bench.broker, client.bench.engine
    before = len(engine._removal_watchers)
    for _ in range(3):
        vhost = broker.make_vhost("v")
        client_of_vhost = client.bench.peer()
        client_of_vhost.handshake("v")
        client_of_vhost.open(1)
        client_of_vhost.call(1, queue.Declare(queue="q", is_durable=True))
        client_of_vhost.call(1, queue.Bind(0, "q", "amq.direct", "k"))
        assert broker.drop_vhost("v")
        assert vhost.queues.get("q") is None
        assert list(vhost.bindings) == []
    assert len(engine._removal_watchers) == before
    client.turn()
    assert engine.definitions("amqp.binding") == {}
    assert engine.definitions("amqp.queue") == {}
