"""Key_shared: one key, one consumer at a time, in order, and no key waits for another for long."""

from types import SimpleNamespace

import pytest

from kit.queues import MemoryHost, MemoryQueue, consume
from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.subscription import dispatchers
from penstock.engine.subscription.consumer import ConsumerRefusal, RefusalReason
from penstock.engine.subscription.dispatchers import (
    SLOTS,
    ConsistentHashRing,
    HalvedRanges,
    StickyRanges,
)
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import Unlimited, Window
from penstock.model.record import neutral_record

KEYS = [b"k%d" % number for number in range(40)]


@pytest.fixture
def host():
    return MemoryHost()


@pytest.fixture
def queue(host):
    return MemoryQueue(host)


@pytest.fixture
def subscription(host, queue):
    options = SubscriptionOptions(mode=Mode.KEY_SHARED)
    return Subscription(1, "s", [queue], options, host)


def publish(host, subscription, queue, keys):
    queue.append(neutral_record(b"x", key=key) for key in keys)
    subscription.arrived(1)
    host.run()


def keys_of(taker):
    return [delivery.record.key for delivery in taker.deliveries]


def test_each_key_goes_to_one_consumer_and_all_consumers_get_keys(host, subscription, queue):
    receivers = [consume(subscription, settles=True, name=name) for name in "abc"]
    publish(host, subscription, queue, KEYS * 3)
    sets = [set(keys_of(taker)) for taker in receivers]
    assert all(sets)
    assert sum(len(each) for each in sets) == len(KEYS)


def test_a_busy_owner_does_not_hold_other_keys(host, subscription, queue):
    busy = consume(subscription, Window(1), name="busy")
    free = consume(subscription, settles=True, name="free")
    publish(host, subscription, queue, KEYS * 2)
    assert len(busy.offsets) == 1
    cursor = subscription.cursor(1)
    assert cursor.next_offset == 80, "everything was looked at"
    owned = [
        key
        for key in KEYS
        if cursor.dispatcher.owners.owner(cursor.dispatcher.slot(key, 0)) is free.consumer
    ]
    assert keys_of(free) == owned * 2
    assert subscription.ready(1) == 80 - len(free.offsets) - 1


def test_what_is_parked_goes_out_in_order_when_its_owner_has_room(host, subscription, queue):
    busy = consume(subscription, Window(1), name="busy")
    consume(subscription, settles=True, name="free")
    publish(host, subscription, queue, KEYS * 2)
    while len(busy.offsets) < len(set(busy.offsets)) + 1 and subscription.unacked(1):
        busy.settle(busy.deliveries[-1])
        host.run()
    assert busy.offsets == sorted(busy.offsets)
    assert subscription.low_mark(1) == 80


def test_a_key_that_moves_waits_until_its_former_owner_has_none_left(host, subscription, queue):
    old = consume(subscription, name="old")
    publish(host, subscription, queue, KEYS)
    assert len(old.offsets) == 40
    new = consume(subscription, settles=True, name="new")
    publish(host, subscription, queue, KEYS)
    assert new.offsets == [], "every key is still in flight at the old owner"
    keys = subscription.cursor(1).dispatcher
    moved = [key for key in KEYS if keys.owners.owner(keys.slot(key, 0)) is new.consumer]
    assert moved
    assert keys.draining_slots() == len(moved)
    first = next(each for each in old.deliveries if each.record.key == moved[0])
    old.settle(first)
    host.run()
    assert keys_of(new) == [moved[0]]


def test_what_comes_back_goes_before_later_messages_of_its_key(host, subscription, queue):
    taker = consume(subscription, Window(1), name="c")
    publish(host, subscription, queue, [b"k"] * 3)
    subscription.requeue(1, [0])
    host.run()
    for _ in range(2):
        taker.settle(taker.deliveries[-1])
        host.run()
    assert taker.offsets == [0, 0, 1, 2]


