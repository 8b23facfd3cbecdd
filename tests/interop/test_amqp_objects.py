"""``penstock queues|exchanges|bindings|connections`` against a running broker."""

import json

import pika
import pytest
from click.testing import CliRunner

from penstock.cli.amqp_objects import bindings, connections, exchanges, queues
from penstock.model.errors import NotFound, PenstockError


@pytest.fixture
def run(rocketmq_broker):
    """Run a verb on the broker; its output, parsed with ``--json``."""

    def call(command, *arguments):
        where = ("--endpoint", rocketmq_broker.endpoints["http"])
        result = CliRunner().invoke(command, [*arguments, *where])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return json.loads(result.output) if "--json" in arguments else result.output

    return call


@pytest.fixture
def pika_connection(rocketmq_broker):
    host, port = rocketmq_broker.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    yield connection
    if connection.is_open:
        connection.close()


def test_queues_exchanges_and_bindings_are_listed(run, pika_connection):
    channel = pika_connection.channel()
    channel.exchange_declare("cli-exchange", "topic")
    channel.queue_declare("cli-queue", durable=True)
    channel.queue_bind("cli-queue", "cli-exchange", "a.#")
    channel.confirm_delivery()
    channel.basic_publish("cli-exchange", "a.b", b"one")
    head, line = run(queues, "list", "cli-queue").splitlines()
    assert head.split()[:6] == ["QUEUE", "VHOST", "READY", "UNACKED", "CONSUMERS", "DURABLE"]
    assert head.split()[6:] == ["STATE", "POLICY", "IN", "EFFECT"]
    assert line.split()[:6] == ["cli-queue", "/", "1", "0", "0", "yes"]
    assert run(queues, "list", "cli-queue", "--vhost", "/", "--json")[0]["name"] == "cli-queue"
    assert "topic" in run(exchanges, "list", "cli-exchange")
    assert "(default)" in run(exchanges, "list")
    (row,) = run(bindings, "list", "cli-exchange", "--json")
    assert (row["destination"], row["routing_key"]) == ("cli-queue", "a.#")
    channel.queue_delete("cli-queue")
    channel.exchange_delete("cli-exchange")


def test_a_connection_is_listed_and_closed_with_a_reason(run, pika_connection):
    rows = run(connections, "list", "--vhost", "/", "--json")
    name = next(row["name"] for row in rows if row["user"] == "guest")
    assert name in run(connections, "list")
    assert "closed" in run(connections, "close", name, "--reason", "too loud")
    with pytest.raises(pika.exceptions.ConnectionClosed, match=r"320.*too loud"):
        pika_connection.process_data_events(time_limit=10)
    with pytest.raises(NotFound, match="no such connection"):
        run(connections, "close", "nobody")


def test_who_may_not_ask_is_told_what_to_give(run):
    with pytest.raises(PenstockError, match="--user and --password"):
        run(queues, "list", "--password", "wrong")
    with pytest.raises(NotFound, match="no such virtual host"):
        run(queues, "list", "--vhost", "nowhere")
