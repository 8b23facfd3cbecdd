"""Our producer, read by Pulsar's C++ client; and both of them side by side."""

import asyncio
import threading
import time
from dataclasses import dataclass

import pytest

from penstock.client.pulsar import (
    AccessMode,
    Batching,
    Client,
    Compression,
    Hashing,
    InvalidUse,
    JsonSchema,
    Message,
    MessageId,
    Refused,
    Routing,
    SchemaMismatch,
    StateError,
    StringSchema,
    TimedOut,
    Unreachable,
    Waits,
)

pulsar_client = pytest.importorskip("pulsar")
WAIT_MS = 10_000
CUTS = 20


class Reader:
    """A C++ consumer from the first message on."""

    def __init__(self, pulsar, topic, **options):
        self.consumer = pulsar.cpp().subscribe(
            topic,
            "reader",
            initial_position=pulsar_client.InitialPosition.Earliest,
            **options,
        )

    def take(self, count=1):
        found = []
        for _ in range(count):
            message = self.consumer.receive(WAIT_MS)
            self.consumer.acknowledge(message)
            found.append(message)
        return found

    def one(self):
        return self.take()[0]


def bodies(messages):
    return [each.data() for each in messages]


def test_everything_said_of_a_message_arrives(pulsar):
    topic = pulsar.topic()
    reader = Reader(pulsar, topic)
    with pulsar.client().create_producer(topic, producer_name=pulsar.name("me")) as producer:
        sent = producer.send(
            b"body",
            key="k",
            ordering_key=b"o",
            properties={"a": "b", "ü": "ö"},
            event_time_ms=1234,
            sequence_id=77,
        )
        name = producer.name
        assert producer.last_sequence_id == 77
    message = reader.one()
    assert message.data() == b"body"
    assert (message.partition_key(), message.ordering_key()) == ("k", "o")
    assert message.properties() == {"a": "b", "ü": "ö"}
    assert message.event_timestamp() == 1234
    assert message.producer_name() == name
    assert MessageId.from_bytes(message.message_id().serialize()) == sent


@pytest.mark.parametrize("compression", list(Compression))
def test_batches_alone_and_compressed_are_read(pulsar, compression):
    topic = pulsar.topic()
    reader = Reader(pulsar, topic)
    with pulsar.client().create_producer(
        topic, compression=compression, batching_max_publish_delay_ms=50
    ) as producer:
        ids = []
        for number in range(10):
            producer.send_callback(b"number %d " % number * 20, ids.append, key=f"k{number}")
        producer.flush()
        producer.send(b"alone")
    messages = reader.take(11)
    assert bodies(messages) == [*(b"number %d " % n * 20 for n in range(10)), b"alone"]
    assert [each.partition_key() for each in messages[:10]] == [f"k{n}" for n in range(10)]
    assert len({each.entry for each in ids}) < 10
    assert [MessageId.from_bytes(each.message_id().serialize()) for each in messages[:10]] == ids


def test_a_message_in_chunks_is_put_together_by_others(pulsar):
    topic = pulsar.topic()
    reader = Reader(pulsar, topic)
    body = bytes(range(256)) * 200
    with pulsar.client().create_producer(
        topic, chunking_enabled=True, chunk_bytes_max=20_000
    ) as producer:
        producer.send(b"before")
        sent = producer.send(body)
        producer.send(b"behind")
        assert producer.statistics().chunks == 3
    assert sent.first_chunk < sent
    assert bodies(reader.take(3)) == [b"before", body, b"behind"]


def test_a_message_too_large_names_the_limit_and_what_to_do(pulsar):
    with pulsar.client().create_producer(pulsar.topic()) as producer:
        with pytest.raises(
            InvalidUse, match=r"larger than the broker takes.*chunking_enabled=True"
        ):
            producer.send(bytes(6 << 20))
        assert producer.send(b"small")


def test_a_message_without_a_value_is_one_for_others_too(pulsar):
    topic = pulsar.topic()
    reader = Reader(pulsar, topic)
    with pulsar.client().create_producer(topic) as producer:
        producer.send(None, key="gone")
        producer.send(Message(b"", key="empty"))
    gone, empty = reader.take(2)
    assert (gone.partition_key(), gone.data()) == ("gone", b"")
    assert (empty.partition_key(), empty.data()) == ("empty", b"")


