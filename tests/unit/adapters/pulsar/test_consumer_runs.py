"""Unit tests for consumers: ACKs and MESSAGEs many at a time are what they are one by one."""

import pytest

from kit.pulsar.bench import command
from penstock.adapters.pulsar import consumer as room
from penstock.model.names import topic_name
from penstock.wire.pulsar.frames import encode
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, CommandAck

TOPIC = "persistent://public/default/orders"
COUNT = 300


@pytest.fixture
def consuming(client):
    """A client with producer 1, and consumer 2 with many permits."""
    client.call("PRODUCER", topic=TOPIC, producer_id=1, request_id=1)
    client.call("SUBSCRIBE", topic=TOPIC, subscription="s", subType="Shared", consumer_id=2,
                request_id=2)  # fmt: skip
    client.say("FLOW", consumer_id=2, messagePermits=10 * COUNT)
    client.heard()
    return client


@pytest.fixture
def runs(monkeypatch):
    """Entries of ACKs that came in runs."""
    found = []
    add_acks = room.Consumer.add_acks

    def note(consumer, run):
        found.extend(run.entries)
        return add_acks(consumer, run)

    monkeypatch.setattr(room.Consumer, "add_acks", note)
    return found


def delivered(client):
    """Ledger and entry of the MESSAGEs that came, and how often each came before."""
    said = [each.message for each in client.commands() if each.type == BaseCommand.MESSAGE]
    return [
        (each.message_id.ledgerId, each.message_id.entryId, each.redelivery_count) for each in said
    ]


def publish(client, count=COUNT, first=0):
    for number in range(first, first + count):
        client.publish(1, number, b"body-%d" % number)


def ack(ledger_id, *entries, consumer_id=2, **fields):
    ids = [{"ledgerId": ledger_id, "entryId": each} for each in entries]
    fields.setdefault("ack_type", CommandAck.Individual)
    return encode(command("ACK", consumer_id=consumer_id, message_id=ids, **fields))


def backlog(bench):
    topic = bench.engine.topic(topic_name("orders"))
    stored = topic.subscriptions["pulsar/s"]
    queue_id = topic.queues[0].queue_id
    return stored.ready(queue_id) + stored.unacked(queue_id)


def test_messages_in_a_row_are_numbered_without_a_gap_and_have_their_own_bodies(bench, consuming):
    publish(consuming)
    frames = [each for each in consuming.heard() if each[0].type == BaseCommand.MESSAGE]
    assert [each[0].message.message_id.entryId for each in frames] == list(range(COUNT))
    assert all(tail.endswith(b"body-%d" % at) for at, (_, tail) in enumerate(frames))


def test_a_run_with_something_odd_in_it_is_delivered_all_the_same(bench, consuming):
    publish(consuming, 5)
    ledger = delivered(consuming)[0][0]
    ids = [{"ledgerId": ledger, "entryId": each} for each in (1, 3)]
    consuming.say("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=2, message_ids=ids)
    assert delivered(consuming) == [(ledger, 1, 1), (ledger, 3, 1)]


def test_single_acks_in_a_row_settle_what_they_name(bench, consuming, runs):
    publish(consuming)
    ledger = delivered(consuming)[0][0]
    consuming.raw(b"".join([ack(ledger, each) for each in range(0, COUNT, 3)]))
    bench.settle()
    assert backlog(bench) == COUNT - COUNT // 3
    assert len(runs) == COUNT // 3 - 2  # one for each length of an entry taught it

    consuming.raw(b"".join([ack(ledger, each) for each in range(COUNT)]))
    bench.settle()
    assert backlog(bench) == 0


def test_an_ack_of_many_settles_what_it_names(bench, consuming, runs):
    publish(consuming)
    ledger = delivered(consuming)[0][0]
    consuming.raw(ack(ledger, *range(128, COUNT)))
    bench.settle()
    assert backlog(bench) == 128
    assert runs == list(range(128, COUNT))


def test_acks_in_runs_and_others_keep_their_order_and_their_answers(bench, consuming, runs):
    publish(consuming, 20)
    ledger = delivered(consuming)[0][0]
    consuming.raw(ack(ledger, 0) + ack(ledger, 1) + ack(ledger, 2, request_id=7) + ack(ledger, 3))
    assert [each.type for each in consuming.commands()] == [BaseCommand.ACK_RESPONSE]
    assert backlog(bench) == 16
    assert runs == [1, 3]


@pytest.mark.parametrize("wrong", [{"ledger_id": 999}, {"consumer_id": 9}, {"entries": [99, 98]}])
def test_acks_for_what_is_not_there_are_ignored(bench, consuming, wrong, runs):
    publish(consuming, 5)
    ledger = delivered(consuming)[0][0]
    said = {"ledger_id": ledger, "consumer_id": 2, "entries": [0, 1], **wrong}
    consuming.raw(ack(said["ledger_id"], *said["entries"], consumer_id=said["consumer_id"]))
    bench.settle()
    assert backlog(bench) == 5
    assert not consuming.is_closed


def test_acks_before_connect_close_the_connection(bench):
    stranger = bench.stranger()
    stranger.raw(ack(1, 5, 6))
    assert stranger.is_closed
