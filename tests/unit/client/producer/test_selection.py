"""Which queue a message goes to."""

import pytest

from penstock.client.errors import InvalidMessage
from penstock.client.message import Message
from penstock.client.producer.selection import (
    BROKERS_MAX,
    LatencyFaultTolerance,
    RoundRobin,
    call_selector,
    isolation_ms,
    queue_of_key,
)
from penstock.model.assignment import QueueRef

A = [QueueRef("t", "a", number) for number in range(2)]
B = [QueueRef("t", "b", number) for number in range(2)]
QUEUES = A + B


def turns(start=0, faults=None):
    return RoundRobin(lambda: start, faults)


def test_queues_take_turns_from_wherever_the_counter_starts():
    picks = turns(3)
    assert [picks.pick("t", QUEUES, (), 0) for _ in range(5)] == [B[1], A[0], A[1], B[0], B[1]]


def test_each_topic_has_its_own_turn():
    picks = turns()
    picks.pick("t", QUEUES, (), 0)
    assert picks.pick("other", QUEUES, (), 0) == A[0]


def test_another_try_goes_to_another_broker():
    picks = turns()
    assert picks.pick("t", QUEUES, ("a",), 0) == B[0]


def test_another_try_goes_to_the_same_broker_when_it_is_the_only_one():
    assert turns().pick("t", A, ("a",), 0) == A[0]


def test_a_route_with_fewer_queues_than_the_counter_is_no_problem():
    picks = turns(7)
    assert picks.pick("t", A[:1], (), 0) == A[0]


def test_a_slow_broker_is_passed_over():
    faults = LatencyFaultTolerance()
    faults.failed("a", 0)
    picks = turns(0, faults)
    assert {picks.pick("t", QUEUES, (), 1).broker for _ in range(8)} == {"b"}
    assert {picks.pick("t", QUEUES, (), 10_000).broker for _ in range(8)} == {"a", "b"}


def test_when_all_brokers_are_slow_the_one_free_first_is_taken():
    faults = LatencyFaultTolerance()
    faults.failed("a", 0)
    faults.answered("b", 600, 0)
    picks = turns(0, faults)
    assert {picks.pick("t", QUEUES, (), 1).broker for _ in range(4)} == {"b"}


def test_without_a_fault_table_nobody_is_avoided():
    picks = turns()
    assert {picks.pick("t", QUEUES, (), 1).broker for _ in range(4)} == {"a", "b"}


# What the absolute value of the remainder of Java's hash is.
@pytest.mark.parametrize(
    ("key", "number"), [("TagA", 3), ("TagB", 0), ("hello", 2), ("", 0), ("polygenelubricants", 0)]
)
def test_an_ordering_key_goes_where_rocketmq_would_send_it(key, number):
    assert queue_of_key(QUEUES, key) == QUEUES[number]


def test_a_selector_decides():
    assert call_selector(lambda queues, message: queues[2], QUEUES, Message("t", b"x")) == B[0]


@pytest.mark.parametrize("answer", [None, 3, QueueRef("other", "a", 0)])
def test_a_selector_that_chooses_no_queue_of_the_topic_is_told(answer):
    with pytest.raises(InvalidMessage, match="no queue of topic 't'"):
        call_selector(lambda queues, message: answer, QUEUES, Message("t", b"x"))


def test_a_selector_that_fails_fails_its_message_only():
    with pytest.raises(InvalidMessage, match="ZeroDivisionError"):
        call_selector(lambda queues, message: 1 / 0, QUEUES, Message("t", b"x"))


# ---- latency ------------------------------------------------------------------------------------
# The table of slow brokers.


@pytest.mark.parametrize(
    ("latency_ms", "isolated_ms"),
    [
        (0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 2000), (1799, 2000), (1800, 5000),
        (3000, 6000), (5000, 10_000), (14_999, 10_000), (15_000, 30_000), (99_999, 30_000),
    ],
)  # fmt: skip
def test_the_slower_a_broker_was_the_longer_it_is_avoided(latency_ms, isolated_ms):
    assert isolation_ms(latency_ms) == isolated_ms


def test_a_slow_broker_is_avoided_until_its_time_is_over():
    table = LatencyFaultTolerance()
    table.answered("a", 600, 1000)
    assert not table.is_available("a", 2999)
    assert table.is_available("a", 3000)
    assert table.isolated(1500) == {"a": 1500}
    assert table.isolated(3000) == {}


def test_a_failed_try_counts_as_ten_seconds():
    table = LatencyFaultTolerance()
    table.failed("a", 0)
    assert not table.is_available("a", 9999)
    assert table.is_available("a", 10_000)


def test_a_fast_answer_ends_the_isolation():
    table = LatencyFaultTolerance()
    table.failed("a", 0)
    table.answered("a", 10, 5)
    assert table.is_available("a", 6)


def test_when_all_are_avoided_the_one_that_is_free_first_is_the_least_bad():
    table = LatencyFaultTolerance()
    table.failed("a", 0)
    table.answered("b", 600, 0)
    assert table.least_bad(["a", "b"]) == "b"
    assert table.least_bad([]) is None


def test_names_a_name_server_makes_up_do_not_fill_the_memory():
    table = LatencyFaultTolerance()
    for number in range(BROKERS_MAX + 10):
        table.failed(f"b{number}", 0)
    assert len(table.isolated(0)) == BROKERS_MAX
    assert table.is_available("b0", 0)
