"""When a topic that nobody uses goes, and which queues a subscription reads."""

import gc
from itertools import pairwise

import pytest
from msgspec.structs import replace

from kit.queues import consume
from kit.workbench import Workbench
from penstock.engine.host import Start, SubscriptionOptions
from penstock.engine.statistics import topic_statistics
from penstock.engine.subscription.cursor import QueueCursor
from penstock.engine.subscription.settle import REJECTS_PER_TURN
from penstock.engine.topic import DirectRoute, Overflow, TopicPolicy
from penstock.flow.demand import Window
from penstock.flow.quota import QuotaPolicy
from penstock.model.errors import NotFound
from penstock.model.names import topic_name
from penstock.settings.broker import StorageSettings
from penstock.settings.load import Settings


def expiring(bench, name="t", expires_ms=1000):
    return bench.topic(name, TopicPolicy(expires_ms=expires_ms))


def test_time_counts_from_the_last_touch():
    bench = Workbench()
    topic = expiring(bench)
    for _ in range(3):
        bench.advance(900)
        topic.touch(bench.clock.monotonic_ms())
    assert not topic.is_deleted
    bench.advance(1001)
    assert topic.is_deleted


def test_time_counts_from_the_moment_the_last_consumer_left():
    bench = Workbench()
    topic = expiring(bench)
    reader = bench.reader(topic)
    consumers = [reader.attach(bench.outlet, Window(1), name=name) for name in "ab"]
    bench.advance(5300)
    reader.detach(consumers[0])
    bench.advance(5300)
    reader.detach(consumers[1])
    bench.advance(999)
    assert not topic.is_deleted
    bench.advance(2)
    assert topic.is_deleted


def test_a_policy_may_shorten_the_time_or_end_it():
    bench = Workbench()
    topic, other = expiring(bench, "a", 1_000_000), expiring(bench, "b")
    bench.engine.set_policy(topic.name, TopicPolicy(expires_ms=1000))
    bench.engine.set_policy(other.name, TopicPolicy())
    bench.advance(2000)
    assert topic.is_deleted
    assert not other.is_deleted


def test_topics_at_rest_ask_for_no_turn_before_their_time():
    bench = Workbench()
    for number in range(100):
        expiring(bench, f"t{number}", 10_000 + number)
    bench.settle()
    assert bench.engine.next_deadline_ms() > bench.clock.monotonic_ms()
    bench.advance(10_050)
    assert len(bench.engine.topics()) == 49


def test_a_deleted_topic_is_not_remembered():
    bench = Workbench()
    topic = expiring(bench)
    bench.engine.delete_topic(topic.name)
    again = expiring(bench, expires_ms=5000)
    bench.advance(1500)
    assert not again.is_deleted


# ---- leaving ------------------------------------------------------------------------------------
# A topic that is to go buries its dead first: some in every turn, and for good.


MANY = 3 * REJECTS_PER_TURN + 7
GRAVE = TopicPolicy(dead_letter_topic="grave")


class Scene:
    """A topic whose messages are all in the hands of one consumer."""

    def __init__(self, messages=MANY, policy=GRAVE):
        self.bench = Workbench()
        self.grave = self.bench.topic("grave")
        self.topic = self.bench.topic("orders", policy)
        self.queue_id = self.topic.queues[0].queue_id
        self.reader = self.bench.reader(self.topic)
        self.taker = consume(self.reader, Window(0), name="c")
        self.gone = []
        self.bench.engine.watch_removals(self.gone.append)
        channel = self.bench.channel()
        for start in range(0, messages, 100):
            bodies = [b"%d" % at for at in range(start, min(start + 100, messages))]
            self.bench.publish(channel, self.topic, *bodies)
            self.bench.settle()
        assert len(self.taker.offsets) == messages

    def refuse(self, offsets):
        self.reader.reject(self.queue_id, offsets)

    def retire(self):
        self.bench.engine.retire_topic(self.topic.name)

    @property
    def buried(self):
        grave = self.bench.engine.topic(topic_name("grave"))
        return grave.queues[0].index.next_offset

    @property
    def kept(self):
        """What a broker that starts again would deliver of the topic, or bury."""
        topic = self.bench.engine.topic(self.topic.name)
        if topic is None:
            return 0
        queue = topic.queues[0]
        reader = topic.subscriptions["reader"]
        return reader.ready(queue.queue_id) + reader.unacked(queue.queue_id)


