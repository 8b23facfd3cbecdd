"""Pulsar's frames: what is cut out of bytes, what is refused and when, checksums."""

import sys

import pytest

from kit.pulsar_payload import single_tail
from penstock.wire.pulsar.frames import (
    FRAME_HEADROOM,
    LATEST,
    MAX_MESSAGE_SIZE,
    NO_ID,
    FrameError,
    FrameParser,
    ServerError,
    check,
    crc32c,
    encode,
    payload_frame,
    signed,
)
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CommandPing,
    CommandProducer,
    CommandSend,
    KeyValue,
)
from penstock.wire.pulsar.protocol_pb2 import ServerError as WireError

PING = BaseCommand(type=BaseCommand.PING, ping=CommandPing())
SEND = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=300))
LIMIT = MAX_MESSAGE_SIZE + FRAME_HEADROOM


def sent(tail):
    return b"".join(payload_frame(SEND.SerializeToString(), tail))


def framed(command):
    """Raw bytes of a command in a simple frame."""
    return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


def refusal(data, **options):
    with pytest.raises(FrameError) as caught:
        FrameParser(**options).feed(data)
    return str(caught.value)


def test_a_command_comes_out_as_it_went_in():
    parser = FrameParser()
    assert parser.feed(encode(PING)) == [(PING, b"")]
    assert parser.feed(sent(b"tail") + encode(PING)) == [(SEND, b"tail"), (PING, b"")]
    assert parser.held_bytes == 0


@pytest.mark.parametrize("step", [1, 3, 7, 1000, 4095, 4096, 70_000])
def test_a_large_frame_may_come_in_pieces_of_any_size(step):
    parser = FrameParser()
    tail = bytes(range(256)) * 1000
    data = encode(PING) + sent(tail) + encode(PING)
    frames = []
    for at in range(0, len(data), step):
        frames += parser.feed(data[at : at + step])
    assert frames == [(PING, b""), (SEND, tail), (PING, b"")]
    assert parser.held_bytes == 0


def test_what_is_held_of_a_frame_is_known():
    parser = FrameParser()
    data = sent(b"x" * 100)
    parser.feed(data[:6])
    assert parser.held_bytes == 6
    parser.feed(data[6:50])
    parser.feed(data[50:60])
    assert 0 < parser.held_bytes <= 60
    parser.close()
    assert parser.held_bytes == 0


def test_a_slow_peer_costs_no_object_for_each_byte():
    parser = FrameParser()
    data = sent(b"x" * 100_000)
    for at in range(len(data) - 1):
        parser.feed(data[at : at + 1])
    assert sum(map(sys.getsizeof, parser._chunks)) < 250_000
    assert parser.feed(data[-1:]) == [(SEND, b"x" * 100_000)]


def test_the_largest_frame_is_taken_and_one_byte_more_refused_from_the_length_word():
    room = LIMIT - 4 - SEND.ByteSize()
    assert FrameParser().feed(sent(b"x" * room)) == [(SEND, b"x" * room)]
    too_long = (LIMIT + 1).to_bytes(4, "big")
    assert refusal(too_long) == f"frame of {LIMIT + 1} bytes announced, limit {LIMIT}"
    assert "limit 11260" in refusal(too_long, max_message_size=1024)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\0\0", "frame of 0 bytes announced, at least 4 needed"),
        (b"\0\0\0\3", "frame of 3 bytes announced, at least 4 needed"),
        (b"\xff\xff\xff\xff", "frame of 4294967295 bytes announced"),
        (b"\0\0\0\x04\0\0\0\x01", "command of 1 bytes announced in a frame of 4"),
        (b"\0\0\0\x04\xff\xff\xff\xff", "command of 4294967295 bytes announced in a frame of 4"),
        (framed(b""), "command of an unknown type"),
        (framed(b"\x01"), "command of 1 bytes that is no protobuf message"),
        (framed(b"\x08\x63"), "command of an unknown type"),
        (framed(b"\x08\x46"), "command of an unknown type"),
        (framed(b"\x08\x06"), "command of type 6 without its send"),
        (framed(b"\x08\x06\x32\x00"), "command of type 6 without a field it must have"),
        (framed(b"\x08\x06\x92\x01\x00"), "command of type 6 without its send"),
        (framed(b"\x08\x15\xaa\x01\x05\x0a\x01\xff\x10\x01"), "no protobuf message"),
    ],
)
def test_what_is_no_command_ends_the_connection(data, text):
    assert text in refusal(data)


def test_frames_before_a_bad_one_are_not_lost_and_nothing_is_read_behind_it():
    parser = FrameParser()
    with pytest.raises(FrameError) as caught:
        parser.feed(encode(PING) + b"\0\0\0\0" + encode(PING))
    assert caught.value.frames == [(PING, b"")]
    with pytest.raises(FrameError) as again:
        parser.feed(encode(PING))
    assert again.value.frames == []
    assert str(again.value) == str(caught.value)


def test_properties_of_a_command_must_be_text():
    producer = CommandProducer(topic="t", producer_id=1, request_id=2)
    producer.metadata.append(KeyValue.FromString(b"\x0a\x01k\x12\x01\xff"))
    data = BaseCommand(type=BaseCommand.PRODUCER, producer=producer).SerializeToString()
    assert refusal(framed(data)) == "command of type 5 with a property that is no text"


def test_an_id_may_be_a_negative_number_in_disguise():
    assert [signed(number) for number in (0, 7, LATEST, NO_ID)] == [0, 7, 2**63 - 1, -1]


def test_error_codes_are_those_of_the_wire():
    assert {each.name: int(each) for each in ServerError} == dict(WireError.items())


def test_a_tail_is_checked_by_its_checksum_if_it_has_one():
    tail = single_tail(b"body" * 100)
    assert check(tail)
    for at in (2, 6, 20, len(tail) - 1):
        assert not check(tail[:at] + bytes((tail[at] ^ 1,)) + tail[at + 1 :])
    assert check(single_tail(b"body", has_crc=False))
    assert not check(b"\x0e\x01\0")
    assert check(b"")


@pytest.mark.parametrize("size", [0, 10, 64 * 1024, 64 * 1024 + 1, 64 * 1024 + 6, 300_000])
def test_a_checksum_does_not_depend_on_the_steps_it_is_taken_in(size):
    data = bytes(range(251)) * (size // 251 + 1)
    assert crc32c(data[:size], 6) == crc32c(data[6:size])
    assert check(single_tail(data[:size]))
