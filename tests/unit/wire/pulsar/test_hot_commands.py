"""Commands that are written by hand are those that protobuf writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.pulsar.frames import NO_ID, FrameParser, encode
from penstock.wire.pulsar.hot_commands import (
    encode_message,
    encode_messages,
    encode_receipt,
    encode_receipts,
    varint,
)
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CommandMessage,
    CommandSendReceipt,
    MessageIdData,
)

EDGES = (0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**32, 2**63 - 1, 2**63, NO_ID)
ids = st.one_of(st.sampled_from(EDGES), st.integers(0, NO_ID))
partitions = st.one_of(st.just(-1), st.integers(0, 2**31 - 1))


@pytest.mark.parametrize("number", EDGES)
def test_a_number_is_written_as_protobuf_writes_it(number):
    made = MessageIdData(ledgerId=0, entryId=number).SerializeToString()
    assert varint(number) == made[3:]


@given(ids, ids, ids, partitions)
def test_a_message_is_what_protobuf_makes_of_it(consumer_id, ledger_id, entry_id, partition):
    found = MessageIdData(ledgerId=ledger_id, entryId=entry_id, partition=partition)
    message = CommandMessage(consumer_id=consumer_id, message_id=found)
    head = encode_message(consumer_id, (ledger_id, entry_id, partition), 5)
    command = BaseCommand(type=BaseCommand.MESSAGE, message=message)
    assert head[8:] == command.SerializeToString()
    assert FrameParser().feed(head + b"tail.") == [(command, b"tail.")]


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(-(2**63), 2**63 - 1)), ids)
def test_a_message_says_more_when_there_is_more_to_say(redelivery_count, ack_set, epoch):
    head = encode_message(
        1,
        (2, 3, -1),
        0,
        redelivery_count=redelivery_count,
        ack_set=ack_set,
        consumer_epoch=epoch,
    )
    ((command, _),) = FrameParser().feed(head)
    message = command.message
    assert (message.message_id.ledgerId, message.message_id.entryId) == (2, 3)
    assert message.message_id.partition == -1
    assert message.redelivery_count == redelivery_count
    assert message.HasField("redelivery_count") == (redelivery_count > 0)
    assert list(message.ack_set) == ack_set
    assert message.consumer_epoch == epoch


@given(ids, ids, ids, ids, ids)
def test_a_receipt_is_what_protobuf_makes_of_it(producer_id, sequence_id, ledger, entry, highest):
    receipt = CommandSendReceipt(
        producer_id=producer_id,
        sequence_id=sequence_id,
        message_id=MessageIdData(ledgerId=ledger, entryId=entry),
        highest_sequence_id=highest,
    )
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt=receipt)
    assert encode_receipt(producer_id, sequence_id, ledger, entry, highest) == encode(command)


rising = st.lists(st.integers(0, 300), min_size=1, max_size=300).map(
    lambda steps: [sum(steps[: at + 1]) for at in range(len(steps))]
)
rows = st.one_of(
    st.integers(1, 400).map(lambda count: list(range(100, 100 + count))),
    rising,
    st.lists(ids, min_size=1, max_size=20),
)


@given(ids, ids, rows, st.data())
def test_receipts_in_a_row_are_those_of_one_by_one(producer_id, ledger, numbers, data):
    start = data.draw(ids)
    entries = data.draw(
        st.one_of(
            st.just([(start + each) & NO_ID for each in range(len(numbers))]),
            st.just(numbers),
            st.lists(ids, min_size=len(numbers), max_size=len(numbers)),
        )
    )
    found = b"".join(encode_receipts(producer_id, ledger, numbers, entries))
    assert found == b"".join(
        [
            encode_receipt(producer_id, number, ledger, entry)
            for number, entry in zip(numbers, entries, strict=True)
        ]
    )


@given(ids, ids, partitions, rows, st.randoms(use_true_random=False))
def test_messages_in_a_row_are_those_of_one_by_one(consumer_id, ledger, partition, entries, chance):
    sizes = [chance.choice((0, 5, 128, 70_000)) for _ in entries]
    assert encode_messages(consumer_id, (ledger, partition), entries, sizes) == [
        encode_message(consumer_id, (ledger, entry, partition), size)
        for entry, size in zip(entries, sizes, strict=True)
    ]
