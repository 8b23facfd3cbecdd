import struct

import pytest

from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.stored import (
    BATCH_MESSAGES_MAX,
    BatchItem,
    StoredMessage,
    SysFlag,
    join_batch,
    split_batch,
    unwrap,
)

GOLDEN = (
    b"\x00\x00\x00\x1f"  # 31 bytes
    b"\x00\x00\x00\x00\x00\x00\x00\x00"  # magic, checksum
    b"\x00\x00\x00\x05"  # flag
    b"\x00\x00\x00\x05hello"
    b"\x00\x04a\x01b\x02"
    b"\x00\x00\x00\x16"
    b"\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x00\x00\x00\x00"
    b"\x00\x00\x00\x00"
    b"\x00\x00"
)
ITEMS = [BatchItem(b"hello", b"a\x01b\x02", 5), BatchItem(b"")]


def test_a_batch_body_is_split_and_joined_as_drawn():
    assert split_batch(GOLDEN) == ITEMS
    assert join_batch(ITEMS) == GOLDEN
    assert split_batch(b"") == []


@pytest.mark.parametrize("cut", [n for n in range(1, len(GOLDEN)) if n != 31])
def test_a_batch_cut_anywhere_is_malformed(cut):
    with pytest.raises(Malformed):
        split_batch(GOLDEN[:cut])


@pytest.mark.parametrize("at", [0, 16], ids=["total", "body"])
@pytest.mark.parametrize("value", [0, 30, 2**31 - 1, 2**31, 2**32 - 1])
def test_impossible_lengths_are_malformed(at, value):
    data = bytearray(GOLDEN[:31])
    data[at : at + 4] = struct.pack(">I", value)
    with pytest.raises(Malformed):
        split_batch(bytes(data))


def test_a_batch_has_a_limit():
    smallest = GOLDEN[31:]
    assert len(split_batch(smallest * BATCH_MESSAGES_MAX)) == BATCH_MESSAGES_MAX
    with pytest.raises(Malformed, match="more than 65536 messages"):
        split_batch(smallest * (BATCH_MESSAGES_MAX + 1))


def test_what_does_not_fit_is_refused():
    with pytest.raises(Malformed, match="properties of 40000"):
        join_batch([BatchItem(b"", b"p" * 40000)])
    with pytest.raises(Malformed, match="no fit"):
        join_batch([BatchItem(b"", flag=1 << 31)])


def test_an_inner_batch_is_unwrapped_with_consecutive_offsets():
    stored = StoredMessage(
        topic="T", body=GOLDEN, queue_offset=40, sys_flag=SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    )
    first, second = unwrap(stored)
    assert (first.body, first.properties, first.flag) == (b"hello", b"a\x01b\x02", 5)
    assert [first.queue_offset, second.queue_offset] == [40, 41]
    assert first.sys_flag == 0
    assert first.topic == "T"


def test_any_other_message_is_left_alone():
    message = StoredMessage(topic="T", body=GOLDEN, sys_flag=SysFlag.INNER_BATCH)
    assert unwrap(message) == [message]
