"""Answers by the short cut: the same commands as by the general road."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.rocketmq.command import Command, Malformed, Serialization
from penstock.wire.rocketmq.frame import decode, encode
from penstock.wire.rocketmq.hot_answers import decode_answer

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
