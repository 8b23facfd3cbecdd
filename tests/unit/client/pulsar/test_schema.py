"""What values become, and what the registry is told of them."""

import dataclasses
import json
from typing import TypedDict

import msgspec
import pytest

from penstock.client.pulsar.schema import (
    BytesSchema,
    JsonSchema,
    RawSchema,
    SchemaMismatch,
    StringSchema,
)
from penstock.wire.pulsar import protocol_pb2 as pb


@dataclasses.dataclass
class Order:
    number: int
    item: str = "pen"
    note: str | None = None


class Line(msgspec.Struct):
    price: float
    tags: list[str]
    extra: dict[str, int]
    paid: bool = False


class Basket(TypedDict):
    line: Line


def test_bytes_go_as_they_are_and_the_registry_hears_nothing():
    schema = BytesSchema()
    assert schema.decode(schema.encode(bytearray(b"x"))) == b"x"
    assert schema.to_wire() is None


@pytest.mark.parametrize("schema", [BytesSchema(), RawSchema("AVRO")])
def test_a_text_without_a_schema_is_refused_with_what_to_do(schema):
    with pytest.raises(SchemaMismatch, match="bytes, not str; encode it, or give the producer"):
        schema.encode("text")


def test_text_is_utf8_and_registered():
    schema = StringSchema()
    assert schema.decode(schema.encode("Grüße")) == "Grüße"
    assert schema.to_wire().type == pb.Schema.String
    with pytest.raises(SchemaMismatch, match="takes a str, not bytes"):
        schema.encode(b"x")
    with pytest.raises(SchemaMismatch, match="cannot be UTF-8"):
        schema.encode("\udc80")
    with pytest.raises(SchemaMismatch, match="no text"):
        schema.decode(b"\xff")


def test_a_dataclass_comes_back_and_its_record_is_registered():
    schema = JsonSchema(Order)
    order = Order(3, note="soon")
    assert schema.decode(schema.encode(order)) == order
    wire = schema.to_wire()
    assert wire.type == pb.Schema.Json
    assert json.loads(wire.schema_data) == {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "number", "type": "long"},
            {"name": "item", "type": "string", "default": "pen"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }


def test_structs_lists_maps_and_records_inside_have_names_in_avro():
    schema = JsonSchema(Basket)
    (field,) = json.loads(schema.to_wire().schema_data)["fields"]
    assert [each["type"] for each in field["type"]["fields"]] == [
        "double",
        {"type": "array", "items": "string"},
        {"type": "map", "values": "long"},
        "boolean",
    ]
    basket = {"line": Line(1.5, ["a"], {"b": 1})}
    assert schema.decode(schema.encode(basket)) == basket


def test_any_json_without_a_class_registers_nothing():
    schema = JsonSchema()
    assert schema.decode(schema.encode({"a": [1, None]})) == {"a": [1, None]}
    assert schema.to_wire() is None


def test_a_definition_of_ones_own_is_registered_as_it_is():
    definition = {"type": "record", "name": "x", "fields": []}
    assert json.loads(JsonSchema(definition=definition).to_wire().schema_data) == definition


def test_what_does_not_fit_is_refused_with_a_sentence():
    with pytest.raises(SchemaMismatch, match="takes a Order, not dict"):
        JsonSchema(Order).encode({})
    with pytest.raises(SchemaMismatch, match="is not what JsonSchema"):
        JsonSchema(Order).decode(b"{}")
    with pytest.raises(SchemaMismatch, match="no JSON"):
        JsonSchema().encode(object())
    with pytest.raises(SchemaMismatch, match="no name in Avro"):
        JsonSchema(dataclasses.make_dataclass("Odd", [("it", complex)]), definition=None)
    with pytest.raises(SchemaMismatch, match="annotated fields"):
        JsonSchema(type("Bare", (), {}))


def test_other_types_are_bytes_with_a_name_in_the_registry():
    wire = RawSchema("PROTOBUF_NATIVE", b"descriptor", name="x", properties={"a": "b"}).to_wire()
    assert wire.type == pb.Schema.ProtobufNative
    assert (wire.name, wire.schema_data, wire.properties[0].key) == ("x", b"descriptor", "a")
    with pytest.raises(SchemaMismatch, match="no type of schema; known are"):
        RawSchema("XML")
