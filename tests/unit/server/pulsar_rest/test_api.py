"""Unit tests for how a request finds its handler, and what becomes of what goes wrong in it."""

import pytest

from penstock.adapters.pulsar.errors import PulsarError
from penstock.server.pulsar_rest import api as room
from penstock.server.pulsar_rest import messages, namespaces, policies, schemas, subscriptions
from penstock.server.pulsar_rest import topics as topics_room
from penstock.wire.pulsar.frames import ServerError

TOPIC = "persistent/public/default/orders"


def test_no_path_is_in_two_tables():
    tables = [
        namespaces.NAMESPACE_ROUTES,
        policies.POLICY_ROUTES,
        topics_room.TOPIC_ROUTES,
        subscriptions.SUBSCRIPTION_ROUTES,
        messages.MESSAGE_ROUTES,
        schemas.SCHEMA_ROUTES,
    ]
    assert len({key for table in tables for key in table}) == sum(map(len, tables))


def test_literal_parts_go_before_names():
    async def broker(): ...
    async def health(): ...

    paths = room.Paths({("GET", ("brokers", "*")): broker, ("GET", ("brokers", "health")): health})
    assert paths.find("GET", ("brokers", "health")) == (health, [])
    assert paths.find("HEAD", ("brokers", "x")) == (broker, ["x"])


def test_another_method_may_be_that_of_a_name():
    async def one(): ...
    async def other(): ...

    paths = room.Paths({("GET", ("a", "*")): one, ("PUT", ("a", "b")): other})
    assert paths.find("GET", ("a", "b")) == (one, ["b"])


def test_an_unknown_path_and_an_unknown_method(rest):
    assert rest("GET", "nothing/of/this").status == 404
    assert rest("DELETE", "brokers/health").status == 405
    assert rest("GET", "/lookup/v2/nothing").status == 404


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_changes_are_for_this_machine_and_for_no_other_page(rest, method):
    assert rest(method, TOPIC, client="192.0.2.1", host="192.0.2.9").status == 403
    assert rest(method, TOPIC, origin="http://elsewhere.example").status == 403
    assert rest.get("persistent/public/default") == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PulsarError(ServerError.TopicNotFound, ""), 404),
        (PulsarError(ServerError.SubscriptionNotFound, ""), 404),
        (PulsarError(ServerError.ServiceNotReady, ""), 503),
        (PulsarError(ServerError.NotAllowedError, ""), 409),
        (PulsarError(ServerError.IncompatibleSchema, ""), 409),
        (PulsarError(ServerError.ConsumerBusy, ""), 412),
        (ValueError("bad name"), 412),
    ],
)
def test_errors_have_a_status(error, status):
    assert room._rest_error(error).status == status


def test_a_body_is_bounded(rest):
    found = rest("PUT", "schemas/public/default/orders/schema", b" " * (2 * 1024 * 1024 + 1))
    assert found.status == 405
    found = rest("POST", "schemas/public/default/orders/schema", b" " * (2 * 1024 * 1024 + 1))
    assert found.status == 413


def test_a_body_that_is_nested_too_deep_is_refused(rest):
    assert rest("PUT", f"{TOPIC}/partitions", b"[" * 100_000).status == 400


def test_what_is_never_durable_is_answered_some_time(monkeypatch, rest):
    monkeypatch.setattr("penstock.server.pulsar_rest.request.DURABLE_SECONDS_MAX", 0.01)
    monkeypatch.setattr(type(rest.bench.engine), "after_durable", lambda *_: None)
    assert rest("PUT", TOPIC).status == 503
