"""Unit tests for who of several consumers gets a message, and when: the four types of Pulsar."""

import base64

import pytest

from kit.pulsar.bench import PulsarBench
from kit.pulsar.consumers import KINDS, TOPIC, Publisher, Subscriber
from kit.pulsar_peer import murmur3
from penstock.adapters.pulsar.namespaces import DelayedDeliveryRule
from penstock.engine.subscription import dispatchers
from penstock.model.names import topic_name
from penstock.settings.load import Settings
from penstock.settings.protocols import PulsarSettings
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

DELAY_MS = 1_000
KEYS = [f"key-{number}" for number in range(60)]


def join(client, name, kind, topic=TOPIC, **fields):
    fields.setdefault("initialPosition", "Earliest")
    return Subscriber(client, topic, kind=kind, consumer_name=name, **fields).opened()


@pytest.fixture
def publisher(client):
    return Publisher(client)


# ---- failover -----------------------------------------------------------------------------------

PARTITION = f"{TOPIC}-partition-0"


@pytest.fixture
def partition(bench):
    """Partition 0 of a topic: the first by priority and name is active."""
    bench.engine.create_topic(topic_name("orders"), queues=2)
    return PARTITION


def stand(client, name, topic=PARTITION, **fields):
    return join(client, name, "Failover", topic, **fields).flow(100)


def test_the_first_failover_consumer_waits_a_second_hears_and_gets(bench, client, partition):
    sent = Publisher(client, partition).publish_all(2)
    consumer = stand(client, "a")
    bench.pass_time(DELAY_MS - 100)
    assert (consumer.is_told_active(), consumer.ids()) == ([], [])
    bench.pass_time(100)

    heard = [each.type for each in client.commands()]
    assert heard == [BaseCommand.ACTIVE_CONSUMER_CHANGE, BaseCommand.MESSAGE, BaseCommand.MESSAGE]
    assert consumer.unacked == len(sent)


def test_who_joins_failover_and_is_not_chosen_hears_so_at_once(bench, client, partition):
    first = stand(client, "a")
    bench.pass_time(DELAY_MS)
    first.is_told_active()
    second = stand(client, "b")

    assert second.is_told_active() == [False]
    assert first.is_told_active() == []
    bench.pass_time(DELAY_MS)
    assert (first.is_told_active(), second.is_told_active()) == ([], [])


def test_who_joins_failover_and_is_chosen_takes_over_after_a_second(bench, client, partition):
    publisher = Publisher(client, partition)
    sent = publisher.publish_all(2)
    old = stand(client, "b")
    bench.pass_time(DELAY_MS)
    assert old.ids() == sent
    new = stand(client, "a")
    sent.append(publisher.publish())
    bench.pass_time(DELAY_MS - 100)
    assert (old.ids(), new.ids()) == ([], [])
    bench.pass_time(100)

    assert old.is_told_active() == [True, False]
    assert new.is_told_active() == [True]
    assert [(each.id, each.count) for each in new.messages()] == [(each, 0) for each in sent]
    assert old.unacked == 0


def test_when_the_active_one_leaves_all_that_remain_hear_after_a_second(bench, client, partition):
    sent = Publisher(client, partition).publish()
    first, second, third = [stand(client, name) for name in "abc"]
    bench.pass_time(DELAY_MS)
    for each in (first, second, third):
        each.is_told_active()
        each.ids()
    first.close()
    assert second.is_told_active() == []
    bench.pass_time(DELAY_MS)

    assert (second.is_told_active(), third.is_told_active()) == ([True], [False])
    assert second.ids() == [sent]


def test_when_an_inactive_one_leaves_nobody_hears(bench, client, partition):
    first, second = stand(client, "a"), stand(client, "b")
    bench.pass_time(DELAY_MS)
    first.is_told_active()
    second.close()
    bench.pass_time(DELAY_MS)

    assert first.is_told_active() == []


def test_a_second_change_does_not_begin_the_second_anew(bench, client, partition):
    late = stand(client, "b")
    bench.pass_time(600)
    early = stand(client, "a")
    bench.pass_time(400)

    assert (early.is_told_active(), late.is_told_active()) == ([True], [False])


def test_an_inactive_consumer_keeps_its_permits(bench, client, partition):
    publisher = Publisher(client, partition)
    stand(client, "a")
    second = stand(client, "b")
    bench.pass_time(DELAY_MS)
    publisher.publish_all(5)

    assert (second.ids(), second.permits) == ([], 100)


