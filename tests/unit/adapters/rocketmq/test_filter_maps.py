"""Bit maps spare reading and change nothing."""

import dataclasses
import random

import pytest

from penstock.adapters.rocketmq.filter_maps import FilterMaps, map_name
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.testing.rocketmq_bench import RocketmqBench
from penstock.testing.rocketmq_consumer import GROUP, BenchConsumer, bodies


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
    assert bench.house.part(FilterMaps).maps is None


@pytest.mark.parametrize("ending", ["other selector", "topic dropped", "group forgotten"])
def test_a_registration_ends_with_its_subscription(ending):
    bench, consumer, producer = opened(is_on=True)
    consumer.heartbeat(orders="size > 5", language="SQL92")
    read_all(consumer)
    producer.send("orders", b"x", size="9")
    maps = bench.house.part(FilterMaps).maps
    queue_id = bench.house.topics.find("orders").topic.queues[0].queue_id
    assert maps.judge(map_name(GROUP, "orders"), queue_id) is not None
    if ending == "other selector":
        consumer.heartbeat(orders="size > 6", language="SQL92", version=2)
    elif ending == "topic dropped":
        consumer.heartbeat(others="*", version=2)
    else:
        consumer.close()
        bench.advance(700_000)
    assert maps.judge(map_name(GROUP, "orders"), queue_id) is None


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
