"""Rates, durations and result kinds of a consumer."""

import logging

from kit.client.parts import received_message
from penstock.client.consumer.executor import ConsumeResult, Finished, ResultKind
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.consumer.statistics import (
    ConsumerFacts,
    ConsumerStatistics,
    HeldQueue,
    MinuteSum,
    QueueThresholds,
    running_info,
    stacks,
)
from penstock.flow.thresholds import Cached, Threshold, Thresholds
from penstock.model.assignment import QueueRef
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.bodies import SubscriptionData


def call(kind=ResultKind.SUCCESS, messages=1, spent_ms=2.0, answer=None, error=None):
    return Finished([None] * messages, answer, error, kind, spent_ms)


def test_a_window_forgets_after_a_minute_and_keeps_the_total():
    window = MinuteSum()
    window.add(10, 5.0, 1_000)
    window.add(20, 25.0, 2_000)
    assert window.per_second(2_500) == 15
    assert window.average(2_500) == 1.0
    assert window.recent(61_500) == 20
    assert window.recent(62_500) == 0
    assert window.per_second(62_500) == 0.0
    assert window.average(62_500) == 0.0
    assert window.count == 30


def test_one_second_is_one_slice():
    window = MinuteSum()
    for at_ms in range(0, 1000, 10):
        window.add(1, 0.0, at_ms)
    assert window.per_second(999) == 100


def test_results_are_counted_by_kind_and_message():
    statistics = ConsumerStatistics()
    later = {"answer": ConsumeResult.LATER}
    statistics.topic("t").finished(
        [
            call(messages=3),
            call(ResultKind.EXCEPTION, error=ValueError()),
            call(ResultKind.LATER, 2, **later),
            call(ResultKind.TIME_OUT, spent_ms=6.0),
        ],
        1_000,
    )
    figures = statistics.figures(1_000)["t"]
    assert figures.results == {
        ResultKind.SUCCESS: 3,
        ResultKind.EXCEPTION: 1,
        ResultKind.LATER: 2,
        ResultKind.TIME_OUT: 1,
    }
    assert figures.consumed_per_s == 4
    assert (figures.failed_per_s, figures.failed_recently) == (3, 3)
    assert figures.consume_ms == 3.0


def test_pulls_have_a_rate_and_a_mean_time():
    statistics = ConsumerStatistics()
    statistics.topic("t").pulled(32, 10.0, 1_000)
    statistics.topic("t").pulled(8, 20.0, 1_500)
    figures = statistics.figures(1_999)["t"]
    assert (figures.pulled, figures.pulled_per_s, figures.pull_ms) == (40, 40, 15.0)


def test_a_forgotten_topic_has_no_figures():
    statistics = ConsumerStatistics()
    statistics.topic("t").pulled(1, 1.0, 0)
    statistics.forget("t")
    assert statistics.figures(0) == {}


# ---- thresholds ---------------------------------------------------------------------------------
# The thresholds of all queues of a consumer: dividing, who is held, log lines.


A, B, C = (QueueRef("t", "b", n) for n in range(3))
LIMITS = Thresholds(100, 1000, 200)


def test_limits_of_a_topic_are_divided_again_with_every_change_of_the_assignment():
    table = QueueThresholds("g", LIMITS, topic_messages_max=90)
    first = table.open(A)
    table.divide("t", [A])
    assert first.thresholds.messages_max == 90
    table.divide("t", [A, B, C])
    assert first.thresholds == Thresholds(30, 1000, 200)
    assert table.open(B).thresholds.messages_max == 30


def test_dividing_one_topic_leaves_the_others_alone():
    table = QueueThresholds("g", LIMITS, topic_messages_max=90)
    other = table.open(QueueRef("other", "b", 0))
    table.divide("t", [A, B])
    assert other.thresholds == LIMITS


def test_it_says_which_threshold_holds_which_queue_since_when():
    table = QueueThresholds("g", LIMITS)
    table.open(A).look(Cached(101, 0, 0), 500)
    table.open(B).look(Cached(2, 2000, 0), 300)
    table.open(C).look(Cached(1, 0, 0), 300)
    held = table.held(1000)
    assert [(each.queue, each.threshold, each.since_ms, each.held_ms) for each in held] == [
        (B, Threshold.BYTES, 300, 700),
        (A, Threshold.MESSAGES, 500, 500),
    ]
    assert table.episodes == {Threshold.MESSAGES: 1, Threshold.BYTES: 1, Threshold.SPAN: 0}


