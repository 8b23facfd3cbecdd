"""Requests to addresses: one connection for each, dialled when first needed.

A dial that fails puts its address off: for a while, which doubles up to a limit, requests to it
fail at once. So a dead broker costs its users the connect
time-out once, not once per request, and is tried again soon after it is back.

Bounds: ``CONNECTIONS_MAX`` addresses, ``DIALS_MAX`` of them being dialled; those of a connection.
Invariant: every ``done`` is called exactly once, on the client's thread, never inside ``start``.
Not here: bytes and deadlines (``connection.py``), which address (``routes.py``).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.client.backoff import Backoff
from penstock.client.connection import Connection
from penstock.client.errors import ClientError, Unreachable, WouldBlock
from penstock.client.options import InstanceOptions
from penstock.client.pending import Done
from penstock.client.signing import Signer
from penstock.model.clock import Clock
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command, Malformed
from penstock.wire.rocketmq.frames import encode

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 1024
"""Brokers and name servers of one instance; routes of a large cluster name a few hundred."""
DIALS_MAX: Final = 128
"""Addresses dialled at the same time."""
OPAQUE_MAX: Final = (1 << 31) - 1

Asked = Callable[[Connection, Command], None]
Connect = Callable[[Connection, str, int], Awaitable[None]]
"""Connects a protocol to (host, port), or raises ``OSError``."""


class Network:
    """All connections of one instance; lives on the client's thread."""

    def __init__(
        self,
        options: InstanceOptions,
        clock: Clock,
        asked: Asked,
        *,
        signer: Signer | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._asked = asked
        self._signer = signer
        self._connect = connect or connect_tcp
        self._loop = asyncio.get_running_loop()
        self._connections: dict[str, Connection] = {}
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._opaque = 0
        self._lost_listeners: list[Callable[[str], None]] = []
        self.is_closed = False

    @property
    def is_signing(self) -> bool:
        """True when requests must be signed: then ``start_frame`` cannot be used."""
        return self._signer is not None

    def on_lost(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(address)`` whenever a connection that was there is gone."""
        self._lost_listeners.append(listener)

    def connected(self) -> list[str]:
        """Addresses with a connection."""
        return [each.address for each in self._connections.values() if each.is_connected]

    async def request(self, address: str, command: Command, *, timeout_ms: int) -> Command:
        """The answer, whatever its code; raises ``Unreachable``, ``TimedOut`` or ``WouldBlock``."""
        future: asyncio.Future[Command] = self._loop.create_future()

        def done(answer: Command | ClientError) -> None:
            if future.done():
                return
            if isinstance(answer, Command):
                future.set_result(answer)
            else:
                future.set_exception(answer)

        self.start(address, command, timeout_ms, done)
        return await future

    def start(self, address: str, command: Command, timeout_ms: int, done: Done) -> None:
        """Send a request; ``done`` is called in a later turn. The opaque is filled in."""
        self._opaque = opaque = self._opaque % OPAQUE_MAX + 1
        command.opaque = opaque
        if self._signer is not None:
            self._signer.sign(command)
        try:
            frame = encode(command)
        except Malformed as problem:
            self._loop.call_soon(done, ClientError(f"request cannot be written: {problem}"))
            return
        self.start_frame(address, opaque, frame, timeout_ms, done)

    def next_opaque(self) -> int:
        """For ``start_frame``."""
        self._opaque = opaque = self._opaque % OPAQUE_MAX + 1
        return opaque

    def start_frame(
        self, address: str, opaque: int, frame: bytes, timeout_ms: int, done: Done
    ) -> None:
        """The same for a request that is bytes already, with ``opaque`` from ``next_opaque``."""
        connection = self._connections.get(address)
        if connection is None:
            opened = self._open(address)
            if isinstance(opened, ClientError):
                self._loop.call_soon(done, opened)
                return
            connection = opened
        connection.send(opaque, frame, timeout_ms, done)

    def oneway(self, address: str, command: Command) -> None:
        """Send a request that nobody answers; lost without a word where nothing listens."""
        command.flag |= FLAG_ONEWAY
        command.opaque = self.next_opaque()
        if self._signer is not None:
            self._signer.sign(command)
        self.oneway_frame(address, encode(command))

    def oneway_frame(self, address: str, frame: bytes) -> None:
        """The same for a request that is bytes already, marked as one that nobody answers."""
        connection = self._connections.get(address) or self._open(address)
        if isinstance(connection, ClientError) or not connection.can_write:
            _log.debug("oneway request dropped", extra={"to": address})
            return
        connection.write(frame)

    def disconnect(self, address: str, why: str) -> None:
        """Hang up on an address; the next request dials anew."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.close(why)

    async def close(self) -> None:
        """Hang up on all; requests under way fail."""
        self.is_closed = True
        for connection in list(self._connections.values()):
            connection.close("the client was stopped")
        for dial in list(self._dials.values()):
            dial.cancel()
        # One turn, so that transports close their sockets before the caller goes on.
        await asyncio.sleep(0)

    def _open(self, address: str) -> Connection | ClientError:
        now_ms = self._clock.monotonic_ms()
        backoff = self._backoffs.get(address)
        if self.is_closed:
            return Unreachable(address, "the client was stopped")
        if backoff is not None and now_ms < backoff.until_ms:
            wait_ms = backoff.until_ms - now_ms
            return Unreachable(address, f"{backoff.why}; next attempt in {wait_ms} ms")
        if len(self._connections) >= CONNECTIONS_MAX or len(self._dials) >= DIALS_MAX:
            return WouldBlock(
                f"{address} is not dialled: {len(self._connections)} connections and"
                f" {len(self._dials)} dials, limits {CONNECTIONS_MAX} and {DIALS_MAX}"
            )
        connection = Connection(address, self._clock, self._asked, self._lost)
        self._connections[address] = connection
        dial = self._loop.create_task(self._dial(connection), name=f"dial {address}")
        self._dials[address] = dial
        dial.add_done_callback(lambda _: self._dials.pop(address, None))
        return connection

    async def _dial(self, connection: Connection) -> None:
        timeout_ms = self._options["connect_timeout_ms"]
        try:
            host, port = split_address(connection.address)
            async with asyncio.timeout(timeout_ms / 1000):
                await self._connect(connection, host, port)
        except TimeoutError:
            self._put_off(connection, f"no connection within {timeout_ms} ms")
        except (OSError, ValueError) as problem:
            self._put_off(connection, str(problem))
        else:
            self._backoffs.pop(connection.address, None)
            _log.debug("connected", extra={"to": connection.address})

    def _put_off(self, connection: Connection, why: str) -> None:
        address = connection.address
        backoff = self._backoffs.setdefault(address, Backoff())
        is_first = backoff.failed(
            self._clock.monotonic_ms(),
            why,
            least_ms=self._options["reconnect_wait_min_ms"],
            most_ms=self._options["reconnect_wait_max_ms"],
        )
        if is_first:
            _log.warning("cannot connect", extra={"to": address, "why": why})
        if len(self._backoffs) > CONNECTIONS_MAX:
            self._backoffs.pop(next(iter(self._backoffs)))
        connection.close(why)

    def _lost(self, connection: Connection, why: str) -> None:
        address = connection.address
        if self._connections.get(address) is connection:
            del self._connections[address]
        if not connection.was_connected:
            return
        if not self.is_closed:
            _log.info("connection lost", extra={"to": address, "why": why})
            for listener in self._lost_listeners:
                listener(address)


async def connect_tcp(connection: Connection, host: str, port: int) -> None:
    """Connect over TCP, without delays for small writes and with signs of life."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: connection, host, port)
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of ``host:port`` or ``[v6]:port``."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal():
        raise ValueError(f"address {address!r} is not host:port")
    return host.strip("[]"), int(port)