def test_later_is_later_for_shared_consumers(pulsar):
    topic = pulsar.topic()
    reader = Reader(pulsar, topic, consumer_type=pulsar_client.ConsumerType.Shared)
    with pulsar.client().create_producer(topic) as producer:
        began = time.monotonic()
        producer.send(b"later", deliver_after_ms=1800)
        producer.send(b"now")
    assert bodies(reader.take(2)) == [b"now", b"later"]
    # A broker may be a tick early (docs/pulsar.md).
    assert time.monotonic() - began > 0.5


def test_texts_and_json_are_read_with_the_schemas_of_others(pulsar):
    @dataclass
    class Order:
        number: int
        item: str

    class TheirOrder(pulsar_client.schema.Record):
        number = pulsar_client.schema.Long(required=True)
        item = pulsar_client.schema.String(required=True)

    client = pulsar.client()
    texts, orders = pulsar.topic(), pulsar.topic()
    with client.create_producer(texts, schema=StringSchema()) as producer:
        reader = Reader(pulsar, texts, schema=pulsar_client.schema.StringSchema())
        producer.send("Grüße")
        assert reader.one().value() == "Grüße"
    with client.create_producer(orders, schema=JsonSchema(Order)) as producer:
        producer.send(Order(4711, "pen"))
        with pytest.raises(SchemaMismatch, match="takes a Order, not dict"):
            producer.send({"number": 1})
        reader = Reader(pulsar, orders, schema=pulsar_client.schema.JsonSchema(TheirOrder))
        value = reader.one().value()
        assert (value.number, value.item) == (4711, "pen")


def test_a_schema_that_does_not_fit_the_topics_is_refused_with_what_to_do(pulsar):
    @dataclass
    class Order:
        number: int

    topic = pulsar.topic()
    client = pulsar.client()
    client.create_producer(topic, schema=JsonSchema(Order))
    with pytest.raises(Refused, match=r"IncompatibleSchema.*compatible with the topic's"):
        client.create_producer(topic, schema=StringSchema())


# ---- partitions ---------------------------------------------------------------------------------


def test_a_key_goes_where_the_cpp_client_puts_it(pulsar):
    topic = pulsar.topic(partitions=4)
    keys = [f"key-{number}" for number in range(30)]
    with pulsar.client().create_producer(topic, hashing=Hashing.BOOST) as producer:
        assert producer.partitions == 4
        ours = {key: producer.send(b"ours", key=key).partition for key in keys}
    theirs = pulsar.cpp().create_producer(topic)
    found = {key: theirs.send(b"theirs", partition_key=key).partition() for key in keys}
    assert ours == found
    assert len(set(ours.values())) == 4


def test_without_a_key_partitions_take_turns_or_one_has_all_or_a_function_decides(pulsar):
    topic = pulsar.topic(partitions=3)
    client = pulsar.client()
    with client.create_producer(topic, batching_enabled=False) as producer:
        turns = [producer.send(b"x").partition for _ in range(6)]
    assert turns[:3] == turns[3:]
    assert sorted(turns[:3]) == [0, 1, 2]
    with client.create_producer(topic, routing=Routing.SINGLE) as producer:
        assert len({producer.send(b"x").partition for _ in range(4)}) == 1
    with client.create_producer(
        topic, routing=lambda message, count: len(message.value) % count
    ) as producer:
        assert [producer.send(b"x" * n).partition for n in range(4)] == [0, 1, 2, 0]


def test_batches_by_key_hold_one_key_each(pulsar):
    topic = pulsar.topic()
    with pulsar.client().create_producer(
        topic, batching_type=Batching.KEY, batching_max_publish_delay_ms=200
    ) as producer:
        ids = {}
        for number in range(12):
            key = f"k{number % 3}"
            producer.send_callback(b"x", ids.setdefault(key, []).append, key=key)
        producer.flush()
        pulsar.eventually(lambda: sum(map(len, ids.values())) == 12)
    entries = {key: {each.entry for each in found} for key, found in ids.items()}
    assert sum(map(len, entries.values())) == len(set.union(*entries.values()))


