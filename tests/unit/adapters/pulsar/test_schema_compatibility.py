"""Unit tests for schemas as values: what is one, which are the same, which go together."""

import json
import struct

import pytest

from penstock.adapters.pulsar import schema_compatibility as room
from penstock.adapters.pulsar.schema_compatibility import (
    InvalidSchema,
    Schema,
    SchemaType,
    identity,
    incompatibility,
)

A, J = SchemaType.AVRO, SchemaType.JSON


def text(said):
    return json.dumps(said).encode()


def avro(*fields, kind=A, name="Order", **more):
    return Schema(kind, text({"type": "record", "name": name, "fields": list(fields), **more}))


def field(name, kind="string", **more):
    return {"name": name, "type": kind, **more}


def enum(*symbols, name="E", **more):
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def inner(name, *fields):
    return {"type": "record", "name": name, "fields": list(fields)}


def key_value(key, value, key_type="STRING", value_type="JSON"):
    data = b"".join([struct.pack(">i", len(part)) + part for part in (key, value)])
    return Schema(
        SchemaType.KEY_VALUE,
        data,
        {"key.schema.type": key_type, "value.schema.type": value_type},
    )


def goes(new, old, strategy="FULL"):
    return not incompatibility(new, [old], strategy)


# ---- the same -----------------------------------------------------------------------------------


def test_spaces_comments_and_the_order_of_keys_make_no_other_schema():
    plain = avro(field("a"))
    spaced = Schema(A, json.dumps(json.loads(plain.data), indent=3, sort_keys=True).encode())
    commented = avro(field("a", doc="first"), doc="an order", aliases=["Old"])

    assert identity(plain) == identity(spaced) == identity(commented)


@pytest.mark.parametrize(
    "other",
    [
        avro(field("a"), extra="x"),
        avro(field("a", default="x")),
        avro(field("a"), name="Other"),
        avro(field("a"), namespace="shop"),
        avro(field("a"), kind=J),
        avro(field("a"), field("b")),
    ],
)
def test_what_else_differs_does(other):
    assert identity(avro(field("a"))) != identity(other)


def test_names_in_a_namespace_may_be_spelt_in_two_ways():
    short = avro(field("a", enum("X")), field("b", "E"), namespace="shop")
    full = avro(field("a", enum("X", namespace="shop")), field("b", "shop.E"), namespace="shop")

    assert identity(short) == identity(full)


def test_properties_do_not_count_and_bytes_of_a_string_schema_do():
    assert identity(Schema(SchemaType.STRING, b"", {"x": "1"})) == identity(
        Schema(SchemaType.STRING)
    )
    assert identity(Schema(SchemaType.STRING, b"null")) != identity(Schema(SchemaType.STRING))


# ---- no schema ----------------------------------------------------------------------------------

