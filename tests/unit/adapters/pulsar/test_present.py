"""Messages of other protocols as Pulsar's clients get them (D16)."""

import pytest

from kit.pulsar_payload import batch_tail, numbered_messages
from penstock.adapters.pulsar.present import METADATA_ROOM, present
from penstock.model.record import Facts, Record, Shape, Wire, neutral_record
from penstock.wire.pulsar.facts import PulsarFacts
from penstock.wire.pulsar.frames import check
from penstock.wire.pulsar.metadata import make_record, read_metadata

READER = PulsarFacts()


class Told:
    """A reader that says what the test says."""

    def __init__(self, body=b"body", **facts):
        self._facts, self._body = Facts(**facts), body

    def facts(self, record):
        return self._facts

    def body(self, record, bytes_max):
        if self._body is None:
            raise ValueError("cannot be inflated")
        return self._body


def foreign(wire=Wire.AMQP, **shape):
    record = Record(b"raw", Shape(wire=int(wire), body_len=3, **shape), 5)
    record.position, record.store_ms = 700, 1_763_000_000_000
    return record


def shown(reader, record=None, **options):
    """What a client of Pulsar makes of it: its own facts, and the body."""
    tail, attempts = present(record or foreign(), reader, **options)
    assert check(tail)
    made = make_record(tail, 1)
    return READER.facts(made), READER.body(made, 1 << 20), attempts


def test_a_record_of_pulsar_is_passed_on_as_it_came():
    tail = batch_tail(*numbered_messages(3), compression="LZ4")
    found = present(make_record(tail, 5), READER)
    assert found.tail is tail
    assert found.attempts == 0


def test_every_fact_has_its_place():
    told = {
        "key": "customer-7",
        "tag": "paid",
        "message_id": "id-1",
        "born_ms": 1_700_000_000_000,
        "deliver_ms": 1_800_000_000_000,
        "properties": {"color": "red", "amqp.content_type": "text/plain"},
    }
    facts, body, attempts = shown(Told(**told, attempts=3, expire_ms=9))
    assert facts == Facts(**told)
    assert (body, attempts) == (b"body", 3)
    metadata, _ = read_metadata(present(foreign(), Told()).tail)
    assert (metadata.producer_name, metadata.sequence_id) == ("amqp", 700)
    assert metadata.publish_time == 1_763_000_000_000
    assert not metadata.HasField("num_messages_in_batch")


def test_a_message_that_says_nothing_is_a_message_all_the_same():
    facts, body, _ = shown(Told(b""))
    assert (facts.key, facts.tag, facts.properties, body) == ("", "", {}, b"")


def test_records_of_our_own_have_rocketmqs_properties():
    record = neutral_record(b"body", key=b"k", tag=b"t", properties=b"a\x011\x02")
    facts, body, _ = shown(None, record)
    assert (facts.key, facts.tag, facts.properties, body) == ("k", "t", {"a": "1"}, b"body")


@pytest.mark.parametrize("wire", [Wire.AMQP, 9])
def test_a_protocol_that_nobody_reads_is_shown_by_its_spans(wire):
    facts, body, _ = shown(None, foreign(wire))
    assert (facts.properties, body) == ({}, b"raw")


def test_a_body_that_cannot_be_inflated_is_shown_as_it_is():
    assert shown(Told(None, key="k"))[1] == b"raw"


def test_a_body_that_no_frame_holds_is_left_out_and_the_message_says_so():
    facts, body, _ = shown(Told(b"x" * 101, key="k"), max_message_size=100)
    assert body == b""
    assert facts.key == "k"
    assert facts.properties == {
        "penstock.unopened": "its 101 bytes are more than pulsar.max_message_size (100)"
    }
    assert shown(Told(b"x" * 100), max_message_size=100)[1] == b"x" * 100


def test_properties_that_no_frame_holds_are_left_out():
    told = Told(b"x" * 100, properties={"a": "v" * METADATA_ROOM})
    facts, body, _ = shown(told, max_message_size=100)
    assert body == b"x" * 100
    assert list(facts.properties) == ["penstock.unopened"]
    assert len(present(foreign(), told, max_message_size=100).tail) < 100 + METADATA_ROOM


def test_text_with_lone_surrogates_is_no_error():
    facts, _, _ = shown(Told(key="k\udcff", properties={"\udcfe": "\udcfd"}))
    assert (facts.key, facts.properties) == ("k?", {"?": "?"})


def test_several_messages_in_one_record_are_a_batch_of_as_many():
    tail, _ = present(foreign(messages=3), Told(tag="t"))
    record = make_record(tail, 1)
    assert record.messages == 3
    found = READER.open_batch(record, 1 << 20)
    assert [each.body for each in found] == [b"body", b"", b""]
    why = [READER.facts(each).properties.get("penstock.unopened") for each in found]
    assert why == [None, *["its bytes are in the first of its messages"] * 2]
