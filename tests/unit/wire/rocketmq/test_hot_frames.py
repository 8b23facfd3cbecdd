"""The short cuts say exactly what the long road says."""

import struct

import msgspec
import pytest

from penstock.wire.rocketmq.command import Command, Malformed, Serialization
from penstock.wire.rocketmq.frame import HEADER_BYTES_MAX, decode, encode
from penstock.wire.rocketmq.headers import PullAnswer, parse
from penstock.wire.rocketmq.hot_frames import (
    parse_send,
    pull_answer_head,
    send_answer,
    send_of,
)
from penstock.wire.rocketmq.message_id import encode_host, host_hex, offset_message_id
from penstock.wire.rocketmq.send_headers import SendAnswer

V2 = {
    "a": "group",
    "b": "TopicTest",
    "c": "TBW102",
    "d": "4",
    "e": "1",
    "f": "0",
    "g": "1731700000000",
    "h": "0",
    "i": "TAGS\x01TagA\x02",
    "j": "0",
    "k": "false",
    "m": "false",
}
V1 = {
    "producerGroup": "group",
    "topic": "TopicTest",
    "queueId": "1",
    "sysFlag": "0",
    "bornTimestamp": "1731700000000",
    "properties": "TAGS\x01TagA\x02",
}


def as_ali_ons(code, ext, body=b"hello"):
    """ali-ons: no serializeTypeCurrentRPC, numbers and booleans as such."""
    header = msgspec.json.encode(
        {"code": code, "language": "JAVA", "opaque": 7, "flag": 0, "version": 121, "extFields": ext}
    )
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


@pytest.mark.parametrize(
    "frame",
    [
        encode(Command(310, V2, b"hello", opaque=7, version=121)),
        encode(Command(320, V2, b"hello", opaque=7, version=121)),
        encode(Command(10, V1, b"hello", opaque=7, version=121)),
        as_ali_ons(310, {**V2, "d": 4, "e": 1, "g": 1731700000000, "k": False, "z": [1]}),
    ],
    ids=["310", "320", "10", "ali-ons"],
)
def test_a_plain_send_is_read_at_once_and_like_the_general_way(frame):
    send = parse_send(frame)
    assert send is not None
    slow = send_of(frame)
    assert (send.code, send.opaque, send.flag, send.version) == (slow.code, 7, 0, 121)
    assert send.body == slow.body == b"hello"
    assert send.header == slow.header
    assert send.header.topic == "TopicTest"
    assert send.header.born_timestamp == 1731700000000
    assert not send.is_oneway


@pytest.mark.parametrize(
    "frame",
    [
        encode(Command(11, V2)),
        encode(Command(3100, V2)),
        encode(Command(310, V2, serialization=Serialization.BINARY)),
        as_ali_ons(310, {**V2, "j": None}),
        as_ali_ons(320, V1),
        as_ali_ons(310, {**V2, "e": "x"}),
        as_ali_ons(310, {**V2, "i": "\x01" * HEADER_BYTES_MAX}),
        b"",
        struct.pack(">II", 4 + 12, 400) + b'{"code":310,',
    ],
    ids=["pull", "3100", "binary", "null", "Go batch", "no int", "too long", "nothing", "cut"],
)
def test_what_is_not_a_plain_send_takes_the_general_road(frame):
    assert parse_send(frame) is None


def test_the_general_road_knows_nulls_and_other_names_and_says_what_is_wrong():
    assert send_of(as_ali_ons(310, {**V2, "j": None})).header.reconsume_times == 0
    assert send_of(as_ali_ons(320, V1)).header.queue_id == 1
    with pytest.raises(Malformed, match=r"SendHeaderV2: .*\$\.e"):
        send_of(as_ali_ons(310, {**V2, "e": "x"}))


def test_a_body_in_the_json_cannot_replace_the_real_one():
    header = b'{"code":310,"body":"aGFja2Vk","extFields":' + msgspec.json.encode(V2) + b"}"
    frame = struct.pack(">II", 4 + len(header) + 4, len(header)) + header + b"real"
    send = parse_send(frame)
    assert send is not None
    assert send.body == b"real"


HOST = encode_host("10.0.0.1", 10911)


@pytest.mark.parametrize("unique_key", [b"7F0000010001", b"", b'a"b\\', "ключ".encode(), b"\xff"])
@pytest.mark.parametrize("serialization", list(Serialization))
def test_the_answer_to_a_send_reads_back(unique_key, serialization):
    send = send_of(encode(Command(310, V2, opaque=-5, serialization=serialization)))
    frame = send_answer(
        send, 123456789, 17, host_hex=host_hex(HOST), queue_id=3, unique_key=unique_key, code=10
    )
    command = decode(frame)
    assert command.serialization == serialization
    assert (command.code, command.opaque, command.flag) == (10, -5, 1)
    answer = parse(SendAnswer, command)
    assert answer.msg_id == offset_message_id(HOST, 123456789)
    assert (answer.queue_id, answer.queue_offset) == (3, 17)
    assert (answer.transaction_id or "") == unique_key.decode("utf-8", "replace")
    assert (answer.msg_region, answer.trace_on) == ("DefaultRegion", True)


def test_the_head_of_a_pull_answer_counts_the_body_that_follows():
    head = pull_answer_head(8, 40, 2, 99, body_bytes=5, remark='odd "remark"', code=0)
    command = decode(head + b"12345")
    assert (command.opaque, command.body, command.remark) == (8, b"12345", 'odd "remark"')
    assert parse(PullAnswer, command) == PullAnswer(
        next_begin_offset=40, min_offset=2, max_offset=99
    )


def test_an_empty_pull_answer_is_a_whole_frame():
    frame = pull_answer_head(8, 40, 2, 99, code=19, remark="NO_NEW_MSG")
    assert decode(frame).code == 19
