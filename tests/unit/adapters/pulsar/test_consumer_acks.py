"""Unit tests for acks, redelivery, SEEK, UNSUBSCRIBE and what consumers ask: words and laws."""

import pytest

from kit.pulsar.consumers import (
    EARLIEST,
    KINDS,
    LATEST,
    NONE,
    TOPIC,
    Publisher,
    Subscriber,
    as_id,
)
from penstock.adapters.pulsar.errors import PulsarError
from penstock.engine.non_persistent import NonPersistentTopic
from penstock.model.names import topic_name
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

TAKEOVER_MS = 1_000
ALONE = ("Exclusive", "Failover")
SHARED_KINDS = ("Shared", "Key_Shared")
UNLOGGED = "non-persistent://public/default/orders"


def ready(client, kind="Shared", topic=TOPIC, **fields):
    """A consumer of everything, with its turn where there are turns."""
    fields.setdefault("initialPosition", "Earliest")
    consumer = Subscriber(client, topic, kind=kind, **fields).opened()
    if kind == "Failover":
        client.bench.pass_time(TAKEOVER_MS)
    return consumer


@pytest.fixture
def publisher(client):
    return Publisher(client)


def stored(bench):
    (found,) = bench.engine.topic(topic_name("orders")).subscriptions.values()
    return found


def queue_id(bench):
    return bench.engine.topic(topic_name("orders")).queues[0].queue_id


def left(client, **fields):
    """What the next consumer of the subscription gets: id and ack set."""
    consumer = ready(client, **fields).flow(1_000)
    return [(each.id, each.ack_set) for each in consumer.messages()]


# ---- individual acks ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_acked_does_not_come_again(client, publisher, kind):
    sent = publisher.publish_all(5, partition_key="k")
    consumer = ready(client, kind).flow(10)
    assert consumer.ids() == sent
    consumer.ack(sent[0], sent[2], sent[3])
    assert consumer.unacked == 2
    consumer.close()

    assert left(client) == [(sent[1], []), (sent[4], [])]


def test_an_ack_of_a_batch_acks_all_of_it_whatever_its_batch_index(client, publisher):
    (sent,) = publisher.publish_all(1, messages=5)
    consumer = ready(client).flow(10)
    consumer.ids()
    consumer.ack({**as_id(sent), "batch_index": 2, "batch_size": 5})

    assert consumer.unacked == 0


def test_acks_of_batches_and_of_single_messages_in_one_command(client, publisher):
    batch = publisher.publish(b"a", b"b", b"c")
    singles = publisher.publish_all(3)
    consumer = ready(client).flow(10)
    consumer.ids()
    consumer.ack(batch, *singles[1:])

    assert consumer.unacked == 1
    consumer.close()
    assert left(client) == [(singles[0], [])]


@pytest.mark.parametrize(
    "strange",
    ["twice", "future", "another ledger", "inside a batch", "(-1,-1)", "(l,-1)", "(0,0)", "none"],
)
def test_an_ack_of_what_is_not_there_to_be_acked_is_ignored(client, publisher, strange):
    first = publisher.publish()
    batch = publisher.publish(b"a", b"b", b"c")
    consumer = ready(client).flow(10)
    consumer.ids()
    consumer.ack(first)
    ledger, entry = batch
    ids = {
        "twice": [first],
        "future": [(ledger, 99)],
        "another ledger": [(ledger + 7, entry)],
        "inside a batch": [(ledger, entry + 1)],
        "(-1,-1)": [EARLIEST],
        "(l,-1)": [(ledger, NONE)],
        "(0,0)": [(0, 0)],
        "none": [],
    }[strange]
    told = consumer.acked(*ids)

    assert not told.HasField("error")
    assert consumer.unacked == 3
    assert not client.is_closed


def test_an_ack_of_what_was_never_delivered_is_ignored(bench, client, publisher):
    sent = publisher.publish_all(5)
    consumer = ready(client).flow(2)
    assert consumer.ids() == sent[:2]
    consumer.ack(*sent)
    assert stored(bench).low_mark(queue_id(bench)) == 2
    consumer.flow(10)

    assert consumer.ids() == sent[2:]


def test_an_ack_for_an_unknown_consumer_has_no_answer_at_all(client, publisher):
    sent = publisher.publish()
    client.say("ACK", consumer_id=99, ack_type="Individual", message_id=[as_id(sent)], request_id=1)

    assert client.commands() == []
    assert not client.is_closed


def test_an_ack_says_what_was_wrong_with_a_message_and_acks_it(client, publisher):
    sent = publisher.publish()
    consumer = ready(client).flow(1)
    consumer.ids()
    consumer.ack(sent, validation_error="ChecksumMismatch")

    assert consumer.unacked == 0