def test_new_partitions_are_used_when_they_are_there(pulsar):
    topic = pulsar.topic(partitions=1)
    with pulsar.client().create_producer(
        topic, batching_enabled=False, partitions_check_interval_ms=50
    ) as producer:
        assert producer.partitions == 1
        pulsar.rest.done("POST", f"{topic.replace('://', '/')}/partitions", 2)
        pulsar.eventually(lambda: producer.partitions == 2)
        assert {producer.send(b"x").partition for _ in range(4)} == {0, 1}


# ---- names and modes ----------------------------------------------------------------------------


def test_a_name_that_another_producer_has_is_refused_with_what_to_do(pulsar):
    topic, name = pulsar.topic(), pulsar.name("me")
    pulsar.cpp().create_producer(topic, producer_name=name)
    with pytest.raises(Refused, match=r"ProducerBusy.*use another name"):
        pulsar.client().create_producer(topic, producer_name=name)


def test_the_only_producer_keeps_others_away_and_the_next_in_line_follows(pulsar):
    topic = pulsar.topic()
    client = pulsar.client()
    first = client.create_producer(topic, access_mode=AccessMode.EXCLUSIVE)
    with pytest.raises(Refused, match="ProducerFenced"):
        client.create_producer(topic, access_mode=AccessMode.EXCLUSIVE)
    with pytest.raises(Refused, match="ProducerBusy"):
        client.create_producer(topic)
    found = []

    def wait_in_line():
        found.append(client.create_producer(topic, access_mode=AccessMode.WAIT_FOR_EXCLUSIVE))

    thread = threading.Thread(target=wait_in_line, daemon=True)
    thread.start()
    first.send(b"mine")
    assert not found
    first.close()
    thread.join(WAIT_MS / 1000)
    found[0].send(b"now mine")


