"""Text to values: what is taken, and what is refused with which advice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.settings.declare import bytes_text, convert, parse_bytes, parse_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("64KiB", 65536),
        ("64 kib", 65536),
        ("1.5MiB", 1572864),
        ("1GB", 1_000_000_000),
        ("16_384", 16384),
        ("0", 0),
    ],
)
def test_sizes_are_read_in_binary_and_decimal_units(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "-1", "12 parsecs", "1e9", "1,5MiB"])
def test_what_is_not_a_size_is_refused_with_examples(text):
    with pytest.raises(ValueError, match="64MiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500", 500), ("500ms", 500), ("10s", 10_000), ("1.5 min", 90_000), ("2d", 172_800_000)],
)
def test_times_are_read_in_milliseconds_unless_they_say_otherwise(text, expected):
    assert parse_ms(text) == expected


@given(st.integers(0, 2**60))
def test_a_size_written_by_us_reads_back_as_the_same_number(amount):
    assert parse_bytes(bytes_text(amount)) == amount


@pytest.mark.parametrize(
    ("name", "kind", "value", "expected"),
    [
        ("segment_bytes_max", int, "64MiB", 67108864),
        ("segment_bytes_max", int, 67108864, 67108864),
        ("hold_ms_max", int, "20s", 20_000),
        ("queues_max", int, "50_000", 50_000),
        ("ratio", float, "0.95", 0.95),
        ("ratio", float, 1, 1.0),
        ("faults", bool, "yes", True),
        ("faults", bool, "0", False),
        ("faults", bool, True, True),
        ("amqp", str, 5672, "5672"),
    ],
)
def test_text_and_toml_values_become_the_declared_type(name, kind, value, expected):
    converted = convert(name, kind, value)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("name", "kind", "value", "advice"),
    [
        ("queues_max", int, "many", "whole number"),
        ("queues_max", int, "64MiB", "whole number"),
        ("queues_max", int, -1, "negative"),
        ("queues_max", int, True, "whole number"),
        ("ratio", float, "half", "number"),
        ("ratio", float, "nan", "number"),
        ("ratio", float, float("inf"), "number"),
        ("faults", bool, "perhaps", "true or false"),
        ("amqp", str, ["a"], "text"),
        ("amqp", str, True, "text"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_would_be_right(name, kind, value, advice):
    with pytest.raises(ValueError, match=advice):
        convert(name, kind, value)
