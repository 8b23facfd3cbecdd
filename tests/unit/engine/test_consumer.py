"""A consumer's room, and what becomes of it when all sockets together are behind."""

import pytest

from penstock.engine.subscription import Subscription
from penstock.engine.subscription_options import SubscriptionOptions
from penstock.flow.demand import Window
from penstock.settings.flow import FlowSettings
from penstock.testing.queues import MemoryHost, MemoryQueue, consume

MESSAGE_BYTES = 90
POOL_BYTES = 5_000


@pytest.fixture
def host():
    return MemoryHost(
        flow=FlowSettings(inflight_bytes_max=POOL_BYTES, connection_bytes_max=POOL_BYTES)
    )


def stuck_readers(host, count):
    """Subscriptions whose one consumer's socket takes nothing."""
    takers = []
    for number in range(1, count + 1):
        queue = MemoryQueue(host, number)
        subscription = Subscription(number, f"s{number}", [queue], SubscriptionOptions(), host)
        taker = consume(subscription, Window(10), name=f"stuck-{number}")
        taker.reads = False
        queue.fill(20)
        subscription.arrived(number)
        host.run()
        takers.append(taker)
    return takers


def test_all_consumers_together_have_no_more_unsent_than_the_pool_and_one_message_each(host):
    takers = stuck_readers(host, 50)
    assert host.unsent_pool.is_short
    assert host.unsent_pool.bytes <= POOL_BYTES + 10 * MESSAGE_BYTES + 50 * MESSAGE_BYTES
    assert {len(taker.offsets) for taker in takers} == {1, 10}
    assert takers[0].consumer.blocked_by() == ("demand", "unsent")


def test_a_consumer_that_reads_goes_on_while_the_pool_is_short(host):
    stuck_readers(host, 50)
    queue = MemoryQueue(host, 99)
    subscription = Subscription(99, "quick", [queue], SubscriptionOptions(), host)
    quick = consume(subscription, name="quick", settles=True)
    queue.fill(30)
    subscription.arrived(99)
    host.run()
    assert quick.offsets == list(range(30))


def test_those_who_stopped_go_on_when_the_others_are_gone(host):
    takers = stuck_readers(host, 50)
    last = takers[-1]
    assert last.offsets == [0]
    assert last.consumer.room() == 0
    for taker in takers[:-1]:
        taker.subscription.detach(taker.consumer)
    host.run()
    assert last.offsets == list(range(10))
    last.subscription.close("deleted")
    assert host.unsent_pool.bytes == 0


def test_the_socket_that_took_everything_lets_its_consumer_go_on(host):
    takers = stuck_readers(host, 50)
    last = takers[-1]
    last.consumer.sent(1, last.deliveries[0].size)
    host.run()
    assert last.offsets == [0, 1]


def test_a_cancelled_consumer_with_nothing_in_flight_weighs_nothing(host):
    (taker,) = stuck_readers(host, 1)
    taker.settle(*taker.deliveries)
    taker.subscription.cancel(taker.consumer)
    assert host.unsent_pool.bytes == 0
