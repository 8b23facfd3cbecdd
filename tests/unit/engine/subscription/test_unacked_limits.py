"""Unacked limits as its protocol wants them (F13), and what one consumer gives back.

Pulsar's limits come from broker, namespace and topic, change under live consumers, and are none for
exclusive and failover.
"""

import pytest

from kit.queues import MemoryHost, MemoryQueue, consume
from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Permits
from penstock.model.record import neutral_record
from penstock.settings.flow import FlowSettings


@pytest.fixture
def host():
    return MemoryHost()


@pytest.fixture
def queue(host):
    return MemoryQueue(host)


def subscribe(host, queue, **options):
    return Subscription(1, "s", [queue], SubscriptionOptions(**options), host)


def shared(host, queue, permits=100, **keywords):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Permits(permits), name="a", **keywords)
    return subscription, taker


def test_a_consumer_limit_of_ten_stops_after_exactly_ten_and_goes_on_at_half(host, queue):
    subscription, taker = shared(host, queue, unacked_max=10)
    queue.fill(50)
    subscription.arrived(1)
    host.run()
    assert taker.offsets == list(range(10))
    taker.consumer.demand.add(7)
    host.run()
    assert (taker.consumer.demand.permits, taker.consumer.demand.aside) == (90, 7)
    subscription.settle(1, range(4))
    host.run()
    assert len(taker.offsets) == 10, "six are unacked: it waits for half"
    subscription.settle(1, [4])
    host.run()
    assert taker.offsets == list(range(15))
    assert taker.consumer.demand.permits == 92


def test_an_exclusive_consumer_is_not_stopped_by_a_shared_limit():
    host = MemoryHost(flow=FlowSettings(unacked_consumer_max=10, unacked_consumer_bytes_max=2000))
    queue = MemoryQueue(host)
    subscription = subscribe(host, queue, mode=Mode.EXCLUSIVE, unacked_max=0)
    taker = consume(subscription, Permits(100), name="a", unacked_max=0, unacked_bytes_max=0)
    queue.fill(50)
    subscription.arrived(1)
    host.run()
    assert taker.offsets == list(range(50))
    assert not taker.consumer.inflight.is_blocked


def test_who_brings_no_limit_has_that_of_the_settings():
    host = MemoryHost(flow=FlowSettings(unacked_consumer_max=10))
    queue = MemoryQueue(host)
    _, taker = shared(host, queue)
    assert taker.consumer.inflight.messages_max == 10


def test_a_limit_that_changes_reaches_live_consumers(host, queue):
    subscription, taker = shared(host, queue, unacked_max=10)
    queue.fill(50)
    subscription.arrived(1)
    host.run()
    taker.consumer.demand.add(7)
    taker.consumer.limit_unacked(20)
    host.run()
    assert taker.offsets == list(range(20))
    assert taker.consumer.demand.permits == 100 + 7 - 20
    taker.consumer.limit_unacked(5)
    subscription.settle(1, range(16))
    host.run()
    assert len(taker.offsets) == 20, "four are unacked, and half of five is two"
    taker.consumer.limit_unacked(0)
    host.run()
    assert taker.offsets == list(range(50))


def test_a_lower_limit_stops_who_has_more_and_keeps_its_grants_aside(host, queue):
    subscription, taker = shared(host, queue, permits=8)
    queue.fill(50)
    subscription.arrived(1)
    host.run()
    taker.consumer.limit_unacked(5)
    taker.consumer.demand.add(10)
    host.run()
    assert len(taker.offsets) == 8
    assert taker.consumer.demand.aside == 10
    subscription.settle(1, range(6))
    host.run()
    assert taker.offsets == list(range(11)), "two are left, three more are five"


def test_a_redelivery_unblocks_and_adds_the_permits_kept_aside(host, queue):
    subscription, taker = shared(host, queue, unacked_max=10)
    queue.fill(50)
    subscription.arrived(1)
    host.run()
    taker.consumer.demand.add(7)
    assert subscription.redeliver(taker.consumer, 1, [3]) == 1
    assert (taker.consumer.demand.permits, taker.consumer.demand.aside) == (97, 0)
    host.run()
    assert taker.offsets[10:] == [3], "nine are unacked: one more is ten"
    assert taker.deliveries[-1].attempts == 1
    assert taker.consumer.inflight.is_blocked