def test_an_episode_is_one_line_when_it_begins_and_one_when_it_ends(caplog):
    caplog.set_level(logging.INFO)
    table = QueueThresholds("g", LIMITS)
    throttle = table.open(A)
    for at_ms in range(0, 1000, 50):
        throttle.look(Cached(101, 7, 3), at_ms)
    table.close(A, throttle, 1000)
    begun, ended = caplog.records
    assert (begun.levelname, begun.group, begun.queue) == ("WARNING", "g", "t@b:0")
    assert (begun.threshold, begun.limit, begun.messages) == ("messages", 100, 101)
    assert (ended.levelname, ended.lasted_ms, ended.looks) == ("INFO", 1000, 20)
    assert table.held(1000) == []


def test_closing_the_throttle_of_an_earlier_object_keeps_the_one_of_the_present():
    table = QueueThresholds("g", LIMITS)
    old = table.open(A)
    table.open(A).look(Cached(101, 0, 0), 5)
    table.close(A, old, 10)
    assert [each.queue for each in table.held(20)] == [A]


# ---- running info -------------------------------------------------------------------------------
# What a broker is told about a consumer.


Q = QueueRef("orders", "broker-a", 3)
FACTS = ConsumerFacts("ns:9876", True, False, 20, 1_700_000_000_000, "penstock")


def info(clock, **changes):
    arguments = {
        "subscriptions": [SubscriptionData(topic="orders")],
        "owned": {},
        "committed": {},
        "topics": {},
        "held": [],
    }
    return running_info(FACTS, **{**arguments, **changes}, clock=clock)


def test_a_queue_is_told_with_rocketmqs_keys_and_wall_times():
    clock = ManualClock(wall_ms=1_700_000_000_000, monotonic_ms=5_000)
    assigned = AssignedQueue(Q, 10, 4_000)
    assigned.process_queue.put([received_message(Q, n, b"x" * (1 << 20)) for n in range(10, 14)])
    assigned.process_queue.take(1)
    assigned.is_locked, assigned.last_locked_ms = True, 4_500
    told = info(clock, owned={Q: assigned}, committed={Q: 10})["mqTable"][Q]
    assert told == {
        "commitOffset": 10,
        "cachedMsgMinOffset": 10,
        "cachedMsgMaxOffset": 13,
        "cachedMsgCount": 3,
        "cachedMsgSizeInMiB": 4,
        "transactionMsgMinOffset": 10,
        "transactionMsgMaxOffset": 10,
        "transactionMsgCount": 1,
        "locked": True,
        "tryUnlockTimes": 0,
        "lastLockTimestamp": 1_700_000_000_000 - 500,
        "droped": False,
        "lastPullTimestamp": 1_700_000_000_000 - 1_000,
        "lastConsumeTimestamp": 1_700_000_000_000 - 1_000,
    }


def test_an_empty_and_never_locked_queue():
    told = info(ManualClock(), owned={Q: AssignedQueue(Q, 10, 4_000)})["mqTable"][Q]
    assert told["commitOffset"] == -1
    assert told["cachedMsgCount"] == told["cachedMsgMaxOffset"] == told["lastLockTimestamp"] == 0


def test_which_threshold_holds_which_queue_since_when():
    clock = ManualClock(wall_ms=1_700_000_060_000, monotonic_ms=60_000)
    held = HeldQueue(Q, Threshold.MESSAGES, 1000, 30_000, 30_000, Cached(1001, 1, 1))
    properties = info(clock, held=[held])["properties"]
    assert properties["heldQueues"] == "1"
    assert properties["held"] == (
        f"orders@broker-a:3 by {Threshold.MESSAGES.value} (limit 1000) since 2023-11-14T22:13:50Z"
    )
    assert info(clock)["properties"]["heldQueues"] == "0"


def test_topics_are_told_with_rates():
    clock = ManualClock()
    statistics = ConsumerStatistics()
    now_ms = clock.monotonic_ms()
    statistics.topic("orders").pulled(32, 5.0, now_ms)
    done = Finished([received_message(Q, 0)], None, None, ResultKind.SUCCESS, 2.0)
    failed = Finished([received_message(Q, 1)], None, KeyError(), ResultKind.EXCEPTION, 4.0)
    statistics.topic("orders").finished([done, failed], now_ms)
    told = info(clock, topics=statistics.figures(now_ms))["statusTable"]["orders"]
    assert told == {
        "pullRT": 5.0,
        "pullTPS": 32.0,
        "consumeRT": 3.0,
        "consumeOKTPS": 1.0,
        "consumeFailedTPS": 1.0,
        "consumeFailedMsgs": 1,
    }


def test_subscriptions_facts_and_stacks():
    told = info(ManualClock())
    assert told["subscriptionSet"][0]["subString"] == "*"
    assert told["properties"]["PROP_CONSUMEORDERLY"] == "true"
    assert "jstack" not in told
    assert "test_subscriptions_facts_and_stacks" in stacks()
