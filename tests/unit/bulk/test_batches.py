"""A batch of another protocol as rows: one for each message (D16)."""

import pytest

from kit.batches import WIRE, BatchFacts, batch, numbered
from penstock.bulk.columns import BatchMessages, Origin
from penstock.bulk.offline import OfflineBulk
from penstock.bulk.tickets import RowFilter
from penstock.model.record import neutral_record


@pytest.fixture
def read(data, rows):
    """All rows of these records, as dictionaries."""

    def stored(*records, **fields):
        (queue,) = data.topic("orders")
        for record in records:
            data.append((record, (queue,)))
        data.commit()
        data.close()
        with OfflineBulk(data.directory) as bulk:
            reader = BatchMessages(BatchFacts())
            bulk.origins[WIRE] = Origin(name="pulsar", reader=reader, is_laid_out=False)
            return rows(bulk, **fields)

    return stored


@pytest.mark.parametrize("count", [1, 3, 1_000])
@pytest.mark.parametrize("compression", ["", "zlib"])
def test_every_message_of_a_batch_is_a_row(read, count, compression):
    found = read(
        neutral_record(b"x"),
        batch(*numbered(count), compression=compression if count > 1 else ""),
        neutral_record(b"y"),
    )
    assert [row["offset"] for row in found] == list(range(count + 2))
    texts = [b"%d" % number for number in range(count)]
    assert [row["body"] for row in found] == [b"x", *texts, b"y"]
    assert found[1]["key"] == "k0"
    assert found[1]["tag"] == "even"
    assert dict(found[1]["properties"]) == {"number": "0"}
    assert {row["protocol"] for row in found[1:-1]} == {"pulsar"}


def test_a_range_begins_and_ends_in_the_midst_of_batches(read):
    found = read(batch(*numbered(5)), batch(*numbered(5, 5)), start=3, end=7)
    assert [row["body"] for row in found] == [b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [("tag", "odd", [b"1", b"3"]), ("sql92", "number > 2 AND TAGS = 'odd'", [b"3"])],
)
def test_filters_see_what_is_in_a_batch(read, kind, text, expected):
    found = read(batch(*numbered(5)), filter=RowFilter(kind, text))
    assert [row["body"] for row in found] == expected


def test_a_batch_that_cannot_be_opened_says_so_in_every_row_and_has_its_bytes_once(read):
    record = batch(*numbered(3), is_encrypted=True)
    found = read(record, neutral_record(b"y"))
    assert [row["body"] for row in found] == [record.body, b"", b"", b"y"]
    assert {dict(row["properties"])["penstock.unopened"] for row in found[:3]} == {"encrypted"}
