"""Dead letters: one new record with the cause, in the frame that removes the original."""

import pytest

from kit.workbench import Workbench
from penstock.engine.dead_letter import NeutralDeadLetterFormat
from penstock.engine.host import SubscriptionOptions
from penstock.engine.ports import Death
from penstock.engine.topic import Overflow, TopicPolicy
from penstock.flow.demand import Window
from penstock.model.record import neutral_record
from penstock.model.refusal import RefusalKind
from penstock.model.settlement import Cause
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.testing.storage import FaultKind


@pytest.fixture
def bench():
    return Workbench()


def properties(record):
    pairs = [pair.split(b"\x01") for pair in record.properties.split(b"\x02") if pair]
    return {name.decode(): value.decode() for name, value in pairs}


def with_consumer(bench, topic):
    subscription = bench.engine.create_subscription(
        topic.name, "s", SubscriptionOptions(sees_unsynced=True)
    )
    subscription.attach(bench.outlet, Window(0), name="c")
    return subscription


def test_a_rejected_message_becomes_a_dead_letter_that_says_why_and_whence(bench):
    grave = bench.topic("grave")
    topic = bench.topic(policy=TopicPolicy(dead_letter_topic="grave"))
    subscription = with_consumer(bench, topic)
    record = neutral_record(b"bad", properties=b"a\x011\x02", key=b"k", tag=b"t")
    bench.publish(bench.channel(), topic, record)
    bench.settle()
    bench.outlet.reject_all(subscription)
    bench.settle()
    (letter,) = bench.records(grave)
    assert (letter.body, letter.key, letter.tag) == (b"bad", b"k", b"t")
    facts = properties(letter)
    assert facts["a"] == "1"
    assert facts["dead.cause"] == "rejected"
    assert (facts["dead.topic"], facts["dead.offset"]) == ("orders", "0")
    assert subscription.low_mark(topic.queues[0].queue_id) == 1


def test_a_message_comes_back_as_often_as_the_limit_says_and_then_is_a_dead_letter(bench):
    grave = bench.topic("grave")
    topic = bench.topic(policy=TopicPolicy(dead_letter_topic="grave", delivery_limit=2))
    subscription = with_consumer(bench, topic)
    bench.publish(bench.channel(), topic, b"poison")
    for deliveries in (1, 2, 3):
        bench.settle()
        assert len(bench.outlet.deliveries) == deliveries
        assert bench.records(grave) == []
        subscription.requeue(topic.queues[0].queue_id, [0], count=True)
    bench.settle()
    assert len(bench.outlet.deliveries) == 3, "once, and then as often as the limit says"
    (letter,) = bench.records(grave)
    facts = properties(letter)
    assert (facts["dead.cause"], facts["dead.attempts"]) == ("delivery_limit", "3")


def test_what_comes_back_uncounted_does_not_reach_the_delivery_limit(bench):
    grave = bench.topic("grave")
    topic = bench.topic(policy=TopicPolicy(dead_letter_topic="grave", delivery_limit=1))
    subscription = with_consumer(bench, topic)
    bench.publish(bench.channel(), topic, b"innocent")
    for _ in range(5):
        bench.settle()
        subscription.requeue(topic.queues[0].queue_id, [0], count=False)
    bench.settle()
    assert bench.records(grave) == []


def test_the_letter_and_the_settlement_are_in_one_frame(bench):
    grave = bench.topic("grave")
    topic = bench.topic(policy=TopicPolicy(dead_letter_topic="grave"))
    subscription = with_consumer(bench, topic)
    bench.publish(bench.channel(), topic, b"bad")
    bench.settle()
    frames = bench.store.counters.frames
    bench.outlet.reject_all(subscription)
    bench.turns()
    assert bench.store.counters.frames == frames + 1
    assert len(bench.records(grave)) == 1


