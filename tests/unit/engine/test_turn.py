"""Chores: retention, the idle mark, topics nobody uses, an engine at rest."""

import pytest

from kit.workbench import Workbench
from penstock.engine import turn
from penstock.engine.host import SubscriptionOptions
from penstock.engine.topic import DirectRoute, TopicPolicy
from penstock.engine.turn import SWEEP_STEPS_MAX
from penstock.flow.demand import Window
from penstock.model.names import topic_name
from penstock.settings.broker import StorageSettings
from penstock.settings.load import Settings

KIB = 1024


@pytest.fixture
def bench():
    return Workbench()


def small_segments():
    storage = StorageSettings(segment_bytes_max=64 * KIB, settled_keep_ms=0)
    return Workbench(Settings(storage=storage))


def fill(bench, topic, messages=300):
    channel = bench.channel()
    for _ in range(messages // 10):
        bench.publish(channel, topic, *[b"x" * KIB] * 10)
        bench.settle()


def chores(bench):
    for _ in range(3):
        bench.advance(bench.settings.storage.retention_sweep_ms)
        bench.settle()


def test_segments_stay_as_long_as_somebody_keeps_their_records():
    bench = small_segments()
    topic = bench.topic()
    (queue,) = topic.queues
    queue.kept_from = 100
    fill(bench, topic)
    chores(bench)
    assert 0 < queue.index.min_offset <= 100
    queue.kept_from = None
    chores(bench)
    assert queue.index.min_offset > 100


def test_segments_go_when_every_cursor_has_passed_them():
    bench = small_segments()
    topic = bench.topic()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    fill(bench, topic)
    chores(bench)
    kept = bench.store.log_bytes
    queue = topic.queues[0]
    assert queue.index.min_offset == 0
    subscription.settle_upto(queue.queue_id, 250)
    chores(bench)
    assert bench.store.log_bytes < kept / 2
    assert 0 < queue.index.min_offset <= 250
    subscription.settle_upto(queue.queue_id, 300)
    assert queue.index.entries(0, 1)[0][1] == queue.index.min_offset


class Asked:
    """Counts the queues that a sweep asks what they need."""

    def __init__(self, monkeypatch):
        self.queues = 0
        plain = turn._lowest_needed

        def counted(queue, wall_ms, kept):
            self.queues += 1
            return plain(queue, wall_ms, kept)

        monkeypatch.setattr(turn, "_lowest_needed", counted)


def many_queues(count):
    """A segment with a message of each of so many queues, settled, and a later one."""
    bench = small_segments()
    topic, channel = bench.topic(queues=count), bench.channel()
    for queue in topic.queues:
        bench.publish(channel, DirectRoute(queue), b"x")
        bench.turns()
    bench.settle()
    fill(bench, topic, messages=100)
    for _ in range(20):
        bench.clock.advance(100)
        bench.settle()
    return bench, topic


def sweep_pieces(bench, asked):
    """Turns at deadlines until a sweep is over; how many queues each of them asked."""
    pieces = []
    while not pieces or pieces[-1]:
        due_ms = bench.engine.next_deadline_ms()
        bench.clock.advance(max(0, due_ms - bench.clock.monotonic_ms()))
        before = asked.queues
        bench.engine.turn()
        bench.settle()
        if asked.queues > before or pieces:
            pieces.append(asked.queues - before)
    return pieces


def test_a_sweep_over_very_many_queues_is_done_in_pieces(monkeypatch):
    bench, topic = many_queues(2 * SWEEP_STEPS_MAX)
    asked = Asked(monkeypatch)
    pieces = sweep_pieces(bench, asked)
    assert max(pieces) <= SWEEP_STEPS_MAX
    assert len(pieces) >= 5  # each queue is asked twice: what it needs, and when it lets go
    assert all(queue.index.min_offset >= 1 for queue in topic.queues[1:])


def test_who_subscribes_while_a_sweep_goes_on_keeps_what_it_finds(monkeypatch):
    bench, topic = many_queues(2 * SWEEP_STEPS_MAX)
    asked, last = Asked(monkeypatch), topic.queues[-1]
    while asked.queues < 3 * SWEEP_STEPS_MAX - 10:
        bench.clock.advance(max(0, bench.engine.next_deadline_ms() - bench.clock.monotonic_ms()))
        bench.engine.turn()
        bench.settle()
    assert (topic.queues[0].index.min_offset > 0, last.index.min_offset) == (True, 0)
    late = bench.engine.create_subscription(topic.name, "late", SubscriptionOptions())
    chores(bench)
    assert last.index.min_offset == 0
    assert late.low_mark(last.queue_id) == 0
    assert bench.bodies(topic, len(topic.queues) - 1) == [b"x"]
    first = topic.queues[0]
    assert late.low_mark(first.queue_id) >= first.index.min_offset


def test_a_broker_with_one_segment_asks_no_queue_what_it_needs(monkeypatch, bench):
    topic = bench.topic(queues=50)
    fill(bench, topic, messages=10)
    asked = Asked(monkeypatch)
    chores(bench)
    assert asked.queues == 0


def test_a_subscription_that_holds_no_data_keeps_no_segment():
    bench = small_segments()
    topic = bench.topic()
    options = SubscriptionOptions(holds_data=False)
    bench.engine.create_subscription(topic.name, "s", options)
    fill(bench, topic)
    chores(bench)
    assert topic.queues[0].index.min_offset > 0


def test_retention_time_keeps_what_no_cursor_needs_and_lets_it_go_later():
    bench = small_segments()
    topic = bench.topic(policy=TopicPolicy(retention_ms=3_600_000))
    fill(bench, topic)
    chores(bench)
    assert topic.queues[0].index.min_offset == 0
    bench.advance(3_600_000)
    chores(bench)
    assert topic.queues[0].index.min_offset > 0


def test_retention_size_bounds_what_retention_time_keeps():
    bench = small_segments()
    policy = TopicPolicy(retention_ms=3_600_000, retention_bytes_max=100 * KIB)
    topic = bench.topic(policy=policy)
    fill(bench, topic)
    chores(bench)
    index = topic.queues[0].index
    assert 0 < index.min_offset < index.next_offset
    assert index.bytes_between(index.min_offset, index.next_offset) >= 100 * KIB


def test_an_unused_topic_goes_after_its_time_and_a_used_one_stays(bench):
    policy = TopicPolicy(expires_ms=5_000)
    used, unused = bench.topic("used", policy), bench.topic("unused", policy)
    subscription = bench.engine.create_subscription(used.name, "s", SubscriptionOptions())
    consumer = subscription.attach(bench.outlet, Window(0), name="c")
    bench.advance(4_999)
    assert bench.engine.topic(unused.name) is not None
    bench.advance(1)
    assert bench.engine.topic(unused.name) is None
    bench.advance(22_345)
    assert bench.engine.topic(used.name) is not None
    subscription.detach(consumer)
    bench.advance(4_999)
    assert bench.engine.topic(used.name) is not None
    bench.advance(2)
    assert bench.engine.topic(used.name) is None


def test_after_an_idle_second_a_frame_carries_the_synced_mark(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, b"a")
    bench.settle()
    end = bench.store.end_position
    bench.advance(bench.settings.storage.idle_mark_ms)
    assert bench.store.end_position > end
    bench.settle()
    end = bench.store.end_position
    bench.advance(60_000)
    bench.settle()
    assert bench.store.end_position == end


def test_an_engine_at_rest_wants_no_turn_and_only_distant_deadlines(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, b"a")
    bench.settle()
    bench.advance(5_000)
    bench.settle()
    assert not bench.engine.needs_turn
    assert bench.engine.next_deadline_ms() > bench.clock.monotonic_ms() + 1_000


def test_whoever_watches_hears_of_every_topic_that_goes(bench):
    gone = []
    bench.engine.watch_removals(lambda topic: gone.append(topic.name.name))
    bench.topic("deleted")
    bench.topic("expired", TopicPolicy(expires_ms=1000))
    bench.topic("kept")
    bench.engine.delete_topic(topic_name("deleted"))
    bench.advance(1500)
    assert gone == ["deleted", "expired"]


def test_who_takes_by_hand_keeps_no_topic_alive(bench):
    topic = bench.topic(policy=TopicPolicy(expires_ms=1000))
    bench.reader(topic).attach(bench.outlet, Window(0), name="hand", is_passive=True)
    bench.advance(1500)
    assert topic.is_deleted


def test_a_commit_asks_for_no_turn_for_a_subscription_without_consumers():
    bench = Workbench()
    topic = bench.topic("t")
    bench.engine.create_subscription(topic.name, "pulled", SubscriptionOptions())
    channel = bench.channel()
    bench.settle()
    for body in (b"first", b"second"):
        bench.publish(channel, topic, body)
        bench.turns()
        assert bench.sync()
        assert not bench.engine.needs_turn


def test_a_message_that_nobody_consumes_expires_although_its_arrival_made_no_round():
    bench = Workbench()
    topic = bench.topic("t", TopicPolicy(message_ttl_ms=1_000))
    reader = bench.engine.create_subscription(topic.name, "pulled", SubscriptionOptions())
    channel = bench.channel()
    bench.publish(channel, topic, b"first")
    bench.settle()
    bench.advance(500)
    bench.publish(channel, topic, b"second")
    bench.settle()
    bench.advance(501)
    assert reader.ready(topic.queues[0].queue_id) == 1
    bench.advance(500)
    assert reader.ready(topic.queues[0].queue_id) == 0


def test_the_first_consumer_of_a_subscription_gets_what_came_before_it():
    bench = Workbench()
    topic = bench.topic("t")
    reader = bench.engine.create_subscription(topic.name, "pulled", SubscriptionOptions())
    bench.publish(bench.channel(), topic, b"first", b"second")
    bench.settle()
    reader.attach(bench.outlet, Window(10), name="c")
    bench.settle()
    assert [each.record.body for each in bench.outlet.deliveries] == [b"first", b"second"]


# ---- a disk that runs full ----------------------------------------------------------------------
# Settled data is kept if there is room; when the disk says there is none, it goes.


DISK_BYTES = 1024 * KIB
DISK_LIMIT = 200 * KIB


class SmallDisk:
    """An engine on a disk of a megabyte, whose probe looks every 500 ms."""

    def __init__(self, **storage):
        self.bench = Workbench(Settings(storage=StorageSettings(**storage)))
        self.bench.storage.capacity_bytes = DISK_BYTES
        self.look()
        self.bench.engine.set_alarm_limits(memory_bytes=1 << 60, disk_free_bytes=DISK_LIMIT)
        self.topic = self.bench.topic()
        self.subscription = self.bench.reader(self.topic)
        self.channel = self.bench.channel()
        self.episodes = self.alarm.episodes
        self.look()

    def look(self):
        self.bench.engine.set_alarm("disk", self.bench.storage.free_bytes())
        self.bench.settle()

    @property
    def alarm(self):
        return self.bench.engine.alarms.disk

    def fill(self, until):
        """Publish until the probe says so; how many messages there are."""
        index = self.topic.queues[0].index
        while not until():
            self.bench.publish(self.channel, self.topic, *[b"x" * KIB] * 10)
            self.bench.settle()
            self.look()
        return index.next_offset

    def drain(self):
        queue = self.topic.queues[0]
        self.subscription.settle_upto(queue.queue_id, queue.index.next_offset)

    def wait(self, seconds):
        for _ in range(2 * seconds):
            self.bench.advance(500)
            self.look()


@pytest.mark.parametrize("segment_bytes_max", [64 * KIB, 64 * KIB * KIB])
def test_a_drained_disk_leaves_its_alarm_by_itself_and_publishers_go_on(segment_bytes_max):
    disk = SmallDisk(segment_bytes_max=segment_bytes_max)
    stored = disk.fill(until=lambda: disk.alarm.is_raised)
    disk.bench.publish(disk.channel, disk.topic, b"held")
    disk.wait(5)
    assert disk.alarm.is_raised, "nothing is settled yet"
    assert disk.topic.queues[0].index.next_offset == stored
    disk.drain()
    disk.wait(5)
    assert not disk.alarm.is_raised
    assert disk.bench.bodies(disk.topic)[-1] == b"held"
    for ending in (disk.bench.kill, disk.bench.cut_power, disk.bench.stop):
        ending()
        queue = next(iter(disk.bench.engine.topics())).queues[0]
        assert queue.index.next_offset == stored + 1
        (entry,) = queue.index.entries(stored, 9)
        assert disk.bench.store.read([(entry[0], entry[4])])[0].body == b"held"


def test_settled_data_goes_before_the_alarm_oldest_first_and_no_more_than_is_missing():
    disk = SmallDisk(segment_bytes_max=64 * KIB)
    disk.fill(until=lambda: disk.alarm.shortage_bytes)
    assert not disk.alarm.is_raised
    disk.drain()
    disk.wait(5)
    index = disk.topic.queues[0].index
    assert not disk.alarm.shortage_bytes
    assert disk.alarm.episodes == disk.episodes
    assert 0 < index.min_offset < index.next_offset - 300, "the newest stay: there is room"


def test_settled_data_stays_while_there_is_room():
    disk = SmallDisk(segment_bytes_max=64 * KIB)
    disk.fill(until=lambda: disk.topic.queues[0].index.next_offset >= 400)
    disk.drain()
    disk.wait(30)
    assert disk.topic.queues[0].index.min_offset == 0
    assert len(disk.bench.storage.list("log")) > 5


def test_a_last_segment_that_somebody_needs_is_not_rolled():
    disk = SmallDisk()
    stored = disk.fill(until=lambda: disk.alarm.is_raised)
    disk.subscription.settle_upto(disk.topic.queues[0].queue_id, stored - 1)
    disk.wait(5)
    assert disk.alarm.is_raised
    assert len(disk.bench.storage.list("log")) == 1


def test_the_disk_of_a_deleted_topic_comes_back():
    disk = SmallDisk()
    disk.fill(until=lambda: disk.alarm.is_raised)
    disk.bench.engine.delete_topic(disk.topic.name)
    disk.wait(5)
    assert not disk.alarm.is_raised
