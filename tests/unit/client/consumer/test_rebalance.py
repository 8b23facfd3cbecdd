"""Rebalancing: what is kept, what goes first, what begins where."""

import asyncio

import pytest

from kit.client.parts import LockingBroker, ManualRuntime, MemoryOffsetStore, PlainQueueOwner
from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.ordered import BrokerLocks
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.consumer.rebalance import Allocation, RebalancePlan, Rebalancer, plan_rebalance
from penstock.client.errors import Unreachable
from penstock.model.assignment import QueueRef

Q = [QueueRef("t", "b", n) for n in range(4)]
OTHER = QueueRef("u", "b", 0)


def owned(*queues, now_ms=0):
    return {queue: AssignedQueue(queue, 0, now_ms) for queue in queues}


def test_differ_stops_what_is_not_ours_and_starts_what_is_new():
    plan = plan_rebalance(owned(Q[0], Q[1], OTHER), "t", [Q[1], Q[2]], 0)
    assert plan == RebalancePlan(stop=[Q[0]], start=[Q[2]])


def test_differ_makes_an_idle_queue_anew_after_two_minutes():
    queues = owned(Q[0])
    assert plan_rebalance(queues, "t", [Q[0]], 120_000) == RebalancePlan([], [])
    assert plan_rebalance(queues, "t", [Q[0]], 120_001) == RebalancePlan([Q[0]], [Q[0]])
    queues[Q[0]].last_pull_ms = 100_000
    assert plan_rebalance(queues, "t", [Q[0]], 120_001) == RebalancePlan([], [])


def test_differ_makes_a_queue_anew_whose_lock_was_lost():
    queues = owned(Q[0])
    queues[Q[0]].drop()
    assert plan_rebalance(queues, "t", [Q[0]], 0) == RebalancePlan([Q[0]], [Q[0]])


class Shares:
    """A share for each topic, as the test says."""

    def __init__(self, **shares):
        self.shares = shares
        self.asked = []

    async def allocate(self, topic):
        self.asked.append(topic)
        return self.shares[topic]


class Scene:
    def __init__(self, **shares):
        self.runtime = ManualRuntime()
        self.store = MemoryOffsetStore()
        self.queue_owner = PlainQueueOwner(self.runtime, self.store)
        self.shares = Shares(**shares)
        self.heartbeats = 0
        self.rebalancer = self.make()

    def make(self, locks=None):
        return Rebalancer(
            self.queue_owner, self.shares, self.runtime.clock, heartbeat=self.heartbeat, locks=locks
        )

    async def heartbeat(self):
        self.heartbeats += 1

    def run(self, *topics):
        return asyncio.run(self.rebalancer.rebalance(topics or ["t"]))


def test_a_change_is_told_with_a_heartbeat_and_no_change_is_not():
    scene = Scene(t=Allocation(Q, Q[:2]))
    assert scene.run()
    assert sorted(scene.queue_owner.owned()) == Q[:2]
    assert scene.queue_owner.changes == [("t", Q, Q[:2])]
    assert scene.heartbeats == 1
    assert scene.run()
    assert len(scene.queue_owner.changes) == scene.heartbeats == 1


def test_a_share_that_is_not_known_keeps_the_queues_and_is_tried_again_soon():
    scene = Scene(t=Allocation(Q, Q))
    scene.run()
    before = dict(scene.queue_owner.owned())
    scene.shares.shares["t"] = None
    assert not scene.run()
    assert scene.queue_owner.owned() == before
    assert scene.heartbeats == 1


def test_an_unknown_member_gets_nothing_says_hello_and_tries_again():
    scene = Scene(t=Allocation(Q, Q))
    scene.run()
    scene.shares.shares["t"] = Allocation(Q, [], is_known_member=False)
    assert not scene.run()
    assert not scene.queue_owner.owned()
    assert not scene.run()
    assert scene.heartbeats == 3


