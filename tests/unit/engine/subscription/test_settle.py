"""What consumers say about what they hold: settled, back to its place, or buried."""

import pytest

from kit.queues import MemoryHost, MemoryQueue, consume
from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Permits, Window
from penstock.model.record import Record, Shape, neutral_record
from penstock.model.settlement import Cause


@pytest.fixture
def host():
    return MemoryHost()


@pytest.fixture
def queue(host):
    queue = MemoryQueue(host)
    queue.fill(6)
    return queue


@pytest.fixture
def subscription(host, queue):
    return Subscription(1, "s", [queue], SubscriptionOptions(), host)


@pytest.fixture
def taker(host, subscription):
    taker = consume(subscription, Window(4), name="c")
    host.run()
    assert taker.offsets == [0, 1, 2, 3]
    return taker


def test_settling_out_of_order_leaves_holes_that_the_low_mark_waits_for(subscription, taker):
    assert subscription.settle(1, [3, 1]) == 2
    assert subscription.low_mark(1) == 0
    assert subscription.settle(1, [0]) == 1
    assert subscription.low_mark(1) == 2


def test_settling_again_or_what_was_never_delivered_changes_nothing(host, subscription, taker):
    subscription.settle(1, [0, 1])
    assert subscription.settle(1, [0, 1, 5]) == 0
    assert subscription.statistics().unknown_settles == 1
    assert subscription.unacked(1) == 2


def test_another_consumers_message_may_be_settled_and_frees_its_owner(host, subscription, taker):
    other = consume(subscription, Window(2), name="d")
    host.run()
    assert other.offsets == [4, 5]
    subscription.settle(1, [0, 4])
    assert (taker.consumer.inflight.messages, other.consumer.inflight.messages) == (3, 1)


def test_a_settled_list_gives_back_exactly_what_each_holder_had(host, subscription, taker):
    queue = subscription.cursor(1).queue
    queue.append([neutral_record(b"longer"), neutral_record(b"longer"), neutral_record(b"x")])
    other = consume(subscription, Window(9), name="d")
    host.run()
    sizes = [delivery.size for delivery in taker.deliveries + other.deliveries]
    assert other.offsets == [4, 5, 6, 7, 8]
    subscription.settle(1, [0, 1, 4, 6, 7, 8, 2, 2, 7])
    held = (taker.consumer.inflight, other.consumer.inflight)
    assert [each.messages for each in held] == [1, 1]
    assert [each.bytes for each in held] == [sizes[3], sizes[5]]


def test_everything_up_to_an_offset_is_settled_in_one_step(host, subscription, taker):
    assert subscription.settle_upto(1, 3) == 3
    assert subscription.low_mark(1) == 3
    assert taker.consumer.inflight.messages == 1
    host.run()
    assert taker.offsets[4:] == [4, 5]


def test_a_commit_beyond_the_end_goes_to_the_end(subscription, taker):
    subscription.commit(1, 99)
    assert subscription.low_mark(1) == 6


def test_a_lower_commit_is_obeyed(host, subscription, taker):
    subscription.commit(1, 4)
    subscription.commit(1, 1)
    host.run()
    assert subscription.low_mark(1) == 1
    assert taker.offsets[4:] == [1, 2, 3, 4]


def test_single_messages_of_a_batch_are_settled_one_by_one(host):
    queue = MemoryQueue(host)
    subscription = Subscription(1, "s", [queue], SubscriptionOptions(), host)
    taker = consume(subscription, Window(3), name="c")
    queue.append([Record(b"x", Shape(messages=3)), Record(b"y")])
    subscription.arrived(1)
    host.run()
    assert taker.offsets == [0]
    subscription.settle(1, [1])
    assert subscription.in_flight(1, 2).messages == 2
    assert taker.consumer.demand.unsettled == 2
    host.run()
    assert taker.offsets == [0, 3]
    subscription.settle(1, [0, 2])
    assert subscription.in_flight(1, 2) is None
    assert subscription.low_mark(1) == 3