@pytest.fixture
def scene():
    return Scene()


def test_with_nobody_to_bury_it_goes_at_once(scene):
    scene.retire()
    assert scene.gone == [scene.topic]
    assert scene.bench.engine.topic(scene.topic.name) is None


def test_no_turn_buries_more_than_its_share(scene):
    scene.refuse(range(MANY))
    scene.retire()
    assert scene.gone == []
    seen = [0]
    while scene.bench.engine.needs_turn:
        scene.bench.engine.turn()
        seen.append(scene.buried)
    assert max(after - before for before, after in pairwise(seen)) <= REJECTS_PER_TURN
    assert seen[-1] == MANY
    assert scene.gone == [], "the letters are not durable yet"
    scene.bench.settle()
    assert scene.gone == [scene.topic]
    assert scene.bench.bodies(scene.grave) == [b"%d" % at for at in range(MANY)]


def test_nothing_is_handed_out_any_more(scene):
    scene.refuse(range(MANY))
    scene.bench.publish(scene.bench.channel(), scene.topic, b"late")
    scene.retire()
    while not scene.gone:
        scene.bench.turns()
        assert scene.reader.take(scene.taker.consumer, 1) == []
        scene.bench.sync()
    assert len(scene.taker.offsets) == MANY
    assert scene.taker.cancelled_by == "deleted"


def test_nor_to_those_who_come_while_it_leaves(scene):
    scene.refuse(range(MANY))
    scene.bench.publish(scene.bench.channel(), scene.topic, b"late")
    scene.retire()
    late = consume(scene.bench.reader(scene.topic, "late"), Window(0), name="d")
    scene.bench.settle()
    assert late.offsets == []
    assert late.cancelled_by == "deleted"
    assert scene.gone == [scene.topic]


def test_those_who_are_refused_meanwhile_are_buried_as_well(scene):
    scene.refuse(range(1, MANY))
    scene.retire()
    scene.bench.turns()
    scene.refuse([0])
    scene.bench.settle()
    assert scene.gone == [scene.topic]
    assert scene.buried == MANY


def test_whoever_does_not_wait_gets_all_of_it_done_now(scene):
    scene.refuse(range(MANY))
    scene.retire()
    scene.bench.engine.delete_topic(scene.topic.name)
    assert scene.gone == [scene.topic]
    scene.bench.settle()
    assert scene.gone == [scene.topic], "once is enough"
    assert scene.buried == MANY


def test_retired_twice_it_goes_once(scene):
    scene.refuse(range(MANY))
    scene.retire()
    scene.retire()
    scene.bench.settle()
    assert scene.gone == [scene.topic]


def test_a_topic_nobody_uses_buries_its_dead_before_it_expires():
    policy = TopicPolicy(dead_letter_topic="grave", expires_ms=1000)
    scene = Scene(policy=policy)
    scene.refuse(range(MANY))
    # Turns are rare on this day: it expires while they wait.
    scene.bench.clock.advance(10)
    scene.reader.detach(scene.taker.consumer)
    scene.bench.engine.turn()
    scene.bench.clock.advance(1100)
    scene.bench.engine.turn()
    assert 0 < scene.buried < MANY
    assert scene.topic.is_deleting
    scene.bench.settle()
    assert scene.gone == [scene.topic]
    assert scene.buried == MANY


def test_few_letters_are_durable_before_it_goes_as_well(scene):
    scene.refuse([0, 1])
    scene.retire()
    assert scene.gone == []
    scene.bench.engine.turn()
    assert scene.gone == []
    scene.bench.settle()
    assert scene.gone == [scene.topic]


