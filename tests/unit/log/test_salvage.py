from hypothesis import given
from hypothesis import strategies as st

from penstock.log.entry import encode_batch
from penstock.log.salvage import find_record, good_length, read_frame, salvage
from penstock.model.record import neutral_record

BASE = 8000


def written(*bodies):
    """Records one behind the other from ``BASE`` on, and where each lies."""
    records = [neutral_record(body) for body in bodies]
    parts, lengths = encode_batch(records, [((1, 0),)] * len(records), BASE, 0)
    spans, at = [], 0
    for length in lengths:
        spans.append((at, at + length))
        at += length
    return b"".join(parts), spans


def test_a_good_frame_is_read_at_once_and_a_bad_one_not_at_all():
    data, spans = written(b"a", b"bb", b"c" * 50)
    assert [
        (r[0] - BASE, r[0] - BASE + r[1]) for r in read_frame(data, 0, len(data), BASE)
    ] == spans
    assert read_frame(data, 0, len(data) - 8, BASE) is None
    assert read_frame(data, 8, len(data), BASE) is None
    assert read_frame(data, 0, len(data), BASE + 8) is None
    assert read_frame(b"", 0, 0, BASE) == []


def test_a_good_record_has_a_length_anything_else_has_none():
    data, spans = written(b"a", b"bb")
    assert good_length(data, 0, len(data), BASE) == spans[0][1]
    assert good_length(data, 8, len(data), BASE) == 0
    assert good_length(data, 0, spans[0][1] - 1, BASE) == 0
    assert good_length(bytes(200), 0, 200, 0) == 0


@given(junk=st.binary(max_size=300), body=st.binary(max_size=50))
def test_the_next_good_record_is_found_behind_any_junk(junk, body):
    junk = junk.ljust((len(junk) + 7) & -8, b"\0")
    parts, _ = encode_batch((neutral_record(body),), (((1, 0),),), BASE + len(junk), 0)
    data = junk + b"".join(parts)
    assert find_record(data, 0, len(data), BASE) == len(junk)
    assert find_record(data, len(junk) + 8, len(data), BASE) == len(data)


def test_a_record_is_found_across_search_steps(monkeypatch):
    monkeypatch.setattr("penstock.log.salvage._SEARCH_STEPS", 3)
    parts, _ = encode_batch((neutral_record(b"x"),), (((1, 0),),), BASE + 800, 0)
    data = bytes(800) + b"".join(parts)
    assert find_record(data, 0, len(data), BASE) == 800


@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=8),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=4),
    knows_count=st.booleans(),
)
def test_salvage_gives_exactly_the_records_that_were_not_hit(bodies, flips, knows_count):
    data, spans = written(*bodies)
    broken = bytearray(data)
    for share, bit in flips:
        broken[int(share * len(data))] ^= 1 << bit
    untouched = [(start, end) for start, end in spans if broken[start:end] == data[start:end]]
    good, bad = salvage(bytes(broken), 0, len(data), BASE, len(bodies) if knows_count else None)
    assert good == untouched
    covered = sorted(good + bad)
    assert [start for start, _ in covered] == [0, *(end for _, end in covered[:-1])]
    assert covered[-1][1] == len(data)


def test_a_forged_record_in_a_damaged_payload_is_seen_through_when_the_count_is_known():
    inner_at = 88 + 12 + 4
    parts, _ = encode_batch((neutral_record(b"forged"),), (((1, 0),),), BASE + inner_at, 0)
    data, spans = written(bytes(4) + b"".join(parts) + b"tail", b"next")
    broken = bytearray(data)
    broken[spans[0][1] - 1 - 4] ^= 1
    good, bad = salvage(bytes(broken), 0, len(data), BASE, 2)
    assert (good, bad) == ([spans[1]], [spans[0]])
