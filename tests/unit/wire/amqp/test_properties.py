"""Properties: the golden header, all fourteen, and what does not fill its header."""

import pytest
from msgspec.structs import replace

from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.properties import (
    NAMES,
    NO_PROPERTIES,
    Properties,
    decode_properties,
    edit_properties,
    encode_properties,
    locate_properties,
)
from penstock.wire.amqp.table import Tagged, encode_table

GOLDEN = bytes.fromhex("b9000a746578742f706c61696e00000004016174010203053630303030")
ALL = Properties(
    content_type="text/plain",
    content_encoding="utf-8",
    headers={"a": "b"},
    delivery_mode=2,
    priority=9,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=1_700_000_000,
    type="t",
    user_id="guest",
    app_id="app",
    cluster_id="",
)


def test_the_golden_header_both_ways():
    properties = Properties(
        content_type="text/plain",
        headers={"a": True},
        delivery_mode=2,
        priority=3,
        expiration="60000",
    )
    assert decode_properties(GOLDEN) == properties
    assert encode_properties(properties) == GOLDEN


def test_all_fourteen_use_the_bits_from_15_down_to_2():
    raw = encode_properties(ALL)
    assert raw[:2] == b"\xff\xfc"
    assert decode_properties(raw) == ALL


@pytest.mark.parametrize("name", NAMES)
def test_each_property_stands_alone(name):
    properties = Properties(**{name: getattr(ALL, name)})
    assert decode_properties(encode_properties(properties)) == properties


def test_no_properties_are_two_bytes():
    assert encode_properties(Properties()) == NO_PROPERTIES
    assert decode_properties(NO_PROPERTIES) == Properties()


def test_a_walk_finds_contents_where_they_lie():
    raw = b"in front" + encode_properties(ALL)
    spans = locate_properties(raw, 8, len(raw)).spans
    assert list(spans) == list(NAMES)
    assert raw[slice(*spans["message_id"])] == b"m"
    assert raw[slice(*spans["timestamp"])] == (1_700_000_000).to_bytes(8, "big")


def test_a_header_cut_at_any_byte_or_with_one_too_many_is_refused():
    raw = encode_properties(ALL)
    for size in range(len(raw)):
        with pytest.raises(AmqpError):
            decode_properties(raw[:size])
    with pytest.raises(AmqpError, match="too many"):
        decode_properties(raw + b"\0")


@pytest.mark.parametrize("flags", [b"\x00\x01", b"\x00\x02", b"\x80\x01"])
def test_flags_of_properties_nobody_knows_are_refused(flags):
    with pytest.raises(AmqpError, match="nobody knows"):
        decode_properties(flags + bytes(8))


@pytest.mark.parametrize(
    "properties",
    [
        Properties(message_id="m" * 256),
        Properties(priority=256),
        Properties(timestamp=-1),
        Properties(type="\ud800"),
    ],
)
def test_what_does_not_fit_is_refused(properties):
    with pytest.raises(AmqpError):
        encode_properties(properties)


def test_editing_changes_what_is_named_and_keeps_the_rest_byte_for_byte():
    raw = encode_properties(ALL)
    assert edit_properties(raw, {}) == raw
    edited = decode_properties(
        edit_properties(raw, {"expiration": None, "reply_to": b"new", "headers": bytes(4)})
    )
    expected = replace(ALL, expiration=None, reply_to="new", headers={})
    assert edited == expected
    assert edit_properties(NO_PROPERTIES, {"type": b"t"}) == encode_properties(Properties(type="t"))


def test_editing_keeps_a_table_whose_tags_we_would_write_otherwise():
    raw = b"\x20\x00" + encode_table({"a": Tagged("I", 1)})
    assert edit_properties(raw, {"message_id": b"m"})[2:-2] == raw[2:]


def test_editing_refuses_what_no_short_string_holds():
    with pytest.raises(AmqpError, match="256 bytes"):
        edit_properties(NO_PROPERTIES, {"reply_to": bytes(256)})
