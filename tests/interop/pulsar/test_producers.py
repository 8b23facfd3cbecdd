"""Producers: names, access modes, receipts, duplicates, ends (observations 10)."""

import struct

import pytest

from kit.pulsar_peer import NONE, frame, stored
from penstock.wire.pulsar import protocol_pb2 as pb

DUPLICATE = (NONE, NONE)
MESSAGE_BYTES_MAX = 5242880
FRAME_OVERHEAD_MAX = 10240 - 4
"""A frame's length word counts, too."""


def test_producer_success_says_name_and_last_sequence(pulsar, peer, topic):
    found = peer.producer(topic).success
    assert found.producer_name
    if pulsar.is_real:
        assert found.producer_name.startswith("standalone-0-")
    assert found.last_sequence_id == -1
    assert found.HasField("schema_version")
    assert found.schema_version == b""
    assert found.producer_ready
    assert not found.HasField("topic_epoch")


def test_made_names_are_all_different(peer, topic):
    assert len({peer.producer(topic).name for _ in range(5)}) == 5


def test_the_same_producer_id_again_gets_the_same_answer(pulsar, peer, topic):
    first = peer.producer(topic)
    again = peer.producer(topic, producer_id=first.id)
    other = peer.producer(pulsar.topic(), producer_id=first.id)
    assert first.name == again.name == other.name


def test_a_name_that_is_taken_is_busy(pulsar, peer, topic):
    holder = pulsar.peer()
    holder.producer(topic, "n")
    text = f"Producer with name 'n' is already connected to topic '{topic}'"
    for epoch in (0, 5):
        request = peer.request(
            "producer", topic=topic, producer_id=50 + epoch, producer_name="n", epoch=epoch
        )
        holder.expect("ping")
        holder.command("pong")
        found = peer.expect_error("ProducerBusy", text)
        assert found.request_id == request


def test_a_name_that_is_taken_on_the_same_connection_is_busy(peer, topic):
    first = peer.producer(topic, "n")
    request = peer.request("producer", topic=topic, producer_id=60, producer_name="n")
    for each in iter(peer.receive, None):
        if each.kind == "ping":
            peer.command("pong")
            continue
        assert (each.kind, each.command.request_id) == ("error", request)
        assert each.command.error == pb.ProducerBusy
        break
    assert peer.producer(topic, "n", producer_id=first.id).name == "n"


def test_the_same_producer_id_while_the_first_is_not_done_is_not_ready(pulsar, peer, topic):
    """The holder of the name is asked for a sign of life meanwhile."""
    holder = pulsar.peer()
    holder.producer(topic, "n")
    fields = {"topic": topic, "producer_id": 50, "producer_name": "n"}
    first = peer.request("producer", **fields)
    holder.expect("ping")
    second = peer.request("producer", **fields)
    found = peer.expect_error("ServiceNotReady", "Producer is already present on the connection")
    assert found.request_id == second
    holder.close()
    assert peer.answer(first).kind == "producer_success"


def test_a_receipt_has_the_id_and_the_sequence(peer, topic):
    producer = peer.producer(topic)
    number = producer.send(b"x", sequence=7)
    found = peer.expect("send_receipt", sequence_id=number)
    assert not found.message_id.HasField("partition")
    assert found.HasField("highest_sequence_id")


def test_a_receipt_returns_the_highest_sequence_of_its_send(peer, topic):
    producer = peer.producer(topic)
    producer.send([b"a", b"b", b"c"], sequence=4, fields={"highest_sequence_id": 6})
    found = peer.expect("send_receipt", sequence_id=4)
    assert found.highest_sequence_id == 6


def test_receipts_come_in_the_order_of_sends(peer, topic):
    producer = peer.producer(topic)
    numbers = [producer.send() for _ in range(50)]
    assert [peer.expect("send_receipt").sequence_id for _ in numbers] == numbers


def test_without_dedup_every_sequence_is_stored(peer, topic):
    producer = peer.producer(topic)
    ids = [producer.publish(sequence=number) for number in (5, 3, 3)]
    assert len(set(ids)) == 3


def test_odd_numbers_and_names_in_a_send_are_accepted(peer, topic):
    producer = peer.producer(topic)
    for number in (0, -1, 17):
        producer.publish(b"x", fields={"num_messages": number})
    producer.publish(b"x", producer_name="somebody else")


# ---- access modes


