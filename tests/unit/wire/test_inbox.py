from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.inbox import FrameTooLarge, FrameTooSmall, Inbox

PREFIX = Struct(">I")


def framed(payload: bytes, trailer: bytes = b"") -> bytes:
    return PREFIX.pack(len(payload)) + payload + trailer


@given(st.lists(st.binary(max_size=60), max_size=20), st.integers(1, 17))
def test_frames_come_out_whole_however_the_bytes_are_cut(payloads, step):
    inbox = Inbox(PREFIX)
    stream = b"".join(framed(payload) for payload in payloads)
    found = []
    for at in range(0, len(stream), step):
        inbox.feed(stream[at : at + step])
        found += inbox.frames()
    assert found == [framed(payload) for payload in payloads]
    assert len(inbox) == 0


def test_a_trailer_belongs_to_its_frame():
    inbox = Inbox(PREFIX, trailer_bytes=1)
    inbox.feed(framed(b"abc"))
    assert inbox.frames() == []
    inbox.feed(b"\xce")
    assert inbox.frames() == [framed(b"abc", b"\xce")]


def test_a_giant_length_is_refused_from_the_length_field_alone():
    inbox = Inbox(PREFIX, frame_bytes_max=1000)
    inbox.feed(PREFIX.pack(2**32 - 1))
    with pytest.raises(FrameTooLarge, match="4294967295 bytes announced, limit 1000"):
        inbox.frames()
    assert len(inbox) == 4


def test_good_frames_before_a_bad_one_are_handed_out_first():
    inbox = Inbox(PREFIX, frame_bytes_max=1000, least_bytes=2)
    inbox.feed(framed(b"ok") + PREFIX.pack(1))
    assert inbox.frames() == [framed(b"ok")]
    with pytest.raises(FrameTooSmall, match="1 bytes announced, at least 2"):
        inbox.frames()


def test_a_reader_may_take_a_few_frames_and_leave_the_rest():
    inbox = Inbox(PREFIX)
    inbox.feed(framed(b"a") + framed(b"b") + framed(b"c"))
    assert inbox.frames(2) == [framed(b"a"), framed(b"b")]
    assert inbox.frames() == [framed(b"c")]


def test_raw_bytes_can_be_taken_before_framing_begins():
    inbox = Inbox(PREFIX)
    inbox.feed(b"AMQP")
    assert inbox.take(8) is None
    inbox.feed(b"\0\0\x09\x01" + framed(b"x"))
    assert inbox.take(8) == b"AMQP\0\0\x09\x01"
    assert inbox.frames() == [framed(b"x")]
