"""SEEK, acknowledgements, and where readers begin (observations 9)."""

import time

import pytest

from kit.pulsar_peer import EARLIEST, LATEST, NONE, RawConsumer, as_id
from penstock.testing.running import eventually
from penstock.wire.pulsar import protocol_pb2 as pb

ENTRIES = 5


@pytest.fixture
def sent(pulsar, topic):
    """Five entries."""
    return pulsar.peer().producer(topic).publish_all([b"%d" % i for i in range(ENTRIES)])


def ready(peer, topic, kind="Exclusive", **fields):
    return peer.consumer(topic, "s", kind, initialPosition="Earliest", **fields)


def after_seek(peer, topic, consumer, target=None, **fields):
    """Ids delivered after a SEEK and a new SUBSCRIBE."""
    request = consumer.seek(target, **fields)
    consumer.expect_closed()
    assert peer.answer(request).kind == "success"
    again = peer.consumer(topic, "s")
    again.flow(100)
    return [(each.command.message_id.ledgerId, each.command.message_id.entryId)
            for each in peer.gather()]  # fmt: skip


# ---- SEEK


def test_seek_closes_the_consumer_then_succeeds(peer, topic, sent):
    consumer = ready(peer, topic)
    request = consumer.seek(sent[2])
    consumer.expect_closed()
    peer.expect("success", request_id=request)


def test_seek_closes_every_consumer_of_the_subscription(pulsar, peer, topic, sent):
    consumer = ready(peer, topic, "Shared")
    other = ready(pulsar.peer(), topic, "Shared")
    request = consumer.seek(sent[2])
    consumer.expect_closed()
    peer.expect("success", request_id=request)
    other.expect_closed()


@pytest.mark.parametrize("index", [0, 2, 4])
def test_seek_by_id_goes_on_at_that_entry(peer, topic, sent, index):
    assert after_seek(peer, topic, ready(peer, topic), sent[index]) == sent[index:]


def test_seek_to_the_earliest_and_to_the_latest(peer, topic, sent):
    consumer = ready(peer, topic)
    assert after_seek(peer, topic, consumer, EARLIEST) == sent
    peer.ask("close_consumer", consumer_id=2)
    assert after_seek(peer, topic, ready(peer, topic), LATEST) == []


@pytest.mark.parametrize("where", ["beyond the end", "unknown ledger"])
def test_seek_beyond_is_the_end(peer, topic, sent, where):
    ledger, _ = sent[0]
    target = (ledger, 9999) if where == "beyond the end" else (ledger + 1_000_000, 0)
    assert after_seek(peer, topic, ready(peer, topic), target) == []


def test_seek_by_time(pulsar, peer, topic):
    producer = pulsar.peer().producer(topic)
    now = int(time.time() * 1000)
    sent = [producer.publish(publish_time=now + ahead) for ahead in (-3000, -2000, -1000, 0)]
    consumer = ready(peer, topic)
    assert after_seek(peer, topic, consumer, message_publish_time=now - 2000) == sent[1:]


def test_seek_to_a_future_time_is_the_end(peer, topic, sent):
    ahead = int(time.time() * 1000) + 60_000
    assert after_seek(peer, topic, ready(peer, topic), message_publish_time=ahead) == []


def test_seek_without_a_target_is_an_error(peer, topic):
    consumer = ready(peer, topic)
    peer.refused(
        "MetadataError",
        "Message id and message publish time were not present",
        "seek",
        consumer_id=consumer.id,
    )


def test_two_seeks_at_once(pulsar, peer, topic, sent):
    first, second = ready(peer, topic, "Shared"), ready(pulsar.peer(), topic, "Shared")
    requests = first.seek(sent[1]), second.seek(sent[3])
    first.expect_closed()
    second.expect_closed()
    answers = [
        each.peer.answer(request) for each, request in zip((first, second), requests, strict=True)
    ]
    kinds = sorted(each.kind for each in answers)
    assert kinds in (["error", "success"], ["success", "success"])
    for each in answers:
        if each.kind == "error":
            assert each.command.message in {
                "Consumer not found",
                "Error when resetting subscription: Failed to fence subscription",
            }


def test_seek_into_a_batch_ignores_the_index(pulsar, peer, topic):
    sent = pulsar.peer().producer(topic).publish_all([[b"x"] * 4] * 2)
    target = {**as_id(sent[1]), "batch_index": 2}
    request = (consumer := ready(peer, topic)).seek(message_id=target)
    consumer.expect_closed()
    peer.expect("success", request_id=request)
    again = peer.consumer(topic, "s")
    again.flow(100)
    found = again.message()
    assert found.id == sent[1]
    assert found.ack_set == []


def test_seek_into_a_batch_honours_an_ack_set(pulsar, peer, topic):
    sent = pulsar.peer().producer(topic).publish_all([[b"x"] * 4] * 2)
    target = {**as_id(sent[1]), "ack_set": [0b1100], "batch_size": 4}
    request = (consumer := ready(peer, topic)).seek(message_id=target)
    consumer.expect_closed()
    peer.expect("success", request_id=request)
    again = peer.consumer(topic, "s")
    again.flow(100)
    found = again.message()
    assert (found.id, found.ack_set) == (sent[1], [0b1100])