def test_an_ack_of_a_transaction_is_ignored(client, publisher):
    sent = publisher.publish()
    consumer = ready(client).flow(1)
    consumer.ids()
    consumer.ack(sent, txnid_least_bits=1, txnid_most_bits=2)

    assert consumer.unacked == 1


def test_an_inactive_consumer_may_ack(bench, client, publisher):
    sent = publisher.publish()
    consumers = [ready(client, "Failover", consumer_name=name).flow(10) for name in "ab"]
    bench.pass_time(TAKEOVER_MS)
    (active,) = [each for each in consumers if each.ids()]
    (idle,) = [each for each in consumers if each is not active]
    idle.ack(sent)

    assert active.unacked == 0


# ---- receipts of acks ---------------------------------------------------------------------------


def test_an_ack_is_answered_only_when_it_is_on_disk(bench, client, publisher):
    sent = publisher.publish()
    consumer = ready(client).flow(1)
    consumer.ids()
    client.say(
        "ACK", consumer_id=consumer.id, ack_type="Individual", message_id=[as_id(sent)],
        request_id=77,
    )  # fmt: skip
    bench.turns()
    assert client.connection.outgoing() == []
    bench.settle()
    (told,) = client.heard_of(BaseCommand.ACK_RESPONSE)
    assert (told[0].ack_response.request_id, told[0].ack_response.consumer_id) == (77, consumer.id)
    bench.cut_power()

    assert left(bench.client()) == []


def test_each_ack_with_a_request_is_answered_in_order(client, publisher):
    sent = publisher.publish_all(3)
    consumer = ready(client).flow(3)
    consumer.ids()
    for number, each in enumerate(sent):
        client.say(
            "ACK", consumer_id=consumer.id, ack_type="Individual", message_id=[as_id(each)],
            request_id=number,
        )  # fmt: skip

    told = client.heard_of(BaseCommand.ACK_RESPONSE)
    assert [each.ack_response.request_id for each, _ in told] == [0, 1, 2]


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_cumulative_ack_of_shared_types_is_answered_and_ignored(client, publisher, kind):
    sent = publisher.publish_all(3, partition_key="k")
    consumer = ready(client, kind).flow(10)
    consumer.ids()
    told = consumer.acked(sent[2], kind="Cumulative")

    assert not told.HasField("error")
    assert consumer.unacked == 3


# ---- cumulative acks ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALONE)
def test_a_cumulative_ack_acks_everything_up_to_an_entry(client, publisher, kind):
    sent = publisher.publish_all(5)
    consumer = ready(client, kind).flow(10)
    consumer.ids()
    consumer.ack(sent[2], kind="Cumulative")
    assert consumer.unacked == 2
    consumer.close()

    assert left(client) == [(sent[3], []), (sent[4], [])]


def test_a_cumulative_ack_of_a_batch_acks_all_of_it(client, publisher):
    sent = publisher.publish_all(3, messages=4)
    consumer = ready(client, "Exclusive").flow(100)
    consumer.ids()
    consumer.ack(sent[1], kind="Cumulative")

    assert consumer.unacked == 4


def test_the_entry_before_a_batch_is_understood_as_clients_count_it(client, publisher):
    """Inside a batch a client acks "entry - 1" cumulatively; ours are as far apart as they long."""
    sent = publisher.publish_all(3, messages=4)
    consumer = ready(client, "Exclusive").flow(100)
    consumer.ids()
    ledger, entry = sent[2]
    consumer.ack((ledger, entry - 1), kind="Cumulative")

    assert consumer.unacked == 4
    consumer.close()
    assert left(client) == [(sent[2], [])]


@pytest.mark.parametrize("where", ["(l,-1)", "(-1,-1)", "future", "another ledger", "latest"])
def test_a_cumulative_ack_of_no_entry_is_ignored(client, publisher, where):
    sent = publisher.publish_all(3)
    consumer = ready(client, "Exclusive").flow(10)
    consumer.ids()
    ledger = sent[0][0]
    told = consumer.acked(
        {
            "(l,-1)": (ledger, NONE),
            "(-1,-1)": EARLIEST,
            "future": (ledger, 10**12),
            "another ledger": (ledger + 1, 0),
            "latest": LATEST,
        }[where],
        kind="Cumulative",
    )

    assert not told.HasField("error")
    assert consumer.unacked == 3


@pytest.mark.parametrize("count", [0, 2])
def test_a_cumulative_ack_has_exactly_one_id(client, publisher, count):
    sent = publisher.publish_all(3)
    consumer = ready(client, "Exclusive").flow(10)
    consumer.ids()
    consumer.acked(*sent[:count], kind="Cumulative")

    assert consumer.unacked == 3