def test_what_comes_back_takes_its_original_place_and_is_flagged(host, subscription, taker):
    subscription.requeue(1, [2, 0])
    host.run()
    again = taker.deliveries[4:]
    assert [(each.offset, each.attempts, each.is_redelivered) for each in again] == [
        (0, 1, True),
        (2, 1, True),
    ]


def test_coming_back_uncounted_flags_but_does_not_count(host, subscription, taker):
    subscription.requeue(1, [1], count=False)
    host.run()
    last = taker.deliveries[-1]
    assert (last.offset, last.attempts, last.is_redelivered) == (1, 0, True)


def test_a_batch_comes_back_with_what_is_left_of_it(host):
    queue = MemoryQueue(host)
    subscription = Subscription(1, "s", [queue], SubscriptionOptions(), host)
    taker = consume(subscription, name="c")
    queue.append([Record(b"x", Shape(messages=4))])
    subscription.arrived(1)
    host.run()
    subscription.settle(1, [0, 3])
    subscription.requeue(1, [1, 2])
    host.run()
    last = taker.deliveries[-1]
    assert (last.offset, last.messages, last.attempts) == (0, 2, 1)
    assert subscription.cursor(1).settled.unsettled_in(0, 4) == [(1, 3)]


def test_a_message_sent_back_with_a_delay_waits_for_it(host, subscription, taker):
    subscription.requeue(1, [0], delay_ms=500)
    host.run()
    assert taker.offsets[4:] == [4]
    assert subscription.next_deadline_ms() == host.clock.monotonic_ms() + 500
    host.clock.jump_wall(3_600_000)
    host.clock.advance(499)
    subscription.due(host.clock.monotonic_ms())
    host.run()
    assert taker.offsets[4:] == [4]
    host.clock.advance(1)
    subscription.due(host.clock.monotonic_ms())
    subscription.settle(1, [4])
    host.run()
    assert taker.offsets[5] == 0


def test_a_message_that_came_back_too_often_is_a_dead_letter(host, queue):
    options = SubscriptionOptions(delivery_limit=2)
    subscription = Subscription(1, "s", [queue], options, host)
    taker = consume(subscription, Window(1), name="c")
    for _ in range(3):
        host.run()
        subscription.requeue(1, [0])
    host.run()
    assert taker.offsets == [0, 0, 0, 1]
    (burial,) = host.burials
    assert (burial.offset, burial.cause, burial.attempts) == (0, Cause.DELIVERY_LIMIT, 3)
    assert burial.record.body == b"0"
    assert subscription.low_mark(1) == 1


def test_a_limit_of_nothing_buries_what_comes_back_once(host, queue):
    options = SubscriptionOptions(delivery_limit=-1)
    subscription = Subscription(1, "s", [queue], options, host)
    consume(subscription, Window(1), name="c")
    host.run()
    subscription.requeue(1, [0])
    assert [burial.offset for burial in host.burials] == [0]


def test_the_topics_delivery_limit_counts_when_the_subscription_has_none(host, queue):
    queue.topic.policy.delivery_limit = 1
    subscription = Subscription(1, "s", [queue], SubscriptionOptions(), host)
    consume(subscription, Window(1), name="c")
    for _ in range(2):
        host.run()
        subscription.requeue(1, [0])
    assert [burial.offset for burial in host.burials] == [0]


def test_a_rejected_message_is_buried_and_settled(host, subscription, taker):
    assert subscription.reject(1, [1, 2]) == 2
    assert [(each.offset, each.cause) for each in host.burials] == [
        (1, Cause.REJECTED),
        (2, Cause.REJECTED),
    ]
    assert subscription.cursor(1).settled.ranges == [(1, 3)]
    causes = [settlement.cause for settlement in host.save()]
    assert int(Cause.REJECTED) in causes


def test_a_rejected_message_that_cannot_be_read_is_settled_as_lost(
    host, queue, subscription, taker
):
    host.records[queue.index.all[1][0]] = None
    subscription.reject(1, [1])
    assert host.burials == []
    assert subscription.statistics().lost == 1
    assert subscription.cursor(1).settled.is_settled(1)


