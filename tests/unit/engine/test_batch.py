"""Batches opened: what readers of single messages are given, and what cannot be opened."""

import pytest

from kit.batches import WIRE, BatchFacts, BatchMessage, batch, numbered
from penstock.engine import batch as room
from penstock.engine.batch import MESSAGE_BYTES, UNOPENED_MAX, Batches
from penstock.model.record import Record, RecordFlag, Shape

ENTRY = (7_000, 100, 5_000, 77, 1_003, 4, 0, 0)


@pytest.fixture
def facts():
    return BatchFacts()


@pytest.fixture
def batches(facts):
    return Batches({WIRE: facts, 1: object()}, 1 << 20)


def stored(record, position=7_000):
    record.position, record.store_ms, record.born_ms = position, 77, 66
    return record


def test_every_message_has_a_record_and_a_place_of_its_own(batches):
    record = stored(batch(*numbered(4)))
    found = batches.open(record)
    assert [message.body for message in found] == [b"0", b"1", b"2", b"3"]
    assert [message.position for message in found] == [7_000, 7_001, 7_002, 7_003]
    assert {(each.messages, each.store_ms, each.born_ms) for each in found} == {(1, 77, 66)}


def test_entries_of_messages_share_the_bytes_of_their_batch(batches):
    record = stored(batch(*numbered(4)))
    entries = [entry for entry, _ in batches.messages(ENTRY, record, 0, 1_000)]
    assert [entry[:2] for entry in entries] == [(7_000 + i, 100 + i) for i in range(4)]
    assert [entry[4] for entry in entries] == [251, 251, 251, 250]
    assert [entry[2] for entry in entries] == [5_000, 5_251, 5_502, 5_753]
    assert len({entry[6] for entry in entries}) == 2, "the tags are the messages' own"
    some = batches.messages(ENTRY, record, 101, 103)
    assert [message.body for _, message in some] == [b"1", b"2"]


def test_what_holds_for_the_batch_holds_for_its_messages(batches):
    flags = int(RecordFlag.TRANSIENT)
    record = stored(batch(b"a", b"b", flags=flags, expire_ms=5, deliver_ms=6))
    for message in batches.open(record):
        assert (message.flags, message.expire_ms, message.deliver_ms) == (flags, 5, 6)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (batch(*numbered(3), is_encrypted=True), "encrypted"),
        (batch(*numbered(3), compression="snappy"), "compressed by snappy, which is not known"),
        (batch(*numbered(3), count=5), "3 messages are in it and 5 were announced"),
        (Record(b"{}\nx", Shape(wire=WIRE, messages=2, body_at=3, body_len=1)), "corrupt"),
        (batch(b"\0" * (2 << 20), b"", compression="zlib"), "more than 1048576 bytes"),
        (batch(b"", count=4_097), "4097 messages are more than topics.message_bytes_max"),
        (Record(b"x", Shape(messages=2)), "its protocol's batches cannot be read"),
    ],
)
def test_what_cannot_be_opened_stays_one_and_says_why(batches, record, reason):
    stored(record)
    assert batches.open(record) is None
    assert batches.why_unopened(record).startswith(reason)
    entry = (7_000, 100, 0, 0, 50, record.messages, 0, 0)
    assert batches.messages(entry, record, 101, 102) == [(entry, record)]


def test_there_is_nothing_to_say_of_a_message_or_of_what_can_be_opened(batches):
    assert batches.why_unopened(stored(Record(b"x"))) == ""
    assert batches.why_unopened(stored(batch(*numbered(2)))) == ""


def test_a_batch_is_opened_once_while_it_is_kept(batches, facts, monkeypatch):
    records = [stored(batch(BatchMessage(bytes(100)), b""), at) for at in (1, 2, 3)]
    monkeypatch.setattr(room, "OPENED_BYTES_MAX", 2 * (2 * MESSAGE_BYTES + 100))
    for record in records[:2] + records[:2]:
        assert len(batches.open(record)) == 2
    assert facts.opened == 2
    batches.open(records[2])
    batches.open(records[1])
    assert facts.opened == 3
    batches.open(records[0])
    assert facts.opened == 4, "the one that was used longest ago went"


def test_the_last_one_is_kept_however_large_it_is(batches, facts, monkeypatch):
    monkeypatch.setattr(room, "OPENED_BYTES_MAX", 1)
    record = stored(batch(*numbered(2)))
    assert batches.open(record) is batches.open(record)


def test_reasons_are_bounded(batches, facts):
    for at in range(UNOPENED_MAX + 5):
        batches.open(stored(batch(b"", b"", is_encrypted=True), at))
    before = facts.opened
    assert batches.why_unopened(stored(batch(b"", b"", is_encrypted=True), at)) == "encrypted"
    assert facts.opened == before
    assert batches.why_unopened(stored(batch(b"", b"", is_encrypted=True), 0)) == "encrypted"
