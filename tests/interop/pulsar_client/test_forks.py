"""The child of a fork: what its parent made is not its own, and the parent must not notice it."""

import os
import traceback

import pytest

from penstock.client.pulsar import InitialPosition, MessageId, StateError

WAIT_MS = 10_000
FORKED = "made before the process forked; make a new one"


def in_child(play):
    """Run it in a child; what went wrong there."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # No exception may leave the child: it would run the tests a second time.
        try:
            play()
            told = ""
        except BaseException:
            told = traceback.format_exc()
        os.write(writer, told.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert told == "", told


def test_what_was_made_before_a_fork_says_so_in_the_child_and_works_on_in_the_parent(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    reader = client.create_reader(topic, MessageId.earliest)
    table = client.create_table_view(topic)
    uses = (
        lambda: producer.send(b"x"),
        lambda: producer.send_callback(b"x"),
        producer.flush,
        consumer.receive,
        consumer.receive_batch,
        lambda: consumer.acknowledge(MessageId(1, 1)),
        lambda: consumer.negative_acknowledge(MessageId(1, 1)),
        lambda: consumer.seek(MessageId.earliest),
        consumer.pause,
        reader.read_next,
        reader.has_message_available,
        lambda: client.subscribe(topic, "other"),
        lambda: client.create_producer(topic),
    )

    def play():
        for use in uses:
            with pytest.raises(StateError, match=FORKED):
                use()
        # A block that the child leaves must not close what is its parent's.
        for each in (table, reader, consumer, producer, client):
            each.close()

    in_child(play)
    producer.send(b"from the parent", key="k")
    assert consumer.receive(WAIT_MS).data == reader.read_next(WAIT_MS).data == b"from the parent"
    pulsar.eventually(lambda: table.get("k") == b"from the parent", "the table follows")
    assert consumer.statistics().reconnects == 0


def test_a_child_has_a_client_of_its_own(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    with client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST) as consumer:

        def play():
            with pulsar.client() as mine, mine.create_producer(topic) as producer:
                producer.send(b"from the child")

        in_child(play)
        assert consumer.receive(WAIT_MS).data == b"from the child"