def test_an_exclusive_producer_has_an_epoch(peer, topic):
    found = peer.producer(topic, producer_access_mode="Exclusive").success
    assert found.topic_epoch == 0


def test_a_second_exclusive_producer_is_fenced(pulsar, peer, topic):
    peer.producer(topic, "first", producer_access_mode="Exclusive")
    pulsar.peer().no_producer(
        "ProducerFenced",
        "Topic has an existing exclusive producer: first",
        topic,
        producer_access_mode="Exclusive",
    )


def test_an_exclusive_producer_beside_shared_ones_is_fenced(pulsar, peer, topic):
    peer.producer(topic)
    pulsar.peer().no_producer(
        "ProducerFenced",
        "Topic has existing shared producers",
        topic,
        producer_access_mode="Exclusive",
    )


def test_a_shared_producer_beside_an_exclusive_one_is_busy(pulsar, peer, topic):
    peer.producer(topic, "first", producer_access_mode="Exclusive")
    pulsar.peer().no_producer(
        "ProducerBusy", "Topic has an existing exclusive producer: first", topic
    )


def waiter(peer, topic, name=None):
    """PRODUCER with WaitForExclusive; its request id."""
    fields = {} if name is None else {"producer_name": name}
    return peer.request(
        "producer",
        topic=topic,
        producer_id=9,
        producer_access_mode="WaitForExclusive",
        **fields,
    )


def test_one_that_waits_is_promoted_when_the_exclusive_one_goes(pulsar, peer, topic):
    first = peer.producer(topic, producer_access_mode="Exclusive")
    second = pulsar.peer()
    request = waiter(second, topic)
    waiting = second.expect("producer_success", request_id=request)
    assert not waiting.producer_ready
    assert not waiting.HasField("topic_epoch")
    second.expect_nothing()
    first.close()
    promoted = second.expect("producer_success", request_id=request)
    assert promoted.producer_ready
    assert promoted.topic_epoch == 1


def test_a_shared_producer_where_one_waits_is_busy(pulsar, peer, topic):
    first = peer.producer(topic)
    second = pulsar.peer()
    waiter(second, topic)
    assert not second.expect("producer_success").producer_ready
    third = pulsar.peer()
    third.no_producer("ProducerBusy", "Topic has an existing exclusive producer", topic)
    first.close()
    assert second.expect("producer_success").producer_ready


def test_a_waiter_that_is_gone_is_not_promoted(pulsar, peer, topic):
    first = peer.producer(topic, producer_access_mode="Exclusive")
    gone, second = pulsar.peer(), pulsar.peer()
    waiter(gone, topic)
    assert not gone.expect("producer_success").producer_ready
    waiter(second, topic)
    assert not second.expect("producer_success").producer_ready
    gone.close()
    second.expect_nothing()
    first.close()
    promoted = second.expect("producer_success")
    assert promoted.producer_ready
    # A lost waiter costs Pulsar an epoch.
    assert promoted.topic_epoch == (2 if pulsar.is_real else 1)


def test_a_send_while_waiting_is_closed(pulsar, peer, topic):
    peer.producer(topic, producer_access_mode="Exclusive")
    second = pulsar.peer()
    waiter(second, topic, "w")
    assert not second.expect("producer_success").producer_ready
    about = pb.MessageMetadata(producer_name="w", sequence_id=0, publish_time=1)
    second.command("send", stored(about, b"x"), producer_id=9, sequence_id=0)
    second.expect_closed()


def test_fencing_removes_the_others_without_a_word(pulsar, peer, topic):
    first = peer.producer(topic, producer_access_mode="Exclusive")
    second = pulsar.peer()
    waiter(second, topic)
    assert not second.expect("producer_success").producer_ready
    third = pulsar.peer()
    found = third.producer(topic, producer_access_mode="ExclusiveWithFencing").success
    assert found.topic_epoch == 1
    second.expect_error("ProducerFenced", "Fenced out")
    peer.expect_nothing()
    first.send()
    peer.expect_closed()


def test_an_exclusive_producer_with_an_old_epoch_is_fenced(pulsar, peer, topic):
    first = peer.producer(topic, producer_access_mode="Exclusive")
    second = pulsar.peer()
    taken = second.producer(topic, producer_access_mode="ExclusiveWithFencing")
    taken.close()
    assert (first.success.topic_epoch, taken.success.topic_epoch) == (0, 1)
    pulsar.peer().no_producer(
        "ProducerFenced", None, topic, producer_access_mode="Exclusive", topic_epoch=0
    )


