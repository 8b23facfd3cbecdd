"""Whose queues: divided among members, or all of them for everybody."""

import asyncio

import pytest

from penstock.client.consumer.rebalance import (
    Allocation,
    BroadcastAllocator,
    GroupAllocator,
    strategy_of,
)
from penstock.client.errors import Unreachable
from penstock.model.assignment import (
    STRATEGIES,
    QueueRef,
    average,
    fixed,
    machine_room,
    machine_room_nearby,
)

Q = [QueueRef("t", "b", n) for n in range(4)]


def allocate(strategy, members, queues=Q, me="c2", topic="t"):
    async def members_of(topic):
        if isinstance(members, Exception):
            raise members
        return members

    sharing = GroupAllocator(me, strategy, lambda topic: queues, members_of)
    return asyncio.run(sharing.allocate(topic))


def test_queues_and_ids_are_sorted_before_they_are_divided():
    seen = []

    def mine(me, queues, members):
        seen.append((me, queues, members))
        return queues[:1]

    assert allocate(mine, ["c3", "c1", "c2"], Q[::-1]) == Allocation(Q, Q[:1])
    assert seen == [("c2", Q, ["c1", "c2", "c3"])]


def test_the_members_together_have_every_queue_once():
    members = ["c1", "c2", "c3"]
    for strategy in STRATEGIES.values():
        parts = [allocate(strategy, members, me=me).mine for me in members]
        assert sorted(queue for part in parts for queue in part) == Q


def test_strategies_that_need_settings_work_as_functions():
    assert allocate(fixed([Q[3], QueueRef("u", "b", 1)]), ["c2"]).mine == [Q[3]]
    rooms = [QueueRef("t", "north@b", 0), QueueRef("t", "south@b", 0)]
    assert allocate(machine_room(["north"]), ["c2"], rooms).mine == rooms[:1]
    nearby = machine_room_nearby(
        average, lambda queue: queue.broker.partition("@")[0], lambda member: "south"
    )
    assert allocate(nearby, ["c2"], rooms).mine == [rooms[1], rooms[0]]


def test_an_own_id_that_is_missing_gets_nothing():
    assert allocate(average, ["c1", "c3"]) == Allocation(Q, [], is_known_member=False)


@pytest.mark.parametrize(
    ("members", "queues"),
    [(Unreachable("b", "away"), Q), (["c2"], None), (["c2"], [])],
)
def test_without_members_or_route_nothing_can_be_said(members, queues):
    assert allocate(average, members, queues) is None


def test_a_function_that_raises_says_nothing():
    def broken(me, queues, members):
        raise KeyError("mine")

    assert allocate(broken, ["c2"]) is None


def test_broadcasting_takes_every_queue():
    assert asyncio.run(BroadcastAllocator(lambda topic: Q[::-1]).allocate("t")) == Allocation(Q, Q)
    assert asyncio.run(BroadcastAllocator(lambda topic: None).allocate("t")) is None


def test_strategies_by_name():
    assert strategy_of("AVG") is average
    assert strategy_of(average) is average
    with pytest.raises(ValueError, match=r"machine_room\(rooms\)"):
        strategy_of("MACHINE_ROOM")
    with pytest.raises(ValueError, match="'avarage' is not known; one of AVG"):
        strategy_of("avarage")
