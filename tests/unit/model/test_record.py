"""Records: spans into the origin bytes, and the tag hash that index entries carry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.record import Record, RecordFlag, neutral_record, tag_hash


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
    assert Record(b"", flags=int(flags)).is_transient is expected


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
