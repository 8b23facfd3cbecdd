"""What a restart brings back, and what it must not."""

import msgspec
import pytest

from kit.batches import WIRE, BatchFacts, batch, numbered
from kit.workbench import Workbench
from penstock.engine import turn
from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.ports import Publication
from penstock.engine.registry import TOPIC_KIND
from penstock.engine.topic import DirectRoute, Overflow, TopicPolicy
from penstock.flow.demand import Window
from penstock.model.errors import AlreadyExists, LogCorrupt
from penstock.model.ids import is_transient_id
from penstock.model.names import topic_name
from penstock.model.record import RecordFlag, Wire, neutral_record
from penstock.model.refusal import RefusalKind
from penstock.testing.outlet import RecordingOutlet

POLICY = TopicPolicy(length_max=10, overflow=Overflow.REJECT, retention_ms=5, max_priority=2)


@pytest.fixture
def bench():
    return Workbench()


def by_name(bench):
    return {topic.name.name: topic for topic in bench.engine.topics()}


@pytest.mark.parametrize("end", ["stop", "kill", "cut_power"])
def test_topics_policies_and_subscriptions_come_back(bench, end):
    topic = bench.topic(policy=POLICY)
    options = SubscriptionOptions(
        mode=Mode.FAILOVER, holds_data=False, delivery_limit=3, whole_batches=True
    )
    bench.engine.create_subscription(topic.name, "s", options)
    ids = [queue.queue_id for queue in topic.queues]
    bench.settle()
    getattr(bench, end)()
    found = by_name(bench)["orders"]
    assert (found.topic_id, found.policy) == (topic.topic_id, POLICY)
    assert [queue.queue_id for queue in found.queues] == ids
    restored = found.subscriptions["s"].options
    assert (restored.mode, restored.holds_data, restored.delivery_limit) == (
        Mode.FAILOVER,
        False,
        3,
    )
    assert restored.is_priority
    assert restored.whole_batches


@pytest.mark.parametrize("end", ["stop", "kill", "cut_power"])
def test_a_terminated_topic_stays_terminated(bench, end):
    topic = bench.topic()
    channel = bench.channel()
    bench.publish(channel, topic, b"a")
    bench.settle()
    last = bench.engine.terminate_topic(topic.name)
    bench.settle()
    getattr(bench, end)()
    found = by_name(bench)["orders"]
    assert found.is_terminated
    bench.publish(bench.channel(), found, b"b")
    bench.settle()
    assert bench.refusal_kinds == [RefusalKind.TERMINATED]
    assert bench.engine.terminate_topic(found.name) == last


def test_what_does_not_last_is_gone_and_its_ids_are_transient(bench):
    topic = bench.topic("passing", is_durable=False)
    options = SubscriptionOptions(is_durable=False)
    subscription = bench.engine.create_subscription(topic.name, "s", options)
    assert is_transient_id(topic.topic_id)
    assert is_transient_id(subscription.subscription_id)
    bench.publish(bench.channel(), topic, b"a")
    bench.settle()
    bench.kill()
    assert bench.engine.topics() == []


def test_a_durable_subscription_of_a_topic_that_does_not_last_is_refused(bench):
    topic = bench.topic("passing", is_durable=False)
    with pytest.raises(AlreadyExists, match="'passing' ends with the process"):
        bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    assert topic.subscriptions == {}


def test_a_deleted_topic_stays_deleted_and_its_ids_are_not_used_again(bench):
    old = bench.topic()
    bench.settle()
    bench.engine.delete_topic(old.name)
    bench.settle()
    bench.kill()
    assert bench.engine.topics() == []
    new = bench.topic()
    assert new.topic_id != old.topic_id
    assert new.queues[0].queue_id != old.queues[0].queue_id
    assert new.queues[0].incarnation > old.queues[0].incarnation


