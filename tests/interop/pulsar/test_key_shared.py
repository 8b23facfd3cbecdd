"""Key_Shared: which key goes where, and when it may move (observations 8)."""

import base64

import pytest

from kit.pulsar_peer import murmur3

KEYS = [f"key-{number}" for number in range(60)]
RANGE_SIZE = 65536


@pytest.fixture
def producer(pulsar, topic):
    return pulsar.peer().producer(topic)


def join(peer, topic, name, **fields):
    return peer.consumer(topic, "s", "Key_Shared", consumer_name=name, **fields)


def sticky(*ranges):
    return {"keySharedMode": "STICKY", "hashRanges": [{"start": a, "end": b} for a, b in ranges]}


def ring_owner(key, names):
    """The consistent ring: 100 points of each consumer, 1 to 65535."""
    points = {}
    for name in names:
        for index in range(100):
            points[slot(f"{name}\0{0}\0{index}".encode(), 65535) + 1] = name
    wanted = slot(key, 65535) + 1
    return points[min((each for each in points if each >= wanted), default=min(points))]


def slot(key, size):
    return (murmur3(key) & 0x7FFFFFFF) % size


def sticky_hash(key):
    return slot(key, RANGE_SIZE) or 1


def test_the_ring_decides_by_key(peer, topic, producer):
    consumers = {join(peer, topic, name).id: name for name in ("a", "b", "c")}
    for number in consumers:
        peer.command("flow", consumer_id=number, messagePermits=100)
    for key in KEYS:
        producer.publish(key.encode(), partition_key=key)
    found = {
        each.metadata.partition_key: consumers[each.command.consumer_id]
        for each in peer.messages(len(KEYS))
    }
    assert found == {key: ring_owner(key.encode(), ("a", "b", "c")) for key in KEYS}


def halves(peer, topic):
    low = join(peer, topic, "low", keySharedMeta=sticky((0, 32767)))
    high = join(peer, topic, "high", keySharedMeta=sticky((32768, 65535)))
    for each in (low, high):
        each.flow(1000)
    return {low.id: "low", high.id: "high"}


def half(key):
    return "low" if sticky_hash(key) < 32768 else "high"


def test_sticky_ranges_by_partition_key(peer, topic, producer):
    consumers = halves(peer, topic)
    for key in KEYS:
        producer.publish(partition_key=key)
    found = {
        each.metadata.partition_key: consumers[each.command.consumer_id]
        for each in peer.messages(len(KEYS))
    }
    assert found == {key: half(key.encode()) for key in KEYS}


def test_the_ordering_key_comes_before_the_partition_key(peer, topic, producer):
    consumers = halves(peer, topic)
    for key in KEYS[:20]:
        producer.publish(partition_key="same", ordering_key=key.encode())
    found = {
        each.metadata.ordering_key: consumers[each.command.consumer_id]
        for each in peer.messages(20)
    }
    assert found == {key.encode(): half(key.encode()) for key in KEYS[:20]}


def test_a_key_in_base64_is_decoded_first(peer, topic, producer):
    consumers = halves(peer, topic)
    for key in KEYS[:20]:
        coded = base64.b64encode(key.encode()).decode()
        producer.publish(key.encode(), partition_key=coded, partition_key_b64_encoded=True)
    found = {each.payload: consumers[each.command.consumer_id] for each in peer.messages(20)}
    assert found == {key.encode(): half(key.encode()) for key in KEYS[:20]}


def test_without_a_key_producer_and_sequence_are_the_key(peer, topic, producer):
    consumers = halves(peer, topic)
    for _ in range(20):
        producer.publish()
    found = {
        each.metadata.sequence_id: consumers[each.command.consumer_id] for each in peer.messages(20)
    }
    assert found == {number: half(f"{producer.name}-{number}".encode()) for number in range(20)}


@pytest.fixture
def moved(pulsar, peer, topic, producer):
    """A key that moves from a to b when b joins, one that stays, and a that holds two of each."""
    moving = next(key for key in KEYS if ring_owner(key.encode(), "ab") == "b")
    staying = next(key for key in KEYS if ring_owner(key.encode(), "ab") == "a")
    first = join(peer, topic, "a")
    first.flow(100)
    peer.expect_nothing()
    held = {}
    for key in (moving, staying):
        held[key] = [producer.publish(partition_key=key) for _ in range(2)]
        first.messages(2)
    second = join(pulsar.peer(), topic, "b")
    second.flow(100)
    second.peer.expect_nothing()
    return moving, staying, first, second, held


def test_a_key_that_moved_waits_until_the_old_owner_has_acked_all_of_it(producer, moved):
    moving, staying, first, second, held = moved
    later = producer.publish(partition_key=moving)
    other = producer.publish(partition_key=staying)
    assert first.message().id == other
    second.peer.expect_nothing()
    first.acked(held[moving][0])
    second.peer.expect_nothing()
    first.acked(held[moving][1])
    assert second.message().id == later


def test_redelivery_by_the_old_owner_sends_moved_keys_to_the_new_one(moved):
    moving, staying, first, second, held = moved
    first.redeliver()
    assert [(each.id, each.count) for each in second.messages(2)] == [
        (each, 1) for each in held[moving]
    ]
    assert [(each.id, each.count) for each in first.messages(2)] == [
        (each, 1) for each in held[staying]
    ]


def test_a_hash_that_nobody_covers_waits_for_somebody_who_does(pulsar, peer, topic, producer):
    low = join(peer, topic, "low", keySharedMeta=sticky((0, 32767)))
    low.flow(100)
    peer.expect_nothing()
    uncovered = [key for key in KEYS if half(key.encode()) == "high"][:3]
    sent = [producer.publish(partition_key=key) for key in uncovered]
    covered = producer.publish(partition_key=next(k for k in KEYS if half(k.encode()) == "low"))
    assert low.message().id == covered
    peer.expect_nothing()
    high = join(pulsar.peer(), topic, "high", keySharedMeta=sticky((32768, 65535)))
    high.flow(100)
    assert [each.id for each in high.messages(3)] == sent
