"""Requests to brokers and name servers: one connection for each address, answers matched by opaque.

``Network`` dials an address when it is first needed. A ``Connection`` exists before it is
connected: requests are taken at once and written when the socket is there, or fail together when
dialling failed. What is asked for in one turn of the loop is written at once.

Bounds: ``CONNECTIONS_MAX`` addresses, ``DIALS_MAX`` of them being dialled; of each connection
``REQUESTS_MAX`` requests under way and ``UNSENT_BYTES_MAX`` bytes not yet taken by the socket. Past
them a request fails with ``WouldBlock``, before anything is sent.
Invariant: every ``done`` is called exactly once, on the client's thread, never from inside the call
that sends.
Not here: which address (``routes.py``), what is asked (``requests.py``).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final, cast

from penstock.client.errors import ClientError, TimedOut, Unreachable, WouldBlock
from penstock.client.options import InstanceOptions
from penstock.model.clock import Clock
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command, Malformed
from penstock.wire.rocketmq.frames import RemotingFrames, decode_answer, encode

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 1024
"""Brokers and name servers of one instance; routes of a large cluster name a few hundred."""
DIALS_MAX: Final = 128
"""Addresses dialled at the same time."""
OPAQUE_MAX: Final = (1 << 31) - 1
REQUESTS_MAX: Final = 65_535
"""Requests under way on one connection; RocketMQ's own clients have the same limit."""
UNSENT_BYTES_MAX: Final = 128 * 1024 * 1024
"""Above what a producer lets be under way (100 MiB), so that its own limit is met first."""
WRITE_BUFFER_BYTES: Final = 1024 * 1024
"""What the transport may hold before frames are kept here."""
SILENT_MS_MAX: Final = 10_000
"""A connection on which a request timed out and nothing came for this long is taken for dead."""
TIMER_MS_MIN: Final = 5
"""Least time between two looks at the deadlines."""
NEVER_MS: Final = 1 << 62

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"

Done = Callable[[Command | ClientError], object]
"""Called once, on the client's thread: with the answer, whatever its code, or with an error."""
RequestHandler = Callable[["Connection", Command], None]
"""Called with what a broker asks of this client."""
Connect = Callable[["Connection", str, int], Awaitable[None]]
"""Connects a protocol to (host, port), or raises ``OSError``."""