@pytest.mark.parametrize("end", ["stop", "kill", "cut_power"])
def test_settled_messages_stay_settled(bench, end):
    topic = bench.topic()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    bench.publish(bench.channel(), topic, *[b"%d" % number for number in range(6)])
    bench.settle()
    queue_id = topic.queues[0].queue_id
    subscription.attach(bench.outlet, Window(0), name="c")
    bench.settle()
    subscription.settle(queue_id, [0, 1, 4])
    bench.settle()
    getattr(bench, end)()
    bench.outlet.clear()
    topic = by_name(bench)["orders"]
    restored = topic.subscriptions["s"]
    restored.attach(bench.outlet, Window(0), name="c")
    bench.settle()
    assert bench.outlet.bodies == [b"2", b"3", b"5"]
    redelivered = {delivery.is_redelivered for delivery in bench.outlet.deliveries}
    assert redelivered == {True}


def test_cursors_come_back_from_a_snapshot_and_the_settlements_after_it(bench):
    topic, channel = bench.topic(), bench.channel()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    queue_id = topic.queues[0].queue_id
    for number in range(8):
        bench.publish(channel, topic, b"%d" % number)
        bench.settle()
        subscription.settle_upto(queue_id, number + 1)
        bench.settle()
        bench.advance(bench.settings.storage.snapshot_interval_ms)
        bench.settle()
    assert bench.store.snapshot_position > 0
    bench.kill()
    assert by_name(bench)["orders"].subscriptions["s"].low_mark(queue_id) == 8


@pytest.mark.parametrize("end", ["kill", "cut_power"])
@pytest.mark.parametrize("rounds", range(4))
def test_a_snapshot_of_very_many_cursors_is_made_in_pieces_and_is_of_one_moment(
    bench, monkeypatch, rounds, end
):
    monkeypatch.setattr(turn, "SNAPSHOT_CURSORS_MAX", 4)
    topic, channel = bench.topic(), bench.channel()
    queue_id = topic.queues[0].queue_id
    options = SubscriptionOptions()
    names = [f"s{number}" for number in range(11)]
    readers = [bench.engine.create_subscription(topic.name, name, options) for name in names]
    bench.publish(channel, topic, *[b"x"] * 8)
    bench.settle()
    bench.advance(bench.settings.storage.snapshot_interval_ms)
    made = []
    for number in range(1, 2 + rounds):
        # Between two pieces some of the cursors that are made already change again.
        for reader in readers[number::3]:
            reader.settle_upto(queue_id, number)
        bench.settle()
        made.append(bench.store.snapshot_position > 0)
        bench.advance(turn.SWEEP_PIECE_MS)
    assert made == [piece >= 2 for piece in range(1 + rounds)]
    expected = [reader.low_mark(queue_id) for reader in readers]
    getattr(bench, end)()
    found = by_name(bench)["orders"].subscriptions
    assert [found[name].low_mark(queue_id) for name in names] == expected


def test_transient_messages_are_dropped_and_counted_out(bench):
    topic = bench.topic()
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    quick = neutral_record(b"quick")
    quick.reshape(flags=quick.flags | RecordFlag.TRANSIENT)
    bench.publish(bench.channel(), topic, quick, b"kept")
    bench.settle()
    bench.kill()
    topic = by_name(bench)["orders"]
    subscription = topic.subscriptions["s"]
    assert subscription.ready(topic.queues[0].queue_id) == 1
    subscription.attach(bench.outlet, Window(0), name="c")
    bench.outlet.clear()
    bench.settle()
    assert bench.outlet.bodies == [b"kept"]


def test_rows_of_adapters_come_back(bench):
    bench.engine.define("binding", "a", b"1")
    bench.engine.define("binding", "b", b"2")
    bench.engine.define("binding", "a", None)
    called = []
    bench.engine.after_durable(lambda: called.append(True))
    assert called == []
    bench.settle()
    assert called == [True]
    bench.kill()
    assert bench.engine.definitions("binding") == {"b": b"2"}
    with pytest.raises(AlreadyExists):
        bench.engine.define(TOPIC_KIND, "1", b"")