@pytest.mark.parametrize("refused", [2, MANY])
@pytest.mark.parametrize("is_sync_first", [True, False])
@pytest.mark.parametrize("end", ["kill", "cut_power"])
def test_wherever_it_ends_nobody_is_lost(refused, is_sync_first, end):
    steps = 0
    is_over = False
    while not is_over:
        scene = Scene()
        scene.refuse(range(refused))
        scene.retire()
        for step in range(steps):
            is_over = bool(scene.gone) and not scene.bench.engine.needs_turn
            if step % 2 != is_sync_first:
                scene.bench.sync()
            elif scene.bench.engine.needs_turn:
                scene.bench.engine.turn()
        getattr(scene.bench, end)()
        assert scene.kept + scene.buried == (MANY if scene.kept else refused), steps
        steps += 1
    assert scene.kept == 0
    assert scene.buried == refused


# ---- subscriptions of some queues ---------------------------------------------------------------
# Pulsar's consumers subscribe and unsubscribe partition by partition.


class Partitions:
    """A topic of four queues with three messages in each."""

    def __init__(self, bench=None, policy=None, messages=3, size=1):
        self.bench = bench or Workbench()
        self.topic = self.bench.topic("t", policy, queues=4)
        self.ids = [queue.queue_id for queue in self.topic.queues]
        self.channel = self.bench.channel()
        self.publish(messages, size)

    @property
    def engine(self):
        return self.bench.engine

    @property
    def subscription(self):
        return self.engine.topic(self.topic.name).subscriptions.get("s")

    def publish(self, messages, size=1):
        for queue in self.engine.topic(self.topic.name).queues:
            bodies = [b"x" * size] * messages
            self.bench.publish(self.channel, DirectRoute(queue), *bodies)
        self.bench.settle()

    def subscribe(self, *numbers, **keywords):
        options = SubscriptionOptions(**keywords)
        for number in numbers:
            self.engine.subscribe_queue(self.topic.name, "s", self.ids[number], options)
        return self.subscription

    def unsubscribe(self, *numbers):
        for number in numbers:
            self.engine.unsubscribe_queue(self.topic.name, "s", self.ids[number])

    @property
    def read(self):
        """Numbers of the queues that the subscription reads."""
        subscription = self.subscription
        return [n for n, queue_id in enumerate(self.ids) if subscription.reads(queue_id)]

    def restart(self, end):
        getattr(self.bench, end)()
        self.channel = self.bench.channel()


def test_a_subscription_of_two_queues_of_four_gets_their_messages_only():
    world = Partitions()
    subscription = world.subscribe(0, 2)
    taker = consume(subscription, Window(0), name="c", settles=True)
    world.publish(1)
    assert sorted({delivery.queue_id for delivery in taker.deliveries}) == [
        world.ids[0],
        world.ids[2],
    ]
    assert len(taker.offsets) == 8
    with pytest.raises(NotFound, match="'s' does not read a queue"):
        subscription.low_mark(world.ids[1])


def test_a_queue_that_is_added_begins_where_it_is_told_to():
    world = Partitions()
    world.subscribe(0)
    subscription = world.subscribe(1, start=Start.LATEST)
    assert [subscription.ready(world.ids[number]) for number in (0, 1)] == [3, 0]
    world.subscribe(1, start=Start.EARLIEST)
    assert subscription.ready(world.ids[1]) == 0, "it reads it already"


def test_a_queue_the_topic_does_not_have_cannot_be_subscribed():
    world = Partitions()
    with pytest.raises(NotFound, match="no queue with id 999"):
        world.engine.subscribe_queue(world.topic.name, "s", 999, SubscriptionOptions())
    assert world.subscription is None


def test_queues_nobody_subscribed_are_neither_pinned_nor_deleted():
    storage = StorageSettings(segment_bytes_max=64 * 1024, settled_keep_ms=0)
    world = Partitions(Workbench(Settings(storage=storage)), messages=0)
    subscription = world.subscribe(0, 2)
    for number in range(4):
        # One queue after the other: segments of their own.
        queue = world.topic.queues[number]
        for _ in range(30):
            world.bench.publish(world.channel, DirectRoute(queue), *[b"x" * 1024] * 10)
            world.bench.settle()

    def chores():
        for _ in range(3):
            world.bench.advance(storage.retention_sweep_ms)
            world.bench.settle()
        return [queue.index.min_offset for queue in world.topic.queues]

    pinned = chores()
    assert (pinned[0], pinned[2]) == (0, 0)
    assert min(pinned[1], pinned[3]) > 200
    world.unsubscribe(2)
    assert chores()[2] > 200
    assert subscription.ready(world.ids[0]) == 300
    world.publish(1)
    assert [queue.index.next_offset for queue in world.topic.queues] == [301] * 4


