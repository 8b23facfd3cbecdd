"""Bit maps: they say no only when the selector was asked and was not true."""

from types import SimpleNamespace

import pytest

from penstock.engine.filter.bit_maps import (
    ERROR_PERCENT,
    MAPS_PER_QUEUE_MAX,
    NAMES_PLANNED,
    QUEUES_MAX,
    SELECTORS_PER_QUEUE_MAX,
    BitMaps,
    BloomShape,
    may_hold,
    murmur3_128,
)
from penstock.engine.filter.sql92 import compile_selector
from penstock.log.encode import Appending
from penstock.model.record import RecordFlag, RecordKind, neutral_record

QUEUE = 7
IS_ONE = compile_selector("n = 1")
IS_TWO = compile_selector("n = 2")


def properties(record):
    return {"n": record.body.decode()}


def append(maps, *bodies, at, queue=QUEUE):
    maps.appended(
        [
            Appending(neutral_record(body), (SimpleNamespace(queue_id=queue),), at + count)
            for count, body in enumerate(bodies)
        ]
    )


def judged(judge, *offsets):
    return [judge.may_match(offset) for offset in offsets]


@pytest.fixture
def maps():
    return BitMaps(properties)


def test_a_message_that_the_selector_refused_is_passed_over_and_others_are_not(maps):
    maps.register("g1#t", IS_ONE, [QUEUE])
    append(maps, b"1", b"2", b"1", b"none", at=0)
    assert judged(maps.prefilter("g1#t", QUEUE), 0, 1, 2, 3) == [True, False, True, False]


def test_what_was_stored_before_the_selector_came_may_match(maps):
    maps.register("g1#t", IS_ONE, [QUEUE])
    append(maps, b"2", b"2", at=0)
    maps.register("g2#t", IS_TWO, [QUEUE])
    append(maps, b"1", at=2)
    assert judged(maps.prefilter("g2#t", QUEUE), 0, 1, 2) == [True, True, False]
    assert judged(maps.prefilter("g1#t", QUEUE), 0, 1, 2) == [False, False, True]


def test_a_late_map_of_an_older_offset_does_not_make_older_maps_speak_for_a_newer_selector(maps):
    maps.register("g1#t", IS_ONE, [QUEUE])
    append(maps, b"1", at=0)
    append(maps, b"2", at=2)
    maps.register("g2#t", IS_TWO, [QUEUE])
    append(maps, b"1", at=1)
    append(maps, b"1", at=3)
    assert judged(maps.prefilter("g2#t", QUEUE), 0, 1, 2, 3) == [True, True, True, False]


def test_another_expression_begins_anew(maps):
    maps.register("g1#t", IS_ONE, [QUEUE])
    old = maps.prefilter("g1#t", QUEUE)
    append(maps, b"2", at=0)
    maps.register("g1#t", IS_TWO, [QUEUE])
    append(maps, b"2", b"1", at=1)
    assert judged(maps.prefilter("g1#t", QUEUE), 0, 1, 2) == [True, True, False]
    assert judged(old, 0, 1, 2) == [True, True, True]


def test_the_same_expression_goes_on(maps):
    first = maps.register("g1#t", IS_ONE, [QUEUE])
    append(maps, b"2", at=0)
    assert maps.register("g1#t", compile_selector("n = 1"), [QUEUE, 8]) is first
    append(maps, b"2", at=0, queue=8)
    assert judged(maps.prefilter("g1#t", QUEUE), 0) == [False]
    assert judged(maps.prefilter("g1#t", 8), 0) == [False]


def test_without_a_map_everything_may_match(maps):
    maps.register("g1#t", IS_ONE, [QUEUE])
    judge = maps.prefilter("g1#t", QUEUE)
    assert judged(judge, 0, 5) == [True, True]
    append(maps, b"2", at=10)
    assert judged(judge, 9, 10, 11) == [True, False, True]
    assert maps.prefilter("g1#t", 99) is None
    assert maps.prefilter("g2#t", QUEUE) is None


def test_a_gap_between_maps_may_match(maps):
    maps.register("g1#t", IS_ONE, [QUEUE])
    append(maps, b"2", at=0)
    append(maps, b"2", at=4)
    assert judged(maps.prefilter("g1#t", QUEUE), 0, 1, 2, 3, 4) == [False, True, True, True, False]


def test_delayed_messages_and_records_that_are_no_messages_get_no_map(maps):
    maps.register("g1#t", IS_ONE, [QUEUE])
    queue = (SimpleNamespace(queue_id=QUEUE),)
    delayed, release = neutral_record(b"2"), neutral_record(b"2")
    delayed.reshape(flags=RecordFlag.DELAYED)
    release.reshape(kind=RecordKind.RELEASE)
    maps.appended([Appending(delayed, queue), Appending(release, queue, 0)])
    assert judged(maps.prefilter("g1#t", QUEUE), 0) == [True]


