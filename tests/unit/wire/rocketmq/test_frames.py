"""Frames against bytes made by hand from the protocol's description."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.rocketmq.command import Command, Language, Malformed, Serialization, response_to
from penstock.wire.rocketmq.frames import (
    EXT_FIELDS_MAX,
    HEADER_BYTES_MAX,
    RemotingFrames,
    decode,
    decode_answer,
    encode,
    parse_send,
    pull_answer_head,
    send_answer,
    send_of,
)
from penstock.wire.rocketmq.headers import PullAnswer, SendAnswer, parse
from penstock.wire.rocketmq.message_id import encode_host, host_hex, offset_message_id


def json_frame(header, body=b""):
    """A frame as a peer would write it: any JSON, or raw header bytes."""
    raw = header if isinstance(header, bytes) else msgspec.json.encode(header)
    return struct.pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body


BINARY = (
    b"\x00\x00\x00\x30"  # 48 bytes follow
    b"\x01\x00\x00\x2a"  # type 1, header of 42 bytes
    b"\x00\x0b"  # code 11
    b"\x09"  # GO
    b"\x01\x3d"  # version 317
    b"\x00\x00\x00\x07"  # opaque 7
    b"\x00\x00\x00\x02"  # oneway
    b"\x00\x00\x00\x02ok"
    b"\x00\x00\x00\x13"  # 19 bytes of ext
    b"\x00\x05topic\x00\x00\x00\x01T"
    b"\x00\x01x\x00\x00\x00\x00"  # null
    b"hi"
)


def test_a_json_frame_has_the_length_the_mark_the_header_and_the_body():
    header = (
        b'{"code":105,"language":"JAVA","version":479,"opaque":3,"flag":0,'
        b'"extFields":{"topic":"T"},"serializeTypeCurrentRPC":"JSON"}'
    )
    frame = encode(Command(105, {"topic": "T"}, b"body", opaque=3))
    assert frame == struct.pack(">II", 4 + len(header) + 4, len(header)) + header + b"body"


def test_a_response_carries_flag_one_its_remark_and_always_ext_fields():
    request = Command(105, opaque=9)
    frame = encode(response_to(request, 17, remark='No "topic"'))
    assert frame[8:] == (
        b'{"code":17,"language":"JAVA","version":479,"opaque":9,"flag":1,"extFields":{},'
        b'"remark":"No \\"topic\\"","serializeTypeCurrentRPC":"JSON"}'
    )


def test_a_binary_frame_is_read_as_drawn():
    command = decode(BINARY)
    assert command == Command(
        11, {"topic": "T"}, b"hi", 7, 2, "ok", Language.GO, 317, Serialization.BINARY
    )
    assert command.is_oneway
    assert not command.is_response


def test_a_binary_command_is_written_as_drawn_but_for_the_null():
    command = decode(BINARY)
    expected = bytearray(BINARY.replace(b"\x00\x01x\x00\x00\x00\x00", b""))
    expected[3], expected[7], expected[30] = 48 - 7, 42 - 7, 19 - 7
    assert encode(command) == bytes(expected)


def test_an_answer_goes_back_in_the_serialization_of_its_request():
    answer = response_to(decode(BINARY), 0, ext={"offset": "5"}, body=b"x")
    frame = encode(answer)
    assert frame[4] == 1
    assert decode(frame) == answer
    assert answer.is_response


def test_codes_above_a_short_are_refused_in_binary_and_fine_in_json():
    with pytest.raises(Malformed, match="200050 does not fit a binary header"):
        encode(Command(200050, serialization=Serialization.BINARY))
    assert decode(encode(Command(200050))).code == 200050


def test_ext_values_of_any_json_type_become_text_and_nulls_vanish():
    ext = {
        "text": "x",
        "number": 17,
        "big": 2**70,
        "whole": 3.0,
        "part": 0.5,
        "yes": True,
        "no": False,
        "none": None,
    }
    assert decode(json_frame({"code": 11, "extFields": ext})).ext == {
        "text": "x",
        "number": "17",
        "big": str(2**70),
        "whole": "3",
        "part": "0.5",
        "yes": "true",
        "no": "false",
    }


@pytest.mark.parametrize("ext", [{}, {"extFields": None}, {"extFields": {}}])
def test_ext_fields_may_be_missing_or_null(ext):
    assert decode(json_frame({"code": 34, "opaque": 1, **ext})).ext == {}


def test_nested_ext_values_and_unknown_header_fields_are_ignored():
    header = {"code": 34, "x": [1], "extFields": {"a": [1], "b": {"c": 1}, "topic": "T"}}
    assert decode(json_frame(header)).ext == {"topic": "T"}


def test_quoted_numbers_in_the_header_are_read():
    command = decode(json_frame({"code": "34", "opaque": "5", "flag": "2", "version": "121"}))
    assert (command.code, command.opaque, command.flag, command.version) == (34, 5, 2, 121)


@pytest.mark.parametrize(
    ("said", "meant"),
    [("GO", Language.GO), (1, Language.CPP), ("KLINGON", Language.OTHER), (99, Language.OTHER)],
)
def test_languages_come_as_names_or_numbers_and_unknown_ones_are_other(said, meant):
    assert decode(json_frame({"code": 34, "language": said})).language == meant


def test_broken_utf8_in_a_header_is_replaced_and_not_fatal():
    frame = json_frame(b'{"code":10,"extFields":{"properties":"a\xff"}}')
    assert decode(frame).ext == {"properties": "a\ufffd"}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"code":null}',
        b'{"code":1',
        b'{"code":2147483648}',
        b"[" * 60000,
    ],
)
def test_headers_that_say_no_code_are_malformed(header):
    with pytest.raises(Malformed, match="JSON header cannot be read"):
        decode(json_frame(header))


def test_too_many_ext_fields_are_refused_with_the_opaque_of_the_request():
    full = {str(number): "x" for number in range(EXT_FIELDS_MAX)}
    assert len(decode(json_frame({"code": 1, "extFields": full})).ext) == EXT_FIELDS_MAX
    header = {"code": 1, "opaque": 8, "extFields": {**full, "more": "x"}}
    with pytest.raises(Malformed, match="257 ext fields, limit 256") as caught:
        decode(json_frame(header))
    assert caught.value.opaque == 8


def test_too_many_binary_ext_fields_are_refused_even_if_they_repeat():
    ext = b"\x00\x01a\x00\x00\x00\x01b" * (EXT_FIELDS_MAX + 1)
    header = struct.pack(">hbhiii", 1, 0, 0, 8, 0, 0) + struct.pack(">i", len(ext)) + ext
    frame = struct.pack(">II", 4 + len(header), 1 << 24 | len(header)) + header
    with pytest.raises(Malformed, match="more than 256 ext fields") as caught:
        decode(frame)
    assert caught.value.opaque == 8


def test_a_header_above_256_kib_is_refused_before_it_is_read():
    frame = json_frame(b'{"code":1}' + b" " * HEADER_BYTES_MAX)
    with pytest.raises(Malformed, match="header of 262154 bytes, limit 262144") as caught:
        decode(frame)
    assert (caught.value.opaque, caught.value.code) == (None, 13)


LONG = b'"extFields":{"i":"' + rb"\"opaque\":5," + b"x" * HEADER_BYTES_MAX + b'"}'


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":310,"opaque":-8,' + LONG + b"}",
        b'{"code":310,' + LONG + b',"flag":0,"language":"JAVA","opaque" : -8}',
    ],
    ids=["as ali-ons writes it", "as Java writes it"],
)
def test_the_opaque_of_a_header_too_long_is_found_at_either_end(header):
    with pytest.raises(Malformed) as caught:
        decode(json_frame(header))
    assert caught.value.opaque == -8


def test_the_opaque_of_a_binary_header_too_long_has_its_place():
    command = Command(310, {"i": "x" * HEADER_BYTES_MAX}, opaque=8, serialization=1)
    with pytest.raises(Malformed) as caught:
        decode(encode(command))
    assert (caught.value.opaque, caught.value.is_binary) == (8, True)


@pytest.mark.parametrize("length", [0, 3, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_impossible_frame_lengths_are_refused_from_the_first_four_bytes(length):
    frames = RemotingFrames()
    frames.feed(struct.pack(">I", length))
    with pytest.raises(Malformed, match=f"frame of {length} bytes announced"):
        frames.commands()
    assert len(frames) == 4


@pytest.mark.parametrize("size", [2**24 - 1, 100])
def test_a_header_longer_than_its_frame_is_refused(size):
    with pytest.raises(Malformed, match=f"header of {size} bytes in a frame of"):
        decode(struct.pack(">II", 4 + 10, size) + b"{}        ")


def test_unknown_serializations_are_refused():
    with pytest.raises(Malformed, match="serialization 2 is unknown"):
        decode(struct.pack(">II", 6, 2 << 24 | 2) + b"{}")


@pytest.mark.parametrize("cut", range(42))
def test_a_binary_header_cut_anywhere_is_malformed(cut):
    header = BINARY[8 : 8 + cut]
    frame = struct.pack(">II", 4 + cut, 1 << 24 | cut) + header
    with pytest.raises(Malformed):
        decode(frame)


@pytest.mark.parametrize("at", [21, 27, 38], ids=["remark", "ext", "value"])
@pytest.mark.parametrize("size", [2**31 - 1, 2**32 - 1, 2**31, 1000])
def test_giant_lengths_inside_a_binary_header_are_refused(at, size):
    frame = bytearray(BINARY)
    frame[at : at + 4] = struct.pack(">I", size)
    with pytest.raises(Malformed):
        decode(bytes(frame))


def test_commands_before_a_malformed_frame_are_handed_out_first():
    frames = RemotingFrames()
    good = encode(Command(34, opaque=1))
    frames.feed(good + json_frame(b"nonsense") + good)
    assert [command.opaque for command in frames.commands()] == [1]
    for _ in range(2):
        with pytest.raises(Malformed, match="cannot be read"):
            frames.commands()


def test_text_that_is_not_unicode_is_refused_on_the_way_out():
    for serialization in Serialization:
        with pytest.raises(Malformed, match="does not fit its header"):
            encode(Command(1, {"a": "\ud800"}, serialization=serialization))


def test_a_command_shows_itself_without_its_payload():
    assert str(Command(310, body=b"x" * 9, opaque=4)) == "request 310 #4 9 B"
    assert str(Command(2, flag=1, remark="busy")) == "response 2 #0 0 B 'busy'"
    assert str(Command(15, flag=2)) == "oneway 15 #0 0 B"


# ---- hot frames ---------------------------------------------------------------------------------
# The short cuts say exactly what the long road says.


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
    slow = send_of(decode(frame))
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
    assert send_of(decode(as_ali_ons(310, {**V2, "j": None}))).header.reconsume_times == 0
    assert send_of(decode(as_ali_ons(320, V1))).header.queue_id == 1
    with pytest.raises(Malformed, match=r"SendHeaderV2: .*\$\.e"):
        send_of(decode(as_ali_ons(310, {**V2, "e": "x"})))


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
    send = send_of(Command(310, V2, opaque=-5, serialization=serialization))
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


# ---- hot answers --------------------------------------------------------------------------------
# Answers by the short cut: the same commands as by the general road.


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
commands = st.builds(
    Command,
    code=st.integers(-32767, 32767),
    ext=st.dictionaries(text, text, max_size=4),
    body=st.binary(max_size=20),
    opaque=i32,
    flag=i32,
    remark=st.none() | text,
    version=st.integers(0, 500),
    serialization=st.sampled_from([int(each) for each in Serialization]),
)


def fields(command):
    found = {name: getattr(command, name) for name in Command.__struct_fields__}
    found.pop("language")
    return found


@given(commands)
def test_both_roads_lead_to_the_same_command(command):
    frame = encode(command)
    assert fields(decode_answer(frame)) == fields(decode(frame))


def framed(header, body=b""):
    size = len(header)
    return (4 + size + len(body)).to_bytes(4, "big") + size.to_bytes(4, "big") + header + body


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":0}',
        b'{"code":0,"extFields":null}',
        b'{"code":0,"extFields":{"offset":5,"x":true,"y":null}}',
        b'{"code":"0","opaque":"7"}',
        b'{"code":0,"remark":"\xff"}',
        b'{"code":0,"language":"GO","body":"eA==","serializeTypeCurrentRPC":"JSON"}',
    ],
)
def test_odd_headers_take_the_general_road(header):
    frame = framed(header, b"body")
    assert fields(decode_answer(frame)) == fields(decode(frame))


@pytest.mark.parametrize("frame", [b"", b"\0\0\0\4", framed(b"{"), framed(b"[]"), b"\0" * 12])
def test_what_cannot_be_read_is_malformed(frame):
    with pytest.raises(Malformed):
        decode_answer(frame)


def test_too_many_fields_are_refused():
    ext = {str(number): "x" for number in range(300)}
    with pytest.raises(Malformed, match="300 ext fields"):
        decode_answer(framed(msgspec.json.encode({"code": 0, "extFields": ext})))