def test_a_queue_that_goes_is_persisted_and_one_that_comes_forgets_what_was_known():
    scene = Scene(t=Allocation(Q, [Q[0]]))
    scene.run()
    scene.queue_owner.offsets.note(Q[0], 7)
    scene.queue_owner.offsets.note(Q[1], 99)  # from long ago
    scene.store.stored[Q[1]] = 3
    scene.shares.shares["t"] = Allocation(Q, [Q[1]])
    scene.run()
    assert scene.store.stored[Q[0]] == 7
    assert scene.queue_owner.offsets.get(Q[0]) is None
    assert scene.queue_owner.owned()[Q[1]].next_offset == 3
    assert scene.queue_owner.events == [("start", Q[0]), ("stop", Q[0]), ("start", Q[1])]


def test_queues_of_a_topic_that_is_not_subscribed_any_more_go():
    scene = Scene(t=Allocation(Q, Q), u=Allocation([OTHER], [OTHER]))
    scene.run("t", "u")
    assert scene.run("t")
    assert sorted(scene.queue_owner.owned()) == Q


def test_without_its_first_offset_a_queue_is_not_started_and_asked_for_again():
    scene = Scene(t=Allocation(Q, Q))
    scene.store.is_reachable = False
    assert not scene.run()
    assert not scene.queue_owner.owned()
    scene.store.is_reachable = True
    assert scene.run()
    assert sorted(scene.queue_owner.owned()) == Q


def test_nothing_is_started_after_close():
    scene = Scene(t=Allocation(Q, Q))

    async def play():
        await scene.rebalancer.close()
        assert await scene.rebalancer.rebalance(["t"])

    asyncio.run(play())
    assert not scene.queue_owner.owned()
    assert not scene.shares.asked


def test_a_queue_that_cannot_be_stopped_yet_leaves_the_consumer_unbalanced():
    scene = Scene(t=Allocation(Q, Q))
    scene.run()

    async def refuse(queue):
        scene.queue_owner.owned()[queue].drop()
        raise Unreachable("b", "away")

    stop, scene.queue_owner.stop_queue = scene.queue_owner.stop_queue, refuse
    scene.shares.shares["t"] = Allocation(Q, Q[:3])
    assert not scene.run()
    assert Q[3] in scene.queue_owner.owned()
    scene.queue_owner.stop_queue = stop
    assert scene.run()
    assert sorted(scene.queue_owner.owned()) == Q[:3]


@pytest.fixture
def locked_scene():
    scene = Scene(t=Allocation(Q, Q))
    scene.broker = LockingBroker(scene.runtime.clock)
    scene.locks = BrokerLocks(
        scene.broker.calls_of("me"), "g", owned=scene.queue_owner.owned, clock=scene.runtime.clock
    )
    scene.rebalancer = scene.make(scene.locks)
    return scene


def test_ordered_queues_are_started_with_their_lock_only(locked_scene):
    scene = locked_scene
    scene.broker.locks.lock("g", [Q[2]], "other", scene.runtime.monotonic_ms())
    assert not scene.run()
    assert sorted(scene.queue_owner.owned()) == [Q[0], Q[1], Q[3]]
    assert all(scene.locks.is_held(each) for each in scene.queue_owner.owned().values())
    scene.broker.locks.unlock("g", [Q[2]], "other")
    assert scene.run()
    assert sorted(scene.queue_owner.owned()) == Q


def test_a_lock_whose_queue_could_not_be_started_is_given_back(locked_scene):
    scene = locked_scene
    scene.store.is_reachable = False
    assert not scene.run()
    assert scene.broker.owner("g", Q[0]) is None


def test_a_queue_changed_while_stopped_starts_with_the_change(locked_scene):
    scene = locked_scene
    scene.run()

    class Table(OffsetTable):
        def note(self, queue, offset, *, is_increase_only):
            assert queue not in scene.queue_owner.owned()
            super().note(queue, offset, is_increase_only=is_increase_only)

    offsets = Table(scene.store)
    moved = asyncio.run(scene.rebalancer.reset_offsets({Q[1]: 42, OTHER: 7}, offsets))
    assert moved == {Q[1]: 42}
    assert scene.run()
    assert scene.queue_owner.owned()[Q[1]].next_offset == 42
