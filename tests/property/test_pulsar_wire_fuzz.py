"""Hostile bytes of Pulsar's (T11, T12, T13): every reader reads or refuses, and stays small.

Sized for CI; ``--long`` runs a thousand times as many inputs.
"""

import contextlib
import struct
import tracemalloc
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.pulsar.bench import command
from kit.pulsar_payload import COMPRESSIONS, batch_tail, numbered_messages, single_tail, tail
from kit.wire_fuzz import dearest_read
from penstock.wire.pulsar.facts import PulsarFacts, inflate
from penstock.wire.pulsar.frames import (
    COMMAND_BYTES_MAX,
    FRAME_HEADROOM,
    MAX_MESSAGE_SIZE,
    PAIRS_MAX,
    FrameError,
    FrameParser,
    check,
    encode,
    payload_frame,
)
from penstock.wire.pulsar.metadata import (
    BATCH_MESSAGES_MAX,
    Unreadable,
    make_record,
    ordering_key,
    read_metadata,
)
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CompressionType,
    KeyValue,
    MessageMetadata,
)

INPUTS = 1500
KIB = 1 << 10
MIB = 1 << 20
INTERESTING = (0, 1, 0x0E, 0x7F, 0x80, 0xFF, 0x08, 0x12)
LENGTHS = (0, 1, 3, 4, 5, 0x7F, 0xFFFF, MAX_MESSAGE_SIZE, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
VARINT_TOO_LONG = b"\xff" * 11
READER = PulsarFacts()

FRAMES = b"".join([
    encode(command("CONNECT", client_version="Pulsar-CPP-v4.2.0", protocol_version=20)),
    encode(command("LOOKUP", topic="persistent://public/default/t", request_id=1)),
    encode(command(
        "SUBSCRIBE", topic="t", subscription="s", subType="Shared", consumer_id=1, request_id=2,
        metadata=[{"key": "a", "value": "b"}],
    )),
    encode(command("FLOW", consumer_id=1, messagePermits=1000)),
    encode(command("ACK", consumer_id=1, ack_type="Individual",
                   message_id=[{"ledgerId": 1, "entryId": 2, "ack_set": [3, -1]}])),
    encode(command("PING")),
    encode(command("PING", waits=[{
        "consumer_id": 1, "cause": "LISTENERS", "waiting": 1000, "limit": 4, "lasted_ms": 12_000,
    }])),
])  # fmt: skip
SEND = b"".join(
    payload_frame(
        command("SEND", producer_id=1, sequence_id=0, num_messages=3).SerializeToString(),
        batch_tail(*numbered_messages(3)),
    )
)


def read_frames(data):
    parser = FrameParser()
    for at in range(0, len(data), 97):
        for _, rest in parser.feed(data[at : at + 97]):
            check(rest)


def read_tail(data):
    """What is done with a SEND, and what other protocols' readers do with its record."""
    check(data)
    record = make_record(data, 5)
    assert record.messages >= 1
    ordering_key(record)
    READER.facts(record)
    READER.keys(record)
    READER.properties(record)
    if record.messages > 1:
        opened = READER.open_batch(record, MIB)
        assert isinstance(opened, str) or len(opened) == record.messages
    with contextlib.suppress(ValueError):
        READER.body(record, MIB)
    read_metadata(data)


READERS = {
    "commands": (read_frames, FRAMES),
    "send": (read_frames, SEND),
    "one message": (read_tail, single_tail(numbered_messages(1)[0])),
    "without a checksum": (read_tail, single_tail(b"x" * 50, has_crc=False)),
    **{
        f"batch, {each}": (read_tail, batch_tail(*numbered_messages(5), compression=each))
        for each in COMPRESSIONS
    },
    **{
        f"batch of one, {each}": (read_tail, batch_tail(b"x" * 100, compression=each))
        for each in COMPRESSIONS
    },
}


@pytest.mark.parametrize("name", READERS)
def test_mutated_and_random_bytes_are_read_or_refused_and_never_cost_much(name, is_long):
    reader, seed = READERS[name]
    dearest = dearest_read(
        reader, seed, name, count=INPUTS * (1000 if is_long else 1), bytes_in=INTERESTING,
        lengths=LENGTHS, refusals=(FrameError, Unreadable), insert=VARINT_TOO_LONG,
    )  # fmt: skip
    # A compressed payload may say that it becomes as large as is allowed: that room is made.
    assert dearest < (MAX_MESSAGE_SIZE * 3 if "batch" in name else MIB)


# ---- frames -------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=10))
def test_frames_are_the_same_however_they_are_cut(bodies, cuts):
    data = b"".join([
        b"".join(
            payload_frame(
                command("SEND", producer_id=1, sequence_id=n).SerializeToString(), body
            )
        )
        for n, body in enumerate(bodies)
    ])  # fmt: skip
    parser = FrameParser()
    whole = parser.feed(data)
    parser = FrameParser()
    pieces, at = [], 0
    for cut in sorted({min(each, len(data)) for each in cuts} | {len(data)}):
        pieces += parser.feed(data[at:cut])
        at = cut

    assert [(each.SerializeToString(), rest) for each, rest in pieces] == [
        (each.SerializeToString(), rest) for each, rest in whole
    ]
    assert parser.held_bytes == 0


@pytest.mark.parametrize("total", LENGTHS)
@pytest.mark.parametrize("size", LENGTHS)
def test_giant_lengths_are_refused_without_allocating(total, size):
    data = struct.pack(">II", total, size) + b"\x08" * 64
    tracemalloc.start()
    try:
        parser = FrameParser()
        may_be = 4 <= size + 4 <= total <= MAX_MESSAGE_SIZE + FRAME_HEADROOM
        may_be = may_be and size <= COMMAND_BYTES_MAX
        if may_be and size > 64:
            assert parser.feed(data) == []
        else:
            # Refused by its lengths, or for the 64 bytes, which are no command.
            with pytest.raises(FrameError):
                parser.feed(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * KIB


def test_a_frame_of_the_largest_size_is_taken_and_one_byte_more_is_not():
    parser = FrameParser(max_message_size=10_000)
    send = command("SEND", producer_id=1, sequence_id=0).SerializeToString()
    room = parser.frame_bytes_max - 4 - len(send)
    ((_, rest),) = parser.feed(b"".join(payload_frame(send, bytes(room))))
    assert len(rest) == room
    with pytest.raises(FrameError, match="announced, limit"):
        FrameParser(max_message_size=10_000).feed(b"".join(payload_frame(send, bytes(room + 1))))


def test_a_peer_that_sends_byte_by_byte_costs_no_object_for_each():
    send = command("SEND", producer_id=1, sequence_id=0).SerializeToString()
    data = b"".join(payload_frame(send, bytes(50_000)))
    parser = FrameParser()
    tracemalloc.start()
    try:
        for at in range(len(data) - 1):
            assert parser.feed(data[at : at + 1]) == []
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < len(data) * 2
    assert len(parser.feed(data[-1:])) == 1


def test_after_bytes_that_are_no_frame_nothing_is_read_and_nothing_kept():
    parser = FrameParser()
    with pytest.raises(FrameError) as refused:
        parser.feed(encode(command("PING")) + b"\0\0\0\0" + bytes(1000))
    assert [each.type for each, _ in refused.value.frames] == [BaseCommand.PING]
    assert parser.held_bytes == 0
    with pytest.raises(FrameError):
        parser.feed(encode(command("PING")))


# ---- protobuf -----------------------------------------------------------------------------------


def field(number, kind):
    """The tag of a field: 0 a number, 2 bytes, 3 and 4 begin and end of a group."""
    at = number << 3 | kind
    return bytes([at & 0x7F | 0x80, at >> 7]) if at > 0x7F else bytes([at])


HOSTILE = {
    "a varint without end": b"\x08" + VARINT_TOO_LONG,
    "a length beyond the end": b"\x08\x04\x22\xff\xff\xff\x7f",
    "a negative length": b"\x08\x04\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    "a group without end": field(500, 3) * 10_000,
    "groups in groups": field(500, 3) * 10_000 + field(500, 4) * 10_000,
    "a field of another kind": b"\x08\x04\x20\x01",
    "a field number of 0": b"\x00\x00",
    "nothing": b"",
    "a type that is none": b"\x08\x7f",
    "the type twice": b"\x08\x04\x08\x12\x92\x01\x00",
    "text that is no UTF-8": b"\x08\x17\xba\x01\x06\x0a\x02\xff\xfe\x10\x01",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_protobuf_that_is_none_is_refused_or_read_and_costs_nothing(what):
    data = HOSTILE[what]
    tracemalloc.start()
    try:
        with contextlib.suppress(FrameError):
            FrameParser().feed(struct.pack(">II", len(data) + 4, len(data)) + data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 256 * KIB


@pytest.mark.parametrize("count", [PAIRS_MAX, PAIRS_MAX + 1, 200_000])
def test_properties_of_a_command_are_bounded(count):
    subscribe = command(
        "SUBSCRIBE", topic="t", subscription="s", subType="Shared", consumer_id=1, request_id=1
    )
    subscribe.subscribe.metadata.extend([KeyValue(key="", value="")] * count)
    tracemalloc.start()
    try:
        if count <= PAIRS_MAX:
            ((found, _),) = FrameParser().feed(encode(subscribe))
            assert len(found.subscribe.metadata) == count
        else:
            with pytest.raises(FrameError):
                FrameParser().feed(encode(subscribe))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB


def test_a_command_may_be_so_large_and_no_larger():
    """Whatever the frame may be: its tail is not a command."""
    for size, is_taken in ((COMMAND_BYTES_MAX, True), (COMMAND_BYTES_MAX + 1, False)):
        head = struct.pack(">II", size + 100, size)
        if is_taken:
            assert FrameParser().feed(head) == []
        else:
            with pytest.raises(FrameError, match="limit"):
                FrameParser().feed(head)


# ---- what messages say of themselves ------------------------------------------------------------


@pytest.mark.parametrize("said", [0, -1, -(2**31), 2**31 - 1, BATCH_MESSAGES_MAX + 1, 1000])
def test_a_number_of_messages_that_cannot_be_is_not_believed(said):
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=said
    )
    record = make_record(tail(metadata, b"x" * 100), 5)

    assert record.messages == 1


@given(st.binary(max_size=80), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1))
def test_a_batch_never_has_more_messages_than_its_bytes_can_hold(payload, said, uncompressed):
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=said,
        uncompressed_size=uncompressed,
    )  # fmt: skip
    record = make_record(tail(metadata, payload), 5)

    assert 1 <= record.messages <= max(1, len(payload) // 6)
    opened = READER.open_batch(record, MIB)
    assert isinstance(opened, str) or len(opened) == record.messages


# ---- bombs (T13) --------------------------------------------------------------------------------

BOMB_BYTES = 64 * MIB


@cache
def packed_zeros(compression):
    return batch_tail(bytes(BOMB_BYTES), compression=compression)


def bomb(compression, said, *, messages):
    """Zeros that become 64 MiB, and what their producer says of that."""
    made = packed_zeros(compression)
    metadata, at = read_metadata(made)
    metadata.uncompressed_size = said
    metadata.num_messages_in_batch = messages
    return tail(metadata, made[at:])


@pytest.mark.parametrize("said", [100, MIB, BOMB_BYTES, 2**32 - 1])
@pytest.mark.parametrize("compression", [each for each in COMPRESSIONS if each != "NONE"])
def test_a_bomb_is_never_inflated_beyond_what_it_says_and_what_is_allowed(compression, said):
    made = bomb(compression, said, messages=10)
    record = make_record(made, 5)
    tracemalloc.start()
    try:
        READER.facts(record)
        READER.properties(record)
        opened = READER.open_batch(record, MIB)
        with contextlib.suppress(ValueError):
            READER.body(record, MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(opened, str)
    assert peak < len(made) * 4 + 3 * MIB


@pytest.mark.parametrize("compression", [each for each in COMPRESSIONS if each != "NONE"])
def test_a_bomb_of_one_message_is_bounded_too(compression):
    made = bomb(compression, BOMB_BYTES, messages=1)
    record = make_record(made, 5)
    tracemalloc.start()
    try:
        facts = READER.facts(record)
        with pytest.raises(ValueError, match="more than"):
            READER.body(record, MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert facts.key == ""
    assert peak < len(made) * 4 + 3 * MIB


@pytest.mark.parametrize("compression", [each for each in COMPRESSIONS if each != "NONE"])
def test_what_is_not_compressed_at_all_is_corrupt(compression):
    with pytest.raises(ValueError, match="corrupt"):
        inflate(b"x" * 100, CompressionType.Value(compression), 50, MIB)
