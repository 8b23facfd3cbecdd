"""Messages of other protocols in RocketMQ's eyes, and RocketMQ's as dead letters of others."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.present import (
    RocketmqDeadLetterFormat,
    present_foreign,
    properties_of,
)
from penstock.engine.ports import Death
from penstock.model.record import Facts, Record, Shape, Wire, neutral_record
from penstock.model.settlement import Cause
from penstock.wire.rocketmq.properties import parse_properties
from penstock.wire.rocketmq.stored import decode_stored, stored_record


class FakeReader:
    def __init__(self, facts, body=b"plain"):
        self._facts, self._body = facts, body

    def keys(self, record):
        return ()

    def facts(self, record):
        return self._facts

    def body(self, record, bytes_max):
        if self._body is None:
            raise ValueError("cannot be inflated")
        return self._body


@pytest.fixture
def broker():
    return RocketmqBench().broker


def shown(broker, record):
    data = present_foreign(broker, record, "orders%2Eeu", queue_number=3, offset=17, position=4096)
    message, end = decode_stored(data)
    assert end == len(data)
    return message


def test_a_neutral_record_keeps_its_properties(broker):
    record = neutral_record(b"body", properties=b"a\x01b\x02", key=b"k", tag=b"t")
    record.store_ms = 99
    message = shown(broker, record)
    assert (message.topic, message.queue_id, message.queue_offset) == ("orders%2Eeu", 3, 17)
    assert (message.commit_log_offset, message.store_ms, message.born_ms) == (4096, 99, 99)
    assert (message.body, message.is_intact) == (b"body", True)
    assert message.property_map() == {"a": "b", "TAGS": "t", "__SHARDINGKEY": "k", "KEYS": "k"}


def test_facts_of_another_wire_become_rocketmqs_words(broker):
    facts = Facts(
        key="two words", tag="t", message_id="id-1", born_ms=5, attempts=2, properties={"u": "v"}
    )
    broker.engine.facts = {int(Wire.AMQP): FakeReader(facts)}
    message = shown(broker, Record(b"wire bytes", Shape(wire=Wire.AMQP)))
    assert (message.body, message.born_ms, message.reconsume_times) == (b"plain", 5, 2)
    assert message.property_map() == {
        "TAGS": "t",
        "__SHARDINGKEY": "two words",
        "UNIQ_KEY": "id-1",
        "u": "v",
    }


def test_a_body_that_cannot_be_inflated_is_shown_as_it_is(broker):
    broker.engine.facts = {int(Wire.AMQP): FakeReader(Facts(), None)}
    record = Record(b"squeezed", Shape(wire=Wire.AMQP, body_len=8))
    assert shown(broker, record).body == b"squeezed"


def test_a_wire_that_nobody_reads_shows_key_tag_and_body(broker):
    record = Record(b"ktbody", Shape(wire=Wire.PULSAR, key_len=1, tag_at=1, tag_len=1, body_at=2))
    record.reshape(body_len=4)
    message = shown(broker, record)
    assert message.body == b"body"
    assert message.property_map()["TAGS"] == "t"


def test_what_cannot_be_said_is_left_out():
    facts = Facts(
        key="k",
        properties={
            "a\x01": "b", "a\x02": "b", "c": "d\x02", "TAGS": "forged", "": "x", "e": "", "f": "g",
        },
    )  # fmt: skip
    assert parse_properties(properties_of(facts)) == {"__SHARDINGKEY": "k", "KEYS": "k", "f": "g"}


def test_too_many_properties_are_cut_at_the_limit():
    facts = Facts(tag="t", properties={f"p{number}": "v" * 1000 for number in range(50)})
    packed = properties_of(facts)
    assert 31_000 < len(packed) <= 32_767
    assert parse_properties(packed)["TAGS"] == "t"


def test_a_dead_letter_names_its_grave_and_where_it_came_from():
    record = stored_record("orders", 2, b"body", b"a\x01b\x02", born_ms=5, reconsume_times=1)
    record.position = 0x30
    death = Death(
        cause=int(Cause.REJECTED), space="", topic="orders", queue=2, offset=7, attempts=3,
        time_ms=1, target_space="ns", target_topic="dead",
    )  # fmt: skip
    letter = RocketmqDeadLetterFormat().rewrite(record, death)
    message, _ = decode_stored(letter.origin)
    assert (message.topic, message.queue_id, message.body) == ("ns%dead", 0, b"body")
    assert (message.born_ms, message.reconsume_times) == (5, 3)
    assert message.property_map() == {
        "a": "b",
        "DLQ_ORIGIN_TOPIC": "orders",
        "DLQ_ORIGIN_MESSAGE_ID": "0" * 30 + "30",
    }
    assert letter.shape.stamp_position_at > 0


def test_a_second_death_replaces_the_first_and_nonsense_vanishes():
    death = Death(
        cause=int(Cause.REJECTED), space="", topic="x", queue=0, offset=0, attempts=0, time_ms=1
    )
    record = stored_record("orders", 0, b"", b"DLQ_ORIGIN_TOPIC\x01old\x02")
    record.position = 8
    letter = RocketmqDeadLetterFormat().rewrite(record, death)
    assert letter.properties.count(b"DLQ_ORIGIN_TOPIC") == 1
    assert RocketmqDeadLetterFormat().rewrite(Record(b"nonsense"), death) is None
