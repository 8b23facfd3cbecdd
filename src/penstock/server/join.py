"""This broker at the RocketMQ name server it joined: registers there, and asks it for routes.

It registers every 30 s and at each change of a topic, and asks for the routes that somebody wants
to know. One connection is kept open: a name server takes its end for the end of the broker. A name
server that is away does not disturb the broker; it is tried again every few seconds, and the log
says so once per episode.

Invariant: one question at a time; routes that somebody waits for go before those to be renewed.
Not here: what is said (``adapters/rocketmq/name_server/server.py``), what is done with
routes (``adapters/rocketmq/cluster_routes.py``).
"""

import asyncio
import contextlib
import logging
from typing import Final

from penstock.adapters.rocketmq.broker import RocketmqBroker
from penstock.adapters.rocketmq.cluster_routes import ClusterRoutes, route_request
from penstock.adapters.rocketmq.name_server.server import (
    apply_registration,
    register_request,
    unregister_request,
)
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.frames import decode, encode

logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 6.0
"""As long as RocketMQ's own brokers wait for a name server."""

AGAIN_SECONDS: Final = 3.0
UNREGISTER_SECONDS: Final = 1.0
GATHER_SECONDS: Final = 0.1
"""Topics that are made together are registered together."""

ANSWER_BYTES_MAX: Final = 1 << 20


class NameServerRegistration:
    """One broker at one name server."""

    def __init__(self, broker: RocketmqBroker, address: str) -> None:
        self._broker = broker
        self._address = address
        self._task: asyncio.Task[None] | None = None
        self._routes = broker.service(ClusterRoutes)
        self._wake = asyncio.Event()
        self._register_at = 0.0
        """When to register again; time of the loop."""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._opaque = 0
        self._is_away = False
        self.registrations = 0
        """How many were answered."""

    def start(self) -> None:
        """Begin to register; needs a running loop."""
        self._broker.topics.on_change = self._changed
        self._routes.on_request = self._wake.set
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Say goodbye, if the name server still listens."""
        self.cancel()
        if self._task is not None:
            # Its read of an answer must be over before the next one begins.
            await asyncio.wait([self._task])
        if self._streams is None:
            return
        writer = self._streams[1]
        with contextlib.suppress(OSError, TimeoutError, Malformed, EOFError):
            async with asyncio.timeout(UNREGISTER_SECONDS):
                await self._ask(unregister_request(self._broker))
        self._hang_up()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(UNREGISTER_SECONDS):
                await writer.wait_closed()

    def cancel(self) -> None:
        self._broker.topics.on_change = _nothing
        self._routes.on_request = _nothing
        if self._task is not None:
            self._task.cancel()

    def _changed(self) -> None:
        soon = asyncio.get_running_loop().time() + GATHER_SECONDS
        self._register_at = min(self._register_at, soon)
        self._wake.set()

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            self._wake.clear()
            if now() >= self._register_at:
                # Set before the question: a change that comes meanwhile makes it sooner again.
                self._register_at = now() + self._broker.settings.register_ms / 1000
                if await self._register():
                    self._routes.on_registered()
                else:
                    self._register_at = min(self._register_at, now() + AGAIN_SECONDS)
            while (topic := self._routes.next_stale()) is not None:
                await self._learn_route(topic)
            # Not ``wait_for``: before Python 3.12 it may lose a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rest_seconds(now())):
                    await self._wake.wait()

    def _rest_seconds(self, now: float) -> float:
        seconds = self._register_at - now
        renew_ms = self._routes.next_refresh_ms()
        if renew_ms is not None:
            seconds = min(seconds, (renew_ms - self._broker.clock.monotonic_ms()) / 1000)
        return max(seconds, 0.0)

    async def _register(self) -> bool:
        answer = await self._answered(register_request(self._broker))
        if answer is None:
            return False
        if answer.code != 0:
            self._tell(f"it answered {answer.code}: {answer.remark}")
            return False
        apply_registration(self._broker, answer)
        self.registrations += 1
        if self._is_away or self.registrations == 1:
            self._is_away = False
            logger.info("registered with name server %s", self._address)
        return True

    async def _learn_route(self, topic: str) -> None:
        # Dialling is the registration's: a connection that only asks would mean nothing there.
        answer = None if self._streams is None else await self._answered(route_request(topic))
        self._routes.on_response(topic, answer)

    async def _answered(self, command: Command) -> Command | None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._ask(command)
        except (OSError, TimeoutError, Malformed, EOFError) as problem:
            self._hang_up()
            self._tell(f"{problem}" or type(problem).__name__)
            self._register_at = asyncio.get_running_loop().time() + AGAIN_SECONDS
            return None

    async def _ask(self, command: Command) -> Command:
        if self._streams is None:
            host, _, port = self._address.rpartition(":")
            self._streams = await asyncio.open_connection(host.strip("[]"), int(port))
        reader, writer = self._streams
        self._opaque += 1
        command.opaque = self._opaque
        writer.write(encode(command))
        await writer.drain()
        while True:
            head = await reader.readexactly(4)
            size = int.from_bytes(head, "big")
            if not 4 <= size <= ANSWER_BYTES_MAX:
                raise Malformed(f"an answer of {size} bytes")
            answer = decode(head + await reader.readexactly(size))
            if answer.is_response and answer.opaque == command.opaque:
                return answer

    def _hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    def _tell(self, problem: str) -> None:
        if not self._is_away:
            self._is_away = True
            logger.warning("name server %s is away: %s; trying again", self._address, problem)


def _nothing() -> None:
    """Nobody wants to know of changes."""
