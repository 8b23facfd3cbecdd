"""Entries opened: checksums, compression, batches, chunks."""

import pytest

from kit.pulsar_payload import COMPRESSIONS, PulsarMessage, batch_tail, single_tail, tail
from penstock.client.pulsar.consumer import entries
from penstock.client.pulsar.consumer.entries import (
    Chunks,
    Corrupt,
    Encrypted,
    EntryOrigin,
    batch_messages,
    open_entry,
)
from penstock.wire.pulsar.protocol_pb2 import CommandAck, MessageMetadata

ORIGIN = EntryOrigin("t", (7, 1), 2, 3, None, None, 0)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_message_and_a_batch_are_what_was_sent(compression):
    body = b"hello " * 50
    assert open_entry(single_tail(body, compression=compression)).payload == body
    messages = [PulsarMessage(b"%d" % n, f"k{n}") for n in range(4)]
    opened = open_entry(batch_tail(*messages, compression=compression))
    assert (opened.messages, opened.is_batch) == (4, True)
    found = batch_messages(opened, ORIGIN, 0b1101)
    assert [each.data for each in found] == [b"0", b"2", b"3"]
    assert [each.key for each in found] == ["k0", "k2", "k3"]
    assert [each.message_id.batch_index for each in found] == [0, 2, 3]
    assert (found[0].message_id.batch_size, found[0].redelivery_count) == (4, 3)


def test_what_the_broker_added_before_the_checksum_is_skipped():
    added = b"\x0e\x02" + (3).to_bytes(4, "big") + b"abc"
    assert open_entry(added + single_tail(b"x")).payload == b"x"


def test_messages_that_were_compacted_away_are_not_handed_out():
    opened = open_entry(batch_tail(PulsarMessage(b"a", is_compacted_out=True), PulsarMessage(b"b")))
    assert [each.data for each in batch_messages(opened, ORIGIN, 0b11)] == [b"b"]


def test_a_wrong_checksum_is_found():
    data = bytearray(single_tail(b"hello"))
    data[-1] ^= 1
    with pytest.raises(Corrupt) as found:
        open_entry(bytes(data))
    assert found.value.error == CommandAck.ChecksumMismatch


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00\xff", b"\x00\x00\x00\x02ab"])
def test_metadata_that_are_none_are_found(data):
    with pytest.raises(Corrupt):
        open_entry(data)


def test_a_body_that_does_not_inflate_is_found():
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, compression=2, uncompressed_size=5
    )
    with pytest.raises(Corrupt) as found:
        open_entry(tail(metadata, b"nonsense"))
    assert found.value.error == CommandAck.DecompressionError
    metadata.uncompressed_size = 2**31
    with pytest.raises(Corrupt) as found:
        open_entry(tail(metadata, b"nonsense"))
    assert found.value.error == CommandAck.UncompressedSizeCorruption


def test_a_batch_that_ends_too_soon_is_found_with_its_permits():
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=3
    )
    with pytest.raises(Corrupt) as found:
        batch_messages(open_entry(tail(metadata, b"\x00")), ORIGIN, 0b111)
    assert found.value.messages == 3


def test_an_encrypted_entry_is_not_read():
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    metadata.encryption_keys.add(key="k", value=b"v")
    with pytest.raises(Encrypted):
        open_entry(tail(metadata, b"?"))


# ---- chunks -------------------------------------------------------------------------------------


def chunk(number, total=3, uuid="u", body=b"ab", sent_ms=1):
    return open_entry(
        single_tail(
            body, uuid=uuid, chunk_id=number, num_chunks_from_msg=total, publish_time=sent_ms
        )
    )


def chunks(**options):
    return Chunks(**{"pending_max": 2, "bytes_max": 100, "expire_ms": 50, **options})


def test_chunks_of_two_messages_may_be_mixed():
    found = chunks()
    for number in range(2):
        assert found.add(chunk(number, uuid="u"), (1, number), 0) is None
        assert found.add(chunk(number, uuid="v"), (2, number), 0) is None
    assert found.add(chunk(2, uuid="u"), (1, 2), 0).payload == b"ababab"
    assert found.add(chunk(2, uuid="v"), (2, 2), 0).payload == b"ababab"
    assert found.entries_of((1, 2)) == [(1, 0), (1, 1), (1, 2)]
    assert (len(found), found.bytes, found.given_up) == (0, 0, 0)


