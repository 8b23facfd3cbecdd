"""Unit tests for the schemas of topics: versions, refusals, bounds, what is left after a crash."""

import itertools
import json

import pytest

from kit.pulsar.bench import PulsarBench
from penstock.adapters.pulsar import schemas as room
from penstock.adapters.pulsar.naming import parse_name
from penstock.model.names import topic_name
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, Schema

TOPIC = "persistent://public/default/orders"
ORDERS = topic_name("orders")
NUMBERS = itertools.count(1)


def version(number):
    return number.to_bytes(8, "big")


def record(*names, kind=Schema.Avro):
    fields = [{"name": each, "type": "string", "default": ""} for each in names]
    text = json.dumps({"type": "record", "name": "Order", "fields": fields})
    return Schema(name="Order", type=kind, schema_data=text.encode())


REQUIRED = Schema(
    name="Order",
    type=Schema.Avro,
    schema_data=b'{"type":"record","name":"Order","fields":[{"name":"r","type":"int"}]}',
)


def produce(client, schema=None, topic=TOPIC):
    number = next(NUMBERS)
    fields = {} if schema is None else {"schema": schema}
    return client.call("PRODUCER", topic=topic, producer_id=number, request_id=number, **fields)


def produced(client, *args, **fields):
    answer = produce(client, *args, **fields)
    assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
    return answer.producer_success.schema_version


def refused(client, *args, **fields):
    answer = produce(client, *args, **fields)
    assert answer.type == BaseCommand.ERROR, answer
    assert answer.error.error == ServerError.IncompatibleSchema
    return answer.error.message


def get(client, topic=TOPIC, **fields):
    return client.call("GET_SCHEMA", topic=topic, request_id=9, **fields).get_schema_response


def test_versions_count_from_0_and_are_known_after_a_crash(bench, client):
    assert produced(client, record("a")) == version(0)
    assert produced(client, record("a", "b")) == version(1)
    bench.cut_power()

    client = bench.client()
    assert get(client).schema_version == version(1)
    assert produced(client, record("a")) == version(0)
    assert produced(client, record("c")) == version(2)


def test_they_go_with_their_topic(bench, client):
    produced(client, record("a"))
    bench.broker.topics.delete(parse_name(TOPIC))
    bench.settle()

    assert not bench.engine.definitions(room.SCHEMA_KIND)
    assert produced(bench.client(), REQUIRED) == version(0)


def test_rows_of_a_topic_that_is_gone_go_at_the_start(bench, client):
    produced(client, record("a"))
    (row,) = bench.engine.definitions(room.SCHEMA_KIND).values()
    bench.engine.define(room.SCHEMA_KIND, "999/0", row)
    bench.settle()
    bench.cut_power()

    assert "999/0" not in bench.engine.definitions(room.SCHEMA_KIND)
    assert bench.broker.schemas.versions(ORDERS)


def test_partitions_share_the_schemas_of_their_topic(bench, client):
    bench.broker.topics.create(parse_name(TOPIC), 2)
    assert produced(client, record("a"), topic=TOPIC + "-partition-0") == version(0)
    assert produced(client, record("a"), topic=TOPIC + "-partition-1") == version(0)

    found = get(client, TOPIC + "-partition-1")
    assert found.schema.name == "public/default/orders"
    assert get(client, TOPIC) == found


def test_a_topic_without_a_log_has_schemas_while_it_lives(bench, client):
    topic = "non-persistent://public/default/news"
    assert produced(client, record("a"), topic=topic) == version(0)
    assert get(client, topic).schema_version == version(0)
    bench.broker.topics.delete(parse_name(topic))
    client.heard()

    assert get(client, topic).error_code == ServerError.TopicNotFound
    assert produced(client, REQUIRED, topic=topic) == version(0)
    assert not bench.engine.definitions(room.SCHEMA_KIND)


def test_get_or_create_answers_when_it_is_durable(bench, client):
    produced(client)
    client.say("GET_OR_CREATE_SCHEMA", topic=TOPIC, request_id=1, schema=record("a"))
    assert not client.connection.outgoing()

    answer = client.next().get_or_create_schema_response
    assert (answer.request_id, answer.schema_version) == (1, version(0))
    bench.cut_power()
    assert bench.broker.schemas.versions(ORDERS)