def test_a_reader_that_seeks_begins_anew(pulsar, peer, topic, sent):
    reader = peer.reader(topic, EARLIEST)
    request = reader.seek(sent[3])
    reader.expect_closed()
    peer.expect("success", request_id=request)
    again = peer.reader(topic, sent[3])
    again.flow(100)
    assert [each.id for each in again.messages(2)] == sent[3:]


@pytest.mark.parametrize("start", [EARLIEST, LATEST], ids=["earliest", "latest"])
def test_a_reader_that_sought_is_there_wherever_it_says_it_begins(peer, topic, sent, start):
    """The Python client seeks by time, and comes back with the place where it began."""
    reader = peer.reader(topic, start)
    request = reader.seek(sent[3])
    reader.expect_closed()
    peer.expect("success", request_id=request)
    again = peer.reader(topic, start)
    again.flow(100)
    assert [each.id for each in again.messages(2)] == sent[3:]
    again.close()
    if start is EARLIEST:
        later = peer.reader(topic, start)
        later.flow(100)
        assert [each.id for each in later.messages(5)] == sent


def test_resetting_the_cursor_by_rest_closes_the_consumer(pulsar, peer, topic, sent):
    consumer = ready(peer, topic)
    consumer.flow(100)
    consumer.messages(ENTRIES)
    pulsar.rest.done("POST", f"{pulsar.path(topic)}/subscription/s/resetcursor/0")
    consumer.expect_closed()
    again = peer.consumer(topic, "s")
    again.flow(100)
    assert again.message().id == sent[0]


# ---- where a reader begins


@pytest.mark.parametrize("index", [0, 2, 4])
@pytest.mark.parametrize("batch_index", [None, 0])
def test_a_reader_begins_at_its_entry(peer, topic, sent, index, batch_index):
    start = as_id(sent[index])
    if batch_index is not None:
        start["batch_index"] = batch_index
    reader = peer.consumer(topic, "r", durable=False, start_message_id=start)
    reader.flow(100)
    assert [each.id for each in reader.messages(ENTRIES - index)] == sent[index:]
    peer.expect_nothing()


def test_a_reader_before_the_first_entry_begins_at_it(peer, topic, sent):
    for start in ((sent[0][0], NONE), (0, 0), EARLIEST):
        reader = peer.reader(topic, start, name=f"r{start[1]}-{start[0]}")
        reader.flow(1)
        assert reader.message().id == sent[0]


def test_a_reader_beyond_the_end_waits_there(pulsar, peer, topic, sent):
    ledger = sent[0][0]
    for start in ((ledger, 99), (ledger + 1_000_000, 0), LATEST):
        reader = peer.reader(topic, start, name=f"r{start[1]}-{start[0]}")
        reader.flow(1)
    peer.expect_nothing()
    new = pulsar.peer().producer(topic).publish()
    assert {each.id for each in peer.messages(3)} == {new}


def test_a_reader_without_a_start_follows_the_initial_position(peer, topic, sent):
    early = peer.consumer(topic, "r1", durable=False, initialPosition="Earliest")
    early.flow(1)
    assert early.message().id == sent[0]
    late = peer.consumer(topic, "r2", durable=False)
    late.flow(1)
    peer.expect_nothing()


def test_rollback_seconds_beat_the_latest(pulsar, peer, topic):
    producer = pulsar.peer().producer(topic)
    now = int(time.time() * 1000)
    sent = [producer.publish(publish_time=now - ago) for ago in (60_000, 20_000, 0)]
    reader = peer.reader(topic, LATEST, start_message_rollback_duration_sec=30)
    reader.flow(100)
    assert [each.id for each in reader.messages(2)] == sent[1:]


def test_a_new_durable_subscription_ignores_a_start_id(peer, topic, sent):
    start = as_id(sent[2])
    late = peer.consumer(topic, "late", start_message_id=start)
    late.flow(100)
    peer.expect_nothing()
    early = peer.consumer(topic, "early", start_message_id=start, initialPosition="Earliest")
    early.flow(1)
    assert early.message().id == sent[0]


def test_an_existing_subscription_ignores_the_initial_position(peer, topic, sent):
    consumer = ready(peer, topic)
    consumer.flow(1)
    consumer.acked(consumer.message().id)
    consumer.close()
    again = peer.consumer(topic, "s", initialPosition="Latest")
    again.flow(1)
    assert again.message().id == sent[1]


# ---- acknowledgements


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_a_cumulative_ack_on_a_shared_subscription_is_ignored(pulsar, peer, topic, sent, kind):
    consumer = ready(peer, topic, kind)
    consumer.flow(100)
    consumer.messages(ENTRIES)
    assert not consumer.acked(sent[3], kind="Cumulative").HasField("error")
    assert consumer.unacked == ENTRIES
    assert pulsar.backlog(topic, "s") == ENTRIES


def test_a_cumulative_ack_acks_all_up_to_it(pulsar, peer, topic, sent):
    consumer = ready(peer, topic)
    consumer.flow(100)
    consumer.messages(ENTRIES)
    assert not consumer.acked(sent[3], kind="Cumulative").HasField("error")
    assert pulsar.backlog(topic, "s") == 1