def test_properties_that_cannot_be_read_may_match_and_are_counted(maps):
    maps.register("g1#t", IS_ONE, [QUEUE])
    append(maps, b"\xff", at=0)
    assert (judged(maps.prefilter("g1#t", QUEUE), 0), maps.errors) == ([True], 1)


def test_only_the_newest_maps_of_a_queue_are_kept():
    maps = BitMaps(properties, maps_per_queue_max=8)
    maps.register("g1#t", IS_ONE, [QUEUE])
    for offset in range(100):
        append(maps, b"2", at=offset)
    answers = judged(maps.prefilter("g1#t", QUEUE), *range(100))
    # Cut by quarters, so up to a quarter more than the limit is there.
    assert 8 <= answers.count(False) <= 10
    assert answers == sorted(answers, reverse=True)
    append(maps, b"2", at=1_000)
    assert judged(maps.prefilter("g1#t", QUEUE), 99, 1_000) == [True, False]


def test_a_queue_asks_a_bounded_number_of_selectors_and_bounded_queues_have_maps(maps):
    for number in range(SELECTORS_PER_QUEUE_MAX):
        assert maps.register(f"g{number}#t", IS_ONE, [QUEUE]) is not None
    assert maps.register("one-more#t", IS_ONE, [QUEUE]) is None
    assert maps.prefilter("one-more#t", QUEUE) is None
    assert maps.register("other#t", IS_ONE, range(100, 100 + QUEUES_MAX - 1)) is not None
    assert maps.register("too-many#t", IS_ONE, [999]) is None
    assert MAPS_PER_QUEUE_MAX == 65_536


def test_after_unregistering_nothing_is_judged_and_room_is_free(maps):
    maps.register("g1#t", IS_ONE, [QUEUE])
    append(maps, b"2", at=0)
    judge = maps.prefilter("g1#t", QUEUE)
    maps.unregister("g1#t")
    maps.unregister("g1#t")
    assert judged(judge, 0) == [True]
    assert maps.prefilter("g1#t", QUEUE) is None
    assert maps.bit_map(QUEUE, 0) is None


def test_a_dropped_queue_is_forgotten(maps):
    maps.register("g1#t", IS_ONE, [QUEUE])
    append(maps, b"2", at=0)
    judge = maps.prefilter("g1#t", QUEUE)
    maps.dropped(QUEUE)
    assert judged(judge, 0) == [True]


def test_a_map_of_another_size_and_no_map_may_hold_everything():
    shape = BloomShape()
    mask = shape.mask("g1#t")
    assert may_hold(None, shape, mask)
    assert may_hold(bytes(13), shape, mask)
    assert not may_hold(bytes(14), shape, mask)
    assert may_hold(mask.to_bytes(14, "little"), shape, mask)


# ---- bloom --------------------------------------------------------------------------------------
# Bloom bits: sizes, positions and the golden sample that other programs agree on.


def test_a_fifth_of_errors_for_thirty_two_names_takes_three_hashes_and_112_bits():
    assert (ERROR_PERCENT, NAMES_PLANNED) == (20, 32)
    shape = BloomShape()
    assert (shape.hashes, shape.bits) == (3, 112)


@pytest.mark.parametrize(
    ("error_percent", "names", "hashes", "bits"),
    [(10, 20, 4, 96), (50, 1, 1, 8), (1, 100, 7, 960), (25, 32, 2, 96)],
)
def test_fewer_errors_and_more_names_take_more_bits(error_percent, names, hashes, bits):
    shape = BloomShape(error_percent, names)
    assert (shape.hashes, shape.bits) == (hashes, bits)


@pytest.mark.parametrize(("error_percent", "names"), [(0, 32), (100, 32), (20, 0)])
def test_a_shape_that_makes_no_sense_is_refused(error_percent, names):
    with pytest.raises(ValueError, match="must be"):
        BloomShape(error_percent, names)


def test_the_golden_sample_lies_where_other_programs_put_it():
    assert BloomShape().positions("CID_1#TopicTest") == [6, 38, 41]
    assert BloomShape().mask("CID_1#TopicTest") == 1 << 6 | 1 << 38 | 1 << 41


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", "00000000000000000000000000000000"),
        (b"hello", "029bbd41b3a7d8cb191dae486a901e5b"),
        (
            b"The quick brown fox jumps over the lazy dog",
            "6c1b07bc7bbc4be347939ac4a93c437a",
        ),
    ],
)
def test_murmur_gives_the_published_digests(data, digest):
    low, high = murmur3_128(data)
    assert low.to_bytes(8, "little").hex() + high.to_bytes(8, "little").hex() == digest


def test_positions_are_within_the_map_and_a_full_map_holds_every_name():
    shape = BloomShape()
    for number in range(200):
        mask = shape.mask(f"group-{number}#topic")
        assert 0 < mask < 1 << shape.bits
        assert shape.all_set & mask == mask
