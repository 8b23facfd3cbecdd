import struct

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.frame import HEAD_BYTES, VERSION, VOID, encode_head, find_head, parse_head
from penstock.model.errors import FormatTooNew, InvariantBroken

GOLDEN = bytes.fromhex(
    "504e5354"  # magic "PNST"
    "0100"  # version
    "0000"  # flags
    "28010000"  # frame_len 296
    "02000000"  # records
    "0010000000000000"  # base_position 4096
    "0008000000000000"  # durable_upto 2048
    "07000000"  # epoch
    "efbeadde"  # prev_head_crc
    "2fc95047"  # head_crc
    "00000000"  # reserved
)


def test_the_format_is_pinned_byte_for_byte():
    head, head_crc = encode_head(296, 2, 4096, durable_upto=2048, epoch=7, prev_head_crc=0xDEADBEEF)
    assert head.hex() == GOLDEN.hex()
    assert len(head) == HEAD_BYTES
    assert head_crc == struct.unpack_from("<I", GOLDEN, 40)[0]


def test_the_head_crc_covers_the_head_with_itself_as_zero():
    _, head_crc = encode_head(296, 2, 4096, durable_upto=2048, epoch=7, prev_head_crc=0xDEADBEEF)
    assert crc32c(GOLDEN[:40] + bytes(4) + GOLDEN[44:]) == head_crc


@given(
    frame_len=st.integers(6, 1 << 27).map(lambda words: words * 8),
    records=st.integers(0, 2**32 - 1),
    base=st.integers(0, 2**50).map(lambda words: words * 8),
    lag=st.integers(0, 2**40),
    epoch=st.integers(0, 2**32 - 1),
    previous=st.integers(0, 2**32 - 1),
    flags=st.sampled_from([0, VOID]),
)
def test_heads_survive_the_round_trip(*, frame_len, records, base, lag, epoch, previous, flags):
    durable = max(0, base - lag)
    raw, head_crc = encode_head(
        frame_len,
        records,
        base,
        durable_upto=durable,
        epoch=epoch,
        prev_head_crc=previous,
        flags=flags,
    )
    head = parse_head(b"junk" + raw, 4, base)
    assert head == (frame_len, records, base, durable, epoch, previous, head_crc, flags)
    assert head.end_position == base + frame_len
    assert head.is_void == bool(flags)


def test_any_single_flipped_bit_makes_a_head_bad():
    for bit in range(HEAD_BYTES * 8):
        raw = bytearray(GOLDEN)
        raw[bit // 8] ^= 1 << bit % 8
        assert parse_head(bytes(raw), 0, 4096) is None, f"bit {bit}"


def test_a_head_somewhere_else_or_cut_short_is_no_head():
    assert parse_head(GOLDEN, 0, 4104) is None
    assert all(parse_head(GOLDEN[:size], 0, 4096) is None for size in range(HEAD_BYTES))


def test_a_newer_version_is_told_from_damage():
    raw = bytearray(GOLDEN)
    raw[4:6] = (VERSION + 1).to_bytes(2, "little")
    raw[40:44] = bytes(4)
    raw[40:44] = crc32c(bytes(raw)).to_bytes(4, "little")
    with pytest.raises(FormatTooNew, match="position 4096 has format 2"):
        parse_head(bytes(raw), 0, 4096)


@pytest.mark.parametrize(
    ("frame_len", "base", "durable"), [(50, 0, 0), (40, 0, 0), (48, 4, 0), (48, 8, 16)]
)
def test_a_head_that_breaks_the_rules_is_never_written(frame_len, base, durable):
    with pytest.raises(InvariantBroken):
        encode_head(frame_len, 0, base, durable_upto=durable)


def test_a_head_is_found_among_bytes_that_only_look_like_one():
    noise = b"PNST" * 10 + GOLDEN[:30] + b"PN"
    start = (len(noise) + 7) & -8
    raw, _ = encode_head(48, 0, 1000 + start, durable_upto=0)
    buffer = noise.ljust(start, b"\0") + raw + raw
    assert find_head(buffer, 0, 1000).base_position == 1000 + start
    assert find_head(buffer, start + 1, 1000) is None
