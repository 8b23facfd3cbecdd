"""What a record of Pulsar says, read from a SEND: spans, batches, times, keys."""

import pytest

from kit.pulsar_payload import (
    COMPRESSIONS,
    PRODUCER,
    PUBLISH_MS,
    PulsarMessage,
    batch_tail,
    numbered_messages,
    single_tail,
    tail,
)
from penstock.model.record import RecordFlag, Wire
from penstock.wire.pulsar.metadata import (
    BATCH_MESSAGES_MAX,
    SPAN_BYTES_MAX,
    TIME_MS_MAX,
    Unreadable,
    is_readable,
    make_record,
    ordering_key,
    read_metadata,
)
from penstock.wire.pulsar.protocol_pb2 import EncryptionKeys, KeyValue, MessageMetadata

NOW_MS = 1_800_000_000_000


def record_of(made):
    return make_record(made, NOW_MS)


@pytest.mark.parametrize("has_crc", [True, False])
def test_a_single_message_has_its_parts_in_the_origin(has_crc):
    message = PulsarMessage(b"body", "customer-7", {"color": "red", "TAGS": "paid"})
    made = single_tail(message, has_crc=has_crc)
    record = record_of(made)
    assert (record.wire, record.messages, record.flags) == (Wire.PULSAR, 1, 0)
    assert record.origin is made
    assert (record.key, record.tag, record.body) == (b"customer-7", b"paid", b"body")
    metadata, body_at = read_metadata(made)
    assert record.properties == metadata.SerializeToString()
    assert record.shape.body_at == body_at
    assert record.born_ms == PUBLISH_MS
    assert is_readable(record)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("count", [3, 1000])
def test_a_batch_is_one_record_of_many_messages(count, compression):
    made = batch_tail(*numbered_messages(count), compression=compression)
    record = record_of(made)
    assert record.messages == count
    assert bool(record.flags & RecordFlag.COMPRESSED) == (compression != "NONE")
    assert (record.key, record.tag) == (b"k0", b"")
    assert made.endswith(record.body)


def test_a_batch_of_one_is_a_message_as_any_other():
    message = PulsarMessage(b"body", "k", {"TAGS": "paid"})
    record = record_of(batch_tail(message))
    assert (record.messages, record.key, record.tag, record.body) == (1, b"k", b"paid", b"body")


def test_a_batch_of_one_that_is_compressed_is_left_as_it_is():
    record = record_of(batch_tail(PulsarMessage(b"body", "k"), compression="ZLIB"))
    assert (record.messages, record.key, record.tag) == (1, b"k", b"")
    assert record.flags == RecordFlag.COMPRESSED
    assert record.body != b"body"


def test_an_encrypted_batch_of_one_is_not_looked_into():
    keys = [EncryptionKeys(key="k", value=b"v")]
    record = record_of(batch_tail(PulsarMessage(b"body", "k"), encryption_keys=keys))
    assert record.body != b"body"
    assert record.body.endswith(b"body")


@pytest.mark.parametrize("claimed", [0, -1, 3, BATCH_MESSAGES_MAX + 1, 2**31 - 1])
def test_a_number_of_messages_that_cannot_be_is_one_message(claimed):
    made = batch_tail(b"", b"", num_messages_in_batch=claimed)
    assert record_of(made).messages == 1
    assert record_of(batch_tail(b"", b"")).messages == 2


def test_a_compressed_batch_may_hold_what_it_inflates_to_and_no_more():
    made = batch_tail(*[b""] * 1000, compression="ZLIB")
    assert record_of(made).messages == 1000
    made = batch_tail(*[b""] * 1000, compression="ZLIB", num_messages_in_batch=1001)
    assert record_of(made).messages == 1
    metadata, body_at = read_metadata(made)
    metadata.uncompressed_size = 2**32 - 1
    metadata.num_messages_in_batch = 2**31 - 1
    assert record_of(tail(metadata, made[body_at:])).messages == 1


