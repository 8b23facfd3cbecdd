"""Ordered consumption: one call per queue, under a lock, in order, until it succeeds."""

import asyncio
import functools

from penstock.client.consumer.locks import BrokerLocks
from penstock.client.consumer.ordered import OrderedService, OrderedTerms
from penstock.client.consumer.rebalance import Rebalancer
from penstock.client.consumer.reset import reset_offsets
from penstock.client.consumer.results import ConsumeResult, Suspend
from penstock.client.consumer.sharing import Share
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.model.assignment import QueueRef
from penstock.testing.client_parts import (
    LockingBroker,
    ManualListening,
    ManualRuntime,
    MemoryOffsets,
    PlainKeeper,
    calm,
    received_message,
)

Q0, Q1 = (QueueRef("t", "b", n) for n in range(2))


class Member:
    """One ordered consumer, from rebalancer to listener."""

    def __init__(self, runtime, broker, store, *, name="me", is_broadcasting=False, **terms):
        self.runtime = runtime
        self.listening = ManualListening()
        self.keeper = PlainKeeper(runtime, store)
        self.store = store
        self.name = name
        self.mine = Share([Q0, Q1], [Q0, Q1])
        self.dead = []
        self.takes_dead = True
        self.losses = 0
        self.locks = None
        if not is_broadcasting:
            self.locks = BrokerLocks(
                broker, "g", name, owned=self.keeper.owned, clock=runtime.clock
            )
        self.statistics = ConsumerStatistics()
        self.service = self.keeper.service = OrderedService(
            runtime,
            self.listening,
            self.keeper.offsets,
            self.statistics,
            give_up=self.give_up,
            locks=self.locks,
            lost=self.lost,
            terms=OrderedTerms(**terms),
        )
        self.rebalancer = Rebalancer(
            self.keeper, self, runtime.clock, heartbeat=self.nothing, locks=self.locks
        )

    async def give_up(self, message):
        if self.takes_dead:
            self.dead.append(message.offset)
        return self.takes_dead

    def lost(self):
        self.losses += 1

    async def share(self, topic):
        return self.mine

    async def nothing(self):
        pass

    async def rebalance(self, *mine):
        self.mine = Share([Q0, Q1], list(mine))
        return await self.rebalancer.rebalance(["t"])

    def noted(self, queue=Q0):
        return self.keeper.offsets.get(queue)


def scene(**options):
    """Run a coroutine test with a member that owns Q0 and Q1."""

    def wrap(play):
        @functools.wraps(play)
        def test():
            async def run():
                runtime = ManualRuntime()
                broker = LockingBroker(runtime.clock)
                member = Member(runtime, broker, MemoryOffsets(), **options)
                member.broker = broker
                member.service.start()
                await member.rebalance(Q0, Q1)
                await play(member)
                await runtime.close()

            asyncio.run(run())

        del test.__wrapped__
        return test

    return wrap


@scene()
async def test_messages_of_a_queue_are_called_one_by_one_and_committed_in_order(member):
    member.keeper.pulled(Q0, [0, 1])
    await calm()
    assert len(member.listening.works) == 1
    assert member.listening.answer() == [0]
    await calm()
    assert member.noted() == 1
    member.keeper.pulled(Q0, [2])
    assert member.listening.answer() == [1]
    await calm()
    assert member.listening.answer() == [2]
    await calm()
    assert member.noted() == 3
    assert not member.listening.works


@scene()
async def test_two_queues_are_worked_on_beside_each_other(member):
    member.keeper.pulled(Q0, [0])
    member.keeper.pulled(Q1, [5])
    await calm()
    assert [work.assigned.queue for work in member.listening.works] == [Q0, Q1]


@scene(batch_max=3)
async def test_a_call_gets_at_most_a_batch(member):
    member.keeper.pulled(Q0, [0, 1, 2, 3])
    await calm()
    assert member.listening.answer() == [0, 1, 2]
    await calm()
    assert member.listening.answer() == [3]


@scene()
async def test_a_failed_message_comes_again_after_the_suspension_and_nothing_before_it(member):
    member.keeper.pulled(Q0, [0, 1])
    await calm()
    member.listening.answer(error=KeyError("x"))
    await member.runtime.advance(999)
    assert not member.listening.works
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


