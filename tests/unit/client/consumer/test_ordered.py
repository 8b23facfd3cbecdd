"""Ordered consumption: one call per queue, in order, until it succeeds."""

import asyncio

import pytest

from kit.client.parts import QUEUES, LockingBroker, calm, ordered_scene, received_message
from penstock.client.consumer.executor import ConsumeResult, Finished, Later, ResultKind, Suspend
from penstock.client.consumer.ordered import (
    BrokerLocks,
    LockTimes,
    OrderlyAction,
    action_of,
    by_broker,
    is_held,
    may_unlock,
    note_grant,
    note_refusal,
    suspend_ms,
)
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.model.assignment import QueueRef
from penstock.testing.clock import ManualClock

Q0, Q1 = QUEUES


@ordered_scene()
async def test_messages_of_a_queue_are_called_one_by_one_and_committed_in_order(member):
    member.queue_owner.pulled(Q0, [0, 1])
    await calm()
    assert len(member.executor.waiting()) == 1
    assert member.executor.answer() == [0]
    await calm()
    assert member.noted() == 1
    member.queue_owner.pulled(Q0, [2])
    assert member.executor.answer() == [1]
    await calm()
    assert member.executor.answer() == [2]
    await calm()
    assert member.noted() == 3
    assert not member.executor.waiting()


@ordered_scene()
async def test_two_queues_are_worked_on_beside_each_other(member):
    member.queue_owner.pulled(Q0, [0])
    member.queue_owner.pulled(Q1, [5])
    await calm()
    assert [work.assigned.queue for work in member.executor.waiting()] == [Q0, Q1]


@ordered_scene(batch_max=3)
async def test_a_call_gets_at_most_a_batch(member):
    member.queue_owner.pulled(Q0, [0, 1, 2, 3])
    await calm()
    assert member.executor.answer() == [0, 1, 2]
    await calm()
    assert member.executor.answer() == [3]


@ordered_scene()
async def test_a_failed_message_comes_again_after_the_suspension_and_nothing_before_it(member):
    member.queue_owner.pulled(Q0, [0, 1])
    await calm()
    member.executor.answer(error=KeyError("x"))
    await member.runtime.advance(999)
    assert not member.executor.waiting()
    await member.runtime.advance(1)
    batch = member.executor.begin()
    assert [(each.offset, each.reconsume_times) for each in batch] == [(0, 1)]
    member.executor.finish(ConsumeResult.SUSPEND)
    assert member.noted() == 0
    await member.runtime.advance(1_000)
    assert member.executor.answer(Suspend(50)) == [0]
    await member.runtime.advance(50)
    assert member.executor.answer() == [0]
    await calm()
    assert member.executor.answer() == [1]


@ordered_scene(reconsume_max=2)
async def test_a_message_that_failed_too_often_is_a_dead_letter_and_the_queue_goes_on(member):
    member.queue_owner.pulled(Q0, [0, 1])
    for _ in range(3):
        await member.runtime.advance(1_000)
        assert member.executor.answer(ConsumeResult.SUSPEND) == [0]
    await calm()
    assert member.dead == [0]
    assert member.noted() == 1
    assert member.executor.answer() == [1]


@ordered_scene(reconsume_max=0)
async def test_a_message_that_cannot_be_given_up_blocks_its_queue(member):
    member.takes_dead = False
    member.queue_owner.pulled(Q0, [0])
    await calm()
    member.executor.answer(ConsumeResult.SUSPEND)
    await calm()
    assert member.noted() == 0
    member.takes_dead = True
    await member.runtime.advance(1_000)
    member.executor.answer(ConsumeResult.SUSPEND)
    await calm()
    assert member.dead == [0]
    assert member.noted() == 1


@ordered_scene(is_auto_commit=False)
async def test_without_auto_commit_only_commit_commits(member):
    member.queue_owner.pulled(Q0, [0, 1, 2])
    await calm()
    member.executor.answer()
    await calm()
    member.executor.answer()
    await calm()
    assert not member.noted()
    member.executor.answer(ConsumeResult.COMMIT)
    await calm()
    assert member.noted() == 3


@ordered_scene(is_auto_commit=False)
async def test_a_rollback_repeats_everything_since_the_last_commit(member):
    member.queue_owner.pulled(Q0, [0, 1, 2])
    await calm()
    member.executor.answer(ConsumeResult.COMMIT)
    await calm()
    member.executor.answer()
    await calm()
    assert member.executor.answer(ConsumeResult.ROLLBACK) == [2]
    await member.runtime.advance(1_000)
    assert member.executor.answer() == [1]
    assert member.noted() == 1