def test_priority_and_then_the_name_decides(bench, client, partition):
    consumers = {
        name: stand(client, name, priority_level=priority)
        for name, priority in (("a", 1), ("d", -1), ("c", -1), ("b", 0))
    }
    bench.pass_time(DELAY_MS)

    active = [name for name, each in consumers.items() if each.is_told_active()[-1]]
    assert active == ["c"]


def test_partitions_are_spread_by_their_index(bench, client):
    bench.engine.create_topic(topic_name("orders"), queues=4)
    chosen = []
    for index in range(4):
        topic = f"{TOPIC}-partition-{index}"
        consumers = {name: stand(client, name, topic) for name in "ab"}
        bench.pass_time(DELAY_MS)
        chosen += [name for name, each in consumers.items() if each.is_told_active()[-1]]

    assert chosen == ["a", "b", "a", "b"]


@pytest.mark.parametrize("name", ["orders", "bills", "stock", "returns"])
def test_without_partitions_a_ring_of_hashes_decides(bench, client, name):
    topic = f"persistent://public/default/{name}"
    consumers = {each: stand(client, each, topic) for each in ("a", "b", "c")}
    bench.pass_time(DELAY_MS)

    active = [each for each, consumer in consumers.items() if consumer.is_told_active()[-1]]
    points = {murmur3(f"{n}{i}".encode()) & 0x7FFFFFFF: n for n in "abc" for i in range(100)}
    wanted = murmur3(topic.encode()) & 0x7FFFFFFF
    assert active == [points[min([p for p in points if p >= wanted], default=min(points))]]


def test_a_client_below_version_12_hears_nothing_of_its_turn(bench, partition):
    client = bench.client(protocol_version=11)
    sent = Publisher(client, partition).publish()
    consumer = stand(client, "a")
    bench.pass_time(DELAY_MS)

    assert consumer.is_told_active() == []
    assert consumer.ids() == [sent]


def test_exclusive_consumers_hear_nothing_and_begin_at_once(bench, client, publisher):
    sent = publisher.publish()
    consumer = join(client, "a", "Exclusive").flow(10)

    assert consumer.ids() == [sent]
    assert consumer.is_told_active() == []


def test_the_delay_of_failover_is_a_setting():
    bench = PulsarBench(Settings(pulsar=PulsarSettings(active_consumer_failover_delay_ms=0)))
    client = bench.client()
    sent = Publisher(client).publish()
    consumer = stand(client, "a", TOPIC)

    assert consumer.is_told_active() == [True]
    assert consumer.ids() == [sent]


def test_a_consumer_that_comes_back_reads_from_its_first_unacked_on(bench, client, publisher):
    sent = publisher.publish_all(5)
    lost = bench.client()
    consumer = join(lost, "a", "Exclusive").flow(10)
    consumer.ids()
    consumer.ack(sent[0], sent[3])
    lost.vanish()

    assert join(client, "a", "Exclusive").flow(10).ids() == [sent[1], sent[2], sent[4]]


# ---- shared -------------------------------------------------------------------------------------


def test_shared_consumers_take_turns_message_by_message(client, publisher):
    one, two = [join(client, name, "Shared").flow(100) for name in "ab"]
    owners = []
    for _ in range(6):
        publisher.publish()
        owners += [name for name, each in (("a", one), ("b", two)) if each.ids()]

    assert owners in (["a", "b"] * 3, ["b", "a"] * 3)


def test_a_shared_consumer_without_permits_is_passed_over(client, publisher):
    empty, full = join(client, "a", "Shared"), join(client, "b", "Shared").flow(100)
    sent = publisher.publish_all(10)

    assert (empty.ids(), full.ids()) == ([], sent)


def test_a_lower_priority_is_served_when_the_higher_ones_can_take_no_more(client, publisher):
    high = join(client, "a", "Shared", priority_level=0).flow(3)
    low = join(client, "b", "Shared", priority_level=1).flow(100)
    sent = publisher.publish_all(10)

    assert high.ids() == sent[:3]
    assert low.ids() == sent[3:]
    high.flow(100)
    more = publisher.publish_all(2)
    assert (high.ids(), low.ids()) == (more, [])


