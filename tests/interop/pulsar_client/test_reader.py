"""Readers and table views, filled by our producer and by the C++ one."""

import asyncio
import threading

import pytest

from penstock.client.pulsar import (
    Client,
    InvalidUse,
    JsonSchema,
    MessageId,
    NothingReceived,
    StateError,
    Waits,
    WouldBlock,
)

WAIT_MS = 10_000


@pytest.fixture
def filled(pulsar):
    """A topic of its own with these bodies, one entry each; their ids."""

    def fill(*bodies, **options):
        topic = pulsar.topic()
        with pulsar.client().create_producer(topic, **options) as producer:
            found = []
            for body in bodies:
                producer.send_callback(body, found.append)
            producer.flush()
        return topic, found

    return fill


def read_all(reader):
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(WAIT_MS).data)
    return found


def test_a_reader_goes_from_the_first_message_to_the_last(pulsar, filled):
    topic, _ = filled(b"a", b"b", b"c")
    with pulsar.client().create_reader(topic, MessageId.earliest) as reader:
        assert read_all(reader) == [b"a", b"b", b"c"]
        with pytest.raises(NothingReceived):
            reader.read_next(50)
        assert reader.why().reason is Waits.MESSAGES
        assert reader.topics == [topic]


def test_a_reader_goes_on_behind_an_id_or_with_it_also_inside_a_batch(pulsar, filled):
    topic, ids = filled(b"a", b"b", b"c", b"d", batching_max_publish_delay_ms=100)
    assert ids[0].entry == ids[3].entry
    client = pulsar.client()
    with client.create_reader(topic, ids[1]) as reader:
        assert read_all(reader) == [b"c", b"d"]
    with client.create_reader(topic, ids[1], is_start_inclusive=True) as reader:
        assert read_all(reader) == [b"b", b"c", b"d"]
    with client.create_reader(topic, ids[3]) as reader:
        assert not reader.has_message_available()


def test_a_reader_of_the_end_gets_what_comes_from_now_on(pulsar, filled):
    topic, _ = filled(b"old")
    client = pulsar.client()
    with client.create_reader(topic, MessageId.latest) as reader:
        assert not reader.has_message_available()
        theirs = pulsar.cpp().create_producer(topic)
        theirs.send(b"new")
        assert reader.read_next(WAIT_MS).data == b"new"


def test_an_empty_topic_has_nothing_to_read(pulsar):
    with pulsar.client().create_reader(pulsar.topic(), MessageId.earliest) as reader:
        assert not reader.has_message_available()
        (last,) = reader.last_message_ids().values()
        assert last.entry_id == -1


def test_a_reader_moves_to_an_id_and_to_a_time(pulsar, filled):
    topic, ids = filled(b"a", b"b", b"c", batching_enabled=False)
    with pulsar.client().create_reader(topic, MessageId.earliest) as reader:
        assert len(read_all(reader)) == 3
        reader.seek(ids[0])
        assert read_all(reader) == [b"b", b"c"]
        reader.seek(MessageId.earliest)
        first = reader.read_next(WAIT_MS)
        assert first.data == b"a"
        reader.seek(first.publish_time_ms - 1000)
        assert read_all(reader) == [b"a", b"b", b"c"]


def test_a_reader_whose_connection_is_cut_misses_and_repeats_nothing(pulsar, filled):
    topic, _ = filled(*(b"%d" % number for number in range(300)))
    client = pulsar.client(backoff_initial_ms=10)
    found = []
    with client.create_reader(topic, MessageId.earliest, receiver_queue_size=20) as reader:
        while len(found) < 300:
            found.append(reader.read_next(WAIT_MS).data)
            if len(found) % 60 == 0:
                pulsar.cut(client)
    assert found == [b"%d" % number for number in range(300)]


def test_partitions_are_read_all_together(pulsar):
    topic = pulsar.topic(partitions=3)
    client = pulsar.client()
    with client.create_producer(topic, batching_enabled=False) as producer:
        for number in range(9):
            producer.send(b"%d" % number)
    with client.create_reader(topic, MessageId.earliest) as reader:
        assert sorted(read_all(reader)) == [b"%d" % number for number in range(9)]


