"""RabbitMQ's own ``rabbitmqadmin``, unmodified, against a broker process."""

import json
import shutil
import subprocess
from pathlib import Path

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from penstock.testing.running import running_broker

TOOL = shutil.which("rabbitmqadmin")
pytestmark = pytest.mark.skipif(
    TOOL is None, reason="rabbitmqadmin is not installed (Debian: rabbitmq-server)"
)
COMMAND_SECONDS_MAX = 20


@pytest.fixture(scope="module")
def broker():
    with running_broker() as running:
        yield running


@pytest.fixture
def admin(broker):
    """Runs one command: what it printed; it must succeed."""
    host, port = broker.address("http")

    def run(*words, is_refused=False):
        done = subprocess.run(
            (TOOL, "-H", host, "-P", str(port), *words),
            capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False,
        )  # fmt: skip
        assert bool(done.returncode) == is_refused, done.stdout + done.stderr
        return done.stderr if is_refused else done.stdout

    return run


@pytest.fixture
def listed(admin):
    """The rows of a list, some columns of them."""

    def look(kind, *columns):
        return json.loads(admin("-f", "raw_json", "list", kind, *columns))

    return look


def test_queues_exchanges_and_bindings_come_carry_messages_and_go(admin, listed):
    admin("declare", "queue", "name=q", 'arguments={"x-max-length": 5}')
    admin("declare", "queue", "name=quorum", "queue_type=quorum")
    admin("declare", "exchange", "name=e", "type=topic")
    admin("declare", "binding", "source=e", "destination=q", "routing_key=a.#")
    assert {"name": "quorum", "type": "quorum"} in listed("queues", "name", "type")
    assert "Message published" in admin(
        "publish", "exchange=e", "routing_key=a.b", "payload=hello",
        'properties={"delivery_mode": 2}',
    )  # fmt: skip
    assert "NOT routed" in admin("publish", "routing_key=nowhere", "payload=x")
    assert "hello" in admin("get", "queue=q", "ackmode=ack_requeue_true")
    assert {"name": "q", "messages": 1} in listed("queues", "name", "messages")
    admin("purge", "queue", "name=q")
    assert {"name": "q", "messages": 0} in listed("queues", "name", "messages")
    (binding,) = [each for each in listed("bindings") if each["source"] == "e"]
    key = f"properties_key={binding['properties_key']}"
    admin("delete", "binding", "source=e", "destination_type=queue", "destination=q", key)
    for kind, name in (("queue", "q"), ("queue", "quorum"), ("exchange", "e")):
        admin("delete", kind, f"name={name}")
    assert listed("queues") == []


def test_clients_are_listed_and_sent_away(broker, admin, listed):
    connection = pika.BlockingConnection(pika.ConnectionParameters(*broker.address("amqp")))
    channel = connection.channel()
    channel.queue_declare("watched", exclusive=True)
    channel.basic_consume("watched", lambda *_: None)
    (row,) = listed("connections", "name", "user", "channels")
    assert (row["user"], row["channels"]) == ("guest", 1)
    assert len(listed("channels")) == 1
    assert listed("consumers")[0]["queue"]["name"] == "watched"
    assert "3.13" in admin("show", "overview")
    admin("close", "connection", f"name={row['name']}")
    with pytest.raises(ConnectionClosedByBroker):
        connection.process_data_events(COMMAND_SECONDS_MAX)


def test_definitions_are_exported_and_imported_as_often_as_one_likes(admin, listed, tmp_path):
    admin("declare", "vhost", "name=team")
    admin("declare", "user", "name=ada", "password=x", "tags=management")
    admin("-V", "team", "declare", "queue", "name=kept")
    whole = str(tmp_path / "all.json")
    admin("export", whole)
    admin("delete", "vhost", "name=team")
    assert [each["name"] for each in listed("vhosts", "name")] == ["/"]
    admin("import", whole)
    document = json.loads(Path(whole).read_text())
    # Something of RabbitMQ's that is ignored: an answer with a body is a yes all the same.
    document["topic_permissions"] = [{"user": "guest", "vhost": "/", "exchange": "e"}]
    Path(whole).write_text(json.dumps(document))
    admin("import", whole)
    assert {"vhost": "team", "name": "kept"} in listed("queues", "vhost", "name")
    assert {each["name"] for each in listed("users", "name")} == {"ada", "guest"}
    admin("delete", "user", "name=ada")
    admin("delete", "vhost", "name=team")


def test_policies_are_declared_listed_and_deleted(admin, listed):
    admin("declare", "queue", "name=orders.new")
    wanted = {"max-length": 5}
    admin(
        "declare", "policy", "name=short", "pattern=^orders", f"definition={json.dumps(wanted)}",
        "apply-to=queues", "priority=2",
    )  # fmt: skip
    admin("declare", "operator_policy", "name=op", "pattern=.*", 'definition={"expires": 90000}')
    (row,) = listed("policies")
    assert (row["name"], row["apply-to"], row["priority"]) == ("short", "queues", 2)
    (row,) = [each for each in listed("queues") if each["name"] == "orders.new"]
    assert (row["policy"], row["operator_policy"]) == ("short", "op")
    told = admin(
        "declare", "policy", "name=p", "pattern=.*", 'definition={"odd": 1}', is_refused=True
    )
    assert "'odd' is not known here" in told
    admin("delete", "policy", "name=short")
    admin("delete", "operator_policy", "name=op")
    admin("delete", "queue", "name=orders.new")
    assert listed("policies") == listed("operator_policies") == []


def test_what_is_not_here_is_refused_in_a_sentence(admin, listed):
    admin("declare", "parameter", "component=c", "name=p", "value={}", is_refused=True)
    assert listed("parameters") == []
    admin("delete", "queue", "name=none", is_refused=True)