@ordered_scene(is_auto_commit=False, reconsume_max=0)
async def test_giving_up_one_message_does_not_commit_those_before_it(member):
    member.queue_owner.pulled(Q0, [0, 1, 2])
    await calm()
    member.executor.answer()
    await calm()
    member.executor.answer(ConsumeResult.SUSPEND)
    await calm()
    assert member.dead == [1]
    assert member.noted() == 0
    assert member.executor.answer(ConsumeResult.COMMIT) == [2]
    await calm()
    assert member.noted() == 3


@ordered_scene()
async def test_a_queue_that_never_runs_dry_yields_after_a_minute(member):
    member.queue_owner.pulled(Q0, range(100))
    for _ in range(61):
        await member.runtime.advance(1_000)
        if member.executor.waiting():
            member.executor.answer()
    await calm()
    assert not member.executor.waiting()
    await member.runtime.advance(10)
    assert member.executor.waiting()


@ordered_scene(is_broadcasting=True)
async def test_broadcasting_needs_no_broker_lock(member):
    member.queue_owner.pulled(Q0, [0, 1])
    await member.runtime.advance(100_000)
    assert member.executor.answer() == [0]
    await calm()
    assert member.noted() == 1
    assert not member.broker.asked
    assert await member.rebalance(Q1)


@ordered_scene()
async def test_direct_consumption_settles_nothing(member):
    message = received_message(Q0, 7)
    direct = asyncio.ensure_future(member.service.consume_directly(message))
    await calm()
    member.executor.answer(ConsumeResult.SUSPEND)
    outcome = await direct
    assert (outcome["consumeResult"], outcome["order"]) == ("CR_LATER", True)
    assert not member.noted()


@ordered_scene()
async def test_failures_and_successes_are_counted(member):
    member.queue_owner.pulled(Q0, [0])
    await calm()
    member.executor.answer(error=KeyError("x"))
    await member.runtime.advance(1_000)
    member.executor.answer()
    await calm()
    figures = member.statistics.figures(member.runtime.monotonic_ms())["t"]
    assert figures.failed_recently == 1
    assert figures.consumed_per_s > 0


# ---- orderly actions ----------------------------------------------------------------------------
# What follows from an ordered listener's answer.


def finished(answer=None, error=None):
    return Finished([], answer, error, ResultKind.SUCCESS, 1.0)


@pytest.mark.parametrize(
    ("answer", "automatic", "manual"),
    [
        (None, OrderlyAction.COMMIT, OrderlyAction.KEEP),
        (ConsumeResult.SUCCESS, OrderlyAction.COMMIT, OrderlyAction.KEEP),
        (ConsumeResult.COMMIT, OrderlyAction.COMMIT, OrderlyAction.COMMIT),
        (ConsumeResult.SUSPEND, OrderlyAction.AGAIN, OrderlyAction.AGAIN),
        (ConsumeResult.LATER, OrderlyAction.AGAIN, OrderlyAction.AGAIN),
        (Suspend(5), OrderlyAction.AGAIN, OrderlyAction.AGAIN),
        (Later(3), OrderlyAction.AGAIN, OrderlyAction.AGAIN),
        (ConsumeResult.ROLLBACK, OrderlyAction.AGAIN, OrderlyAction.ROLL_BACK),
    ],
)
def test_every_answer_has_its_row(answer, automatic, manual):
    assert action_of(finished(answer), True) is automatic
    assert action_of(finished(answer), False) is manual


def test_who_raises_sees_the_messages_again():
    for is_auto_commit in (True, False):
        assert action_of(finished(error=KeyError("x")), is_auto_commit) is OrderlyAction.AGAIN


@pytest.mark.parametrize(
    ("answer", "default_ms", "expected"),
    [
        (ConsumeResult.SUSPEND, 1_000, 1_000),
        (Suspend(), 1_000, 1_000),
        (Suspend(250), 1_000, 250),
        (Suspend(1), 1_000, 10),
        (Suspend(60_000), 1_000, 30_000),
        (None, 5, 10),
    ],
)
def test_a_suspension_is_what_the_listener_said_within_bounds(answer, default_ms, expected):
    assert suspend_ms(finished(answer), default_ms) == expected


# ---- locks --------------------------------------------------------------------------------------
# The life of a broker's lock, as its holder sees it.


TERMS = LockTimes()
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
    assert may_unlock(is_working, dropped_for_ms) is expected


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
