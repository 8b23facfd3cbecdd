"""What comes next: expired, delayed, unwanted, unreadable and vanished messages never block."""

import pytest

from kit.queues import MemoryHost, MemoryQueue, consume
from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Window
from penstock.model.record import Record, RecordFlag, Shape, neutral_record, tag_hash
from penstock.model.settlement import Cause
from penstock.settings.broker import TopicSettings


@pytest.fixture
def host():
    return MemoryHost()


@pytest.fixture
def queue(host):
    return MemoryQueue(host)


def subscribe(host, queue, **options):
    return Subscription(1, "s", [queue], SubscriptionOptions(**options), host)


def expiring(host, body, after_ms):
    record = neutral_record(body)
    record.reshape(expire_ms=host.clock.wall_ms() + after_ms)
    return record


def later(host, body, after_ms):
    record = neutral_record(body)
    record.reshape(deliver_ms=host.clock.wall_ms() + after_ms)
    return record


def pass_time(host, subscription, ms):
    host.clock.advance(ms)
    subscription.due(host.clock.monotonic_ms())
    host.run()


def test_an_expired_message_is_buried_instead_of_delivered(host, queue):
    subscription = subscribe(host, queue)
    queue.append([expiring(host, b"a", 10), neutral_record(b"b"), expiring(host, b"c", 500)])
    host.run()
    host.clock.advance(100)
    taker = consume(subscription, name="c")
    host.run()
    assert taker.offsets == [1, 2]
    assert [(each.offset, each.cause) for each in host.burials] == [(0, Cause.EXPIRED)]


def test_the_head_expires_on_time_also_when_nobody_consumes(host, queue):
    subscription = subscribe(host, queue)
    queue.append([expiring(host, b"a", 10), expiring(host, b"b", 20), neutral_record(b"c")])
    subscription.arrived(1)
    host.run()
    assert subscription.next_deadline_ms() == host.clock.monotonic_ms() + 11
    pass_time(host, subscription, 11)
    assert [each.offset for each in host.burials] == [0]
    pass_time(host, subscription, 10)
    assert [each.offset for each in host.burials] == [0, 1]
    assert subscription.next_deadline_ms() is None
    assert subscription.ready(1) == 1


def test_a_message_behind_a_live_head_expires_only_when_it_gets_there(host, queue):
    subscription = subscribe(host, queue)
    queue.append([neutral_record(b"a"), expiring(host, b"b", 10)])
    subscription.arrived(1)
    host.run()
    pass_time(host, subscription, 100)
    assert host.burials == []
    taker = consume(subscription, Window(1), name="c")
    host.run()
    assert taker.offsets == [0]
    assert subscription.next_deadline_ms() == host.clock.monotonic_ms()
    pass_time(host, subscription, 0)
    assert [each.offset for each in host.burials] == [1]


def test_the_topics_time_to_live_counts_from_the_store_time(host, queue):
    subscription = subscribe(host, queue)
    queue.topic.policy.message_ttl_ms = 50
    queue.append([neutral_record(b"a"), expiring(host, b"b", 10)])
    subscription.arrived(1)
    host.run()
    pass_time(host, subscription, 51)
    assert [each.offset for each in host.burials] == [0, 1], "the shorter of the two wins"


def test_what_came_back_expires_at_the_head_like_anything_else(host, queue):
    subscription = subscribe(host, queue)
    queue.append([expiring(host, b"a", 100)])
    taker = consume(subscription, Window(1), name="c")
    subscription.arrived(1)
    host.run()
    subscription.cancel(taker.consumer)
    subscription.requeue(1, [0])
    host.run()
    pass_time(host, subscription, 101)
    (burial,) = host.burials
    assert (burial.offset, burial.attempts) == (0, 1)


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED])
def test_a_delayed_message_is_passed_over_until_its_time(host, queue, mode):
    subscription = subscribe(host, queue, mode=mode)
    taker = consume(subscription, name="c")
    queue.append([later(host, b"a", 300), neutral_record(b"b")])
    subscription.arrived(1)
    host.run()
    assert taker.offsets == [1]
    assert subscription.ready(1) == 0
    assert subscription.statistics().delayed == 1
    host.clock.jump_wall(-86_400_000)
    pass_time(host, subscription, 299)
    assert taker.offsets == [1]
    host.clock.jump_wall(86_400_000)
    pass_time(host, subscription, 1)
    assert taker.offsets == [1, 0]
    assert not taker.deliveries[-1].is_redelivered


def test_where_order_is_promised_the_delivery_time_is_not_waited_for(host, queue):
    subscription = subscribe(host, queue, mode=Mode.EXCLUSIVE)
    taker = consume(subscription, name="c")
    queue.append([later(host, b"a", 300), neutral_record(b"b")])
    subscription.arrived(1)
    host.run()
    assert taker.offsets == [0, 1]


