import pytest

from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.properties import (
    SYSTEM_NAMES,
    format_properties,
    parse_properties,
    value_of,
    with_property,
    without_properties,
)


def test_pairs_end_with_two_and_names_with_one():
    assert (
        format_properties({"TAGS": "TagA", "a": "中"}) == b"TAGS\x01TagA\x02a\x01\xe4\xb8\xad\x02"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", {}),
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02\x02c\x01d\x02", {"a": "b", "c": "d"}),
        (b"a\x01\x02\x01b\x02c\x02", {}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
    ],
)
def test_a_pair_needs_a_name_and_a_value_and_the_last_one_wins(text, found):
    assert parse_properties(text) == found
    for name, value in found.items():
        assert value_of(text, name).decode("utf-8", "replace") == value


def test_a_value_is_found_only_under_its_whole_name():
    text = b"MYTAGS\x01no\x02KEYS\x01TAGS\x01no\x02TAGS\x01yes\x02xTAGS\x01no\x02"
    assert value_of(text, "TAGS") == b"yes"
    assert value_of(b"MYTAGS\x01no\x02", "TAGS") == b""


def test_an_empty_value_does_not_hide_an_earlier_one():
    text = b"TAGS\x01a\x02TAGS\x01\x02"
    assert value_of(text, "TAGS") == b"a"
    assert parse_properties(text) == {"TAGS": "a"}


@pytest.mark.parametrize("text", [b"", b"a\x01b\x02", b"a\x01b"])
def test_a_pair_is_added_whether_or_not_the_last_one_was_ended(text):
    assert parse_properties(with_property(text, "UNIQ_KEY", "K")) == {
        **parse_properties(text),
        "UNIQ_KEY": "K",
    }


def test_pairs_are_removed_by_name():
    text = b"DELAY\x013\x02a\x01b\x02REAL_TOPIC\x01T"
    assert without_properties(text, {"DELAY", "REAL_TOPIC"}) == b"a\x01b\x02"


@pytest.mark.parametrize(("name", "value"), [("a\x01", "b"), ("a\x02", "b"), ("a", "b\x02")])
def test_separators_in_a_pair_are_refused(name, value):
    with pytest.raises(Malformed, match="contains a separator"):
        format_properties({name: value})


def test_text_that_is_not_unicode_is_refused():
    with pytest.raises(Malformed, match="is not Unicode"):
        format_properties({"a": "\ud800"})


def test_the_systems_own_names_are_known():
    assert {"TAGS", "1ST_POP_TIME", "__CRC32#", "DLQ_ORIGIN_MESSAGE_ID"} <= SYSTEM_NAMES
