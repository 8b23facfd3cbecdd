"""ACK_MESSAGE and BATCH_ACK_MESSAGE: which receipts count, and what is answered to those that
do not."""

import msgspec
import pytest

from kit.rocketmq.bench import Popped, Popper, RocketmqBench, is_void
from penstock.adapters.rocketmq.group_registry import OffsetRegistry
from penstock.wire.rocketmq.bodies import TopicConfig, encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


@pytest.fixture
def bench():
    bench = RocketmqBench()
    bench.broker.topics.put(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    bench.settle()
    return bench


@pytest.fixture
def popper(bench):
    return Popper(bench)


def fill(bench, *bodies, queue=0):
    client = bench.client()
    for body in bodies:
        assert client.send("orders", body, queue=queue).code == 0


def forged(popped, **changes):
    return Popped(popped.message, msgspec.structs.replace(popped.handle, **changes))


def committed(bench, queue=0, topic="orders"):
    found = bench.broker.topics.find(topic).topic.queues[queue]
    return bench.broker.service(OffsetRegistry).committed(found, "g")


def test_an_acknowledged_message_does_not_come_back(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop(invisible_time=1000).messages
    assert popper.ack(popped).code == 0
    bench.advance(10_000)
    assert popper.pop().code == ResponseCode.PULL_NOT_FOUND
    assert committed(bench) == 1


def test_an_acknowledgement_survives_a_restart(bench, popper):
    fill(bench, b"a", b"b")
    first, _ = popper.pop().messages
    popper.ack(first)
    bench.settle()
    bench.kill()
    assert Popper(bench).pop().bodies == [b"b"]


def test_out_of_order_acknowledgements_hold_the_offset_back(bench, popper):
    fill(bench, b"a", b"b", b"c")
    first, second, third = popper.pop().messages
    popper.ack(third)
    popper.ack(second)
    assert committed(bench) == 0
    popper.ack(first)
    assert committed(bench) == 3


def test_a_second_acknowledgement_is_answered_0_and_does_nothing(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop().messages
    assert popper.ack(popped).code == 0
    assert is_void(popper.ack(popped))


def test_a_receipt_is_void_after_its_time(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop(invisible_time=1000).messages
    bench.advance(1000)
    assert is_void(popper.ack(popped))
    (again,) = popper.pop().messages
    assert again.body == b"a"
    assert is_void(popper.ack(popped))
    assert popper.ack(again).code == 0


def test_a_receipt_is_void_after_a_restart_and_the_message_comes_again(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop().messages
    bench.settle()
    bench.kill()
    popper = Popper(bench)
    assert is_void(popper.ack(popped))
    assert popper.pop().bodies == [b"a"]


def test_a_receipt_is_void_after_the_offset_was_moved_back(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop().messages
    offset = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "1"}
    popper.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    popper.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": "0"})
    assert is_void(popper.ack(popped))
    assert popper.pop().bodies == [b"a"]


@pytest.mark.parametrize(
    "changes",
    [{"queue_id": 1}, {"offset": 5}, {"broker_name": "other"}],
    ids=["queue", "offset", "broker"],
)
def test_a_receipt_that_contradicts_the_request_is_13(bench, popper, changes):
    fill(bench, b"a")
    (popped,) = popper.pop().messages
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "offset": "0",
           "extraInfo": str(forged(popped, **changes).handle)}  # fmt: skip
    assert popper.ask(RequestCode.ACK_MESSAGE, ext).code == ResponseCode.MESSAGE_ILLEGAL
    assert popper.ack(popped).code == 0


@pytest.mark.parametrize("text", ["", "1 2 3", "a b c d e f g h", "1 2 3 4 5 6 7 8 9 10"])
def test_a_receipt_that_cannot_be_read_is_13(popper, text):
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "offset": "0",
           "extraInfo": text or " "}  # fmt: skip
    assert popper.ask(RequestCode.ACK_MESSAGE, ext).code == ResponseCode.MESSAGE_ILLEGAL


def test_a_receipt_of_another_pop_time_or_number_does_not_count(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop().messages
    later = forged(popped, pop_time=popped.handle.pop_time + 1)
    other = forged(popped, revive_qid=popped.handle.revive_qid + 1)
    assert is_void(popper.ack(later))
    assert is_void(popper.ack(other))
    assert popper.ack(popped).code == 0


def test_unknown_topic_17_bad_queue_13_offset_outside_208(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop().messages
    assert Popper(bench, topic="nowhere").ack(popped).code == ResponseCode.TOPIC_NOT_EXIST
    assert popper.ack(forged(popped, queue_id=2)).code == ResponseCode.MESSAGE_ILLEGAL
    answer = popper.ack(forged(popped, offset=7))
    assert answer.code == ResponseCode.NO_MESSAGE
    assert "offset is illegal" in answer.remark


def test_a_group_that_never_popped_has_no_receipts(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop().messages
    assert is_void(Popper(bench, group="other").ack(popped))


def test_a_retried_message_is_acknowledged_under_either_topic_name(bench, popper):
    fill(bench, b"a", b"b")
    popper.pop(invisible_time=1000)
    bench.advance(1000)
    first, second = popper.pop().messages
    assert first.handle.retry_flag == 1
    assert popper.ack(first).code == 0
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "offset": "1",
           "extraInfo": str(second.handle)}  # fmt: skip
    assert popper.ask(RequestCode.ACK_MESSAGE, ext).code == 0
    assert committed(bench, topic="%RETRY%g_orders") == 2


def test_a_batch_acknowledges_by_bits_over_queues_and_retries(bench, popper):
    fill(bench, b"a", b"b", b"c")
    fill(bench, b"d", queue=1)
    popped = popper.pop().messages
    assert popper.ack_all([each for each in popped if each.body != b"b"]).code == 0
    bench.advance(60_000)
    (late,) = popper.pop().messages
    assert late.body == b"b"
    assert popper.ack_all([late]).code == 0
    bench.advance(120_000)
    assert popper.pop().code == ResponseCode.PULL_NOT_FOUND


def test_void_receipts_in_a_batch_do_not_harm_the_others(bench, popper):
    fill(bench, b"a", b"b", b"c")
    first, second, third = popper.pop().messages
    popper.ack(first)
    changed = popper.change(second, 60_000)
    assert popper.ack_all([first, second, third]).code == 0
    assert committed(bench) == 1
    assert popper.ack(changed).code == 0
    assert committed(bench) == 3


def test_a_batch_for_another_broker_is_13_and_nonsense_in_it_is_left_out(bench, popper):
    body = encode_body({"brokerName": "other", "acks": []})
    answer = popper.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    odd = {"c": "g", "t": "nowhere", "r": "x", "so": 0, "q": 9, "b": b"\xff"}
    body = encode_body({"brokerName": "penstock", "acks": [odd, {**odd, "t": "orders"}]})
    assert popper.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body).code == 0


def test_a_batch_that_cannot_be_read_is_an_error_and_the_connection_lives(popper):
    assert popper.ask(RequestCode.BATCH_ACK_MESSAGE, {}, b"{").code == ResponseCode.SYSTEM_ERROR
    assert popper.pop().code == ResponseCode.PULL_NOT_FOUND


def test_a_oneway_acknowledgement_counts_and_is_not_answered(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop().messages
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "offset": "0",
           "extraInfo": str(popped.handle)}  # fmt: skip
    opaque = popper.write(RequestCode.ACK_MESSAGE, ext, is_oneway=True)
    bench.settle()
    assert popper.heard(opaque) is None
    assert committed(bench) == 1


def test_what_becomes_of_popped_messages_is_counted(bench, popper):
    fill(bench, b"a", b"b", b"c")
    first, second, third = popper.pop(invisible_time=1000).messages
    popper.ack(first)
    popper.ack(first)
    popper.change(second, 60_000)
    popper.ack_all([second])
    bench.advance(1000)
    popper.ack(third)
    shown = {each.name: dict(each.counts) for each in bench.engine.counter_families}
    assert shown["rocketmq_pops"]["FOUND"] == 1
    assert shown["rocketmq_popped_messages"] == {
        "popped": 3, "acknowledged": 1, "void": 3, "extended": 1, "revived": 1, "returned": 0,
    }  # fmt: skip
