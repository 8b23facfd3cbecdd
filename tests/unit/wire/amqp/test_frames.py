"""Frames one by one: envelope, limits, greeting."""

import pytest

from penstock.wire.amqp.codes import PROTOCOL_HEADER, AmqpError, ReplyCode, WrongProtocol
from penstock.wire.amqp.frames import (
    CONTENT_HEAD,
    HEARTBEAT,
    AckRun,
    AmqpFrames,
    Command,
    ContentAssembler,
    ContentRefused,
    Frame,
    PublishRun,
    content_frames,
    encode_frame,
)
from penstock.wire.amqp.methods import basic, queue


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


# ---- content ------------------------------------------------------------------------------------
# Contents put together frame by frame: order, sizes, refusals.


NOW_MS = 1_700_000_000_000
PUBLISH = basic.Publish(exchange="e", routing_key="k").encode()


def header(size, properties=bytes(2), class_id=60, weight=0):
    return CONTENT_HEAD.pack(class_id, weight, size) + properties


def take(assembler, *frames):
    events = [assembler.take(kind, channel, payload, NOW_MS) for kind, channel, payload in frames]
    return [event for event in events if event is not None]


def test_the_golden_content_both_ways():
    properties = bytes.fromhex("b9000a746578742f706c61696e00000004016174010203053630303030")
    assert content_frames(1, properties, b"hello", 131_072).hex() == (
        "02000100000029003c00000000000000000005b9000a746578742f706c61696e00000004016174010203"
        "053630303030ce" + "0300010000000568656c6c6fce"
    )
    (run,) = take(
        ContentAssembler(), (1, 1, PUBLISH), (2, 1, header(5, properties)), (3, 1, b"hello")
    )
    assert isinstance(run, PublishRun)
    record = run.records[0]
    assert record.origin == b"\x01e\x01k" + properties + b"hello"
    assert (record.body, record.properties, record.key) == (b"hello", properties, b"k")
    assert record.expire_ms == NOW_MS + 60_000
    assert record.shape.priority == 3
    assert not record.is_transient


def test_an_empty_body_needs_no_frame_and_allows_none():
    assembler = ContentAssembler()
    (run,) = take(assembler, (1, 1, PUBLISH), (2, 1, header(0)))
    assert run.records[0].body == b""
    with pytest.raises(AmqpError, match="UNEXPECTED_FRAME"):
        take(assembler, (3, 1, b""))


def test_a_body_may_come_in_many_frames_between_those_of_other_channels():
    assembler = ContentAssembler()
    events = take(
        assembler,
        (1, 1, PUBLISH), (1, 2, PUBLISH), (2, 2, header(2)), (2, 1, header(4)), (3, 1, b"ab"),
        (3, 2, b"xy"), (3, 1, b""), (1, 3, queue.Purge(queue="q").encode()), (3, 1, b"cd"),
    )  # fmt: skip
    assert [event.channel for event in events] == [2, 3, 1]
    assert events[2].records[0].body == b"abcd"
    assert events[1] == Command(3, queue.Purge(queue="q"))
    assert assembler.held_bytes == 0


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([(2, 1, header(1))], 505),
        ([(3, 1, b"x")], 505),
        ([(1, 1, PUBLISH), (3, 1, b"x")], 505),
        ([(1, 1, PUBLISH), (1, 1, PUBLISH)], 505),
        ([(1, 1, PUBLISH), (2, 1, header(1)), (2, 1, header(1))], 505),
        ([(1, 1, PUBLISH), (2, 1, header(1)), (1, 1, basic.Ack(1).encode())], 505),
        ([(1, 1, PUBLISH), (2, 1, header(1, class_id=50))], 505),
        ([(1, 1, PUBLISH), (2, 1, header(1, weight=1))], 501),
        ([(1, 1, PUBLISH), (2, 1, header(1)), (3, 1, b"xy")], 501),
        ([(1, 1, PUBLISH), (2, 1, header(1)[:-1])], 501),
        ([(8, 1, b"")], 505),
        ([(8, 0, b"x")], 505),
        ([(4, 1, b"")], 501),
        ([(1, 0, PUBLISH)], 504),
        ([(1, 1, PUBLISH[:-1])], 501),
        ([(1, 1, PUBLISH + b"x")], 501),
        ([(1, 1, PUBLISH.replace(b"e", b"\xff"))], 501),
    ],
)
def test_frames_out_of_order_end_the_connection_with_the_right_code(frames, code):
    with pytest.raises(AmqpError) as caught:
        take(ContentAssembler(), *frames)
    assert caught.value.code == code
    assert caught.value.code.is_hard
    assert caught.value.channel == frames[-1][1]


def test_a_message_above_the_limit_is_refused_on_its_channel_and_dropped():
    assembler = ContentAssembler(message_bytes_max=10)
    events = take(
        assembler, (1, 1, PUBLISH), (2, 1, header(11)), (3, 1, b"x" * 10), (3, 1, b"y"),
        (1, 1, PUBLISH), (2, 1, header(10)), (3, 1, b"z" * 10),
    )  # fmt: skip
    refused, run = events
    assert isinstance(refused, ContentRefused)
    assert refused.error.code is ReplyCode.PRECONDITION_FAILED
    assert "message size 11 is larger than configured max size 10" in refused.error.reply_text
    assert run.records[0].body == b"z" * 10
    assert assembler.held_bytes == 0


def test_what_is_held_is_counted_until_it_is_complete():
    assembler = ContentAssembler()
    take(assembler, (1, 1, PUBLISH), (2, 1, header(100)), (3, 1, b"x" * 60))
    assert assembler.held_bytes == len(PUBLISH) + len(header(100)) + 60
    take(assembler, (3, 1, b"x" * 40))
    assert assembler.held_bytes == 0


def test_heartbeats_are_nothing_and_acks_are_runs():
    assert take(ContentAssembler(), (8, 0, b"")) == []
    assert take(ContentAssembler(), (1, 4, basic.Ack(7, True).encode())) == [AckRun(4, [7], True)]
