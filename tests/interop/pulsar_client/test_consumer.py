"""Our consumer against a running broker: every type, acks, redelivery, letters, seek."""

import asyncio
import itertools
import json
import re
import threading

import pytest

from penstock.client.pulsar import (
    Batching,
    Client,
    DeadLetterPolicy,
    InitialPosition,
    JsonSchema,
    MessageId,
    NothingReceived,
    Refused,
    StringSchema,
    SubscriptionType,
    Waits,
)

WAIT_MS = 10_000
QUIET_MS = 150
EARLIEST = {"initial_position": InitialPosition.EARLIEST}
SHARED = {"subscription_type": SubscriptionType.SHARED}
FAILOVER = {"subscription_type": SubscriptionType.FAILOVER}
KEY_SHARED = {"subscription_type": SubscriptionType.KEY_SHARED}


def bodies(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def fill(client, topic, payloads, **options):
    """Stored when it returns."""
    with client.create_producer(topic, **options) as producer:
        found = []
        for each in payloads:
            producer.send_callback(each, found.append)
        producer.flush()
    return found


def take(consumer, count, *, is_acked=True):
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        found.append(message.data)
        if is_acked:
            consumer.acknowledge(message)
    return found


def is_quiet(consumer):
    with pytest.raises(NothingReceived):
        consumer.receive(QUIET_MS)


def test_messages_come_in_order_and_acked_ones_do_not_come_again(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    with client.subscribe(topic, "s") as consumer:
        fill(client, topic, bodies(300), batching_enabled=False)
        assert take(consumer, 200) == bodies(200)
    with client.subscribe(topic, "s", has_ack_receipts=True) as consumer:
        assert take(consumer, 100) == bodies(100, 200)
        assert consumer.statistics().acked == 100
    with client.subscribe(topic, "s") as consumer:
        is_quiet(consumer)
        assert consumer.why().reason is Waits.MESSAGES


def test_a_second_exclusive_consumer_is_refused_with_what_to_do(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    with client.subscribe(topic, "s"), pytest.raises(Refused, match="close the other consumer"):
        client.subscribe(topic, "s")


def test_a_namespace_that_is_not_there_is_refused_with_what_to_do(pulsar):
    with pytest.raises(Refused, match="namespace"):
        pulsar.client().subscribe("nobody/nothing/t", "s")


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_small_queues_receive_everything(pulsar, size):
    client, topic = pulsar.client(), pulsar.topic()
    fill(client, topic, bodies(100))
    with client.subscribe(topic, "s", receiver_queue_size=size, **EARLIEST) as consumer:
        assert take(consumer, 100) == bodies(100)


def test_a_queue_of_0_receives_everything_also_from_batches(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    fill(client, topic, bodies(5), batching_enabled=False)
    fill(client, topic, bodies(7, 5), batching_max_publish_delay_ms=50)
    fill(client, topic, bodies(3, 12), batching_enabled=False)
    with client.subscribe(topic, "s", receiver_queue_size=0, **EARLIEST) as consumer:
        assert take(consumer, 15) == bodies(15)


def test_shared_consumers_get_every_message_once(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    options = {"receiver_queue_size": 10, **SHARED}
    with (
        client.subscribe(topic, "s", **options) as one,
        client.subscribe(topic, "s", **options) as two,
    ):
        fill(client, topic, bodies(200), batching_enabled=False)
        found = [[], []]

        def run(consumer, mine):
            try:
                while True:
                    message = consumer.receive(300)
                    mine.append(message.data)
                    consumer.acknowledge(message)
            except NothingReceived:
                pass

        threads = [
            threading.Thread(target=run, args=each) for each in zip((one, two), found, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found[0] + found[1], key=int) == bodies(200)
    assert all(found)


def test_failover_has_one_active_consumer_and_tells_every_change(pulsar):
    client, topic, told = pulsar.client(), pulsar.topic(), []

    def listener(consumer, topic, is_active):
        told.append((consumer.name, is_active))

    options = {"active_listener": listener, **FAILOVER}
    one = client.subscribe(topic, "s", consumer_name="a", priority_level=0, **options)
    two = client.subscribe(topic, "s", consumer_name="b", priority_level=1, **options)
    pulsar.eventually(lambda: ("a", True) in told and ("b", False) in told, "both know")
    assert two.why().reason is Waits.ACTIVE
    fill(client, topic, bodies(10))
    assert take(one, 10) == bodies(10)
    one.close()
    pulsar.eventually(lambda: ("b", True) in told, "b is active")
    fill(client, topic, bodies(10, 10))
    assert take(two, 10) == bodies(10, 10)


def test_key_shared_keeps_a_key_in_one_hand_and_in_order(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    one = client.subscribe(topic, "s", **KEY_SHARED)
    two = client.subscribe(topic, "s", **KEY_SHARED)
    with client.create_producer(topic, batching_type=Batching.KEY) as producer:
        for number in range(200):
            producer.send_callback(b"%d" % number, lambda _: None, key=f"k{number % 20}")
        producer.flush()
    hands, seen = {}, {}
    for name, consumer in (("one", one), ("two", two)):
        while True:
            try:
                message = consumer.receive(300)
            except NothingReceived:
                break
            hands.setdefault(message.key, set()).add(name)
            seen.setdefault(message.key, []).append(int(message.data))
            consumer.acknowledge(message)
    assert sum(map(len, seen.values())) == 200
    assert all(len(each) == 1 for each in hands.values())
    assert set.union(*hands.values()) == {"one", "two"}
    assert all(each == sorted(each) for each in seen.values())


def test_sticky_ranges_decide_who_gets_a_key(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    low = client.subscribe(topic, "s", sticky_ranges=[(0, 32_767)], **KEY_SHARED)
    high = client.subscribe(topic, "s", sticky_ranges=[(32_768, 65_535)], **KEY_SHARED)
    with pytest.raises(Refused, match="ranges"):
        client.subscribe(topic, "s", sticky_ranges=[(0, 5)], **KEY_SHARED)
    with client.create_producer(topic, batching_enabled=False) as producer:
        for number in range(40):
            producer.send(b"x", key=f"k{number}")
    counts = [0, 0]
    for at, consumer in enumerate((low, high)):
        while len(found := consumer.receive_batch(timeout_ms=300)):
            counts[at] += len(found)
    assert sum(counts) == 40
    assert min(counts) > 5


def test_partitions_are_received_as_one_topic(pulsar):
    client, topic = pulsar.client(), pulsar.topic(partitions=3)
    with client.subscribe(topic, "s") as consumer:
        assert len(consumer.topics) == 3
        with client.create_producer(topic) as producer:
            for number in range(60):
                producer.send_callback(b"%d" % number, lambda _: None, key=str(number))
            producer.flush()
        messages = [consumer.receive(WAIT_MS) for _ in range(60)]
        assert {each.data for each in messages} == set(bodies(60))
        assert {each.message_id.partition for each in messages} == {0, 1, 2}
        consumer.acknowledge(messages)
        consumer.flush_acks()
        assert set(consumer.last_message_ids()) == set(consumer.topics)
    with client.subscribe(topic, "s") as consumer:
        is_quiet(consumer)


def test_several_topics_and_a_pattern_with_one_that_comes_later(pulsar):
    client, stem = pulsar.client(), pulsar.name("many")
    names = [f"{stem}-{number}" for number in range(3)]
    with client.subscribe(names[:2], "s") as consumer:
        for name in names[:2]:
            fill(client, name, [name.encode()])
        assert set(take(consumer, 2)) == {each.encode() for each in names[:2]}
    pattern = re.compile(f"public/default/{re.escape(stem)}-.*")
    with client.subscribe(pattern, "p", pattern_refresh_ms=50, **EARLIEST) as consumer:
        assert len(consumer.topics) == 2
        assert len(take(consumer, 2)) == 2
        fill(client, names[2], [b"late"])
        assert take(consumer, 1) == [b"late"]


def test_a_topic_that_is_deleted_under_a_pattern_stays_deleted(pulsar):
    client, stem = pulsar.client(), pulsar.name("many")
    gone, kept = (f"persistent://public/default/{stem}-{number}" for number in range(2))
    for name in (gone, kept):
        fill(client, name, [name.encode()])
    pattern = re.compile(f"public/default/{re.escape(stem)}-.*")
    with client.subscribe(pattern, "p", pattern_refresh_ms=50, **EARLIEST) as consumer:
        assert set(take(consumer, 2)) == {gone.encode(), kept.encode()}
        consumer.flush_acks()
        pulsar.rest.done("DELETE", f"{gone.replace('://', '/')}?force=true")
        pulsar.eventually(lambda: consumer.topics == [kept], "it has left")
        fill(client, kept, [b"more"])
        assert take(consumer, 1) == [b"more"]
    assert gone not in json.loads(pulsar.rest.get("persistent/public/default").text)


def test_values_of_schemas(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    with client.subscribe(topic, "s", schema=StringSchema()) as consumer:
        with client.create_producer(topic, schema=StringSchema()) as producer:
            producer.send("grüße")
        assert consumer.receive(WAIT_MS).value == "grüße"
    topic = pulsar.topic()
    with client.subscribe(topic, "s", schema=JsonSchema()) as consumer:
        fill(client, topic, [b'{"a": [1, null]}'])
        assert consumer.receive(WAIT_MS).value == {"a": [1, None]}


def test_a_message_in_chunks_arrives_whole_and_is_acked_whole(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    body = bytes(range(256)) * 1_000
    with client.subscribe(topic, "s", has_ack_receipts=True) as consumer:
        with client.create_producer(
            topic, batching_enabled=False, chunking_enabled=True, chunk_bytes_max=50_000
        ) as producer:
            producer.send(body)
        message = consumer.receive(WAIT_MS)
        assert message.data == body
        assert message.message_id.first_chunk is not None
        consumer.acknowledge(message)
    with client.subscribe(topic, "s") as consumer:
        is_quiet(consumer)


# ---- acks and redelivery ------------------------------------------------------------------------


def test_a_cumulative_ack_is_for_all_before(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    fill(client, topic, bodies(20), batching_enabled=False)
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        messages = [consumer.receive(WAIT_MS) for _ in range(15)]
        consumer.acknowledge_cumulative(messages[9])
    with client.subscribe(topic, "s") as consumer:
        assert take(consumer, 10) == bodies(10, 10)


def test_single_messages_of_a_batch_are_acked_at_the_broker(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    ids = fill(client, topic, bodies(10), batching_max_publish_delay_ms=100)
    assert ids[0].entry == ids[9].entry
    options = {"has_batch_index_acks": True, "has_ack_receipts": True, **SHARED, **EARLIEST}
    with client.subscribe(topic, "s", **options) as consumer:
        messages = [consumer.receive(WAIT_MS) for _ in range(10)]
        consumer.acknowledge(messages[::2])
    with client.subscribe(topic, "s", **options) as consumer:
        # Without it acks of pieces are not kept, and the batch comes again whole.
        wanted = bodies(10)[1::2] if pulsar.keeps_batch_index_acks else bodies(10)
        assert take(consumer, len(wanted)) == wanted
        is_quiet(consumer)


def test_a_negative_ack_brings_a_message_again_with_a_higher_count(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    with client.subscribe(topic, "s", negative_ack_delay_ms=50, **SHARED) as consumer:
        fill(client, topic, bodies(3), batching_enabled=False)
        first = consumer.receive(WAIT_MS)
        consumer.negative_acknowledge(first)
        assert take(consumer, 2) == [b"1", b"2"]
        again = consumer.receive(WAIT_MS)
        assert (again.data, again.redelivery_count) == (b"0", 1)
        consumer.acknowledge(again)
        is_quiet(consumer)


def test_what_is_not_acked_in_time_comes_again(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    options = {"ack_timeout_ms": 300, "ack_timeout_tick_ms": 50, **SHARED}
    with client.subscribe(topic, "s", **options) as consumer:
        fill(client, topic, bodies(2), batching_enabled=False)
        consumer.acknowledge(consumer.receive(WAIT_MS))
        assert consumer.receive(WAIT_MS).data == b"1"
        again = consumer.receive(WAIT_MS)
        assert (again.data, again.redelivery_count) == (b"1", 1)
        consumer.acknowledge(again)


def test_redeliver_brings_all_that_is_not_acked(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    with client.subscribe(topic, "s") as consumer:
        fill(client, topic, bodies(20), batching_enabled=False)
        take(consumer, 5)
        take(consumer, 5, is_acked=False)
        consumer.redeliver_unacknowledged()
        assert take(consumer, 15) == bodies(15, 5)


def test_dead_letters_go_to_their_topic(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    policy = DeadLetterPolicy(redeliveries_max=2, initial_subscription="watch")
    options = {"dead_letter_policy": policy, "negative_ack_delay_ms": 20, **SHARED}
    with client.subscribe(topic, "s", **options) as consumer:
        with client.create_producer(topic) as producer:
            producer.send(b"bad", key="k", properties={"a": "b"})
        counts = []
        for _ in range(3):
            message = consumer.receive(WAIT_MS)
            counts.append(message.redelivery_count)
            consumer.negative_acknowledge(message)
        assert counts == [0, 1, 2]
        pulsar.eventually(lambda: consumer.statistics().dead_letters == 1, "buried")
        is_quiet(consumer)
    with client.subscribe(f"{topic}-s-DLQ", "watch") as dead:
        letter = dead.receive(WAIT_MS)
        assert (letter.data, letter.key) == (b"bad", "k")
        assert letter.properties["a"] == "b"
        assert letter.properties["REAL_TOPIC"] == topic


def test_retry_letters_come_back_and_end_as_dead_letters(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    policy = DeadLetterPolicy(redeliveries_max=1)
    options = {"dead_letter_policy": policy, "is_retry_enabled": True, **SHARED}
    with (
        client.subscribe(f"{topic}-s-DLQ", "watch") as dead,
        client.subscribe(topic, "s", **options) as consumer,
    ):
        fill(client, topic, [b"x"])
        first = consumer.receive(WAIT_MS)
        consumer.reconsume_later(first, 10)
        again = consumer.receive(WAIT_MS)
        assert again.topic == f"{topic}-s-RETRY"
        assert again.properties["RECONSUMETIMES"] == "1"
        consumer.reconsume_later(again, 10)
        assert dead.receive(WAIT_MS).data == b"x"


# ---- moving -------------------------------------------------------------------------------------


def test_seek_by_id_and_by_time(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    ids = fill(client, topic, bodies(50), batching_enabled=False)
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        messages = [consumer.receive(WAIT_MS) for _ in range(50)]
        consumer.seek(ids[19])
        assert take(consumer, 30, is_acked=False) == bodies(30, 20)
        consumer.seek(MessageId.earliest)
        assert take(consumer, 50) == bodies(50)
        consumer.seek(messages[40].publish_time_ms)
        first = consumer.receive(WAIT_MS)
        assert first.publish_time_ms >= messages[40].publish_time_ms
        consumer.seek(MessageId.latest)
        is_quiet(consumer)
        assert consumer.last_message_id() == ids[-1]


def test_seek_inside_a_batch(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    ids = fill(client, topic, bodies(10), batching_max_publish_delay_ms=100)
    assert ids[0].entry == ids[9].entry
    with client.subscribe(topic, "s", is_start_inclusive=True, **EARLIEST) as consumer:
        take(consumer, 10, is_acked=False)
        consumer.seek(ids[4])
        assert take(consumer, 6) == bodies(6, 4)


def test_one_that_is_not_durable_starts_at_an_id_and_leaves_nothing_behind(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    ids = fill(client, topic, bodies(20), batching_enabled=False)
    options = {"is_durable": False, "start_message_id": ids[9]}
    with client.subscribe(topic, "s", **options) as consumer:
        assert take(consumer, 5) == bodies(5, 10)
        pulsar.cut(client)
        assert take(consumer, 5) == bodies(5, 15)
    with client.subscribe(topic, "s") as consumer:
        is_quiet(consumer)


def test_unsubscribe_deletes_the_subscription(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    consumer = client.subscribe(topic, "s")
    fill(client, topic, bodies(3))
    consumer.unsubscribe()
    with client.subscribe(topic, "s") as consumer:
        is_quiet(consumer)


def test_paused_receives_what_was_granted_and_no_more(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    with client.subscribe(topic, "s", receiver_queue_size=10) as consumer:
        consumer.pause()
        fill(client, topic, bodies(50), batching_enabled=False)
        assert take(consumer, 10) == bodies(10)
        is_quiet(consumer)
        assert consumer.why().reason is Waits.RESUME
        consumer.resume()
        assert take(consumer, 40) == bodies(40, 10)


# ---- ways to receive ----------------------------------------------------------------------------


def test_a_listener_gets_all_in_order(pulsar):
    client, topic, got = pulsar.client(), pulsar.topic(), []

    def listener(consumer, message):
        got.append(message.data)
        consumer.acknowledge(message)

    with client.subscribe(topic, "s", listener=listener, listener_threads=2):
        fill(client, topic, bodies(100))
        pulsar.eventually(lambda: got == bodies(100), "all heard")


def test_batches_are_received_together(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    with client.subscribe(topic, "s") as consumer:
        fill(client, topic, bodies(100))
        found = []
        while len(found) < 100:
            batch = consumer.receive_batch(30, timeout_ms=WAIT_MS)
            assert 0 < len(batch) <= 30
            found += [each.data for each in batch[:30]]
            if len(found) == 90:
                found += [each.data for each in consumer.receive_batch(10, timeout_ms=WAIT_MS)]
        assert found == bodies(100)


def test_everything_works_from_an_event_loop(pulsar):
    topic = pulsar.topic()

    async def play():
        async with Client(pulsar.url) as client:
            consumer = await client.subscribe_async(topic, "s")
            async with await client.create_producer_async(topic) as producer:
                await asyncio.gather(*[producer.send_async(each) for each in bodies(20)])
            found = []
            for _ in range(20):
                message = await consumer.receive_async(WAIT_MS)
                found.append(message.data)
                await consumer.acknowledge_async(message)
            with pytest.raises(NothingReceived):
                await consumer.receive_async(50)
            await consumer.close_async()
            return found

    assert sorted(asyncio.run(play()), key=int) == bodies(20)


@pytest.mark.parametrize("is_batch", [True, False])
def test_who_gives_up_receiving_again_and_again_gets_everything_in_order(pulsar, is_batch):
    topic, count = pulsar.topic(), 300

    async def receive(consumer):
        if is_batch:
            return await consumer.receive_batch_async(5, timeout_ms=WAIT_MS)
        return [await consumer.receive_async(WAIT_MS)]

    async def play():
        found, patience = [], itertools.cycle(range(8))
        async with Client(pulsar.url) as client:
            consumer = await client.subscribe_async(topic, "s")
            async with await client.create_producer_async(topic, batching_enabled=False) as sender:

                async def send():
                    for body in bodies(count):
                        await sender.send_async(body)

                sending = asyncio.create_task(send())
                while len(found) < count:
                    try:
                        # From not at all to longer than a message takes.
                        patience_s = next(patience) / 2000
                        messages = await asyncio.wait_for(receive(consumer), patience_s)
                    except TimeoutError:
                        continue
                    found += [each.data for each in messages]
                await sending
        return found

    assert asyncio.run(asyncio.wait_for(play(), WAIT_MS / 1000 * 3)) == bodies(count)


def test_large_messages_are_bounded_by_bytes(pulsar):
    client, topic = pulsar.client(), pulsar.topic()
    options = {"receiver_queue_bytes_max": 2 * 1024 * 1024, **EARLIEST}
    fill(client, topic, [bytes(512 * 1024)] * 24, batching_enabled=False)
    other = pulsar.client()
    with other.subscribe(topic, "s", **options) as consumer:
        pulsar.eventually(lambda: consumer.statistics().queued_bytes >= 2 * 1024 * 1024, "full")
        assert "receiver_queue_bytes_max" in str(consumer.why())
        for _ in range(24):
            consumer.acknowledge(consumer.receive(WAIT_MS))
            assert consumer.statistics().queued_bytes <= 4 * 1024 * 1024