def test_get_or_create_fails_in_an_answer_of_its_own(client):
    def create(topic, schema):
        answer = client.call("GET_OR_CREATE_SCHEMA", topic=topic, request_id=1, schema=schema)
        said = answer.get_or_create_schema_response
        return said.error_code, said.error_message

    assert create(TOPIC, record("a")) == (ServerError.TopicNotFound, f"Topic not found {TOPIC}")
    assert create("per://x", record("a"))[0] == ServerError.InvalidTopicName
    produced(client, record("a"))
    assert create(TOPIC, REQUIRED)[0] == ServerError.IncompatibleSchema


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (b"", ServerError.IncompatibleSchema),
        (b"\1", ServerError.TopicNotFound),
        (version(7), ServerError.TopicNotFound),
        (b"\xff" * 8, ServerError.TopicNotFound),
        (b"\xff" * 100, ServerError.TopicNotFound),
    ],
)
def test_versions_that_are_none(client, asked, code):
    produced(client, record("a"))

    assert get(client, schema_version=asked).error_code == code


def test_the_strategy_is_that_of_the_policies(bench, client):
    produced(client, record("a"))
    assert "strategy FULL" in refused(client, REQUIRED)
    bench.broker.namespaces.set_topic_policies(ORDERS, schema_compatibility_strategy="FORWARD")

    assert "Error" not in str(produced(client, REQUIRED))


def test_without_auto_update_only_known_schemas_are_taken(bench, client):
    produced(client, record("a"))
    bench.broker.namespaces.set_policies("public/default", is_allow_auto_update_schema=False)

    assert produced(client, record("a")) == version(0)
    assert refused(client, record("a", "b")) == (
        "Schema not found and schema auto updating is disabled."
    )


def test_enforced_validation_wants_a_schema_where_there_is_one(bench, client):
    bench.broker.namespaces.set_policies("public/default", schema_validation_enforced=True)
    assert produced(client) == b""
    produced(client, record("a"))

    assert "SchemaValidationEnforced" in refused(client)


def test_a_refused_producer_leaves_nothing(bench, client):
    produced(client, record("a"))
    users = len(bench.broker.topics.used(parse_name(TOPIC))[0].users)
    refused(client, REQUIRED)

    assert len(bench.broker.topics.used(parse_name(TOPIC))[0].users) == users


def test_a_topic_has_so_many_versions_and_no_more(client, monkeypatch):
    monkeypatch.setattr(room, "VERSIONS_MAX", 2)
    produced(client, record("a"))
    produced(client, record("b"))

    assert "2 schemas" in refused(client, record("c"))
    assert produced(client, record("a")) == version(0)


def test_all_topics_together_have_so_many_bytes(bench, client, monkeypatch):
    topic = "non-persistent://public/default/news"
    produced(client, record("a"), topic=topic)
    monkeypatch.setattr(room, "ALL_BYTES_MAX", bench.broker.schemas._size)
    assert "all topics" in refused(client, record("a"))

    bench.broker.topics.delete(parse_name(topic))
    client.heard()
    assert produced(client, record("a")) == version(0)


# ---- consumers ----------------------------------------------------------------------------------


def subscribe(bench, schema, *, is_idle=True):
    topic = bench.broker.topics.open(parse_name(TOPIC), may_create=True)
    bench.broker.schemas.of_consumer(topic, schema, is_idle=is_idle)
    return [each.number for each in bench.broker.schemas.versions(ORDERS)]


def test_the_first_consumer_of_an_idle_topic_brings_its_schema():
    assert subscribe(PulsarBench(), record("a")) == [0]


def test_a_consumer_of_a_topic_in_use_brings_none(bench):
    with pytest.raises(room.PulsarError, match="active topic with empty"):
        subscribe(bench, record("a"), is_idle=False)


@pytest.mark.parametrize(
    "schema", [None, Schema(name="", type=Schema.AutoConsume, schema_data=b"")]
)
def test_a_consumer_that_takes_anything_brings_none(bench, schema):
    assert subscribe(bench, schema) == []


def test_a_consumer_must_be_able_to_read_the_newest(bench, client):
    produced(client, record("a"))

    assert subscribe(bench, record()) == [0]
    with pytest.raises(room.PulsarError, match="strategy BACKWARD"):
        subscribe(bench, REQUIRED)
    with pytest.raises(room.PulsarError, match="exists schema type AVRO, new schema type NONE"):
        subscribe(bench, Schema(name="", type=Schema.NoSchema, schema_data=b""))
    bench.broker.namespaces.set_policies(
        "public/default", schema_compatibility_strategy="ALWAYS_COMPATIBLE"
    )
    assert subscribe(bench, REQUIRED) == [0]