def test_an_id_of_one_partition_is_no_start_for_all_of_them(pulsar):
    topic = pulsar.topic(partitions=2)
    client = pulsar.client()
    with client.create_producer(topic, batching_enabled=False) as producer:
        sent = [producer.send(b"%d" % number) for number in range(4)]
    with pytest.raises(InvalidUse, match="read a partition by its own name"):
        client.create_reader(topic, sent[0])
    name = f"{topic}-partition-{sent[0].partition}"
    with client.create_reader(name, sent[0]) as reader:
        assert read_all(reader) == [b"2"]


def test_messages_in_chunks_are_read_whole(pulsar):
    topic = pulsar.topic()
    client = pulsar.client()
    body = bytes(range(256)) * 300
    with client.create_producer(topic, chunking_enabled=True, chunk_bytes_max=20_000) as producer:
        sent = producer.send(body)
        producer.send(b"behind")
    with client.create_reader(topic, MessageId.earliest) as reader:
        message = reader.read_next(WAIT_MS)
        assert message.data == body
        assert message.message_id == sent
        assert message.message_id.first_chunk == sent.first_chunk
        assert read_all(reader) == [b"behind"]


def test_a_reader_is_awaited_as_well(pulsar, filled):
    topic, _ = filled(b"a", b"b")

    async def main():
        async with Client(pulsar.url) as client:
            reader = await client.create_reader_async(topic, MessageId.earliest)
            found = []
            while await reader.has_message_available_async():
                found.append((await reader.read_next_async(WAIT_MS)).data)
            await reader.close_async()
            return found

    assert asyncio.run(main()) == [b"a", b"b"]


def test_a_reader_in_a_loop_ends_when_it_is_closed(pulsar, filled):
    topic, _ = filled(b"a", b"b")
    reader = pulsar.client().create_reader(topic, MessageId.earliest)
    found = []

    def read():
        found.extend(message.data for message in reader)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    pulsar.eventually(lambda: len(found) == 2)
    reader.close()
    thread.join(WAIT_MS / 1000)
    assert found == [b"a", b"b"]
    with pytest.raises(StateError):
        reader.read_next()


def test_a_start_that_is_no_id_is_told_what_is(pulsar):
    with pytest.raises(InvalidUse, match=r"use MessageId\.earliest"):
        pulsar.client().create_reader(pulsar.topic(), "earliest")


# ---- table views --------------------------------------------------------------------------------


def test_a_table_view_has_the_newest_value_of_each_key_and_follows(pulsar):
    topic = pulsar.topic()
    client = pulsar.client()
    with client.create_producer(topic, schema=JsonSchema()) as producer:
        for number in range(20):
            producer.send_callback({"n": number}, key=f"k{number % 5}")
        producer.send_callback({"n": -1})
        producer.send_callback(None, key="k3")
        producer.flush()
        with client.create_table_view(topic, schema=JsonSchema()) as view:
            assert dict(view) == {
                "k0": {"n": 15}, "k1": {"n": 16}, "k2": {"n": 17}, "k4": {"n": 19},
            }  # fmt: skip
            assert "k3" not in view
            assert len(view) == 4
            heard = []
            view.for_each_and_listen(lambda key, value: heard.append((key, value)))
            assert len(heard) == 4
            producer.send({"n": 99}, key="k0")
            producer.send(None, key="k1")
            pulsar.eventually(lambda: "k1" not in view)
            assert view["k0"] == {"n": 99}
            assert heard[4:] == [("k0", {"n": 99}), ("k1", None)]
            assert view.snapshot() == dict(view)


def test_a_table_view_of_partitions_filled_by_the_cpp_client(pulsar):
    topic = pulsar.topic(partitions=3)
    theirs = pulsar.cpp().create_producer(topic)
    for number in range(30):
        theirs.send(b"%d" % number, partition_key=f"k{number % 10}")
    with pulsar.client().create_table_view(topic) as view:
        assert dict(view) == {f"k{n}": b"%d" % (20 + n) for n in range(10)}
        assert str(view).endswith("10 keys")


def test_a_table_view_of_nothing_is_empty_at_once(pulsar):
    with pulsar.client().create_table_view(pulsar.topic()) as view:
        assert dict(view) == {}


def test_more_keys_than_a_table_view_may_hold_are_told(pulsar):
    topic = pulsar.topic()
    client = pulsar.client()
    with client.create_producer(topic) as producer:
        for number in range(5):
            producer.send_callback(b"x", key=f"k{number}")
    with pytest.raises(WouldBlock, match="keys_max=3 keys; raise keys_max"):
        client.create_table_view(topic, keys_max=3)
