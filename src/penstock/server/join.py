"""Registers this broker with the RocketMQ name server it joined, every 30 s and at each change.

One connection is kept open: a name server takes its end for the end of the broker. A name server
that is away does not disturb the broker; it is tried again every few seconds, and the log says so
once per episode.

Not here: what is said (``adapters/rocketmq/name_server/registrations.py``).
"""

import asyncio
import contextlib
import logging
from typing import Final

from penstock.adapters.rocketmq.house import House
from penstock.adapters.rocketmq.name_server.registrations import farewell, learn, registration
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.frame import decode, encode

logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 6.0
"""As long as RocketMQ's own brokers wait for a name server."""

AGAIN_SECONDS: Final = 3.0
FAREWELL_SECONDS: Final = 1.0
GATHER_SECONDS: Final = 0.1
"""Topics that are made together are registered together."""

ANSWER_BYTES_MAX: Final = 1 << 20


class Join:
    """One broker at one name server."""

    def __init__(self, house: House, address: str) -> None:
        self._house = house
        self._address = address
        self._task: asyncio.Task[None] | None = None
        self._change = asyncio.Event()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._opaque = 0
        self._is_away = False
        self.registrations = 0
        """How many were answered."""

    def start(self) -> None:
        """Begin to register; needs a running loop."""
        self._house.topics.on_change = self._change.set
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
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._ask(farewell(self._house))
        self._hang_up()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await writer.wait_closed()

    def cancel(self) -> None:
        """End without a word."""
        self._house.topics.on_change = _nothing
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            is_registered = await self._register()
            seconds = self._house.settings.register_ms / 1000 if is_registered else AGAIN_SECONDS
            # Not ``wait_for``: before Python 3.12 it may lose a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._change.wait()
                await asyncio.sleep(GATHER_SECONDS)
            self._change.clear()

    async def _register(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._ask(registration(self._house))
        except (OSError, TimeoutError, Malformed, EOFError) as problem:
            self._hang_up()
            self._tell(f"{problem}" or type(problem).__name__)
            return False
        if answer.code != 0:
            self._tell(f"it answered {answer.code}: {answer.remark}")
            return False
        learn(self._house, answer)
        self.registrations += 1
        if self._is_away or self.registrations == 1:
            self._is_away = False
            logger.info("registered with name server %s", self._address)
        return True

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
            logger.warning(
                "cannot register with name server %s: %s; trying again", self._address, problem
            )


def _nothing() -> None:
    """Nobody wants to know of changes."""
