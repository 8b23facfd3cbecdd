"""A broker at the name server it joined: over a real socket, in one process."""

import asyncio
import contextlib

import pytest

from penstock.server import join as join_module
from penstock.server.join import Join
from penstock.settings.load import Settings
from penstock.settings.rocketmq import RocketmqSettings
from penstock.testing.rocketmq_bench import RocketmqBench
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import response_to
from penstock.wire.rocketmq.frame import decode, encode


class FakeNameServer:
    """Answers everything with a code and remembers what it was told."""

    def __init__(self, code=0, body=b""):
        self.code, self.body = code, body
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
                writer.write(encode(response_to(command, self.code, body=self.body)))

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
            join = Join(bench.house, server.address)
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
            join = Join(bench.house, server.address)
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
            join = Join(bench.house, server.address)
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
        join = Join(bench.house, address)
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
            join = Join(bench.house, server.address)
            join.start()
            while not join.registrations:
                await asyncio.sleep(0)
            assert bench.house.key_values.get("ORDER_TOPIC_CONFIG", "orders") == "b:4"
            await join.stop()

    run(scene)
