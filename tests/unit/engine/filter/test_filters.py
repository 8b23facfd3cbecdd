"""Tag filters: the hash first, the tag after."""

import pytest

from penstock.engine.filter.filters import (
    EXPRESSION_CHARS_MAX,
    TAGS_MAX,
    ChosenFilter,
    TagFilter,
    parse_tags,
    tag_filter,
)
from penstock.model.errors import SelectorInvalid
from penstock.model.record import neutral_record, tag_hash


def wants(expression, tag):
    """What a reader does: the index entry first, the record after."""
    filter_ = tag_filter(expression)
    if filter_ is None:
        return True
    hashed = tag_hash(tag.encode())
    return filter_.matches_entry(hashed) and filter_.matches_record(
        neutral_record(b"body", tag=tag.encode())
    )


@pytest.mark.parametrize("expression", ["*", "", " * ", "  "])
def test_a_star_or_nothing_wants_every_message_with_or_without_a_tag(expression):
    assert tag_filter(expression) is None


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", {"TagA"}),
        ("TagA || TagB", {"TagA", "TagB"}),
        ("TagA||TagB||", {"TagA", "TagB"}),
        ("  A  ||B || A", {"A", "B"}),
        ("A | B", {"A | B"}),
        ("A || *", {"A", "*"}),
    ],
)
def test_tags_are_separated_by_two_bars_and_trimmed(expression, tags):
    assert parse_tags(expression) == tags


@pytest.mark.parametrize("expression", ["||", " || ", "||||"])
def test_an_expression_that_names_no_tag_is_refused(expression):
    with pytest.raises(SelectorInvalid, match="names no tag"):
        parse_tags(expression)


def test_the_hashes_in_the_index_are_those_that_clients_compute():
    assert [tag_hash(tag) for tag in (b"TagA", b"TagB", b"hello", b"")] == [
        2598919,
        2598920,
        99162322,
        0,
    ]


def test_only_named_tags_match():
    assert wants("TagA || TagB", "TagB")
    assert not wants("TagA || TagB", "TagC")
    assert not wants("TagA", "taga")


def test_a_message_without_a_tag_matches_no_named_tag():
    assert not wants("TagA", "")
    assert not TagFilter(frozenset({"TagA"})).matches_record(neutral_record(b"body"))


def test_two_tags_with_one_hash_are_told_apart_once_the_record_is_read():
    assert tag_hash(b"Aa") == tag_hash(b"BB")
    assert TagFilter(frozenset({"Aa"})).matches_entry(tag_hash(b"BB"))
    assert not wants("Aa", "BB")
    assert wants("Aa || BB", "BB")


def test_too_many_tags_and_too_long_expressions_are_refused_with_the_limit():
    assert len(parse_tags("||".join(map(str, range(TAGS_MAX))))) == TAGS_MAX
    with pytest.raises(SelectorInvalid, match=str(TAGS_MAX)):
        parse_tags("||".join(map(str, range(TAGS_MAX + 1))))
    with pytest.raises(SelectorInvalid, match=str(EXPRESSION_CHARS_MAX)):
        parse_tags("x" * (EXPRESSION_CHARS_MAX + 1))


# ---- chosen -------------------------------------------------------------------------------------
# Filters chosen by the message's origin.


BY_ORIGIN = {b"orders": tag_filter("A"), b"bills": tag_filter("B")}


def chosen():
    return ChosenFilter(lambda record: BY_ORIGIN.get(record.key))


def test_each_message_is_judged_by_the_filter_of_its_origin():
    wants = chosen().matches_record
    assert wants(neutral_record(b"", key=b"orders", tag=b"A"))
    assert not wants(neutral_record(b"", key=b"orders", tag=b"B"))
    assert wants(neutral_record(b"", key=b"bills", tag=b"B"))


def test_a_message_without_a_filter_passes():
    assert chosen().matches_record(neutral_record(b"", key=b"elsewhere", tag=b"Z"))


def test_nothing_is_refused_before_it_is_read():
    assert chosen().matches_entry(12345)
