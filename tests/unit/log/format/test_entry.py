import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.log import format as entry
from penstock.log.format import (
    HEADER_BYTES,
    decode,
    decode_record,
    encode,
    encode_batch,
    encode_untargeted,
    pack_middle,
    record_length,
    template,
)
from penstock.model.errors import FormatTooNew, InvariantBroken
from penstock.model.ids import UNASSIGNED_OFFSET
from penstock.model.record import Record, RecordFlag, RecordKind, Shape, Wire, neutral_record

GOLDEN = bytes.fromhex(
    "62055a9b"  # crc
    "78000000"  # len 120
    "01"  # kind message
    "01"  # proto AMQP
    "0160"  # flags transient, 3 padding bytes
    "0100"  # targets
    "09"  # priority
    "01"  # header version
    "01000000"  # messages
    "3010000000000000"  # position 4144
    "1864e5cf8b010000"  # store_ms 1,699,999,999,000
    "0100000000000000"  # born_ms
    "0200000000000000"  # expire_ms
    "0300000000000000"  # deliver_ms
    "00000000"  # key_at
    "0200"  # key_len
    "0300"  # tag_len
    "02000000"  # tag_at
    "05000000"  # props_at
    "06000000"  # props_len
    "0b000000"  # body_at
    "06000000"  # body_len
    "07000000"  # target: queue 7
    "0500000000000000"  # target: offset 5
    "6b6b" + "746167" + "612d3e623b20" + "62 6f 64 79 21 21"  # origin: key tag properties body
    "000000"  # padding
)


def golden_record() -> Record:
    record = neutral_record(b"body!!", properties=b"a->b; ", key=b"kk", tag=b"tag")
    record.born_ms = 1
    record.reshape(
        wire=Wire.AMQP, flags=RecordFlag.TRANSIENT, priority=9, expire_ms=2, deliver_ms=3
    )
    return record


def test_the_format_is_pinned_byte_for_byte():
    data = encode(golden_record(), [(7, 5)], 4144, 1_699_999_999_000)
    assert data.hex() == GOLDEN.hex()
    assert crc32c(GOLDEN[4:]) == int.from_bytes(GOLDEN[:4], "little")


def test_the_pinned_bytes_are_read_back():
    record, targets = decode(GOLDEN, 0, 4144)
    assert (record.key, record.tag, record.properties, record.body) == (
        b"kk",
        b"tag",
        b"a->b; ",
        b"body!!",
    )
    assert (record.position, record.store_ms, list(targets)) == (4144, 1_699_999_999_000, [(7, 5)])
    assert record == _stored(golden_record(), 4144, 1_699_999_999_000)


def test_the_field_list_adds_up_to_the_header():
    assert sum(int(kind[-1]) for _, kind in entry.HEADER_FIELDS) == HEADER_BYTES


@st.composite
def records(draw):
    origin = draw(st.binary(max_size=200))

    def span(longest):
        start = draw(st.integers(0, len(origin)))
        return start, draw(st.integers(0, min(longest, len(origin) - start)))

    (key_at, key_len), (tag_at, tag_len) = span(65535), span(65535)
    (props_at, props_len), (body_at, body_len) = span(2**32), span(2**32)
    stamp = st.integers(-(2**63), 2**63 - 1)
    born_ms = draw(stamp)
    shape = Shape(
        wire=draw(st.sampled_from(list(Wire))),
        kind=draw(st.sampled_from(list(RecordKind))),
        flags=draw(st.integers(0, 15)),
        priority=draw(st.integers(0, 255)),
        messages=draw(st.one_of(st.just(1), st.integers(1, 5000))),
        expire_ms=draw(stamp),
        deliver_ms=draw(stamp),
        key_at=key_at,
        key_len=key_len,
        tag_at=tag_at,
        tag_len=tag_len,
        props_at=props_at,
        props_len=props_len,
        body_at=body_at,
        body_len=body_len,
    )
    return Record(origin, shape, born_ms)


targets_lists = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)), max_size=4
)


@given(
    batch=st.lists(st.tuples(records(), targets_lists), min_size=1, max_size=5),
    position=st.integers(0, 2**50).map(lambda words: words * 8),
    store_ms=st.integers(0, 2**45),
)
def test_records_survive_the_round_trip(batch, position, store_ms):
    originals = [Record(record.origin, record.shape, record.born_ms) for record, _ in batch]
    parts, lengths = encode_batch(
        [record for record, _ in batch], [targets for _, targets in batch], position, store_ms
    )
    data = b"".join(parts)
    at = 0
    for original, (_, targets), length in zip(originals, batch, lengths, strict=True):
        record, found = decode(data, at, position + at)
        assert record == _stored(original, position + at, store_ms)
        assert list(found) == targets
        assert length == record_length(original, len(targets))
        assert length % 8 == 0
        assert length >= original.messages
        assert decode_record(data, at, position + at) == record
        at += length
    assert at == len(data)


