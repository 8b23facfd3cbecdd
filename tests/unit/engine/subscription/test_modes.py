"""Exclusive, failover and shared: who gets the next message."""

from bisect import bisect_left

import pytest

from kit.queues import MemoryHost, MemoryQueue, consume
from penstock.engine.host import FailoverRule, Mode, SubscriptionOptions
from penstock.engine.subscription.consumer import ConsumerRefusal, RefusalReason
from penstock.engine.subscription.dispatchers import RECEIVERS_MAX, Shared
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import Permits, Unlimited, Window
from penstock.model.murmur import murmur3_31
from penstock.model.record import neutral_record
from penstock.settings.flow import FlowSettings


@pytest.fixture
def host():
    return MemoryHost()


@pytest.fixture
def queue(host):
    return MemoryQueue(host)


def subscribe(host, queue, mode):
    return Subscription(1, "s", [queue], SubscriptionOptions(mode=mode), host)


def publish(host, subscription, queue, count):
    queue.fill(count)
    subscription.arrived(1)
    host.run()


def test_a_second_exclusive_consumer_is_refused_until_the_first_has_left(host, queue):
    subscription = subscribe(host, queue, Mode.EXCLUSIVE)
    first = consume(subscription, name="a")
    refusal = subscription.attach(first, Unlimited(), name="b")
    assert isinstance(refusal, ConsumerRefusal)
    assert refusal.reason is RefusalReason.BUSY
    assert "'a'" in refusal.text
    subscription.detach(first.consumer)
    second = consume(subscription, name="b")
    publish(host, subscription, queue, 2)
    assert (first.offsets, second.offsets) == ([], [0, 1])


def test_a_refused_consumer_leaves_no_trace(host, queue):
    subscription = subscribe(host, queue, Mode.EXCLUSIVE)
    first = consume(subscription, name="a")
    demand = Unlimited()
    subscription.attach(first, demand, name="b")
    assert demand.wake is None
    assert [each.name for each in subscription.consumers] == ["a"]


def test_the_active_one_is_of_the_highest_priority_then_of_the_first_name(host, queue):
    subscription = subscribe(host, queue, Mode.FAILOVER)
    low = consume(subscription, name="a", priority=0)
    late = consume(subscription, name="z", priority=1)
    early = consume(subscription, name="b", priority=1)
    publish(host, subscription, queue, 3)
    assert (low.offsets, late.offsets, early.offsets) == ([], [], [0, 1, 2])
    assert (low.active, late.active, early.active) == ([True, False], [True, False], [True])


def test_those_who_wait_keep_their_permits(host, queue):
    subscription = subscribe(host, queue, Mode.FAILOVER)
    active = consume(subscription, name="a")
    waiting = consume(subscription, Permits(2), name="b")
    publish(host, subscription, queue, 3)
    subscription.detach(active.consumer)
    host.run()
    assert waiting.offsets == [0, 1]


def test_a_consumer_of_several_queues_hears_once_that_it_is_active(host, queue):
    other = MemoryQueue(host, 2)
    options = SubscriptionOptions(mode=Mode.FAILOVER)
    subscription = Subscription(1, "s", [queue, other], options, host)
    first = consume(subscription, name="b")
    second = consume(subscription, name="a", queue_ids=[2])
    assert (first.active, second.active) == ([True], [True]), "it is still active in the other"