def test_a_message_not_settled_in_time_goes_back_counted(host, queue):
    subscription = Subscription(1, "s", [queue], SubscriptionOptions(), host)
    taker = consume(subscription, Window(2), name="pop", visibility_ms=1000)
    host.run()
    host.clock.advance(600)
    assert subscription.extend(1, 1, host.clock.monotonic_ms() + 1000)
    host.clock.advance(400)
    assert subscription.next_deadline_ms() == host.clock.monotonic_ms()
    subscription.due(host.clock.monotonic_ms())
    host.run()
    again = taker.deliveries[-1]
    assert (again.offset, again.attempts) == (0, 1)
    host.clock.advance(600)
    subscription.due(host.clock.monotonic_ms())
    host.run()
    assert (taker.deliveries[-1].offset, taker.deliveries[-1].attempts) == (1, 1)


def test_rewinding_brings_what_is_settled_above_the_low_mark_again_in_order(
    host, subscription, taker
):
    subscription.requeue(1, [1])
    subscription.settle(1, [0, 2, 3])
    assert subscription.rewind(1) == 2
    assert subscription.low_mark(1) == 1
    host.run()
    again = [(each.offset, each.attempts) for each in taker.deliveries[-4:]]
    assert again == [(1, 1), (2, 1), (3, 1), (4, 0)]
    assert subscription.rewind(1) == 0


def test_a_late_settlement_of_what_went_back_is_still_taken(host, subscription, taker):
    subscription.requeue(1, [0])
    assert subscription.settle(1, [0]) == 1
    host.run()
    assert 0 not in taker.offsets[4:]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_consumer_that_is_gone_leaves_everything_to_the_others(host, queue, mode):
    subscription = Subscription(1, "s", [queue], SubscriptionOptions(mode=mode), host)
    first = consume(subscription, Window(3), name="a")
    host.run()
    assert first.offsets == [0, 1, 2]
    subscription.detach(first.consumer)
    second = consume(subscription, name="b")
    host.run()
    assert second.offsets == list(range(6))
    flags = [delivery.is_redelivered for delivery in second.deliveries]
    assert flags == [True] * 3 + [False] * 3
    assert [delivery.attempts for delivery in second.deliveries] == [0] * 6


def test_a_cancelled_consumer_gets_nothing_more_but_may_settle_what_it_has(
    host, subscription, taker
):
    subscription.cancel(taker.consumer)
    host.run()
    assert taker.offsets == [0, 1, 2, 3]
    assert subscription.settle(1, [0, 1]) == 2
    subscription.detach(taker.consumer)
    assert subscription.unacked(1) == 0
    assert subscription.ready(1) == 4


def test_settling_a_message_that_waits_for_its_delay_ends_the_wait(host, subscription, taker):
    subscription.requeue(1, [0], delay_ms=500)
    assert subscription.settle(1, [0]) == 1
    assert subscription.statistics().delayed == 0
    assert subscription.next_deadline_ms() is None


def test_a_batch_settled_halfway_before_it_was_read_is_delivered_for_its_rest(host):
    queue = MemoryQueue(host)
    subscription = Subscription(1, "s", [queue], SubscriptionOptions(), host)
    queue.append([Record(b"x", Shape(messages=3))])
    subscription.settle_upto(1, 2)
    taker = consume(subscription, Window(5), name="c")
    host.run()
    (delivery,) = taker.deliveries
    assert (delivery.offset, delivery.messages) == (0, 1)
    subscription.settle(1, [2])
    assert subscription.unacked(1) == 0
    assert subscription.low_mark(1) == 3


def test_what_was_committed_before_it_became_visible_is_not_delivered(host):
    queue = MemoryQueue(host)
    subscription = Subscription(1, "s", [queue], SubscriptionOptions(), host)
    taker = consume(subscription, name="c")
    queue.fill(2)
    queue.append([Record(b"x"), Record(b"y")], is_synced=False)
    subscription.settle_upto(1, 3)
    queue.sync()
    subscription.arrived(1)
    host.run()
    assert taker.offsets == [3]


