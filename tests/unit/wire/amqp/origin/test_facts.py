"""AMQP messages as other protocols are told of them (D16)."""

import json
from decimal import Decimal

import pytest

from penstock.model.record import Facts, Record
from penstock.wire.amqp.methods import basic
from penstock.wire.amqp.origin import AmqpFacts, publish_head, publish_record, text_of
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.table import Timestamp

NOW_MS = 1_700_000_000_000
READER = AmqpFacts()


def record(exchange="e", routing_key="k", **basics):
    head = publish_head(basic.Publish(0, exchange, routing_key).encode())
    return publish_record(head, encode_properties(Properties(**basics)), b"body", NOW_MS)


def test_the_golden_row():
    stored = record(
        type="tag",
        message_id="id-1",
        timestamp=1_600_000_000,
        expiration="1000",
        headers={"n": 5, "yes": True, "x-delivery-count": 2, "list": [1, "a"]},
        content_type="text/plain",
        delivery_mode=2,
        priority=4,
        correlation_id="c",
        reply_to="r",
        user_id="guest",
        app_id="app",
    )
    assert READER.facts(stored) == Facts(
        key="k",
        tag="tag",
        message_id="id-1",
        born_ms=1_600_000_000_000,
        expire_ms=NOW_MS + 1000,
        attempts=2,
        properties={
            "n": "5",
            "yes": "true",
            "list": '[1,"a"]',
            "amqp.content_type": "text/plain",
            "amqp.delivery_mode": "2",
            "amqp.priority": "4",
            "amqp.correlation_id": "c",
            "amqp.reply_to": "r",
            "amqp.user_id": "guest",
            "amqp.app_id": "app",
        },
    )
    assert READER.body(stored, 10) == b"body"
    assert READER.keys(stored) == [b"id-1"]


def test_nothing_is_made_up():
    assert READER.facts(record("", "q")) == Facts(born_ms=NOW_MS)
    assert READER.keys(record()) == []


def test_a_message_of_the_default_exchange_may_bring_its_key_as_a_header():
    facts = READER.facts(record("", "q", headers={"key": "mine"}))
    assert (facts.key, facts.properties) == ("mine", {"key": "mine"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"), (None, ""), (Decimal("3.14"), "3.14"), (Timestamp(7), "7"), (False, "false"),
        (b"\xffa", "\ufffda"), ("\udcff", "\ufffd"), ({}, "{}"),
    ],
)  # fmt: skip
def test_values_as_text(value, text):
    assert text_of(value) == text


def test_tables_become_json_whatever_is_in_them():
    value = {"a": [Timestamp(1), Decimal("2.5"), b"x", None, True, "\udcff"], "b": {"c": 1 << 62}}
    assert json.loads(text_of(value)) == {
        "a": [1, "2.5", "x", None, True, "\ufffd"],
        "b": {"c": 1 << 62},
    }


def test_odd_delivery_counts_are_not_believed():
    for count in (-1, "many", True):
        assert READER.facts(record(headers={"x-delivery-count": count})).attempts == 0


def test_a_record_that_cannot_be_read_has_few_facts_and_no_error():
    good = record(type="t")
    broken = Record(good.origin.replace(b"\x00\x20", b"\xff\xff"), good.shape, NOW_MS)
    assert READER.facts(broken).properties == {}
    assert READER.keys(broken) == []