def test_when_an_owner_leaves_its_keys_and_messages_go_to_others_in_order(
    host, subscription, queue
):
    first = consume(subscription, Window(5), name="a")
    second = consume(subscription, Window(5), name="b")
    publish(host, subscription, queue, KEYS)
    subscription.detach(first.consumer)
    for _ in range(40):
        second.settle(*second.deliveries)
        host.run()
    assert sorted(set(second.offsets)) == list(range(40))
    for key in KEYS:
        mine = [each.offset for each in second.deliveries if each.record.key == key]
        assert mine == sorted(mine)


def test_looking_ahead_is_bounded(host, subscription, queue, monkeypatch):
    monkeypatch.setattr(dispatchers, "LOOK_AHEAD_PER_CONSUMER_MAX", 10)
    consume(subscription, Window(1), name="busy")
    free = consume(subscription, settles=True, name="free")
    keys = subscription.cursor(1).dispatcher
    mine = next(key for key in KEYS if keys.owners.owner(keys.slot(key, 0)) is not free.consumer)
    publish(host, subscription, queue, [mine] * 60 + KEYS)
    assert 20 <= keys.parked_count < 60
    assert free.offsets == []
    assert subscription.ready(1) == 99


def test_messages_without_a_key_go_anywhere(host, subscription, queue):
    receivers = [consume(subscription, name=name) for name in "abcd"]
    publish(host, subscription, queue, [b""] * 200)
    assert sum(len(taker.offsets) for taker in receivers) == 200
    assert min(len(taker.offsets) for taker in receivers) > 10


def test_a_slot_that_nobody_claims_waits_for_somebody_who_does(host, subscription, queue):
    keys = subscription.cursor(1).dispatcher
    consumer = consume(subscription, name="low", key_ranges=[(0, 32767)])
    publish(host, subscription, queue, KEYS)
    low = [key for key in KEYS if keys.slot(key, 0) <= 32767]
    assert keys_of(consumer) == low
    other = consume(subscription, name="high", key_ranges=[(32768, 65535)])
    host.run()
    assert sorted(keys_of(other)) == sorted(set(KEYS) - set(low))


def test_claims_that_overlap_are_refused(host, subscription):
    consume(subscription, name="a", key_ranges=[(0, 100)])
    refusal = subscription.attach(None, Unlimited(), name="b", key_ranges=[(100, 200)])
    assert isinstance(refusal, ConsumerRefusal)
    assert "overlaps" in refusal.text


def test_the_order_of_keys_may_be_read_from_elsewhere(host, queue):
    host.ordering_key = lambda record: record.tag
    options = SubscriptionOptions(mode=Mode.KEY_SHARED)
    subscription = Subscription(1, "s", [queue], options, host)
    receivers = [consume(subscription, name=name) for name in "abc"]
    queue.append(neutral_record(b"x", key=key, tag=b"one") for key in KEYS)
    subscription.arrived(1)
    host.run()
    assert sorted(len(taker.offsets) for taker in receivers) == [0, 0, 40]


def test_nothing_overtakes_what_is_parked_for_want_of_bytes(host, subscription, queue):
    limit = UnsentLimit(0, 250)
    taker = consume(subscription, name="c", unsent=limit)
    taker.reads = False
    queue.append([neutral_record(b"x" * 111, key=b"k"), neutral_record(b"x" * 211, key=b"k")])
    subscription.arrived(1)
    host.run()
    assert taker.offsets == [0, 1], "the one that crosses the line still goes"
    publish(host, subscription, queue, [b"k"])
    taker.settle(*taker.deliveries)
    taker.consumer.sent(2, sum(each.size for each in taker.deliveries))
    host.run()
    assert taker.offsets == [0, 1, 2]


