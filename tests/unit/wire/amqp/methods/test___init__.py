"""Methods on the wire: the sheet's golden frames, shared bits, and what is refused."""

import pytest

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.frames import method_frame, parse_frame
from penstock.wire.amqp.methods import basic, connection, decode_method, exchange, queue
from penstock.wire.amqp.methods import channel as channel_methods
from penstock.wire.amqp.methods.method import METHODS
from penstock.wire.amqp.table import Tagged

GOLDEN = [
    (0, connection.TuneOk(2047, 131072, 60), "0100000000000c000a001f07ff00020000003cce"),
    (0, connection.Open("/"), "01000000000008000a0028012f0000ce"),
    (1, channel_methods.Open(), "010001000000050014000a00ce"),
    (
        1,
        queue.Declare(
            queue="q",
            is_durable=True,
            is_exclusive=True,
            is_auto_delete=True,
            arguments={"x-max-length": Tagged("I", 5)},
        ),
        "0100010000001f0032000a000001710e000000120c782d6d61782d6c656e6774684900000005ce",
    ),
    (
        1,
        basic.Consume(queue="q", consumer_tag="c", is_no_ack=True, is_exclusive=True),
        "0100010000000f003c00140000017101630600000000ce",
    ),
    (
        1,
        basic.Publish(exchange="e", routing_key="k", is_mandatory=True),
        "0100010000000b003c002800000165016b01ce",
    ),
    (1, basic.Ack(7, True), "0100010000000d003c0050000000000000000701ce"),
    (1, basic.Nack(7, True, True), "0100010000000d003c0078000000000000000703ce"),
    (
        1,
        channel_methods.Close(404, "NOT_FOUND", 50, 10),
        "01000100000014001400280194094e4f545f464f554e440032000ace",
    ),
]


@pytest.mark.parametrize(("channel", "method", "expected"), GOLDEN)
def test_golden_frames_are_written_to_the_byte(channel, method, expected):
    assert method_frame(channel, method).hex() == expected


@pytest.mark.parametrize(("channel", "method", "expected"), GOLDEN)
def test_golden_frames_are_read(channel, method, expected):
    frame = parse_frame(bytes.fromhex(expected))
    found = decode_method(frame.payload)
    if isinstance(method, queue.Declare):
        method.arguments = {"x-max-length": 5}
    assert (frame.kind, frame.channel, found) == (1, channel, method)


def test_every_method_of_the_sheet_is_there():
    counts = {}
    for class_id, _ in METHODS:
        counts[class_id] = counts.get(class_id, 0) + 1
    assert counts == {10: 14, 20: 6, 30: 2, 40: 8, 50: 10, 60: 18, 85: 2, 90: 6}


def test_unbind_ok_of_an_exchange_is_51_and_of_a_queue_too():
    assert exchange.UnbindOk().encode().hex() == "00280033"
    assert queue.UnbindOk().encode().hex() == "00320033"


def test_an_unknown_method_is_refused_with_its_ids():
    with pytest.raises(AmqpError) as caught:
        decode_method(bytes.fromhex("003c00ff"), 5)
    problem = caught.value
    assert problem.code is ReplyCode.COMMAND_INVALID
    assert (problem.class_id, problem.method_id, problem.channel) == (60, 255, 5)


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.__qualname__)
def test_a_method_cut_at_any_byte_or_with_one_too_many_is_a_frame_error(kind):
    payload = kind().encode()
    for size in range(len(payload)):
        with pytest.raises(AmqpError) as caught:
            decode_method(payload[:size])
        assert caught.value.code in (ReplyCode.FRAME_ERROR, ReplyCode.SYNTAX_ERROR)
    with pytest.raises(AmqpError, match="too many") as caught:
        decode_method(payload + b"\0")
    assert caught.value.class_id == kind.class_id


def test_a_name_that_is_not_utf_8_is_a_frame_error():
    payload = queue.Purge(queue="ab").encode().replace(b"ab", b"\xff\xfe")
    with pytest.raises(AmqpError, match="not UTF-8") as caught:
        decode_method(payload)
    assert caught.value.code is ReplyCode.FRAME_ERROR


@pytest.mark.parametrize(
    "method",
    [
        basic.Publish(exchange="e" * 256),
        basic.Ack(-1),
        basic.Ack(1 << 64),
        basic.Publish(exchange="\udc80"),
        connection.Tune(channel_max=70_000),
        queue.Declare(arguments={"a": object()}),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_written(method):
    with pytest.raises(AmqpError):
        method.encode()
