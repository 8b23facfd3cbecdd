"""Why a consumer gets nothing: every reason by its own name, and the time of its last grant."""

import pytest

from kit.queues import MemoryHost, MemoryQueue, consume
from penstock.engine.host import FailoverRule, Mode, SubscriptionOptions
from penstock.engine.subscription import dispatchers
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Permits, Window, Withheld
from penstock.model.record import neutral_record
from penstock.settings.broker import TopicSettings


@pytest.fixture
def host():
    return MemoryHost(topics=TopicSettings(delayed_in_memory_max=20))


@pytest.fixture
def queue(host):
    return MemoryQueue(host)


@pytest.fixture
def subscription(host, queue):
    return Subscription(1, "s", [queue], SubscriptionOptions(), host)


def publish(host, subscription, queue, count=10, **keywords):
    queue.append(neutral_record(b"%d" % at, **keywords) for at in range(count))
    subscription.arrived(queue.queue_id)
    host.run()


def why(subscription, taker):
    found = subscription.withheld_from(taker.consumer)
    views = {view.name: view for view in subscription.view().consumers}
    assert views[taker.consumer.name].blocked_by == found, "and so it is shown"
    return found


def awaited(subscription):
    """Consumer -> on whom it depends."""
    return {view.name: view.waits_for for view in subscription.view().consumers}


def test_no_permits(host, subscription, queue):
    taker = consume(subscription, Permits(4), name="c")
    publish(host, subscription, queue)
    assert why(subscription, taker) == (Withheld.DEMAND,)
    (view,) = subscription.view().consumers
    assert not view.has_demand
    assert not view.is_at_limit, "it settles as fast as it asks"


def test_permits_kept_aside_are_not_no_permits(host, subscription, queue):
    taker = consume(subscription, Permits(10), name="c", unacked_max=10)
    publish(host, subscription, queue, 20)
    taker.consumer.grant(5)
    assert why(subscription, taker) == (Withheld.UNSETTLED,)
    (view,) = subscription.view().consumers
    assert view.has_demand
    assert view.is_at_limit


def test_unsettled_bytes(host, subscription, queue):
    taker = consume(subscription, Permits(100), name="c", unacked_bytes_max=300)
    publish(host, subscription, queue)
    assert why(subscription, taker) == (Withheld.BYTES,)


def test_a_socket_that_takes_nothing(host, subscription, queue):
    taker = consume(subscription, Permits(10_000), name="c")
    taker.reads = False
    publish(host, subscription, queue, 3 * host.flow.unsent_messages_max)
    assert why(subscription, taker) == (Withheld.UNSENT,)


def test_a_subscription_that_is_full(host, subscription, queue):
    subscription.limit_unacked(5)
    taker = consume(subscription, Permits(5), name="c")
    publish(host, subscription, queue)
    taker.consumer.grant(5)
    host.run()
    assert why(subscription, taker) == (Withheld.SUBSCRIPTION,)


def test_another_one_is_active_or_takes_over_first(host, subscription, queue):
    rule = FailoverRule(takeover_ms=1000)
    first, second = [
        consume(subscription, Permits(5), name=name, mode=Mode.FAILOVER, failover=rule)
        for name in "ab"
    ]
    publish(host, subscription, queue, 3)
    assert why(subscription, first) == (Withheld.INACTIVE,)
    assert awaited(subscription) == {"a": "", "b": "a"}, "it is to take over"
    host.clock.advance(1000)
    subscription.due(host.clock.monotonic_ms())
    assert why(subscription, first) == ()
    host.run()
    assert why(subscription, first) == (Withheld.NOTHING_READY,)
    assert why(subscription, second) == (Withheld.INACTIVE,)
    assert awaited(subscription) == {"a": "", "b": "a"}


def test_no_room_to_put_delayed_messages_aside(host, subscription, queue):
    taker = consume(subscription, Permits(15), name="c")
    late_ms = host.clock.wall_ms() + 3_600_000
    late = [neutral_record(b"late") for _ in range(60)]
    for record in late:
        record.reshape(deliver_ms=late_ms)
    queue.append(late)
    publish(host, subscription, queue, 5)
    assert taker.offsets == []
    assert why(subscription, taker) == (Withheld.DELAYED_ROOM,)


def test_keys_that_drain(host, subscription, queue):
    former = consume(subscription, Permits(100), name="a", mode=Mode.KEY_SHARED)
    publish(host, subscription, queue, 1, key=b"k")
    owners = subscription.cursor(1).dispatcher.owners
    slot = owners.slot(b"k")
    others = []
    while owners.owner(slot) is former.consumer:
        others.append(consume(subscription, Permits(100), name=f"b{len(others)}"))
    publish(host, subscription, queue, 1, key=b"k")
    assert others[-1].offsets == []
    assert why(subscription, others[-1]) == (Withheld.DRAINING,)
    assert why(subscription, former) == (Withheld.NOTHING_READY,)
    assert awaited(subscription)[others[-1].consumer.name] == "a"
    assert not awaited(subscription)["a"]


def test_too_much_is_parked_for_the_keys_of_others(host, subscription, queue, monkeypatch):
    monkeypatch.setattr(dispatchers, "LOOK_AHEAD_MAX", 4)
    silent, asking = [
        consume(subscription, Permits(permits), name=name, mode=Mode.KEY_SHARED)
        for name, permits in (("a", 0), ("b", 100))
    ]
    owners = subscription.cursor(1).dispatcher.owners
    keys = [b"%d" % at for at in range(99)]
    key = next(each for each in keys if owners.owner(owners.slot(each)) is silent.consumer)
    publish(host, subscription, queue, 10, key=key)
    assert why(subscription, asking) == (Withheld.LOOK_AHEAD,)
    assert why(subscription, silent) == (Withheld.DEMAND,)


def test_nothing_to_read(host, subscription, queue):
    taker = consume(subscription, Window(5), name="c", settles=True)
    assert why(subscription, taker) == (Withheld.NOTHING_READY,)
    publish(host, subscription, queue)
    assert why(subscription, taker) == (Withheld.NOTHING_READY,)


def test_a_queue_without_a_reason_is_enough(host):
    queues = [MemoryQueue(host, 1), MemoryQueue(host, 2, number=1)]
    subscription = Subscription(1, "s", queues, SubscriptionOptions(), host)
    taker = consume(subscription, Permits(5), name="c")
    queues[1].fill(1)
    assert why(subscription, taker) == ()
    subscription.arrived(2)
    host.run()
    assert why(subscription, taker) == (Withheld.NOTHING_READY,)


def test_the_time_of_the_last_grant_is_shown(host, subscription):
    taker = consume(subscription, Permits(0), name="c")
    assert taker.consumer.last_grant_ms is None
    host.clock.advance(700)
    taker.consumer.grant(5)
    at_ms = host.clock.monotonic_ms()
    host.clock.advance(50)
    assert subscription.view().consumers[0].last_grant_ms == at_ms
    assert subscription.consumer_statistics()[0].last_grant_ms == at_ms
