"""NOTIFICATION: whether there is something to pop, now or within the time."""

import pytest

from kit.rocketmq.bench import Popper, RocketmqBench
from penstock.adapters.rocketmq.group_registry import NO_OFFSET, OffsetRegistry
from penstock.adapters.rocketmq.pop.service import PopLongPolling
from penstock.wire.rocketmq.bodies import TopicConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


@pytest.fixture
def bench():
    bench = RocketmqBench()
    bench.broker.topics.put(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    return bench


@pytest.fixture
def popper(bench):
    return Popper(bench)


def asked(bench, queue=-1, **more):
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": str(queue), "pollTime": "0",
           "bornTime": str(bench.clock.wall_ms())}  # fmt: skip
    return {**ext, **more}


def start(bench, popper, queue=-1, **more):
    opaque = popper.write(RequestCode.NOTIFICATION, asked(bench, queue, pollTime="15000", **more))
    bench.settle()
    return opaque


def answer(popper, opaque):
    found = [each for each in popper._hear() if each.opaque == opaque]
    return found[0].ext if found else None


def test_what_is_there_is_said_at_once_and_stays(bench, popper):
    bench.client().send("orders", b"a")
    found = popper.ask(RequestCode.NOTIFICATION, asked(bench))
    assert (found.code, found.ext) == (0, {"hasMsg": "true", "pollingFull": "false"})
    queue = bench.broker.topics.find("orders").topic.queues[0]
    assert bench.broker.service(OffsetRegistry).committed(queue, "g") == NO_OFFSET
    assert popper.pop().bodies == [b"a"]
    assert popper.ask(RequestCode.NOTIFICATION, asked(bench)).ext["hasMsg"] == "false"


def test_an_arrival_answers_those_who_wait_for_that_queue(bench, popper):
    any_queue, first, second = (start(bench, popper, number) for number in (-1, 0, 1))
    popper.pop()
    bench.client().send("orders", b"a", queue=1)
    assert answer(popper, any_queue)["hasMsg"] == "true"
    assert answer(popper, first) is None
    assert answer(popper, second)["hasMsg"] == "true"


def test_even_a_group_that_never_popped_is_notified(bench, popper):
    opaque = start(bench, popper)
    bench.client().send("orders", b"a")
    assert answer(popper, opaque)["hasMsg"] == "true"


def test_when_the_time_is_up_there_is_nothing(bench, popper):
    opaque = start(bench, popper)
    bench.advance(15_000)
    assert answer(popper, opaque) == {"hasMsg": "false", "pollingFull": "false"}


def test_a_full_table_is_said(bench, popper):
    bench.broker.service(PopLongPolling)._held.total_max = 0
    opaque = start(bench, popper)
    assert answer(popper, opaque) == {"hasMsg": "false", "pollingFull": "true"}


def test_retries_count_but_not_for_orderly_readers(bench, popper):
    bench.client().send("orders", b"a")
    popper.pop(invisible_time=1000)
    bench.advance(1000)
    assert popper.ask(RequestCode.NOTIFICATION, asked(bench)).ext["hasMsg"] == "true"
    orderly = asked(bench, order="true")
    assert popper.ask(RequestCode.NOTIFICATION, orderly).ext["hasMsg"] == "false"


def test_a_blocked_queue_has_nothing_for_an_orderly_reader(bench, popper):
    for body in (b"a", b"b"):
        bench.client().send("orders", body)
    (first,) = popper.pop(0, messages=1, order=True).messages
    assert popper.ask(RequestCode.NOTIFICATION, asked(bench, order="true")).ext["hasMsg"] == "false"
    opaque = start(bench, popper, order="true")
    popper.ack(first)
    assert answer(popper, opaque)["hasMsg"] == "true"


def test_checks_are_those_of_a_pop(bench, popper):
    nowhere = asked(bench, topic="nowhere")
    assert popper.ask(RequestCode.NOTIFICATION, nowhere).code == ResponseCode.TOPIC_NOT_EXIST
    outside = asked(bench, 2)
    assert popper.ask(RequestCode.NOTIFICATION, outside).code == ResponseCode.INVALID_PARAMETER
