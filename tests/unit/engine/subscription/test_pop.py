"""Consumers that ask by themselves: pops for a limited time, and messages that move elsewhere."""

import pytest

from kit.queues import MemoryHost, MemoryQueue
from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.subscription.subscription import (
    SCAN_MESSAGES_MAX,
    TIMED_OUT_MAX,
    PopLimits,
    Subscription,
)
from penstock.flow.demand import Unlimited
from penstock.model.record import neutral_record
from penstock.model.settlement import Cause
from penstock.testing.outlet import RecordingOutlet


class OnlyTag:
    def __init__(self, tag):
        self.tag = tag

    def matches_entry(self, tag_hash):
        return True

    def matches_record(self, record):
        return record.tag == self.tag


@pytest.fixture
def host():
    return MemoryHost()


@pytest.fixture
def queue(host):
    return MemoryQueue(host)


@pytest.fixture
def subscription(host, queue):
    return Subscription(1, "s", [queue], SubscriptionOptions(), host)


@pytest.fixture
def popper(subscription):
    return subscription.attach(RecordingOutlet(), Unlimited(), name="pop", is_passive=True)


def order(count=32, *, visibility_ms=1000, bytes_max=1 << 20, wanted=None):
    return PopLimits(count, bytes_max, visibility_ms, wanted)


def offsets(deliveries):
    return [delivery.offset for delivery in deliveries]


def test_a_pop_gives_what_is_asked_for_and_the_next_one_goes_on(subscription, popper, queue):
    queue.fill(5)
    assert offsets(subscription.pop(popper, 1, order(3))) == [0, 1, 2]
    assert offsets(subscription.pop(popper, 1, order(3))) == [3, 4]
    assert subscription.pop(popper, 1, order(3)) == []


def test_a_pop_stops_at_its_bytes_but_gives_one_message(subscription, popper, queue):
    queue.append([neutral_record(bytes(1000)) for _ in range(3)])
    assert offsets(subscription.pop(popper, 1, order(bytes_max=1))) == [0]
    assert len(subscription.pop(popper, 1, order(bytes_max=1 << 20))) == 2


def test_the_filter_of_a_pop_settles_what_it_refuses_and_is_gone_after_it(
    subscription, popper, queue
):
    queue.append([neutral_record(b"", tag=tag) for tag in (b"A", b"B", b"A", b"B")])
    assert offsets(subscription.pop(popper, 1, order(1, wanted=OnlyTag(b"B")))) == [1]
    assert subscription.low_mark(1) == 1
    assert offsets(subscription.pop(popper, 1, order())) == [2, 3]


def test_a_pop_passes_over_a_bounded_number_of_refused_messages(subscription, popper, queue):
    queue.append([neutral_record(b"", tag=b"A") for _ in range(3 * SCAN_MESSAGES_MAX)])
    assert subscription.pop(popper, 1, order(wanted=OnlyTag(b"B"))) == []
    assert SCAN_MESSAGES_MAX <= subscription.low_mark(1) < 2 * SCAN_MESSAGES_MAX


def test_a_pop_that_moves_nothing_wakes_nobody(subscription, popper, host):
    host.run()
    host.awake.clear()
    assert subscription.pop(popper, 1, order()) == []
    assert host.awake == {}


def test_what_is_late_goes_back_to_its_place_unless_somebody_decides(
    subscription, popper, queue, host
):
    queue.fill(2)
    subscription.pop(popper, 1, order())
    host.clock.advance(1000)
    subscription.due(host.clock.monotonic_ms())
    late = []
    again = subscription.pop(popper, 1, order())
    assert [(each.offset, each.attempts) for each in again] == [(0, 1), (1, 1)]
    subscription.on_visibility_timeout = lambda queue_id, found: late.append((queue_id, found))
    host.clock.advance(1000)
    subscription.due(host.clock.monotonic_ms())
    assert late == [(1, [0, 1])]
    assert subscription.unacked(1) == 2


def test_whoever_waits_is_told_at_a_dispatch_that_leaves_something_ready(subscription, queue, host):
    told = []
    subscription.on_ready = lambda: told.append(True)
    host.run()
    assert told == []
    queue.fill(1)
    subscription.arrived(1)
    host.run()
    assert told == [True]


