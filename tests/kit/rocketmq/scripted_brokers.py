"""A name server and brokers that do as a test tells them, on real sockets.

    with scripted_brokers("a", "b") as cluster:
        cluster.brokers["a"].script = lambda command: (2, "busy")
        Producer(cluster.name_server)

For what a healthy broker does not do: be busy, hang, answer nonsense, refuse. Every topic has two
queues on each broker. A script gets the request and returns (code, remark), or None for silence;
without one a send is stored in nobody's memory.

Not here: real brokers (``tests/kit/rocketmq/clusters.py``).
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from penstock.wire.rocketmq.bodies import BrokerData, QueueData, TopicRouteData, encode_body
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command, response_to
from penstock.wire.rocketmq.frames import RemotingFrames, encode

Script = Callable[[Command], tuple[int, str] | None]
SENDS: Final = frozenset((int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)))


class ScriptedServer:
    """One address."""

    def __init__(self, answer: Callable[[Command], Command | None]) -> None:
        self.address = ""
        self._answer = answer

    async def start(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = RemotingFrames()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65536):
                frames.feed(data)
                for command in frames.commands():
                    answer = self._answer(command)
                    if answer is not None and not command.is_oneway:
                        writer.write(encode(answer))
        writer.close()


class ScriptedBroker:
    """A broker that stores nothing; ``sends`` are those it was sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.script: Script = lambda _: (0, "")
        self.sends: list[Command] = []
        self.server = ScriptedServer(self._answer)

    def _answer(self, command: Command) -> Command | None:
        if command.code not in SENDS:
            return response_to(command, 0)
        self.sends.append(command)
        said = self.script(command)
        if said is None:
            return None
        code, remark = said
        stored = {"msgId": "0" * 32, "queueId": command.ext["e"], "queueOffset": "0"}
        return response_to(command, code, ext=stored if code == 0 else None, remark=remark or None)


class ScriptedCluster:
    """Brokers by name, and who tells where they are."""

    def __init__(self, *names: str) -> None:
        self.brokers: Final = {name: ScriptedBroker(name) for name in names}
        self._names: Final = ScriptedServer(self._route)

    @property
    def name_server(self) -> str:
        """Where clients ask."""
        return self._names.address

    async def start(self) -> list[asyncio.Server]:
        """Listen with all."""
        servers = [await each.server.start() for each in self.brokers.values()]
        return [*servers, await self._names.start()]

    def _route(self, command: Command) -> Command:
        queues = [
            QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=2, perm=6)
            for name in self.brokers
        ]
        brokers = [
            BrokerData(cluster="c", broker_name=name, broker_addrs={"0": broker.server.address})
            for name, broker in self.brokers.items()
        ]
        route = TopicRouteData(queue_datas=queues, broker_datas=brokers)
        return response_to(command, 0, body=encode_body(route))


@contextlib.contextmanager
def scripted_brokers(*names: str) -> Iterator[ScriptedCluster]:
    """Run them on a thread of their own."""
    cluster = ScriptedCluster(*names)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    servers = asyncio.run_coroutine_threadsafe(cluster.start(), loop).result()

    async def stop() -> None:
        for server in servers:
            server.close()
        tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield cluster
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
