"""Records: spans into the origin bytes, and the tag hash that index entries carry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import record as record_module
from penstock.model.record import Record, RecordFlag, Shape, neutral_record, tag_hash


@given(st.binary(), st.binary(), st.binary(), st.binary())
def test_a_neutral_record_gives_back_its_parts(body, properties, key, tag):
    record = neutral_record(body, properties=properties, key=key, tag=tag)
    assert (record.body, record.properties) == (body, properties)
    assert (record.key, record.tag) == (key, tag)


def test_a_record_without_spans_has_empty_facts():
    record = Record(b"whatever the protocol sent")
    assert (record.key, record.tag, record.properties, record.body) == (b"", b"", b"", b"")


def test_a_new_record_has_no_position_yet():
    assert neutral_record(b"x").position == -1


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (0, False),
        (RecordFlag.DELAYED | RecordFlag.COMPRESSED, False),
        (RecordFlag.TRANSIENT, True),
        (RecordFlag.TRANSIENT | RecordFlag.DELAYED, True),
    ],
)
def test_a_record_is_transient_by_its_flag(flags, expected):
    assert Record(b"", Shape(flags=int(flags))).is_transient is expected


# What Java prints for "...".hashCode(); the last one is a surrogate pair.
@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("hello world", 1794106052),
        ("polygenelubricants", -2147483648),
        ("\U0001f600", 1772899),
    ],
)
def test_a_tag_hash_is_that_of_a_java_string(tag, expected):
    assert tag_hash(tag.encode()) == expected


@given(st.binary(max_size=200))
def test_a_tag_hash_fits_a_signed_32_bit_field(tag):
    assert -(1 << 31) <= tag_hash(tag) < 1 << 31


def java_hash(text):
    value = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + 256 * high + low) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_tag_of_any_length_is_hashed_as_java_does_it(tag):
    assert tag_hash(tag.encode()) == java_hash(tag)
    assert tag_hash(tag.encode() * 5) == java_hash(tag * 5)


def test_long_tags_are_hashed_without_being_remembered():
    before = record_module._short_tag_hash.cache_info().currsize
    assert tag_hash(b"y" * 65535) == java_hash("y" * 65535)
    assert tag_hash(b"y" * (record_module.TAG_CACHED_BYTES_MAX + 1))
    assert record_module._short_tag_hash.cache_info().currsize == before
    tag_hash(b"never seen before" * 7)
    assert record_module._short_tag_hash.cache_info().currsize == min(before + 1, 4096)