def test_a_tag_stays_on_the_entry_until_it_is_handed_over_again(subscription, popper, queue):
    queue.fill(1)
    subscription.pop(popper, 1, order())
    subscription.tag(1, [0], 7)
    assert subscription.in_flight(1, 0).tag == 7
    subscription.requeue(1, [0])
    subscription.pop(popper, 1, order())
    assert subscription.in_flight(1, 0).tag == 0


def test_a_moved_message_is_settled_here_and_carried_there(subscription, popper, queue, host):
    other = MemoryQueue(host, 2)
    queue.fill(3)
    subscription.pop(popper, 1, order())
    seen = []

    def rewrite(record, unsettled, attempts):
        seen.append((unsettled, attempts))
        return [(neutral_record(b"copy of " + record.body), other)]

    assert subscription.move(1, [1, 99], rewrite) == 1
    assert seen == [([1], 0)]
    assert [(record.body, target) for record, target in host.carried] == [(b"copy of 1", 2)]
    assert subscription.in_flight(1, 1) is None
    assert subscription.unacked(1) == 2
    causes = [Cause(each.cause) for each in host.save()]
    assert Cause.MOVED in causes


def test_moving_what_is_gone_or_unreadable_only_settles_it(subscription, popper, queue, host):
    queue.fill(3)
    subscription.pop(popper, 1, order())
    queue.trim(1)
    for position in host.records:
        host.records[position] = None

    def rewrite(record, unsettled, attempts):
        raise AssertionError("there is nothing to rewrite")

    assert subscription.move(1, [0, 1, 2], rewrite) == 0
    assert host.carried == []
    assert subscription.low_mark(1) == 3


def test_the_copy_and_the_settlement_are_in_one_frame():
    bench = Workbench()
    source, target = bench.topic("source"), bench.topic("target")
    subscription = bench.engine.create_subscription(source.name, "s", SubscriptionOptions())
    bench.publish(bench.channel(), source, b"one")
    bench.settle()
    popper = subscription.attach(bench.outlet, Unlimited(), name="pop", is_passive=True)
    queue_id = source.queues[0].queue_id
    subscription.pop(popper, queue_id, order())
    bench.settle()
    frames = bench.store.counters.frames

    def rewrite(record, unsettled, attempts):
        return [(neutral_record(record.body), target.queues[0])]

    subscription.move(queue_id, [0], rewrite)
    bench.engine.turn()
    assert bench.store.counters.frames == frames + 1
    assert bench.bodies(target) == [b"one"]
    bench.kill()
    assert bench.bodies(bench.engine.topics()[1]) == [b"one"]
    assert bench.engine.topics()[0].subscriptions["s"].low_mark(queue_id) == 1


def test_of_many_that_are_late_at_once_a_turn_takes_a_bounded_number(
    subscription, popper, queue, host
):
    queue.fill(2 * TIMED_OUT_MAX + 1)
    while subscription.pop(popper, 1, order(100)):
        pass
    host.clock.advance(1000)
    for left in (TIMED_OUT_MAX + 1, 1, 0):
        subscription.due(host.clock.monotonic_ms())
        assert subscription.unacked(1) == left
        assert (subscription.next_deadline_ms() is None) is (left == 0)


def test_what_a_turn_left_late_is_due_in_the_next_one():
    bench = Workbench()
    topic = bench.topic("source")
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    bench.publish(bench.channel(), topic, *[b"x"] * (2 * TIMED_OUT_MAX))
    bench.settle()
    popper = subscription.attach(bench.outlet, Unlimited(), name="pop", is_passive=True)
    queue_id = topic.queues[0].queue_id
    while subscription.pop(popper, queue_id, order(100)):
        pass
    bench.settle()
    bench.clock.advance(1000)
    bench.engine.turn()
    assert subscription.unacked(queue_id) == TIMED_OUT_MAX
    assert bench.engine.next_deadline_ms() <= bench.clock.monotonic_ms()
    bench.engine.turn()
    assert subscription.unacked(queue_id) == 0
