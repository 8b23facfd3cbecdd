"""Offsets at the broker."""

import asyncio

import pytest

from penstock.client.consumer.offsets import RemoteBrokerOffsetStore
from penstock.client.errors import Unreachable
from penstock.model.assignment import QueueRef

A, B = QueueRef("t", "b", 0), QueueRef("t", "dead", 1)


class Calls:
    """Brokers, one of which is dead."""

    def __init__(self):
        self.stored = {}

    async def query_offset(self, queue, group, *, zero_if_not_found=None):
        self._check(queue)
        return self.stored.get((queue, group))

    async def update_offset(self, queue, group, offset, *, oneway=True):
        self._check(queue)
        assert not oneway, "without an answer nobody knows whether it is stored"
        self.stored[queue, group] = offset

    def _check(self, queue):
        if queue.broker == "dead":
            raise Unreachable("dead:1", "no route")


def test_a_dead_broker_does_not_keep_the_others_from_being_told():
    calls = Calls()
    store = RemoteBrokerOffsetStore(calls, "g")
    assert asyncio.run(store.write({B: 1, A: 2})) == [A]
    assert calls.stored == {(A, "g"): 2}
    assert asyncio.run(store.read(A)) == 2


def test_a_broker_that_cannot_be_asked_is_not_one_without_offset():
    with pytest.raises(Unreachable):
        asyncio.run(RemoteBrokerOffsetStore(Calls(), "g").read(B))
