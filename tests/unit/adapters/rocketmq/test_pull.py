"""Pulls: what is given out, in which pieces, and what is said when there is nothing."""

import dataclasses
import random

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench, bodies, messages
from penstock.adapters.rocketmq.group_registry import OffsetRegistry
from penstock.adapters.rocketmq.naming import OFFSET_MOVED_TOPIC
from penstock.adapters.rocketmq.pull import EVENTS_BURST, OffsetMovedReporter
from penstock.flow.diagnosis import diagnose
from penstock.model.names import topic_name
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.bodies import decode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Serialization
from penstock.wire.rocketmq.frames import encode

NOT_FOUND = ResponseCode.PULL_NOT_FOUND
AGAIN = ResponseCode.PULL_RETRY_IMMEDIATELY
MOVED = ResponseCode.PULL_OFFSET_MOVED


def bench_with(**changes):
    return RocketmqBench(Settings(rocketmq=dataclasses.replace(RocketmqSettings(), **changes)))


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def consumer(bench):
    return BenchConsumer.on(bench)


@pytest.fixture
def producer(bench):
    return bench.client()


def fill(producer, count, topic="orders", **properties):
    for number in range(count):
        assert producer.send(topic, b"m%d" % number, **properties).code == 0


def trim(bench, offset, topic="orders"):
    """Retention took everything below."""
    bench.broker.topics.find(topic).topic.queues[0].index.trim(offset)


def ext(answer):
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    return tuple(int(answer.ext[name]) for name in names)


# Found.


def test_a_pull_gives_the_stored_bytes_as_they_lie_in_the_log(bench, producer, consumer):
    fill(producer, 3, KEYS="k")
    answer = consumer.pull("orders")
    assert (answer.code, answer.remark) == (0, "FOUND")
    topic = bench.broker.topics.find("orders").topic
    assert answer.body == b"".join(record.origin for record in bench.records(topic))
    assert ext(answer) == (3, 0, 3)
    assert answer.ext["suggestWhichBrokerId"] == "0"
    assert [each.queue_offset for each in messages(answer)] == [0, 1, 2]


def test_a_lite_pull_is_a_pull(producer, consumer):
    fill(producer, 1)
    request = {
        "consumerGroup": GROUP,
        "topic": "orders",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "10",
        "sysFlag": str(16 + 4),
        "subscription": "*",
    }
    assert bodies(consumer.ask(RequestCode.LITE_PULL_MESSAGE, request)) == [b"m0"]


def test_numbers_may_be_numbers_and_the_answer_is_binary_for_binary_requests(
    bench, producer, consumer
):
    fill(producer, 1)
    request = Command(
        11,
        {
            "consumerGroup": GROUP,
            "topic": "orders",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "subscription": "*",
        },
        opaque=77,
        serialization=Serialization.BINARY,
    )
    consumer.session.receive(encode(request))
    answer = consumer.answer_to(77)
    assert answer.serialization == Serialization.BINARY
    assert answer.remark == "FOUND"
    assert ext(answer) == (1, 0, 1)
    assert bodies(answer) == [b"m0"]


def test_a_oneway_pull_is_never_answered_nor_held(bench, consumer, producer):
    fill(producer, 1)
    request = {"consumerGroup": GROUP, "topic": "orders", "queueId": "0", "queueOffset": "1"}
    request |= {"sysFlag": "6", "suspendTimeoutMillis": "15000", "subscription": "*"}
    opaque = consumer.write(11, request, is_oneway=True)
    assert len(bench.engine.pulls) == 0
    bench.advance(20_000)
    assert consumer.answer_to(opaque) is None


def test_at_most_32_messages_in_memory(producer, consumer):
    fill(producer, 40)
    answer = consumer.pull("orders", maxMsgNums=1024)
    assert len(messages(answer)) == 32
    assert ext(answer) == (32, 0, 40)


def test_no_more_messages_than_asked_for_and_at_least_one(producer, consumer):
    fill(producer, 5)
    assert len(messages(consumer.pull("orders", maxMsgNums=2))) == 2
    assert len(messages(consumer.pull("orders", maxMsgNums=0))) == 1
    assert len(messages(consumer.pull("orders", maxMsgNums=-1))) == 1


def test_at_most_256_kib_in_memory_but_one_message_always(producer, consumer):
    for _ in range(3):
        producer.send("orders", bytes(100 * 1024))
    producer.send("large", bytes(300 * 1024))
    assert len(messages(consumer.pull("orders"))) == 2
    assert len(messages(consumer.pull("large"))) == 1


def test_a_client_may_ask_for_fewer_bytes(producer, consumer):
    for _ in range(3):
        producer.send("orders", bytes(1000))
    assert len(messages(consumer.pull("orders", maxMsgBytes=3000))) == 2
    assert len(messages(consumer.pull("orders", maxMsgBytes=0))) == 3


