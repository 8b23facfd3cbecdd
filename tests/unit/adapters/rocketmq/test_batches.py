"""A batch of another protocol as RocketMQ's clients get it: message by message (D16)."""

import pytest

from kit.batches import WIRE, BatchFacts, batch, numbered
from kit.rocketmq.bench import BenchConsumer, Popper, RocketmqBench, bodies, messages
from penstock.wire.rocketmq.bodies import TopicConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.stored import decode_stored


@pytest.fixture
def bench():
    bench = RocketmqBench(facts={WIRE: BatchFacts()})
    bench.broker.topics.put(TopicConfig(topic_name="orders", read_queue_nums=1, write_queue_nums=1))
    bench.settle()
    return bench


@pytest.fixture
def consumer(bench):
    return BenchConsumer.on(bench)


def store(bench, *records):
    topic = bench.broker.topics.find("orders").topic
    bench.publish(bench.channel(), topic, *records)
    bench.settle()


def texts(start, end):
    return [b"%d" % number for number in range(start, end)]


@pytest.mark.parametrize("count", [1, 3, 1_000])
def test_a_batch_is_pulled_message_by_message(bench, consumer, count):
    store(bench, batch(*numbered(count)))
    found, at = [], 0
    while at < count:
        answer = consumer.pull("orders", at)
        assert answer.code == 0
        assert [each.queue_offset for each in messages(answer)] == list(
            range(at, at + len(messages(answer)))
        )
        found += bodies(answer)
        at = int(answer.ext["nextBeginOffset"])
    assert found == texts(0, count)


def test_a_pull_begins_in_the_midst_of_a_batch(bench, consumer):
    store(bench, batch(*numbered(5)), batch(*numbered(5, 5)))
    answer = consumer.pull("orders", 3)
    assert bodies(answer) == texts(3, 10)
    assert answer.ext["nextBeginOffset"] == "10"
    first = messages(answer)[0]
    assert first.property_map() == {
        "TAGS": "odd", "__SHARDINGKEY": "k0", "KEYS": "k0", "number": "3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "language", "expected"),
    [("odd", "TAG", [b"1", b"3"]), ("number > 2", "SQL92", [b"3", b"4"])],
)
def test_tags_and_selectors_see_what_is_in_a_batch(bench, consumer, expression, language, expected):
    store(bench, batch(*numbered(5)))
    answer = consumer.pull("orders", subscription=expression, expressionType=language)
    assert bodies(answer) == expected
    assert answer.ext["nextBeginOffset"] == "5"


@pytest.mark.parametrize("count", [1, 3, 1_000])
def test_a_batch_is_popped_and_acknowledged_message_by_message(bench, count):
    store(bench, batch(*numbered(count)))
    popper = Popper(bench)
    found = []
    while len(found) < count:
        answer = popper.pop(messages=32)
        assert [each.message.queue_offset for each in answer.messages] == list(
            range(len(found), len(found) + len(answer.messages))
        )
        found += answer.bodies
        assert {popper.ack(each).code for each in answer.messages} == {0}
    assert found == texts(0, count)
    bench.advance(61_000)
    assert popper.pop().code == ResponseCode.PULL_NOT_FOUND


def test_one_message_of_a_batch_that_was_not_acknowledged_comes_back(bench):
    store(bench, batch(*numbered(3)))
    popper = Popper(bench)
    popped = popper.pop(invisible_time=1_000).messages
    popper.ack(popped[0])
    popper.ack(popped[2])
    bench.advance(1_001)
    (again,) = popper.pop().messages
    assert (again.body, again.message.reconsume_times) == (b"1", 1)


def test_a_commit_log_offset_finds_its_message_in_a_batch(bench, consumer):
    store(bench, batch(*numbered(3)))
    for wanted in messages(consumer.pull("orders")):
        ext = {"offset": str(wanted.commit_log_offset), "topic": "orders"}
        answer = consumer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ext)
        assert decode_stored(answer.body)[0] == wanted


def test_a_batch_that_cannot_be_opened_is_one_message_that_says_why(bench, consumer):
    record = batch(*numbered(3), is_encrypted=True)
    store(bench, record)
    answer = consumer.pull("orders")
    (message,) = messages(answer)
    assert message.body == record.body
    assert message.property_map() == {"penstock.unopened": "encrypted"}
    assert answer.ext["nextBeginOffset"] == "3"
    popper = Popper(bench)
    (popped,) = popper.pop(invisible_time=1_000).messages
    assert popped.body == record.body
    popper.ack(popped)
    bench.advance(1_001)
    assert popper.pop().code == ResponseCode.PULL_NOT_FOUND
