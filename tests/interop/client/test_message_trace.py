"""Message trace: what producers and consumers write to the trace topic."""

import pytest

from penstock.client import (
    Admin,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    TransactionState,
)
from penstock.client.trace import parse_records


@pytest.fixture
def trace_topic(cluster, unique):
    """A trace topic of this test's own, so that it reads nobody else's."""
    name = unique("trace")
    cluster.create_topic(name, 1)
    return name


@pytest.fixture
def traced(cluster, trace_topic):
    """All records of the trace topic, and the keys of its messages."""

    def read():
        rows, keys, offset = [], [], 0
        with cluster.connect() as client:
            while (answer := client.pull(trace_topic, 0, offset)).is_ok:
                for message in answer.messages:
                    rows += parse_records(message.body.decode())
                    keys += message.property_map().get("KEYS", "").split()
                offset = answer.number("nextBeginOffset")
        return rows, keys

    return read


def test_a_send_leaves_its_trace_and_is_found_by_its_id(cluster, topic, trace_topic, traced, group):
    options = {"trace": True, "trace_topic": trace_topic}
    with Producer(cluster.name_server, group, **options) as producer:
        sent = producer.send(Message(topic, b"hello", tag="t", keys="k1"))
        later = producer.send(Message(topic, b"later", delay_level=1))
    rows, keys = traced()
    assert [row[0] for row in rows] == ["Pub", "Pub"]
    one, two = rows
    assert one[3:10] == [
        group,
        topic,
        sent.message_id,
        "t",
        "k1",
        cluster.broker_address,
        "5",
    ]
    assert (one[11], one[12], one[13]) == ("0", sent.offset_message_id, "true")
    assert (two[5], two[11]) == (later.message_id, "3")
    assert {sent.message_id, "k1", later.message_id} <= set(keys)


def test_a_transaction_leaves_the_half_message_and_its_end(
    cluster, topic, trace_topic, traced, group
):
    options = {"trace": True, "trace_topic": trace_topic}
    with Producer(
        cluster.name_server, group, transaction_check=lambda _: None, **options
    ) as producer:
        done = producer.send_in_transaction(
            Message(topic, b"hello"), lambda _: TransactionState.COMMIT
        )
    rows, _ = traced()
    half, end = rows
    assert (half[0], half[5], half[11]) == ("Pub", done.result.message_id, "1")
    assert (end[0], end[5], end[11], end[12]) == (
        "EndTransaction",
        done.result.message_id,
        "COMMIT_MESSAGE",
        "false",
    )


def test_every_call_of_a_listener_leaves_two_records(
    cluster, topic, trace_topic, traced, eventually
):
    group = f"{trace_topic}-readers"
    seen = []

    def listener(message):
        seen.append(message.message_id)
        if message.body == b"bad":
            return ConsumeResult.LATER
        return None

    with Producer(cluster.name_server) as producer:
        ids = [producer.send(Message(topic, body)).message_id for body in (b"good", b"bad")]
    consumer = PushConsumer(
        cluster.name_server, group, listener, consume_from="first", trace=True,
        trace_topic=trace_topic,
    )  # fmt: skip
    consumer.subscribe(topic)
    with consumer:
        eventually(lambda: len(seen) >= 2)
    rows, _ = traced()
    before = {row[5]: row for row in rows if row[0] == "SubBefore"}
    after = {row[2]: row for row in rows if row[0] == "SubAfter"}
    assert set(before) == set(after) == set(ids)
    assert all(before[each][4] == after[each][1] for each in ids)
    assert [after[each][4] for each in ids] == ["true", "false"]
    assert [after[each][6] for each in ids] == ["0", "4"]


def test_the_usual_trace_topic_is_there_without_anybody_making_it(cluster, topic, group):
    with Producer(cluster.name_server, group, trace=True) as producer:
        sent = producer.send(Message(topic, b"hello"))
    with Admin(cluster.name_server) as admin:
        assert "RMQ_SYS_TRACE_TOPIC" in admin.topics()
        assert admin.route("RMQ_SYS_TRACE_TOPIC") is not None
    assert sent.is_ok
