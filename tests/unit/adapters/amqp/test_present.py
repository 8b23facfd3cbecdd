"""Messages of other protocols as AMQP shows them (D16)."""

from __future__ import annotations

from penstock.adapters.amqp.present import as_amqp, plain_facts, with_attempts
from penstock.model.record import Facts, Record, RecordFlag, Shape, Wire, neutral_record
from penstock.wire.amqp.origin import AmqpFacts, PublishHead, publish_record
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties
from penstock.wire.amqp.serializer import names_of

HEAD = PublishHead("ex", "rk", False, False, b"\x02ex\x02rk")


class FactsReader:
    """A wire whose facts are what a test says."""

    def __init__(self, facts: Facts, body: bytes | None = b"body") -> None:
        self._facts = facts
        self._body = body

    def facts(self, record: Record) -> Facts:
        return self._facts

    def body(self, record: Record, bytes_max: int) -> bytes:
        if self._body is None:
            raise ValueError("cannot be inflated")
        return self._body


def presented(facts: Facts, *, flags: int = 0) -> tuple[Record, Properties]:
    record = Record(b"other", Shape(wire=Wire.PULSAR, body_len=5, flags=flags))
    shown = as_amqp(record, "orders", reader=FactsReader(facts), bytes_max=100)
    return shown, decode_properties(shown.properties)


def test_every_fact_has_its_place() -> None:
    shown, basics = presented(
        Facts(
            key="customer-7",
            tag="paid",
            message_id="id-1",
            born_ms=1_700_000_000_123,
            attempts=3,
            properties={"colour": "red", "amqp.content_type": "text/plain", "amqp.priority": "4"},
        )
    )
    assert shown.wire == Wire.AMQP
    assert names_of(shown) == ("", "orders")
    assert shown.body == b"body"
    assert basics == Properties(
        content_type="text/plain",
        headers={"colour": "red", "key": "customer-7", "x-delivery-count": 3},
        delivery_mode=2,
        priority=4,
        message_id="id-1",
        timestamp=1_700_000_000,
        type="paid",
    )


def test_facts_of_what_is_shown_are_the_same_facts() -> None:
    facts = Facts(
        key="k",
        tag="t",
        message_id="m",
        born_ms=5_000,
        attempts=1,
        properties={"a": "b", "amqp.app_id": "till", "amqp.correlation_id": "c"},
    )
    shown, _ = presented(facts)
    again = AmqpFacts().facts(shown)
    assert again.properties.pop("amqp.delivery_mode") == "2"
    # The key travels as a header, because the default exchange's routing key is the queue.
    assert again.properties.pop("key") == "k"
    assert again == facts


def test_nothing_known_is_nothing_said() -> None:
    _, basics = presented(Facts())
    assert basics == Properties(delivery_mode=2)


def test_a_transient_message_says_so() -> None:
    assert presented(Facts(), flags=RecordFlag.TRANSIENT)[1].delivery_mode == 1


def test_what_is_too_long_becomes_a_header_or_is_left_out() -> None:
    _, basics = presented(
        Facts(
            tag="t" * 300,
            message_id="m" * 300,
            properties={"n" * 300: "lost", "amqp.reply_to": "r" * 300, "amqp.priority": "900"},
        )
    )
    assert basics.headers == {
        "TAGS": "t" * 300,
        "message_id": "m" * 300,
        "amqp.reply_to": "r" * 300,
    }
    assert (basics.type, basics.message_id, basics.reply_to, basics.priority) == (None,) * 4


def test_nobody_becomes_a_user_by_a_property() -> None:
    _, basics = presented(Facts(properties={"amqp.user_id": "admin"}))
    assert basics.user_id is None
    assert basics.headers == {"amqp.user_id": "admin"}


def test_a_body_that_cannot_be_inflated_is_shown_as_it_is() -> None:
    record = Record(b"packed", Shape(wire=Wire.PULSAR, body_len=6))
    shown = as_amqp(record, "q", reader=FactsReader(Facts(), None), bytes_max=100)
    assert shown.body == b"packed"


def test_neutral_records_need_no_reader() -> None:
    record = neutral_record(b"body", properties=b"a\x01b\x02", key=b"k", tag=b"t")
    assert plain_facts(record) == Facts(key="k", tag="t", properties={"a": "b"})
    shown = as_amqp(record, "q", reader=None, bytes_max=100)
    basics = decode_properties(shown.properties)
    assert (basics.headers, basics.type) == ({"a": "b", "key": "k"}, "t")


def test_a_wire_nobody_reads_is_shown_by_what_the_record_says() -> None:
    record = Record(b"kbody", Shape(wire=Wire.PULSAR, key_len=1, body_at=1, body_len=4))
    shown = as_amqp(record, "q", reader=None, bytes_max=100)
    assert shown.body == b"body"
    assert decode_properties(shown.properties).headers == {"key": "k"}


def test_the_count_of_attempts_is_added_and_replaced() -> None:
    properties = encode_properties(
        Properties(content_type="text/plain", headers={"a": 1, "x-death": [{"count": 2}]})
    )
    record = publish_record(HEAD, properties, b"body", 5)
    twice = with_attempts(with_attempts(record, 1), 2)
    basics = decode_properties(twice.properties)
    assert basics.headers == {"a": 1, "x-death": [{"count": 2}], "x-delivery-count": 2}
    assert basics.content_type == "text/plain"
    assert (twice.body, names_of(twice)) == (b"body", ("ex", "rk"))
    assert with_attempts(publish_record(HEAD, b"\0\0", b"", 5), 1).body == b""
