"""The management API of a real broker process, beside a real AMQP client (pika)."""

import contextlib
import json
from base64 import b64encode
from http.client import HTTPConnection
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from penstock.testing.running import eventually, running_broker


@pytest.fixture(scope="module")
def broker():
    with running_broker() as running:
        yield running


@pytest.fixture
def ask(broker):
    """A tool that keeps its connection: (status, JSON)."""
    connection = HTTPConnection(*broker.address("http"), timeout=20)

    def call(method, path, body=None, login="guest:guest"):
        headers = {"Authorization": "Basic " + b64encode(login.encode()).decode()}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None

    with contextlib.closing(connection):
        yield call


@pytest.fixture
def client(broker):
    host, port = broker.address("amqp")
    parameters = pika.ConnectionParameters(
        host, port, client_properties={"connection_name": "under observation"}
    )
    connection = pika.BlockingConnection(parameters)
    yield connection
    if connection.is_open:
        connection.close()


def test_a_message_published_over_http_is_consumed_by_a_client(ask, client):
    channel = client.channel()
    channel.queue_declare("by-http", durable=True)
    order = {"routing_key": "by-http", "payload": "hello", "properties": {"headers": {"a": 1}}}
    assert ask("POST", "/api/exchanges/%2F/amq.default/publish", order) == (200, {"routed": True})
    method, properties, body = channel.basic_get("by-http", auto_ack=True)
    assert (method.routing_key, properties.headers, body) == ("by-http", {"a": 1}, b"hello")


def test_a_message_of_a_client_is_seen_over_http_and_stays(ask, client):
    channel = client.channel()
    channel.queue_declare("seen", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "seen", b"look", pika.BasicProperties(delivery_mode=2, type="t"))
    order = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}
    status, (message,) = ask("POST", "/api/queues/%2F/seen/get", order)
    assert (status, message["payload"], message["properties"]["type"]) == (200, "look", "t")
    assert ask("GET", "/api/queues/%2F/seen")[1]["messages_ready"] == 1
    method, _, body = channel.basic_get("seen", auto_ack=True)
    assert (method.redelivered, body) == (True, b"look")


def test_topology_made_over_http_routes_a_clients_publish(ask, client):
    assert ask("PUT", "/api/exchanges/%2F/orders.in", {"type": "topic"})[0] == 201
    assert ask("PUT", "/api/queues/%2F/orders.eu", {"durable": True})[0] == 201
    path = "/api/bindings/%2F/e/orders.in/q/orders.eu"
    assert ask("POST", path, {"routing_key": "eu.#"})[0] == 201
    channel = client.channel()
    channel.basic_publish("orders.in", "eu.de", b"1")
    channel.basic_publish("orders.in", "us.ny", b"2")
    assert eventually(lambda: ask("GET", "/api/queues/%2F/orders.eu")[1]["messages"] == 1)


def test_a_connection_is_listed_and_closed(ask, client):
    client.channel()
    rows = ask("GET", "/api/connections")[1]
    (row,) = [each for each in rows if each["user_provided_name"] == "under observation"]
    assert row["channels"] == 1
    assert ask("DELETE", f"/api/connections/{quote(row['name'], safe='')}")[0] == 204
    with pytest.raises(ConnectionClosedByBroker) as closed:
        client.process_data_events(20)
    assert closed.value.reply_code == 320


def test_a_user_made_over_http_logs_in(broker, ask):
    assert ask("PUT", "/api/users/ada", {"password": "secret", "tags": "management"})[0] == 201
    host, port = broker.address("amqp")
    credentials = pika.PlainCredentials("ada", "secret")
    pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=credentials)).close()
    assert ask("GET", "/api/whoami", login="ada:secret") == (
        200,
        {"name": "ada", "tags": ["management"]},
    )
    assert ask("GET", "/api/overview", login="ada:wrong")[0] == 401


def test_our_own_pages_need_no_password_and_rabbitmqs_do(broker):
    host, port = broker.address("http")
    with contextlib.closing(HTTPConnection(host, port, timeout=20)) as connection:
        for path, status in (
            ("/api/flow", 200),
            ("/api/flow/credit", 200),
            ("/metrics?compat=rabbitmq", 200),
            ("/api/queues", 401),
        ):
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            assert response.status == status, path
