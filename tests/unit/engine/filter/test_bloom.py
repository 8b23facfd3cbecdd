"""Bloom bits: sizes, positions and the golden sample that other programs agree on."""

import pytest

from penstock.engine.filter.bloom import (
    ERROR_PERCENT,
    NAMES_PLANNED,
    BloomShape,
    murmur3_128,
)


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