def test_few_messages_go_round_one_by_one(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    receivers = [consume(subscription, name=name) for name in "abc"]
    publish(host, subscription, queue, 4)
    publish(host, subscription, queue, 3)
    assert [taker.offsets for taker in receivers] == [[0, 3, 6], [1, 4], [2, 5]]


def test_many_messages_go_round_in_blocks_just_as_evenly(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    receivers = [consume(subscription, name=name) for name in "abc"]
    publish(host, subscription, queue, 100)
    assert sorted(len(taker.offsets) for taker in receivers) == [33, 33, 34]
    for taker in receivers:
        assert taker.offsets == list(range(taker.offsets[0], taker.offsets[-1] + 1))


def test_a_consumer_without_room_is_passed_over(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    full = consume(subscription, Window(1), name="full")
    free = consume(subscription, name="free")
    publish(host, subscription, queue, 6)
    assert (full.offsets, free.offsets) == ([0], [1, 2, 3, 4, 5])


def test_a_lower_priority_is_served_only_while_the_higher_has_no_room(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    low = consume(subscription, name="low", priority=1)
    high = consume(subscription, Window(2), name="high", priority=5)
    publish(host, subscription, queue, 4)
    assert (high.offsets, low.offsets) == ([0, 1], [2, 3])
    high.settle(*high.deliveries)
    publish(host, subscription, queue, 1)
    assert high.offsets == [0, 1, 4]


def test_rooms_of_different_size_are_filled_and_never_passed(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    receivers = [consume(subscription, Window(size), name=f"w{size}") for size in (1, 5, 3)]
    publish(host, subscription, queue, 20)
    assert [len(taker.offsets) for taker in receivers] == [1, 5, 3]
    assert sorted(offset for taker in receivers for offset in taker.offsets) == list(range(9))


def test_what_nobody_has_bytes_for_stays_in_its_place(host):
    host = MemoryHost(flow=FlowSettings(unacked_consumer_bytes_max=300))
    queue = MemoryQueue(host)
    subscription = subscribe(host, queue, Mode.SHARED)
    receivers = [consume(subscription, name=name) for name in "ab"]
    queue.append(neutral_record(b"x" * 112) for _ in range(6))
    subscription.arrived(1)
    host.run()
    assert [len(taker.offsets) for taker in receivers] == [2, 2]
    receivers[0].settle(*receivers[0].deliveries)
    host.run()
    assert receivers[0].offsets == [0, 2, 4, 5]
    assert not receivers[0].deliveries[-1].is_redelivered


def test_the_round_goes_on_where_it_was_when_somebody_leaves(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    receivers = {name: consume(subscription, name=name) for name in "abcd"}
    publish(host, subscription, queue, 2)
    subscription.detach(receivers["a"].consumer)
    host.run()
    assert receivers["c"].offsets == [0]
    publish(host, subscription, queue, 1)
    assert receivers["d"].offsets == [2]


def test_no_more_are_looked_for_than_there_are_messages_and_the_round_goes_on(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    receivers = [consume(subscription, name=name) for name in "abc"]
    assert len(subscription.cursor(1).dispatcher.receivers(2)) == 2
    for count in (1, 1, 2, 1, 1):
        publish(host, subscription, queue, count)
    assert [each.offsets for each in receivers] == [[0, 3], [1, 4], [2, 5]]


def test_ten_thousand_consumers_do_not_all_have_to_be_asked(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    for number in range(200):
        consume(subscription, name=f"c{number}")
    shared = subscription.cursor(1).dispatcher
    assert isinstance(shared, Shared)
    assert len(shared.receivers()) == RECEIVERS_MAX
    for _ in range(4):
        publish(host, subscription, queue, RECEIVERS_MAX)
    served = [each for each in subscription.consumers if each.delivered_messages]
    assert len(served) == 200


def test_what_is_left_when_one_lacks_bytes_and_the_other_messages_goes_out_later(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    small = consume(subscription, Window(10), name="small", unsent=UnsentLimit(0, 100))
    single = consume(subscription, Window(1), name="single")
    small.reads = False
    queue.append(neutral_record(b"x" * 12) for _ in range(5))
    subscription.arrived(1)
    host.run()
    assert (small.offsets, single.offsets) == ([0], [1])
    assert subscription.ready(1) == 3
    single.settle(*single.deliveries)
    host.run()
    assert single.offsets == [1, 2]
    assert not single.deliveries[-1].is_redelivered


def test_single_active_goes_by_age_whatever_names_and_priorities_say(host, queue):
    subscription = subscribe(host, queue, Mode.SINGLE_ACTIVE)
    elder = consume(subscription, name="z")
    younger = consume(subscription, name="a", priority=9)
    publish(host, subscription, queue, 2)
    assert (elder.offsets, younger.offsets) == ([0, 1], [])
    subscription.cancel(elder.consumer)
    publish(host, subscription, queue, 1)
    assert younger.offsets == [2]
    subscription.settle(1, [0, 1])
    assert subscription.unacked(1) == 1


# ---- the type follows the consumers -------------------------------------------------------------
# Pulsar's subscriptions have no type of their own: whoever is attached to a queue brings one.


def wait_for_keys(host, subscription, queue, window=1):
    """Two key_shared consumers that hold ``window`` each: the rest of their keys is parked."""
    takers = [
        consume(subscription, Window(window), name=name, mode=Mode.KEY_SHARED) for name in "ab"
    ]
    queue.append(neutral_record(b"x", key=b"k%d" % (at % 4)) for at in range(12))
    subscription.arrived(1)
    host.run()
    assert subscription.cursor(1).dispatcher.parked_offsets()
    return takers


def test_with_nobody_attached_the_next_consumer_brings_another_type_and_the_cursor_stays(
    host, queue
):
    subscription = subscribe(host, queue, Mode.SHARED)
    shared = consume(subscription, Window(4), name="a", mode=Mode.SHARED)
    publish(host, subscription, queue, 6)
    subscription.settle(1, [0, 2])
    subscription.requeue(1, [1])
    host.run()
    subscription.detach(shared.consumer)
    exclusive = consume(subscription, name="b", mode=Mode.EXCLUSIVE)
    host.run()
    assert exclusive.offsets == [1, 3, 4, 5]
    assert exclusive.deliveries[0].attempts == 1
    assert exclusive.deliveries[0].is_redelivered
    assert subscription.low_mark(1) == 1
    refused = subscription.attach(exclusive, Unlimited(), name="c", mode=Mode.EXCLUSIVE)
    assert isinstance(refused, ConsumerRefusal)
    assert refused.reason is RefusalReason.BUSY


def test_who_brings_key_shared_with_key_ranges_gets_those_keys_and_no_others(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    taker = consume(subscription, name="a", mode=Mode.KEY_SHARED, key_ranges=[(0, 100)])
    keys = subscription.cursor(1).dispatcher
    assert keys.owners.owner(100) is taker.consumer
    assert keys.owners.owner(101) is None


def test_while_somebody_is_attached_another_type_is_refused_and_both_are_named(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    taker = consume(subscription, name="a", mode=Mode.SHARED)
    refused = subscription.attach(taker, Unlimited(), name="b", mode=Mode.EXCLUSIVE)
    assert isinstance(refused, ConsumerRefusal)
    assert refused.reason is RefusalReason.MODE
    assert "'shared'" in refused.text
    assert "'exclusive'" in refused.text
    assert subscription.cursor(1).mode is Mode.SHARED
    assert [each.name for each in subscription.consumers] == ["a"]


def test_who_names_no_type_takes_the_one_there_is(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    first = consume(subscription, name="a", mode=Mode.EXCLUSIVE)
    subscription.detach(first.consumer)
    consume(subscription, name="b")
    assert subscription.cursor(1).mode is Mode.EXCLUSIVE


def test_each_queue_has_the_type_of_its_own_consumers(host, queue):
    queues = [queue, MemoryQueue(host, 2)]
    subscription = Subscription(1, "s", queues, SubscriptionOptions(), host)
    consume(subscription, name="a", mode=Mode.EXCLUSIVE, queue_ids=[1])
    consume(subscription, name="b", mode=Mode.KEY_SHARED, queue_ids=[2])
    consume(subscription, name="c", mode=Mode.KEY_SHARED, queue_ids=[2])
    assert [subscription.cursor(each).mode for each in (1, 2)] == [
        Mode.EXCLUSIVE,
        Mode.KEY_SHARED,
    ]
    everywhere = subscription.attach(None, Unlimited(), name="d", mode=Mode.SHARED)
    assert everywhere.reason is RefusalReason.MODE


def test_a_consumer_refused_in_one_queue_changes_the_type_of_none(host, queue):
    queues = [queue, MemoryQueue(host, 2)]
    subscription = Subscription(1, "s", queues, SubscriptionOptions(), host)
    consume(subscription, name="a", queue_ids=[2])
    subscription.attach(None, Unlimited(), name="b", mode=Mode.EXCLUSIVE)
    assert subscription.cursor(1).mode is Mode.SHARED


def test_what_was_parked_for_keys_is_delivered_in_order_to_an_exclusive_consumer(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    for taker in wait_for_keys(host, subscription, queue):
        subscription.detach(taker.consumer)
    exclusive = consume(subscription, name="c", mode=Mode.EXCLUSIVE)
    host.run()
    assert exclusive.offsets == list(range(12))


def test_what_a_cancelled_consumer_still_holds_of_a_key_is_not_lost_when_the_type_changes(
    host, queue
):
    subscription = subscribe(host, queue, Mode.SHARED)
    former = wait_for_keys(host, subscription, queue, window=3)
    for taker in former:
        subscription.cancel(taker.consumer)
    held = sorted(former[0].offsets + former[1].offsets)
    shared = consume(subscription, name="c", mode=Mode.SHARED, settles=True)
    host.run()
    subscription.requeue(1, held[:2])
    host.run()
    assert shared.offsets[-2:] == held[:2]
    subscription.detach(shared.consumer)
    again = consume(subscription, name="d", mode=Mode.KEY_SHARED, settles=True)
    subscription.settle(1, held[2:4])
    subscription.requeue(1, held[4:])
    host.run()
    assert again.offsets == held[4:]
    assert subscription.low_mark(1) == 12


def test_a_delivery_time_is_waited_for_as_long_as_the_type_says_so(host, queue):
    subscription = subscribe(host, queue, Mode.SHARED)
    shared = consume(subscription, name="a", mode=Mode.SHARED)
    late = neutral_record(b"late")
    late.reshape(deliver_ms=host.clock.wall_ms() + 60_000)
    queue.append([late, neutral_record(b"now")])
    subscription.arrived(1)
    host.run()
    assert shared.offsets == [1]
    subscription.detach(shared.consumer)
    exclusive = consume(subscription, name="b", mode=Mode.EXCLUSIVE)
    host.run()
    assert exclusive.offsets == [0, 1]
    assert host.delayed_budget.count == 0
    subscription.detach(exclusive.consumer)
    again = consume(subscription, name="c", mode=Mode.SHARED)
    host.run()
    assert again.offsets == [1]


# ---- failover as Pulsar's clients know it -------------------------------------------------------
# Active is who the partition's number or the topic's name says, and it takes over after a while.


SECOND = FailoverRule(takeover_ms=1000)


def standby(subscription, name, rule=SECOND, **keywords):
    return consume(subscription, name=name, mode=Mode.FAILOVER, failover=rule, **keywords)


def wait(host, subscription, ms):
    """As the engine does: nothing happens before its deadline."""
    host.clock.advance(ms)
    now_ms = host.clock.monotonic_ms()
    deadline_ms = subscription.next_deadline_ms()
    if deadline_ms is not None and deadline_ms <= now_ms:
        subscription.due(now_ms)
    host.run()


@pytest.fixture
def failover(host, queue):
    return subscribe(host, queue, Mode.SHARED)


def test_partitions_are_spread_over_the_consumers_and_everybody_is_told(host):
    queues = [MemoryQueue(host, number + 1, number=number) for number in range(4)]
    subscription = Subscription(1, "s", queues, SubscriptionOptions(), host)
    rule = FailoverRule(takeover_ms=1000, is_by_partition=True)
    takers = {
        (name, number): standby(subscription, name, rule, queue_ids=[number + 1])
        for name in "ab"
        for number in range(4)
    }
    for queue in queues:
        queue.fill(2)
        subscription.arrived(queue.queue_id)
    wait(host, subscription, 1000)
    found = [[name for name in "ab" if takers[name, number].offsets] for number in range(4)]
    assert found == [["a"], ["b"], ["a"], ["b"]]
    told = {key: taker.active for key, taker in takers.items()}
    # In even partitions b was told at once that it is not active, and again with everybody.
    assert [told["a", number] for number in range(4)] == [[True], [False], [True], [False]]
    assert [told["b", number] for number in range(4)] == [[False] * 2, [True], [False] * 2, [True]]


def test_the_first_consumer_gets_nothing_for_a_second(host, failover, queue):
    first = standby(failover, "a")
    publish(host, failover, queue, 2)
    wait(host, failover, 999)
    assert (first.active, first.offsets) == ([], [])
    wait(host, failover, 1)
    assert (first.active, first.offsets) == ([True], [0, 1])
    assert failover.next_deadline_ms() is None


def test_who_joins_and_is_not_chosen_is_told_at_once_and_the_others_hear_nothing(
    host, failover, queue
):
    first = standby(failover, "a")
    wait(host, failover, 1000)
    second = standby(failover, "b")
    assert (first.active, second.active) == ([True], [False])
    wait(host, failover, 5000)
    publish(host, failover, queue, 1)
    assert (first.active, second.active) == ([True], [False])
    assert (first.offsets, second.offsets) == ([0], [])


def test_who_is_chosen_takes_over_what_is_unacked_after_a_second_and_everybody_is_told(
    host, failover, queue
):
    old, idle = standby(failover, "b"), standby(failover, "c")
    wait(host, failover, 1000)
    publish(host, failover, queue, 3)
    failover.settle(1, [0])
    new = standby(failover, "a")
    publish(host, failover, queue, 1)
    wait(host, failover, 999)
    assert (old.offsets, new.offsets) == ([0, 1, 2], []), "meanwhile nobody gets anything"
    assert (old.active, idle.active, new.active) == ([True], [False, False], [])
    failover.settle(1, [1])
    wait(host, failover, 1)
    assert (old.active, idle.active, new.active) == ([True, False], [False] * 3, [True])
    assert (old.offsets, new.offsets) == ([0, 1, 2], [2, 3])
    assert [each.attempts for each in new.deliveries] == [0, 0]
    assert old.consumer.inflight.messages == 0


def test_a_second_change_does_not_restart_the_delay(host, failover, queue):
    first = standby(failover, "c")
    wait(host, failover, 1000)
    second = standby(failover, "b")
    wait(host, failover, 600)
    third = standby(failover, "a")
    wait(host, failover, 399)
    assert third.active == []
    wait(host, failover, 1)
    assert (first.active, second.active, third.active) == ([True, False], [False], [True])


def test_when_the_choice_goes_back_to_the_old_one_it_keeps_what_it_has(host, failover, queue):
    old = standby(failover, "b")
    wait(host, failover, 1000)
    publish(host, failover, queue, 2)
    new = standby(failover, "a")
    failover.detach(new.consumer)
    publish(host, failover, queue, 1)
    assert old.offsets == [0, 1]
    wait(host, failover, 1000)
    assert old.offsets == [0, 1, 2]
    assert old.active == [True, True]


def test_when_an_inactive_one_leaves_nothing_is_said(host, failover, queue):
    first, second = standby(failover, "a"), standby(failover, "b")
    wait(host, failover, 1000)
    failover.detach(second.consumer)
    assert failover.next_deadline_ms() is None
    publish(host, failover, queue, 1)
    assert (first.active, first.offsets) == ([True], [0])


def test_when_the_active_one_leaves_those_who_remain_are_told_after_a_second(host, failover, queue):
    takers = [standby(failover, name) for name in "abc"]
    wait(host, failover, 1000)
    publish(host, failover, queue, 2)
    failover.detach(takers[0].consumer)
    wait(host, failover, 999)
    assert takers[1].offsets == []
    wait(host, failover, 1)
    assert [taker.active[-1] for taker in takers] == [True, True, False]
    assert takers[1].offsets == [0, 1]
    assert [each.attempts for each in takers[1].deliveries] == [0, 0]


def test_with_nobody_left_there_is_nothing_to_wait_for(host, failover, queue):
    first = standby(failover, "a")
    failover.detach(first.consumer)
    assert failover.next_deadline_ms() is None
    again = standby(failover, "a")
    publish(host, failover, queue, 1)
    wait(host, failover, 999)
    assert again.offsets == []
    wait(host, failover, 1)
    assert again.offsets == [0]


def test_when_an_inactive_one_leaves_a_partition_may_get_another_active_one(host):
    queue = MemoryQueue(host, 1, number=4)
    subscription = subscribe(host, queue, Mode.SHARED)
    rule = FailoverRule(is_by_partition=True)
    a, b, c = [standby(subscription, name, rule) for name in "abc"]
    publish(host, subscription, queue, 2)
    assert b.offsets == [0, 1], "4 mod 3"
    subscription.detach(c.consumer)
    publish(host, subscription, queue, 1)
    assert a.offsets == [0, 1, 2], "4 mod 2"
    assert b.consumer.inflight.messages == 0
    assert (a.active, b.active) == ([True, False, True], [True, False])


def test_only_those_of_the_highest_priority_take_partitions(host):
    queue = MemoryQueue(host, 1, number=3)
    subscription = subscribe(host, queue, Mode.SHARED)
    rule = FailoverRule(is_by_partition=True)
    for name, priority in [("a", 0), ("b", 2), ("c", 2), ("d", 1)]:
        standby(subscription, name, rule, priority=priority)
    assert subscription.cursor(1).dispatcher.active.name == "c"


@pytest.mark.parametrize("number", range(12))
def test_without_partitions_a_ring_of_the_names_says_who_is_active(host, number):
    queue = MemoryQueue(host)
    subscription = subscribe(host, queue, Mode.SHARED)
    topic = f"persistent://public/default/t{number}"
    names = [f"consumer-{at}" for at in range(5)]
    for name in names:
        standby(subscription, name, FailoverRule(ring_name=topic))
    ring = {murmur3_31(f"{name}{at}".encode()): name for name in names for at in range(100)}
    points = sorted(ring)
    at = bisect_left(points, murmur3_31(topic.encode()))
    expected = ring[points[at % len(points)]]
    assert subscription.cursor(1).dispatcher.active.name == expected


def test_the_next_first_consumer_may_bring_another_rule(host, failover, queue):
    first = standby(failover, "a")
    failover.detach(first.consumer)
    at_once = standby(failover, "b", FailoverRule())
    publish(host, failover, queue, 1)
    assert at_once.offsets == [0]
