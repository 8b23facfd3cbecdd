"""Pulsar's messages as rows: one for each, however they were batched and compressed (D16)."""

import pytest

from kit.pulsar_payload import (
    COMPRESSIONS,
    PulsarMessage,
    batch_tail,
    numbered_messages,
    single_tail,
)
from penstock.bulk.offline import OfflineBulk
from penstock.bulk.tickets import RowFilter
from penstock.model.record import neutral_record
from penstock.wire.pulsar.metadata import make_record
from penstock.wire.pulsar.protocol_pb2 import EncryptionKeys

BORN_MS = 1_700_000_000_000


@pytest.fixture
def read(data, rows):
    """All rows of these tails, between two records of our own."""

    def stored(*tails, **fields):
        (queue,) = data.topic("orders")
        records = [make_record(tail, BORN_MS) for tail in tails]
        for record in (neutral_record(b"x"), *records, neutral_record(b"y")):
            data.append((record, (queue,)))
        data.commit()
        data.close()
        with OfflineBulk(data.directory) as bulk:
            return rows(bulk, **fields)

    return stored


@pytest.mark.parametrize("count", [1, 3, 1_000])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_message_of_a_batch_is_a_row(read, count, compression):
    found = read(batch_tail(*numbered_messages(count), compression=compression))
    assert [row["offset"] for row in found] == list(range(count + 2))
    texts = [b"%d" % number for number in range(count)]
    assert [row["body"] for row in found] == [b"x", *texts, b"y"]
    assert (found[1]["key"], found[1]["tag"]) == ("k0", "even")
    assert dict(found[1]["properties"]) == {"number": "0"}
    assert {row["protocol"] for row in found[1:-1]} == {"pulsar"}


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_message_by_itself_is_a_row(read, compression):
    message = PulsarMessage(b"body", "k", {"TAGS": "t", "a": "1", "message_id": "i"}, event_ms=7000)
    row = read(single_tail(message, compression=compression))[1]
    assert (row["key"], row["tag"], row["body"]) == ("k", "t", b"body")
    assert dict(row["properties"]) == {"a": "1", "message_id": "i"}
    assert row["born_timestamp"].timestamp() == 7


@pytest.mark.parametrize("columns", [["offset", "born_timestamp"], ["born_timestamp", "body"]])
def test_each_message_of_a_batch_has_its_own_birth(read, columns):
    messages = [PulsarMessage(b"x", event_ms=each) for each in (7000, 0, 9000)]
    found = read(batch_tail(*messages, event_time=5000), columns=columns)
    assert [row["born_timestamp"].timestamp() for row in found[1:4]] == [7, 5, 9]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [("tag", "odd", [b"1", b"3"]), ("sql92", "number > 2 AND TAGS = 'odd'", [b"3"])],
)
def test_filters_see_what_is_in_a_batch(read, kind, text, expected):
    tail = batch_tail(*numbered_messages(5), compression="LZ4")
    assert [row["body"] for row in read(tail, filter=RowFilter(kind, text))] == expected


def test_what_cannot_be_opened_says_why(read):
    keys = [EncryptionKeys(key="k", value=b"v")]
    found = read(batch_tail(b"a", b"b", encryption_keys=keys), b"garbage")
    assert [dict(row["properties"]) for row in found[1:4]] == [
        {"penstock.unopened": "encrypted"},
        {"penstock.unopened": "encrypted"},
        {},
    ]
    assert [row["body"] for row in found[2:]] == [b"", b"garbage", b"y"]
