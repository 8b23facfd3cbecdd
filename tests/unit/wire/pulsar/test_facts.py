"""What others may know of Pulsar's messages; batches opened, and what cannot be."""

import zlib

import cramjam
import pytest

from kit.pulsar_payload import (
    COMPRESSIONS,
    PUBLISH_MS,
    PulsarMessage,
    batch_tail,
    numbered_messages,
    single_tail,
    tail,
)
from penstock.engine.ports import BatchCodec, OrderingKeyReader
from penstock.model.record import Facts
from penstock.wire.pulsar import facts as room
from penstock.wire.pulsar.facts import PulsarFacts
from penstock.wire.pulsar.metadata import make_record, ordering_key, read_metadata
from penstock.wire.pulsar.protocol_pb2 import EncryptionKeys

MIB = 1 << 20
READER = PulsarFacts()
FULL = PulsarMessage(
    b"body" * 100,
    "customer-7",
    {"TAGS": "paid", "message_id": "id-1", "color": "red"},
    event_ms=1_700_000_000_000,
)
FULL_FACTS = Facts(
    key="customer-7",
    tag="paid",
    message_id="id-1",
    born_ms=1_700_000_000_000,
    properties={"color": "red"},
)


def record_of(made):
    return make_record(made, 5)


def test_it_is_what_the_engine_looks_for():
    assert isinstance(READER, BatchCodec)
    assert isinstance(READER, OrderingKeyReader)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("make", [single_tail, batch_tail])
def test_one_message_is_told_the_same_way_however_it_is_wrapped(make, compression):
    record = record_of(make(FULL, compression=compression))
    assert READER.facts(record) == FULL_FACTS
    assert READER.body(record, MIB) == FULL.body
    assert READER.keys(record) == [b"id-1", b"customer-7"]
    assert READER.ordering_key(record) == b"customer-7"
    assert READER.properties(record) == FULL.properties


def test_a_message_that_says_nothing_has_no_facts_but_its_birth():
    record = record_of(single_tail(b"x", deliver_at_time=7))
    assert READER.facts(record) == Facts(born_ms=PUBLISH_MS, deliver_ms=7)
    assert READER.keys(record) == []


def test_what_cannot_be_read_is_shown_as_it_came():
    record = record_of(b"garbage")
    assert READER.facts(record) == Facts(born_ms=5)
    assert READER.properties(record) == {}
    assert READER.body(record, MIB) == b"garbage"
    assert isinstance(READER.open_batch(record, MIB), str)


def test_how_a_body_is_to_be_read_is_told():
    facts = READER.facts(record_of(single_tail(PulsarMessage(is_null=True))))
    assert facts.properties == {"pulsar.null_value": "true"}
    chunk = single_tail(b"x", uuid="p-1", chunk_id=1, num_chunks_from_msg=3)
    assert READER.facts(record_of(chunk)).properties == {
        "pulsar.uuid": "p-1",
        "pulsar.chunk_id": "1",
        "pulsar.num_chunks_from_msg": "3",
    }
    keys = [EncryptionKeys(key="k", value=b"v")]
    record = record_of(single_tail(b"secret", encryption_keys=keys))
    assert READER.facts(record).properties == {"pulsar.encrypted": "true"}
    assert READER.body(record, MIB) == b"secret"


def test_texts_that_are_no_utf8_are_shown_as_well_as_can_be():
    metadata, _ = read_metadata(single_tail(b""))
    raw = metadata.SerializeToString() + b"\x32\x02\xffk" + b"\x22\x06\x0a\x01\xfe\x12\x01v"
    facts = READER.facts(record_of(tail(raw, b"")))
    assert (facts.key, facts.properties) == ("\ufffdk", {"\ufffd": "v"})


def test_a_key_without_a_span_is_found_all_the_same():
    assert (
        READER.facts(record_of(single_tail(PulsarMessage(b"", "k" * 70_000)))).key == "k" * 70_000
    )


# Batches


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_every_message_of_a_batch_is_a_record(count, compression):
    messages = numbered_messages(count)
    record = record_of(batch_tail(*messages, compression=compression))
    assert record.messages == count
    found = READER.open_batch(record, MIB)
    assert [each.body for each in found] == [message.body for message in messages]
    assert [each.key.decode() for each in found] == [message.key for message in messages]
    assert [each.tag.decode() for each in found] == [
        message.properties["TAGS"] for message in messages
    ]
    for each, message in zip(found, messages, strict=True):
        facts = READER.facts(each)
        assert facts.properties == {"number": message.properties["number"]}
        assert READER.body(each, MIB) == message.body
        assert READER.ordering_key(each) == message.key.encode()


def test_a_message_of_a_batch_says_nothing_of_the_others():
    messages = [PulsarMessage(b"a", "first", {"a": "1"}, b"o", 9), PulsarMessage(b"b")]
    record = record_of(batch_tail(*messages, sequence_id=40, compression="LZ4"))
    first, second = READER.open_batch(record, MIB)
    assert (first.key, first.born_ms, ordering_key(first)) == (b"first", 9, b"o")
    assert (second.key, second.born_ms, second.flags) == (b"", 0, 0)
    assert READER.facts(second).properties == {}
    assert ordering_key(second).endswith(b"-40")


def test_an_opened_message_is_one_that_a_client_of_pulsar_can_read():
    record = record_of(batch_tail(FULL, b"x", compression="ZSTD"))
    first, _ = READER.open_batch(record, MIB)
    again = record_of(first.origin)
    assert again.shape == first.shape
    metadata, _ = read_metadata(first.origin)
    assert (metadata.num_messages_in_batch, metadata.compression) == (1, 0)
    assert READER.facts(again) == FULL_FACTS


