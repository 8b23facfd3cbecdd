"""Unit tests for schemas over REST: looked at, brought, tried, deleted."""

import json

import pytest

from penstock.adapters.pulsar.schema_compatibility import Schema, SchemaType
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

TOPIC = "persistent/public/default/orders"
NAME = "persistent://public/default/orders"
SCHEMAS = "schemas/public/default/orders"
NOT_FOUND = (404, "Schema not found")


def record(*fields):
    said = [{"name": name, "type": ["null", "string"], "default": None} for name in fields]
    return json.dumps({"type": "record", "name": "A", "fields": said})


def body(data="", kind="JSON", **properties):
    return {"type": kind, "schema": data, "properties": properties}


NEEDS_MORE = json.dumps({"type": "record", "name": "A", "fields": [{"name": "z", "type": "int"}]})


def post(rest, *args, **properties):
    found = rest("POST", f"{SCHEMAS}/schema", body(*args, **properties))
    assert found.status == 200, found
    return found.json["version"]["version"]


@pytest.fixture
def two(rest):
    rest.done("PUT", TOPIC)
    assert (post(rest, record("a"), app="x"), post(rest, record("a", "b"))) == (0, 1)


# ---- looking


def test_the_newest_any_and_all_versions_are_shown(bench, rest, two):
    newest = rest.get(f"{SCHEMAS}/schema")
    assert (newest["version"], newest["type"], newest["data"]) == (1, "JSON", record("a", "b"))
    assert newest["timestamp"] == bench.clock.wall_ms()
    first = rest.get(f"{SCHEMAS}/schema/0")
    assert (first["version"], first["properties"]) == (0, {"app": "x"})
    assert rest.get(f"{SCHEMAS}/schemas") == {"getSchemaResponses": [first, newest]}
    bench.kill()
    assert rest.get(f"{SCHEMAS}/schema") == newest


def test_a_version_that_is_not_there(rest, two):
    for number in ("2", "-1"):
        assert rest.refused("GET", f"{SCHEMAS}/schema/{number}") == NOT_FOUND
    assert rest("GET", f"{SCHEMAS}/schema/x").status == 400


def test_a_topic_without_a_schema_and_no_topic(rest):
    for _ in range(2):
        assert rest.refused("GET", f"{SCHEMAS}/schema") == NOT_FOUND
        assert rest.refused("GET", f"{SCHEMAS}/schema/0") == NOT_FOUND
        assert rest.get(f"{SCHEMAS}/schemas") == {"getSchemaResponses": []}
        assert rest.refused("DELETE", f"{SCHEMAS}/schema") == NOT_FOUND
        assert rest("POST", f"{SCHEMAS}/version", body(record("a"))).json == {"version": -1}
        rest("PUT", TOPIC)


def test_the_version_of_a_schema_is_found(rest, two):
    assert rest("POST", f"{SCHEMAS}/version", body(record("a"))).json == {"version": 0}
    assert rest("POST", f"{SCHEMAS}/version", body(record("c"))).json == {"version": -1}


def test_a_schema_is_tried(rest, two):
    found = rest("POST", f"{SCHEMAS}/compatibility", body(record("a", "c")))
    answer = {"schemaCompatibilityStrategy": "FULL", "compatibility": True}
    assert (found.status, found.json) == (202, answer)
    found = rest("POST", f"{SCHEMAS}/compatibility", body(NEEDS_MORE))
    assert found.json["compatibility"] is False
    assert len(rest.get(f"{SCHEMAS}/schemas")["getSchemaResponses"]) == 2


def test_partitions_share_the_schemas_of_their_topic(rest):
    rest.done("PUT", "persistent/public/default/parts/partitions", 2)
    rest("POST", "schemas/public/default/parts-partition-0/schema", body(kind="STRING"))
    for name in ("parts", "parts-partition-1"):
        assert rest.get(f"schemas/public/default/{name}/schema")["type"] == "STRING"


# ---- brought


def test_a_schema_that_is_there_has_its_old_version(rest, two):
    assert post(rest, record("a")) == 0


def test_a_schema_that_does_not_fit_is_a_conflict(rest, two):
    assert rest("POST", f"{SCHEMAS}/schema", body(NEEDS_MORE)).status == 409
    assert rest("POST", f"{SCHEMAS}/schema", body(kind="STRING")).status == 409


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (body("{nope"), 422),
        (body("x", "INT32"), 422),
        (body("[]", "KEY_VALUE"), 422),
        (body("{}", "AUTO_CONSUME"), 422),
        (body("", "WHAT"), 400),
        ({}, 400),
        (b"{x", 400),
        ({"type": "STRING", "properties": {"a": 1}}, 400),
    ],
)
@pytest.mark.parametrize("place", ["schema", "version", "compatibility"])
def test_what_is_no_schema_is_refused(rest, place, given, status):
    assert rest("POST", f"{SCHEMAS}/{place}", given).status == status
    assert rest.get("persistent/public/default") == []