def test_after_a_refused_write_letter_and_settlement_are_stored_together_later(bench):
    grave = bench.topic("grave")
    topic = bench.topic(policy=TopicPolicy(dead_letter_topic="grave"))
    subscription = with_consumer(bench, topic)
    bench.publish(bench.channel(), topic, b"bad")
    bench.settle()
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    bench.outlet.reject_all(subscription)
    bench.turns()
    assert bench.records(grave) == []
    bench.advance(200)
    bench.settle()
    bench.kill()
    topics = {topic.name.name: topic for topic in bench.engine.topics()}
    assert len(bench.records(topics["grave"])) == 1
    restored = topics["orders"].subscriptions["s"]
    assert restored.low_mark(topics["orders"].queues[0].queue_id) == 1


def test_a_dropped_head_is_buried_with_its_cause(bench):
    grave = bench.topic("grave")
    topic = bench.topic(policy=TopicPolicy(length_max=1, dead_letter_topic="grave"))
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions(sees_unsynced=True))
    bench.publish(bench.channel(), topic, b"a", b"b", b"c")
    bench.settle()
    letters = bench.records(grave)
    assert [letter.body for letter in letters] == [b"a", b"b"]
    assert {properties(letter)["dead.cause"] for letter in letters} == {"dropped_head"}


def test_a_publish_refused_by_length_is_buried_if_the_policy_says_so(bench):
    grave = bench.topic("grave")
    topic = bench.topic(
        policy=TopicPolicy(
            length_max=1, overflow=Overflow.REJECT_DEAD_LETTER, dead_letter_topic="grave"
        )
    )
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions(sees_unsynced=True))
    bench.publish(bench.channel(), topic, b"a", b"b")
    bench.settle()
    assert [refusal.kind for _, refusal in bench.outlet.refusals] == [RefusalKind.LENGTH_LIMIT]
    assert [letter.body for letter in bench.records(grave)] == [b"b"]


def test_an_expired_message_is_buried(bench):
    grave = bench.topic("grave")
    topic = bench.topic(policy=TopicPolicy(message_ttl_ms=1_000, dead_letter_topic="grave"))
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions(sees_unsynced=True))
    bench.publish(bench.channel(), topic, b"old")
    bench.settle()
    bench.advance(1_001)
    bench.settle()
    (letter,) = bench.records(grave)
    assert properties(letter)["dead.cause"] == "expired"


def test_without_a_target_or_with_a_missing_one_a_death_is_only_counted(bench):
    topic = bench.topic(policy=TopicPolicy(dead_letter_topic="nowhere"))
    subscription = with_consumer(bench, topic)
    bench.publish(bench.channel(), topic, b"bad")
    bench.settle()
    bench.outlet.reject_all(subscription)
    bench.settle()
    assert bench.engine.statistics().deaths_dropped == 1


def test_a_second_death_replaces_the_first_in_the_properties():
    burial = NeutralDeadLetterFormat()

    def death(topic):
        return Death(
            cause=int(Cause.EXPIRED),
            space="",
            topic=topic,
            queue=0,
            offset=7,
            attempts=2,
            time_ms=5,
        )

    once = burial.rewrite(neutral_record(b"body", properties=b"x\x01y\x02"), death("first"))
    twice = burial.rewrite(once, death("second"))
    assert properties(twice)["dead.topic"] == "second"
    assert twice.properties.count(b"dead.topic") == 1
    assert twice.body == b"body"


def test_a_topic_that_overflows_all_the_time_does_not_stop_dispatch():
    flow = FlowSettings(turn_messages_max=4, turn_channel_messages_max=4)
    bench = Workbench(Settings(flow=flow))
    bench.topic("grave")
    full = bench.topic("full", TopicPolicy(length_max=1, dead_letter_topic="grave"))
    bench.reader(full)
    calm = bench.topic("calm")
    bench.reader(calm).attach(bench.outlet, Window(0), name="c")
    flooders, quiet = [bench.channel() for _ in range(8)], bench.channel()

    def flood():
        for flooder in flooders:
            bench.publish(flooder, full, b"x")
        bench.engine.turn()
        bench.sync()

    for _ in range(3):
        flood()
    bench.publish(quiet, calm, b"calm")
    flood()
    flood()
    assert bench.outlet.bodies == [b"calm"]


