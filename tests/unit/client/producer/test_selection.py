"""Which queue a message goes to."""

import pytest

from penstock.client.errors import InvalidMessage
from penstock.client.message import Message
from penstock.client.producer.latency import FaultTable
from penstock.client.producer.selection import QueueTurns, queue_of_key, selected
from penstock.model.assignment import QueueRef

A = [QueueRef("t", "a", number) for number in range(2)]
B = [QueueRef("t", "b", number) for number in range(2)]
QUEUES = A + B


def turns(start=0, faults=None):
    return QueueTurns(lambda: start, faults)


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
    faults = FaultTable()
    faults.failed("a", 0)
    picks = turns(0, faults)
    assert {picks.pick("t", QUEUES, (), 1).broker for _ in range(8)} == {"b"}
    assert {picks.pick("t", QUEUES, (), 10_000).broker for _ in range(8)} == {"a", "b"}


def test_when_all_brokers_are_slow_the_one_free_first_is_taken():
    faults = FaultTable()
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
    assert selected(lambda queues, message: queues[2], QUEUES, Message("t", b"x")) == B[0]


@pytest.mark.parametrize("answer", [None, 3, QueueRef("other", "a", 0)])
def test_a_selector_that_chooses_no_queue_of_the_topic_is_told(answer):
    with pytest.raises(InvalidMessage, match="no queue of topic 't'"):
        selected(lambda queues, message: answer, QUEUES, Message("t", b"x"))


def test_a_selector_that_fails_fails_its_message_only():
    with pytest.raises(InvalidMessage, match="ZeroDivisionError"):
        selected(lambda queues, message: 1 / 0, QUEUES, Message("t", b"x"))
