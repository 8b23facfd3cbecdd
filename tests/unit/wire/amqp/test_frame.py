"""Frames one by one: envelope, limits, greeting."""

import pytest

from penstock.wire.amqp.codes import PROTOCOL_HEADER, AmqpError, ReplyCode, WrongProtocol
from penstock.wire.amqp.frame import HEARTBEAT, AmqpFrames, Frame, encode_frame


def test_the_golden_heartbeat():
    assert HEARTBEAT.hex() == "08000000000000ce"


@pytest.mark.parametrize("greeting", [PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"])
def test_frames_follow_the_greeting_however_they_are_cut(greeting):
    stream = greeting + encode_frame(1, 7, b"abc") + HEARTBEAT + encode_frame(3, 1, b"")
    frames = AmqpFrames()
    found = []
    for at in range(len(stream)):
        frames.feed(stream[at : at + 1])
        found += frames.frames()
    assert found == [Frame(1, 7, b"abc"), Frame(8, 0, b""), Frame(3, 1, b"")]


@pytest.mark.parametrize(
    "greeting", [b"GET / HT", b"AMQP\x00\x01\x00\x00", b"AMQP\x00\x00\x08\x00"]
)
def test_another_protocol_is_told_so(greeting):
    frames = AmqpFrames()
    frames.feed(greeting)
    with pytest.raises(WrongProtocol):
        frames.frames()


def test_a_frame_may_be_eight_bytes_larger_than_negotiated_and_no_more():
    frames = AmqpFrames(frame_max=4096, is_greeted=True)
    frames.feed(encode_frame(3, 1, bytes(4096)))
    assert len(frames.frames()) == 1
    frames.feed(b"\x03\x00\x01\x00\x00\x10\x01")
    with pytest.raises(AmqpError, match="4097") as caught:
        frames.frames()
    assert caught.value.code is ReplyCode.FRAME_ERROR


def test_a_larger_frame_may_come_once_it_was_negotiated():
    frames = AmqpFrames(is_greeted=True)
    frames.tune(131_072)
    frames.feed(encode_frame(3, 1, bytes(131_064)))
    assert len(frames.frames()) == 1


def test_another_end_octet_is_a_frame_error():
    frames = AmqpFrames(is_greeted=True)
    frames.feed(encode_frame(1, 9, b"abcd")[:-1] + b"\xcd")
    with pytest.raises(AmqpError, match="0xcd") as caught:
        frames.frames()
    assert (caught.value.code, caught.value.channel) == (501, 9)
