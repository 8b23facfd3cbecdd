"""Schemas: versions, compatibility, refusals (observations 12)."""

import json
import time

import pytest

from penstock.wire.pulsar import protocol_pb2 as pb

STRING, JSON, AVRO, INT32, INT64, AUTO_CONSUME, NONE_TYPE = 1, 2, 4, 8, 9, 21, 0
INCOMPATIBLE = "IncompatibleSchema"


def version(number):
    return number.to_bytes(8, "big")


def record(*fields, kind=JSON, indent=None):
    """A record schema; a field is a name, an optional one ends in ``?``, or (name, type)."""
    found = []
    for each in fields:
        if isinstance(each, tuple):
            found.append({"name": each[0], "type": each[1]})
        elif each.endswith("?"):
            found.append({"name": each[:-1], "type": ["null", "string"], "default": None})
        else:
            found.append({"name": each, "type": "string"})
    text = json.dumps({"type": "record", "name": "Order", "fields": found}, indent=indent)
    return {"name": "Order", "type": kind, "schema_data": text.encode()}


def plain(kind, data=b""):
    return {"name": "plain", "type": kind, "schema_data": data}


def registered(peer, topic, schema):
    return peer.producer(topic, schema=schema).success.schema_version


def get_schema(peer, topic, **fields):
    return peer.ask("get_schema", topic=topic, **fields).command


def test_a_topic_without_a_schema_has_none(peer, topic):
    peer.producer(topic)
    found = get_schema(peer, topic)
    assert found.error_code == pb.TopicNotFound
    assert found.error_message == f"Topic not found or no-schema {topic}"


def test_an_unknown_version_is_not_found(peer, topic):
    registered(peer, topic, record("a"))
    found = get_schema(peer, topic, schema_version=version(7))
    assert found.error_code == pb.TopicNotFound
    assert found.error_message == f"Topic not found or no-schema {topic}"


def test_a_schema_is_told_with_its_topic_as_name(peer, topic):
    wanted = record("a")
    registered(peer, topic, wanted)
    found = get_schema(peer, topic)
    assert not found.HasField("error_code")
    assert found.schema.name == topic.partition("://")[2]
    assert found.schema.type == JSON
    assert json.loads(found.schema.schema_data) == json.loads(wanted["schema_data"])
    assert found.schema_version == version(0)
    assert get_schema(peer, topic, schema_version=version(0)).schema_version == version(0)


def test_versions_count_up_and_old_texts_keep_theirs(peer, topic):
    first, second = record("a"), record("a", "b?")
    assert registered(peer, topic, first) == version(0)
    assert registered(peer, topic, first) == version(0)
    assert registered(peer, topic, record("a", indent=2)) == version(0)
    assert registered(peer, topic, second) == version(1)
    assert registered(peer, topic, first) == version(0)
    assert registered(peer, topic, record("a", "c?")) == version(2)


def test_an_optional_field_may_go(peer, topic):
    assert registered(peer, topic, record("a", "b?", "c?")) == version(0)
    assert registered(peer, topic, record("a", "c?")) == version(1)


def test_a_producer_without_a_schema_is_accepted_beside_one(peer, topic):
    registered(peer, topic, record("a"))
    assert peer.producer(topic).success.schema_version == b""


