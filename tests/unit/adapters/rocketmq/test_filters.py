"""Filters are built once, kept in bounds, and judge every protocol's messages."""

import pytest

from penstock.adapters.rocketmq.filters import FILTERS_MAX, Filters, language_of
from penstock.model.errors import SelectorInvalid
from penstock.model.record import Wire, neutral_record, tag_hash
from penstock.testing.rocketmq_bench import RocketmqBench
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import stored_record


@pytest.fixture
def filters():
    return RocketmqBench().house.part(Filters)


def message(**properties):
    return stored_record("orders", 0, b"", format_properties(properties))


def test_nothing_said_means_tags():
    assert [language_of(each) for each in (None, "", "TAG", "SQL92", "Sql92")] == [
        "tag", "tag", "tag", "sql92", "sql92",
    ]  # fmt: skip


def test_everything_needs_no_filter(filters):
    assert filters.build("*", "tag") is None
    assert filters.build("", "tag") is None


@pytest.mark.parametrize(("text", "language"), [("A || B", "tag"), ("a > 1", "sql92")])
def test_the_same_text_gives_the_same_filter(filters, text, language):
    assert filters.build(text, language) is filters.build(text, language)


def test_filters_are_bounded_and_the_used_ones_stay(filters):
    used = filters.build("used", "tag")
    for number in range(FILTERS_MAX * 2):
        filters.build(f"t{number}", "tag")
        filters.build("used", "tag")
    assert len(filters) == FILTERS_MAX
    assert filters.build("used", "tag") is used


def test_a_wrong_expression_is_an_error_each_time(filters):
    for _ in range(2):
        with pytest.raises(SelectorInvalid):
            filters.build("a >", "sql92")
        with pytest.raises(SelectorInvalid, match="TAG or SQL92"):
            filters.build("x", "regex")


@pytest.mark.parametrize(
    ("tag", "code"), [("TagA", 2598919), ("TagB", 2598920), ("hello", 99162322), ("", 0)]
)
def test_tag_codes_are_javas(tag, code):
    assert tag_hash(tag.encode()) == code


def test_two_tags_of_one_code_are_told_apart_by_the_string(filters):
    assert tag_hash(b"Aa") == tag_hash(b"BB")
    chosen = filters.build("Aa", "tag")
    assert chosen.matches_entry(tag_hash(b"BB"))
    assert not chosen.matches_record(message(TAGS="BB"))
    assert chosen.matches_record(message(TAGS="Aa"))


def test_a_selector_may_name_rocketmqs_own_properties(filters):
    chosen = filters.build("TAGS = 'A' AND KEYS IS NOT NULL", "sql92")
    assert chosen.matches_record(message(TAGS="A", KEYS="k"))
    assert not chosen.matches_record(message(TAGS="A"))


def test_a_message_of_another_protocol_has_its_tag(filters):
    chosen = filters.build("TAGS = 'A'", "sql92")
    assert chosen.matches_record(neutral_record(b"x", tag=b"A"))
    assert not chosen.matches_record(neutral_record(b"x"))


def test_a_message_of_another_protocol_has_the_properties_its_reader_finds():
    class Reader:
        def keys(self, record):
            return []

        def properties(self, record):
            return {"colour": "red"}

    bench = RocketmqBench()
    bench.engine.facts = {int(Wire.AMQP): Reader()}
    record = neutral_record(b"x")
    record.reshape(wire=int(Wire.AMQP))
    assert Filters(bench.house).build("colour = 'red'", "sql92").matches_record(record)
