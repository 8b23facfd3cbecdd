"""Ordered consumption: one call per queue, in order, until it succeeds."""

import asyncio

from penstock.client.consumer.results import ConsumeResult, Suspend
from penstock.testing.client_parts import calm, received_message
from penstock.testing.ordered_member import QUEUES, ordered_scene

Q0, Q1 = QUEUES


@ordered_scene()
async def test_messages_of_a_queue_are_called_one_by_one_and_committed_in_order(member):
    member.keeper.pulled(Q0, [0, 1])
    await calm()
    assert len(member.listening.waiting()) == 1
    assert member.listening.answer() == [0]
    await calm()
    assert member.noted() == 1
    member.keeper.pulled(Q0, [2])
    assert member.listening.answer() == [1]
    await calm()
    assert member.listening.answer() == [2]
    await calm()
    assert member.noted() == 3
    assert not member.listening.waiting()


@ordered_scene()
async def test_two_queues_are_worked_on_beside_each_other(member):
    member.keeper.pulled(Q0, [0])
    member.keeper.pulled(Q1, [5])
    await calm()
    assert [work.assigned.queue for work in member.listening.waiting()] == [Q0, Q1]


@ordered_scene(batch_max=3)
async def test_a_call_gets_at_most_a_batch(member):
    member.keeper.pulled(Q0, [0, 1, 2, 3])
    await calm()
    assert member.listening.answer() == [0, 1, 2]
    await calm()
    assert member.listening.answer() == [3]


@ordered_scene()
async def test_a_failed_message_comes_again_after_the_suspension_and_nothing_before_it(member):
    member.keeper.pulled(Q0, [0, 1])
    await calm()
    member.listening.answer(error=KeyError("x"))
    await member.runtime.advance(999)
    assert not member.listening.waiting()
    await member.runtime.advance(1)
    batch = member.listening.begin()
    assert [(each.offset, each.reconsume_times) for each in batch] == [(0, 1)]
    member.listening.finish(ConsumeResult.SUSPEND)
    assert member.noted() == 0
    await member.runtime.advance(1_000)
    assert member.listening.answer(Suspend(50)) == [0]
    await member.runtime.advance(50)
    assert member.listening.answer() == [0]
    await calm()
    assert member.listening.answer() == [1]


@ordered_scene(reconsume_max=2)
async def test_a_message_that_failed_too_often_is_a_dead_letter_and_the_queue_goes_on(member):
    member.keeper.pulled(Q0, [0, 1])
    for _ in range(3):
        await member.runtime.advance(1_000)
        assert member.listening.answer(ConsumeResult.SUSPEND) == [0]
    await calm()
    assert member.dead == [0]
    assert member.noted() == 1
    assert member.listening.answer() == [1]


@ordered_scene(reconsume_max=0)
async def test_a_message_that_cannot_be_given_up_blocks_its_queue(member):
    member.takes_dead = False
    member.keeper.pulled(Q0, [0])
    await calm()
    member.listening.answer(ConsumeResult.SUSPEND)
    await calm()
    assert member.noted() == 0
    member.takes_dead = True
    await member.runtime.advance(1_000)
    member.listening.answer(ConsumeResult.SUSPEND)
    await calm()
    assert member.dead == [0]
    assert member.noted() == 1


@ordered_scene(is_auto_commit=False)
async def test_without_auto_commit_only_commit_commits(member):
    member.keeper.pulled(Q0, [0, 1, 2])
    await calm()
    member.listening.answer()
    await calm()
    member.listening.answer()
    await calm()
    assert not member.noted()
    member.listening.answer(ConsumeResult.COMMIT)
    await calm()
    assert member.noted() == 3


@ordered_scene(is_auto_commit=False)
async def test_a_rollback_repeats_everything_since_the_last_commit(member):
    member.keeper.pulled(Q0, [0, 1, 2])
    await calm()
    member.listening.answer(ConsumeResult.COMMIT)
    await calm()
    member.listening.answer()
    await calm()
    assert member.listening.answer(ConsumeResult.ROLLBACK) == [2]
    await member.runtime.advance(1_000)
    assert member.listening.answer() == [1]
    assert member.noted() == 1


@ordered_scene(is_auto_commit=False, reconsume_max=0)
async def test_giving_up_one_message_does_not_commit_those_before_it(member):
    member.keeper.pulled(Q0, [0, 1, 2])
    await calm()
    member.listening.answer()
    await calm()
    member.listening.answer(ConsumeResult.SUSPEND)
    await calm()
    assert member.dead == [1]
    assert member.noted() == 0
    assert member.listening.answer(ConsumeResult.COMMIT) == [2]
    await calm()
    assert member.noted() == 3


@ordered_scene()
async def test_a_queue_that_never_runs_dry_yields_after_a_minute(member):
    member.keeper.pulled(Q0, range(100))
    for _ in range(61):
        await member.runtime.advance(1_000)
        if member.listening.waiting():
            member.listening.answer()
    await calm()
    assert not member.listening.waiting()
    await member.runtime.advance(10)
    assert member.listening.waiting()


@ordered_scene(is_broadcasting=True)
async def test_broadcasting_needs_no_broker_lock(member):
    member.keeper.pulled(Q0, [0, 1])
    await member.runtime.advance(100_000)
    assert member.listening.answer() == [0]
    await calm()
    assert member.noted() == 1
    assert not member.broker.asked
    assert await member.rebalance(Q1)


@ordered_scene()
async def test_direct_consumption_settles_nothing(member):
    message = received_message(Q0, 7)
    direct = asyncio.ensure_future(member.service.consume_directly(message))
    await calm()
    member.listening.answer(ConsumeResult.SUSPEND)
    outcome = await direct
    assert (outcome.result, outcome.is_ordered) == ("CR_LATER", True)
    assert not member.noted()


@ordered_scene()
async def test_failures_and_successes_are_counted(member):
    member.keeper.pulled(Q0, [0])
    await calm()
    member.listening.answer(error=KeyError("x"))
    await member.runtime.advance(1_000)
    member.listening.answer()
    await calm()
    figures = member.statistics.figures(member.runtime.monotonic_ms())["t"]
    assert figures.failed_recently == 1
    assert figures.consumed_per_s > 0