def test_a_small_message_does_not_slip_past_a_large_parked_one(host, subscription, queue):
    taker = consume(subscription, Window(1), name="c", unsent=UnsentLimit(0, 1000))
    publish(host, subscription, queue, [b"k"])
    bodies = (b"x" * 400, b"y" * 400, b"z")
    queue.append(neutral_record(body, key=b"k") for body in bodies)
    subscription.arrived(1)
    host.run()
    subscription.cursor(1).dispatcher.park(1, subscription.cursor(1).dispatcher.slot(b"k", 1))
    subscription.cursor(1).dispatcher.park(2, subscription.cursor(1).dispatcher.slot(b"k", 2))
    subscription.cursor(1).next_offset = 3
    taker.reads = False
    taker.consumer.demand.resize(10)
    taker.consumer.unsent.bytes_max = 700
    taker.settle(taker.deliveries[0])
    subscription.dispatch(100)
    assert taker.offsets == [0, 1, 2], "500 of 700 bytes: one may cross the line, in its turn"
    taker.consumer.unsent.sent_all()
    subscription.dispatch(100)
    assert taker.offsets == [0, 1, 2, 3]


def test_what_was_parked_is_taken_by_hand_when_the_last_owner_has_left(host, subscription, queue):
    pop = consume(subscription, name="pop", is_passive=True)
    busy = consume(subscription, Window(1), name="busy")
    free = consume(subscription, settles=True, name="free")
    publish(host, subscription, queue, KEYS * 2)
    left = sorted(set(range(80)) - set(free.offsets))
    assert subscription.cursor(1).dispatcher.parked_count == len(left) - 1
    subscription.detach(free.consumer)
    subscription.detach(busy.consumer)
    taken = subscription.take(pop.consumer, 80)
    assert [each.offset for each in taken] == left
    assert [each.offset for each in taken if each.is_redelivered] == busy.offsets
    assert subscription.ready(1) == 0


def test_what_a_cancelled_owner_gives_back_is_taken_by_hand(host, subscription, queue):
    pop = consume(subscription, name="pop", is_passive=True)
    owner = consume(subscription, Window(2), name="owner")
    publish(host, subscription, queue, [b"k"] * 3)
    subscription.cancel(owner.consumer)
    assert [each.offset for each in subscription.take(pop.consumer, 9)] == [2]
    subscription.requeue(1, [0, 1])
    assert [each.offset for each in subscription.take(pop.consumer, 9)] == [0, 1]


def test_what_was_parked_goes_in_order_to_the_next_who_joins(host, subscription, queue):
    busy = consume(subscription, Window(1), name="busy")
    free = consume(subscription, settles=True, name="free")
    publish(host, subscription, queue, KEYS * 2)
    subscription.cancel(free.consumer)
    subscription.cancel(busy.consumer)
    heir = consume(subscription, settles=True, name="heir")
    host.run()
    held = busy.deliveries[0].record.key
    assert heir.offsets == sorted(heir.offsets)
    assert held not in keys_of(heir), "the key in flight drains first"
    busy.settle(*busy.deliveries)
    host.run()
    assert keys_of(heir)[-1] == held
    assert subscription.low_mark(1) == 80


# ---- key slots ----------------------------------------------------------------------------------
# Who owns a key, and how little changes when consumers come and go.


def consumer(number, name=None, ranges=()):
    return SimpleNamespace(consumer_id=number, name=name or f"c{number}", key_ranges=ranges)


def owners(ring):
    return [ring.owner(slot).consumer_id for slot in range(1, SLOTS + 1, 7)]


def test_without_consumers_nobody_owns_anything():
    assert ConsistentHashRing().owner(5) is None
    assert StickyRanges().owner(5) is None


def test_a_key_falls_into_the_slot_that_others_would_give_it():
    # murmur3_32(b"test") is 0xBA6BD213; without its sign bit 0x3A6BD213.
    assert ConsistentHashRing().slot(b"test") == 0x3A6BD213 % 65535 + 1
    assert StickyRanges().slot(b"test") == 0x3A6BD213 % 65536
    assert StickyRanges().slot(b"") == 1