class Twice:
    """Graves that put one letter into two queues."""

    def __init__(self, *topics):
        self.queues = tuple(topic.queues[0] for topic in topics)
        self.deaths = []

    def route(self, record, death):
        self.deaths.append(death)
        yield neutral_record(b"late " + record.body), self.queues


def test_a_topic_with_graves_asks_them_and_one_letter_may_go_to_several_queues(bench):
    graves = [bench.topic("left"), bench.topic("right")]
    topic = bench.topic(policy=TopicPolicy(dead_letter_topic="left"))
    topic.dead_letter_router = Twice(*graves)
    subscription = with_consumer(bench, topic)
    bench.publish(bench.channel(), topic, b"bad")
    bench.settle()
    frames = bench.store.counters.frames
    bench.outlet.reject_all(subscription)
    bench.turns()
    assert bench.store.counters.frames == frames + 1
    assert [bench.bodies(grave) for grave in graves] == [[b"late bad"], [b"late bad"]]
    (death,) = topic.dead_letter_router.deaths
    assert (death.cause, death.topic, death.target_topic) == (Cause.REJECTED, "orders", "")


class Apart(Twice):
    """Graves that put a letter of its own into each queue."""

    def route(self, record, death):
        for queue in self.queues:
            yield neutral_record(b"late " + record.body), (queue,)


@pytest.mark.parametrize("graves", [Twice, Apart])
def test_of_several_targets_only_the_full_one_is_said_to_lose_letters(bench, graves):
    full = bench.topic("full", TopicPolicy(length_max=1, overflow=Overflow.REJECT))
    bench.reader(full)
    roomy = bench.topic("roomy")
    topic = bench.topic()
    topic.dead_letter_router = graves(full, roomy)
    subscription = with_consumer(bench, topic)
    bench.publish(bench.channel(), topic, b"a", b"b")
    bench.settle()
    bench.outlet.reject_all(subscription)
    bench.settle()
    assert (bench.bodies(full), len(bench.bodies(roomy))) == ([b"late a"], 2)
    troubles = bench.engine.flow_map(bench.clock.monotonic_ms()).troubles
    lost = [(each.culprit.id, each.limit) for each in troubles if each.cause == "letters-lost"]
    assert lost == [("topic/full", "limit/length_max/topic/full")]


def test_a_letter_skips_the_queues_that_are_gone_by_the_time_of_its_frame(bench):
    graves = [bench.topic("left"), bench.topic("right")]
    topic = bench.topic()
    topic.dead_letter_router = Twice(*graves)
    subscription = with_consumer(bench, topic)
    bench.publish(bench.channel(), topic, b"bad")
    bench.settle()
    bench.outlet.reject_all(subscription)
    bench.engine.delete_topic(graves[0].name)
    bench.turns()
    assert bench.bodies(graves[1]) == [b"late bad"]


def test_those_who_do_not_hold_data_look_on_and_write_no_letters(bench):
    grave = bench.topic("grave")
    topic = bench.topic(policy=TopicPolicy(dead_letter_topic="grave", message_ttl_ms=100))
    for name, is_owner in (("owner", True), ("looker", False)):
        options = SubscriptionOptions(sees_unsynced=True, holds_data=is_owner)
        bench.engine.create_subscription(topic.name, name, options)
    bench.publish(bench.channel(), topic, b"a", b"b")
    bench.settle()
    bench.advance(101)
    bench.settle()
    assert bench.bodies(grave) == [b"a", b"b"], "one letter for each death"
    assert topic.subscriptions["looker"].low_mark(topic.queues[0].queue_id) == 2