# ---- duplicates


@pytest.fixture
def deduplicated(pulsar):
    return pulsar.topic(namespace=pulsar.namespace(deduplication=True))


def test_an_old_sequence_gets_a_receipt_without_an_id(peer, deduplicated):
    producer = peer.producer(deduplicated, "p")
    producer.publish(sequence=5)
    assert producer.publish(sequence=5) == DUPLICATE
    assert producer.publish(sequence=3) == DUPLICATE
    assert producer.publish(sequence=6) != DUPLICATE


def test_the_last_sequence_is_told_to_a_producer_of_that_name(pulsar, peer, deduplicated):
    producer = peer.producer(deduplicated, "p")
    producer.publish(sequence=41)
    producer.close()
    again = pulsar.peer().producer(deduplicated, "p")
    assert again.success.last_sequence_id == 41
    assert again.publish(sequence=41) == DUPLICATE


def test_a_batch_that_begins_below_is_dropped_whole(pulsar, peer, deduplicated):
    producer = peer.producer(deduplicated, "p")
    producer.publish(sequence=15)
    batch = [b"a", b"b", b"c"]
    assert producer.publish(batch, sequence=14, fields={"highest_sequence_id": 16}) == DUPLICATE
    producer.publish(sequence=17)


def test_a_number_that_is_still_being_written_is_not_stored_twice(pulsar, peer, deduplicated):
    """Pulsar cannot say whether it is a duplicate, or can by then."""
    producer = peer.producer(deduplicated, "p")
    for number in (0, 1, 1, 2):
        producer.send(sequence=number)
    told = {0: [], 1: [], 2: []}
    for _ in range(4):
        found = peer.receive()
        if found.kind == "send_error":
            assert found.command.error == pb.PersistenceError
            text = "Cannot determine whether the message is a duplicate at this time"
            assert text in found.command.message
            told[found.command.sequence_id].append(None)
        else:
            target = found.command.message_id
            told[found.command.sequence_id].append((target.ledgerId, target.entryId))
    assert len([each for each in told[1] if each not in (None, DUPLICATE)]) == 1
    reader = pulsar.peer().reader(deduplicated)
    reader.flow(10)
    assert [each.metadata.sequence_id for each in reader.messages(3)] == [0, 1, 2]
    reader.peer.expect_nothing()


def test_of_repeated_chunks_the_last_is_refused(peer, deduplicated):
    producer = peer.producer(deduplicated, "p")

    def chunk(number):
        return producer.publish(
            b"x",
            sequence=1,
            fields={"is_chunk": True},
            uuid="p-1",
            num_chunks_from_msg=2,
            total_chunk_msg_size=2,
            chunk_id=number,
        )

    assert DUPLICATE not in [chunk(0), chunk(1)]
    chunk(0)
    assert chunk(1) == DUPLICATE


# ---- what is in a SEND


def test_a_bad_checksum_fails_that_message_only(peer, topic):
    producer = peer.producer(topic)
    about = pb.MessageMetadata(producer_name=producer.name, sequence_id=0, publish_time=1)
    tail = bytearray(stored(about, b"payload"))
    tail[3] ^= 0xFF
    peer.command("send", bytes(tail), producer_id=producer.id, sequence_id=0)
    found = peer.expect("send_error", producer_id=producer.id, sequence_id=0)
    assert found.error == pb.ChecksumError
    assert found.message == "Checksum failed on the broker"
    producer.publish(b"and on")


def test_a_send_without_a_checksum_is_delivered_without(peer, topic):
    sent = (producer := peer.producer(topic)).publish(b"bare", is_checked=False)
    consumer = peer.consumer(topic, "s", initialPosition="Earliest")
    consumer.flow(1)
    found = consumer.message()
    assert (found.id, found.payload, found.has_checksum) == (sent, b"bare", False)
    assert producer.name


def test_metadata_that_cannot_be_read_are_taken_and_never_delivered(pulsar, peer, topic):
    """It is taken, and never delivered."""
    producer = peer.producer(topic)
    body = struct.pack(">I", 4) + b"\xff\xff\xff\xff" + b"payload"
    peer.command("send", body, producer_id=producer.id, sequence_id=0)
    producer.receipt()
    sent = pulsar.peer().producer(topic).publish(b"good")
    consumer = pulsar.peer().consumer(topic, "s", initialPosition="Earliest")
    consumer.flow(10)
    assert consumer.message().id == sent