def test_acks_that_mean_nothing_are_answered_without_an_error(pulsar, peer, topic, sent):
    consumer = ready(peer, topic)
    consumer.flow(1)
    consumer.message()
    ledger = sent[0][0]
    consumer.acked(sent[0])
    for target in (sent[0], (ledger, 9999), (ledger + 1_000_000, 0), EARLIEST):
        assert not consumer.acked(target).HasField("error")
    assert not consumer.acked().HasField("error")
    for target in ((ledger, NONE), (0, 0), LATEST):
        assert not consumer.acked(target, kind="Cumulative").HasField("error")
    assert pulsar.backlog(topic, "s") == ENTRIES - 1


def test_a_cumulative_ack_of_two_ids_is_ignored(pulsar, peer, topic, sent):
    consumer = ready(peer, topic)
    consumer.flow(100)
    consumer.messages(ENTRIES)
    consumer.ack(sent[1], sent[2], kind="Cumulative")
    peer.expect_nothing()
    assert pulsar.backlog(topic, "s") == ENTRIES


def test_20_cut_connections_cost_no_position_and_leave_no_permits(pulsar, topic):
    sent = pulsar.peer().producer(topic).publish_all([b"x"] * 60)
    for number in range(20):
        peer = pulsar.peer()
        consumer = taken_over(peer, topic)
        peer.expect_nothing()
        assert consumer.permits == 0
        consumer.flow(5)
        found = [each.id for each in consumer.messages(5 if number < 19 else 3)]
        assert found == sent[3 * number :][:5]
        # Two of five are not acknowledged: they are the first of the next.
        consumer.acked(found[2], kind="Cumulative")
        peer.close()
    assert pulsar.backlog(topic, "s") == 0


def taken_over(peer, topic):
    """The broker may not have seen yet that the last holder is gone."""

    def subscribed():
        request, number = peer.subscribe(topic, "s", initialPosition="Earliest")
        found = peer.answer(request)
        if found.kind == "success":
            return RawConsumer(peer, number)
        assert found.command.error == pb.ConsumerBusy
        return None

    return eventually(subscribed)


# ---- last message id, unsubscribe


def test_the_last_id_of_an_empty_topic(peer, topic):
    found = ready(peer, topic).last_id()
    last = found.last_message_id
    assert (last.ledgerId, last.entryId, last.batch_index) == (NONE, NONE, -1)
    assert found.consumer_mark_delete_position.entryId == NONE


@pytest.mark.parametrize("version", [20, 11])
def test_the_last_id_and_the_mark_delete_position(pulsar, topic, sent, version):
    peer = pulsar.peer(protocol_version=version)
    consumer = ready(peer, topic)
    found = consumer.last_id()
    last, mark = found.last_message_id, found.consumer_mark_delete_position
    assert (last.ledgerId, last.entryId, last.batch_index) == (*sent[-1], -1)
    assert (mark.ledgerId, mark.entryId) == (sent[0][0], NONE)
    consumer.flow(100)
    consumer.messages(ENTRIES)
    consumer.ack(sent[1], kind="Cumulative")
    peer.expect_nothing()
    mark = consumer.last_id().consumer_mark_delete_position
    assert (mark.ledgerId, mark.entryId) == sent[1]


def test_the_mark_delete_position_of_a_reader_is_before_the_first(peer, topic, sent):
    found = peer.reader(topic, EARLIEST).last_id()
    last, mark = found.last_message_id, found.consumer_mark_delete_position
    assert (last.ledgerId, last.entryId) == sent[-1]
    assert (mark.ledgerId, mark.entryId) == (sent[0][0], NONE)


@pytest.mark.parametrize("size", [1, 4])
def test_the_last_id_of_a_batch_has_its_last_index(pulsar, peer, topic, size):
    sent = pulsar.peer().producer(topic).publish([b"x"] * size)
    last = ready(peer, topic).last_id().last_message_id
    assert (last.ledgerId, last.entryId, last.batch_index) == (*sent, size - 1)


def test_the_last_id_names_its_partition(pulsar, peer):
    topic = f"{pulsar.topic(partitions=2)}-partition-1"
    pulsar.look_up(topic)
    peer.producer(topic).publish()
    assert ready(peer, topic).last_id().last_message_id.partition == 1


def test_unsubscribe_by_the_only_consumer(pulsar, peer, topic):
    consumer = ready(peer, topic)
    assert consumer.unsubscribe().kind == "success"
    assert "s" not in pulsar.stats(topic)["subscriptions"]


def test_unsubscribe_by_one_of_two_is_refused_unless_forced(pulsar, peer, topic):
    consumer = ready(peer, topic, "Shared")
    other = ready(pulsar.peer(), topic, "Shared")
    peer.refused(
        "MetadataError",
        "Unconnected or shared consumer attempting to unsubscribe",
        "unsubscribe",
        consumer_id=consumer.id,
    )
    assert consumer.unsubscribe(force=True).kind == "success"
    other.expect_closed()