def test_a_blocked_shared_consumer_is_passed_over(bench, client, publisher):
    bench.broker.namespaces.set_policies("public/default", max_unacked_messages_per_consumer=2)
    one, two = [join(client, name, "Shared").flow(100) for name in "ab"]
    publisher.publish_all(4)
    assert (len(one.ids()), len(two.ids())) == (2, 2)
    publisher.publish_all(4)
    assert (one.ids(), two.ids()) == ([], [])
    stored = bench.engine.topic(topic_name("orders")).subscriptions["pulsar/s"]

    assert all("unsettled" in stored.withheld_from(each) for each in stored.consumers)


def test_what_a_shared_consumer_had_goes_to_the_others_in_order_before_what_is_new(
    bench, publisher
):
    gone, here = bench.client(), bench.client()
    leaving = join(gone, "a", "Shared").flow(10)
    sent = publisher.publish_all(3)
    assert leaving.ids() == sent
    staying = join(here, "b", "Shared")
    sent.append(publisher.publish())
    leaving.close()
    staying.flow(10)

    assert staying.ids()[:3] == sent[:3]


# ---- key shared ---------------------------------------------------------------------------------


def sticky(*ranges):
    return {"keySharedMode": "STICKY", "hashRanges": [{"start": a, "end": b} for a, b in ranges]}


def slot(key, size):
    return (murmur3(key) & 0x7FFFFFFF) % size


def ring_owner(key, names):
    points = {}
    for name in names:
        for index in range(100):
            points[slot(f"{name}\0{0}\0{index}".encode(), 65535) + 1] = name
    wanted = slot(key.encode(), 65535) + 1
    return points[min([each for each in points if each >= wanted], default=min(points))]


def half(key):
    return "low" if (slot(key, 65536) or 1) < 32768 else "high"


def owners(consumers, said=lambda each: each.metadata.partition_key):
    return {said(each): name for name, one in consumers.items() for each in one.messages()}


def test_keys_are_split_by_a_ring_of_100_points_each(client, publisher):
    consumers = {name: join(client, name, "Key_Shared").flow(100) for name in "abc"}
    for key in KEYS:
        publisher.send(b"x", partition_key=key)

    assert owners(consumers) == {key: ring_owner(key, "abc") for key in KEYS}


def test_keys_may_be_split_by_halved_ranges():
    bench = PulsarBench(Settings(pulsar=PulsarSettings(key_shared_use_consistent_hashing=False)))
    client = bench.client()
    publisher = Publisher(client)
    consumers = {name: join(client, name, "Key_Shared").flow(100) for name in "abc"}
    for key in KEYS:
        publisher.send(b"x", partition_key=key)

    def owner(key):
        at = slot(key.encode(), 65536) or 1
        return "c" if at <= 16384 else "b" if at <= 32768 else "a"

    assert owners(consumers) == {key: owner(key) for key in KEYS}


@pytest.fixture
def halves(client):
    return {
        "low": join(client, "l", "Key_Shared", keySharedMeta=sticky((0, 32767))).flow(1000),
        "high": join(client, "h", "Key_Shared", keySharedMeta=sticky((32768, 65535))).flow(1000),
    }


def test_sticky_consumers_have_the_keys_of_their_ranges(halves, publisher):
    for key in KEYS:
        publisher.send(b"x", partition_key=key)

    assert owners(halves) == {key: half(key.encode()) for key in KEYS}


def test_an_ordering_key_goes_before_the_partition_key(halves, publisher):
    for key in KEYS:
        publisher.send(b"x", partition_key="same", ordering_key=key.encode())

    found = owners(halves, lambda each: each.metadata.ordering_key)
    assert found == {key.encode(): half(key.encode()) for key in KEYS}


def test_a_key_in_base64_is_decoded(halves, publisher):
    for key in KEYS:
        coded = base64.b64encode(key.encode()).decode()
        publisher.send(key.encode(), partition_key=coded, partition_key_b64_encoded=True)

    found = owners(halves, lambda each: each.payload)
    assert found == {key.encode(): half(key.encode()) for key in KEYS}


def test_without_a_key_producer_and_sequence_number_are_the_key(halves, publisher):
    for _ in range(30):
        publisher.send(b"x")

    found = owners(halves, lambda each: each.metadata.sequence_id)
    assert found == {number: half(f"p-{number}".encode()) for number in range(30)}


