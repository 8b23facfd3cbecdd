"""When a topic that nobody uses goes."""

from itertools import pairwise

import pytest

from kit.queues import consume
from kit.workbench import Workbench
from penstock.engine.subscription.settle import REJECTS_PER_TURN
from penstock.engine.topic import TopicPolicy
from penstock.flow.demand import Window
from penstock.model.names import topic_name


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