class Network:
    """All connections of one instance; lives on the client's thread.

    A dial that fails puts its address off: for a while, which doubles up to a limit, requests to it
    fail at once. So a dead broker costs its users the connect time-out once, not once per request,
    and is tried again soon after it is back.
    """

    def __init__(
        self,
        options: InstanceOptions,
        clock: Clock,
        on_request: RequestHandler,
        *,
        signer: Signer | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._on_request = on_request
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
        command.opaque = opaque = self.next_opaque()
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
        connection = Connection(address, self._clock, self._on_request, self._lost)
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
            self._dial_failed(connection, f"no connection within {timeout_ms} ms")
        except (OSError, ValueError) as problem:
            self._dial_failed(connection, str(problem))
        else:
            self._backoffs.pop(connection.address, None)
            _log.debug("connected", extra={"to": connection.address})

    def _dial_failed(self, connection: Connection, why: str) -> None:
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


class Connection(asyncio.Protocol):
    """One connection, dialled or not yet; all deadlines are watched by one timer."""

    def __init__(
        self,
        address: str,
        clock: Clock,
        on_request: RequestHandler,
        lost: Callable[[Connection, str], None],
    ) -> None:
        self.address: Final = address
        self.is_closed = False
        self.pending: Final = PendingRequests()
        self._on_request = on_request
        self._lost = lost
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._frames = RemotingFrames()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_flush_due = False
        self._is_write_blocked = True
        """No socket yet, or it takes no more for now."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        self._last_read_ms = clock.monotonic_ms()

    @property
    def is_connected(self) -> bool:
        return self._transport is not None and not self.is_closed

    @property
    def was_connected(self) -> bool:
        """True once dialling succeeded, also after the end."""
        return self._transport is not None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the operating system has not taken yet."""
        transport = self._transport
        return self._out_bytes + (0 if transport is None else transport.get_write_buffer_size())

    def send(self, opaque: int, frame: bytes, timeout_ms: int, done: Done) -> None:
        """Send a request; ``done`` gets the answer or the error, in a later turn."""
        pending = self.pending
        if self.is_closed or pending.is_full or self._out_bytes > UNSENT_BYTES_MAX:
            self._loop.call_soon(done, self._refusal())
            return
        if pending.add(opaque, self._clock.monotonic_ms(), timeout_ms, done):
            self._start_timer()
        self.write(frame)

    def write(self, frame: bytes) -> None:
        """Send a frame that no answer is expected for."""
        self._out.append(frame)
        self._out_bytes += len(frame)
        if not self._is_flush_due and not self._is_write_blocked:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    @property
    def can_write(self) -> bool:
        """False when a frame more would pass a bound."""
        return not self.is_closed and self._out_bytes <= UNSENT_BYTES_MAX

    def answer(self, command: Command) -> None:
        """Send the response to a request of the peer."""
        if self.can_write:
            self.write(encode(command))

    def close(self, why: str) -> None:
        """Hang up (or stop dialling); whoever waits for an answer gets ``Unreachable``."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            # What was written goes out first: a last good-bye is not lost.
            if self._out and not self._is_write_blocked:
                self._transport.write(b"".join(self._out))
            self._transport.close()
        self._out.clear()
        self._out_bytes = 0
        error = Unreachable(self.address, why)
        for done in self.pending.drain():
            self._call_done(done, error)
        self._lost(self, why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there: send what waited for it."""
        self._transport = cast("asyncio.WriteTransport", transport)
        if self.is_closed:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._last_read_ms = self._clock.monotonic_ms()
        self._is_write_blocked = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(f"the connection was closed{f': {exc}' if exc else ''}")

    def pause_writing(self) -> None:
        self._is_write_blocked = True

    def resume_writing(self) -> None:
        self._is_write_blocked = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Hand answers to those who wait, requests to the handler."""
        self._last_read_ms = self._clock.monotonic_ms()
        self._frames.feed(data)
        take = self.pending.take
        try:
            for frame in self._frames.frames():
                command = decode_answer(frame)
                if command.flag & 1:
                    done = take(command.opaque)
                    if done is None:
                        continue
                    # Not ``_call_done``: this is once per answer, and a call costs.
                    try:
                        done(command)
                    except Exception:
                        self._log_failure()
                else:
                    self._handle(command)
        except Malformed as problem:
            self.close(f"it does not speak RocketMQ's protocol: {problem}")

    def _flush(self) -> None:
        self._is_flush_due = False
        out = self._out
        if not out or self._transport is None or self.is_closed:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_bytes = 0
        self._transport.write(data)

    def _start_timer(self) -> None:
        due_ms = self.pending.next_expiry_ms
        if due_ms >= self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        wait_ms = max(due_ms - self._clock.monotonic_ms(), TIMER_MS_MIN)
        self._timer = self._loop.call_later(wait_ms / 1000, self.expire_requests)

    def expire_requests(self) -> None:
        """End the requests whose time is up; the timer calls it."""
        self._timer, self._timer_ms = None, NEVER_MS
        now_ms = self._clock.monotonic_ms()
        over = self.pending.expire(now_ms)
        for timeout_ms, done in over:
            self._call_done(done, TimedOut(self.address, timeout_ms))
        if over and now_ms - self._last_read_ms >= SILENT_MS_MAX:
            self.close(f"nothing came for {now_ms - self._last_read_ms} ms and a request timed out")
        elif len(self.pending) and not self.is_closed:
            self._start_timer()

    def _call_done(self, done: Done, end: Command | ClientError) -> None:
        try:
            done(end)
        except Exception:
            self._log_failure()

    def _log_failure(self) -> None:
        _log.exception("handling the end of a request failed", extra={"peer": self.address})

    def _handle(self, command: Command) -> None:
        try:
            self._on_request(self, command)
        except Exception:
            _log.exception("handling a request failed", extra={"peer": self.address})

    def _refusal(self) -> ClientError:
        if self.is_closed:
            return Unreachable(self.address, "the connection was closed")
        return WouldBlock(
            f"{len(self.pending)} requests and {self.unsent_bytes} bytes are on their way to"
            f" {self.address}, limits {self.pending.requests_max} and {UNSENT_BYTES_MAX};"
            f" wait for answers"
        )


class PendingRequests:
    """Requests of one connection that wait for their answers, by opaque.

    There is no timer per request. The table remembers a time before which no deadline lies; when it
    comes, the table is looked through once and the next such time found. Answers usually come long
    before their deadline, so this is rare (once per shortest time-out) however many requests pass.

    What was added is handed out exactly once, by ``take``, ``expire`` or ``drain``.
    """

    __slots__ = ("_table", "next_expiry_ms", "requests_max")

    def __init__(self, requests_max: int = REQUESTS_MAX) -> None:
        self.requests_max = requests_max
        self._table: dict[int, tuple[int, int, Done]] = {}
        self.next_expiry_ms = NEVER_MS
        """No deadline is before this."""

    def __len__(self) -> int:
        return len(self._table)

    @property
    def is_full(self) -> bool:
        return len(self._table) >= self.requests_max

    def add(self, opaque: int, now_ms: int, timeout_ms: int, done: Done) -> bool:
        """A request goes out; True when the timer must be set anew."""
        deadline_ms = now_ms + timeout_ms
        self._table[opaque] = (deadline_ms, timeout_ms, done)
        if deadline_ms < self.next_expiry_ms:
            self.next_expiry_ms = deadline_ms
            return True
        return False

    def take(self, opaque: int) -> Done | None:
        """The answer is here; None when nobody waits for it (any more)."""
        found = self._table.pop(opaque, None)
        return None if found is None else found[2]

    def expire(self, now_ms: int) -> list[tuple[int, Done]]:
        """(time-out, done) of those whose time is up; sets ``next_expiry_ms``."""
        if now_ms < self.next_expiry_ms:
            return []
        table = self._table
        over = [opaque for opaque, entry in table.items() if entry[0] <= now_ms]
        found = [table.pop(opaque)[1:] for opaque in over]
        self.next_expiry_ms = min((entry[0] for entry in table.values()), default=NEVER_MS)
        return found

    def drain(self) -> list[Done]:
        """All that wait: there will be no answers."""
        found = [entry[2] for entry in self._table.values()]
        self._table.clear()
        self.next_expiry_ms = NEVER_MS
        return found


class Backoff:
    """How long an address is left alone after it could not be connected to; pure.

    The wait doubles with each failure in a row; a connection that was made ends the row.
    """

    __slots__ = ("failures", "until_ms", "why")

    def __init__(self) -> None:
        self.failures = 0
        self.until_ms = 0
        """Not before this time is it tried again."""
        self.why = ""

    def failed(self, now_ms: int, why: str, *, least_ms: int, most_ms: int) -> bool:
        """It failed again; True for the first failure in a row, which is worth a log line."""
        # Shifts past 30 bits would only make a large number larger.
        wait_ms = min(least_ms << min(self.failures, 30), most_ms)
        self.failures += 1
        self.until_ms = now_ms + wait_ms
        self.why = why
        return self.failures == 1


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


class Signer:
    """Signs requests, for brokers and name servers with access control (sheet 1.11).

    The signature is HMAC-SHA1 over the values of all fields, ordered by their names, and the body.
    Fields added later would not be covered: signing is the last step before the bytes.
    """

    __slots__ = ("_access_key", "_secret", "_token")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self._access_key = access_key
        self._secret = secret_key.encode()
        self._token = security_token

    def sign(self, command: Command) -> None:
        """Put name and signature into the fields of a request; signing again replaces them."""
        ext = {name: text for name, text in command.ext.items() if name != SIGNATURE}
        ext[ACCESS_KEY] = self._access_key
        if self._token:
            ext[SECURITY_TOKEN] = self._token
        content = "".join(ext[name] for name in sorted(ext)).encode() + command.body
        digest = hmac.new(self._secret, content, hashlib.sha1).digest()
        ext[SIGNATURE] = base64.b64encode(digest).decode()
        command.ext = ext