def test_after_durable_calls_back_even_when_there_is_nothing_to_write(bench):
    bench.settle()
    called = []
    bench.engine.after_durable(lambda: called.append(True))
    bench.turns()
    assert called == [True]


def test_after_durable_waits_for_the_settlements_before_it(bench):
    topic = bench.topic()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    bench.publish(bench.channel(), topic, b"a")
    bench.settle()
    called = []
    subscription.settle_upto(topic.queues[0].queue_id, 1)
    bench.engine.after_durable(lambda: called.append(bench.store.durable_position))
    end = bench.store.end_position
    bench.turns()
    assert called == []
    bench.settle()
    assert called[0] > end


def test_an_unreadable_definition_is_named(bench):
    bench.topic()
    bench.settle()
    bench.store.definitions.put(TOPIC_KIND, "1", b"not json")
    bench.settle()
    with pytest.raises(LogCorrupt, match="topic 1"):
        bench.kill()


def test_a_policy_is_stored_as_readable_json(bench):
    bench.topic(policy=TopicPolicy(length_max=5))
    (row,) = bench.engine.definitions(TOPIC_KIND).values()
    assert msgspec.json.decode(row)["policy"] == {"length_max": 5}


def test_names_are_taken_once_and_priorities_do_not_change(bench):
    topic = bench.topic(policy=POLICY)
    with pytest.raises(AlreadyExists):
        bench.topic()
    with pytest.raises(AlreadyExists):
        bench.engine.set_policy(topic_name("orders"), TopicPolicy(max_priority=1))
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    with pytest.raises(AlreadyExists):
        bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())


def test_a_topic_can_grow_and_its_subscriptions_read_the_new_queues(bench):
    topic = bench.topic()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    subscription.attach(bench.outlet, Window(0), name="c")
    bench.engine.grow_topic(topic.name, 3)
    assert len(topic.queues) == 3
    bench.publish(bench.channel(), topic, b"a", b"b", b"c")
    bench.settle()
    assert sorted(bench.outlet.bodies) == [b"a", b"b", b"c"]
    bench.kill()
    assert len(by_name(bench)["orders"].queues) == 3


def test_what_is_stored_after_an_unclean_stop_was_never_delivered_before():
    bench = Workbench()
    topic = bench.topic()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    consumer = subscription.attach(bench.outlet, Window(1), name="c")
    assert consumer is not None
    bench.publish(bench.channel(), topic, b"old")
    bench.settle()
    bench.kill()
    topic = bench.engine.topic(topic.name)
    outlet = RecordingOutlet()
    topic.subscriptions["s"].attach(outlet, Window(0), name="c")
    bench.publish(bench.channel(), topic, b"new")
    bench.settle()
    flags = {each.record.body: each.is_redelivered for each in outlet.deliveries}
    assert flags == {b"old": True, b"new": False}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_type_that_the_last_consumer_brought_is_shown_after_a_restart(bench, end):
    topic = bench.topic()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    consumer = subscription.attach(bench.outlet, Window(1), name="a", mode=Mode.KEY_SHARED)
    bench.settle()
    subscription.detach(consumer)
    getattr(bench, end)()
    restored = by_name(bench)["orders"].subscriptions["s"]
    assert restored.options.mode is Mode.KEY_SHARED
    assert restored.cursor(topic.queues[0].queue_id).mode is Mode.KEY_SHARED
    restored.attach(bench.outlet, Window(1), name="a", mode=Mode.FAILOVER)
    assert restored.options.mode is Mode.FAILOVER


class TagIsTheKey:
    """A protocol that keeps the ordering key elsewhere than in the record's key."""

    def keys(self, record):
        return []

    def ordering_key(self, record):
        return record.tag