def test_individual_acks_before_a_cumulative_one_count_and_so_do_those_behind(client, publisher):
    """In one read: each in its place."""
    sent = publisher.publish_all(6)
    consumer = ready(client, "Exclusive").flow(10)
    consumer.ids()
    consumer.ack(sent[4])
    consumer.ack(sent[1], kind="Cumulative")
    consumer.ack(sent[5])
    consumer.close()

    assert left(client) == [(sent[2], []), (sent[3], [])]


# ---- batch-index acks ---------------------------------------------------------------------------


def part(where, *words, **fields):
    return {**as_id(where), "ack_set": list(words), **fields}


@pytest.mark.parametrize("kind", KINDS)
def test_an_ack_set_acks_the_messages_whose_bits_are_not_set(client, publisher, kind):
    (sent,) = publisher.publish_all(1, messages=10, partition_key="k")
    consumer = ready(client, kind).flow(100)
    consumer.ids()
    consumer.ack(part(sent, 0b1111100000))
    assert consumer.unacked == 5
    consumer.ack(part(sent, 0b1111011111))
    assert consumer.unacked == 4
    consumer.close()

    assert left(client) == [(sent, [0b1111000000])]


def test_two_ack_sets_that_complete_each_other_ack_the_entry(client, publisher):
    sent = publisher.publish_all(2, messages=4)
    consumer = ready(client).flow(100)
    consumer.ids()
    consumer.ack(part(sent[0], 0b0011))
    consumer.ack(part(sent[0], 0b1100))
    assert consumer.unacked == 4
    consumer.close()

    assert left(client) == [(sent[1], [])]


def test_an_ack_set_of_no_bits_acks_the_entry(client, publisher):
    (sent,) = publisher.publish_all(1, messages=10)
    consumer = ready(client).flow(100)
    consumer.ids()
    consumer.ack(part(sent, 0))

    assert consumer.unacked == 0


def test_an_ack_set_of_more_than_64_messages_has_several_words(client, publisher):
    (sent,) = publisher.publish_all(1, messages=130)
    consumer = ready(client).flow(200)
    consumer.ids()
    # Acked: 0..63, and 129; bits beyond the batch mean nothing.
    consumer.ack(part(sent, 0, -1, 0b01))
    assert consumer.unacked == 65
    consumer.close()

    assert left(client) == [(sent, [0, -1, 1])]


def test_an_ack_set_shorter_than_the_batch_acks_what_it_has_no_bits_for(client, publisher):
    (sent,) = publisher.publish_all(1, messages=100)
    consumer = ready(client).flow(200)
    consumer.ids()
    consumer.ack(part(sent, -1))

    assert consumer.unacked == 64


@pytest.mark.parametrize("words", [[-1] * 10_000, [0] * 10_000], ids=["all set", "none set"])
def test_an_ack_set_far_longer_than_its_batch_is_no_work(client, publisher, words):
    (sent,) = publisher.publish_all(1, messages=3)
    consumer = ready(client).flow(10)
    consumer.ids()
    consumer.ack(part(sent, *words))

    assert consumer.unacked == (3 if words[0] else 0)


@pytest.mark.parametrize("where", ["future", "inside", "another ledger", "(l,-1)"])
def test_an_ack_set_of_no_entry_is_ignored(client, publisher, where):
    (sent,) = publisher.publish_all(1, messages=3)
    consumer = ready(client).flow(10)
    consumer.ids()
    ledger, entry = sent
    at = {
        "future": (ledger, 50),
        "inside": (ledger, entry + 1),
        "another ledger": (ledger + 1, entry),
        "(l,-1)": (ledger, NONE),
    }[where]
    consumer.acked(part(at, 0))

    assert consumer.unacked == 3


def test_a_cumulative_ack_with_an_ack_set_acks_what_is_before_and_its_bits(client, publisher):
    sent = publisher.publish_all(3, messages=4)
    consumer = ready(client, "Exclusive").flow(100)
    consumer.ids()
    consumer.ack(part(sent[1], 0b1100), kind="Cumulative")
    assert consumer.unacked == 6
    consumer.close()

    assert left(client) == [(sent[1], [0b1100]), (sent[2], [])]


@pytest.mark.parametrize("end", ["stop", "kill", "cut_power"])
def test_parts_of_batches_that_are_acked_survive_a_restart(bench, client, publisher, end):
    sent = publisher.publish_all(2, messages=4)
    consumer = ready(client).flow(100)
    consumer.ids()
    consumer.acked(part(sent[0], 0b1010))
    getattr(bench, end)()

    again = bench.client()
    assert left(again) == [(sent[0], [0b1010]), (sent[1], [])]


def test_a_part_that_is_acked_while_it_waits_to_come_again_does_not_come(client, publisher):
    (sent,) = publisher.publish_all(1, messages=4)
    consumer = ready(client).flow(4)
    consumer.ids()
    consumer.redeliver()
    consumer.ack(part(sent, 0b0001))
    consumer.flow(10)

    (found,) = consumer.messages()
    assert found.ack_set == [0b0001]
    assert consumer.permits == 9