def test_at_most_8_messages_and_64_kib_from_disk():
    bench = bench_with(resident_bytes=4096)
    producer, consumer = bench.client(), BenchConsumer.on(bench)
    fill(producer, 60)
    answer = consumer.pull("orders")
    assert len(messages(answer)) == 8
    assert len(messages(consumer.pull("orders", 50))) == 10  # the newest are still in memory
    for _ in range(3):
        producer.send("large", bytes(40 * 1024))
    assert len(messages(consumer.pull("large"))) == 1


def test_the_defaults_are_rocketmqs():
    settings = RocketmqSettings()
    assert (settings.pull_messages_max, settings.pull_bytes_max) == (32, 262_144)
    assert (settings.pull_disk_messages_max, settings.pull_disk_bytes_max) == (8, 65_536)
    assert settings.is_long_polling
    assert settings.short_polling_ms == 1_000


def test_nothing_is_shown_before_it_is_durable(bench, consumer, producer):
    fill(producer, 1)
    producer.write(
        10, {"producerGroup": "p", "topic": "orders", "queueId": "0", "properties": ""}, b"m1"
    )
    bench.turns()  # appended, not synced
    consumer.write(
        11,
        {
            "consumerGroup": GROUP,
            "topic": "orders",
            "queueId": "0",
            "queueOffset": "0",
            "sysFlag": "4",
            "subscription": "*",
        },
    )
    assert bodies(consumer.answer_to(consumer._opaque)) == [b"m0"]


def test_a_delayed_message_is_shown_at_the_place_it_was_released_to(bench, producer, consumer):
    fill(producer, 1)
    producer.send("orders", b"late", DELAY="1")
    fill(producer, 1)
    bench.advance(1_500)
    found = messages(consumer.pull("orders"))
    assert [(each.body, each.queue_offset, each.topic) for each in found] == [
        (b"m0", 0, "orders"),
        (b"m0", 1, "orders"),
        (b"late", 2, "orders"),
    ]
    assert all(each.is_intact for each in found)


def test_messages_of_other_protocols_are_presented(bench, consumer):
    topic = bench.topic("orders")
    bench.publish(bench.channel(), topic, b"neutral")
    bench.settle()
    (message,) = messages(consumer.pull("orders"))
    assert (message.topic, message.body, message.queue_offset) == ("orders", b"neutral", 0)


# Statuses.


