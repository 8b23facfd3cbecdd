"""Receipts made from the lists of a pop's answer."""

import pytest

from penstock.client.consumer.pop_receipts import (
    real_topic,
    receipts,
    renewed,
    retry_flag,
)
from penstock.wire.rocketmq.headers import ChangeInvisibleAnswer, PopAnswer
from penstock.wire.rocketmq.pop_handle import RetryFlag
from penstock.wire.rocketmq.stored import StoredMessage


def stored(offset, queue=0, topic="orders", **more):
    return StoredMessage(topic=topic, queue_id=queue, queue_offset=offset, **more)


def popped(messages, starts="0 0 5", offsets="0 0 5,7", counts=None):
    answer = PopAnswer(
        pop_time=1000,
        invisible_time=60_000,
        revive_qid=3,
        start_offset_info=starts,
        msg_offset_info=offsets,
        order_count_info=counts,
    )
    return receipts(answer, messages, "orders", "b1")


def test_a_receipt_names_batch_time_place_and_offset():
    found = popped([stored(5), stored(7)])
    assert [str(each.handle) for each in found] == [
        "5 1000 60000 3 0 b1 0 5",
        "5 1000 60000 3 0 b1 0 7",
    ]
    assert found[0].message.property_map()["POP_CK"] == "5 1000 60000 3 0 b1 0 5"


def test_queues_of_one_answer_are_counted_apart():
    found = popped(
        [stored(5), stored(1, queue=2), stored(7), stored(2, queue=2)],
        starts="0 0 5;0 2 1",
        offsets="0 0 5,7;0 2 1,2",
    )
    assert [(each.handle.queue_id, each.handle.start_offset, each.handle.offset) for each in found]\
        == [(0, 5, 5), (2, 1, 1), (0, 5, 7), (2, 1, 2)]  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "flag"), [("%RETRY%g_orders", RetryFlag.RETRY_V1), ("%RETRY%g+orders", 2)]
)
def test_a_message_that_came_back_is_shown_under_its_topic_and_settled_under_the_retry_topic(
    topic, flag
):
    (found,) = popped([stored(9, topic=topic)], f"{int(flag)} 0 9", f"{int(flag)} 0 9")
    assert found.message.topic == "orders"
    assert found.handle.retry_flag == flag
    assert real_topic(found.handle, "orders", "g") == topic


def test_the_offset_of_the_list_counts_not_the_one_inside_the_message():
    (found,) = popped([stored(123)], "0 0 40", "0 0 41")
    assert (found.handle.start_offset, found.handle.offset) == (40, 41)


def test_an_old_broker_without_lists_gets_receipts_of_single_messages():
    (found,) = popped([stored(8)], None, None)
    assert (found.handle.start_offset, found.handle.offset) == (8, 8)


def test_the_first_pop_time_is_kept_when_a_message_comes_again():
    again = stored(5, properties=b"1ST_POP_TIME\x01900")
    fresh = stored(7)
    found = popped([again, fresh])
    assert [each.message.property_map()["1ST_POP_TIME"] for each in found] == ["900", "1000"]


def test_an_ordered_answer_says_how_often_a_message_was_delivered():
    by_offset = popped([stored(5), stored(7)], counts="0 qo0%5 2")
    assert [each.message.reconsume_times for each in by_offset] == [2, 0]
    by_queue = popped([stored(5), stored(7)], counts="0 0 4")
    assert [each.message.reconsume_times for each in by_queue] == [4, 4]


def test_a_changed_invisible_time_gives_a_receipt_of_one_message():
    found = popped([stored(5), stored(7)])
    answer = ChangeInvisibleAnswer(pop_time=2000, invisible_time=10_000, revive_qid=4)
    assert str(renewed(found[1].handle, answer)) == "7 2000 10000 4 0 b1 0 7"


def test_the_kind_of_a_topic_is_seen_from_its_name():
    assert [retry_flag(each) for each in ("t", "%RETRY%g_t", "%RETRY%g+t")] == [0, 1, 2]