def test_with_too_many_delayed_messages_reading_waits(queue):
    host = MemoryHost(topics=TopicSettings(delayed_in_memory_max=2))
    queue = MemoryQueue(host)
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(1), settles=True, name="c")
    queue.append([later(host, b"", 100), later(host, b"", 200), later(host, b"", 300)])
    queue.fill(2)
    subscription.arrived(1)
    host.run(1)
    assert taker.offsets == []
    assert subscription.statistics().delayed == 2
    pass_time(host, subscription, 100)
    assert taker.offsets == [0]
    pass_time(host, subscription, 100)
    assert taker.offsets == [0, 1, 3, 4]


def test_an_unreadable_record_is_settled_counted_and_passed(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, name="c")
    queue.fill(3)
    host.records[queue.index.all[1][0]] = None
    subscription.arrived(1)
    host.run()
    taker.settle(*taker.deliveries)
    assert taker.offsets == [0, 2]
    assert subscription.statistics().lost == 1
    assert subscription.low_mark(1) == 3
    assert int(Cause.CORRUPT) in [settlement.cause for settlement in host.save()]


def test_holes_and_removed_messages_do_not_hold_the_low_mark(host, queue):
    subscription = subscribe(host, queue)
    queue.fill(3)
    queue.skip(4)
    queue.append([Record(b"x", Shape(messages=2))])
    queue.skip(1)
    queue.sync()
    queue.trim(2)
    taker = consume(subscription, settles=True, name="c")
    host.run()
    assert taker.offsets == [2, 7]
    assert subscription.low_mark(1) == 10
    assert subscription.statistics().skipped == 2 + 4 + 1


def test_a_message_that_was_to_come_again_but_is_gone_is_settled(host, queue):
    subscription = subscribe(host, queue)
    queue.fill(3)
    taker = consume(subscription, name="c")
    host.run()
    queue.trim(2)
    subscription.requeue(1, [0, 2])
    host.run()
    assert taker.offsets == [0, 1, 2, 2]
    assert subscription.cursor(1).settled.is_settled(0)


def test_transient_messages_from_before_the_restart_are_gone(host, queue):
    old, new = neutral_record(b"old"), neutral_record(b"new")
    for record in (old, new):
        record.reshape(flags=int(RecordFlag.TRANSIENT))
    queue.append([old])
    host.transient_floor = 1024
    queue.append([new])
    subscription = subscribe(host, queue)
    taker = consume(subscription, settles=True, name="c")
    host.run()
    assert taker.offsets == [1]
    assert subscription.low_mark(1) == 2


class TagFilter:
    """Wants one tag; says yes to a hash that is not its own to be asked again."""

    def __init__(self, tag):
        self.hashes = {tag_hash(tag), tag_hash(b"twin")}
        self.tag = tag
        self.asked = []

    def matches_entry(self, hashed):
        return hashed in self.hashes

    def matches_record(self, record):
        self.asked.append(record.tag)
        return record.tag == self.tag


def test_what_a_filter_does_not_want_is_settled_unread(host, queue):
    wanted = TagFilter(b"a")
    subscription = subscribe(host, queue, filter=wanted)
    taker = consume(subscription, settles=True, name="c")
    queue.append(neutral_record(b"x", tag=tag) for tag in (b"a", b"b", b"twin", b"a", b"b"))
    subscription.arrived(1)
    host.run()
    assert taker.offsets == [0, 3]
    assert wanted.asked == [b"a", b"twin", b"a"]
    assert subscription.low_mark(1) == 5


def test_a_large_message_is_delivered_alone(host, queue):
    subscription = subscribe(host, queue)
    queue.append([neutral_record(b"x" * 3_000_000), neutral_record(b"y"), neutral_record(b"z")])
    taker = consume(subscription, name="c")
    subscription.dispatch(100)
    assert taker.offsets == [0]


def test_a_message_is_not_expired_in_the_very_millisecond_of_its_end(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, name="c")
    queue.append([expiring(host, b"a", 0)])
    subscription.arrived(1)
    host.run()
    assert taker.offsets == [0], "no time to live still means: to whoever waits for it now"


def test_the_index_is_asked_for_as_many_entries_as_batches_suggest(host, queue, monkeypatch):
    subscription = subscribe(host, queue)
    asked = []
    entries = queue.index.entries
    monkeypatch.setattr(
        queue.index, "entries", lambda at, count: asked.append(count) or entries(at, count)
    )
    taker = consume(subscription, Window(200), settles=True, name="c")
    queue.append(Record(b"x", Shape(messages=100)) for _ in range(20))
    subscription.arrived(1)
    host.run()
    assert taker.offsets == list(range(0, 2000, 100))
    assert asked[0] == 200
    assert asked[-1] < 10
    queue.append(Record(b"x", Shape(expire_ms=1 << 60)) for _ in range(500))
    subscription.arrived(1)
    host.run()
    assert subscription.low_mark(1) == 2500
    assert subscription.cursor(1).messages_per_entry < 50
