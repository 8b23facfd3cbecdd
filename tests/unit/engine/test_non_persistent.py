"""Topics without a log: handed out at once to who has demand, or dropped and counted."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import FailoverRule, Mode
from penstock.engine.non_persistent import UNUSED_MS
from penstock.engine.subscription.consumer import Consumer, ConsumerRefusal, RefusalReason
from penstock.engine.topic import TopicPolicy
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import Permits, Withheld
from penstock.flow.reason import Reason
from penstock.model.errors import AlreadyExists, InvariantBroken, NotFound
from penstock.model.names import NON_PERSISTENT, topic_name
from penstock.model.record import neutral_record
from penstock.model.refusal import RefusalKind
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings
from penstock.testing.outlet import ActiveChanged, Cancelled, Confirmed, RecordingOutlet

NAME = topic_name("ticks", "", NON_PERSISTENT)


@pytest.fixture
def bench():
    return Workbench()


@pytest.fixture
def topic(bench):
    return bench.engine.non_persistent.create(NAME)


def route(bench, number=0):
    return bench.engine.non_persistent.route(NAME, number)


def attach(subscription, permits=0, *, name="c", **keywords):
    """A consumer with an outlet of its own, and that outlet."""
    outlet = RecordingOutlet()
    consumer = subscription.attach(outlet, Permits(permits), name=name, **keywords)
    assert isinstance(consumer, Consumer), consumer
    return consumer, outlet


def bodies(outlet):
    return [delivery.record.body for delivery in outlet.deliveries]


def events(outlet, kind):
    return [event for event in outlet.events if isinstance(event, kind)]


def batch(messages, body=b"batch"):
    record = neutral_record(body)
    record.reshape(messages=messages)
    return record


def keyed(key, body):
    return neutral_record(body, key=key)


def test_a_message_is_handed_out_and_confirmed_in_the_same_turn_without_the_disk(bench, topic):
    consumer, outlet = attach(topic.subscribe("s"), 10)
    end = bench.engine.log_end
    tokens = bench.publish(bench.channel(), route(bench), b"a", b"b")
    bench.engine.turn()
    assert bodies(outlet) == [b"a", b"b"]
    assert bench.outlet.confirmed_tokens == tokens
    (told,) = events(bench.outlet, Confirmed)
    confirmed = told.confirmations[0]
    assert (confirmed.queue_id, confirmed.offset, confirmed.position) == (0, -1, -1)
    assert confirmed.store_ms == bench.engine.clock.wall_ms()
    assert {delivery.offset for delivery in outlet.deliveries} == {-1}
    assert {delivery.queue_id for delivery in outlet.deliveries} == set(topic.queue_ids)
    assert bench.engine.log_end == end
    assert bench.engine.take_sync_job() is None
    assert consumer.demand.available_messages() == 8
    assert consumer.inflight.messages == 0, "nothing is in flight: there is nothing to ack"


def test_what_nobody_has_demand_for_is_dropped_and_counted(bench, topic):
    consumer, outlet = attach(topic.subscribe("s"), 2)
    topic.subscribe("nobody")
    channel = bench.channel()
    tokens = bench.publish(channel, route(bench), b"a", b"b", b"c")
    bench.settle()
    assert bodies(outlet) == [b"a", b"b"]
    assert bench.outlet.confirmed_tokens == tokens, "a drop is no refusal"
    consumer.grant(5)
    bench.settle()
    assert bodies(outlet) == [b"a", b"b"], "nothing was kept for later"
    bench.publish(channel, route(bench), b"d")
    bench.settle()
    assert bodies(outlet) == [b"a", b"b", b"d"]
    told = topic.statistics()
    assert (told.published, told.dropped) == (4, 5)
    assert [(each.name, each.dropped) for each in told.subscriptions] == [("s", 1), ("nobody", 4)]
    statistics = bench.engine.statistics()
    assert (statistics.non_persistent_published, statistics.non_persistent_dropped) == (4, 5)
    assert channel.connection.bytes_held == 0


def test_without_a_subscription_everything_is_dropped(bench, topic):
    tokens = bench.publish(bench.channel(), route(bench), b"a", batch(3))
    bench.settle()
    assert topic.dropped_messages == 4
    assert bench.outlet.confirmed_tokens == tokens


def test_every_subscription_gets_its_own_copy(bench, topic):
    outlets = [attach(topic.subscribe(name), 10)[1] for name in ("one", "two")]
    bench.publish(bench.channel(), route(bench), b"a")
    bench.settle()
    assert [bodies(outlet) for outlet in outlets] == [[b"a"], [b"a"]]
    one, two = (outlet.deliveries[0] for outlet in outlets)
    assert one is not two


def test_a_batch_is_never_split_and_its_permits_are_made_up_for(bench, topic):
    consumer, outlet = attach(topic.subscribe("s"), 1)
    channel = bench.channel()
    bench.publish(channel, route(bench), batch(4))
    bench.settle()
    assert [each.messages for each in outlet.deliveries] == [4]
    consumer.grant(3)
    bench.publish(channel, route(bench), b"lost")
    bench.settle()
    assert len(outlet.deliveries) == 1
    assert topic.dropped_messages == 1
    consumer.grant(1)
    bench.publish(channel, route(bench), b"a")
    bench.settle()
    assert bodies(outlet) == [b"batch", b"a"]


def test_shared_consumers_take_turns_and_one_without_permits_holds_nobody(bench, topic):
    subscription = topic.subscribe("s", Mode.SHARED)
    outlets = [attach(subscription, permits, name=f"c{permits}")[1] for permits in (3, 0, 3)]
    bench.publish(bench.channel(), route(bench), *[b"%d" % number for number in range(7)])
    bench.settle()
    assert [len(outlet.deliveries) for outlet in outlets] == [3, 0, 3]
    assert subscription.dropped_messages == 1


def test_a_higher_priority_is_served_first_and_the_rest_goes_on(bench, topic):
    subscription = topic.subscribe("s")
    low = attach(subscription, 2, name="low")[1]
    high = attach(subscription, 2, name="high", priority=1)[1]
    bench.publish(bench.channel(), route(bench), b"a", b"b", b"c")
    bench.settle()
    assert (bodies(high), bodies(low)) == ([b"a", b"b"], [b"c"])


def test_an_exclusive_subscription_refuses_a_second_consumer(bench, topic):
    subscription = topic.subscribe("s", Mode.EXCLUSIVE)
    attach(subscription, name="first")
    refusal = subscription.attach(RecordingOutlet(), Permits(), name="second")
    assert isinstance(refusal, ConsumerRefusal)
    assert refusal.reason is RefusalReason.BUSY


def test_the_type_follows_the_consumers(bench, topic):
    subscription = topic.subscribe("s", Mode.SHARED)
    first, _ = attach(subscription, mode=Mode.SHARED)
    refusal = subscription.attach(RecordingOutlet(), Permits(), name="x", mode=Mode.FAILOVER)
    assert isinstance(refusal, ConsumerRefusal)
    assert refusal.reason is RefusalReason.MODE
    subscription.detach(first)
    attach(subscription, mode=Mode.FAILOVER)


def test_failover_has_one_active_consumer_and_the_next_takes_over_at_once(bench, topic):
    subscription = topic.subscribe("s", Mode.FAILOVER)
    rule = FailoverRule(takeover_ms=1000)
    first, first_outlet = attach(subscription, 5, name="a", failover=rule)
    _, second_outlet = attach(subscription, 5, name="b", failover=rule)
    channel = bench.channel()
    bench.publish(channel, route(bench), b"x")
    bench.settle()
    statistics = subscription.statistics().each_consumer
    assert [each.blocked_by for each in statistics] == [(), (Withheld.INACTIVE,)]
    subscription.detach(first)
    bench.publish(channel, route(bench), b"y")
    bench.settle()
    assert (bodies(first_outlet), bodies(second_outlet)) == ([b"x"], [b"y"])
    assert [event.is_active for event in events(second_outlet, ActiveChanged)] == [True]


def test_key_shared_gives_a_key_to_its_owner_or_to_nobody(bench, topic):
    subscription = topic.subscribe("s", Mode.KEY_SHARED)
    low = attach(subscription, 10, name="low", key_ranges=[(0, 32767)])
    high = attach(subscription, 0, name="high", key_ranges=[(32768, 65535)])
    channel = bench.channel()
    keys = [b"k%d" % number for number in range(20)]
    bench.publish(channel, route(bench), *[keyed(key, key) for key in keys])
    bench.settle()
    owned = bodies(low[1])
    assert 0 < len(owned) <= 10
    assert bodies(high[1]) == []
    assert subscription.dropped_messages == 20 - len(owned)
    high[0].grant(100)
    low[0].grant(100)
    bench.publish(channel, route(bench), *[keyed(key, key) for key in keys])
    bench.settle()
    assert set(bodies(high[1])).isdisjoint(bodies(low[1]))
    assert len(bodies(low[1])) - len(owned) + len(bodies(high[1])) == 20


def test_a_socket_that_takes_nothing_loses_messages_and_is_bounded(bench, topic):
    outlet = RecordingOutlet()
    unsent = UnsentLimit(3, 0)
    consumer = topic.subscribe("s").attach(outlet, Permits(100), unsent=unsent, name="slow")
    channel = bench.channel()
    bench.publish(channel, route(bench), *[b"%d" % number for number in range(10)])
    bench.settle()
    assert len(outlet.deliveries) == 3
    assert topic.dropped_messages == 7
    consumer.sent(3, unsent.bytes)
    bench.publish(channel, route(bench), b"a")
    bench.settle()
    assert bodies(outlet)[3:] == [b"a"]


def test_partitions_have_consumers_of_their_own(bench):
    topic = bench.engine.non_persistent.create(NAME, queues=2)
    subscription = topic.subscribe("s", Mode.EXCLUSIVE)
    outlets = [
        attach(subscription, 5, name=f"c{number}", queue_ids=[topic.queue_ids[number]])[1]
        for number in (0, 1)
    ]
    channel = bench.channel()
    bench.publish(channel, route(bench, 1), b"b")
    bench.publish(channel, route(bench, 0), b"a")
    bench.settle()
    assert [bodies(outlet) for outlet in outlets] == [[b"a"], [b"b"]]


def test_an_alarm_holds_their_publishers_like_all_others(bench, topic):
    _, outlet = attach(topic.subscribe("s"), 10)
    bench.engine.set_alarm("memory", 1 << 50)
    channel = bench.channel()
    bench.publish(channel, route(bench), b"a")
    bench.turns()
    assert bodies(outlet) == []
    assert Reason.MEMORY in channel.connection.gate.reasons
    bench.engine.set_alarm("memory", 0)
    bench.settle()
    assert bodies(outlet) == [b"a"]


def test_a_message_that_is_too_large_is_refused_and_the_others_of_its_list_are_not():
    bench = Workbench(Settings(topics=TopicSettings(message_bytes_max=1024)))
    topic = bench.engine.non_persistent.create(NAME)
    _, outlet = attach(topic.subscribe("s"), 10)
    channel = bench.channel()
    tokens = bench.publish(channel, route(bench), b"a", bytes(2000), b"b")
    bench.settle()
    assert bodies(outlet) == [b"a", b"b"]
    assert bench.refusal_kinds == [RefusalKind.TOO_LARGE]
    assert bench.outlet.confirmed_tokens == [tokens[0], tokens[2]]
    assert channel.connection.bytes_held == 0


def test_it_is_another_topic_than_the_one_with_a_log_of_that_name(bench, topic):
    stored = bench.topic("ticks", TopicPolicy())
    assert bench.engine.topics() == [stored]
    assert stored.name != topic.name
    assert str(topic.name) == "non-persistent://ticks"
    bench.publish(bench.channel(), stored, b"a")
    bench.settle()
    assert topic.published_messages == 0
    assert bench.bodies(stored) == [b"a"]


def test_names_of_one_domain_make_no_topic_of_the_other(bench):
    with pytest.raises(InvariantBroken):
        bench.engine.create_topic(NAME)
    with pytest.raises(AlreadyExists):
        bench.engine.non_persistent.create(topic_name("ticks"))


def test_a_deleted_topic_tells_its_consumers_and_its_route_finds_the_next_one(bench, topic):
    _, outlet = attach(topic.subscribe("s"), 10)
    channel, way = bench.channel(), route(bench)
    bench.engine.non_persistent.delete(NAME, "deleted")
    assert [event.cause for event in events(outlet, Cancelled)] == ["deleted"]
    with pytest.raises(NotFound):
        bench.engine.non_persistent.delete(NAME)
    tokens = bench.publish(channel, way, b"a")
    bench.settle()
    assert bench.outlet.confirmed_tokens == tokens
    assert channel.connection.bytes_held == 0
    again = bench.engine.non_persistent.create(NAME)
    _, outlet = attach(again.subscribe("s"), 10)
    bench.publish(channel, way, b"b")
    bench.settle()
    assert bodies(outlet) == [b"b"]


def test_an_unsubscribed_consumer_is_told_and_gets_nothing_more(bench, topic):
    _, outlet = attach(topic.subscribe("s"), 10)
    topic.unsubscribe("s")
    bench.publish(bench.channel(), route(bench), b"a")
    bench.settle()
    assert [event.cause for event in events(outlet, Cancelled)] == ["unsubscribed"]
    assert bodies(outlet) == []
    with pytest.raises(NotFound):
        topic.unsubscribe("s")


def test_one_that_nobody_uses_goes_and_one_that_is_used_stays(bench, topic):
    topics = bench.engine.non_persistent
    consumer, _ = attach(topic.subscribe("s"), 1)
    bench.advance(3 * UNUSED_MS)
    assert topics.get(NAME) is topic
    topic.subscribe("s").detach(consumer)
    bench.publish(bench.channel(), route(bench), b"a")
    bench.advance(UNUSED_MS - 1)
    assert topics.get(NAME) is topic
    bench.advance(2 * UNUSED_MS)
    assert topics.get(NAME) is None
    assert bench.engine.statistics().non_persistent_published == 1, "counters do not fall"


def test_there_are_bounds_for_topics_subscriptions_and_consumers():
    settings = TopicSettings(
        queues_max=2, subscriptions_per_topic_max=1, consumers_per_subscription_max=1
    )
    bench = Workbench(Settings(topics=settings))
    topics = bench.engine.non_persistent
    topic = topics.create(NAME, queues=2)
    with pytest.raises(AlreadyExists, match="queues_max"):
        topics.create(topic_name("more", "", NON_PERSISTENT))
    subscription = topic.subscribe("s")
    with pytest.raises(AlreadyExists, match="subscriptions_per_topic_max"):
        topic.subscribe("t")
    attach(subscription)
    refusal = subscription.attach(RecordingOutlet(), Permits(), name="second")
    assert isinstance(refusal, ConsumerRefusal)
    assert refusal.reason is RefusalReason.TOO_MANY
    topics.delete(NAME)
    topics.create(topic_name("more", "", NON_PERSISTENT))


def test_a_restart_knows_nothing_of_them(bench, topic):
    topic.subscribe("s")
    bench.stop()
    assert len(bench.engine.non_persistent) == 0


def test_the_flow_map_shows_their_subscriptions_and_why_consumers_get_nothing(bench, topic):
    attach(topic.subscribe("s"), 0)
    views = {view.name: view for view in bench.engine.flow_map(0).views}
    (consumer,) = views["non-persistent://ticks/s"].consumers
    assert consumer.blocked_by == (Withheld.DEMAND,)
