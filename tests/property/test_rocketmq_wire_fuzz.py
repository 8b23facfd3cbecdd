"""Hostile bytes (T11, T12): every reader refuses with ``Malformed`` or reads, and stays small.

Sized for CI; ``--long`` runs a thousand times as many inputs.
"""

import random
import struct
import tracemalloc

import msgspec
import pytest

from kit.wire_fuzz import dearest_read, mutated
from penstock.wire.frame_buffer import FRAME_BYTES_MAX
from penstock.wire.rocketmq.bodies import (
    BatchAckBody,
    HeartbeatData,
    LockBatchBody,
    TopicRouteData,
    decode_body,
    standard_json,
)
from penstock.wire.rocketmq.command import Command, Malformed, Serialization
from penstock.wire.rocketmq.frames import RemotingFrames, decode, encode, parse_send, send_of
from penstock.wire.rocketmq.headers import PullHeader, parse
from penstock.wire.rocketmq.message_id import parse_offset_message_id
from penstock.wire.rocketmq.pop_handle import parse_handle, parse_offsets
from penstock.wire.rocketmq.properties import parse_properties
from penstock.wire.rocketmq.stored import (
    BatchItem,
    decode_all,
    join_batch,
    split_batch,
    stored_record,
)

INPUTS = 1500
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x5B, 0x5C, 0x7B, 0x7D)
LENGTHS = (0, 1, 0x7F, 0x8000, 0xFFFF, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)

EXT = {"a": "g", "b": "T", "e": "0", "g": "5", "i": "TAGS\x01A\x02", "consumerGroup": "g"}
PULL = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "7"}
BEAT = (
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":1,"subscriptionDataSet":'
    b'[{"topic":"T","subString":"A || B","subVersion":"5","codeSet":[1]}]}]}'
)
ROUTE = b'{"brokerDatas":[{"brokerAddrs":{0:"h:1"},"brokerName":"b"}],{"a":1}:[null]}'
MESSAGE = stored_record("T", 0, b"hello", b"KEYS\x01a b\x02").origin


def read_frame(data):
    frames = RemotingFrames()
    frames.feed(data)
    try:
        frames.commands()
    finally:
        if parse_send(data) is not None:
            send_of(decode(data))


def read_pull(data):
    parse(PullHeader, decode(data))


def read_body(kind):
    return lambda data: decode_body(data, kind)


def read_texts(data):
    text = data.decode("latin-1")
    parse_properties(data)
    for reader in (parse_handle, parse_offsets, parse_offset_message_id):
        try:
            reader(text)
        except Malformed:
            continue


READERS = {
    "json frame": (read_frame, encode(Command(310, EXT, b"body", opaque=3))),
    "binary frame": (
        read_frame,
        encode(Command(310, EXT, b"body", serialization=Serialization.BINARY)),
    ),
    "pull": (read_pull, encode(Command(11, PULL))),
    "stored": (decode_all, MESSAGE * 2),
    "batch": (split_batch, join_batch([BatchItem(b"hello", b"a\x01b\x02", 1)] * 2)),
    "heartbeat": (read_body(HeartbeatData), BEAT),
    "route": (read_body(TopicRouteData), ROUTE),
    "locks": (read_body(LockBatchBody), b'{"consumerGroup":"g","clientId":"c","mqSet":null}'),
    "acks": (read_body(BatchAckBody), b'{"acks":[{"c":"g","t":"T","so":1,"q":2,"b":"BQE="}]}'),
    "odd json": (standard_json, ROUTE),
    "texts": (read_texts, b"10 1700 60000 3 0 b 2 12 ;0 1 2,3"),
}


@pytest.mark.parametrize("name", READERS)
def test_mutated_and_random_bytes_are_read_or_refused_and_never_cost_much(name, is_long):
    reader, seed = READERS[name]
    dearest = dearest_read(
        reader, seed, name, count=INPUTS * (1000 if is_long else 1), bytes_in=INTERESTING,
        lengths=LENGTHS, refusals=(Malformed,),
    )  # fmt: skip
    assert dearest < 1 << 20


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("mark", [0, 1 << 24, 0xFFFFFF, 1 << 24 | 0xFFFFFF, 0xFFFFFFFF])
def test_giant_lengths_are_refused_without_allocating(length, mark):
    data = struct.pack(">II", length, mark) + b"{" * 64
    tracemalloc.start()
    try:
        frames = RemotingFrames()
        frames.feed(data)
        # Refused, or (a length that may be true) waits for more and keeps what came.
        if 68 < length <= FRAME_BYTES_MAX:
            assert frames.commands() == []
        else:
            with pytest.raises(Malformed):
                frames.commands()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


def deep(opening, closing, depth):
    return b'{"code":11,"extFields":{"x":' + opening * depth + b"1" + closing * depth + b"}}"


@pytest.mark.parametrize("depth", [100, 10_000, 30_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_nesting_is_skipped_or_refused_but_never_fatal(opening, closing, depth):
    header = deep(opening, closing, min(depth, 60_000 // len(opening + closing)))
    frame = struct.pack(">II", 4 + len(header), len(header)) + header
    for reader in (decode, parse_send):
        try:
            reader(frame)
        except Malformed:
            continue
    with pytest.raises(Malformed):
        decode_body(opening * depth, HeartbeatData)


def test_a_million_ext_fields_are_refused_by_the_length_of_the_header():
    header = b'{"code":11,"extFields":{%b}}' % b",".join(b'"%d":1' % n for n in range(1_000_000))
    frame = struct.pack(">II", 4 + len(header), len(header)) + header
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="limit 262144"):
            decode(frame)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_numbers_of_any_size_in_a_header_are_read_or_refused():
    for number in (b"9" * 300, b"9" * 5000, b"1e400", b"-0.0", b"1e-400", b"NaN", b"1e22"):
        for name in (b"opaque", b"version", b"x"):
            header = b'{"code":11,"%b":%b,"extFields":{"%b":%b}}' % (name, number, name, number)
            frame = struct.pack(">II", 4 + len(header), len(header)) + header
            try:
                assert decode(frame).code == 11
            except Malformed:
                continue


def test_what_was_read_can_always_be_written_again():
    chance = random.Random(7)
    seed = encode(Command(310, EXT, b"body", opaque=3))
    rewritten = 0
    for _ in range(INPUTS):
        try:
            command = decode(mutated(seed, chance, INTERESTING, LENGTHS))
        except Malformed:
            continue
        assert decode(encode(command)) == command
        rewritten += 1
    assert rewritten > INPUTS // 20
    assert msgspec.json.encode(command.ext)