# ---- REDELIVER ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_redeliver_by_id_counts_one_for_each(client, publisher, kind):
    sent = publisher.publish_all(4, partition_key="k")
    consumer = ready(client, kind).flow(100)
    consumer.ids()
    consumer.redeliver(sent[2], sent[0])
    found = consumer.messages()
    assert [(each.id, each.count) for each in found] == [(sent[0], 1), (sent[2], 1)]
    consumer.redeliver(sent[2])

    assert [(each.id, each.count) for each in consumer.messages()] == [(sent[2], 2)]


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_redeliver_of_everything_counts_one_for_each(client, publisher, kind):
    sent = publisher.publish_all(3, partition_key="k")
    consumer = ready(client, kind).flow(100)
    consumer.ids()
    consumer.ack(sent[1])
    consumer.redeliver()

    found = [(each.id, each.count) for each in consumer.messages()]
    assert found == [(sent[0], 1), (sent[2], 1)]


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("by_id", [True, False])
def test_redeliver_of_who_reads_alone_brings_everything_and_counts_nothing(
    client, publisher, kind, by_id
):
    sent = publisher.publish_all(4)
    consumer = ready(client, kind).flow(100)
    consumer.ids()
    consumer.ack(sent[1])
    consumer.redeliver(*sent[3:] if by_id else ())

    found = [(each.id, each.count) for each in consumer.messages()]
    assert found == [(sent[0], 0), (sent[2], 0), (sent[3], 0)]
    assert consumer.permits == 93


def test_redeliver_of_what_another_has_is_acked_or_unknown_is_ignored(client, publisher):
    consumers = [ready(client).flow(2) for _ in "ab"]
    publisher.publish_all(4)
    one, two = [each.ids() for each in consumers]
    consumers[0].ack(one[0])
    for each in consumers:
        each.flow(100)
    consumers[0].redeliver(one[0], two[0], (one[0][0], 77), (77, 0), EARLIEST)

    assert [each.ids() for each in consumers] == [[], []]