def test_bringing_a_schema_makes_its_topic_if_clients_may(rest):
    assert post(rest, kind="STRING") == 0
    assert rest.get("persistent/public/default") == [NAME]
    rule = {"allowAutoTopicCreation": False}
    rest.done("POST", "namespaces/public/default/autoTopicCreation", rule)
    assert rest("POST", "schemas/public/default/x/schema", body(kind="STRING")).status == 404
    assert rest("POST", "schemas/public/nowhere/x/schema", body(kind="STRING")).status == 404


def test_operators_bring_schemas_where_clients_may_not(rest, shop):
    rest.done("POST", "namespaces/public/default/isAllowAutoUpdateSchema", False)
    schema = {"name": "", "type": "String", "schema_data": b""}
    asked = {"topic": NAME, "producer_id": 2, "request_id": 1, "schema": schema}
    assert shop.client.call("PRODUCER", **asked).type == BaseCommand.ERROR
    assert post(rest, kind="STRING") == 0
    answer = shop.client.call("PRODUCER", **asked)
    assert answer.producer_success.schema_version == bytes(8)


def test_bytes_are_another_name_for_no_schema(rest):
    assert post(rest, kind="BYTES") == 0
    assert rest.get(f"{SCHEMAS}/schema")["type"] == "NONE"


def test_a_pair_is_one_object_here_and_binary_on_the_wire(bench, rest):
    pair = '{"key":{"type":"string"},"value":' + record("a").replace(" ", "") + "}"
    types = {"key.schema.type": "JSON", "value.schema.type": "JSON"}
    post(rest, pair, "KEY_VALUE", **types)
    found = rest.get(f"{SCHEMAS}/schema")
    assert (found["data"], found["properties"]) == (pair, types)
    (name,) = [topic.name for topic in bench.engine.topics()]
    stored = bench.broker.schemas.version(name).schema.data
    assert stored.startswith(b'\0\0\0\x11{"type":"string"}\0\0')


def test_a_part_of_a_pair_without_data_is_an_empty_text(bench, rest):
    types = {"key.schema.type": "STRING", "value.schema.type": "INT32"}
    post(rest, '{"key":"","value":""}', "KEY_VALUE", **types)
    assert rest.get(f"{SCHEMAS}/schema")["data"] == '{"key":"","value":""}'
    (name,) = [topic.name for topic in bench.engine.topics()]
    assert bench.broker.schemas.version(name).schema.data == bytes(8)


# ---- deleted


def test_deleted_schemas_leave_their_numbers_to_nobody_else(bench, rest, two):
    assert rest("DELETE", f"{SCHEMAS}/schema").json == {"version": 2}
    for _ in range(2):
        assert rest.refused("GET", f"{SCHEMAS}/schema") == NOT_FOUND
        assert rest.refused("GET", f"{SCHEMAS}/schema/0") == NOT_FOUND
        bench.kill()
    # Nothing is left with which it would have to go.
    assert post(rest, kind="STRING") == 3
    assert post(rest, kind="STRING") == 3
    assert rest.get(f"{SCHEMAS}/schema/3")["type"] == "STRING"
    bench.kill()
    assert rest.get(f"{SCHEMAS}/schema")["version"] == 3
    assert rest("DELETE", f"{SCHEMAS}/schema").json == {"version": 4}
    bench.kill()
    assert post(rest, kind="INT32") == 5


def test_by_force_numbers_begin_anew(bench, rest, two):
    assert rest("DELETE", f"{SCHEMAS}/schema?force=true").json == {"version": -1}
    bench.kill()
    assert post(rest, kind="STRING") == 0


def test_rows_of_schemas_do_not_pile_up(bench, rest, two):
    for _ in range(5):
        rest("DELETE", f"{SCHEMAS}/schema")
        post(rest, kind="STRING")
        rest("DELETE", f"{SCHEMAS}/schema")
        post(rest, kind="INT32")
    rest("DELETE", f"{SCHEMAS}/schema")
    assert len(bench.engine.definitions("pulsar.schema")) == 1
    rest.done("DELETE", TOPIC)
    assert bench.engine.definitions("pulsar.schema") == {}


def test_what_schemas_weigh_is_counted_back(bench, rest, two):
    registry = bench.broker.schemas
    rest("DELETE", f"{SCHEMAS}/schema?force=true")
    assert registry._size == 0
    (name,) = [topic.name for topic in bench.engine.topics()]
    registry.put(name, Schema(SchemaType.STRING))
    registry.delete(name)
    registry.put(name, Schema(SchemaType.STRING))
    registry.forget(name)
    assert registry._size == 0
