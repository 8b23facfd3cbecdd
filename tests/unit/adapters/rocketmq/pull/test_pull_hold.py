"""Waiting for messages: long polling, short polling, and what ends it."""

import dataclasses
import time

import pytest

from kit.rocketmq.bench import BenchConsumer, RocketmqBench, bodies
from penstock.adapters.rocketmq.pull import ShortPolledPull, ShortPolling
from penstock.engine.pull import Pull
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.codes import ResponseCode

PUSH_MS = 15_000
LITE_MS = 20_000


def bench_with(**changes):
    bench = RocketmqBench(Settings(rocketmq=dataclasses.replace(RocketmqSettings(), **changes)))
    bench.topic("orders")
    return bench


@pytest.fixture
def bench():
    return bench_with()


@pytest.fixture
def consumer(bench):
    return BenchConsumer.on(bench)


# Long polling.


@pytest.mark.parametrize("suspend_ms", [PUSH_MS, LITE_MS])
def test_a_pull_is_held_as_long_as_it_says_and_then_answered_with_19(bench, consumer, suspend_ms):
    opaque = consumer.start_pull("orders", suspend_ms=suspend_ms)
    bench.advance(suspend_ms - 1)
    assert consumer.answer_to(opaque) is None
    bench.advance(1)
    answer = consumer.answer_to(opaque)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")


def test_without_the_suspend_flag_a_pull_is_never_held(bench, consumer):
    assert consumer.pull("orders", suspendTimeoutMillis=PUSH_MS).code == ResponseCode.PULL_NOT_FOUND


def test_an_arrival_wakes_at_once(bench, consumer):
    opaque = consumer.start_pull("orders", suspend_ms=PUSH_MS)
    bench.client().send("orders", b"new")
    assert bodies(consumer.answer_to(opaque)) == [b"new"]


def test_an_arrival_in_another_queue_wakes_nobody(bench, consumer):
    bench.engine.grow_topic(bench.broker.topics.find("orders").topic.name, 2)
    opaque = consumer.start_pull("orders", suspend_ms=PUSH_MS)
    bench.client().send("other", b"new")
    assert consumer.answer_to(opaque) is None


@pytest.mark.parametrize(
    "filters", [{"subscription": "B"}, {"subscription": "kind = 'b'", "expressionType": "SQL92"}]
)
def test_only_an_arrival_that_the_filter_wants_wakes(bench, consumer, filters):
    producer = bench.client()
    opaque = consumer.start_pull("orders", suspend_ms=PUSH_MS, **filters)
    producer.send("orders", b"no", TAGS="A", kind="a")
    assert consumer.answer_to(opaque) is None
    producer.send("orders", b"yes", TAGS="B", kind="b")
    answer = consumer.answer_to(opaque)
    assert bodies(answer) == [b"yes"]
    assert answer.ext["nextBeginOffset"] == "2"


def test_a_held_pull_that_only_saw_unwanted_messages_goes_on_behind_them(bench, consumer):
    opaque = consumer.start_pull("orders", suspend_ms=PUSH_MS, subscription="B")
    bench.client().send("orders", b"no", TAGS="A")
    bench.advance(PUSH_MS)
    answer = consumer.answer_to(opaque)
    assert (answer.code, answer.remark) == (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "NO_MATCHED_MESSAGE",
    )
    assert answer.ext["nextBeginOffset"] == "1"


@pytest.mark.parametrize(
    ("offset", "subscription", "code"), [(9, "*", 21), (-1, "*", 21), (0, "B", 20), (0, "*", 0)]
)
def test_only_19_is_held(bench, consumer, offset, subscription, code):
    bench.client().send("orders", b"x", TAGS="A")
    answer = consumer.pull("orders", offset, suspend_ms=PUSH_MS, subscription=subscription)
    assert answer.code == code


def test_nobody_waits_longer_than_the_broker_allows():
    bench = bench_with(suspend_ms_max=30_000)
    consumer = BenchConsumer.on(bench)
    opaque = consumer.start_pull("orders", suspend_ms=10**12)
    bench.advance(30_000)
    assert consumer.answer_to(opaque).code == ResponseCode.PULL_NOT_FOUND