def test_redeliver_for_an_unknown_or_unfinished_consumer_is_ignored(client):
    client.say("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=99)
    consumer = Subscriber(client)
    consumer.redeliver()

    consumer.opened()
    assert not client.is_closed


def test_what_comes_again_goes_before_what_is_new_in_the_order_of_ids(client, publisher):
    sent = publisher.publish_all(6)
    consumer = ready(client).flow(4)
    consumer.ids()
    consumer.redeliver(sent[2], sent[0])
    consumer.flow(4)

    found = [(each.id, each.count) for each in consumer.messages()]
    assert found == [(sent[0], 1), (sent[2], 1), (sent[4], 0), (sent[5], 0)]


def test_a_lost_connection_keeps_counts_and_adds_none(bench, client, publisher):
    sent = publisher.publish_all(2)
    losing = bench.client()
    consumer = ready(losing).flow(10)
    consumer.ids()
    consumer.redeliver(sent[1])
    consumer.ids()
    other = ready(client).flow(10)
    losing.vanish()

    assert [(each.id, each.count) for each in other.messages()] == [(sent[0], 0), (sent[1], 1)]


def test_counts_are_forgotten_with_the_last_consumer(client, publisher):
    sent = publisher.publish()
    consumer = ready(client).flow(10)
    consumer.redeliver(*consumer.ids())
    assert [each.count for each in consumer.messages()] == [1]
    consumer.close()

    again = ready(client).flow(10)
    assert [(each.id, each.count) for each in again.messages()] == [(sent, 0)]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_counts_are_forgotten_with_the_broker(bench, client, publisher, end):
    sent = publisher.publish()
    consumer = ready(client).flow(10)
    consumer.redeliver(*consumer.ids())
    consumer.messages()
    bench.settle()
    getattr(bench, end)()

    again = ready(bench.client()).flow(10)
    assert [(each.id, each.count) for each in again.messages()] == [(sent, 0)]


def test_an_ack_that_comes_while_a_message_waits_to_come_again_settles_it(client, publisher):
    sent = publisher.publish_all(2)
    consumer = ready(client).flow(2)
    consumer.ids()
    consumer.redeliver()
    consumer.ack(sent[0])
    consumer.flow(10)

    assert consumer.ids() == sent[1:]


# ---- SEEK ---------------------------------------------------------------------------------------


def sought(consumer, *args, **fields):
    """SEEK, and all that is told for it, in order."""
    request = consumer.seek(*args, **fields)
    told = []
    for each in consumer.client.commands():
        kind = BaseCommand.Type.Name(each.type)
        told.append(kind)
        if kind == "SUCCESS":
            assert each.success.request_id == request
    return told


@pytest.mark.parametrize("kind", KINDS)
def test_a_seek_closes_all_consumers_and_then_succeeds(client, publisher, kind):
    sent = publisher.publish_all(4, partition_key="k")
    consumer = ready(client, kind).flow(100)
    consumer.ack(*consumer.ids())
    client.heard()
    assert sought(consumer, sent[1]) == ["CLOSE_CONSUMER", "SUCCESS"]

    assert [each for each, _ in left(client, kind=kind)] == sent[1:]


def test_a_seek_closes_the_consumers_of_others_too(bench, client, publisher):
    sent = publisher.publish_all(2)
    one, two = ready(client), ready(bench.client())
    request = one.seek(sent[0])

    assert one.is_told_closed()
    assert two.is_told_closed()
    assert client.answer(request).type == BaseCommand.SUCCESS
    assert not stored(bench).consumers


def test_a_seek_succeeds_when_it_is_durable_and_is_so_after_a_crash(bench, client, publisher):
    sent = publisher.publish_all(3)
    consumer = ready(client).flow(10)
    consumer.ack(*consumer.ids())
    request = consumer.seek(sent[1])
    bench.turns()
    assert [each.type for each in client.heard_so_far()] == [BaseCommand.CLOSE_CONSUMER]
    assert client.answer(request).type == BaseCommand.SUCCESS
    bench.cut_power()

    assert [each for each, _ in left(bench.client())] == sent[1:]


@pytest.mark.parametrize(
    ("to", "first"),
    [(EARLIEST, 0), (LATEST, 3), ("beyond", 3), ("older", 0), ("newer", 3), ("(l,-1)", 0)],
)
def test_a_seek_to_no_entry_goes_to_its_place(client, publisher, to, first):
    sent = publisher.publish_all(3)
    ledger = sent[0][0]
    where = {
        "beyond": (ledger, 99), "older": (0, 5), "newer": (ledger + 9, 0), "(l,-1)": (ledger, NONE),
    }.get(to, to)  # fmt: skip
    assert sought(ready(client), where) == ["CLOSE_CONSUMER", "SUCCESS"]
    consumer = ready(client).flow(10)
    sent.append(publisher.publish())

    assert consumer.ids() == sent[first:]


def test_a_seek_by_time_goes_to_the_first_entry_published_then_or_later(client, publisher):
    sent = [publisher.publish(publish_time=at) for at in (1_000, 2_000, 3_000)]
    for at, first in ((1_500, 1), (2_000, 1), (0, 0), (9_999_999_999_999, 3)):
        consumer = ready(client)
        assert sought(consumer, message_publish_time=at) == ["CLOSE_CONSUMER", "SUCCESS"]
        again = ready(client).flow(10)
        assert again.ids() == sent[first:]
        again.close()


def test_a_seek_to_nothing_is_refused_and_changes_nothing(client, publisher):
    consumer = ready(client)
    code, text = client.error("SEEK", consumer_id=consumer.id, request_id=1)

    assert code is ServerError.MetadataError
    assert text == "Message id and message publish time were not present"
    assert not consumer.is_told_closed()


def test_a_second_seek_while_one_runs_is_refused(bench, client, publisher):
    sent = publisher.publish_all(3)
    first = ready(client)
    (topic,) = bench.broker.topics._used.values()
    first.seek(sent[1])
    with pytest.raises(PulsarError, match="Failed to fence subscription") as refused:
        bench.broker.subscriptions.get(topic, "s").seek(0)

    assert refused.value.code is ServerError.UnknownError
    assert [each for each, _ in left(client)] == sent[1:]


def test_a_second_seek_of_a_consumer_that_was_closed_finds_none(client, publisher):
    sent = publisher.publish_all(3)
    consumer = ready(client)
    first, second = consumer.seek(sent[1]), consumer.seek(sent[2])

    assert client.answer(first).type == BaseCommand.SUCCESS
    refused = client.answer(second)
    assert (refused.error.error, refused.error.message) == (
        ServerError.MetadataError,
        "Consumer not found",
    )


def test_a_seek_into_a_batch_honours_an_ack_set(bench, client, publisher):
    sent = publisher.publish_all(3, messages=4)
    consumer = ready(client).flow(100)
    consumer.ack(*consumer.ids())
    consumer.seek(message_id=part(sent[1], 0b1100, batch_size=4))
    bench.settle()
    assert left(client) == [(sent[1], [0b1100]), (sent[2], [])]
    bench.kill()

    assert left(bench.client()) == [(sent[1], [0b1100]), (sent[2], [])]


def test_the_batch_index_of_a_seek_does_not_count(client, publisher):
    sent = publisher.publish_all(2, messages=4)
    consumer = ready(client)
    consumer.seek(message_id={**as_id(sent[1]), "batch_index": 2})

    assert left(client) == [(sent[1], [])]


def test_a_seek_forgets_acks_and_what_was_to_come_again(client, publisher):
    sent = publisher.publish_all(4)
    consumer = ready(client).flow(4)
    consumer.ids()
    consumer.ack(sent[2])
    consumer.redeliver(sent[3])
    consumer.seek(sent[1])

    again = ready(client).flow(10)
    assert [(each.id, each.count) for each in again.messages()] == [
        (sent[1], 0), (sent[2], 0), (sent[3], 0),
    ]  # fmt: skip


def test_a_reader_that_seeks_loses_its_subscription_and_begins_where_it_says(client, publisher):
    sent = publisher.publish_all(4)
    reader = ready(client, "Exclusive", durable=False, start=EARLIEST)
    assert sought(reader, sent[2]) == ["CLOSE_CONSUMER", "SUCCESS"]
    again = ready(client, "Exclusive", durable=False, start=sent[2]).flow(10)

    assert again.ids() == sent[2:]


def test_acks_and_flow_after_the_broker_closed_a_consumer_are_ignored(client, publisher):
    sent = publisher.publish_all(3)
    consumer = ready(client).flow(10)
    consumer.ids()
    consumer.seek(sent[0])
    consumer.flow(100)
    consumer.ack(*sent)
    consumer.redeliver()
    client.heard()

    assert not client.is_closed
    assert [each for each, _ in left(client)] == sent


@pytest.mark.parametrize("kind", ["SEEK", "UNSUBSCRIBE", "GET_LAST_MESSAGE_ID"])
def test_questions_for_an_unknown_consumer_are_told_so(client, kind):
    assert client.error(kind, consumer_id=99, request_id=1) == (
        ServerError.MetadataError,
        "Consumer not found",
    )


# ---- UNSUBSCRIBE and CLOSE ----------------------------------------------------------------------


def test_unsubscribe_of_the_only_consumer_ends_the_subscription_for_good(bench, client, publisher):
    publisher.publish_all(3)
    consumer = ready(client)
    assert consumer.unsubscribe().type == BaseCommand.SUCCESS
    assert not bench.engine.topic(topic_name("orders")).subscriptions
    bench.cut_power()

    assert not bench.engine.topic(topic_name("orders")).subscriptions


def test_unsubscribe_of_one_of_several_is_refused(bench, client):
    consumer, other = ready(client), ready(client)
    refused = consumer.unsubscribe()

    assert (refused.error.error, refused.error.message) == (
        ServerError.MetadataError,
        "Unconnected or shared consumer attempting to unsubscribe",
    )
    assert len(stored(bench).consumers) == 2
    assert not other.is_told_closed()


def test_unsubscribe_by_force_closes_the_others(bench, client):
    consumer, other = ready(client), ready(bench.client())
    assert consumer.unsubscribe(force=True).type == BaseCommand.SUCCESS

    assert other.is_told_closed()
    assert not consumer.is_told_closed()
    assert not bench.engine.topic(topic_name("orders")).subscriptions
    assert not bench.broker.subscriptions._used


def test_unsubscribe_of_one_partition_leaves_the_others(bench, client):
    topic = bench.engine.create_topic(topic_name("orders"), queues=2)
    one, two = [ready(client, topic=f"{TOPIC}-partition-{at}") for at in (0, 1)]
    assert one.unsubscribe().type == BaseCommand.SUCCESS

    assert stored(bench).queue_ids == [topic.queues[1].queue_id]
    assert not two.is_told_closed()


def test_closing_gives_back_what_the_consumer_has(client, publisher):
    sent = publisher.publish_all(3)
    one = ready(client).flow(10)
    assert one.ids() == sent
    two = ready(client).flow(10)
    one.close()

    assert [(each.id, each.count) for each in two.messages()] == [(each, 0) for each in sent]


@pytest.mark.parametrize("kind", ["CLOSE_CONSUMER", "CLOSE_PRODUCER"])
def test_closing_what_is_not_there_succeeds(client, kind):
    which = {"CLOSE_CONSUMER": "consumer_id", "CLOSE_PRODUCER": "producer_id"}[kind]
    client.say(kind, request_id=5, **{which: 99})

    assert client.answer(5).type == BaseCommand.SUCCESS


def test_acks_that_came_before_the_close_count(client, publisher):
    """Clients flush their acks right before they close, in one packet."""
    sent = publisher.publish_all(2)
    consumer = ready(client).flow(10)
    consumer.ids()
    client.say("ACK", consumer_id=consumer.id, ack_type="Individual", message_id=[as_id(sent[0])])
    client.say("CLOSE_CONSUMER", consumer_id=consumer.id, request_id=1)

    assert [each for each, _ in left(client)] == sent[1:]


# ---- what consumers ask -------------------------------------------------------------------------


def test_the_last_id_of_an_empty_topic_is_none(client):
    told = ready(client).last_id()

    assert (told.last_message_id.ledgerId, told.last_message_id.entryId) == EARLIEST
    assert told.last_message_id.batch_index == -1
    assert told.last_message_id.partition == -1


@pytest.mark.parametrize(("messages", "batch_index"), [(1, -1), (3, 2)])
def test_the_last_id_names_the_last_message_of_a_batch(client, publisher, messages, batch_index):
    sent = publisher.publish_all(2, messages=messages)
    told = ready(client).last_id()

    assert (told.last_message_id.ledgerId, told.last_message_id.entryId) == sent[-1]
    assert told.last_message_id.batch_index == batch_index


def test_the_last_id_of_a_batch_of_one_has_index_0(client, publisher):
    publisher.publish(b"\0\0\0\2\x18\1x", num_messages_in_batch=1)

    assert ready(client).last_id().last_message_id.batch_index == 0


def test_what_is_not_durable_is_not_the_last(bench, client, publisher):
    first = publisher.publish()
    consumer = ready(client)
    publisher.send(b"under way")
    bench.turns()
    client.say("GET_LAST_MESSAGE_ID", consumer_id=consumer.id, request_id=1)
    (told,) = client.heard_of(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)

    last = told[0].get_last_message_id_response.last_message_id
    assert (last.ledgerId, last.entryId) == first


def test_the_mark_delete_position_is_the_last_of_all_acked_entries(client, publisher):
    sent = publisher.publish_all(3, messages=4)
    consumer = ready(client).flow(100)
    consumer.ids()

    def mark():
        place = consumer.last_id().consumer_mark_delete_position
        return place.ledgerId, place.entryId

    ledger = sent[0][0]
    assert mark() == (ledger, NONE)
    consumer.ack(sent[1])
    assert mark() == (ledger, NONE)
    consumer.ack(part(sent[0], 0b1100))
    assert mark() == (ledger, NONE)
    consumer.ack(sent[0])
    assert mark() == sent[1]


def test_statistics_tell_permits_unacked_and_backlog(client, publisher):
    publisher.publish_all(5)
    consumer = ready(client, consumer_name="till").flow(3)
    consumer.ids()
    told = consumer.stats()

    assert told.consumerName == "till"
    assert (told.availablePermits, told.unackedMessages, told.msgBacklog) == (0, 3, 5)
    assert told.type == "Shared"
    assert not told.blockedConsumerOnUnackedMsgs


def test_statistics_of_an_unknown_consumer_say_so(client):
    client.say("CONSUMER_STATS", consumer_id=99, request_id=1)
    (told,) = client.heard_of(BaseCommand.CONSUMER_STATS_RESPONSE)

    assert told[0].consumer_stats_response.error_code == ServerError.ConsumerNotFound


def test_rates_are_those_of_the_last_ten_seconds(bench, client, publisher):
    consumer = ready(client).flow(100)
    publisher.publish_all(50)
    consumer.ack(*consumer.ids())
    bench.pass_time(10_000)
    client.say("PONG")
    told = consumer.stats()

    assert told.msgRateOut == pytest.approx(5)
    assert told.messageAckRate == pytest.approx(5)


# ---- the end of a topic -------------------------------------------------------------------------


def ended(consumer):
    found = consumer.client.heard_of(BaseCommand.REACHED_END_OF_TOPIC)
    return [each.reached_end_of_topic.consumer_id for each, _ in found]


def terminate(bench):
    bench.engine.terminate_topic(topic_name("orders"))
    bench.broker.subscriptions.topic_ended(
        bench.broker.topics.find(next(iter(bench.broker.topics._used)))
    )


def test_the_end_of_a_topic_is_told_when_all_is_acked(bench, client, publisher):
    consumer = ready(client).flow(10)
    sent = publisher.publish_all(2)
    consumer.ids()
    terminate(bench)
    consumer.ack(sent[0])
    assert ended(consumer) == []
    consumer.ack(sent[1])

    assert ended(consumer) == [consumer.id]


def test_the_end_of_a_topic_is_told_at_the_flow_of_who_comes_later(bench, client, publisher):
    ready(client).close()
    bench.engine.terminate_topic(topic_name("orders"))
    consumer = ready(client)
    assert ended(consumer) == []
    consumer.flow(1)

    assert ended(consumer) == [consumer.id]


@pytest.mark.parametrize(
    ("version", "protocol"), [("Pulsar-CPP-v4.2.0", 20), ("Pulsar-Java-v1", 8)]
)
def test_the_end_of_a_topic_is_not_told_to_who_does_not_know_it(bench, version, protocol):
    client = bench.client(version, protocol)
    consumer = ready(client).flow(10)
    terminate(bench)
    consumer.flow(1)

    assert ended(consumer) == []


def test_a_reader_is_not_told_of_the_end(bench, client):
    reader = ready(client, durable=False, start=EARLIEST).flow(10)
    terminate(bench)
    reader.flow(1)

    assert ended(reader) == []


# ---- topics without a log -----------------------------------------------------------------------


@pytest.fixture
def unlogged(bench):
    bench.engine.non_persistent.create(topic_name("orders", "", "non-persistent"))
    return bench.engine.non_persistent.get(topic_name("orders", "", "non-persistent"))


def test_a_topic_without_a_log_gives_to_who_has_permits_or_drops(client, unlogged):
    assert isinstance(unlogged, NonPersistentTopic)
    consumer = ready(client, topic=UNLOGGED)
    publisher = Publisher(client, UNLOGGED)
    assert publisher.publish(b"dropped") == (0, 0)
    consumer.flow(1)
    publisher.publish(b"taken")
    publisher.publish(b"dropped")

    (found,) = consumer.messages()
    assert (found.id, found.payload) == ((0, 0), b"taken")


def test_a_batch_of_a_topic_without_a_log_comes_whole(client, unlogged):
    consumer = ready(client, topic=UNLOGGED).flow(1)
    Publisher(client, UNLOGGED).publish(b"a", b"b", b"c", b"d")

    assert len(consumer.messages()) == 1
    assert consumer.permits == -3


def test_what_makes_no_sense_without_a_log_is_answered_as_pulsar_does(client, unlogged):
    consumer = ready(client, topic=UNLOGGED)
    told = consumer.acked((0, 0))
    assert not told.HasField("error")
    assert sought(consumer, EARLIEST) == ["SUCCESS"]
    consumer.redeliver()
    code, text = client.error("GET_LAST_MESSAGE_ID", consumer_id=consumer.id, request_id=1)

    assert (code, text) == (ServerError.UnknownError, "Failed to recover Transaction Buffer.")
    assert not client.is_closed


# ---- commands that go in pieces -----------------------------------------------------------------

MANY = 5_000


@pytest.fixture
def holding(client, publisher):
    """A consumer that holds five thousand messages, and their ids."""
    sent = publisher.publish_all(MANY)
    consumer = ready(client).flow(MANY)
    got = []
    while more := consumer.ids():
        got += more
    assert got == sent
    return consumer, sent


def said(client, kind, **fields):
    """Say it, and how many turns it takes until nothing of it is left."""
    client.say(kind, **fields)
    turns = 0
    while client.connection.is_working:
        client.connection.outgoing()
        turns += 1
    return turns


def test_an_ack_of_very_many_ids_is_done_in_pieces_and_answered_once(client, holding):
    consumer, sent = holding
    # With a request it is no run, and every other first: no neighbours.
    ids = [as_id(each) for each in (*sent[::2], *sent[1::2])]
    turns = said(
        client, "ACK", consumer_id=consumer.id, ack_type="Individual", message_id=ids, request_id=4
    )
    assert turns >= 2
    told = client.heard_of(BaseCommand.ACK_RESPONSE)
    assert [each.ack_response.request_id for each, _ in told] == [4]
    assert consumer.unacked == 0


def test_acks_of_very_many_in_a_row_are_done_in_pieces(client, holding):
    consumer, sent = holding
    ids = [as_id(each) for each in (*sent[::2], *sent[1::2])]
    turns = said(client, "ACK", consumer_id=consumer.id, ack_type="Individual", message_id=ids)
    assert turns >= 1
    assert consumer.unacked == 0


def test_a_redelivery_of_very_many_ids_is_done_in_pieces(client, holding):
    consumer, sent = holding
    turns = said(
        client, "REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=consumer.id,
        message_ids=[as_id(each) for each in sent],
    )  # fmt: skip
    assert turns >= 2
    assert consumer.unacked == 0
    consumer.flow(3)

    assert [(each.id, each.count) for each in consumer.messages()] == [
        (each, 1) for each in sent[:3]
    ]


def test_a_consumer_that_ends_amid_its_ack_leaves_the_rest_unacked(bench, client, holding):
    consumer, sent = holding
    ids = [as_id(each) for each in (*sent[::2], *sent[1::2])]
    client.say("ACK", consumer_id=consumer.id, ack_type="Individual", message_id=ids, request_id=4)
    assert client.connection.is_working
    bench.broker.subscriptions.delete(consumer_topic(bench), "s", force=True)
    client.commands()

    assert not client.connection.is_working
    assert not client.is_closed


def consumer_topic(bench):
    (topic,) = bench.broker.topics._used.values()
    return topic
