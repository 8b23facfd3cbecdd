"""Ordered queues that are locked, renewed, lost, dropped, stopped and reset."""

import asyncio

import pytest

from kit.client.parts import QUEUES, calm, ordered_scene
from penstock.model.assignment import QueueRef

Q0, Q1 = QUEUES


@ordered_scene()
async def test_locks_are_renewed_after_a_second_and_then_every_twenty(member):
    member.broker.asked.clear()
    await member.runtime.advance(999)
    assert not member.broker.asked
    await member.runtime.advance(1)
    assert member.broker.asked == [("me", [Q0, Q1])]
    await member.runtime.advance(40_000)
    assert len(member.broker.asked) == 3


@ordered_scene()
async def test_nothing_begins_under_a_stale_lock_until_it_is_renewed(member):
    await member.runtime.advance(1_000)
    member.broker.is_reachable = False
    await member.runtime.advance(30_001)
    member.queue_owner.pulled(Q0, [0])
    await calm()
    assert not member.executor.waiting()
    member.broker.is_reachable = True
    await member.runtime.advance(3_000 + 10)
    assert member.executor.answer() == [0]
    assert not member.losses


@ordered_scene()
async def test_a_lock_taken_by_another_member_ends_the_queue_and_asks_for_a_rebalance(member):
    member.queue_owner.pulled(Q0, [0, 1])
    await calm()
    member.executor.answer()
    await calm()
    await member.queue_owner.offsets.persist()
    member.executor.begin()
    member.broker.is_reachable = False
    await member.runtime.advance(61_000)
    member.broker.is_reachable = True
    await member.broker.calls_of("other").lock("b", "g", [Q0])
    member.store.stored[Q0] = 2
    await member.runtime.advance(20_000)
    assert member.losses
    # The call that was out comes to nothing: the other member went on long ago.
    member.executor.finish()
    await calm()
    assert not await member.rebalance(Q0, Q1)
    assert Q0 not in member.queue_owner.owned()
    assert member.store.stored[Q0] == 2
    assert member.broker.owner("g", Q0) == "other"


@ordered_scene()
async def test_a_call_that_waited_for_a_worker_until_its_lock_was_stale_does_not_begin(member):
    member.queue_owner.pulled(Q0, [0])
    await member.runtime.advance(1_000)
    member.broker.is_reachable = False
    await member.runtime.advance(30_001)
    with pytest.raises(IndexError):
        member.executor.begin()
    member.broker.is_reachable = True
    await member.runtime.advance(5_000)
    assert member.executor.answer() == [0]


@ordered_scene()
async def test_a_queue_is_dropped_at_once_when_no_listener_runs(member):
    member.queue_owner.pulled(Q0, [0])
    await calm()
    # Submitted, but no worker has begun with it: it is withdrawn.
    assert await member.rebalance(Q1)
    assert member.broker.owner("g", Q0) is None
    assert member.store.stored.get(Q0, 0) == 0


@ordered_scene()
async def test_a_listener_that_ends_within_half_a_second_of_the_drop_still_counts(member):
    member.queue_owner.pulled(Q0, [0])
    await calm()
    member.executor.begin()
    rebalance = asyncio.ensure_future(member.rebalance(Q1))
    await member.runtime.advance(400)
    assert not rebalance.done()
    member.executor.finish()
    assert await rebalance
    assert member.store.stored[Q0] == 1
    assert member.broker.owner("g", Q0) is None


@ordered_scene()
async def test_a_listener_that_runs_on_keeps_the_lock_until_a_later_rebalance(member):
    member.queue_owner.pulled(Q0, [0, 1])
    await calm()
    member.executor.begin()
    rebalance = asyncio.ensure_future(member.rebalance(Q1))
    await member.runtime.advance(500)
    assert not await rebalance
    assert member.broker.owner("g", Q0) == "me"
    assert member.queue_owner.owned()[Q0].unlock_tries == 1
    member.executor.finish()
    await calm()
    assert await member.rebalance(Q1)
    assert member.broker.owner("g", Q0) is None
    assert member.store.stored[Q0] == 1


@ordered_scene()
async def test_a_dropped_queue_is_unlocked_by_force_after_twenty_seconds(member):
    await member.runtime.advance(20_500)
    member.queue_owner.pulled(Q0, [0])
    await calm()
    member.executor.begin()
    for seconds in range(20):
        rebalance = asyncio.ensure_future(member.rebalance(Q1))
        await member.runtime.advance(1_000)
        assert not await rebalance, f"unlocked after {seconds} s"
    assert await member.rebalance(Q1)
    assert member.broker.owner("g", Q0) is None
    member.executor.finish()
    await calm()
    assert member.store.stored.get(Q0, 0) == 0


@ordered_scene()
async def test_a_queue_that_comes_back_waits_for_the_listener_of_its_former_self(member):
    member.queue_owner.pulled(Q0, [0])
    await calm()
    member.executor.begin()
    await member.runtime.advance(1_000)
    member.queue_owner.owned()[Q0].drop()
    for _ in range(22):
        rebalance = asyncio.ensure_future(member.rebalance(Q0, Q1))
        await member.runtime.advance(1_000)
        await rebalance
    member.queue_owner.pulled(Q0, [0])
    await calm()
    assert not member.executor.waiting()
    member.executor.finish()
    await calm()
    assert member.executor.answer() == [0]
    await calm()
    assert member.noted() == 1


@ordered_scene()
async def test_a_stop_waits_for_listeners_and_then_unlocks(member):
    member.queue_owner.pulled(Q0, [0, 1])
    await calm()
    member.executor.begin()
    stop = asyncio.ensure_future(member.service.stop(5_000))
    await member.runtime.advance(2_000)
    assert not stop.done()
    member.executor.finish()
    await stop
    assert member.noted() == 1
    for assigned in member.queue_owner.owned().values():
        await member.service.released(assigned)
    assert member.broker.owner("g", Q0) is None
    assert member.executor.is_stopped


@ordered_scene()
async def test_a_listener_that_outlives_the_stop_keeps_others_out(member):
    member.queue_owner.pulled(Q0, [0])
    await calm()
    member.executor.begin()
    stop = asyncio.ensure_future(member.service.stop(5_000))
    await member.runtime.advance(5_000)
    await stop
    for assigned in member.queue_owner.owned().values():
        await member.service.released(assigned)
    assert member.broker.owner("g", Q0) == "me"
    assert member.broker.owner("g", Q1) is None
    member.executor.finish()
    await calm()
    assert not member.noted()


@ordered_scene()
async def test_a_reset_moves_owned_queues_back_and_forward(member):
    member.queue_owner.pulled(Q0, [0, 1])
    await calm()
    member.executor.answer()
    await calm()
    elsewhere = QueueRef("t", "c", 0)
    moved = await member.reset({Q0: 0, Q1: 50, elsewhere: 9})
    assert moved == {Q0: 0, Q1: 50}
    assert member.store.stored == {Q0: 0, Q1: 50}
    await member.rebalance(Q0, Q1)
    assert [member.queue_owner.owned()[queue].next_offset for queue in (Q0, Q1)] == [0, 50]


@ordered_scene()
async def test_a_listener_that_runs_during_a_reset_does_not_undo_it(member):
    member.queue_owner.pulled(Q0, [0, 1])
    await calm()
    member.executor.begin()
    resetting = asyncio.ensure_future(member.reset({Q0: 0}))
    await member.runtime.advance(500)
    await resetting
    member.executor.finish()
    await calm()
    await member.rebalance(Q0, Q1)
    assert member.store.stored[Q0] == 0
    assert member.queue_owner.owned()[Q0].next_offset == 0