def test_a_redelivery_of_all_that_one_consumer_has_takes_nothing_from_others(host, queue):
    subscription, taker = shared(host, queue, permits=5)
    other = consume(subscription, Permits(5), name="b")
    queue.fill(10)
    subscription.arrived(1)
    host.run()
    held = list(taker.offsets)
    subscription.settle(1, held[:1])
    assert subscription.redeliver(taker.consumer) == 4
    taker.consumer.demand.add(4)
    host.run()
    assert taker.offsets[5:] == held[1:]
    assert [each.attempts for each in taker.deliveries[5:]] == [1] * 4
    assert len(other.offsets) == 5


def test_only_what_the_consumer_holds_is_redelivered(host, queue):
    subscription, taker = shared(host, queue, permits=2)
    other = consume(subscription, Permits(2), name="b")
    queue.fill(4)
    subscription.arrived(1)
    host.run()
    subscription.settle(1, taker.offsets[:1])
    asked = [*other.offsets, taker.offsets[0], 99]
    assert subscription.redeliver(taker.consumer, 1, asked) == 0


def test_a_redelivery_may_go_uncounted(host, queue):
    subscription, taker = shared(host, queue, permits=4)
    queue.fill(2)
    subscription.arrived(1)
    host.run()
    subscription.redeliver(taker.consumer, count=False)
    host.run()
    assert taker.offsets == [0, 1, 0, 1]
    assert [each.attempts for each in taker.deliveries] == [0] * 4
    assert taker.consumer.demand.permits == 0, "permits are charged again"


def test_a_redelivered_message_of_a_batch_brings_all_that_is_unacked_of_it(host, queue):
    subscription, taker = shared(host, queue)
    record = neutral_record(b"x")
    record.reshape(messages=5)
    queue.append([record])
    subscription.arrived(1)
    host.run()
    subscription.settle(1, [0, 1])
    assert subscription.redeliver(taker.consumer, 1, [3]) == 1
    host.run()
    assert [each.messages for each in taker.deliveries] == [5, 3]


def test_at_the_subscription_limit_redeliveries_go_on_and_new_reads_do_not(host, queue):
    subscription, taker = shared(host, queue, permits=20)
    subscription.limit_unacked(10)
    queue.fill(50)
    subscription.arrived(1)
    host.run()
    assert len(taker.offsets) == 10, "a read ends at the limit"
    taker.consumer.demand.add(100)
    subscription.redeliver(taker.consumer, 1, [5, 6])
    host.run()
    assert taker.offsets[10:] == [5, 6]
    subscription.settle(1, range(3))
    host.run()
    assert len(taker.offsets) == 12, "seven are unacked"
    subscription.settle(1, [3, 4])
    host.run()
    assert len(taker.offsets) == 17, "five, and five more"


def test_a_batch_passes_the_subscription_limit_by_less_than_itself(host, queue):
    subscription, taker = shared(host, queue, permits=100)
    subscription.limit_unacked(10)
    records = [neutral_record(b"abcd") for _ in range(5)]
    for record in records:
        record.reshape(messages=4)
    queue.append(records)
    subscription.arrived(1)
    host.run()

    assert [each.messages for each in taker.deliveries] == [4, 4, 4]


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED])
def test_several_consumers_together_keep_to_the_limit_of_their_subscription(host, queue, mode):
    subscription = subscribe(host, queue, mode=mode)
    subscription.limit_unacked(10)
    takers = [consume(subscription, Permits(8), name=name) for name in "abc"]
    queue.fill(50)
    subscription.arrived(1)
    host.run()
    assert sum(len(each.offsets) for each in takers) == 10


def test_a_subscription_limit_that_is_lifted_lets_it_go_on(host, queue):
    subscription, taker = shared(host, queue, permits=100)
    subscription.limit_unacked(10)
    queue.fill(150)
    subscription.arrived(1)
    host.run()
    assert "10 unsettled messages (its own limit)" in subscription.view().culprit
    taker.consumer.demand.add(100)
    subscription.limit_unacked(0)
    host.run()
    assert len(taker.offsets) == 150
