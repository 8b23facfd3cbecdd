"""numpy's view of records and entries is the log's own."""

import numpy as np

from penstock.bulk.layout import ENTRY, HEADER, entries_in, headers_at, kinds
from penstock.log import index
from penstock.log.format import encode
from penstock.wire.rocketmq.stored import stored_record


def test_a_header_says_what_the_record_says():
    record = stored_record("t", 0, b"body", b"TAGS\x01A\x02KEYS\x01k\x02", born_ms=5)
    data = bytes(64) + encode(record, [(7, 9), (8, 10)], 64, 77)

    [header] = headers_at(data, len(data), np.array([64]))

    shape = record.shape
    assert (header["position"], header["len"], header["store_ms"]) == (64, len(data) - 64, 77)
    assert (header["targets"], header["messages"], header["born_ms"]) == (2, 1, 5)
    for name in ("key_at", "key_len", "tag_at", "tag_len", "props_at", "props_len", "body_at"):
        assert header[name] == getattr(shape, name), name
    assert HEADER.itemsize == 88


def test_an_entry_says_what_the_index_packed():
    values = (1 << 40, 2, 3, 1_700_000_000_000, 5, 6, -7, 8)

    [entry] = entries_in(index.ENTRY.pack(*values))

    assert tuple(entry.tolist()) == values
    assert ENTRY.itemsize == index.ENTRY_BYTES


def test_the_different_numbers_of_a_column_are_told_in_order():
    assert kinds(np.array([3, 3, 3])) == [3]
    assert kinds(np.array([3, 1, 3])) == [1, 3]
    assert kinds(np.array([], np.int64)) == []
