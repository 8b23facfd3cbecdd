"""Many receipts in few requests."""

from penstock.client.consumer.pop_acks import ENTRIES_MAX, SPAN_MAX, batched, can_share, single
from penstock.wire.rocketmq.bodies import BatchAckBody, decode_body, encode_body
from penstock.wire.rocketmq.pop_handle import REVIVE_ORDERLY, PopHandle


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
