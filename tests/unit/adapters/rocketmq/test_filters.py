"""Filters are built once, kept in bounds, and judge every protocol's messages."""

import dataclasses
import random

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench, bodies
from penstock.adapters.rocketmq.filters import (
    FILTERS_MAX,
    FilterBitMaps,
    FilterCache,
    language_of,
    map_name,
)
from penstock.model.errors import SelectorInvalid
from penstock.model.record import Wire, neutral_record, tag_hash
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import stored_record


@pytest.fixture
def filters():
    return RocketmqBench().broker.service(FilterCache)


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
    assert FilterCache(bench.broker).build("colour = 'red'", "sql92").matches_record(record)


# ---- filter maps --------------------------------------------------------------------------------
# Bit maps spare reading and change nothing.


def opened(*, is_on, **others):
    settings = dataclasses.replace(RocketmqSettings(), is_bit_mapping=is_on, **others)
    bench = RocketmqBench(Settings(rocketmq=settings))
    consumer = BenchConsumer.on(bench)
    bench.topic("orders")
    return bench, consumer, bench.client()


def read_all(consumer, **others):
    offset, found = 0, []
    while True:
        answer = consumer.pull("orders", offset, subscription=None, **others)
        if answer.code == 19:
            return found
        found += bodies(answer)
        offset = int(answer.ext["nextBeginOffset"])


def story(is_on):
    """Messages before the selector is known, under it, and under another one."""
    bench, consumer, producer = opened(is_on=is_on)
    dice = random.Random(3)
    seen = []
    for version, selector in enumerate(("size > 5", "size > 5", "size < 3 OR colour = 'red'"), 1):
        consumer.heartbeat(orders=selector, language="SQL92", version=version)
        for number in range(40):
            properties = {"size": str(dice.randrange(10))}
            if dice.random() < 0.3:
                properties["colour"] = dice.choice(("red", "blue"))
            producer.send("orders", b"%d-%d" % (version, number), **properties)
        seen.append(read_all(consumer))
    return bench, seen


def test_the_same_messages_with_and_without():
    assert story(is_on=True)[1] == story(is_on=False)[1]


def test_what_a_map_refuses_is_not_read(monkeypatch):
    bench, consumer, producer = opened(is_on=True)
    consumer.heartbeat(orders="size > 5", language="SQL92")
    assert read_all(consumer) == []  # registered with the first pull
    for size in ("1", "9", "2"):
        producer.send("orders", size.encode(), size=size)
    asked = []
    read = bench.store.read

    def counted(wanted):
        asked.extend(wanted)
        return read(wanted)

    monkeypatch.setattr(bench.store, "read", counted)
    assert read_all(consumer) == [b"9"]
    assert len(asked) == 1


def test_without_the_setting_nothing_is_mapped():
    bench, consumer, _ = opened(is_on=False)
    consumer.heartbeat(orders="size > 5", language="SQL92")
    read_all(consumer)
    assert bench.broker.service(FilterBitMaps).maps is None


@pytest.mark.parametrize("ending", ["other selector", "topic dropped", "group forgotten"])
def test_a_registration_ends_with_its_subscription(ending):
    bench, consumer, producer = opened(is_on=True)
    consumer.heartbeat(orders="size > 5", language="SQL92")
    read_all(consumer)
    producer.send("orders", b"x", size="9")
    maps = bench.broker.service(FilterBitMaps).maps
    queue_id = bench.broker.topics.find("orders").topic.queues[0].queue_id
    assert maps.prefilter(map_name(GROUP, "orders"), queue_id) is not None
    if ending == "other selector":
        consumer.heartbeat(orders="size > 6", language="SQL92", version=2)
    elif ending == "topic dropped":
        consumer.heartbeat(others="*", version=2)
    else:
        consumer.close()
        bench.advance(700_000)
    assert maps.prefilter(map_name(GROUP, "orders"), queue_id) is None


def test_an_expression_of_the_request_uses_no_map():
    _, consumer, producer = opened(is_on=True)
    consumer.heartbeat(orders="size > 5", language="SQL92")
    read_all(consumer)
    producer.send("orders", b"small", size="1")
    answer = consumer.pull("orders", subscription="size < 5", expressionType="SQL92")
    assert bodies(answer) == [b"small"]


def test_a_retry_topic_judged_by_origins_uses_no_map_of_its_own():
    _, consumer, producer = opened(is_on=True, is_filtering_retries=True)
    retry = f"%RETRY%{GROUP}"
    consumer.heartbeat(language="SQL92", orders="size > 5", **{retry: "size < 0"})
    consumer.pull(retry, subscription=None)
    for size in ("9", "1"):
        producer.send(retry, size.encode(), size=size, RETRY_TOPIC="orders")
    assert bodies(consumer.pull(retry, subscription=None)) == [b"9"]