def test_a_batch_goes_by_the_key_of_its_metadata(halves, publisher):
    for key in KEYS:
        publisher.send(b"a", b"b", partition_key=key)

    assert owners(halves) == {key: half(key.encode()) for key in KEYS}


def test_a_hash_that_nobody_covers_waits_and_others_go_on(client, publisher):
    low = join(client, "low", "Key_Shared", keySharedMeta=sticky((0, 32767))).flow(100)
    uncovered = [key for key in KEYS if half(key.encode()) == "high"][:3]
    covered = next(key for key in KEYS if half(key.encode()) == "low")
    waiting = [publisher.publish(partition_key=key) for key in uncovered]
    sent = publisher.publish(partition_key=covered)
    assert low.ids() == [sent]
    high = join(client, "high", "Key_Shared", keySharedMeta=sticky((32768, 65535))).flow(100)

    assert high.ids() == waiting


@pytest.fixture
def moved(client, publisher):
    """A key that moves from a to b when b joins, one that stays; a holds two of each."""
    moving = next(key for key in KEYS if ring_owner(key, "ab") == "b")
    staying = next(key for key in KEYS if ring_owner(key, "ab") == "a")
    first = join(client, "a", "Key_Shared").flow(100)
    held = {
        key: [publisher.publish(partition_key=key) for _ in range(2)] for key in (moving, staying)
    }
    assert sorted(first.ids()) == sorted(held[moving] + held[staying])
    second = join(client, "b", "Key_Shared").flow(100)
    return moving, staying, first, second, held


def test_a_key_that_moved_drains_before_its_new_owner_has_it(publisher, moved):
    moving, staying, first, second, held = moved
    later = publisher.publish(partition_key=moving)
    other = publisher.publish(partition_key=staying)
    assert (first.ids(), second.ids()) == ([other], [])
    first.ack(held[moving][0])
    assert second.ids() == []
    first.ack(held[moving][1])

    assert second.ids() == [later]


def test_why_says_that_a_key_drains(bench, publisher, moved):
    moving = moved[0]
    publisher.publish(partition_key=moving)
    stored = bench.engine.topic(topic_name("orders")).subscriptions["pulsar/s"]
    (second,) = [each for each in stored.consumers if each.name == "b"]

    assert "draining" in stored.withheld_from(second)


def test_redelivery_sends_a_key_that_moved_to_its_new_owner(moved):
    moving, staying, first, second, held = moved
    first.redeliver()

    assert [(each.id, each.count) for each in second.messages()] == [
        (each, 1) for each in held[moving]
    ]
    assert [each.id for each in first.messages()] == held[staying]


def test_a_key_whose_owner_is_gone_goes_on_with_the_next(bench, publisher):
    gone = bench.client()
    first = join(gone, "a", "Key_Shared").flow(100)
    sent = [publisher.publish(partition_key="k") for _ in range(3)]
    assert first.ids() == sent
    second = join(bench.client(), "b", "Key_Shared").flow(100)
    gone.vanish()

    assert [(each.id, each.count) for each in second.messages()] == [(each, 0) for each in sent]


def test_a_key_that_waits_for_permits_does_not_stop_the_others(client, publisher):
    consumers = {name: join(client, name, "Key_Shared") for name in "ab"}
    consumers["b"].flow(100)
    for key in KEYS:
        publisher.send(b"x", partition_key=key)

    wanted = [key for key in KEYS if ring_owner(key, "ab") == "b"]
    assert [each.metadata.partition_key for each in consumers["b"].messages()] == wanted
    consumers["a"].flow(100)
    rest = [key for key in KEYS if key not in wanted]
    assert [each.metadata.partition_key for each in consumers["a"].messages()] == rest


def test_the_look_ahead_past_keys_that_wait_is_bounded(bench, client, publisher, monkeypatch):
    monkeypatch.setattr(dispatchers, "LOOK_AHEAD_PER_CONSUMER_MAX", 5)
    waiting = next(key for key in KEYS if ring_owner(key, "ab") == "a")
    ready = next(key for key in KEYS if ring_owner(key, "ab") == "b")
    stuck = join(client, "a", "Key_Shared")
    free = join(client, "b", "Key_Shared").flow(1_000)
    publisher.publish_all(20, partition_key=waiting)
    behind = publisher.publish(partition_key=ready)
    assert free.ids() == []
    stored = bench.engine.topic(topic_name("orders")).subscriptions["pulsar/s"]
    (idle,) = [each for each in stored.consumers if each.name == "b"]
    assert "look-ahead" in stored.withheld_from(idle)
    stuck.flow(1_000)

    assert free.ids() == [behind]
    assert stuck.unacked == 20


