"""Orderly pops: a queue is blocked while something of it is out, and nothing overtakes."""

import pytest

from kit.rocketmq.bench import Popper, RocketmqBench, is_void
from penstock.wire.rocketmq.bodies import TopicConfig
from penstock.wire.rocketmq.codes import ResponseCode


@pytest.fixture
def bench():
    bench = RocketmqBench()
    bench.broker.topics.put(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    return bench


@pytest.fixture
def popper(bench):
    return Popper(bench)


def fill(bench, *bodies, queue=0):
    client = bench.client()
    for body in bodies:
        assert client.send("orders", body, queue=queue).code == 0


def test_an_orderly_pop_is_numbered_999_and_counts_deliveries(bench, popper):
    fill(bench, b"a", b"b")
    answer = popper.pop(0, order=True)
    assert answer.bodies == [b"a", b"b"]
    assert answer.ext["reviveQid"] == "999"
    assert answer.ext["orderCountInfo"] == "0 qo0%0 0;0 qo0%1 0"


def test_a_queue_is_blocked_until_everything_of_it_is_acknowledged(bench, popper):
    fill(bench, b"a", b"b", b"c")
    first, second = popper.pop(0, messages=2, order=True).messages
    assert popper.pop(0, order=True).code == ResponseCode.PULL_NOT_FOUND
    popper.ack(first)
    assert popper.pop(0, order=True).code == ResponseCode.PULL_NOT_FOUND
    popper.ack(second)
    assert popper.pop(0, order=True).bodies == [b"c"]


def test_other_queues_are_not_blocked_and_what_is_blocked_counts_as_rest(bench, popper):
    fill(bench, b"a", b"b")
    fill(bench, b"c", queue=1)
    popper.pop(0, messages=1, order=True)
    answer = popper.pop(order=True)
    assert answer.bodies == [b"c"]
    assert answer.rest == 1


def test_the_same_attempt_gets_the_same_messages_again_uncounted(bench, popper):
    fill(bench, b"a", b"b")
    (first,) = popper.pop(0, messages=1, order=True, attempt_id="x").messages
    assert popper.pop(0, order=True, attempt_id="y").code == ResponseCode.PULL_NOT_FOUND
    again = popper.pop(0, messages=1, order=True, attempt_id="x").messages[0]
    assert (again.body, again.count) == (b"a", 0)
    assert is_void(popper.ack(first))
    assert popper.ack(again).code == 0


def test_without_an_attempt_id_nobody_gets_the_same_again(bench, popper):
    fill(bench, b"a")
    popper.pop(0, order=True)
    assert popper.pop(0, order=True).code == ResponseCode.PULL_NOT_FOUND


def test_after_its_time_it_comes_again_in_its_place_with_its_count(bench, popper):
    fill(bench, b"a", b"b")
    popper.pop(0, messages=1, order=True, invisible_time=1000)
    bench.advance(1000)
    answer = popper.pop(0, order=True)
    assert [(each.body, each.count) for each in answer.messages] == [(b"a", 1), (b"b", 0)]
    assert [each.handle.retry_flag for each in answer.messages] == [0, 0]
    assert bench.broker.topics.find("%RETRY%g_orders") is None


def test_a_changed_time_keeps_the_queue_blocked_as_long(bench, popper):
    fill(bench, b"a", b"b")
    first, second = popper.pop(0, order=True, invisible_time=1000).messages
    popper.ack(second)
    changed = popper.change(first, 5000)
    assert changed.handle.revive_qid == 999
    bench.advance(4999)
    assert popper.pop(0, order=True).code == ResponseCode.PULL_NOT_FOUND
    bench.advance(1)
    again = popper.pop(0, order=True).messages
    assert [(each.body, each.count) for each in again] == [(b"a", 1), (b"b", 1)]


def test_behind_a_changed_message_the_acknowledged_come_again_too(bench, popper):
    fill(bench, b"a", b"b", b"c", b"d")
    first, second, third = popper.pop(0, messages=3, order=True).messages
    popper.ack(first)
    changed = popper.change(second, 3000)
    popper.ack(third)
    bench.advance(3000)
    again = popper.pop(0, messages=3, order=True)
    assert [(each.body, each.count) for each in again.messages] == [(b"b", 1), (b"c", 1), (b"d", 0)]
    assert is_void(popper.ack(changed))
    assert is_void(popper.ack(third))
    popper.ack_all(again.messages)
    bench.advance(60_000)
    assert popper.pop(0, order=True).code == ResponseCode.PULL_NOT_FOUND


def test_what_comes_again_in_order_is_still_to_come_after_a_crash(bench, popper):
    fill(bench, b"a", b"b")
    first, second = popper.pop(0, order=True).messages
    popper.ack(second)
    popper.change(first, 1000)
    bench.advance(1000)
    assert popper.pop(0, order=True).bodies == [b"a", b"b"]
    bench.settle()
    bench.kill()
    assert Popper(bench).pop(0, order=True).bodies == [b"a", b"b"]


def test_a_waiting_orderly_pop_is_woken_by_the_last_acknowledgement(bench, popper):
    fill(bench, b"a", b"b")
    (first,) = popper.pop(0, messages=1, order=True).messages
    opaque = popper.start_pop(0, order=True)
    bench.settle()
    assert popper.heard(opaque) is None
    popper.ack(first)
    assert popper.heard(opaque).bodies == [b"b"]


def test_a_waiting_orderly_pop_is_woken_when_a_time_is_up(bench, popper):
    fill(bench, b"a")
    popper.pop(0, order=True, invisible_time=1000)
    opaque = popper.start_pop(0, order=True)
    bench.advance(1000)
    assert popper.heard(opaque).bodies == [b"a"]


def test_retries_are_never_served_to_an_orderly_pop(bench, popper):
    fill(bench, b"late")
    popper.pop(0, invisible_time=1000)
    bench.advance(1000)
    assert popper.pop(order=True).code == ResponseCode.PULL_NOT_FOUND
    assert popper.pop().bodies == [b"late"]


def test_nothing_is_lost_when_a_group_turns_orderly(bench, popper):
    fill(bench, b"a", b"b")
    (first,) = popper.pop(0, messages=1).messages
    assert popper.pop(0, order=True).code == ResponseCode.PULL_NOT_FOUND
    popper.ack(first)
    assert popper.pop(0, order=True).bodies == [b"b"]
