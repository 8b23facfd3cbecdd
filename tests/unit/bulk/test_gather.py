"""Byte strings anywhere in a few buffers become one column."""

import numpy as np
import pyarrow as pa

from penstock.bulk.gather import Buffers, Spans, as_text


def spans(*triples):
    return Spans(*(np.array(column, np.int64) for column in zip(*triples, strict=True)))


def test_short_and_long_values_come_out_of_every_buffer():
    buffers = Buffers([b"hello, this is the first buffer", b"and the second"])
    wanted = spans((1, 0, 5), (2, 0, 14), (1, 7, 24), (1, 3, 0), (2, 13, 1), (1, 30, 1))

    assert buffers.binary(wanted).to_pylist() == [
        b"hello", b"and the second", b"this is the first buffer", b"", b"d", b"r",
    ]  # fmt: skip


def test_a_buffer_smaller_than_an_inline_value_can_be_read():
    assert Buffers([b"abc"]).binary(spans((1, 0, 3), (1, 2, 1))).to_pylist() == [b"abc", b"c"]


def test_values_of_our_own_stand_among_the_others():
    buffers = Buffers([b"0123456789"])
    wanted = spans((1, 0, 2), (1, 2, 2), (1, 4, 2))

    buffers.put(wanted, 1, b"something longer than twelve")
    buffers.put(wanted, 2, b"!")

    assert buffers.binary(wanted).to_pylist() == [b"01", b"something longer than twelve", b"!"]
    assert buffers.value(wanted, 1) == b"something longer than twelve"


def test_empty_values_are_null_where_that_is_asked_for():
    column = Buffers([b"ab"]).text(spans((1, 0, 0), (1, 0, 2)), is_empty_null=True)

    assert column.to_pylist() == [None, "ab"]


def test_broken_text_is_replaced_and_the_rest_stays():
    assert as_text(pa.array([b"ok", b"\xff", None])).to_pylist() == ["ok", "�", None]