def test_the_ordering_key_is_read_by_the_records_protocol_also_after_a_restart():
    bench = Workbench(facts={int(Wire.PULSAR): TagIsTheKey()})
    topic, channel = bench.topic(), bench.channel()
    options = SubscriptionOptions(mode=Mode.KEY_SHARED)
    bench.engine.create_subscription(topic.name, "s", options)
    bench.settle()
    bench.kill()
    topic, channel = by_name(bench)["orders"], bench.channel()
    outlets = [RecordingOutlet() for _ in "abc"]
    for name, outlet in zip("abc", outlets, strict=True):
        topic.subscriptions["s"].attach(outlet, Window(0), name=name)
    records = [neutral_record(b"%d" % at, key=b"%d" % at, tag=b"one") for at in range(40)]
    for record in records:
        record.reshape(wire=int(Wire.PULSAR))
    bench.publish(channel, topic, *records)
    bench.settle()
    assert sorted(len(outlet.bodies) for outlet in outlets) == [0, 0, 40]


@pytest.mark.parametrize("whole_batches", [False, True])
def test_what_is_acked_of_a_batch_survives_a_kill_before_the_snapshot(whole_batches):
    bench = Workbench(facts={WIRE: BatchFacts()})
    topic = bench.topic()
    options = SubscriptionOptions(whole_batches=whole_batches)
    subscription = bench.engine.create_subscription(topic.name, "s", options)
    bench.publish(bench.channel(), topic, batch(*numbered(10)), batch(*numbered(10, 10)))
    bench.settle()
    outlet = RecordingOutlet()
    subscription.attach(outlet, Window(30), name="c")
    bench.settle()
    queue_id = topic.queues[0].queue_id
    subscription.settle_ranges(queue_id, [(1, 4), (6, 12)])
    bench.settle()
    bench.kill()
    restored = by_name(bench)["orders"].subscriptions["s"]
    assert restored.cursor(queue_id).settled.ranges == [(1, 4), (6, 12)]
    after = RecordingOutlet()
    restored.attach(after, Window(30), name="c")
    bench.settle()
    got = [(each.offset, each.messages, each.is_redelivered) for each in after.deliveries]
    if whole_batches:
        assert got == [(0, 3, True), (10, 8, True)]
    else:
        left = [0, 4, 5, *range(12, 20)]
        assert got == [(offset, 1, True) for offset in left]
        bodies = [each.record.body for each in after.deliveries]
        assert bodies == [b"%d" % number for number in left]


def test_who_waits_for_nothing_new_is_called_after_a_crash_that_lost_a_definition(bench):
    # Recovery reserves the ids that it meets in the log, and commits that by itself.
    topic = bench.topic()
    bench.publish(bench.channel(), topic, b"x")
    bench.turns()
    bench.kill()
    called = []
    bench.engine.after_durable(lambda: called.append(True))
    bench.settle()

    assert called == [True]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_whose_topic_it_is_comes_back(bench, end):
    bench.engine.create_topic(topic_name("theirs"), protocol="pulsar")
    bench.topic("ours")
    bench.settle()
    getattr(bench, end)()

    assert {name: each.protocol for name, each in by_name(bench).items()} == {
        "theirs": "pulsar", "ours": "",
    }  # fmt: skip


@pytest.mark.parametrize("end", ["stop", "kill", "cut_power"])
def test_places_that_were_given_come_back(bench, end):
    topic = bench.topic()
    record = neutral_record(b"placed")
    record.reshape(flags=int(RecordFlag.PLACED))
    placed = Publication(record, first_offset=41, route=DirectRoute(topic.queues[0]))
    bench.channel().publish([placed])
    bench.settle()
    assert placed.offset == 41
    getattr(bench, end)()

    index = by_name(bench)["orders"].queues[0].index
    assert [entry[1] for entry in index.entries(0, 10)] == [41]
    assert index.next_offset == 42