BAD = {
    "not JSON": b"{no",
    "nothing": b"",
    "not UTF-8": b'"\xff\xfe"',
    "a number": b"7",
    "no type": b"{}",
    "an unknown name": b'"Order"',
    "no fields": text({"type": "record", "name": "R"}),
    "no name": text({"type": "record", "fields": []}),
    "a bad name": text({"type": "record", "name": "a b", "fields": []}),
    "a field twice": avro(field("a"), field("a")).data,
    "a field without type": avro({"name": "a"}).data,
    "no symbols": text({"type": "enum", "name": "E"}),
    "a symbol twice": text(enum("X", "X")),
    "no size": text({"type": "fixed", "name": "F"}),
    "a negative size": text({"type": "fixed", "name": "F", "size": -1}),
    "no items": text({"type": "array"}),
    "a name twice": avro(field("a", enum("X")), field("b", enum("X"))).data,
    "a union in a union": text(["null", ["int"]]),
    "a type twice in a union": text(["int", "int"]),
    "aliases that are none": avro(field("a", aliases=1)).data,
    "deep": b'{"type":"array","items":' * 5_000 + b'"int"' + b"}" * 5_000,
    "deep unions": b"[" * 100_000,
    "many types": text({"type": "record", "name": "R", "fields": [
        field(f"f{number}") for number in range(room.NODES_MAX + 1)]})[: room.BYTES_MAX],
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("kind", [A, J, SchemaType.PROTOBUF])
def test_what_is_no_schema_is_refused_with_its_type(what, kind):
    with pytest.raises(InvalidSchema, match=f"Invalid schema definition data for {kind.name} sch"):
        identity(Schema(kind, BAD[what]))


def test_a_large_schema_is_refused_before_it_is_read():
    with pytest.raises(InvalidSchema, match="larger than"):
        identity(Schema(A, b" " * (room.BYTES_MAX + 1)))


@pytest.mark.parametrize(
    "schema",
    [
        Schema(SchemaType.INT32, b"xx"),
        Schema(SchemaType.AUTO_CONSUME),
        Schema(SchemaType.KEY_VALUE),
        Schema(SchemaType.KEY_VALUE, b"\x7f\xff\xff\xff"),
        Schema(SchemaType.KEY_VALUE, b"\xff\xff\xff\xff" * 2),
        Schema(SchemaType.KEY_VALUE, b"\0" * 9),
        key_value(b"", b"{no"),
        key_value(b"", b"", value_type="KEY_VALUE"),
        key_value(b"", b"", value_type="NOTHING"),
        Schema(SchemaType.PROTOBUF_NATIVE, b"xx"),
        Schema(SchemaType.PROTOBUF_NATIVE, b"[]"),
    ],
)
def test_other_types_are_looked_at_too(schema):
    with pytest.raises(InvalidSchema):
        identity(schema)


def test_the_json_schemas_of_old_clients_are_taken():
    old = Schema(J, b'{"type":"object","properties":{"a":{"type":"string"}}}')

    assert identity(old)
    assert goes(Schema(J, b'{"type":"object","properties":{}}'), old)
    assert not goes(avro(field("a"), kind=J), old)


# ---- going together (those marked real were seen on Pulsar 4.0.8) -------------------------------

FULL = {
    "another name of the record (real)": (avro(field("a"), name="Other"), avro(field("a")), True),
    "a symbol less (real)": (avro(field("a", enum("X"))), avro(field("a", enum("X", "Y"))), True),
    "an enum of another name (real)": (
        avro(field("a", enum("X", name="F"))), avro(field("a", enum("X"))), False),
    "an enum in another namespace (real)": (
        avro(field("a", enum("X", namespace="q"))), avro(field("a", enum("X"))), True),
    "another size (real)": (
        avro(field("a", {"type": "fixed", "name": "F", "size": 4})),
        avro(field("a", {"type": "fixed", "name": "F", "size": 5})), False),
    "an inner record of another name (real)": (
        avro(field("a", inner("K"))), avro(field("a", inner("I"))), True),
    "the same in a union (real)": (
        avro(field("a", ["null", inner("K")])), avro(field("a", ["null", inner("I")])), True),
    "an alias (real)": (avro(field("b", aliases=["a"])), avro(field("a")), False),
    "string to bytes (real)": (avro(field("a", "bytes")), avro(field("a")), True),
    "int to long (real)": (avro(field("a", "long")), avro(field("a", "int")), False),
    "another default (real)": (
        avro(field("a", "int", default=2)), avro(field("a", "int", default=1)), True),
    "a required field more (real)": (avro(field("a"), field("b")), avro(field("a")), False),
    "an optional field more (real)": (
        avro(field("a"), field("b", ["null", "string"], default=None)), avro(field("a")), True),
    "protobuf with a required field more (real)": (
        avro(field("a"), field("b"), kind=SchemaType.PROTOBUF),
        avro(field("a"), kind=SchemaType.PROTOBUF), True),
    "a key-value's value with a required field more (real)": (
        key_value(b"", avro(field("a"), field("b")).data),
        key_value(b"", avro(field("a")).data), False),
    "a key-value's value of another type": (
        key_value(b"", b"", value_type="INT32"), key_value(b"", b"", value_type="STRING"), False),
    "key-values of the same": (
        key_value(b"", b"", "BYTES", "INT32"), key_value(b"", b"", "BYTES", "INT32"), True),
    "strings of other bytes (real)": (
        Schema(SchemaType.STRING, b"null"), Schema(SchemaType.STRING), True),
    "another type (real)": (Schema(SchemaType.INT64), Schema(SchemaType.INT32), False),
    "another root message": (
        Schema(SchemaType.PROTOBUF_NATIVE, b'{"rootMessageTypeName":"A"}'),
        Schema(SchemaType.PROTOBUF_NATIVE, b'{"rootMessageTypeName":"B"}'), False),
    "arrays of other items": (
        avro(field("a", {"type": "array", "items": "int"})),
        avro(field("a", {"type": "array", "items": "string"})), False),
    "maps of the same values": (
        avro(field("a", {"type": "map", "values": "int"})),
        avro(field("a", {"type": "map", "values": {"type": "int"}})), True),
}  # fmt: skip


@pytest.mark.parametrize("change", FULL)
def test_the_strategy_full(change):
    new, old, is_taken = FULL[change]
    identity(new)
    identity(old)

    assert goes(new, old) is is_taken


WIDER = [("int", "long"), ("int", "double"), ("long", "float"), ("float", "double")]


@pytest.mark.parametrize(("narrow", "wide"), WIDER)
def test_wider_numbers_read_narrow_ones_and_not_the_other_way(narrow, wide):
    new, old = avro(field("a", wide)), avro(field("a", narrow))

    assert goes(new, old, "BACKWARD")
    assert not goes(new, old, "FORWARD")


def test_a_field_is_found_by_its_alias():
    assert goes(avro(field("b", aliases=["a"])), avro(field("a")), "BACKWARD")


def test_each_type_of_a_written_union_must_be_read():
    wide, narrow = avro(field("a", ["null", "int"])), avro(field("a", "int"))

    assert goes(wide, narrow, "BACKWARD")
    assert not goes(narrow, wide, "BACKWARD")


def test_types_that_are_part_of_themselves_are_compared():
    def tree(kind, **more):
        return avro(field("value", kind, **more), field("next", ["null", "Order"]))

    assert goes(tree("string"), tree("string"))
    assert goes(tree("long"), tree("int"), "BACKWARD")
    assert not goes(tree("int"), tree("long"), "BACKWARD")


def test_what_was_taken_for_true_and_was_not_is_asked_again():
    """The second union's branch was found readable only because the record was taken to be."""

    def forest(kind):
        tree = {"type": "record", "name": "T", "fields": [
            field("n", ["null", {"type": "array", "items": "T"}]), field("v", kind)]}  # fmt: skip
        return avro(field("x", ["null", tree]), field("y", {"type": "array", "items": "T"}))

    assert not goes(forest("int"), forest("string"), "BACKWARD")


@pytest.mark.parametrize(
    ("strategy", "is_taken"),
    [
        ("ALWAYS_COMPATIBLE", True),
        ("ALWAYS_INCOMPATIBLE", False),
        ("BACKWARD", False),
        ("BACKWARD_TRANSITIVE", False),
        ("FORWARD", True),
        ("FORWARD_TRANSITIVE", True),
        ("FULL", False),
        ("FULL_TRANSITIVE", False),
    ],
)
def test_the_eight_strategies_on_a_required_field_more(strategy, is_taken):
    assert goes(avro(field("a"), field("b")), avro(field("a")), strategy) is is_taken


def test_transitive_strategies_look_at_every_version():
    first = avro(field("a"), field("b"))
    second = avro(field("a"), field("b", default="x"))
    third = avro(field("a"))

    assert not incompatibility(third, [first, second], "FORWARD")
    assert incompatibility(third, [first, second], "FORWARD_TRANSITIVE")


def test_only_always_compatible_takes_another_type():
    assert goes(Schema(SchemaType.STRING), avro(field("a")), "ALWAYS_COMPATIBLE")
    assert incompatibility(Schema(SchemaType.STRING), [avro(field("a"))], "BACKWARD") == (
        "Incompatible schema: exists schema type AVRO, new schema type STRING"
    )


def test_comparisons_that_take_too_long_are_refused(monkeypatch):
    monkeypatch.setattr(room, "COMPARISONS_MAX", 10)
    many = avro(*[field(f"f{number}") for number in range(20)])

    assert "10 comparisons" in incompatibility(many, [many], "FULL")