# ---- delay --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_a_delayed_message_waits_for_its_time_on_shared_types(bench, client, publisher, kind):
    consumer = join(client, "a", kind).flow(100)
    now_ms = bench.clock.wall_ms()
    late = publisher.publish(b"late", deliver_at_time=now_ms + 5_000, partition_key="k")
    soon = publisher.publish(b"soon", partition_key="k")
    assert consumer.ids() == [soon]
    assert (consumer.permits, consumer.unacked) == (99, 1)
    bench.pass_time(4_900)
    assert consumer.ids() == []
    bench.pass_time(100)

    assert consumer.ids() == [late]


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_delay_means_nothing_to_who_reads_alone(bench, client, publisher, kind):
    consumer = join(client, "a", kind).flow(100)
    bench.pass_time(DELAY_MS)
    sent = publisher.publish(deliver_at_time=bench.clock.wall_ms() + 60_000)

    assert consumer.ids() == [sent]


@pytest.mark.parametrize(("ahead_ms", "is_at_once"), [(999, True), (1_000, True), (1_001, False)])
def test_a_delay_within_one_tick_is_none(bench, client, publisher, ahead_ms, is_at_once):
    consumer = join(client, "a", "Shared").flow(100)
    sent = publisher.publish(deliver_at_time=bench.clock.wall_ms() + ahead_ms)

    assert consumer.ids() == ([sent] if is_at_once else [])
    bench.pass_time(1_100)
    assert consumer.ids() == ([] if is_at_once else [sent])


def test_delays_may_be_switched_off(bench, client, publisher):
    bench.broker.namespaces.set_policies(
        "public/default", delayed_delivery=DelayedDeliveryRule(active=False)
    )
    consumer = join(client, "a", "Shared").flow(100)
    sent = publisher.publish(deliver_at_time=bench.clock.wall_ms() + 60_000)

    assert consumer.ids() == [sent]


def test_a_delayed_message_holds_the_mark_delete_position(bench, client, publisher):
    consumer = join(client, "a", "Shared").flow(100)
    publisher.publish(deliver_at_time=bench.clock.wall_ms() + 60_000)
    sent = publisher.publish_all(3)
    consumer.ack(*consumer.ids())

    place = consumer.last_id().consumer_mark_delete_position
    assert place.entryId == 2**64 - 1
    assert sent


# ---- topics that end under their consumers ------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["delete", "unload", "deleted by another protocol"])
def test_a_topic_that_goes_closes_its_consumers(bench, client, kind, how):
    consumer = join(client, "a", kind)
    (topic,) = bench.broker.topics._used.values()
    if how == "deleted by another protocol":
        bench.engine.delete_topic(topic_name("orders"))
    else:
        getattr(bench.broker.topics, how)(topic.name)

    assert consumer.is_told_closed()
    assert not bench.broker.topics._used
    assert not bench.broker.subscriptions._used
    consumer.flow(5)
    consumer.ack((1, 0))
    assert not client.is_closed
    join(client, "a", kind)


def test_after_an_unload_a_subscription_stands_where_it_stood(bench, client, publisher):
    sent = publisher.publish_all(3)
    consumer = join(client, "a", "Shared").flow(10)
    consumer.ids()
    consumer.ack(sent[0])
    (topic,) = bench.broker.topics._used.values()
    bench.broker.topics.unload(topic.name)

    assert join(client, "a", "Shared").flow(10).ids() == sent[1:]


def test_ids_of_a_topic_that_was_made_anew_are_others(bench, client, publisher):
    old = publisher.publish_all(3)
    bench.broker.topics.delete(next(iter(bench.broker.topics._used)))
    bench.settle()
    new = Publisher(client, producer_id=7).publish()
    consumer = join(client, "a", "Exclusive").flow(10)
    assert consumer.ids() == [new]
    consumer.ack(old[2], kind="Cumulative")

    assert new[0] > old[0][0]
    assert consumer.unacked == 1