def test_no_message_in_queue_at_offset_0_is_not_found(bench, consumer):
    bench.topic("orders")
    answer = consumer.pull("orders", 0)
    assert (answer.code, answer.remark) == (NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    assert ext(answer) == (0, 0, 0)


@pytest.mark.parametrize("offset", [-1, 1, 100])
def test_no_message_in_queue_at_another_offset_is_moved_to_0(bench, consumer, offset):
    bench.topic("orders")
    answer = consumer.pull("orders", offset)
    assert (answer.code, answer.remark) == (MOVED, "NO_MESSAGE_IN_QUEUE")
    assert ext(answer)[0] == 0


def test_offset_overflow_one_is_not_found_and_stays(producer, consumer):
    fill(producer, 2)
    answer = consumer.pull("orders", 2)
    assert (answer.code, answer.remark) == (NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    assert ext(answer) == (2, 0, 2)


def test_offset_overflow_badly_is_moved_to_the_end(producer, consumer):
    fill(producer, 2)
    answer = consumer.pull("orders", 3)
    assert (answer.code, answer.remark) == (MOVED, "OFFSET_OVERFLOW_BADLY")
    assert ext(answer) == (2, 0, 2)


def test_offset_too_small_is_moved_to_the_oldest(bench, producer, consumer):
    fill(producer, 5)
    trim(bench, 3)
    answer = consumer.pull("orders", 1)
    assert (answer.code, answer.remark) == (MOVED, "OFFSET_TOO_SMALL")
    assert ext(answer) == (3, 3, 5)
    negative = consumer.pull("orders", -1)
    assert (negative.code, negative.remark) == (MOVED, "OFFSET_TOO_SMALL")


def test_no_matched_message_goes_on_behind_what_was_looked_at(producer, consumer):
    fill(producer, 3, TAGS="A")
    answer = consumer.pull("orders", subscription="B")
    assert (answer.code, answer.remark) == (AGAIN, "NO_MATCHED_MESSAGE")
    assert ext(answer) == (3, 0, 3)


def test_a_scan_looks_at_800_entries_at_most(bench, consumer):
    topic = bench.topic("orders")
    bench.publish(bench.channel(), topic, *[b"x"] * 1000)
    bench.settle()
    answer = consumer.pull("orders", subscription="B")
    assert (answer.remark, ext(answer)[0]) == ("NO_MATCHED_MESSAGE", 800)


def test_a_message_that_cannot_be_read_was_removing(bench, producer, consumer, monkeypatch):
    fill(producer, 2)
    monkeypatch.setattr(bench.store, "read", lambda wanted: [None] * len(wanted))
    answer = consumer.pull("orders")
    assert (answer.code, answer.remark) == (AGAIN, "MESSAGE_WAS_REMOVING")
    assert ext(answer)[0] == 2


def test_a_hole_in_the_index_is_offset_found_null(bench, producer, consumer):
    fill(producer, 2)
    queue = bench.broker.topics.find("orders").topic.queues[0]
    queue.index.lift(9)
    queue.durable_end = 9
    answer = consumer.pull("orders", 5)
    assert (answer.code, answer.remark) == (NOT_FOUND, "OFFSET_FOUND_NULL")
    assert ext(answer)[0] == 9


def test_a_queue_deleted_under_a_held_pull_is_no_matched_logic_queue(bench, producer, consumer):
    fill(producer, 1)
    opaque = consumer.start_pull("orders", 1, suspend_ms=15_000)
    bench.engine.delete_topic(topic_name("orders"))
    bench.settle()
    answer = consumer.answer_to(opaque)
    assert (answer.code, answer.remark) == (MOVED, "NO_MATCHED_LOGIC_QUEUE")
    assert ext(answer)[0] == 0


# Corrections as events.


def test_a_corrected_offset_is_logged_counted_and_written(bench, producer, consumer, caplog):
    fill(producer, 2)
    consumer.pull("orders", 9)
    bench.settle()
    events = bench.broker.service(OffsetMovedReporter)
    assert events.counts == {"OFFSET_OVERFLOW_BADLY": 1}
    assert "PULL_OFFSET_MOVED" in caplog.text
    (event,) = bench.stored(OFFSET_MOVED_TOPIC)
    assert event.property_map() == {"TAGS": GROUP, "KEYS": GROUP}
    assert decode_body(event.body, dict) == {
        "consumerGroup": GROUP,
        "messageQueue": {
            "topic": "orders",
            "brokerName": bench.broker.broker_name,
            "queueId": 0,
        },
        "offsetRequest": 9,
        "offsetNew": 2,
    }


def test_a_stubborn_client_writes_few_events(bench, producer, consumer):
    fill(producer, 1)
    for _ in range(EVENTS_BURST + 20):
        consumer.pull("orders", 9)
    assert len(bench.stored(OFFSET_MOVED_TOPIC)) == EVENTS_BURST
    events = bench.broker.service(OffsetMovedReporter)
    assert (events.counts["OFFSET_OVERFLOW_BADLY"], events.unwritten) == (EVENTS_BURST + 20, 20)


def test_events_can_be_turned_off():
    bench = bench_with(is_telling_offset_moves=False)
    bench.topic("orders")
    BenchConsumer.on(bench).pull("orders", 9)
    assert bench.broker.topics.find(OFFSET_MOVED_TOPIC) is None


# The committed offset that comes along.


def test_a_pull_commits_the_offset_it_brings(bench, producer, consumer):
    fill(producer, 5)
    consumer.pull("orders", 4, commit=3)
    assert consumer.query("orders").ext["offset"] == "3"


def test_without_its_flag_the_offset_is_not_committed(bench, producer, consumer):
    fill(producer, 5)
    consumer.pull("orders", 4, commitOffset=3)
    queue = bench.broker.topics.find("orders").topic.queues[0]
    assert bench.broker.service(OffsetRegistry).committed(queue, GROUP) == -1


def test_a_held_pull_commits_on_its_first_pass_only(bench, producer, consumer):
    fill(producer, 5)
    opaque = consumer.start_pull("orders", 5, commit=5, suspend_ms=15_000)
    assert consumer.query("orders").ext["offset"] == "5"
    consumer.commit("orders", 2)
    fill(producer, 1)
    assert consumer.answer_to(opaque).code == 0
    assert consumer.query("orders").ext["offset"] == "2"


def test_any_interleaving_of_sends_and_pulls_gives_each_message_once_in_order(bench, consumer):
    dice = random.Random(7)
    producer = bench.client()
    bench.topic("orders")
    seen, sent, offset = [], 0, 0
    for _ in range(200):
        if dice.random() < 0.5:
            producer.send("orders", b"%d" % sent)
            sent += 1
        answer = consumer.pull("orders", offset, maxMsgNums=dice.randrange(1, 4))
        offset = ext(answer)[0]
        seen += bodies(answer)
    while len(seen) < sent:
        answer = consumer.pull("orders", offset)
        offset = ext(answer)[0]
        seen += bodies(answer)
    assert seen == [b"%d" % number for number in range(sent)]


def asked(bench):
    found = bench.engine.flow_map(bench.clock.monotonic_ms())
    return diagnose(found.views)


def test_a_group_with_a_live_member_is_never_said_to_have_nobody():
    bench = RocketmqBench()
    client = BenchConsumer.on(bench)
    for _ in range(5):
        bench.client().send("TopicTest")
    client.heartbeat(TopicTest="*")
    client.commit("TopicTest", 0)
    client.pull("TopicTest")
    assert asked(bench).severity == "ok"
    bench.advance(10_000)
    found = asked(bench)
    assert (found.severity, found.cause) == ("behind", "does-not-ask")
    assert found.culprit.name == client.client_id
    client.heartbeat(TopicTest="*")
    bench.advance(25_000)
    assert asked(bench).cause == "stopped-pulling"
    client.commit("TopicTest", 5)
    assert asked(bench).severity == "ok"
