"""Failover: who is active, who hears of it and when (observations 7)."""

import time

import pytest

from kit.pulsar_peer import murmur3

DELAY_SECONDS = 1.0
EARLY_SECONDS_MAX = 0.15
"""A clock's tick, on either side."""


def join(peer, topic, name, **fields):
    return peer.consumer(
        topic, "s", "Failover", consumer_name=name, initialPosition="Earliest", **fields
    )


@pytest.fixture
def partition(pulsar):
    """Partition 0 of a topic: the first by priority and name is active."""
    topic = f"{pulsar.topic(partitions=2)}-partition-0"
    pulsar.look_up(topic)
    return topic


def active(consumer, is_active):
    consumer.peer.expect("active_consumer_change", consumer_id=consumer.id, is_active=is_active)


def test_the_first_consumer_hears_and_gets_nothing_for_a_second(pulsar, peer, topic):
    sent = pulsar.peer().producer(topic).publish()
    began = time.monotonic()
    consumer = join(peer, topic, "a")
    consumer.flow(10)
    active(consumer, True)
    assert time.monotonic() - began >= DELAY_SECONDS - EARLY_SECONDS_MAX
    assert consumer.message().id == sent


def test_who_joins_and_is_not_chosen_hears_so_at_once(pulsar, peer, partition, topic):
    first = join(peer, partition, "a")
    active(first, True)
    # Somebody else has to wait for a second from now.
    other = pulsar.peer()
    waiting = join(other, topic, "z")
    second = join(other, partition, "b")
    active(second, False)
    active(waiting, True)
    peer.expect_nothing()


def test_who_joins_and_is_chosen_takes_over_after_a_second(pulsar, peer, partition):
    producer = pulsar.peer().producer(partition)
    sent = producer.publish_all([b"x"] * 2)
    first = join(peer, partition, "b")
    first.flow(100)
    active(first, True)
    first.messages(2)
    second = join(pulsar.peer(), partition, "a")
    second.flow(100)
    # Until then the old one gets nothing new.
    sent.append(producer.publish())
    active(second, True)
    active(first, False)
    assert [(each.id, each.count) for each in second.messages(3)] == [(each, 0) for each in sent]
    peer.expect_nothing()


def test_when_the_active_one_leaves_all_that_remain_hear(pulsar, peer, partition):
    sent = pulsar.peer().producer(partition).publish()
    first = join(peer, partition, "a")
    active(first, True)
    first.flow(10)
    first.message()
    others = [join(pulsar.peer(), partition, name) for name in "bc"]
    for each in others:
        active(each, False)
        each.flow(10)
    first.close()
    active(others[0], True)
    active(others[1], False)
    assert others[0].message().id == sent


def test_when_an_inactive_one_leaves_nobody_hears(pulsar, peer, partition):
    first = join(peer, partition, "a")
    active(first, True)
    second = join(pulsar.peer(), partition, "b")
    active(second, False)
    second.close()
    peer.expect_nothing()


def test_a_second_change_does_not_begin_the_delay_anew(pulsar, peer, partition, topic):
    last = join(peer, partition, "c")
    with pytest.raises(TimeoutError):
        peer.receive(0.3)
    # Somebody else's second begins now, and ends later.
    other = pulsar.peer()
    waiting = join(other, topic, "z")
    first = join(other, partition, "a")
    active(first, True)
    active(waiting, True)
    active(last, False)


def test_the_lowest_priority_and_then_the_name_decides(pulsar, peer, partition):
    consumers = {
        "b": join(peer, partition, "b", priority_level=1),
        "c": join(peer, partition, "c", priority_level=-1),
        "a": join(peer, partition, "a", priority_level=0),
    }
    told = {}
    while sum(told.values()) == 0 or len(told) < 3:
        found = peer.expect("active_consumer_change")
        told[found.consumer_id] = found.is_active
    assert told == {consumers["c"].id: True, consumers["a"].id: False, consumers["b"].id: False}


def test_partitions_are_spread_by_their_index(pulsar, peer):
    topic = pulsar.topic(partitions=4)
    owners = {}
    for index in range(4):
        name = f"{topic}-partition-{index}"
        pulsar.look_up(name)
        for who in "ab":
            owners[join(peer, name, who).id] = (index, who)
    chosen = {}
    while len(chosen) < 4:
        found = peer.expect("active_consumer_change")
        index, who = owners[found.consumer_id]
        if found.is_active:
            chosen[index] = who
        elif chosen.get(index) == who:
            del chosen[index]
    for frame in peer.gather():
        index, who = owners[frame.command.consumer_id]
        if frame.command.is_active:
            chosen[index] = who
    assert [chosen[index] for index in range(4)] == ["a", "b", "a", "b"]


def test_without_partitions_a_ring_decides(pulsar, peer):
    """100 points of each name, by murmur3; the first at or after the hash of the topic's name."""
    owners, wanted, told = {}, {}, {}
    for topic in [pulsar.topic() for _ in range(3)]:
        for name in ("a", "b", "c"):
            owners[join(peer, topic, name).id] = (topic, name)
        wanted[topic] = ring_choice(topic, ("a", "b", "c"))
    while len(told) < len(owners) or sum(told.values()) < len(wanted):
        found = peer.expect("active_consumer_change")
        told[found.consumer_id] = found.is_active
    for frame in peer.gather():
        told[frame.command.consumer_id] = frame.command.is_active
    assert [owners[number] for number, is_active in told.items() if is_active] == list(
        wanted.items()
    )


def ring_choice(topic, names):
    points = {}
    for name in sorted(names):
        for index in range(100):
            points[murmur3(f"{name}{index}".encode()) & 0x7FFFFFFF] = name
    wanted = murmur3(topic.encode()) & 0x7FFFFFFF
    return points[min((each for each in points if each >= wanted), default=min(points))]


def test_clients_below_version_12_hear_nothing(pulsar, topic):
    sent = pulsar.peer().producer(topic).publish()
    old = pulsar.peer(protocol_version=11)
    consumer = join(old, topic, "a")
    consumer.flow(1)
    assert consumer.message().id == sent


def test_exclusive_consumers_hear_nothing(peer, topic):
    peer.consumer(topic, "s", "Exclusive")
    peer.expect_nothing()


def test_the_ack_of_an_inactive_consumer_is_taken(pulsar, peer, partition):
    sent = pulsar.peer().producer(partition).publish()
    first = join(peer, partition, "a")
    active(first, True)
    first.flow(1)
    first.message()
    second = join(pulsar.peer(), partition, "b")
    active(second, False)
    second.acked(sent)
    assert pulsar.backlog(partition, "s") == 0