def test_a_client_that_goes_takes_its_pulls_along(bench, consumer):
    consumer.start_pull("orders", suspend_ms=PUSH_MS)
    assert len(bench.engine.pulls) == 1
    consumer.close()
    assert len(bench.engine.pulls) == 0
    bench.client().send("orders", b"new")


def test_many_pulls_of_one_connection_are_each_answered(bench, consumer):
    opaques = [consumer.start_pull("orders", suspend_ms=PUSH_MS) for _ in range(50)]
    bench.client().send("orders", b"new")
    assert all(bodies(consumer.answer_to(opaque)) == [b"new"] for opaque in opaques)


def test_a_thousand_idle_long_polls_cost_nothing_until_their_deadline(bench):
    """Asked for by number of engine turns wanted, and by a generous share of real time."""
    consumers = [BenchConsumer.on(bench) for _ in range(50)]
    for consumer in consumers:
        for _ in range(20):
            consumer.start_pull("orders", suspend_ms=LITE_MS)
    assert len(bench.engine.pulls) == 1000
    assert not bench.engine.needs_turn
    before = time.process_time()
    bench.advance(LITE_MS)
    for consumer in consumers:
        for _ in range(20):
            consumer.start_pull("orders", suspend_ms=LITE_MS)
    spent_s = time.process_time() - before
    assert spent_s < 0.02 * LITE_MS / 1000 * 3  # 2 % of a core, and room for a busy machine


# Short polling.


@pytest.fixture
def short():
    return bench_with(is_long_polling=False)


def test_short_polling_answers_after_a_second_whatever_was_asked_for(short):
    consumer = BenchConsumer.on(short)
    opaque = consumer.start_pull("orders", suspend_ms=PUSH_MS)
    short.advance(999)
    assert consumer.answer_to(opaque) is None
    short.advance(1)
    assert consumer.answer_to(opaque).code == ResponseCode.PULL_NOT_FOUND


def test_short_polling_is_woken_by_the_sweep_only(short):
    consumer = BenchConsumer.on(short)
    opaque = consumer.start_pull("orders", suspend_ms=PUSH_MS)
    short.client().send("orders", b"new")
    short.advance(999)
    assert consumer.answer_to(opaque) is None
    short.advance(1)
    assert bodies(consumer.answer_to(opaque)) == [b"new"]


def test_a_pull_between_two_sweeps_waits_for_the_next(short):
    first, second = BenchConsumer.on(short), BenchConsumer.on(short)
    first.start_pull("orders", suspend_ms=PUSH_MS)
    short.advance(600)
    opaque = second.start_pull("orders", suspend_ms=PUSH_MS)
    short.advance(400)
    assert second.answer_to(opaque) is None
    short.advance(1_000)
    assert second.answer_to(opaque).code == ResponseCode.PULL_NOT_FOUND


def test_short_polling_forgets_clients_that_went_and_queues_that_are_gone(short):
    first, second = BenchConsumer.on(short), BenchConsumer.on(short)
    first.start_pull("orders", suspend_ms=PUSH_MS)
    opaque = second.start_pull("orders", suspend_ms=PUSH_MS)
    first.close()
    short.engine.delete_topic(short.broker.topics.find("orders").topic.name)
    short.advance(1_000)
    assert second.answer_to(opaque).remark == "NO_MATCHED_LOGIC_QUEUE"


def test_short_polling_holds_only_19(short):
    short.client().send("orders", b"x", TAGS="A")
    consumer = BenchConsumer.on(short)
    assert consumer.pull("orders", 0, suspend_ms=PUSH_MS).code == 0
    assert consumer.pull("orders", 0, suspend_ms=PUSH_MS, subscription="B").code == 20
    assert consumer.pull("orders", 9, suspend_ms=PUSH_MS).code == 21


def test_short_polling_without_anybody_wants_no_sweeps(short):
    holds = ShortPolling(short.broker)
    assert holds.next_deadline_ms() is None
    holds.due(10**9)
    queue = short.broker.topics.find("orders").topic.queues[0]
    session, answers = short.client().session, []
    held = ShortPolledPull(
        session, queue, Pull(session, queue, 0), 0, lambda *answer: answers.append(answer)
    )
    assert holds.hold(held)
    holds.due(holds.next_deadline_ms())
    assert (len(answers), len(holds), holds.next_deadline_ms()) == (1, 0, None)
