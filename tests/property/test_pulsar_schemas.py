"""Laws of schemas: what holds for every two of them, and that no text breaks the reader."""

import contextlib
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.adapters.pulsar.schema_compatibility import (
    InvalidSchema,
    Schema,
    SchemaType,
    identity,
    incompatibility,
)

PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string"])


def records(types):
    fields = st.dictionaries(st.sampled_from("abcd"), st.tuples(types, st.booleans()), max_size=4)
    return fields.map(
        lambda found: {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": name, "type": kind, **({"default": None} if optional else {})}
                for name, (kind, optional) in found.items()
            ],
        }
    )


TYPES = st.recursive(
    PRIMITIVES,
    lambda inner: st.one_of(
        inner.map(lambda each: {"type": "array", "items": each}),
        inner.map(lambda each: {"type": "map", "values": each}),
        st.lists(PRIMITIVES, min_size=1, max_size=3, unique=True),
    ),
    max_leaves=4,
)
SCHEMAS = records(TYPES).map(lambda said: Schema(SchemaType.AVRO, json.dumps(said).encode()))


def goes(new, old, strategy):
    return not incompatibility(new, [old], strategy)


@given(SCHEMAS)
def test_every_schema_goes_with_itself(schema):
    assert goes(schema, schema, "FULL_TRANSITIVE")


@given(SCHEMAS, SCHEMAS)
def test_forward_is_backward_the_other_way_and_full_is_both(first, second):
    backward, forward = goes(second, first, "BACKWARD"), goes(second, first, "FORWARD")

    assert forward == goes(first, second, "BACKWARD")
    assert goes(second, first, "FULL") == (backward and forward)
    assert goes(second, first, "FULL") == goes(first, second, "FULL")


@given(SCHEMAS, st.integers(0, 9))
def test_order_and_spaces_make_no_other_schema(schema, seed):
    said = json.loads(schema.data)
    keys = list(said)
    random.Random(seed).shuffle(keys)
    other = Schema(schema.type, json.dumps({key: said[key] for key in keys}, indent=seed).encode())

    assert identity(schema) == identity(other)


@given(SCHEMAS)
def test_a_field_with_a_default_may_come_and_go(schema):
    said = json.loads(schema.data)
    said["fields"].append({"name": "new", "type": "string", "default": ""})

    assert goes(Schema(schema.type, json.dumps(said).encode()), schema, "FULL")


@given(st.sampled_from(SchemaType), st.binary(max_size=60))
def test_any_bytes_are_a_schema_or_none(kind, data):
    with contextlib.suppress(InvalidSchema):
        assert identity(Schema(kind, data))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["record", "enum", "int", "R", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "name", "fields", "symbols", "items", "values", "size", "aliases"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_any_json_is_a_schema_or_none(said):
    schema = Schema(SchemaType.AVRO, json.dumps(said).encode())
    try:
        identity(schema)
    except InvalidSchema:
        return
    assert goes(schema, schema, "FULL")


@pytest.mark.parametrize("opening", ['{"type":', "[", '{"type":"array","items":'])
def test_depth_is_an_error_and_no_crash(opening):
    with pytest.raises(InvalidSchema):
        identity(Schema(SchemaType.AVRO, opening.encode() * 8_000))
