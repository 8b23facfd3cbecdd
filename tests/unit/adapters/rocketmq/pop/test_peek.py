"""PEEK_MESSAGE: what would be popped next, and nothing changes."""

import pytest

from kit.rocketmq.bench import Popper, RocketmqBench
from penstock.wire.rocketmq.bodies import TopicConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.stored import decode_stored


@pytest.fixture
def bench():
    bench = RocketmqBench()
    bench.broker.topics.put(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    return bench


@pytest.fixture
def popper(bench):
    return Popper(bench)


def peek(popper, queue=-1, messages=32):
    ext = {"consumerGroup": "g", "topic": popper.topic, "queueId": str(queue),
           "maxMsgNums": str(messages)}  # fmt: skip
    return popper.ask(RequestCode.PEEK_MESSAGE, ext)


def bodies(answer):
    found, at = [], 0
    while at < len(answer.body):
        message, at = decode_stored(answer.body, at)
        found.append(message.body)
    return found


def test_a_peek_shows_messages_that_a_pop_still_gets(bench, popper):
    for body in (b"a", b"b", b"c"):
        bench.client().send("orders", body)
    answer = peek(popper, messages=2)
    assert (answer.code, bodies(answer)) == (0, [b"a", b"b"])
    assert answer.ext["restNum"] == "1"
    assert popper.pop().bodies == [b"a", b"b", b"c"]


def test_what_is_out_is_not_shown(bench, popper):
    for body in (b"a", b"b"):
        bench.client().send("orders", body)
    popper.pop(messages=1)
    assert bodies(peek(popper)) == [b"b"]


def test_retries_are_shown(bench, popper):
    bench.client().send("orders", b"a")
    popper.pop(invisible_time=1000)
    bench.advance(1000)
    assert bodies(peek(popper)) == [b"a"]


def test_a_message_that_goes_back_to_its_place_is_shown_there(bench, popper):
    for body in (b"a", b"b"):
        bench.client().send("orders", body)
    popper.pop(0, messages=1, order=True, invisible_time=1000)
    bench.advance(1000)
    assert bodies(peek(popper, 0)) == [b"a", b"b"]


def test_nothing_to_show_is_19_and_checks_are_those_of_a_pop(bench, popper):
    assert peek(popper).code == ResponseCode.PULL_NOT_FOUND
    assert peek(popper, 2).code == ResponseCode.INVALID_PARAMETER
    assert peek(popper, messages=33).code == ResponseCode.SYSTEM_ERROR
    assert peek(Popper(bench, topic="nowhere")).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_place_that_retention_removed_is_corrected(bench, popper):
    for body in (b"a", b"b"):
        bench.client().send("orders", body)
    popper.pop(0, messages=1, order=True, invisible_time=1000)
    bench.advance(1000)
    bench.broker.topics.find("orders").topic.queues[0].index.trim(1)
    assert bodies(peek(popper, 0)) == [b"b"]
