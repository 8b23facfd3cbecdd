"""What was published over AMQP is a row like any other (D16)."""

from datetime import UTC, datetime

import pytest

from penstock.bulk.offline import OfflineBulk
from penstock.bulk.tickets import RowFilter
from penstock.model.record import neutral_record
from penstock.wire.amqp.origin import PublishHead, publish_record, with_secret_keys
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.rocketmq.stored import stored_record

NOW_MS = 1_700_000_000_123
PERSISTENT = 2


def published(exchange, routing_key, body, **properties):
    names = b"".join(bytes((len(name),)) + name.encode() for name in (exchange, routing_key))
    head = PublishHead(exchange, routing_key, False, False, names)
    header = encode_properties(Properties(delivery_mode=PERSISTENT, **properties))
    return publish_record(head, header, body, NOW_MS)


@pytest.fixture
def directory(data):
    [queue] = data.topic("orders")
    records = [
        published(
            "shop",
            "eu.new",
            b"0",
            type="order",
            timestamp=1_600_000_000,
            message_id="m-0",
            content_type="text/plain",
            headers={
                "amount": 12,
                "region": "eu",
                "lines": [1, {"sku": "a"}],
                "x-delivery-count": 2,
            },
        ),
        stored_record("orders", 0, b"1", b"TAGS\x01order\x02amount\x0113\x02", born_ms=5),
        published("", "orders", b"2", headers={"key": "k-2", "is_gift": True}),
        neutral_record(b"3", key=b"k-3"),
        with_secret_keys(published("", "orders", b"4"), ("nobody", "sees")),
    ]
    data.append(*((record, (queue,)) for record in records))
    data.close()
    return data.directory


def test_key_tag_birth_properties_and_body_are_those_of_the_golden_table(directory, rows):
    with OfflineBulk(directory) as bulk:
        found = rows(bulk)
    first, _, third, _, last = found
    assert first["key"] == "eu.new"
    assert first["tag"] == "order"
    assert first["born_timestamp"] == datetime.fromtimestamp(1_600_000_000, UTC)
    assert first["body"] == b"0"
    assert dict(first["properties"]) == {
        "amount": "12",
        "region": "eu",
        "lines": '[1,{"sku":"a"}]',
        "amqp.content_type": "text/plain",
        "amqp.delivery_mode": "2",
        "message_id": "m-0",
    }
    assert (third["key"], third["tag"], third["body"]) == ("k-2", None, b"2")
    assert dict(third["properties"])["is_gift"] == "true"
    assert (last["key"], last["body"]) == (None, b"4")
    assert last["born_timestamp"].timestamp() * 1000 == NOW_MS
    assert [row["protocol"] for row in found] == ["amqp", "rocketmq", "amqp", "neutral", "amqp"]


def test_filters_ask_amqp_as_they_ask_the_others(directory, rows):
    with OfflineBulk(directory) as bulk:
        names = {"columns": ["offset"]}
        by_tag = rows(bulk, filter=RowFilter("tag", "order"), **names)
        by_header = rows(bulk, filter=RowFilter("sql92", "amount > 11 AND region = 'eu'"), **names)
    assert [row["offset"] for row in by_tag] == [0, 1]
    assert [row["offset"] for row in by_header] == [0]


def test_message_ids_are_a_column_for_who_asks(directory, rows):
    with OfflineBulk(directory) as bulk:
        found = rows(bulk, columns=["message_id"])
    assert [each["message_id"] for each in found] == ["m-0", None, None, None, None]
