"""The bytes of SENDs: what a broker and a consumer read of them."""

import pytest

from kit.client.pulsar_producer import SentEntry
from penstock.client.pulsar.compression import Compression
from penstock.client.pulsar.encoding import Content, Extras, SendEncoder, content_of
from penstock.client.pulsar.errors import InvalidUse
from penstock.client.pulsar.message import Message
from penstock.wire.pulsar.facts import inflate
from penstock.wire.pulsar.frames import FrameParser
from penstock.wire.pulsar.runs import RunReader


def encoder(compression=Compression.NONE, *, max_message_size=1 << 20, chunk_bytes_max=-1):
    found = SendEncoder(4, compression)
    found.name = "me"
    found.max_message_size = max_message_size
    found.chunk_bytes_max = chunk_bytes_max
    return found


def read(*frames):
    parser = FrameParser(max_message_size=6 << 20)
    return [SentEntry(*each) for pieces in frames for each in parser.feed(b"".join(pieces))]


def content(payload=b"body", **fields):
    return content_of(Message(payload, **fields), payload or b"", 1000)


def test_a_message_alone_says_all_that_its_sender_said():
    given = content(
        key="k", ordering_key=b"o", properties={"a": "b", "c": "d"}, event_time_ms=5,
        deliver_after_ms=7, replicate_to=["there"],
    )  # fmt: skip
    (sent,) = read(*encoder().alone(given, 9, 1234))
    said = sent.metadata
    assert (sent.command.producer_id, sent.sequence_id) == (4, 9)
    assert (said.producer_name, said.sequence_id, said.publish_time) == ("me", 9, 1234)
    assert (said.partition_key, said.ordering_key, said.event_time) == ("k", b"o", 5)
    assert [(pair.key, pair.value) for pair in said.properties] == [("a", "b"), ("c", "d")]
    assert said.deliver_at_time == 1007
    assert list(said.replicate_to) == ["there"]
    assert not said.HasField("num_messages_in_batch")
    assert sent.payload == b"body"


def test_a_plain_message_is_read_as_one_of_a_run_by_the_broker():
    made = encoder()
    frames = [
        b"".join(made.alone(content(), number, 1_790_000_000_000)[0]) for number in range(300, 304)
    ]
    parser = FrameParser(runs=RunReader)
    parser.feed(frames[0])
    (run,) = parser.feed(b"".join(frames[1:]))
    assert run.sequence_ids == [301, 302, 303]


def test_a_key_in_bytes_goes_as_base64():
    (sent,) = read(*encoder().alone(content(key=b"\xff"), 0, 1))
    assert sent.metadata.partition_key == "/w=="
    assert sent.metadata.partition_key_b64_encoded


def test_a_message_without_a_value_says_so():
    (sent,) = read(*encoder().alone(content(None), 0, 1))
    assert sent.metadata.null_value
    assert sent.payload == b""


def test_a_batch_has_each_message_with_its_own_and_both_ends_of_its_ids():
    contents = [content(b"a", key="k1"), content(b"bb"), content(b"c", properties={"x": "y"})]
    (sent,) = read(encoder().batch(contents, [7, 8, 9], 1234))
    assert sent.command.num_messages == 3
    assert (sent.command.sequence_id, sent.command.highest_sequence_id) == (7, 9)
    assert (sent.metadata.sequence_id, sent.metadata.highest_sequence_id) == (7, 9)
    assert sent.metadata.partition_key == "k1"
    assert sent.payloads == [b"a", b"bb", b"c"]
    singles = [single for single, _ in sent.singles]
    assert [single.sequence_id for single in singles] == [7, 8, 9]
    assert [single.partition_key for single in singles] == ["k1", "", ""]
    assert singles[2].properties[0].value == "y"


def test_what_the_hand_writes_of_a_message_in_a_batch_is_protobufs():
    contents = [content(b"a" * 300, key="ü"), content(b"b", key="x", event_time_ms=1)]
    (sent,) = read(encoder().batch(contents, [1 << 20, 1 << 40], 1))
    for single, payload in sent.singles:
        raw = single.SerializeToString()
        assert raw + payload in sent.payload


@pytest.mark.parametrize("how", [each for each in Compression if each is not Compression.NONE])
def test_a_batch_is_compressed_as_a_whole(how):
    contents = [content(b"same " * 50)] * 3
    (sent,) = read(encoder(how).batch(contents, [0, 1, 2], 1))
    said = sent.metadata
    plain = inflate(sent.payload, said.compression, said.uncompressed_size, 10_000)
    assert plain.count(b"same ") == 150
    assert len(sent.payload) < len(plain) / 2


def test_a_large_payload_is_not_copied():
    payload = bytes(100_000)
    ((head, tail),) = encoder().alone(content(payload), 0, 1)
    assert tail is payload
    assert len(head) < 200


def test_a_message_too_large_is_refused_with_what_to_do():
    with pytest.raises(InvalidUse, match=r"2000 bytes is larger than .*\(1000\).*chunking_enabled"):
        encoder(max_message_size=1000).alone(content(bytes(2000)), 0, 1)