@scene(reconsume_max=2)
async def test_a_message_that_failed_too_often_is_a_dead_letter_and_the_queue_goes_on(member):
    member.keeper.pulled(Q0, [0, 1])
    for _ in range(3):
        await member.runtime.advance(1_000)
        assert member.listening.answer(ConsumeResult.SUSPEND) == [0]
    await calm()
    assert member.dead == [0]
    assert member.noted() == 1
    assert member.listening.answer() == [1]


@scene(reconsume_max=0)
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


@scene(is_auto_commit=False)
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


@scene(is_auto_commit=False)
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


@scene(is_auto_commit=False, reconsume_max=0)
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


@scene()
async def test_locks_are_renewed_after_a_second_and_then_every_twenty(member):
    member.broker.asked.clear()
    await member.runtime.advance(999)
    assert not member.broker.asked
    await member.runtime.advance(1)
    assert member.broker.asked == [("me", [Q0, Q1])]
    await member.runtime.advance(40_000)
    assert len(member.broker.asked) == 3


@scene()
async def test_nothing_begins_under_a_stale_lock_until_it_is_renewed(member):
    await member.runtime.advance(1_000)
    member.broker.is_reachable = False
    await member.runtime.advance(30_001)
    member.keeper.pulled(Q0, [0])
    await calm()
    assert not member.listening.works
    member.broker.is_reachable = True
    await member.runtime.advance(3_000 + 10)
    assert member.listening.answer() == [0]
    assert not member.losses


@scene()
async def test_a_lock_taken_by_another_member_ends_the_queue_and_asks_for_a_rebalance(member):
    member.keeper.pulled(Q0, [0, 1])
    await calm()
    member.listening.answer()
    await calm()
    await member.keeper.offsets.persist()
    member.broker.is_reachable = False
    await member.runtime.advance(61_000)
    member.broker.is_reachable = True
    await member.broker.lock("b", "g", "other", [Q0])
    member.store.stored[Q0] = 2
    await member.runtime.advance(20_000)
    assert member.losses
    # The call that was out comes to nothing: the other member went on long ago.
    member.listening.answer()
    await calm()
    assert not await member.rebalance(Q0, Q1)
    assert Q0 not in member.keeper.owned()
    assert member.store.stored[Q0] == 2
    assert member.broker.owner("g", Q0) == "other"


@scene()
async def test_a_queue_is_dropped_at_once_when_no_listener_runs(member):
    member.keeper.pulled(Q0, [0])
    await calm()
    # Submitted, but no worker has begun with it: it is withdrawn.
    assert await member.rebalance(Q1)
    assert member.broker.owner("g", Q0) is None
    assert member.store.stored.get(Q0, 0) == 0


@scene()
async def test_a_listener_that_ends_within_half_a_second_of_the_drop_still_counts(member):
    member.keeper.pulled(Q0, [0])
    await calm()
    member.listening.begin()
    rebalance = asyncio.ensure_future(member.rebalance(Q1))
    await member.runtime.advance(400)
    assert not rebalance.done()
    member.listening.finish()
    assert await rebalance
    assert member.store.stored[Q0] == 1
    assert member.broker.owner("g", Q0) is None


@scene()
async def test_a_listener_that_runs_on_keeps_the_lock_until_a_later_rebalance(member):
    member.keeper.pulled(Q0, [0, 1])
    await calm()
    member.listening.begin()
    rebalance = asyncio.ensure_future(member.rebalance(Q1))
    await member.runtime.advance(500)
    assert not await rebalance
    assert member.broker.owner("g", Q0) == "me"
    assert member.keeper.owned()[Q0].unlock_tries == 1
    member.listening.finish()
    await calm()
    assert await member.rebalance(Q1)
    assert member.broker.owner("g", Q0) is None
    assert member.store.stored[Q0] == 1


@scene()
async def test_a_dropped_queue_is_unlocked_by_force_after_twenty_seconds(member):
    await member.runtime.advance(20_500)
    member.keeper.pulled(Q0, [0])
    await calm()
    member.listening.begin()
    for seconds in range(20):
        rebalance = asyncio.ensure_future(member.rebalance(Q1))
        await member.runtime.advance(1_000)
        assert not await rebalance, f"unlocked after {seconds} s"
    assert await member.rebalance(Q1)
    assert member.broker.owner("g", Q0) is None
    member.listening.finish()
    await calm()
    assert member.store.stored.get(Q0, 0) == 0


