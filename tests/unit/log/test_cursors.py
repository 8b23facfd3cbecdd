import pytest

from penstock.log.cursors import (
    CursorState,
    Release,
    decode_cursor,
    decode_release,
    decode_settlement,
    encode_cursor,
    encode_release,
    encode_settlement,
    entry_flags,
    release_record,
    settlement_record,
)
from penstock.log.queue_index import IndexFlag
from penstock.model.errors import LogCorrupt
from penstock.model.record import RecordFlag, RecordKind, Shape, neutral_record, tag_hash
from penstock.model.settlement import Cause, QueueSettlement, Settlement

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
