"""The life of a broker's lock, as its holder sees it."""

import asyncio

import pytest

from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.consumer.locks import (
    BrokerLocks,
    LockTerms,
    by_broker,
    is_held,
    may_let_go,
    note_grant,
    note_refusal,
)
from penstock.model.assignment import QueueRef
from penstock.testing.client_parts import LockingBroker
from penstock.testing.clock import ManualClock

TERMS = LockTerms()
A0 = QueueRef("t", "a", 0)
A1 = QueueRef("t", "a", 1)
B0 = QueueRef("t", "b", 0)


def queue(now_ms=0):
    return AssignedQueue(A0, 0, now_ms)


def test_a_lock_is_held_from_its_grant_until_thirty_seconds_after_it_was_asked_for():
    assigned = queue()
    assert not is_held(assigned, 1_000)
    assert note_grant(assigned, 1_000)
    assert is_held(assigned, 1_000)
    assert is_held(assigned, 31_000)
    assert not is_held(assigned, 31_001)


def test_a_stale_lock_that_is_renewed_in_time_is_held_again():
    assigned = queue()
    note_grant(assigned, 1_000)
    assert note_grant(assigned, 61_000)
    assert is_held(assigned, 61_000)
    assert not assigned.is_dropped


def test_a_lock_silent_for_longer_than_brokers_keep_it_is_lost_even_when_granted_again():
    assigned = queue()
    note_grant(assigned, 1_000)
    assert not note_grant(assigned, 61_001)
    assert assigned.is_dropped
    assert not is_held(assigned, 61_001)


def test_an_answer_that_was_overtaken_does_not_shorten_a_lock():
    assigned = queue()
    note_grant(assigned, 5_000)
    note_grant(assigned, 4_000)
    assert assigned.last_locked_ms == 5_000


def test_a_refused_queue_is_over():
    assigned = queue()
    note_grant(assigned, 1_000)
    note_refusal(assigned)
    assert assigned.is_dropped
    assert not is_held(assigned, 1_000)


def test_a_dropped_queue_takes_no_grant():
    assigned = queue()
    assigned.drop()
    assert not note_grant(assigned, 1_000)
    assert not assigned.is_locked


@pytest.mark.parametrize(
    ("is_working", "dropped_for_ms", "expected"),
    [(False, 0, True), (True, 0, False), (True, 19_999, False), (True, 20_000, True)],
)
def test_a_dropped_queue_is_let_go_when_idle_or_after_twenty_seconds(
    is_working, dropped_for_ms, expected
):
    assert may_let_go(is_working, dropped_for_ms) is expected


def test_one_request_for_each_broker():
    assert by_broker([A0, B0, A1]) == [("a", [A0, A1]), ("b", [B0])]


class House:
    def __init__(self):
        self.clock = ManualClock()
        self.broker = LockingBroker(self.clock)
        self.queues = {}

    def locks(self, client_id="me"):
        return BrokerLocks(
            self.broker.calls_of(client_id), "g", owned=lambda: self.queues, clock=self.clock
        )

    def own(self, *refs):
        for ref in refs:
            self.queues[ref] = AssignedQueue(ref, 0, self.clock.monotonic_ms())


def test_what_another_member_holds_is_not_granted():
    house = House()

    async def play():
        mine, other = house.locks(), house.locks("other")
        assert set(await other.acquire([A0])) == {A0}
        granted = await mine.acquire([A0, A1, B0])
        assert granted == dict.fromkeys([A1, B0], house.clock.monotonic_ms())
        await other.give_back([A0])
        assert set(await mine.acquire([A0])) == {A0}

    asyncio.run(play())


def test_renewing_asks_for_owned_queues_that_are_not_dropped():
    house = House()
    house.own(A0, A1, B0)
    house.queues[A1].drop()

    async def play():
        assert await house.locks().renew() == []
        assert house.broker.asked == [("me", [A0]), ("me", [B0])]
        assert house.queues[A0].is_locked
        assert not house.queues[A1].is_locked

    asyncio.run(play())


def test_a_broker_that_does_not_answer_refuses_nothing():
    house = House()
    house.own(A0)
    locks = house.locks()

    async def play():
        await locks.renew()
        house.broker.is_reachable = False
        house.clock.advance(20_000)
        assert await locks.renew() == []
        assert await locks.acquire([A1]) == {}
        await locks.give_back([A0])
        assert locks.is_held(house.queues[A0])
        house.clock.advance(10_001)
        assert not locks.is_held(house.queues[A0])
        house.broker.is_reachable = True
        assert await locks.renew() == []
        assert locks.is_held(house.queues[A0])

    asyncio.run(play())


def test_a_queue_that_another_took_is_dropped_and_named():
    house = House()
    house.own(A0, A1)
    locks = house.locks()

    async def play():
        await locks.renew()
        house.clock.advance(60_001)
        await house.locks("other").acquire([A0])
        # A1 was free for a moment: somebody may have had it.
        assert sorted(await locks.renew()) == [A0, A1]
        assert all(each.is_dropped for each in house.queues.values())

    asyncio.run(play())
