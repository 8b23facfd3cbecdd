"""Routes: queues by permission and master, order configuration, stand-ins, the cache."""

import asyncio
import logging

import pytest

from kit.rocketmq.remoting_peer import RemotingPeer
from penstock.client import routes as module
from penstock.client.connection import Network
from penstock.client.errors import BrokerRefused, NoRoute, Unreachable, WouldBlock
from penstock.client.options import InstanceOptions, resolve
from penstock.client.routes import NameServers, Route, RouteCache, default_route
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.bodies import BrokerData, QueueData, TopicRouteData, encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command

ASK = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)


def data(*brokers, conf=None, perm=6, addresses=None, write=2, read=3):
    return TopicRouteData(
        order_topic_conf=conf,
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)
            for name in brokers
        ],
        broker_datas=[
            BrokerData(broker_name=name, broker_addrs=addresses or {"0": f"{name}:1"})
            for name in brokers
        ],
    )


def names(queues):
    return [(each.broker, each.queue) for each in queues]


def test_queues_come_sorted_by_broker_and_number():
    route = Route("t", data("b", "a"))
    assert names(route.write_queues()) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert len(route.read_queues()) == 6


@pytest.mark.parametrize(
    ("perm", "writes", "reads"), [(6, 2, 3), (4, 0, 3), (2, 2, 0), (0, 0, 0), (7, 2, 3)]
)
def test_permissions_decide_what_is_written_and_read(perm, writes, reads):
    route = Route("t", data("a", perm=perm))
    assert (len(route.write_queues()), len(route.read_queues())) == (writes, reads)


def test_a_broker_without_a_master_is_read_but_not_written():
    route = Route("t", data("a", addresses={"1": "slave:1"}))
    assert route.write_queues() == []
    assert len(route.read_queues()) == 3


def test_an_order_configuration_fixes_the_queues_to_write_to():
    route = Route("t", data("a", "b", conf="b:1;a:3;nonsense"))
    assert names(route.write_queues()) == [("b", 0), ("a", 0), ("a", 1), ("a", 2)]
    assert route.is_ordered


def test_a_stand_in_has_no_more_queues_than_wanted_and_than_there_are():
    assert len(default_route("t", data("a", write=8, read=8), 4).write_queues()) == 4
    assert len(default_route("t", data("a", write=2, read=2), 4).write_queues()) == 2
    assert default_route("t", data("a"), 4).write_queues()[0].topic == "t"


def bench(topics):
    """``topics`` is a dict that may be changed while the test runs."""

    def answer(_, command):
        found = topics.get(command.ext["topic"], ResponseCode.TOPIC_NOT_EXIST)
        if isinstance(found, TopicRouteData):
            return Command(0, body=encode_body(found))
        return Command(int(found), remark="no")

    peer = RemotingPeer({ASK: answer})
    options = resolve(InstanceOptions, {})
    network = Network(options, ManualClock(), lambda *_: None, connect=peer.connect)
    return RouteCache(NameServers(["ns:1"], network), timeout_ms=1000), peer


def run(coroutine):
    asyncio.run(coroutine())


def test_a_route_is_asked_for_once_by_many_and_then_known():
    async def test():
        cache, peer = bench({"t": data("a")})
        found = await asyncio.gather(*(cache.look_up("t") for _ in range(4)))
        assert len({id(each) for each in found}) == 1
        assert peer.codes() == [ASK]
        assert cache.get("t") is await cache.get_or_look_up("t")
        assert cache.address("a") == "a:1"
        assert cache.broker_at("a:1") == "a"

    run(test)


def test_a_topic_nobody_knows_has_no_route_unless_a_stand_in_is_wanted():
    async def test():
        topics = {"TBW102": data("a", perm=7, write=8, read=8)}
        cache, _ = bench(topics)
        with pytest.raises(NoRoute, match="'t'"):
            await cache.look_up("t")
        route = await cache.look_up("t", default_queues=4)
        assert route.is_default
        assert len(route.write_queues()) == 4
        topics["t"] = data("a")
        await cache.refresh(["t"])
        assert not cache.get("t").is_default

    run(test)


