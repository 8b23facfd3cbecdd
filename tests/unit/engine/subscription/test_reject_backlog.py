"""Many that die at once are buried some at a time, and nobody else waits for them (law 5)."""

from itertools import pairwise

import pytest

from kit.queues import MemoryHost, MemoryQueue, consume
from penstock.engine.host import SubscriptionOptions
from penstock.engine.subscription import settle
from penstock.engine.subscription.settle import REJECTS_PER_TURN
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Window
from penstock.flow.diagnosis import diagnose
from penstock.flow.views import UndoneView
from penstock.model.settlement import Cause
from penstock.model.steps import finished

MANY = 3 * REJECTS_PER_TURN + 7


@pytest.fixture
def host():
    return MemoryHost()


@pytest.fixture
def queue(host):
    queue = MemoryQueue(host)
    queue.fill(MANY)
    return queue


@pytest.fixture
def subscription(host, queue):
    return Subscription(1, "s", [queue], SubscriptionOptions(delivery_limit=1), host)


@pytest.fixture
def taker(host, subscription):
    taker = consume(subscription, Window(0), name="c")
    host.run()
    assert len(taker.offsets) == MANY
    return taker


def burials(host):
    return [burial.offset for burial in host.burials]


def test_a_long_list_is_buried_in_order_and_by_parts(host, subscription, taker):
    assert subscription.reject(1, range(MANY)) == MANY
    assert len(host.burials) <= REJECTS_PER_TURN
    seen = [len(host.burials)]
    while host.awake:
        host.run(rounds_max=1)
        seen.append(len(host.burials))
    assert max(after - before for before, after in pairwise(seen)) <= REJECTS_PER_TURN
    assert burials(host) == list(range(MANY))
    assert {burial.cause for burial in host.burials} == {Cause.REJECTED}
    assert subscription.low_mark(1) == MANY
    assert subscription.unacked(1) == 0


def test_whoever_refused_them_has_nothing_to_do_with_them_any_more(host, subscription, taker):
    subscription.reject(1, range(MANY))
    assert taker.consumer.inflight.messages == 0
    subscription.detach(taker.consumer)
    other = consume(subscription, Window(0), name="d")
    host.run()
    assert other.offsets == []
    assert burials(host) == list(range(MANY))


def test_they_are_neither_ready_nor_purged_while_they_wait(host, subscription, taker):
    subscription.reject(1, range(MANY))
    assert subscription.ready(1) == 0
    assert subscription.purge(1) == 0
    host.run()
    assert burials(host) == list(range(MANY))


def test_nothing_new_is_handed_out_before_they_are_buried(host, queue, subscription, taker):
    subscription.reject(1, range(MANY))
    queue.fill(5)
    subscription.arrived(1)
    host.run(rounds_max=1)
    assert len(taker.offsets) == MANY
    host.run()
    assert taker.offsets[MANY:] == list(range(MANY, MANY + 5))


def test_what_is_refused_meanwhile_is_buried_behind_them(host, queue, subscription, taker):
    subscription.reject(1, range(1, MANY))
    subscription.reject(1, [0])
    host.run()
    assert burials(host) == [*range(1, MANY), 0]


def test_refused_twice_is_buried_once(host, subscription, taker):
    subscription.reject(1, range(MANY))
    assert subscription.reject(1, range(MANY)) == 0
    host.run()
    assert burials(host) == list(range(MANY))


def test_those_that_came_back_too_often_wait_in_the_same_line(host, subscription, taker):
    subscription.requeue(1, range(MANY))
    host.run()
    assert subscription.requeue(1, range(MANY)) == MANY
    assert len(host.burials) <= REJECTS_PER_TURN
    host.run()
    assert burials(host) == list(range(MANY))
    assert {(each.cause, each.attempts) for each in host.burials} == {(Cause.DELIVERY_LIMIT, 2)}


def test_a_subscription_that_ends_buries_them_first(host, subscription, taker):
    subscription.reject(1, range(MANY))
    subscription.close("deleted")
    assert burials(host) == list(range(MANY))


def test_sought_away_they_do_not_die(host, subscription, taker):
    subscription.reject(1, range(MANY))
    before = len(host.burials)
    subscription.seek(1, 0)
    host.run()
    assert len(host.burials) == before
    assert taker.offsets[MANY:] == list(range(MANY))


def test_many_refused_one_by_one_wait_just_the_same(host, subscription, taker):
    for offset in range(MANY):
        subscription.reject(1, [offset])
    assert len(host.burials) <= REJECTS_PER_TURN
    host.run()
    assert burials(host) == list(range(MANY))


def test_few_refused_in_a_turn_are_buried_at_once(host, subscription, taker):
    for offset in range(0, MANY, REJECTS_PER_TURN):
        subscription.reject(1, range(offset, min(MANY, offset + REJECTS_PER_TURN)))
        assert len(host.burials) == min(MANY, offset + REJECTS_PER_TURN)
        host.run()


def test_beyond_all_bounds_whoever_refuses_waits(host, subscription, taker, monkeypatch):
    monkeypatch.setattr(settle, "BACKLOG_MAX", REJECTS_PER_TURN)
    for offset in range(MANY):
        subscription.reject(1, [offset])
    assert len(host.burials) >= MANY - 2 * REJECTS_PER_TURN


def test_those_who_wait_are_shown_with_their_number_and_since_when(
    host, queue, subscription, taker
):
    assert subscription.view().undone is None
    assert finished(subscription.noteworthy_steps()) is None
    host.clock.advance(70)
    began_ms = host.clock.monotonic_ms()
    subscription.reject(1, range(MANY))
    assert finished(subscription.noteworthy_steps()) is not None
    host.clock.advance(500)
    host.run(rounds_max=1)
    assert subscription.view().undone == UndoneView(
        "burials", MANY - 2 * REJECTS_PER_TURN, began_ms, age_ms=500
    )
    host.run()
    assert subscription.view().undone is None


def test_the_diagnosis_says_that_they_are_buried_before_others_are_delivered(
    host, queue, subscription, taker
):
    subscription.reject(1, range(MANY))
    queue.fill(5)
    host.clock.advance(6_000)
    found = diagnose([subscription.view()])
    assert (found.kind, found.name, found.side) == ("burials", "s", "delivery")
    assert f"first buries {MANY - REJECTS_PER_TURN} messages that died" in found.sentence
