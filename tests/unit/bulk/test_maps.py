"""Property strings become maps, by the rules of the wire."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bulk import maps as module
from penstock.bulk.maps import amqp_maps, amqp_properties, maps_of, property_maps
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.table import Tagged, Timestamp
from penstock.wire.rocketmq.properties import parse_properties


@pytest.mark.parametrize(
    "strings",
    [
        [],
        [b"", b""],
        [b"a\x01b\x02", b"", b"c\x01d\x02e\x01f\x02"],
        [b"a\x01b", b"\x02c\x01d", b"e\x01f\x02"],
        [b"a\x01b\x01c\x02", b"\x01v\x02n\x01\x02"],
        [b"a\x011\x02a\x012\x02b\x013\x02"],
        [b"no pair", b"\x02\x02\x02"],
        [b"broken\x01\xff\x02"],
        [b"WAIT\x01true\x02x\x01y\x02", b"WAITING\x011\x02WAIT\0\x012\x02"],
        [b"TRACE_ON\x011\x02CONSUME_START_TIME\x012\x02u\x013\x02"],
    ],
    ids=range(10),
)
@pytest.mark.parametrize("hidden", [frozenset(), frozenset({"WAIT", "CONSUME_START_TIME"})])
def test_a_column_of_strings_is_read_as_single_strings_are(strings, hidden):
    expected = [
        [(k, v) for k, v in parse_properties(each).items() if k not in hidden] for each in strings
    ]

    assert property_maps(pa.array(strings, pa.binary()), hidden).to_pylist() == expected


def test_a_slice_of_a_column_is_read_as_well():
    strings = pa.array([b"a\x01b\x02", b"c\x01d\x02", b"e\x01f\x02"], pa.binary()).slice(1, 1)

    assert property_maps(strings, frozenset()).to_pylist() == [[("c", "d")]]


def test_maps_that_were_read_one_by_one_are_a_column_of_the_same_type():
    made = maps_of([{"a": "b"}, {}])

    assert made.to_pylist() == [[("a", "b")], []]
    assert made.type == property_maps(pa.array([b""], pa.binary()), frozenset()).type


# ---- content headers of AMQP --------------------------------------------------------------------


NAMES = ["region", "n", "x-delivery-count", "", "message_id", "amqp.app_id", "größe", "a" * 255]
VALUES = [
    "eu", "", "a longer value than twelve bytes", "ü", 7, -1, 2**62, True, False, None, 1.5,
    b"\xff", Timestamp(17), Tagged("T", 2**64 - 1), Tagged("b", -3), Tagged("B", 200),
    Tagged("s", -300), Tagged("u", 60000), Tagged("I", -70000), Tagged("i", 2**32 - 1),
    Tagged("L", -5), Decimal("1.50"), {"inner": [1, "two"]}, [1, 2], Tagged("f", 0.5),
]  # fmt: skip

texts = st.one_of(st.none(), st.sampled_from(["", "text/plain", "a rather long short string"]))
headers = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=5)
properties = st.builds(
    Properties,
    content_type=texts,
    content_encoding=texts,
    headers=st.one_of(st.none(), headers),
    delivery_mode=st.sampled_from([None, 1, 2]),
    priority=st.sampled_from([None, 0, 9]),
    correlation_id=texts,
    reply_to=texts,
    expiration=st.sampled_from([None, "60000"]),
    message_id=texts,
    timestamp=st.sampled_from([None, 0, 1_700_000_000]),
    type=texts,
    user_id=texts,
    app_id=texts,
    cluster_id=texts,
)
good = properties.map(encode_properties)
torn = st.tuples(good, st.integers(0, 300)).map(lambda pair: pair[0][: pair[1]])
bent = st.tuples(good, st.integers(0, 300), st.integers(0, 255)).map(
    lambda it: it[0][: it[1]] + bytes((it[2],)) + it[0][it[1] + 1 :]
)


def check(strings):
    found = amqp_maps(pa.array(strings, pa.binary()))
    assert found.to_pylist() == [list(amqp_properties(each).items()) for each in strings]
    assert found.type == maps_of([]).type
    found.validate(full=True)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(good, good, torn, bent), max_size=12))
def test_a_column_of_headers_is_read_as_single_headers_are(strings):
    check(strings)


@pytest.mark.parametrize(
    "strings",
    [
        [],
        [b"", b""],
        [b"\0"],
        [b"\0\0", b"\0\x01", b"\xff\xff"],
        [b"\x20\0\0\0\0\x09" + b"\x01a" + b"S\0\0\0\xff" + b"x"],
        [encode_properties(Properties(headers={"a": 1})).replace(b"\x01a", b"\x01\xff")],
    ],
    ids=["none", "empty", "half a flag", "flags only", "a text too long", "a name of no text"],
)
def test_bytes_that_are_no_header_are_a_message_without_properties(strings):
    check(strings)


def test_names_that_come_twice_and_long_tables_are_read_too(monkeypatch):
    monkeypatch.setattr(module, "ENTRIES_MAX", 3)
    entry = b"\x01a" + b"S\0\0\0\x01"
    table = entry + b"1" + b"\x01b" + b"t\x01" + entry + b"2"
    twice = b"\x20\0" + len(table).to_bytes(4, "big") + table
    long = encode_properties(Properties(headers={f"h{number}": number for number in range(9)}))
    check([twice, long, encode_properties(Properties(app_id="x"))])
    assert amqp_maps(pa.array([twice])).to_pylist() == [[("a", "2"), ("b", "true")]]


def test_the_id_of_a_message_is_a_property_unless_a_header_has_that_name():
    both = Properties(headers={"message_id": "mine", "n": 1}, message_id="theirs", priority=3)
    strings = [encode_properties(Properties(message_id="m-1")), encode_properties(both)]
    assert amqp_maps(pa.array(strings)).to_pylist() == [
        [("message_id", "m-1")],
        [("message_id", "mine"), ("n", "1"), ("amqp.priority", "3")],
    ]


def test_a_slice_of_a_column_of_headers_is_read_as_well():
    strings = [encode_properties(Properties(headers={"n": n})) for n in range(3)]
    column = pa.array(strings, pa.binary()).slice(1, 1)
    assert amqp_maps(column).to_pylist() == [[("n", "1")]]