def test_chunks_have_one_uuid_one_sequence_id_and_together_the_payload():
    payload = bytes(range(256)) * 40
    made = encoder(max_message_size=3000, chunk_bytes_max=0)
    sent = read(*made.alone(content(payload, key="k"), 5, 1))
    assert len(sent) == 4
    assert b"".join(each.payload for each in sent) == payload
    assert {each.metadata.uuid for each in sent} == {"me-5"}
    assert {each.sequence_id for each in sent} == {5}
    assert [each.metadata.chunk_id for each in sent] == [0, 1, 2, 3]
    assert {each.metadata.num_chunks_from_msg for each in sent} == {4}
    assert {each.metadata.total_chunk_msg_size for each in sent} == {len(payload)}
    assert all(each.command.is_chunk for each in sent)
    assert all(len(each.payload) + each.metadata.ByteSize() <= 3000 for each in sent)


def test_a_compressed_message_is_cut_after_it_was_compressed():
    payload = bytes(100_000)
    made = encoder(Compression.ZLIB, max_message_size=3000, chunk_bytes_max=0)
    (sent,) = read(*made.alone(content(payload), 5, 1))
    assert not sent.metadata.HasField("chunk_id")
    made.chunk_bytes_max = 20
    sent = read(*made.alone(content(payload), 5, 1))
    joined = b"".join(each.payload for each in sent)
    said = sent[0].metadata
    assert inflate(joined, said.compression, said.uncompressed_size, 200_000) == payload


def test_chunks_may_be_smaller_than_the_broker_would_take():
    made = encoder(chunk_bytes_max=2000)
    assert len(made.alone(content(bytes(5000)), 0, 1)) == 3
    assert len(made.alone(content(bytes(2000)), 0, 1)) == 1


def test_properties_that_leave_no_room_for_a_chunk_are_refused():
    given = content(bytes(5000), properties={"x": "y" * 2500})
    with pytest.raises(InvalidUse, match="shorten them"):
        encoder(max_message_size=3000, chunk_bytes_max=0).alone(given, 0, 1)


def test_more_chunks_than_anybody_puts_together_are_refused():
    made = encoder(max_message_size=1 << 20, chunk_bytes_max=1)
    with pytest.raises(InvalidUse, match="would be 20000 chunks, limit 10000"):
        made.alone(content(bytes(20_000)), 0, 1)


def test_a_batch_too_large_is_none():
    assert encoder(max_message_size=100).batch([content(bytes(60))] * 2, [0, 1], 1) is None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"key": 5}, "key is a str or bytes, not int"),
        ({"ordering_key": "x"}, "ordering key is bytes, not str; encode it"),
        ({"properties": {"a": 1}}, "names and values are str"),
        ({"properties": {1: "a"}}, "names and values are str"),
        ({"properties": dict.fromkeys(map(str, range(10_001)), "")}, "limit 10000"),
        ({"event_time_ms": -1}, "event_time_ms is -1; milliseconds"),
        ({"event_time_ms": 1.5}, "milliseconds as an int"),
        ({"deliver_at_ms": True}, "milliseconds as an int"),
        ({"deliver_at_ms": 1, "deliver_after_ms": 1}, "not both"),
        ({"sequence_id": -1}, "a number from 0 on"),
        ({"sequence_id": "1"}, "a number from 0 on"),
        ({"key": "\udc80"}, "key .* cannot be UTF-8"),
        ({"properties": {"\udc80": "a"}}, "property .* cannot be UTF-8"),
        ({"properties": {"file": "a\udcff"}}, "property 'file' .* cannot be UTF-8"),
        ({"properties": [1]}, "properties are a map of str to str, not \\[1\\]"),
        ({"deliver_after_ms": 2**63 - 1}, "deliver_after_ms is .*milliseconds"),
        ({"replicate_to": ("a", 5)}, "replicate_to is .*names of clusters"),
        ({"replicate_to": "abc"}, "replicate_to is 'abc'; .*names of clusters"),
        ({"replicate_to": None}, "replicate_to is None; .*names of clusters"),
        ({"replicate_to": ["\udc80"]}, "cannot be UTF-8"),
    ],
)
def test_a_message_that_cannot_be_right_is_refused_with_a_sentence(fields, told):
    with pytest.raises(InvalidUse, match=told):
        content(**fields)


def test_the_size_counts_key_and_properties():
    assert content(b"1234", key="56", properties={"7": "89"}).size_bytes == 9
    assert Content(b"12").size_bytes == 2


def test_what_holds_for_a_whole_entry_keeps_a_message_out_of_batches():
    assert content(key="k", properties={"a": "b"}).can_be_batched
    assert not content(deliver_at_ms=5).can_be_batched
    assert not content(replicate_to=["there"]).can_be_batched
    assert content().extras is None
    assert content(event_time_ms=1).extras == Extras(event_time_ms=1)


@pytest.mark.parametrize(
    "sequence_id", [0, 0x7F, 0x80, 0x3FFF, 0x4000, 0x1FFFFF, 0x200000, 2**40, 2**63 - 1]
)
def test_sequence_ids_of_every_length_come_back(sequence_id):
    (sent,) = read(*encoder().alone(content(), sequence_id, 1))
    assert (sent.sequence_id, sent.metadata.sequence_id) == (sequence_id, sequence_id)
    last = min(sequence_id + 1, 2**63 - 1)
    (sent,) = read(encoder().batch([content()] * 2, [sequence_id, last], 1))
    assert [single.sequence_id for single, _ in sent.singles] == [sequence_id, last]
    assert sent.command.highest_sequence_id == last
