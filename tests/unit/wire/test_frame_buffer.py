from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.frame_buffer import FrameBuffer, FrameTooLarge, FrameTooSmall

PREFIX = Struct(">I")


def framed(payload: bytes, trailer: bytes = b"") -> bytes:
    return PREFIX.pack(len(payload)) + payload + trailer


@given(st.lists(st.binary(max_size=60), max_size=20), st.integers(1, 17))
def test_frames_come_out_whole_however_the_bytes_are_cut(payloads, step):
    buffer = FrameBuffer(PREFIX)
    stream = b"".join(framed(payload) for payload in payloads)
    found = []
    for at in range(0, len(stream), step):
        buffer.feed(stream[at : at + step])
        found += buffer.frames()
    assert found == [framed(payload) for payload in payloads]
    assert len(buffer) == 0


def test_a_trailer_belongs_to_its_frame():
    buffer = FrameBuffer(PREFIX, trailer_bytes=1)
    buffer.feed(framed(b"abc"))
    assert buffer.frames() == []
    buffer.feed(b"\xce")
    assert buffer.frames() == [framed(b"abc", b"\xce")]


def test_a_giant_length_is_refused_from_the_length_field_alone():
    buffer = FrameBuffer(PREFIX, frame_bytes_max=1000)
    buffer.feed(PREFIX.pack(2**32 - 1))
    with pytest.raises(FrameTooLarge, match="4294967295 bytes announced, limit 1000"):
        buffer.frames()
    assert len(buffer) == 4


def test_good_frames_before_a_bad_one_are_handed_out_first():
    buffer = FrameBuffer(PREFIX, frame_bytes_max=1000, least_bytes=2)
    buffer.feed(framed(b"ok") + PREFIX.pack(1))
    assert buffer.frames() == [framed(b"ok")]
    with pytest.raises(FrameTooSmall, match="1 bytes announced, at least 2"):
        buffer.frames()


def test_a_reader_may_take_a_few_frames_and_leave_the_rest():
    buffer = FrameBuffer(PREFIX)
    buffer.feed(framed(b"a") + framed(b"b") + framed(b"c"))
    assert buffer.frames(2) == [framed(b"a"), framed(b"b")]
    assert buffer.frames() == [framed(b"c")]


def test_raw_bytes_can_be_taken_before_framing_begins():
    buffer = FrameBuffer(PREFIX)
    buffer.feed(b"AMQP")
    assert buffer.take(8) is None
    buffer.feed(b"\0\0\x09\x01" + framed(b"x"))
    assert buffer.take(8) == b"AMQP\0\0\x09\x01"
    assert buffer.frames() == [framed(b"x")]
