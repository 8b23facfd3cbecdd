"""Many receipts in few requests."""

import pytest

from penstock.client.consumer.executor import Finished, ResultKind, Suspend
from penstock.client.consumer.ordered import suspend_ms
from penstock.client.consumer.pop_settling import (
    AGE_MS_MAX,
    ENTRIES_MAX,
    SPAN_MAX,
    batched,
    can_share,
    delay_ms,
    real_topic,
    receipts,
    renewed,
    retry_delay_ms,
    retry_flag,
    single,
)
from penstock.wire.rocketmq.bodies import BatchAckBody, decode_body, encode_body
from penstock.wire.rocketmq.headers import ChangeInvisibleAnswer, PopAnswer
from penstock.wire.rocketmq.pop_handle import REVIVE_ORDERLY, PopHandle, RetryFlag
from penstock.wire.rocketmq.stored import StoredMessage


def handle(offset, *, start=10, popped=1000, flag=0, broker="b1", queue=0, revive=3):
    return PopHandle(start, popped, 60_000, revive, flag, broker, queue, offset)


def test_messages_of_one_pop_of_one_queue_share_an_entry():
    ((broker, body),) = batched("g", [("t", handle(10)), ("t", handle(13)), ("t", handle(41))])
    assert broker == "b1"
    read = decode_body(encode_body(body), BatchAckBody)
    (entry,) = read.acks
    assert entry.offsets() == [10, 13, 41]
    assert (entry.topic, entry.consumer_group, entry.retry) == ("t", "g", "0")
    assert (entry.pop_time, entry.invisible_time, entry.revive_queue_id) == (1000, 60_000, 3)


def test_pops_queues_places_and_topics_have_entries_of_their_own():
    receipts = [
        ("t", handle(10)),
        ("t", handle(11, popped=2000)),
        ("t", handle(12, queue=1)),
        ("t", handle(13, flag=1)),
        ("u", handle(14)),
        ("t", handle(15, revive=4)),
    ]
    ((_, body),) = batched("g", receipts)
    assert [each.offsets() for each in body.acks] == [[10], [11], [12], [13], [14], [15]]


def test_each_broker_gets_its_own_request():
    receipts = [("t", handle(10)), ("t", handle(10, broker="b2")), ("t", handle(11))]
    found = dict(batched("g", receipts))
    assert {name: body.acks[0].offsets() for name, body in found.items()} == {
        "b1": [10, 11],
        "b2": [10],
    }


def test_a_request_is_bounded():
    receipts = [("t", handle(10, popped=each)) for each in range(ENTRIES_MAX + 1)]
    assert [len(body.acks) for _, body in batched("g", receipts)] == [ENTRIES_MAX, 1]


def test_ordered_receipts_and_far_offsets_need_requests_of_their_own():
    assert can_share(handle(10))
    assert can_share(handle(10 + SPAN_MAX - 1))
    assert not can_share(handle(10 + SPAN_MAX))
    assert not can_share(handle(9))
    assert not can_share(handle(10, revive=REVIVE_ORDERLY))


def test_a_single_acknowledgement_names_the_topic_in_which_the_message_lies():
    header = single("t", "g", handle(12, flag=1))
    assert (header.topic, header.queue_id, header.offset) == ("%RETRY%g_t", 0, 12)
    assert header.extra_info == "10 1000 60000 3 1 b1 0 12"


# ---- pop delays ---------------------------------------------------------------------------------
# The waits of failed popped messages, against RocketMQ's table.


TABLE_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


def test_the_wait_grows_with_each_delivery_and_ends_at_two_hours():
    assert [delay_ms(times) // 1000 for times in range(18)] == [*TABLE_S, 7200, 7200]


def test_a_level_the_listener_chose_counts_instead_of_the_deliveries():
    assert delay_ms(9, level=2) == 60_000
    assert delay_ms(9, level=99) == 7_200_000


def test_below_sixteen_deliveries_age_does_not_matter():
    assert retry_delay_ms(15, AGE_MS_MAX * 10) == 7_200_000
    assert retry_delay_ms(3, 0, level=1) == 30_000


@pytest.mark.parametrize(
    ("age_s", "wait_s"),
    [(0, 10), (9, 10), (10, 30), (59, 60), (60, 120), (3599, 3600), (3600, 7200), (14_400, 7200)],
)
def test_from_sixteen_deliveries_on_the_age_chooses_the_wait(age_s, wait_s):
    assert retry_delay_ms(16, age_s * 1000) == wait_s * 1000


def test_what_is_older_than_four_hours_after_sixteen_deliveries_is_given_up():
    assert retry_delay_ms(16, 4 * 3_600_000) is not None
    assert retry_delay_ms(16, 4 * 3_600_000 + 1) is None


def test_an_ordered_queue_stands_still_between_ten_milliseconds_and_thirty_seconds():
    calls = [
        Finished([], Suspend(each), None, ResultKind.LATER, 1.0) for each in (-1, 1000, 99_999)
    ]
    assert [suspend_ms(call, 500) for call in calls] == [10, 1000, 30_000]


# ---- pop receipts -------------------------------------------------------------------------------
# Receipts made from the lists of a pop's answer.


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