CHANGES = {
    "a required field added": (record("a"), record("a", "b")),
    "a field of another type": (record("a"), record(("a", "int"))),
    "JSON to Avro": (record("a"), record("a", kind=AVRO)),
    "Avro to String": (record("a", kind=AVRO), plain(STRING)),
    "Int32 to Int64": (plain(INT32), plain(INT64)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_compatible_both_ways_is_refused(peer, topic, change):
    old, new = CHANGES[change]
    registered(peer, topic, old)
    peer.no_producer(INCOMPATIBLE, None, topic, schema=new)
    peer.no_consumer((INCOMPATIBLE, None), topic, "s", schema=new)


def test_the_texts_of_refusals(peer, topic):
    registered(peer, topic, record("a"))
    peer.no_producer(
        INCOMPATIBLE,
        "Incompatible schema: exists schema type JSON, new schema type AVRO",
        topic,
        schema=record("a", kind=AVRO),
    )
    peer.no_producer(INCOMPATIBLE, "strategy FULL", topic, schema=record("a", "b"))


@pytest.mark.parametrize("kind", [JSON, AVRO])
def test_a_text_that_cannot_be_read_is_refused(peer, topic, kind):
    peer.no_producer(
        INCOMPATIBLE,
        f"Invalid schema definition data for {'JSON' if kind == JSON else 'AVRO'} schema",
        topic,
        schema=plain(kind, b"{this is no schema"),
    )


def test_string_schemas_of_other_data_are_other_versions(peer, topic):
    assert registered(peer, topic, plain(STRING, b"null")) == version(0)
    assert registered(peer, topic, plain(STRING, b"")) == version(1)


def test_a_consumer_registers_a_schema_on_a_topic_without_one(peer, topic):
    peer.consumer(topic, "s", schema=record("a"))
    assert get_schema(peer, topic).schema_version == version(0)


def test_a_consumer_that_takes_any_schema_registers_none(peer, topic):
    peer.consumer(topic, "s", schema=plain(AUTO_CONSUME))
    assert get_schema(peer, topic).error_code == pb.TopicNotFound


def test_a_schema_of_type_none_is_accepted(peer, topic):
    peer.consumer(topic, "s", schema=plain(NONE_TYPE))
    assert registered(peer, topic, plain(NONE_TYPE)) == version(0)


def test_get_or_create_registers(peer, topic):
    peer.producer(topic)
    found = peer.ask("get_or_create_schema", topic=topic, schema=record("a")).command
    assert found.schema_version == version(0)
    found = peer.ask("get_or_create_schema", topic=topic, schema=record("a", "b")).command
    assert found.error_code == pb.IncompatibleSchema


def test_enforced_validation_wants_a_schema_of_producers_only(pulsar, peer):
    namespace = pulsar.namespace(schemaValidationEnforced=True)
    topic = pulsar.topic(namespace=namespace)
    registered(peer, topic, record("a"))
    peer.no_producer(INCOMPATIBLE, None, topic)
    peer.consumer(topic, "s")


def test_without_auto_update_new_schemas_are_refused(pulsar, peer):
    namespace = pulsar.namespace(isAllowAutoUpdateSchema=False)
    topic = pulsar.topic(namespace=namespace)
    peer.no_producer(
        INCOMPATIBLE,
        "Schema not found and schema auto updating is disabled.",
        topic,
        schema=record("a"),
    )


def test_without_auto_update_what_is_known_is_taken_and_nothing_new(pulsar, peer):
    namespace = pulsar.namespace()
    topic = pulsar.topic(namespace=namespace)
    registered(peer, topic, record("a"))
    pulsar.policy(namespace, "isAllowAutoUpdateSchema", False)
    if pulsar.is_real:
        # The policy reaches the topic some time after the call.
        time.sleep(0.5)
    assert registered(peer, topic, record("a")) == version(0)
    peer.no_producer(INCOMPATIBLE, None, topic, schema=record("a", "b?"))


@pytest.mark.parametrize(
    ("strategy", "is_taken"),
    [("ALWAYS_COMPATIBLE", True), ("FORWARD", True), ("BACKWARD", False), ("FULL", False)],
)
def test_the_strategy_of_a_namespace_decides(pulsar, peer, strategy, is_taken):
    namespace = pulsar.namespace(schemaCompatibilityStrategy=strategy)
    topic = pulsar.topic(namespace=namespace)
    registered(peer, topic, record("a"))
    if is_taken:
        assert registered(peer, topic, record("a", "b")) == version(1)
    else:
        peer.no_producer(INCOMPATIBLE, None, topic, schema=record("a", "b"))
