"""A subscription as a whole: where it starts, who may join, how it moves, what survives."""

import logging

import pytest

from kit.queues import MemoryHost, MemoryQueue, consume
from kit.workbench import Workbench
from penstock.engine.host import Mode, Start, SubscriptionOptions
from penstock.engine.subscription.consumer import ConsumerRefusal, RefusalReason
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import Unlimited, Window
from penstock.flow.diagnosis import diagnose
from penstock.model.errors import NotFound
from penstock.model.record import Record, Shape, neutral_record
from penstock.model.settlement import Cause
from penstock.settings.broker import TopicSettings


@pytest.fixture
def host():
    return MemoryHost(topics=TopicSettings(delivered_reserve=10, consumers_per_subscription_max=3))


@pytest.fixture
def queue(host):
    queue = MemoryQueue(host)
    queue.fill(6)
    return queue


def subscribe(host, queue, *, is_new=True, **options):
    return Subscription(1, "s", [queue], SubscriptionOptions(**options), host, is_new=is_new)


@pytest.mark.parametrize(
    ("start", "expected"), [(Start.EARLIEST, 2), (Start.LATEST, 6), (4, 4)], ids=str
)
def test_it_starts_where_it_was_told_and_saves_that(host, queue, start, expected):
    queue.trim(2)
    subscription = subscribe(host, queue, start=start)
    assert subscription.low_mark(1) == expected
    (settlement,) = host.save()
    assert settlement.cause == int(Cause.SOUGHT)
    again = subscribe(host, queue, is_new=False)
    again.apply(settlement)
    assert again.low_mark(1) == expected


def test_a_subscription_that_is_not_durable_saves_nothing(host, queue):
    subscription = subscribe(host, queue, is_durable=False)
    taker = consume(subscription, name="c")
    host.run()
    taker.settle(*taker.deliveries[:3])
    subscription.requeue(1, [4])
    assert host.save() == []
    assert subscription.low_mark(1) == 3


def test_after_an_unclean_stop_what_may_have_been_delivered_is_flagged(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(3), name="c")
    host.run()
    taker.settle(taker.deliveries[1])
    again = subscribe(host, queue, is_new=False)
    for settlement in host.save():
        again.apply(settlement)
    queue.fill(10)
    taker = consume(again, name="c")
    host.run()
    flags = {each.offset: each.is_redelivered for each in taker.deliveries}
    assert list(flags) == [0, *range(2, 16)]
    assert all(flags[offset] for offset in (0, 2))
    assert not flags[15], "the reserve does not reach that far"


def test_after_a_clean_stop_only_what_was_delivered_is_flagged(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(2), name="c")
    host.run()
    subscription.detach(taker.consumer)
    again = subscribe(host, queue, is_new=False)
    again.restore(subscription.state(1, is_final=True))
    taker = consume(again, name="c")
    host.run()
    assert [each.is_redelivered for each in taker.deliveries] == [True] * 2 + [False] * 4


def test_delivery_counts_survive(host, queue):
    subscription = subscribe(host, queue)
    consume(subscription, name="c")
    host.run()
    subscription.requeue(1, [3])
    host.run()
    subscription.requeue(1, [3])
    again = subscribe(host, queue, is_new=False)
    for settlement in host.save():
        again.apply(settlement)
    taker = consume(again, name="c")
    host.run()
    assert {each.offset: each.attempts for each in taker.deliveries}[3] == 2


def test_the_delivered_mark_is_renewed_before_it_is_reached(host, queue):
    subscription = subscribe(host, queue)
    consume(subscription, settles=True, name="c")
    queue.fill(100)
    seen = []
    for _ in range(30):
        subscription.dispatch(3)
        host.save()
        cursor = subscription.cursor(1)
        seen.append(cursor.delivered_mark - cursor.next_offset)
    assert min(seen) >= 5, "at least half of the reserve is left"