def test_the_time_of_birth_is_the_event_time_else_that_of_the_publish_else_now():
    assert record_of(single_tail(PulsarMessage(b"", event_ms=5))).born_ms == 5
    assert record_of(single_tail(b"")).born_ms == PUBLISH_MS
    for nonsense in (0, TIME_MS_MAX + 1, 2**64 - 1):
        assert record_of(single_tail(b"", publish_time=nonsense)).born_ms == NOW_MS


@pytest.mark.parametrize(
    ("told", "kept"),
    [(0, 0), (-1, 0), (NOW_MS + 5, NOW_MS + 5), (2**63 - 1, TIME_MS_MAX), (-(2**63), 0)],
)
def test_the_time_of_delivery_is_kept_within_reason(told, kept):
    assert record_of(single_tail(b"", deliver_at_time=told)).deliver_ms == kept


def test_a_key_that_is_too_long_for_the_log_has_no_span():
    assert record_of(single_tail(PulsarMessage(b"", "k" * SPAN_BYTES_MAX))).key
    record = record_of(single_tail(PulsarMessage(b"", "k" * (SPAN_BYTES_MAX + 1))))
    assert record.key == b""
    assert len(ordering_key(record)) == SPAN_BYTES_MAX + 1


def test_strings_that_are_no_utf8_are_passed_on():
    metadata, _ = read_metadata(single_tail(b""))
    raw = metadata.SerializeToString() + b"\x32\x02\xff\xfe" + b"\x22\x09\x0a\x04TAGS\x12\x01\xff"
    record = record_of(tail(raw, b"body"))
    assert (record.key, record.tag, record.body) == (b"\xff\xfe", b"\xff", b"body")
    assert ordering_key(record) == b"\xff\xfe"


@pytest.mark.parametrize(
    "made",
    [
        b"",
        b"\0\0",
        b"\0\0\0\x05abc",
        b"\xff\xff\xff\xff" + b"x" * 50,
        b"\x0e\x01abcd",
        b"\x0e\x01abcd\0\0",
        tail(b"\xff\xff", b"body"),
        tail(b"", b"body"),
        tail(MessageMetadata(producer_name="p", publish_time=5), b"body"),
        tail(MessageMetadata(sequence_id=0, publish_time=5), b"body"),
        tail(MessageMetadata(producer_name="p", sequence_id=5), b"body"),
        single_tail(b"", properties=[KeyValue(key="k", value="v")])[:30],
    ],
)
def test_metadata_that_cannot_be_read_make_a_record_without_facts(made):
    with pytest.raises(Unreadable):
        read_metadata(made)
    record = record_of(made)
    assert (record.origin, record.messages, record.born_ms) == (made, 1, NOW_MS)
    assert (record.key, record.tag, record.properties, record.body) == (b"", b"", b"", b"")
    assert not is_readable(record)
    assert ordering_key(record) == b""


def test_an_empty_payload_is_a_message_too():
    record = record_of(single_tail(b""))
    assert record.body == b""
    assert is_readable(record)


def test_messages_alike_share_a_shape():
    assert record_of(single_tail(b"a")).shape is record_of(single_tail(b"b")).shape


@pytest.mark.parametrize(
    ("message", "more", "key"),
    [
        (PulsarMessage(b"", "k", ordering_key=b"o"), {}, b"o"),
        (PulsarMessage(b"", "k"), {}, b"k"),
        (PulsarMessage(b"", "a2V5"), {"partition_key_b64_encoded": True}, b"key"),
        (PulsarMessage(b"", "a2V5"), {}, b"a2V5"),
        (PulsarMessage(b"", "no base 64"), {"partition_key_b64_encoded": True}, None),
        (PulsarMessage(b""), {"sequence_id": 9}, PRODUCER.encode() + b"-9"),
    ],
)
def test_the_ordering_key_is_what_pulsar_hashes(message, more, key):
    found = ordering_key(record_of(single_tail(message, **more)))
    assert found == key or (key is None and found)


def test_the_ordering_key_of_a_batch_is_that_of_its_first_message():
    messages = [PulsarMessage(b"", "first"), PulsarMessage(b"", "second")]
    assert ordering_key(record_of(batch_tail(*messages))) == b"first"
    assert ordering_key(record_of(batch_tail(b"a", b"b", sequence_id=4))).endswith(b"-4")
