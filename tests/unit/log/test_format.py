import struct

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.format import (
    FORMAT_NAME,
    FORMAT_VERSION,
    HEAD_BYTES,
    VERSION,
    VOID,
    CursorState,
    Release,
    check_format,
    decode_cursor,
    decode_release,
    decode_settlement,
    encode_cursor,
    encode_head,
    encode_release,
    encode_settlement,
    entry_flags,
    find_head,
    parse_head,
    release_record,
    settlement_record,
)
from penstock.log.index import IndexFlag
from penstock.model.errors import FormatTooNew, InvariantBroken, LogCorrupt
from penstock.model.record import RecordFlag, RecordKind, Shape, neutral_record, tag_hash
from penstock.model.settlement import Cause, QueueSettlement, Settlement
from penstock.testing.storage import MemoryStorage

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


# ---- cursors ------------------------------------------------------------------------------------


SETTLEMENT = Settlement(
    5,
    int(Cause.ACKED),
    [QueueSettlement(1, 10, [(12, 14)], 1000, [(15, 2)]), QueueSettlement(2, 0)],
)


def test_a_settlement_survives_encoding():
    assert decode_settlement(encode_settlement(SETTLEMENT)) == SETTLEMENT


def test_a_settle_record_has_no_key_and_says_what_it_is():
    record = settlement_record(SETTLEMENT, born_ms=3)
    assert (record.kind, record.born_ms) == (RecordKind.SETTLE, 3)
    assert decode_settlement(record.origin) == SETTLEMENT


def test_a_cursor_survives_encoding():
    state = CursorState(1, 2, 3, [(5, 6)], 9, [(7, 2)])
    assert decode_cursor(encode_cursor(state)) == state


def test_a_release_survives_encoding():
    release = Release(1 << 40, 264, 3, -5, int(IndexFlag.EXPIRES))
    assert decode_release(encode_release(release)) == release


def test_a_release_record_points_back_at_the_original():
    original = neutral_record(b"later", tag=b"blue")
    original.reshape(flags=int(RecordFlag.DELAYED), deliver_ms=500, expire_ms=900)
    original.position = 4096
    original.reshape(messages=2)
    record = release_record(original, 128)
    assert (record.kind, record.messages, record.deliver_ms) == (RecordKind.RELEASE, 2, 500)
    assert decode_release(record.origin) == Release(
        4096, 128, 2, tag_hash(b"blue"), int(IndexFlag.EXPIRES)
    )


@pytest.mark.parametrize(
    ("facts", "flags"),
    [
        ({}, IndexFlag(0)),
        ({"flags": int(RecordFlag.TRANSIENT)}, IndexFlag.TRANSIENT),
        ({"deliver_ms": 5}, IndexFlag.DEFERRED),
        ({"deliver_ms": 5, "flags": int(RecordFlag.DELAYED)}, IndexFlag(0)),
        ({"expire_ms": 5}, IndexFlag.EXPIRES),
    ],
)
def test_an_entry_says_what_dispatch_must_know(facts, flags):
    assert entry_flags(Shape(**facts)) == flags


@pytest.mark.parametrize("decode", [decode_settlement, decode_release, decode_cursor])
def test_garbage_is_called_corrupt(decode):
    with pytest.raises(LogCorrupt):
        decode(b"\xc1 garbage")


# ---- format -------------------------------------------------------------------------------------


@pytest.fixture
def storage():
    return MemoryStorage()


def content(storage):
    return storage.open(FORMAT_NAME, create=False).read(0, 100)


def put(storage, data):
    storage.open(FORMAT_NAME, create=True).write(data)


def test_a_new_directory_gets_the_number(storage):
    assert check_format(storage) == ""
    assert content(storage) == f"penstock format {FORMAT_VERSION}\n".encode()
    assert check_format(storage) == ""


def test_a_newer_format_is_refused_and_left_alone(storage):
    put(storage, b"penstock format 99\n")
    with pytest.raises(FormatTooNew, match="newer Penstock"):
        check_format(storage)
    assert content(storage) == b"penstock format 99\n"


def test_an_unreadable_file_is_written_again_and_said_so(storage):
    put(storage, b"\x00\x00")
    assert "written again" in check_format(storage)
    assert check_format(storage) == ""
