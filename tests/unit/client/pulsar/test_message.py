"""Ids, messages to send and messages received."""

import pytest

from penstock.client.pulsar.message import EARLIEST, LATEST, Message, MessageId, ReceivedMessage
from penstock.wire.pulsar import protocol_pb2 as pb


def test_ids_are_ordered_by_ledger_entry_place_in_the_batch_and_partition():
    ids = [
        MessageId(1, 2), MessageId(1, 2, batch_index=0), MessageId(1, 2, batch_index=1),
        MessageId(1, 3), MessageId(2, 0),
    ]  # fmt: skip
    assert sorted({*ids}) == ids
    assert MessageId(1, 2, partition=0) < MessageId(1, 2, partition=1)
    assert MessageId(1, 2) <= MessageId(1, 2) >= MessageId(1, 2)
    assert MessageId(1, 3) > MessageId(1, 2)


def test_earliest_and_latest_are_below_and_above_all():
    assert EARLIEST < MessageId(0, 0) < LATEST
    assert MessageId.earliest is EARLIEST
    assert MessageId.latest is LATEST


def test_the_size_of_a_batch_makes_no_other_id():
    one, other = MessageId(1, 2, 0, 3, 10), MessageId(1, 2, 0, 3)
    assert one == other
    assert hash(one) == hash(other)
    assert one != (1, 2)


@pytest.mark.parametrize(
    "message_id",
    [
        EARLIEST,
        LATEST,
        MessageId(7, 8),
        MessageId(7, 8, 3),
        MessageId(7, 8, 3, 4, 10),
        MessageId(7, 9, 3, first_chunk=MessageId(7, 5, 3)),
    ],
    ids=str,
)
def test_an_id_comes_back_from_its_bytes(message_id):
    again = MessageId.from_bytes(message_id.to_bytes())
    assert again == message_id
    assert again.batch_size == message_id.batch_size
    assert again.first_chunk == message_id.first_chunk


def test_the_bytes_of_an_id_are_those_of_the_cpp_client():
    pulsar = pytest.importorskip("pulsar")
    theirs = pulsar.MessageId(3, 7, 8, 4)
    ours = MessageId(7, 8, 3, 4)
    assert MessageId.from_bytes(theirs.serialize()) == ours
    back = pulsar.MessageId.deserialize(ours.to_bytes())
    assert (back.ledger_id(), back.entry_id()) == (7, 8)
    assert (back.partition(), back.batch_index()) == (3, 4)
    assert MessageId.from_bytes(pulsar.MessageId.earliest.serialize()) == EARLIEST
    assert MessageId.from_bytes(pulsar.MessageId.latest.serialize()) == LATEST


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x08\x01"])
def test_bytes_that_are_no_id_are_refused_with_a_sentence(data):
    with pytest.raises(ValueError, match="no message id; use MessageId"):
        MessageId.from_bytes(data)


def test_an_id_is_printed_as_tools_of_pulsar_do():
    assert str(MessageId(7, 8)) == "7:8:-1"
    assert str(MessageId(7, 8, 0, 4)) == "7:8:0:4"


def metadata(**fields):
    return pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1000, **fields)


def test_a_message_alone_shows_what_its_metadata_say():
    said = metadata(
        partition_key="k", ordering_key=b"o", event_time=77, deliver_at_time=99, schema_version=b"v"
    )
    said.properties.add(key="a", value="b")
    message = ReceivedMessage("t", MessageId(1, 2), b"body", said, redelivery_count=3)
    assert (message.key, message.key_bytes, message.ordering_key) == ("k", b"k", b"o")
    assert (message.event_time_ms, message.publish_time_ms, message.deliver_at_ms) == (77, 1000, 99)
    assert message.properties == {"a": "b"}
    assert (message.producer_name, message.sequence_id) == ("p", 5)
    assert (message.schema_version, message.redelivery_count, len(message)) == (b"v", 3, 4)
    assert message.value == b"body"
    assert message.replicated_from is None
    assert "1:2:-1" in repr(message)


def test_a_message_of_a_batch_shows_its_own():
    single = pb.SingleMessageMetadata(payload_size=1, partition_key="mine", sequence_id=9)
    message = ReceivedMessage(
        "t", MessageId(1, 2, -1, 0), b"x", metadata(partition_key="first"), single=single
    )
    assert (message.key, message.sequence_id) == ("mine", 9)
    assert message.event_time_ms is None
    assert message.properties == {}


def test_a_key_in_bytes_comes_back_as_bytes():
    said = metadata(partition_key="/w==", partition_key_b64_encoded=True)
    assert ReceivedMessage("t", MessageId(1, 2), b"", said).key_bytes == b"\xff"


def test_a_message_without_a_value_has_none():
    message = ReceivedMessage("t", MessageId(1, 2), b"", metadata(null_value=True))
    assert message.value is None
    assert message.is_null
    assert message.key is None
    assert message.key_bytes is None


def test_a_message_to_send_is_printed_short():
    assert repr(Message(b"12345", key="k")) == "Message(5 B, key='k')"


def test_ids_of_one_place_are_equal_by_both_signs():
    one, same = MessageId(1, 2, -1, 0, 5), MessageId(1, 2, -1, 0)
    assert (one == same, one != same) == (True, False)
    assert one != MessageId(1, 2)