def test_a_chunk_whose_beginning_is_not_here_is_dropped():
    found = chunks()
    assert found.add(chunk(1), (1, 1), 0) is None
    assert len(found) == 0


def test_a_chunk_that_comes_twice_is_taken_once():
    found = chunks()
    found.add(chunk(0), (1, 0), 0)
    found.add(chunk(0), (1, 0), 0)
    found.add(chunk(1), (1, 1), 0)
    assert found.add(chunk(2), (1, 2), 0).payload == b"ababab"


def test_a_chunk_that_was_stored_twice_is_taken_once_and_the_other_is_done_with():
    found = chunks()
    stored = [0, 1, 0, 1, 2, 2]
    whole = [found.add(chunk(number), (1, at), 0) for at, number in enumerate(stored)]
    assert [each is not None for each in whole] == [False, False, False, False, True, False]
    assert found.entries_of((1, 4)) == [(1, 0), (1, 1), (1, 4)]
    assert found.take_doubles() == [(1, 2), (1, 3), (1, 5)]
    assert found.take_doubles() == []


def test_a_message_that_is_delivered_again_is_no_double():
    found = chunks()
    for _ in range(2):
        assert [found.add(chunk(n), (1, n), 0) is not None for n in range(3)] == [
            False,
            False,
            True,
        ]
    assert found.take_doubles() == []


def test_another_message_of_a_producer_that_counts_from_the_beginning_again_is_no_double():
    found = chunks()
    assert found.add(chunk(0), (1, 0), 0) is None
    for number in range(3):
        whole = found.add(chunk(number, body=b"xy", sent_ms=2), (2, number), 0)
    assert whole.payload == b"xyxyxy"
    for number in range(3):
        whole = found.add(chunk(number, body=b"vw", sent_ms=3), (3, number), 0)
    assert whole.payload == b"vwvwvw"
    assert found.take_doubles() == []


def test_what_is_known_of_messages_put_together_has_a_bound(monkeypatch):
    monkeypatch.setattr(entries, "TOGETHER_MAX", 2)
    found = chunks()
    for number in range(4):
        found.add(chunk(0, total=2, uuid=str(number)), (number, 0), 0)
        found.add(chunk(1, total=2, uuid=str(number)), (number, 1), 0)
    found.add(chunk(1, total=2, uuid="1"), (9, 0), 0)
    found.add(chunk(1, total=2, uuid="3"), (9, 1), 0)
    assert found.take_doubles() == [(9, 1)]


def test_the_oldest_gives_way_when_there_are_too_many_or_too_large():
    found = chunks()
    for uuid in "uvw":
        found.add(chunk(0, uuid=uuid), (1, 0), 0)
    assert (len(found), found.given_up) == (2, 1)
    found = chunks(bytes_max=3)
    found.add(chunk(0, uuid="u"), (1, 0), 0)
    found.add(chunk(0, uuid="v"), (1, 1), 0)
    assert (len(found), found.bytes) == (1, 2)


def test_what_gave_way_and_what_came_too_soon_is_to_be_asked_for_again():
    found = chunks()
    for name in range(3):
        found.add(chunk(0, uuid=str(name)), (name, 0), 0)
    assert found.take_strays() == [(0, 0)]
    found.add(chunk(2, uuid="2"), (2, 2), 0)
    assert found.take_strays() == [(2, 2)]
    assert len(found) == 2, "the beginning is still there"
    assert found.take_strays() == []


def test_a_message_too_large_for_all_the_room_there_is_is_not_asked_for_again():
    found = chunks(bytes_max=3)
    found.add(chunk(0), (1, 0), 0)
    found.add(chunk(1), (1, 1), 0)
    assert (len(found), found.take_strays()) == (0, [])


def test_one_whose_next_chunk_does_not_come_is_given_up():
    found = chunks()
    found.add(chunk(0), (1, 0), 0)
    found.expire(50)
    assert len(found) == 1
    found.expire(51)
    assert (len(found), found.bytes) == (0, 0)


def test_what_is_known_of_whole_messages_has_a_bound(monkeypatch):
    monkeypatch.setattr(entries, "WHOLE_MAX", 2)
    found = chunks()
    for number in range(4):
        found.add(chunk(0, total=2, uuid=str(number)), (number, 0), 0)
        found.add(chunk(1, total=2, uuid=str(number)), (number, 1), 0)
    assert found.entries_of((1, 1)) is None
    assert found.entries_of((3, 1)) == [(3, 0), (3, 1)]