def test_messages_that_are_null_or_compacted_out_are_there_and_say_so():
    messages = [
        PulsarMessage(b"", "k", is_null=True),
        PulsarMessage(b"", "k", is_compacted_out=True),
        PulsarMessage(b"", "k"),
    ]
    found = READER.open_batch(record_of(batch_tail(*messages)), MIB)
    assert [READER.facts(each).properties for each in found] == [
        {"pulsar.null_value": "true"},
        {"pulsar.compacted_out": "true"},
        {},
    ]
    assert [each.body for each in found] == [b"", b"", b""]


def test_a_batch_that_is_shown_whole_is_its_bytes_and_the_key_of_the_first():
    record = record_of(batch_tail(FULL, b"x", compression="ZLIB"))
    assert READER.body(record, MIB) == record.body
    assert READER.facts(record).key == "customer-7"
    assert READER.facts(record).properties == {}


def test_an_encrypted_batch_is_not_opened():
    keys = [EncryptionKeys(key="k", value=b"v")]
    record = record_of(batch_tail(b"a", b"b", encryption_keys=keys))
    assert READER.open_batch(record, MIB) == "encrypted"
    record = record_of(batch_tail(b"a", encryption_keys=keys, compression="ZLIB"))
    with pytest.raises(ValueError, match="encrypted"):
        READER.body(record, MIB)
    assert READER.facts(record).properties == {"pulsar.encrypted": "true"}


def test_a_batch_that_ends_too_early_is_not_opened():
    metadata, at = read_metadata(whole := batch_tail(b"a" * 50, b"b" * 50))
    assert record_of(whole).messages == 2
    for payload in (whole[at:-1], whole[at:][:60], b"\xff" * 40, b"\0\0\0\0" * 20):
        record = record_of(tail(metadata, payload))
        assert record.messages == 2
        assert READER.open_batch(record, MIB).startswith("corrupt: ")


def test_bytes_behind_the_last_message_are_nobodys():
    metadata, at = read_metadata(whole := batch_tail(b"a", b"b"))
    found = READER.open_batch(record_of(tail(metadata, whole[at:] + b"more")), MIB)
    assert [each.body for each in found] == [b"a", b"b"]


# T13: what is small and would become large


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
@pytest.mark.parametrize("make", [single_tail, batch_tail])
def test_nothing_is_inflated_beyond_the_limit(make, compression):
    made = make(bytes(2 * MIB), compression=compression)
    assert len(made) < 200_000
    record = record_of(made)
    assert len(READER.body(record, 3 * MIB)) == 2 * MIB
    with pytest.raises(ValueError, match="more than 1048576 bytes when inflated"):
        READER.body(record, MIB)
    record = record_of(batch_tail(bytes(MIB), bytes(MIB), compression=compression))
    assert READER.open_batch(record, MIB) == "more than 1048576 bytes when inflated"


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
@pytest.mark.parametrize("claimed", [0, 1, 100, MIB])
def test_a_bomb_that_claims_to_be_small_is_corrupt(compression, claimed):
    metadata, at = read_metadata(made := single_tail(bytes(64 * MIB), compression=compression))
    metadata.uncompressed_size = claimed
    with pytest.raises(ValueError, match="corrupt: "):
        READER.body(record_of(tail(metadata, made[at:])), 2 * MIB)


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_a_payload_that_is_not_what_it_says_is_corrupt(compression):
    metadata, at = read_metadata(made := single_tail(b"abc" * 100, compression=compression))
    for payload in (b"", b"\0", made[at:-4], b"\xff" * 100):
        with pytest.raises(ValueError, match="corrupt: "):
            READER.body(record_of(tail(metadata, payload)), MIB)
    metadata.uncompressed_size += 1
    with pytest.raises(ValueError, match="corrupt: "):
        READER.body(record_of(tail(metadata, made[at:])), MIB)


def test_a_chunk_of_a_compressed_message_cannot_be_inflated_by_itself():
    made = single_tail(b"abc" * 100, compression="ZLIB", chunk_id=0, num_chunks_from_msg=2)
    with pytest.raises(ValueError, match="a part of a larger message"):
        READER.body(record_of(made), MIB)


def test_without_its_library_a_payload_says_so(monkeypatch):
    monkeypatch.setattr(room, "_CODECS", {})
    record = record_of(batch_tail(b"a", b"b", compression="LZ4"))
    assert READER.open_batch(record, MIB) == (
        "compressed with LZ4, for which this build has no library (cramjam)"
    )
    record = record_of(batch_tail(b"a", b"b", compression="ZLIB"))
    assert len(READER.open_batch(record, MIB)) == 2


def test_the_bytes_are_those_of_other_libraries_too():
    """LZ4 is a block without a size before it, snappy is raw, zlib is zlib's (pulsar.md 1.2)."""
    plain = b"penstock " * 50
    assert zlib.decompress(payload_of("ZLIB", plain)) == plain
    assert bytes(cramjam.zstd.decompress(payload_of("ZSTD", plain))) == plain
    assert payload_of("SNAPPY", plain)[:2] == bytes((len(plain) & 0x7F | 0x80, len(plain) >> 7))
    assert payload_of("LZ4", plain)[0] >> 4 == 9


def payload_of(compression, plain):
    made = single_tail(plain, compression=compression)
    return made[read_metadata(made)[1] :]