def test_settling_the_last_ready_message_is_saved_without_another_round(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(5), name="c")
    host.run()
    host.save()
    taker.settle(*taker.deliveries[:2])
    assert host.run() == 1, "one message waited for room"
    taker.settle(*taker.deliveries[2:4])
    assert not host.awake, "nothing is ready, so room alone moves nothing"
    assert [part.low_mark for each in host.save() for part in each.queues] == [4]


def test_a_settlement_frees_the_next_message_of_its_key(host):
    queue = MemoryQueue(host)
    queue.fill(2, key=b"k")
    subscription = subscribe(host, queue, mode=Mode.KEY_SHARED)
    first, second = (consume(subscription, Window(1), name=name) for name in "ab")
    host.run()
    taker = first if first.deliveries else second
    assert not subscription.cursor(1).has_ready, "the other one waits for its key, aside"
    taker.settle(*taker.deliveries)
    host.run()
    assert taker.offsets == [0, 1]


def test_seeking_back_delivers_again_as_if_new(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(4), settles=True, name="c")
    host.run()
    taker.settles = False
    subscription.seek(1, 3)
    host.run()
    assert taker.offsets == [0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert not taker.deliveries[-1].is_redelivered
    subscription.seek(1, 99)
    assert subscription.low_mark(1) == 6
    assert taker.consumer.inflight.messages == 0


def test_seeking_by_time_finds_the_first_message_stored_since(host):
    queue = MemoryQueue(host)
    queue.fill(2)
    host.clock.advance(1000)
    moment = host.clock.wall_ms()
    queue.fill(2)
    subscription = subscribe(host, queue)
    subscription.seek_time(moment)
    assert subscription.low_mark(1) == 2
    subscription.seek_time(moment + 5)
    assert subscription.low_mark(1) == 4


def test_a_purge_leaves_only_what_is_in_flight(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(3), name="c")
    host.run()
    subscription.requeue(1, [1], delay_ms=1000)
    assert subscription.purge(1) == 4
    assert (subscription.ready(1), subscription.unacked(1)) == (0, 2)
    assert subscription.next_deadline_ms() is None
    taker.settle(taker.deliveries[0], taker.deliveries[2])
    assert subscription.low_mark(1) == 6


def test_dropping_the_head_buries_the_oldest_ready_messages(host, queue):
    subscription = subscribe(host, queue)
    consume(subscription, Window(1), name="c")
    host.run()
    assert subscription.drop_head(1, 2) == 2
    assert [(each.offset, each.cause) for each in host.burials] == [
        (1, Cause.DROPPED_HEAD),
        (2, Cause.DROPPED_HEAD),
    ]
    assert subscription.ready(1) == 3


def test_one_settlement_per_cause_and_the_seek_first(host, queue):
    other = MemoryQueue(host, 2)
    other.fill(3)
    subscription = Subscription(1, "s", [queue, other], SubscriptionOptions(), host)
    consume(subscription, name="c")
    host.run()
    host.save()
    subscription.settle(1, [0, 1])
    subscription.seek(2, 1)
    host.run()
    subscription.settle(2, [1])
    causes = [(Cause(each.cause), [part.queue_id for part in each.queues]) for each in host.save()]
    assert causes == [(Cause.SOUGHT, [2]), (Cause.ACKED, [1, 2])]


def test_the_number_of_consumers_is_limited(host, queue):
    subscription = subscribe(host, queue)
    for name in "abc":
        consume(subscription, name=name)
    refusal = subscription.attach(None, Unlimited(), name="d")
    assert isinstance(refusal, ConsumerRefusal)
    assert refusal.reason is RefusalReason.TOO_MANY


def test_everyone_is_told_when_it_ends(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(2), name="c")
    host.run()
    subscription.close("topic deleted")
    assert taker.cancelled_by == "topic deleted"
    host.awake.clear()
    host.noted.clear()
    subscription.settle(1, [0])
    assert subscription.dispatch(10) == 0
    assert not host.awake
    assert not host.noted


def test_a_new_queue_of_the_topic_is_read_by_those_who_read_all(host, queue):
    subscription = subscribe(host, queue)
    everything = consume(subscription, name="a")
    only = consume(subscription, name="b", queue_ids=[1])
    other = MemoryQueue(host, 2)
    subscription.add_queue(other)
    other.fill(4)
    subscription.arrived(2)
    host.run()
    assert [each.offset for each in everything.deliveries if each.queue_id == 2] == [0, 1, 2, 3]
    assert all(each.queue_id == 1 for each in only.deliveries)


def test_an_unknown_queue_is_named(host, queue):
    with pytest.raises(NotFound, match=r"'s' does not read a queue with id 9"):
        subscribe(host, queue).settle(9, [1])


def test_a_reader_that_goes_back_is_logged(host, queue, caplog):
    subscription = subscribe(host, queue)
    subscription.commit(1, 5)
    with caplog.at_level(logging.INFO):
        subscription.commit(1, 2)
    assert "went back" in caplog.text


def test_numbers_say_who_waits_for_what(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(2), name="slow")
    host.run()
    statistics = subscription.statistics()
    assert (statistics.ready, statistics.unacked, statistics.consumers) == (4, 2, 1)
    (consumer,) = subscription.consumer_statistics()
    assert (consumer.name, consumer.demand, consumer.blocked_by) == ("slow", 0, ("demand",))
    assert diagnose([subscription.view()]).severity == "ok", "a burst, so far"
    host.clock.advance(6_000)
    assert "slow" in diagnose([subscription.view()]).sentence
    taker.settle(*taker.deliveries)
    subscription.detach(taker.consumer)
    assert "nobody consumes" in diagnose([subscription.view()]).sentence


def test_a_consumer_whose_socket_does_not_read_is_named(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, name="deaf", unsent=UnsentLimit(2, 0))
    taker.reads = False
    host.run()
    host.clock.advance(6_000)
    diagnosis = diagnose([subscription.view()])
    assert diagnosis.kind == "network"
    assert "deaf" in diagnosis.sentence


def test_failover_moves_what_the_displaced_one_had(host, queue):
    subscription = subscribe(host, queue, mode=Mode.FAILOVER)
    first = consume(subscription, Window(3), name="m")
    host.run()
    second = consume(subscription, Window(3), name="a")
    host.run()
    assert (first.active, second.active) == ([True, False], [True])
    assert second.offsets == [0, 1, 2]
    assert all(each.is_redelivered for each in second.deliveries)
    assert first.consumer.inflight.messages == 0
    subscription.detach(second.consumer)
    host.run()
    assert first.active == [True, False, True]
    assert first.offsets == [0, 1, 2, 0, 1, 2]


def test_a_message_with_a_key_and_no_consumer_waits(host):
    queue = MemoryQueue(host)
    subscription = subscribe(host, queue, mode=Mode.KEY_SHARED)
    queue.append([neutral_record(b"x", key=b"k")])
    subscription.arrived(1)
    host.run()
    assert subscription.ready(1) == 1


def test_a_purge_spares_every_message_of_a_batch_in_flight(host):
    queue = MemoryQueue(host)
    queue.append([Record(b"x", Shape(messages=3)), Record(b"y")])
    subscription = subscribe(host, queue)
    consume(subscription, Window(1), name="c")
    host.run()
    assert subscription.purge(1) == 1
    assert subscription.cursor(1).settled.ranges == [(3, 4)]


def test_seeking_forgets_what_was_parked_for_busy_keys(host):
    queue = MemoryQueue(host)
    subscription = subscribe(host, queue, mode=Mode.KEY_SHARED)
    taker = consume(subscription, Window(1), name="busy")
    consume(subscription, name="free")
    queue.append(neutral_record(b"x", key=b"k%d" % at) for at in range(40))
    subscription.arrived(1)
    host.run()
    assert subscription.cursor(1).dispatcher.parked_count > 0
    subscription.detach(taker.consumer)
    for consumer in subscription.consumers:
        subscription.detach(consumer)
    subscription.seek(1, 0)
    assert subscription.cursor(1).dispatcher.parked_count == 0
    fresh = consume(subscription, name="fresh")
    host.run()
    assert sorted(fresh.offsets) == list(range(40))


# ---- measured -----------------------------------------------------------------------------------
# How long messages were ready and nobody took them.


@pytest.fixture
def bench():
    return Workbench()


def test_time_counts_while_something_is_ready_and_nobody_has_room(bench):
    topic = bench.topic()
    reader = bench.reader(topic)
    queue_id = topic.queues[0].queue_id
    reader.attach(bench.outlet, Window(1), name="c")
    bench.turns()
    bench.advance(1_000)
    assert reader.unserved_ms == 0, "nothing was ready"
    bench.publish(bench.channel(), topic, b"1", b"2")
    bench.turns()
    bench.advance(300)
    assert (reader.unserved_ms, reader.is_unserved) == (300, True), "the second one waits"
    reader.settle(queue_id, [0])
    bench.turns()
    bench.advance(500)
    assert (reader.unserved_ms, reader.is_unserved) == (300, False), "it is in flight now"


def test_a_consumer_that_is_always_full_is_never_served_in_between(bench):
    topic = bench.topic()
    reader = bench.reader(topic)
    queue_id = topic.queues[0].queue_id
    reader.attach(bench.outlet, Window(1), name="c")
    bench.publish(bench.channel(), topic, *[b"x"] * 5)
    bench.turns()
    for offset in range(3):
        bench.advance(100)
        reader.settle(queue_id, [offset])
        bench.turns()
    assert reader.unserved_ms == 300


def test_what_nobody_reads_waits_and_a_purge_ends_it(bench):
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.publish(bench.channel(), topic, b"1")
    bench.turns()
    bench.advance(200)
    reader.purge(topic.queues[0].queue_id)
    bench.turns()
    bench.advance(200)
    assert reader.unserved_ms == 200


# ---- by another index ---------------------------------------------------------------------------


class EverySecond:
    """An index of every second entry of another."""

    def __init__(self, index):
        self.index = index
        self.min_offset = 0

    @property
    def next_offset(self):
        return self.index.next_offset

    def entries(self, from_offset, count_max):
        found = self.index.entries(from_offset, 2 * count_max)
        return [entry for entry in found if entry[1] % 2 == 0][:count_max]

    def plain_run(self, from_offset, count_max):
        return None

    def search_time(self, store_ms):
        return self.index.search_time(store_ms)

    def bytes_between(self, start, end):
        return self.index.bytes_between(start, end) // 2


def test_by_another_index_what_it_leaves_out_is_passed_over_and_settled(host, queue):
    subscription = subscribe(host, queue)
    subscription.read_by(1, EverySecond(queue.index))
    taker = consume(subscription, name="c")
    host.run()
    assert taker.offsets == [0, 2, 4]
    taker.settle(*taker.deliveries)

    assert subscription.low_mark(1) == 6
    again = subscribe(host, queue, is_new=False)
    for settlement in host.save():
        again.apply(settlement)
    assert again.low_mark(1) == 6


def test_another_index_is_read_from_the_low_mark_on(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, name="c")
    host.run()
    taker.settle(taker.deliveries[0], taker.deliveries[4])
    subscription.detach(taker.consumer)
    subscription.read_by(1, EverySecond(queue.index))
    second = consume(subscription, name="d")
    host.run()

    assert second.offsets == [2]
    subscription.detach(second.consumer)
    subscription.read_by(1, None)
    third = consume(subscription, name="e")
    host.run()
    # What was passed over before counts as settled.
    assert third.offsets == [2]


def test_what_is_in_flight_stays_there_when_the_index_changes(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(2), name="c")
    host.run()
    subscription.read_by(1, EverySecond(queue.index))
    taker.settle(*taker.deliveries)
    host.run()

    assert taker.offsets == [0, 1, 2, 4]