def test_quotas_and_ages_count_only_the_queues_it_reads():
    world = Partitions()
    whole = topic_statistics(world.topic, world.bench.clock.wall_ms())
    assert whole.ready == 0
    world.subscribe(0)
    one = topic_statistics(world.topic, world.bench.clock.wall_ms())
    world.subscribe(1)
    two = topic_statistics(world.topic, world.bench.clock.wall_ms())
    assert (one.ready, two.ready) == (3, 6)
    assert two.backlog_bytes == 2 * one.backlog_bytes > 0


def test_publishers_held_by_a_quota_go_on_when_the_queue_is_unsubscribed():
    policy = TopicPolicy(quota_bytes_max=2000, quota_policy=QuotaPolicy.HOLD)
    world = Partitions(policy=policy, messages=0)
    world.subscribe(0, 1)
    to_first = DirectRoute(world.topic.queues[0])
    world.bench.publish(world.channel, to_first, b"x" * 3000)
    world.bench.settle()
    (held,) = world.bench.publish(world.channel, to_first, b"y")
    world.bench.settle()
    assert held not in world.bench.outlet.confirmed_tokens
    world.unsubscribe(0)
    world.bench.settle()
    assert held in world.bench.outlet.confirmed_tokens


@pytest.mark.parametrize("is_log_held", [False, True])
def test_what_arrives_in_a_queue_nobody_reads_is_no_part_of_the_quota(is_log_held):
    policy = TopicPolicy(quota_bytes_max=2000, quota_policy=QuotaPolicy.EXCEPTION)
    storage = StorageSettings(write_buffers_max=1, write_buffer_bytes=64 * 1024)
    bench = Workbench(Settings(storage=storage))
    world = Partitions(bench, policy=policy, messages=0)
    world.subscribe(0)
    read, unread = world.topic.queues[:2]
    if is_log_held:
        bench.publish(world.channel, bench.topic("other"), b"x" * 64 * 1024)
        bench.turns()
        assert bench.engine.log_is_held
    bench.publish(world.channel, DirectRoute(unread), *[b"x" * 500] * 10)
    bench.engine.turn()
    bench.publish(world.channel, DirectRoute(read), b"y")
    bench.settle()
    assert bench.outlet.refusals == []
    assert bench.engine.verdict(world.topic) is None
    # Of the queue that is read the same counts at the very publish.
    bench.publish(world.channel, DirectRoute(read), *[b"x" * 500] * 10)
    bench.settle()
    assert len(bench.refusal_kinds) == 10 - 4


def test_who_is_behind_in_one_queue_does_not_pay_for_arrivals_in_another():
    policy = TopicPolicy(quota_bytes_max=3000, quota_policy=QuotaPolicy.EXCEPTION)
    world = Partitions(policy=policy, messages=0)
    for number, name in enumerate(("first", "second")):
        queue_id = world.ids[number]
        options = SubscriptionOptions()
        world.bench.engine.subscribe_queue(world.topic.name, name, queue_id, options)
    for queue in world.topic.queues[:2]:
        world.bench.publish(world.channel, DirectRoute(queue), *[b"x" * 500] * 4)
    world.bench.settle()
    assert world.bench.outlet.refusals == []


def test_what_arrives_in_a_queue_nobody_reads_is_no_part_of_a_length_limit():
    policy = TopicPolicy(length_max=3, overflow=Overflow.REJECT)
    world = Partitions(policy=policy, messages=0)
    world.subscribe(0)
    read, unread = world.topic.queues[:2]
    world.bench.publish(world.channel, DirectRoute(unread), *[b"x"] * 10)
    world.bench.publish(world.channel, DirectRoute(read), *[b"y"] * 3)
    world.bench.settle()
    assert world.bench.outlet.refusals == []
    world.bench.publish(world.channel, DirectRoute(read), b"y")
    world.bench.settle()
    assert len(world.bench.refusal_kinds) == 1


