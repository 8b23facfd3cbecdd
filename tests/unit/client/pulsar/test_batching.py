"""What gathers in one batch, and when it is full; how messages are numbered."""

from kit.client.pulsar_producer import HeardSend
from penstock.client.pulsar.batching import BatchContainer, Batching, SequenceIds
from penstock.client.pulsar.encoding import content_of
from penstock.client.pulsar.message import Message
from penstock.client.pulsar.routing import BatchLimits


def send(payload=b"x", *, deadline_ms=1000, **fields):
    content = content_of(Message(payload, **fields), payload, 0)
    return HeardSend(content, content.size_bytes, deadline_ms)


def test_a_batch_is_full_by_count():
    batch = BatchContainer(BatchLimits(2, 100, 1))
    batch.add(send())
    assert not batch.is_full
    batch.add(send())
    assert batch.is_full
    assert [len(group) for group in batch.take()] == [2]
    assert batch.is_empty
    assert (batch.messages, batch.bytes) == (0, 0)


def test_a_batch_is_full_by_bytes_and_has_no_room_for_what_would_pass_them():
    batch = BatchContainer(BatchLimits(10, 100, 1))
    batch.add(send(bytes(60)))
    assert not batch.has_room(send(bytes(41)))
    assert batch.has_room(send(bytes(40)))
    batch.add(send(bytes(40)))
    assert batch.is_full


def test_what_is_as_large_as_a_batch_is_not_batched():
    batch = BatchContainer(BatchLimits(10, 100, 1))
    assert not batch.takes(send(bytes(100)))
    assert batch.takes(send(bytes(99)))


def test_delayed_messages_are_not_batched():
    assert not BatchContainer(BatchLimits(10, 100, 1)).takes(send(deliver_at_ms=5))


def test_by_key_there_is_a_batch_for_each_in_the_order_they_began():
    batch = BatchContainer(BatchLimits(10, 100, 1), Batching.KEY)
    for number, key in enumerate("abacb"):
        batch.add(send(b"%d" % number, key=key))
    groups = [[each.content.payload for each in group] for group in batch.take()]
    assert groups == [[b"0", b"2"], [b"1", b"4"], [b"3"]]


def test_by_key_the_ordering_key_goes_before_the_key():
    batch = BatchContainer(BatchLimits(10, 100, 1), Batching.KEY)
    batch.add(send(key="a", ordering_key=b"o"))
    batch.add(send(key="b", ordering_key=b"o"))
    batch.add(send())
    batch.add(send())
    assert [len(group) for group in batch.take()] == [2, 2]


def test_by_key_a_message_with_its_own_sequence_id_goes_alone():
    batch = BatchContainer(BatchLimits(10, 100, 1), Batching.KEY)
    assert not batch.takes(send(sequence_id=5))
    assert BatchContainer(BatchLimits(10, 100, 1)).takes(send(sequence_id=5))


def test_those_whose_time_is_up_leave_and_the_others_stay():
    batch = BatchContainer(BatchLimits(10, 100, 1), Batching.KEY)
    old, young, other = send(deadline_ms=5), send(deadline_ms=9), send(key="k", deadline_ms=5)
    for each in (old, young, other):
        batch.add(each)
    assert batch.oldest is old
    assert batch.expire(5) == [old, other]
    assert batch.take() == [[young]]
    assert batch.oldest is None


def test_ids_count_upwards_from_batch_to_batch():
    ids = SequenceIds(9)
    (first,) = ids.number([send(), send()])
    (second,) = ids.number([send()])
    assert (first.sequence_ids, second.sequence_ids) == ([10, 11], [12])
    assert ids.last_sent == 12


def test_an_id_of_the_senders_own_moves_the_count():
    ids = SequenceIds()
    assert ids.next_for(send(sequence_id=5).content) == 5
    assert ids.next_for(send().content) == 6
    assert ids.next_for(send(sequence_id=3).content) == 3
    assert ids.next_for(send().content) == 7


def test_falling_ids_are_never_in_one_batch():
    ids = SequenceIds()
    sends = [send(sequence_id=5), send(), send(sequence_id=3), send(sequence_id=4), send()]
    assert [each.sequence_ids for each in ids.number(sends)] == [[5, 6], [3, 4, 7]]
