"""The thresholds of all queues of a consumer: dividing, who is held, log lines."""

import logging

from penstock.client.consumer.thresholds import QueueThresholds
from penstock.flow.thresholds import Cached, Threshold, Thresholds
from penstock.model.assignment import QueueRef

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
