"""Field tables: every tag of the sheet, both ways."""

from decimal import Decimal

import pytest

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import (
    TABLE_DEPTH_MAX,
    Tagged,
    Timestamp,
    decode_entries,
    decode_table,
    encode_table,
    encode_value,
    join_table,
    split_table,
    text_spans,
)

VALUES = [
    (b"t\x01", True, "t"),
    (b"t\x00", False, "t"),
    (b"b\xff", -1, "b"),
    (b"B\xff", 255, "B"),
    (b"s\xff\xfe", -2, "s"),
    (b"u\xff\xfe", 65534, "u"),
    (b"I\xff\xff\xff\xfd", -3, "I"),
    (b"i\xff\xff\xff\xfd", 4294967293, "i"),
    (b"l" + b"\xff" * 8, -1, "l"),
    (b"L" + b"\xff" * 8, -1, "L"),
    (b"f\x3f\x80\x00\x00", 1.0, "f"),
    (b"d\x3f\xf0" + bytes(6), 1.0, "d"),
    (b"D\x02\x00\x00\x01\x3a", Decimal("3.14"), "D"),
    (b"S\x00\x00\x00\x03abc", "abc", "S"),
    (b"x\x00\x00\x00\x02\x00\xff", b"\x00\xff", "x"),
    (b"T" + bytes(7) + b"\x05", Timestamp(5), "T"),
    (b"V", None, "V"),
    (b"F\x00\x00\x00\x04\x01at\x01", {"a": True}, "F"),
    (b"A\x00\x00\x00\x03t\x01V", [True, None], "A"),
]


def raw_table(value):
    body = b"\x01k" + value
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(("raw", "value", "tag"), VALUES, ids=[f"{v[2]}{v[1]}" for v in VALUES])
def test_each_tag_is_read_and_written(raw, value, tag):
    found, end = decode_table(raw_table(raw))
    assert found == {"k": value}
    assert type(found["k"]) is type(value)
    assert end == len(raw) + 6
    assert encode_value(Tagged(tag, value)) == raw


def test_values_are_written_as_rabbitmq_writes_them():
    table = {"a": 1, "b": "x", "c": 1.5, "d": True, "e": Timestamp(1), "f": b"y", "g": (1,)}
    tags = [chr(value[0]) for _, value in split_table(encode_table(table))]
    assert tags == ["l", "S", "d", "t", "T", "x", "A"]


def test_text_that_is_not_utf_8_is_written_back_as_it_was():
    raw = raw_table(b"S\x00\x00\x00\x02\xff\xfe")
    assert encode_table(decode_table(raw)[0]) == raw


def test_a_table_can_be_split_changed_and_joined_without_reading_its_values():
    raw = encode_table({"a": Tagged("I", 1), "b": {"c": [1]}, "d": "e"})
    entries = split_table(raw)
    assert [name for name, _ in entries] == [b"a", b"b", b"d"]
    assert join_table(entries) == raw
    assert decode_table(join_table(entries[1:]))[0] == {"b": {"c": [1]}, "d": "e"}


def test_amqplain_is_a_table_without_its_length():
    raw = encode_table({"LOGIN": "guest", "PASSWORD": "secret"})
    assert decode_entries(raw, 4, len(raw)) == {"LOGIN": "guest", "PASSWORD": "secret"}


def test_text_spans_point_at_text_also_in_nested_tables():
    raw = encode_table({"a": "first", "b": {"c": ["second"]}, "n": 5})
    texts, names, end = text_spans(raw, 0, len(raw))
    assert [raw[at:end] for at, end in texts] == [b"first", b"second"]
    assert list(names) == [b"a", b"b", b"n"]
    assert end == len(raw)
    assert raw[slice(*names[b"a"])] == b"S\x00\x00\x00\x05first"


READERS = [decode_table, split_table, lambda raw: text_spans(raw, 0, len(raw))]


def nested(depth):
    raw = b"V"
    for _ in range(depth):
        raw = b"F" + raw_table(raw)
    return raw_table(raw)


@pytest.mark.parametrize("reader", READERS)
def test_nesting_has_a_limit(reader):
    reader(nested(TABLE_DEPTH_MAX))
    for depth in (TABLE_DEPTH_MAX + 1, 10_000):
        with pytest.raises(AmqpError, match="nested") as caught:
            reader(nested(depth))
        assert caught.value.code is ReplyCode.SYNTAX_ERROR


def test_nesting_has_the_same_limit_on_the_way_out():
    table = deep = {}
    for _ in range(TABLE_DEPTH_MAX):
        deep["k"] = deep = {}
    decode_table(encode_table(table))
    for inner in ({}, []):
        deep["k"] = inner
        with pytest.raises(AmqpError, match="nested"):
            encode_table(table)


@pytest.mark.parametrize("reader", READERS)
def test_a_table_cut_at_any_byte_is_refused(reader):
    raw = encode_table({"a": 1, "b": ["x", {"c": Decimal("1.5")}], "d": b"y", "e": None})
    for size in range(len(raw)):
        with pytest.raises(AmqpError):
            reader(raw[:size])
        # The same with a length that is true and entries that are not.
        if size >= 5 and raw[4:size] not in starts(raw):
            with pytest.raises(AmqpError):
                reader((size - 4).to_bytes(4, "big") + raw[4:size])


def starts(raw):
    """Entries up to each whole one."""
    entries = split_table(raw)
    return [join_table(entries[:count])[4:] for count in range(len(entries) + 1)]


@pytest.mark.parametrize(
    "value",
    [
        object(), Tagged("I", "x"), Tagged("?", 1), Tagged("S", 5), Tagged("V", 1),
        Tagged("f", 1e99),
        1 << 63, Decimal("-1"), Decimal("NaN"), Decimal(1 << 40), "\ud800", Tagged("ab", 1),
    ],
)  # fmt: skip
def test_what_no_tag_can_carry_is_refused(value):
    with pytest.raises(AmqpError):
        encode_value(value)


def test_an_unknown_tag_is_refused():
    with pytest.raises(AmqpError, match="unknown type 'Z'"):
        decode_table(raw_table(b"Z\x00"))


def test_a_name_longer_than_a_short_string_is_refused():
    with pytest.raises(AmqpError, match="256 bytes"):
        encode_table({"a" * 256: 1})
