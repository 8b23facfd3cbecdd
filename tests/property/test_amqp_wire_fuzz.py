"""Hostile bytes (T11, T12): AMQP's readers read or refuse with ``AmqpError``, and stay small.

Sized for CI; ``--long`` runs a thousand times as many inputs.
"""

import struct
import tracemalloc

import pytest

from kit.wire_fuzz import dearest_read
from penstock.wire.amqp.codes import PROTOCOL_HEADER, AmqpError, ReplyCode
from penstock.wire.amqp.frames import (
    CONTENT_HEAD,
    HEARTBEAT,
    content_frames,
    encode_frame,
    method_frame,
)
from penstock.wire.amqp.methods import basic, connection, decode_method, queue
from penstock.wire.amqp.origin import AmqpFacts, publish_head, publish_record
from penstock.wire.amqp.parser import AmqpParser
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties
from penstock.wire.amqp.serializer import ack_frame
from penstock.wire.amqp.table import decode_table, encode_table, split_table

INPUTS = 1000
NOW_MS = 1_700_000_000_000
INTERESTING = (0, 1, 2, 3, 8, 0x3C, 0x7F, 0x80, 0xCE, 0xFF, *b"FASxTV")
LENGTHS = (0, 1, 0x7F, 0xFFFF, 0x20000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
HEADERS = {"a": 1, "b": ["x", {"c": 2.5}], "key": "k", "CC": ["q"], "d": b"\xff", "e": None}
BASICS = Properties(
    content_type="text/plain", headers=HEADERS, delivery_mode=2, message_id="m" * 36, type="t",
    expiration="60000", timestamp=5,
)  # fmt: skip
RAW = encode_properties(BASICS)
PUBLISH = method_frame(1, basic.Publish(exchange="e", routing_key="k")) + content_frames(
    1, RAW, b"body" * 30, 4096
)
STREAM = b"".join((PUBLISH * 6, HEARTBEAT, ack_frame(1, 5) * 3, PUBLISH * 2))


def read_stream(data):
    inflow = AmqpParser(is_greeted=True, message_bytes_max=1 << 20)
    inflow.tune(131_072)
    half = len(data) // 2
    inflow.feed(data[:half], NOW_MS)
    inflow.feed(data[half:], NOW_MS)
    assert inflow.held_bytes <= len(data) + 64
    if inflow.failure is not None:
        assert inflow.failure.reply_text
        raise inflow.failure


def read_record(data):
    head = publish_head(basic.Publish(exchange="e", routing_key="k").encode())
    record = publish_record(head, data, b"body", NOW_MS)
    facts = AmqpFacts()
    facts.facts(record)
    facts.keys(record)


READERS = {
    "stream": (read_stream, STREAM),
    "table": (decode_table, encode_table(HEADERS)),
    "split": (split_table, encode_table(HEADERS)),
    "properties": (decode_properties, RAW),
    "record": (read_record, RAW),
    "declare": (decode_method, queue.Declare(queue="q", arguments=HEADERS).encode()),
    "start-ok": (decode_method, connection.StartOk(HEADERS, "PLAIN", b"\0a\0b").encode()),
    "publish": (publish_head, basic.Publish(exchange="e", routing_key="k").encode()),
}


@pytest.mark.parametrize("name", READERS)
def test_mutated_and_random_bytes_are_read_or_refused_and_never_cost_much(name, is_long):
    reader, seed = READERS[name]
    dearest = dearest_read(
        reader, seed, name, count=INPUTS * (1000 if is_long else 1), bytes_in=INTERESTING,
        lengths=LENGTHS, refusals=(AmqpError,),
    )  # fmt: skip
    assert dearest < 1 << 20


def peak_of(action):
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [size for size in LENGTHS if size > 131_072])
def test_a_giant_frame_is_refused_by_its_size_alone(size):
    inflow = AmqpParser(is_greeted=True)
    inflow.tune(131_072)
    assert peak_of(lambda: inflow.feed(struct.pack(">BHI", 3, 1, size), NOW_MS)) < 64 * 1024
    assert inflow.failure.code is ReplyCode.FRAME_ERROR