# Ranges


@pytest.fixture
def batches(host):
    """Two batches of 100 and a single message, in the hands of one consumer."""
    queue = MemoryQueue(host)
    subscription = Subscription(1, "s", [queue], SubscriptionOptions(), host)
    taker = consume(subscription, Window(500), name="c")
    queue.append([Record(b"x", Shape(messages=100)), Record(b"y", Shape(messages=100))])
    queue.append([Record(b"z")])
    subscription.arrived(1)
    host.run()
    assert taker.offsets == [0, 100, 200]
    return taker


def test_a_batch_is_settled_as_one_range(host, batches):
    subscription = batches.subscription
    assert subscription.settle_ranges(1, [(0, 100)]) == 100
    assert subscription.low_mark(1) == 100
    assert batches.consumer.inflight.messages == 101
    assert batches.consumer.demand.unsettled == 101
    assert subscription.settle_ranges(1, [(0, 100)]) == 0
    assert subscription.settle_ranges(1, [(200, 201), (100, 200)]) == 101
    assert (subscription.low_mark(1), subscription.unacked(1)) == (201, 0)
    assert batches.consumer.inflight.bytes == 0


def test_a_range_may_be_a_part_of_a_batch_or_reach_over_several(batches):
    subscription = batches.subscription
    assert subscription.settle_ranges(1, [(50, 150)]) == 100
    assert subscription.low_mark(1) == 0
    assert [subscription.in_flight(1, at).messages for at in (0, 100, 200)] == [50, 50, 1]
    assert subscription.settle_ranges(1, [(0, 60), (140, 201)]) == 101
    assert subscription.in_flight(1, 199) is None
    assert (subscription.low_mark(1), batches.consumer.inflight.messages) == (201, 0)


def test_a_range_of_single_messages_is_settled_wherever_it_begins(host, subscription, taker):
    assert subscription.settle_ranges(1, [(1, 3)]) == 2
    assert subscription.settle_ranges(1, [(0, 4)]) == 2
    assert (subscription.low_mark(1), taker.consumer.inflight.messages) == (4, 0)


def test_a_run_is_settled_by_ranges_from_its_beginning(subscription, taker):
    for start in range(4):
        assert subscription.settle_ranges(1, [(start, start + 1)]) == 1
    assert taker.consumer.inflight.messages == 0


def test_the_part_of_a_range_that_was_never_delivered_is_ignored(subscription, taker):
    assert subscription.settle_ranges(1, [(2, 6), (8, 1 << 60), (3, 3), (5, 4)]) == 2
    assert subscription.statistics().unknown_settles == 2 + (1 << 60) - 8
    assert subscription.unacked(1) == 2


def test_a_range_settles_what_waits_for_its_delay(host, subscription, taker):
    subscription.requeue(1, [0, 2], delay_ms=500)
    assert subscription.settle_ranges(1, [(0, 4)]) == 4
    assert subscription.statistics().delayed == 0
    assert subscription.next_deadline_ms() is None


def test_a_delayed_batch_waits_on_while_something_of_it_is_left(host, batches):
    subscription = batches.subscription
    subscription.requeue_ranges(1, [(0, 100)], delay_ms=500)
    subscription.settle_ranges(1, [(0, 99)])
    subscription.settle(1, [100, 101])
    subscription.requeue(1, [100], delay_ms=500)
    subscription.settle(1, [100, 102])
    host.clock.advance(600)
    subscription.due(host.clock.monotonic_ms())
    host.run()
    assert [(each.offset, each.messages) for each in batches.deliveries[3:]] == [(0, 1), (100, 97)]