@scene()
async def test_a_queue_that_comes_back_waits_for_the_listener_of_its_former_self(member):
    member.keeper.pulled(Q0, [0])
    await calm()
    member.listening.begin()
    await member.runtime.advance(1_000)
    member.keeper.owned()[Q0].drop()
    for _ in range(22):
        rebalance = asyncio.ensure_future(member.rebalance(Q0, Q1))
        await member.runtime.advance(1_000)
        await rebalance
    member.keeper.pulled(Q0, [0])
    await calm()
    assert not [work for work in member.listening.works if work.batches]
    member.listening.finish()
    await calm()
    assert member.listening.answer() == [0]
    await calm()
    assert member.noted() == 1


@scene()
async def test_a_stop_waits_for_listeners_and_then_unlocks(member):
    member.keeper.pulled(Q0, [0, 1])
    await calm()
    member.listening.begin()
    stop = asyncio.ensure_future(member.service.stop(5_000))
    await member.runtime.advance(2_000)
    assert not stop.done()
    member.listening.finish()
    await stop
    assert member.noted() == 1
    for assigned in member.keeper.owned().values():
        await member.service.released(assigned)
    assert member.broker.owner("g", Q0) is None
    assert member.listening.is_stopped


@scene()
async def test_a_listener_that_outlives_the_stop_keeps_others_out(member):
    member.keeper.pulled(Q0, [0])
    await calm()
    member.listening.begin()
    stop = asyncio.ensure_future(member.service.stop(5_000))
    await member.runtime.advance(5_000)
    await stop
    for assigned in member.keeper.owned().values():
        await member.service.released(assigned)
    assert member.broker.owner("g", Q0) == "me"
    assert member.broker.owner("g", Q1) is None
    member.listening.finish()
    await calm()
    assert not member.noted()


@scene()
async def test_a_queue_that_never_runs_dry_yields_after_a_minute(member):
    member.keeper.pulled(Q0, range(100))
    for _ in range(61):
        await member.runtime.advance(1_000)
        if member.listening.works:
            member.listening.answer()
    await calm()
    assert not member.listening.works
    await member.runtime.advance(10)
    assert member.listening.works


@scene(is_broadcasting=True)
async def test_broadcasting_needs_no_broker_lock(member):
    member.keeper.pulled(Q0, [0, 1])
    await member.runtime.advance(100_000)
    assert member.listening.answer() == [0]
    await calm()
    assert member.noted() == 1
    assert not member.broker.asked
    assert await member.rebalance(Q1)


@scene()
async def test_direct_consumption_settles_nothing(member):
    message = received_message(Q0, 7)
    direct = asyncio.ensure_future(member.service.consume_directly(message))
    await calm()
    member.listening.answer(ConsumeResult.SUSPEND)
    outcome = await direct
    assert (outcome.result, outcome.is_ordered) == ("CR_LATER", True)
    assert not member.noted()


@scene()
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


@scene()
async def test_a_reset_moves_owned_queues_back_and_forward(member):
    member.keeper.pulled(Q0, [0, 1])
    await calm()
    member.listening.answer()
    await calm()
    elsewhere = QueueRef("t", "c", 0)
    moved = await reset(member, {Q0: 0, Q1: 50, elsewhere: 9})
    assert moved == {Q0: 0, Q1: 50}
    assert member.store.stored == {Q0: 0, Q1: 50}
    await member.rebalance(Q0, Q1)
    assert [member.keeper.owned()[queue].next_offset for queue in (Q0, Q1)] == [0, 50]


@scene()
async def test_a_listener_that_runs_during_a_reset_does_not_undo_it(member):
    member.keeper.pulled(Q0, [0, 1])
    await calm()
    member.listening.begin()
    resetting = asyncio.ensure_future(reset(member, {Q0: 0}))
    await member.runtime.advance(500)
    await resetting
    member.listening.finish()
    await calm()
    await member.rebalance(Q0, Q1)
    assert member.store.stored[Q0] == 0
    assert member.keeper.owned()[Q0].next_offset == 0


def reset(member, wanted):
    return reset_offsets(
        wanted,
        owned=member.keeper.owned,
        rebalancer=member.rebalancer,
        offsets=member.keeper.offsets,
    )