def test_who_fences_takes_over_and_the_other_hears_of_it(pulsar):
    topic = pulsar.topic()
    old = pulsar.client().create_producer(topic, access_mode=AccessMode.EXCLUSIVE)
    new = pulsar.client().create_producer(topic, access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    with pytest.raises(Refused, match=r"ProducerFenced|ProducerBusy"):
        old.send(b"too late")
    assert new.send(b"mine")
    with pytest.raises((Refused, StateError)):
        old.send(b"still too late")


def test_a_subscription_is_made_with_the_topic(pulsar):
    topic = pulsar.topic()
    with pulsar.client().create_producer(topic, initial_subscription_name="reader") as producer:
        producer.send(b"before anybody came")
    assert bodies(Reader(pulsar, topic).take()) == [b"before anybody came"]


# ---- cut connections ----------------------------------------------------------------------------


def test_20_cut_connections_with_dedup_lose_and_double_nothing(pulsar):
    namespace = pulsar.namespace(deduplication=True)
    topic = pulsar.topic(namespace=namespace)
    reader = Reader(pulsar, topic)
    client = pulsar.client(backoff_initial_ms=10)
    outcomes, found = [], []
    with client.create_producer(topic, producer_name=pulsar.name("me")) as producer:
        count = 0
        for cut in range(CUTS):
            pulsar.comes_back(producer, cut)
            is_stored = cut % 2
            if is_stored:
                producer.flush()
                pulsar.deafen(client)
            for _ in range(100):
                producer.send_callback(b"%d" % count, outcomes.append)
                count += 1
            if is_stored:
                # The broker has them, and nobody hears of it.
                found += reader.take(count - len(found))
            pulsar.cut(client)
        producer.flush()
        pulsar.comes_back(producer, CUTS)
        statistics = producer.statistics()
    assert len(outcomes) == count
    assert all(isinstance(each, MessageId) for each in outcomes)
    assert statistics.stored == count
    assert statistics.duplicates >= CUTS // 2 * 100
    found += reader.take(count - len(found))
    assert bodies(found) == [b"%d" % number for number in range(count)]
    with pytest.raises(pulsar_client.Timeout):
        reader.consumer.receive(200)


def test_20_cut_connections_without_dedup_lose_nothing_and_keep_the_order(pulsar):
    topic = pulsar.topic()
    reader = Reader(pulsar, topic)
    client = pulsar.client(backoff_initial_ms=10)
    count = 0
    with client.create_producer(topic, batching_enabled=False) as producer:
        for cut in range(CUTS):
            pulsar.comes_back(producer, cut)
            for _ in range(20):
                producer.send_callback(b"%d" % count)
                count += 1
            pulsar.cut(client)
        producer.flush()
        pulsar.comes_back(producer, CUTS)
        assert producer.statistics().failed == 0
    first_seen = []
    while len(first_seen) < count:
        body = reader.one().data()
        if body not in first_seen:
            first_seen.append(body)
    assert first_seen == [b"%d" % number for number in range(count)]


def test_a_program_that_comes_back_under_its_name_goes_on_counting(pulsar):
    namespace = pulsar.namespace(deduplication=True)
    topic, name = pulsar.topic(namespace=namespace), pulsar.name("me")
    reader = Reader(pulsar, topic)
    client = pulsar.client()
    with client.create_producer(topic, producer_name=name) as producer:
        for number in range(5):
            producer.send_callback(b"%d" % number)
        producer.flush()
        last = producer.last_sequence_id
    with client.create_producer(topic, producer_name=name) as producer:
        assert producer.last_sequence_id == last
        # What it is not sure of it sends again, under the number it had.
        again = producer.send(b"again", sequence_id=last)
        assert again == MessageId.earliest
        producer.send(b"5")
        assert producer.last_sequence_id == last + 1
    assert bodies(reader.take(6)) == [b"%d" % number for number in range(6)]


# ---- asyncio, and the end -----------------------------------------------------------------------


def test_awaited_sends_go_side_by_side_within_the_bound(pulsar):
    async def main():
        async with Client(pulsar.url) as client:
            producer = await client.create_producer_async(pulsar.topic(), max_pending_messages=50)
            async with producer:
                sends = [producer.send_async(b"%d" % number) for number in range(500)]
                ids = await asyncio.gather(*sends)
                await producer.flush_async()
                return ids

    ids = asyncio.run(main())
    assert sorted(ids) == ids
    assert len(set(ids)) == 500


def test_a_closed_producer_says_so(pulsar):
    client = pulsar.client()
    producer = client.create_producer(pulsar.topic())
    producer.send_callback(b"x")
    client.close()
    assert producer.statistics().stored == 1
    with pytest.raises(StateError, match="closed; make a new one"):
        producer.send(b"x")
    assert producer.why().reason is Waits.CLOSED
    producer.close()


# ---- bad input ----------------------------------------------------------------------------------


def test_an_unknown_tenant_is_told_with_what_to_do(pulsar):
    with pytest.raises(Refused, match=r"TopicNotFound.*create the topic \(and its namespace\)"):
        pulsar.client().create_producer("persistent://nobody/here/t")


@pytest.mark.parametrize("name", ["", " ", "a b", "persistent://x", "per://public/default/t"])
def test_a_name_that_is_none_is_refused_before_anything_is_sent(pulsar, name):
    with pytest.raises(InvalidUse, match="use "):
        pulsar.client().create_producer(name)


def test_an_unknown_option_suggests_the_nearest(pulsar):
    with pytest.raises(TypeError, match="did you mean 'send_timeout_ms'"):
        pulsar.client().create_producer("t", send_time_out_ms=1)
    with pytest.raises(ValueError, match="at least 1"):
        pulsar.client().create_producer("t", max_pending_messages=0)


def test_a_server_that_speaks_another_protocol_is_named(pulsar):
    where = pulsar.rest.url.removeprefix("http://")
    client = Client(f"pulsar://{where}", operation_timeout_ms=500, connection_timeout_ms=500)
    told = rf"{where}.*(it speaks HTTP|before it said CONNECTED).*check host and port"
    with client, pytest.raises((Unreachable, TimedOut), match=told):
        client.create_producer("t")
