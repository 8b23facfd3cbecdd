"""Commands come after the publishes before them, as far as these can come in."""

from penstock.adapters.amqp.ordering import catch_up, is_publishing
from penstock.testing.amqp_peer import AmqpBench
from penstock.wire.amqp.queue_methods import Declare


def channel_of(client, number=1):
    return client.session.channels[number]


def test_publishes_of_any_channel_of_the_connection_are_waited_for():
    client = AmqpBench().client()
    client.open(2)
    client.call(1, Declare(queue="q"))
    client.publish(2, "", "q", b"x")
    assert is_publishing(channel_of(client))
    assert catch_up(channel_of(client))
    assert not is_publishing(channel_of(client))
    assert client.bench.house.vhosts["/"].queues.get("q").ready == 1


def test_what_is_held_is_not_waited_for():
    client = AmqpBench().client()
    hold = {"x-max-length": 1, "x-overflow": "hold"}
    client.call(1, Declare(queue="q", arguments=hold))
    for _ in range(3):
        client.publish(1, "", "q", b"x")
    client.turn()
    assert not is_publishing(channel_of(client))
    answer = client.call(1, Declare(queue="q", arguments=hold))
    assert answer.messages == 1


def test_with_nothing_published_there_is_no_turn():
    client = AmqpBench().client()
    turns = client.bench.engine._parts.turns.turns
    assert catch_up(channel_of(client))
    assert client.bench.engine._parts.turns.turns == turns