def test_a_consumer_does_not_take_a_stand_in_for_a_route():
    async def test():
        cache, _ = bench({"TBW102": data("a")})
        await cache.look_up("t", default_queues=4)
        with pytest.raises(NoRoute):
            await cache.get_or_look_up("t")

    run(test)


def test_a_failed_refresh_keeps_what_was_known_and_is_logged_once(caplog):
    async def test():
        topics = {"t": data("a")}
        cache, _ = bench(topics)
        known = await cache.look_up("t")
        del topics["t"]
        with caplog.at_level(logging.WARNING, "penstock.client.routes"):
            await cache.refresh(["t"])
            await cache.refresh(["t"])
        assert cache.get("t") is known
        assert len(caplog.records) == 1

    run(test)


def test_when_no_name_server_answers_a_refresh_ends_with_the_first_topic(caplog):
    async def test():
        cache, peer = bench({"t": data("a"), "u": data("a"), "v": data("a")})
        await cache.refresh(["t", "u", "v"])
        peer.transports[0].break_off()
        peer.dead.add("ns:1")
        before = len(peer.asked), len(peer.dials)
        with caplog.at_level(logging.WARNING, "penstock.client.routes"):
            await cache.refresh(["t", "u", "v"])
            await cache.refresh(["t", "u", "v"])
        assert (len(peer.asked), len(peer.dials)) == (before[0], before[1] + 1)
        told = [each for each in caplog.records if each.name == "penstock.client.routes"]
        assert len(told) == 1
        assert cache.topics() == ["t", "u", "v"]

    run(test)


def test_listeners_hear_of_differences_only():
    async def test():
        topics, heard = {"t": data("a")}, []
        cache, _ = bench(topics)
        cache.on_change(lambda topic, old, new: heard.append((topic, old is None, new)))
        await cache.refresh(["t"])
        await cache.refresh(["t"])
        assert [each[:2] for each in heard] == [("t", True)]
        topics["t"] = data("a", "b")
        await cache.refresh(["t"])
        assert [each[:2] for each in heard] == [("t", True), ("t", False)]
        assert set(cache.brokers()) == {"a", "b"}

    run(test)


def test_a_broker_that_no_route_names_any_more_is_forgotten():
    async def test():
        topics = {"t": data("a"), "u": data("b")}
        cache, _ = bench(topics)
        await cache.refresh(["t", "u"])
        cache.forget(["u"])
        assert cache.brokers() == {"a": {0: "a:1"}}

    run(test)


def test_reading_follows_the_suggestion_then_the_master_then_anybody():
    async def test():
        cache, _ = bench({"t": data("a", addresses={"0": "m:1", "2": "s:1"})})
        await cache.look_up("t")
        assert cache.readable("a", 2) == ("s:1", 2)
        assert cache.readable("a", 2).is_slave
        assert cache.readable("a", 5) == ("m:1", 0)
        assert cache.readable("x") is None
        cache.put(Route("t", data("a", addresses={"2": "s:1"})))
        assert cache.readable("a", 0) == ("s:1", 2)

    run(test)


def test_errors_of_the_name_server_are_told():
    async def test():
        cache, peer = bench({"t": ResponseCode.SYSTEM_ERROR})
        with pytest.raises(BrokerRefused, match="SYSTEM_ERROR"):
            await cache.look_up("t")
        peer.transports[0].break_off()
        peer.dead.add("ns:1")
        with pytest.raises(Unreachable):
            await cache.look_up("t")

    run(test)


def test_the_number_of_topics_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "ROUTES_MAX", 1)

    async def test():
        cache, _ = bench({"t": data("a"), "u": data("a")})
        await cache.look_up("t")
        with pytest.raises(WouldBlock, match="1 topics"):
            await cache.look_up("u")

    run(test)


def test_one_who_gives_up_does_not_take_the_answer_from_the_others():
    async def test():
        cache, _ = bench({"t": data("a")})
        first = asyncio.ensure_future(cache.look_up("t"))
        second = asyncio.ensure_future(cache.look_up("t"))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).topic == "t"

    run(test)