def test_a_send_without_its_payload_part_is_closed(peer, topic):
    producer = peer.producer(topic)
    peer.command("send", b"", producer_id=producer.id, sequence_id=0)
    peer.expect_closed()


def test_what_fits_the_frame_is_stored(peer, topic):
    """Near the limit itself Pulsar's own storage gives up, so a little less."""
    producer = peer.producer(topic)
    sent = producer.publish(b"x" * (MESSAGE_BYTES_MAX + 5000))
    consumer = peer.consumer(topic, "s", initialPosition="Earliest")
    consumer.flow(1)
    found = consumer.message()
    assert (found.id, len(found.payload)) == (sent, MESSAGE_BYTES_MAX + 5000)


def test_what_does_not_fit_the_frame_is_closed(peer, topic):
    producer = peer.producer(topic)
    whole = frame("send", b"", producer_id=producer.id, sequence_id=0)
    peer.write(struct.pack(">I", MESSAGE_BYTES_MAX + FRAME_OVERHEAD_MAX + 1) + whole[4:])
    peer.expect_closed()


# ---- ends


def test_terminating_closes_producers_and_no_new_one_comes(pulsar, peer, topic):
    producer = peer.producer(topic)
    producer.publish()
    pulsar.rest.done("POST", f"{pulsar.path(topic)}/terminate")
    peer.expect("close_producer", producer_id=producer.id, request_id=NONE)
    producer.send()
    peer.expect_nothing()
    peer.no_producer("TopicTerminatedError", "Topic was already terminated", topic)


def test_the_end_of_a_topic_is_told_when_all_is_acked(pulsar, peer, topic):
    sent = pulsar.peer().producer(topic).publish_all([b"x"] * 2)
    consumer = peer.consumer(topic, "s", initialPosition="Earliest")
    consumer.flow(10)
    consumer.messages(2)
    pulsar.rest.done("POST", f"{pulsar.path(topic)}/terminate")
    peer.expect_nothing()
    consumer.ack(*sent)
    peer.expect("reached_end_of_topic", consumer_id=consumer.id)


def test_a_subscription_with_nothing_to_come_hears_the_end_at_its_flow(pulsar, peer, topic):
    pulsar.peer().producer(topic).publish()
    pulsar.rest.done("POST", f"{pulsar.path(topic)}/terminate")
    consumer = peer.consumer(topic, "s")
    consumer.flow(1)
    peer.expect("reached_end_of_topic", consumer_id=consumer.id)


def test_a_reader_hears_the_end_only_if_it_acks(pulsar, peer, topic):
    sent = pulsar.peer().producer(topic).publish()
    pulsar.rest.done("POST", f"{pulsar.path(topic)}/terminate")
    reader = peer.reader(topic)
    reader.flow(10)
    assert reader.message().id == sent
    reader.flow(1)
    peer.expect_nothing()
    reader.ack(sent, kind="Cumulative")
    peer.expect("reached_end_of_topic", consumer_id=reader.id)


@pytest.mark.parametrize("how", ["unload", "delete"])
def test_unload_and_delete_close_all_and_a_re_create_succeeds(pulsar, peer, topic, how):
    producer = peer.producer(topic)
    producer.publish()
    other = pulsar.peer()
    consumer = other.consumer(topic, "s")
    if how == "unload":
        pulsar.rest.done("PUT", f"{pulsar.path(topic)}/unload")
    else:
        pulsar.rest.done("DELETE", f"{pulsar.path(topic)}?force=true")
    peer.expect("close_producer", producer_id=producer.id, request_id=NONE)
    consumer.expect_closed()
    producer.send()
    consumer.flow(10)
    consumer.ack((0, 0))
    peer.expect_nothing()
    other.expect_nothing()
    pulsar.look_up(topic)
    peer.producer(topic).publish()
    other.consumer(topic, "s")


def test_deleting_a_subscription_closes_its_consumers(pulsar, peer, topic):
    consumer = peer.consumer(topic, "s")
    pulsar.rest.done("DELETE", f"{pulsar.path(topic)}/subscription/s?force=true")
    consumer.expect_closed()
    consumer.flow(1)
    peer.expect_nothing()
    peer.consumer(topic, "s")


def test_an_initial_subscription_is_made_at_the_earliest(pulsar, peer, topic):
    producer = peer.producer(topic, initial_subscription_name="first")
    sent = producer.publish()
    consumer = peer.consumer(topic, "first")
    consumer.flow(1)
    assert consumer.message().id == sent
