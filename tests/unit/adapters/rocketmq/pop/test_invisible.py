"""CHANGE_MESSAGE_INVISIBLETIME: another time, another receipt."""

import pytest

from kit.rocketmq.bench import Popper, RocketmqBench, is_void
from penstock.wire.rocketmq.codes import ResponseCode


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def popped(bench):
    bench.client().send("orders", b"a")
    return Popper(bench).pop(invisible_time=1000).messages[0]


@pytest.fixture
def popper(bench, popped):
    return Popper(bench)


def test_more_time_keeps_a_message_invisible_longer(bench, popper, popped):
    popper.change(popped, 5000)
    bench.advance(4999)
    assert popper.pop().code == ResponseCode.PULL_NOT_FOUND
    bench.advance(1)
    assert popper.pop().bodies == [b"a"]


def test_less_time_brings_it_back_earlier(bench, popper, popped):
    popper.change(popped, 10)
    bench.advance(10)
    assert popper.pop().bodies == [b"a"]


def test_no_time_at_all_brings_it_back_at_once(bench, popper, popped):
    popper.change(popped, 0)
    bench.advance(0)
    (again,) = popper.pop().messages
    assert again.message.reconsume_times == 1


def test_the_answer_makes_a_new_receipt_that_counts(bench, popper, popped):
    changed = popper.change(popped, 5000)
    assert changed.handle.pop_time > popped.handle.pop_time
    assert changed.handle.invisible_time == 5000
    assert popper.ack(changed).code == 0
    bench.advance(10_000)
    assert popper.pop().code == ResponseCode.PULL_NOT_FOUND


def test_the_old_receipt_is_void(bench, popper, popped):
    changed = popper.change(popped, 5000)
    assert is_void(popper.ack(popped))
    assert popper.change(popped, 5000).code == ResponseCode.NO_MESSAGE
    again = popper.change(changed, 5000)
    assert is_void(popper.ack(changed))
    assert popper.ack(again).code == 0


def test_after_its_time_or_an_acknowledgement_nothing_can_be_changed(bench, popper, popped):
    bench.advance(1000)
    assert popper.change(popped, 5000).code == ResponseCode.NO_MESSAGE
    (again,) = popper.pop().messages
    popper.ack(again)
    assert popper.change(again, 5000).code == ResponseCode.NO_MESSAGE


@pytest.mark.parametrize("invisible_ms", [-1, 1 << 60])
def test_a_time_that_makes_no_sense_is_refused_and_changes_nothing(popper, popped, invisible_ms):
    assert popper.change(popped, invisible_ms).code == ResponseCode.INVALID_PARAMETER
    assert popper.ack(popped).code == 0