def test_a_batch_goes_back_as_one_range(host, batches):
    subscription = batches.subscription
    subscription.settle_ranges(1, [(10, 20)])
    assert subscription.requeue_ranges(1, [(0, 100), (150, 151), (200, 201), (300, 400)]) == 3
    assert batches.consumer.inflight.messages == 0
    host.run()
    again = batches.deliveries[3:]
    assert [(each.offset, each.messages, each.attempts) for each in again] == [
        (0, 90, 1), (100, 100, 1), (200, 1, 1),
    ]  # fmt: skip


def test_ranges_of_a_key_free_the_key(host):
    queue = MemoryQueue(host)
    options = SubscriptionOptions(mode=Mode.KEY_SHARED)
    subscription = Subscription(1, "s", [queue], options, host)
    taker = consume(subscription, Window(500), name="c")
    queue.append([Record(b"k", Shape(messages=10, key_len=1)) for _ in range(2)])
    subscription.arrived(1)
    host.run()
    assert subscription.settle_ranges(1, [(0, 10), (10, 20)]) == 20
    late = consume(subscription, Window(500), name="d")
    subscription.detach(taker.consumer)
    queue.append([Record(b"k", Shape(key_len=1))])
    subscription.arrived(1)
    host.run()
    assert late.offsets == [20]


# ---- whole entries ------------------------------------------------------------------------------


def whole(host, *sizes):
    """A subscription that takes batches whole, of entries with so many messages each."""
    queue = MemoryQueue(host)
    queue.append([Record(b"x", Shape(messages=size)) for size in sizes])
    options = SubscriptionOptions(whole_batches=True)
    return Subscription(1, "s", [queue], options, host)


def test_entries_are_settled_by_their_first_offsets_however_long_they_are(host):
    subscription = whole(host, 1, 1, 5, 1, 3)
    taker = consume(subscription, Permits(100), name="c")
    host.run()
    assert taker.offsets == [0, 1, 2, 7, 8]
    assert subscription.settle_entries(1, [0, 1, 2]) == 7
    assert subscription.low_mark(1) == 7
    assert subscription.settle_entries(1, [8, 7]) == 4
    assert subscription.low_mark(1) == 11
    assert taker.consumer.inflight.messages == 0


def test_a_run_of_single_messages_is_settled_without_spilling_it(host):
    subscription = whole(host, *[1] * 6)
    consume(subscription, Permits(100), name="c")
    host.run()
    assert subscription.settle_entries(1, [0, 1, 2]) == 3
    assert subscription.settle_entries(1, [4]) == 1
    assert subscription.settle_entries(1, [3, 5]) == 2
    assert subscription.low_mark(1) == 6


def test_an_offset_inside_a_batch_names_no_entry(host):
    subscription = whole(host, 5, 1)
    consume(subscription, Permits(100), name="c")
    host.run()
    assert subscription.settle_entries(1, [3, 2, 9]) == 0
    assert subscription.unacked(1) == 6


def test_entries_that_wait_to_be_delivered_again_are_settled_whole(host):
    subscription = whole(host, 5, 4)
    taker = consume(subscription, Permits(9), name="c")
    host.run()
    subscription.redeliver(taker.consumer)
    assert subscription.settle_entries(1, [0, 5]) == 9
    taker.consumer.grant(50)
    host.run()
    assert taker.offsets == [0, 5]


def test_entries_that_were_never_delivered_or_are_settled_are_ignored(host):
    subscription = whole(host, 2, 3, 4)
    consume(subscription, Permits(1), name="c")
    host.run()
    assert subscription.settle_entries(1, [0, 2, 5]) == 2
    assert subscription.settle_entries(1, [0, 0]) == 0
    assert subscription.low_mark(1) == 2


def test_counts_of_what_came_back_can_be_forgotten(host):
    subscription = whole(host, 1, 2)
    taker = consume(subscription, Permits(3), name="c")
    host.run()
    subscription.redeliver(taker.consumer)
    subscription.forget_attempts(1)
    taker.consumer.grant(3)
    host.run()
    assert [delivery.attempts for delivery in taker.deliveries[2:]] == [0, 0]