def test_a_length_limit_drops_from_the_queues_it_reads():
    world = Partitions(policy=TopicPolicy(length_max=2), messages=0)
    subscription = world.subscribe(1, 3, sees_unsynced=True)
    world.publish(3)
    assert sum(subscription.ready(world.ids[number]) for number in (1, 3)) == 2


def test_a_queue_that_is_subscribed_again_is_not_what_an_earlier_consumer_still_waits_for():
    world = Partitions()
    subscription = world.subscribe(0, 1, 2)
    consume(subscription, Window(2), name="c", queue_ids=world.ids[:2])
    world.unsubscribe(0)
    world.subscribe(0)
    assert len(subscription.consumers) == 1
    world.unsubscribe(1)  # the last that it reads: it is not left alone with nothing to read
    assert subscription.consumers == []


def test_who_reads_only_a_queue_that_is_unsubscribed_is_told_and_the_others_go_on():
    world = Partitions()
    subscription = world.subscribe(0, 1)
    one = consume(subscription, Window(2), name="one", queue_ids=[world.ids[0]])
    both = consume(subscription, Window(0), name="both")
    world.bench.settle()
    world.unsubscribe(0)
    assert one.cancelled_by == "unsubscribed"
    assert both.cancelled_by == ""
    assert [each.name for each in subscription.consumers] == ["both"]
    assert both.consumer.inflight.messages == 3
    world.publish(1)
    assert len([each for each in both.deliveries if each.queue_id == world.ids[1]]) == 4
    assert subscription.statistics().unacked == 4


def test_a_subscription_goes_with_its_last_queue():
    world = Partitions()
    subscription = world.subscribe(0, 3)
    taker = consume(subscription, Window(0), name="c")
    world.unsubscribe(0)
    assert world.read == [3]
    world.unsubscribe(3)
    assert world.subscription is None
    assert taker.cancelled_by == "unsubscribed"
    assert world.engine.topic(world.topic.name) is world.topic
    with pytest.raises(NotFound, match="no subscription 's'"):
        world.unsubscribe(3)


def test_one_queue_may_be_taken_from_a_subscription_of_all():
    world = Partitions()
    world.engine.create_subscription(world.topic.name, "s", SubscriptionOptions())
    world.unsubscribe(1)
    assert world.read == [0, 2, 3]
    with pytest.raises(NotFound, match="does not read"):
        world.unsubscribe(1)


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [1, 2]])
def test_a_new_queue_joins_those_who_read_all_of_them_from_its_first_message(numbers):
    world = Partitions()
    subscription = world.subscribe(*numbers, start=Start.LATEST)
    everywhere = consume(subscription, Window(0), name="c")
    world.bench.settle()
    world.engine.grow_topic(world.topic.name, 5)
    new = world.topic.queues[4]
    world.bench.publish(world.channel, DirectRoute(new), b"first")
    world.bench.settle()
    assert [each.record.body for each in everywhere.deliveries] == (
        [b"first"] if len(numbers) == 4 else []
    )
    world.restart("kill")
    assert world.subscription.reads(new.queue_id) is (len(numbers) == 4)


@pytest.mark.parametrize("end", ["stop", "kill", "cut_power"])
def test_which_queues_are_read_survives_a_restart(end):
    world = Partitions()
    subscription = world.subscribe(0, 2)
    consume(subscription, Window(0), name="c", settles=True, queue_ids=[world.ids[2]])
    world.bench.settle()
    world.unsubscribe(0)
    world.subscribe(3)
    world.bench.settle()
    world.restart(end)
    assert world.read == [2, 3]
    subscription = world.subscription
    assert [subscription.low_mark(world.ids[number]) for number in (2, 3)] == [3, 0]
    world.publish(1)
    world.restart("stop")
    assert world.read == [2, 3]


