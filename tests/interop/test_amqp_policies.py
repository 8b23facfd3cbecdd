"""Policies of a real broker: over HTTP and the command line, beside pika, through kill -9."""

import json
from base64 import b64encode
from http.client import HTTPConnection

import pika
import pytest
from click.testing import CliRunner

from penstock.cli.amqp_objects import exchanges, policies, queues
from penstock.model.errors import NotFound, PenstockError, SettingsError
from penstock.testing.running import BrokerProcess, eventually, running_broker

PERSISTENT = pika.BasicProperties(delivery_mode=2)
LOGIN = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}


@pytest.fixture(scope="module")
def broker():
    with running_broker() as running:
        yield running


@pytest.fixture
def channel(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        yield connection.channel()


def ask(broker, method, path, body=None):
    connection = HTTPConnection(*broker.address("http"), timeout=20)
    connection.request(method, path, None if body is None else json.dumps(body), LOGIN)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, json.loads(text) if text else None


def put(broker, name, pattern, collection="policies", **definition):
    order = {
        "pattern": pattern,
        "definition": {key.replace("_", "-"): value for key, value in definition.items()},
    }
    status, told = ask(broker, "PUT", f"/api/{collection}/%2F/{name}", order)
    assert status in (201, 204), told


def ready(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def test_a_policy_is_in_effect_on_a_queue_in_use_when_it_is_answered(broker, channel):
    channel.queue_declare("live.q")
    channel.queue_declare("live.dead")
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", "live.q", b"%d" % number)
    put(broker, "live", "^live.q$", max_length=4, dead_letter_exchange="",
        dead_letter_routing_key="live.dead")  # fmt: skip
    assert eventually(lambda: ready(channel, "live.q") == 4)
    assert eventually(lambda: ready(channel, "live.dead") == 6)
    put(broker, "live", "^live.q$", max_length=4, overflow="reject-publish")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "live.q", b"too much")
    assert ask(broker, "DELETE", "/api/policies/%2F/live")[0] == 204
    channel.basic_publish("", "live.q", b"fine")
    assert ready(channel, "live.q") == 5
    for name in ("live.q", "live.dead"):
        channel.queue_delete(name)


def test_a_queue_declared_later_gets_it_and_an_operator_restricts(broker, channel):
    put(broker, "ttl", "^later", message_ttl=60_000)
    put(broker, "op", "^later", "operator-policies", message_ttl=1)
    channel.queue_declare("later", arguments={"x-message-ttl": 30_000})
    channel.confirm_delivery()
    channel.basic_publish("", "later", b"gone soon")
    assert eventually(lambda: ready(channel, "later") == 0)
    shown = ask(broker, "GET", "/api/queues/%2F/later")[1]
    assert shown["effective_policy_definition"] == {"message-ttl": 1}
    for path in ("policies/%2F/ttl", "operator-policies/%2F/op"):
        assert ask(broker, "DELETE", f"/api/{path}")[0] == 204
    channel.queue_delete("later")


def test_thousands_of_queues_have_it_when_it_is_answered(broker, channel):
    count = 2_000
    for number in range(count):
        channel.queue_declare(f"many.{number}", exclusive=True)
    put(broker, "many", "^many", max_length=7)
    rows = ask(broker, "GET", "/api/queues?columns=name,policy")[1]
    assert sum(row["policy"] == "many" for row in rows) == count
    assert ask(broker, "DELETE", "/api/policies/%2F/many")[0] == 204


def test_policies_survive_kill_nine_and_are_in_effect_after_it(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            channel.queue_declare("kept", durable=True)
            channel.exchange_declare("main", "direct", durable=True)
            put(broker, "length", "^kept$", max_length=2)
            put(broker, "rest", "^main$", alternate_exchange="amq.fanout")
            put(broker, "op", ".*", "operator-policies", max_length=1)
            channel.queue_bind("kept", "amq.fanout")
            assert ask(broker, "DELETE", "/api/operator-policies/%2F/op")[0] == 204
        broker.kill()
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(4):
                channel.basic_publish("main", "nowhere", b"%d" % number, PERSISTENT)
            assert eventually(lambda: ready(channel, "kept") == 2)
            assert channel.basic_get("kept", auto_ack=True)[2] == b"2"
        shown = ask(broker, "GET", "/api/queues/%2F/kept")[1]
        assert (shown["policy"], shown["operator_policy"]) == ("length", None)
        assert [row["name"] for row in ask(broker, "GET", "/api/policies")[1]] == ["length", "rest"]


# The command line.


@pytest.fixture
def run(broker):
    def call(command, *arguments):
        where = ("--endpoint", broker.endpoints["http"])
        result = CliRunner().invoke(command, [*arguments, *where])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return json.loads(result.output) if "--json" in arguments else result.output

    return call


def test_policies_are_set_listed_shown_and_cleared(run, channel):
    channel.queue_declare("cli.orders")
    definition = '{"max-length": 5, "queue-mode": "lazy"}'
    told = run(policies, "set", "short", "^cli", definition, "--apply-to", "queues")
    assert "policy 'short' set" in told
    assert "without meaning here: queue-mode" in told
    run(policies, "set", "limits", ".*", '{"expires": 900000}', "--operator", "--priority", "3")
    head, *lines = run(policies, "list", "--vhost", "/").splitlines()
    assert head.split()[:4] == ["POLICY", "VHOST", "OF", "PATTERN"]
    assert [line.split()[:3] for line in lines] == [
        ["short", "/", "users"],
        ["limits", "/", "operators"],
    ]
    assert [row["of"] for row in run(policies, "list", "limits", "--json")] == ["operators"]
    line = run(queues, "list", "cli.orders").splitlines()[1]
    assert "short + limits (operators)" in line
    assert "expires=900000 max-length=5 queue-mode=lazy" in line
    assert "limits (operators)" in run(exchanges, "list", "amq.topic")
    shown = run(policies, "show", "short")
    assert "pattern: ^cli" in shown
    assert "queues: 1 (cli.orders)" in shown
    assert run(policies, "show", "limits", "--operator", "--json")["priority"] == 3
    assert "cleared" in run(policies, "clear", "short")
    run(policies, "clear", "limits", "--operator")
    assert run(policies, "list", "--json") == []
    channel.queue_delete("cli.orders")


def test_what_is_wrong_is_told_in_a_sentence(run):
    with pytest.raises(NotFound, match="no policy 'none'"):
        run(policies, "clear", "none")
    with pytest.raises(NotFound, match="no policy 'none'"):
        run(policies, "show", "none")
    with pytest.raises(SettingsError, match="no JSON"):
        run(policies, "set", "p", ".*", "max-length: 5")
    with pytest.raises(PenstockError, match="'odd' is not known here"):
        run(policies, "set", "p", ".*", '{"odd": 1}')
    with pytest.raises(NotFound, match="virtual host 'nowhere'"):
        run(policies, "set", "p", ".*", '{"expires": 1}', "--vhost", "nowhere")