@pytest.mark.parametrize("size", [(1 << 29) + 1, (1 << 63), (1 << 64) - 1])
def test_a_giant_body_is_refused_by_its_announcement(size):
    inflow = AmqpParser(is_greeted=True)
    header = encode_frame(2, 1, CONTENT_HEAD.pack(60, 0, size) + bytes(2))
    data = method_frame(1, basic.Publish()) + header
    events = []
    assert peak_of(lambda: events.extend(inflow.feed(data, NOW_MS))) < 64 * 1024
    (refused,) = events
    assert (refused.error.code, refused.error.class_id) == (406, 60)
    assert f"message size {size} is larger" in str(refused.error)
    assert inflow.failure is None


def test_a_body_that_was_announced_only_costs_nothing():
    inflow = AmqpParser(is_greeted=True)
    header = encode_frame(2, 1, CONTENT_HEAD.pack(60, 0, 100 << 20) + bytes(2))
    data = method_frame(1, basic.Publish()) + header
    assert peak_of(lambda: inflow.feed(data, NOW_MS)) < 64 * 1024
    assert inflow.failure is None


def nested(depth):
    """A table in a table, from the innermost one out."""
    pieces = [bytes(4)]
    size = 4
    for _ in range(depth):
        pieces.append(struct.pack(">I", size + 3) + b"\x01kF")
        size += 7
    return b"".join(reversed(pieces))


def test_a_table_ten_thousand_deep_is_refused_in_methods_and_messages():
    table = nested(10_000)
    declare = queue.Declare(queue="q").encode()[:-4] + table
    with pytest.raises(AmqpError, match="nested") as caught:
        decode_method(declare, 3)
    assert (caught.value.code, caught.value.class_id, caught.value.channel) == (502, 50, 3)
    inflow = AmqpParser(is_greeted=True)
    inflow.tune(0)
    raw = b"\x20\x00" + table
    inflow.feed(method_frame(2, basic.Publish()) + content_frames(2, raw, b"x", 0), NOW_MS)
    assert "nested" in str(inflow.failure)
    assert (inflow.failure.class_id, inflow.failure.method_id) == (60, 40)


def test_a_stream_cut_at_any_byte_waits_and_goes_on():
    stream = PROTOCOL_HEADER + PUBLISH * 3 + ack_frame(1, 7)
    for cut in range(len(stream)):
        inflow = AmqpParser()
        events = inflow.feed(stream[:cut], NOW_MS)
        events += inflow.feed(stream[cut:], NOW_MS)
        assert inflow.failure is None
        assert inflow.held_bytes == 0
        assert sum(len(event.records) for event in events[:-1]) == 3


def test_a_body_in_frames_of_one_byte_costs_its_size_and_not_forty_times_as_much():
    inflow = AmqpParser(is_greeted=True)
    size = 20_000
    header = encode_frame(2, 1, CONTENT_HEAD.pack(60, 0, size) + bytes(2))
    inflow.feed(method_frame(1, basic.Publish()) + header, NOW_MS)
    piece = encode_frame(3, 1, b"x") * 100

    def send():
        for _ in range(size // 100 - 1):
            assert inflow.feed(piece, NOW_MS) == []

    assert peak_of(send) < 4 * size
    (run,) = inflow.feed(piece, NOW_MS)
    assert run.records[0].body == b"x" * size


def test_publishes_that_never_end_are_counted_on_every_channel():
    inflow = AmqpParser(is_greeted=True)
    inflow.tune(131_072, 2047)
    header = CONTENT_HEAD.pack(60, 0, 5) + RAW
    for channel in range(1, 2048):
        data = method_frame(channel, basic.Publish()) + encode_frame(2, channel, header)
        inflow.feed(data, NOW_MS)
    assert inflow.failure is None
    assert inflow.held_bytes > 2047 * len(RAW)
    inflow.feed(method_frame(2048, basic.Publish()), NOW_MS)
    assert inflow.failure.code is ReplyCode.CHANNEL_ERROR