@pytest.mark.parametrize("end", ["kill", "cut_power"])
@pytest.mark.parametrize("is_sync_first", [True, False])
def test_wherever_an_unsubscribe_ends_the_queue_is_read_as_before_or_not_at_all(end, is_sync_first):
    steps = 0
    is_over = False
    seen = set()
    while not is_over:
        world = Partitions()
        world.subscribe(0, 1).settle_upto(world.ids[0], 2)
        world.bench.settle()
        world.unsubscribe(0)
        for step in range(steps):
            is_over = not world.engine.needs_turn and step > 3
            if step % 2 != is_sync_first:
                world.bench.sync()
            elif world.engine.needs_turn:
                world.engine.turn()
        world.restart(end)
        subscription = world.subscription
        seen.add(tuple(world.read))
        if 0 in world.read:
            assert subscription.low_mark(world.ids[0]) == 2
        assert subscription.ready(world.ids[1]) == 3
        # Whoever subscribes again begins anew, whatever the log still knows of former times.
        if 0 not in world.read:
            world.subscribe(0)
            world.bench.settle()
            world.restart(end)
            assert world.subscription.ready(world.ids[0]) == 3
        steps += 1
    assert seen == {(0, 1), (1,)}


def test_deleted_subscriptions_go_without_the_collector():
    """It looks at what lived for long so rarely that they would fill the memory."""
    bench = Workbench()
    topic = bench.topic(queues=3)
    gc.collect()
    gc.disable()
    try:
        for number in range(5):
            options = SubscriptionOptions(is_durable=number % 2 == 0)
            bench.engine.create_subscription(topic.name, f"s{number}", options)
        bench.settle()
        for number in range(5):
            bench.engine.delete_subscription(topic.name, f"s{number}")
        bench.settle()
        left = [each for each in gc.get_objects() if isinstance(each, QueueCursor)]
    finally:
        gc.enable()
    assert [each for each in left if each.queue.topic is topic] == []


def test_what_an_owner_allows_to_be_unacked_survives_a_restart_and_holds_for_new_ones():
    bench = Workbench()
    topic = bench.topic("a", TopicPolicy(unacked_max=3))
    bench.engine.create_subscription(topic.name, "early", SubscriptionOptions())
    bench.settle()
    bench.stop()
    topic = bench.engine.topic(topic.name)
    bench.engine.create_subscription(topic.name, "late", SubscriptionOptions(unacked_max=9))
    assert {each.unacked_max for each in topic.subscriptions.values()} == {3}
    bench.engine.set_policy(topic.name, TopicPolicy())
    unlimited = bench.settings.flow.unacked_subscription_max
    assert [each.unacked_max for each in topic.subscriptions.values()] == [unlimited, 9]


# Rules laid over those of its owner.


def lengthened(policy):
    return replace(policy, retention_ms=max(policy.retention_ms, 5000))


def test_rules_laid_over_are_in_effect_and_stay_when_the_owner_changes_others():
    bench = Workbench()
    topic = bench.topic("a", TopicPolicy(length_max=5))
    bench.engine.overlay_policies([(topic, lengthened)])
    assert topic.policy == TopicPolicy(length_max=5, retention_ms=5000)
    bench.engine.set_policy(topic.name, TopicPolicy(length_max=6))
    assert topic.policy == TopicPolicy(length_max=6, retention_ms=5000)
    bench.engine.apply_policies([(topic, TopicPolicy(retention_ms=9000))])
    assert topic.policy == TopicPolicy(retention_ms=9000)
    bench.engine.overlay_policies([(topic, None)])
    assert topic.policy == topic.own_policy == TopicPolicy(retention_ms=9000)


def test_rules_laid_over_are_never_stored():
    bench = Workbench()
    topic = bench.topic("a", TopicPolicy(length_max=5))
    bench.engine.overlay_policies([(topic, lengthened)])
    bench.engine.grow_topic(topic.name, 2)
    bench.engine.terminate_topic(topic.name)
    bench.settle()
    bench.kill()
    assert bench.engine.topic(topic.name).policy == TopicPolicy(length_max=5)


def test_a_time_to_live_laid_over_expires_what_waits_already():
    bench = Workbench()
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.publish(bench.channel(), topic, b"1", b"2")
    bench.settle()
    bench.advance(2000)
    bench.engine.overlay_policies([(topic, lambda policy: replace(policy, message_ttl_ms=1000))])
    bench.advance(1)
    assert reader.ready(topic.queues[0].queue_id) == 0


def test_who_watches_hears_of_each_new_topic():
    bench = Workbench()
    heard = []
    bench.engine.watch_creations(heard.append)
    topic = bench.topic()
    assert heard == [topic]
