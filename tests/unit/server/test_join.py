"""A broker at the name server it joined: over a real socket, in one process."""

import asyncio
import contextlib

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.cluster_routes import ClusterRoutes
from penstock.adapters.rocketmq.name_server.routes import KvConfig
from penstock.server import join as join_module
from penstock.server.join import NameServerRegistration
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import response_to
from penstock.wire.rocketmq.frames import decode, encode


class FakeNameServer:
    """Answers everything with a code and remembers what it was told."""

    def __init__(self, code=0, body=b""):
        self.code, self.body = code, body
        self.route = (ResponseCode.TOPIC_NOT_EXIST, b"")
        self.told = asyncio.Queue()
        self._writers = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        writers = list(self._writers)
        self.hang_up()
        for writer in writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await self._server.wait_closed()

    def hang_up(self):
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _serve(self, reader, writer):
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(4)
                command = decode(head + await reader.readexactly(int.from_bytes(head, "big")))
                await self.told.put(command)
                is_route = command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
                code, body = self.route if is_route else (self.code, self.body)
                writer.write(encode(response_to(command, code, body=body)))

    async def hear(self):
        return await asyncio.wait_for(self.told.get(), 5)


@pytest.fixture
def bench():
    settings = RocketmqSettings(broker_name="b", advertise="10.0.0.5")
    return RocketmqBench(Settings(rocketmq=settings))


def run(scene):
    asyncio.run(asyncio.wait_for(scene(), 10))


def test_it_registers_with_name_address_and_topics_and_says_goodbye(bench):
    async def scene():
        async with FakeNameServer() as server:
            join = NameServerRegistration(bench.broker, server.address)
            join.start()
            told = await server.hear()
            assert told.code == RequestCode.REGISTER_BROKER
            assert told.ext["brokerName"] == "b"
            assert told.ext["brokerAddr"] == "10.0.0.5:10911"
            assert (told.ext["clusterName"], told.ext["brokerId"]) == ("DefaultCluster", "0")
            assert b"TBW102" in told.body
            while not join.registrations:
                await asyncio.sleep(0)
            await join.stop()
            assert (await server.hear()).code == RequestCode.UNREGISTER_BROKER

    run(scene)


def test_a_new_topic_is_registered_at_once(bench):
    async def scene():
        async with FakeNameServer() as server:
            join = NameServerRegistration(bench.broker, server.address)
            join.start()
            await server.hear()
            bench.client().send("orders")
            assert b"orders" in (await server.hear()).body
            await join.stop()

    run(scene)


def test_a_name_server_that_hangs_up_or_refuses_is_asked_again(bench, monkeypatch):
    monkeypatch.setattr(join_module, "AGAIN_SECONDS", 0.01)

    async def scene():
        async with FakeNameServer(code=1) as server:
            join = NameServerRegistration(bench.broker, server.address)
            join.start()
            await server.hear()
            assert (await server.hear()).code == RequestCode.REGISTER_BROKER
            server.hang_up()
            server.code = 0
            while not join.registrations:
                await server.hear()
                await asyncio.sleep(0)
            await join.stop()

    run(scene)


def test_without_a_name_server_the_broker_lives_and_stops(bench, monkeypatch):
    monkeypatch.setattr(join_module, "AGAIN_SECONDS", 0.01)

    async def scene():
        async with FakeNameServer() as server:
            address = server.address
        join = NameServerRegistration(bench.broker, address)
        join.start()
        for _ in range(50):
            await asyncio.sleep(0)
        await join.stop()
        assert join.registrations == 0

    run(scene)


def test_the_order_configuration_is_learnt(bench):
    async def scene():
        body = b'{"table":{"orders":"b:4"}}'
        async with FakeNameServer(body=body) as server:
            join = NameServerRegistration(bench.broker, server.address)
            join.start()
            while not join.registrations:
                await asyncio.sleep(0)
            assert bench.broker.service(KvConfig).get("ORDER_TOPIC_CONFIG", "orders") == "b:4"
            await join.stop()

    run(scene)


FASTJSON_ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.7:10911"},"brokerName":"a","cluster":"c"}],'
    b'"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":3,"writeQueueNums":3}]}'
)


async def asked(bench, topic):
    """The route of a topic as this broker learns it."""
    told = asyncio.get_running_loop().create_future()
    bench.broker.service(ClusterRoutes).fetch(topic, told.set_result)
    return await asyncio.wait_for(told, 5)


async def registered(join):
    while not join.registrations:
        await asyncio.sleep(0)


def test_a_route_that_somebody_asks_for_comes_from_the_name_server(bench):
    async def scene():
        async with FakeNameServer() as server:
            server.route = (0, FASTJSON_ROUTE)
            join = NameServerRegistration(bench.broker, server.address)
            join.start()
            await registered(join)
            route = await asked(bench, "orders")
            assert [(e.broker_name, e.read_queue_nums) for e in route.queue_datas] == [("a", 3)]
            told = [await server.hear() for _ in range(2)]
            assert told[1].code == RequestCode.GET_ROUTEINFO_BY_TOPIC
            assert told[1].ext == {"topic": "orders", "acceptStandardJsonOnly": "true"}
            await join.stop()

    run(scene)


@pytest.mark.parametrize(
    "answer",
    [(ResponseCode.TOPIC_NOT_EXIST, b""), (ResponseCode.SYSTEM_ERROR, b""), (0, b"[1]")],
    ids=["unknown", "error", "unreadable"],
)
def test_a_route_that_the_name_server_cannot_tell_is_unknown_at_once(bench, answer):
    async def scene():
        async with FakeNameServer() as server:
            server.route = answer
            join = NameServerRegistration(bench.broker, server.address)
            join.start()
            await registered(join)
            assert await asked(bench, "orders") is None
            await join.stop()

    run(scene)


def test_a_name_server_that_is_away_tells_no_route_and_is_registered_with_again(bench, monkeypatch):
    monkeypatch.setattr(join_module, "AGAIN_SECONDS", 0.01)

    async def scene():
        async with FakeNameServer() as server:
            server.route = (0, FASTJSON_ROUTE)
            join = NameServerRegistration(bench.broker, server.address)
            join.start()
            await registered(join)
            server.hang_up()
            assert await asked(bench, "orders") is None
            while join.registrations < 2:
                await asyncio.sleep(0)
            assert await asked(bench, "orders") is not None
            await join.stop()

    run(scene)


def test_a_topic_that_grows_here_is_registered_and_its_route_asked_for_again(bench):
    async def scene():
        async with FakeNameServer() as server:
            server.route = (0, FASTJSON_ROUTE)
            join = NameServerRegistration(bench.broker, server.address)
            join.start()
            await registered(join)
            await asked(bench, "orders")
            bench.client().send("orders")
            told = [(await server.hear()).code for _ in range(4)]
            pair = [RequestCode.REGISTER_BROKER, RequestCode.GET_ROUTEINFO_BY_TOPIC]
            assert told == [*pair, *pair]
            await join.stop()

    run(scene)