def test_the_widest_range_is_halved_for_a_newcomer_and_falls_to_a_neighbour_when_it_leaves():
    ranges = HalvedRanges()
    assert ranges.owner(5) is None
    a, b, c = consumer(1, "a"), consumer(2, "b"), consumer(3, "c")
    for each in (a, b, c):
        assert ranges.refusal(each) is None
        ranges.add(each)
    # As a real Pulsar shares them: a 32769-65536, b 16385-32768, c 0-16384.
    assert [ranges.owner(slot) for slot in (1, 16384)] == [c, c]
    assert [ranges.owner(slot) for slot in (16385, 32768)] == [b, b]
    assert [ranges.owner(slot) for slot in (32769, 65535)] == [a, a]
    ranges.remove(b)
    assert [ranges.owner(slot) for slot in (16384, 16385, 32768)] == [c, a, a]
    ranges.remove(a)
    assert [ranges.owner(slot) for slot in (1, 65535)] == [c, c]
    ranges.remove(c)
    assert ranges.owner(1) is None


def test_who_claims_ranges_does_not_mix_with_halves():
    refusal = HalvedRanges().refusal(consumer(1, ranges=[(0, 9)]))
    assert refusal.reason is RefusalReason.MODE
    assert HalvedRanges().slot(b"test") == StickyRanges().slot(b"test")


def test_keys_are_spread_over_all_consumers():
    ring = ConsistentHashRing()
    for number in range(1, 6):
        ring.add(consumer(number))
    found = owners(ring)
    shares = [found.count(number) / len(found) for number in range(1, 6)]
    assert min(shares) > 0.1
    assert max(shares) < 0.35


def test_a_newcomer_takes_only_what_becomes_its_own():
    ring = ConsistentHashRing()
    for number in range(1, 5):
        ring.add(consumer(number))
    before = owners(ring)
    ring.add(consumer(5))
    after = owners(ring)
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {5}


def test_who_leaves_and_comes_back_under_its_name_finds_its_keys_again():
    ring = ConsistentHashRing()
    everyone = [consumer(number) for number in range(1, 5)]
    for each in everyone:
        ring.add(each)
    before = owners(ring)
    ring.remove(everyone[1])
    assert 2 not in owners(ring)
    ring.add(consumer(99, name="c2"))
    assert [2 if each == 99 else each for each in owners(ring)] == before


def test_consumers_of_one_name_have_different_keys():
    ring = ConsistentHashRing()
    first, second = consumer(1, name="same"), consumer(2, name="same")
    ring.add(first)
    ring.add(second)
    assert set(owners(ring)) == {1, 2}
    ring.remove(first)
    assert set(owners(ring)) == {2}
    ring.remove(second)
    assert ring.owner(1) is None


def test_claimed_ranges_are_kept_and_gaps_have_no_owner():
    claims = StickyRanges()
    first, second = consumer(1, ranges=[(0, 99), (300, 400)]), consumer(2, ranges=[(100, 199)])
    for each in (first, second):
        assert claims.refusal(each) is None
        claims.add(each)
    found = [claims.owner(slot) for slot in (1, 99, 100, 199, 200, 300, 400, 401)]
    assert found == [first, first, second, second, None, first, first, None]
    claims.remove(first)
    assert claims.owner(50) is None


@pytest.mark.parametrize(
    "ranges", [[(50, 150)], [(199, 300)], [(0, 65535)], [(-1, 4)], [(9, 8)], [(70_000, 70_001)]]
)
def test_ranges_that_overlap_or_make_no_sense_are_refused(ranges):
    claims = StickyRanges()
    claims.add(consumer(1, ranges=[(100, 199)]))
    assert claims.refusal(consumer(2, ranges=ranges)).reason is RefusalReason.KEY_RANGE


def test_the_two_ways_do_not_mix_and_that_is_told_apart_from_a_range_clash():
    assert StickyRanges().refusal(consumer(1)).reason is RefusalReason.MODE
    assert ConsistentHashRing().refusal(consumer(1, ranges=[(0, 9)])).reason is RefusalReason.MODE


def test_a_range_may_end_at_65536():
    assert StickyRanges().refusal(consumer(1, ranges=[(0, 65536)])) is None
    assert StickyRanges().refusal(consumer(1, ranges=[(0, 65537)])) is not None


def test_ranges_of_one_consumer_may_not_overlap_either():
    claims = StickyRanges()
    assert claims.refusal(consumer(1, ranges=[(0, 9), (5, 20)])) is not None