@given(record=records(), target=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)))
def test_a_template_makes_the_same_bytes(record, target):
    common = template(record.shape, len(record.origin))
    if common is None:
        assert record.messages > record_length(neutral_record(record.origin), 1)
        return
    head, tail, pack, length = common
    queue_id, offset = target
    middle = pack_middle(777, record.born_ms, tail, queue_id)
    sealed = pack(head, 4096, middle, offset, record.origin)
    assert encode(record, [target], 4096, 777)[4:] == sealed
    assert len(sealed) == length - 4


@given(origin=st.binary(max_size=40), born_ms=st.integers(0, 2**40))
def test_a_record_for_no_queue_makes_the_same_bytes(origin, born_ms):
    shape = Shape(kind=int(RecordKind.SETTLE))
    record = Record(origin, shape, born_ms, 4096, 777)
    sealed = encode_untargeted(record)
    assert sealed == encode(Record(origin, shape, born_ms), [], 4096, 777)[4:]
    assert len(sealed) + 4 == record_length(record, 0)


def test_a_large_origin_makes_the_same_bytes_as_a_small_one(monkeypatch):
    record = neutral_record(b"x" * 5000, key=b"k")
    small = encode(record, [(1, 2)], 48, 9)
    monkeypatch.setattr(entry, "_JOIN_BYTES_MAX", 100)
    assert encode(record, [(1, 2)], 48, 9) == small


def test_any_single_flipped_bit_is_noticed():
    for bit in range(len(GOLDEN) * 8):
        raw = bytearray(GOLDEN)
        raw[bit // 8] ^= 1 << bit % 8
        assert decode(bytes(raw), 0, 4144) is None, f"bit {bit}"


def test_a_record_elsewhere_or_cut_short_is_none():
    assert decode(GOLDEN, 0, 4152) is None
    assert all(decode(GOLDEN[:size], 0, 4144) is None for size in range(len(GOLDEN)))
    assert decode(bytes(200), 0, 0) is None


def test_a_newer_header_version_is_told_from_damage():
    raw = bytearray(GOLDEN)
    raw[15] = 2
    raw[:4] = crc32c(bytes(raw[4:])).to_bytes(4, "little")
    with pytest.raises(FormatTooNew, match="position 4144 has header version 2"):
        decode(bytes(raw), 0, 4144)


@pytest.mark.parametrize("targets", [[(1, 0)], [], [(1, 0), (2, 0)]])
@pytest.mark.parametrize(
    "change",
    [
        {"body_at": 5},
        {"key_len": 5},
        {"tag_at": 9, "tag_len": 1},
        {"props_len": 77},
        {"messages": 0},
        {"flags": 0x1000},
    ],
)
def test_a_record_that_contradicts_itself_is_never_written(change, targets):
    record = neutral_record(b"body")
    record.reshape(**change)
    with pytest.raises(InvariantBroken):
        encode(record, targets, 48, 0)


def test_senseless_facts_under_a_good_crc_stop_the_reader():
    raw = bytearray(GOLDEN)
    raw[84:88] = (77).to_bytes(4, "little")
    raw[:4] = crc32c(bytes(raw[4:])).to_bytes(4, "little")
    with pytest.raises(InvariantBroken):
        decode(bytes(raw), 0, 4144)


def test_origins_that_carry_offset_position_and_time_are_stamped():
    record = Record(bytes(30), Shape(stamp_offset_at=1, stamp_position_at=10, stamp_store_ms_at=20))
    data = encode(record, [(3, 77)], 800, 123456)
    stored = decode_record(data, 0, 800)
    assert stored.origin == record.origin
    values = [int.from_bytes(stored.origin[at : at + 8], "big") for at in (1, 10, 20)]
    assert values == [77, 800, 123456]


def test_an_offset_not_yet_assigned_is_not_stamped():
    record = Record(b"\x11" * 8, Shape(stamp_offset_at=0))
    encode(record, [(3, UNASSIGNED_OFFSET)], 800, 1)
    assert record.origin == b"\x11" * 8


def _stored(record: Record, position: int, store_ms: int) -> Record:
    """The record as it comes back: with position and store time, stamps forgotten."""
    return Record(record.origin, record.shape, record.born_ms, position, store_ms)
