"""Heartbeats: who hears them, what is said, what is logged."""

import asyncio
import logging
from types import SimpleNamespace

from penstock.client.errors import TimedOut
from penstock.client.instance import Heartbeats
from penstock.wire.rocketmq.bodies import ConsumerData, HeartbeatData, ProducerData

BROKERS = {"a": {0: "a:1", 1: "slave:1"}, "b": {0: "b:1"}}


class Bench:
    def __init__(self, *, has_consumer=True):
        self.known = BROKERS
        self.data = HeartbeatData(
            client_id="me",
            producer_data_set=[ProducerData(group_name="p")],
            consumer_data_set=[ConsumerData(group_name="g")] if has_consumer else [],
        )
        self.heard, self.dead = [], set()
        routes = SimpleNamespace(
            brokers=lambda: self.known, address=lambda name: self.known.get(name, {}).get(0)
        )
        self.heartbeats = Heartbeats(
            SimpleNamespace(heartbeat=self.hear), routes, lambda: self.data
        )

    async def hear(self, address, data):
        await asyncio.sleep(0)
        if address in self.dead:
            raise TimedOut(address, 3000)
        self.heard.append((address, data))
        return 479

    def beat(self):
        asyncio.run(self.heartbeats.send_to_all())
        return sorted(address for address, _ in self.heard)


def test_with_consumers_every_broker_hears_and_without_only_masters():
    assert Bench().beat() == ["a:1", "b:1", "slave:1"]
    assert Bench(has_consumer=False).beat() == ["a:1", "b:1"]


def test_nobody_here_is_nothing_to_say():
    bench = Bench()
    bench.data = None
    assert bench.beat() == []


def test_versions_are_learned_and_forgotten_with_their_brokers():
    bench = Bench()
    bench.beat()
    assert bench.heartbeats.version_of("b") == 479
    bench.known = {"a": {0: "a:1"}}
    bench.beat()
    assert set(bench.heartbeats.versions) == {"a:1"}
    assert bench.heartbeats.version_of("b") == 0


def test_a_broker_that_does_not_hear_is_logged_once_until_it_does(caplog):
    bench = Bench()
    bench.dead.add("b:1")
    with caplog.at_level(logging.WARNING):
        bench.beat()
        bench.beat()
        assert [each.to for each in caplog.records] == ["b:1"]
        bench.dead.clear()
        bench.beat()
        bench.dead.add("b:1")
        bench.beat()
    assert [each.to for each in caplog.records] == ["b:1", "b:1"]


def test_a_member_that_leaves_meanwhile_is_not_told_as_present():
    bench = Bench()

    async def run():
        beat = asyncio.ensure_future(bench.heartbeats.send_to_all())
        await asyncio.sleep(0)
        bench.data = None
        await beat

    asyncio.run(run())
    assert bench.heard == []
