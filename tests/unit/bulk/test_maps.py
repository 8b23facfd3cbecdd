"""Property strings become maps, by the rules of the wire."""

import pyarrow as pa
import pytest

from penstock.bulk.maps import maps_of, property_maps
from penstock.wire.rocketmq.properties import parse_properties


@pytest.mark.parametrize(
    "strings",
    [
        [],
        [b"", b""],
        [b"a\x01b\x02", b"", b"c\x01d\x02e\x01f\x02"],
        [b"a\x01b", b"\x02c\x01d", b"e\x01f\x02"],
        [b"a\x01b\x01c\x02", b"\x01v\x02n\x01\x02"],
        [b"a\x011\x02a\x012\x02b\x013\x02"],
        [b"no pair", b"\x02\x02\x02"],
        [b"broken\x01\xff\x02"],
        [b"WAIT\x01true\x02x\x01y\x02", b"WAITING\x011\x02WAIT\0\x012\x02"],
        [b"TRACE_ON\x011\x02CONSUME_START_TIME\x012\x02u\x013\x02"],
    ],
    ids=range(10),
)
@pytest.mark.parametrize("hidden", [frozenset(), frozenset({"WAIT", "CONSUME_START_TIME"})])
def test_a_column_of_strings_is_read_as_single_strings_are(strings, hidden):
    expected = [
        [(k, v) for k, v in parse_properties(each).items() if k not in hidden] for each in strings
    ]

    assert property_maps(pa.array(strings, pa.binary()), hidden).to_pylist() == expected


def test_a_slice_of_a_column_is_read_as_well():
    strings = pa.array([b"a\x01b\x02", b"c\x01d\x02", b"e\x01f\x02"], pa.binary()).slice(1, 1)

    assert property_maps(strings, frozenset()).to_pylist() == [[("c", "d")]]


def test_maps_that_were_read_one_by_one_are_a_column_of_the_same_type():
    made = maps_of([{"a": "b"}, {}])

    assert made.to_pylist() == [[("a", "b")], []]
    assert made.type == property_maps(pa.array([b""], pa.binary()), frozenset()).type
