"""One connection to a broker: CONNECT, requests by their ids, life signs, and whom a frame is for.

``ConnectionPool`` keeps one connection for each broker and dials it when it is first needed; those
who ask while it is dialled wait for the same dial. A ``Connection`` hands each read's frames to
their owners (producers and consumers, registered by id) as lists, one call for each owner.

Life signs: a PING every ``keep_alive_interval_ms``; a connection on which nothing at all was read
between two of them is closed. The broker's PINGs are answered.

Reading stops while a consumer on this connection is over its bound of bytes (``holds_reading``) and
nobody else waits for something that could come in (``awaits_answer``, requests): otherwise one slow
application thread could keep another from its receipts for ever. While reading is stopped the
broker's PINGs are not seen, so a PING of ours goes out three times as often: any frame is a sign of
life to a broker.

A broker that is Penstock is told why consumers take no more: once a second, in one PING of
Penstock's own kind, and only what changed (``why.py``). Any other broker never gets such a thing.

Bounds: ``CONNECTIONS_MAX`` brokers; of each connection ``REQUESTS_MAX`` requests under way,
``OWNERS_MAX`` producers and consumers, ``unsent_bytes_max`` bytes not yet taken by the socket.
Invariants: a request ends exactly once: answered, refused, timed out, or with its connection; all
of an owner's frames of a read are handed over before anybody who awaited an answer in it goes on.
Not here: which broker (``lookup.py``), what producers and consumers do when it is lost
(``handler.py``).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Final, Protocol, TypeVar, cast

from penstock.client.pulsar.errors import (
    InvalidUse,
    NotPulsar,
    Refused,
    StateError,
    TimedOut,
    Unreachable,
    WouldBlock,
)
from penstock.client.pulsar.options import ClientOptions
from penstock.model.clock import Clock
from penstock.wire.pulsar.frames import (
    FRAME_HEADROOM,
    MAX_MESSAGE_SIZE,
    NO_ID,
    Frame,
    FrameError,
    FrameParser,
    encode,
)
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, ConsumerWait

_log = logging.getLogger(__name__)

T = TypeVar("T")

CLIENT_VERSION: Final = "Penstock-Python"
PROTOCOL_VERSION: Final = 20
CONNECTIONS_MAX: Final = 1024
REQUESTS_MAX: Final = 50_000
"""Receipts of acks are requests, too."""
OWNERS_MAX: Final = 65_536
WAITS_MS: Final = 1_000
"""So often consumers are looked at, of which there may be something to tell the broker."""
WAITS_PER_PING: Final = 1_000
PENSTOCK: Final = "Penstock"
"""How the version begins that a server says of itself which understands ``ConsumerWait``."""
WRITE_BUFFER_BYTES: Final = 1024 * 1024
"""What the transport may hold before frames are kept here."""
DEFAULT_PORT: Final = 6650
PORT_MAX: Final = 65_535
_USUAL_PORT: Final = f"brokers listen on {DEFAULT_PORT}"
_OTHERS: Final = (b"HTTP", b"AMQP")
_NO_HOST: Final = re.compile(r"[\s/@]")

_MESSAGE: Final = int(BaseCommand.MESSAGE)
_PING: Final = encode(BaseCommand(type=BaseCommand.PING, ping={}))
_PONG: Final = encode(BaseCommand(type=BaseCommand.PONG, pong={}))

_ANSWERS: Final = {
    int(BaseCommand.SUCCESS): "success",
    int(BaseCommand.PRODUCER_SUCCESS): "producer_success",
    int(BaseCommand.PARTITIONED_METADATA_RESPONSE): "partition_metadata_response",
    int(BaseCommand.LOOKUP_RESPONSE): "lookup_topic_response",
    int(BaseCommand.CONSUMER_STATS_RESPONSE): "consumer_stats_response",
    int(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE): "get_last_message_id_response",
    int(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE): "get_topics_of_namespace_response",
    int(BaseCommand.GET_SCHEMA_RESPONSE): "get_schema_response",
    int(BaseCommand.ACK_RESPONSE): "ack_response",
    int(BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE): "get_or_create_schema_response",
}
_OF_CONSUMERS: Final = {
    _MESSAGE: "message",
    int(BaseCommand.CLOSE_CONSUMER): "close_consumer",
    int(BaseCommand.ACTIVE_CONSUMER_CHANGE): "active_consumer_change",
    int(BaseCommand.REACHED_END_OF_TOPIC): "reached_end_of_topic",
}
_OF_PRODUCERS: Final = {
    int(BaseCommand.SEND_RECEIPT): "send_receipt",
    int(BaseCommand.SEND_ERROR): "send_error",
    int(BaseCommand.CLOSE_PRODUCER): "close_producer",
}


def _nothing() -> None:
    """Nobody wants to know."""


class FrameOwner(Protocol):
    """A producer or consumer as its connection sees it; all on the client's thread."""

    @property
    def holds_reading(self) -> bool:
        """True while it has no room for what may come; a consumer is asked when something came."""
        ...

    @property
    def awaits_answer(self) -> bool:
        """True while an application waits for what may come: a receipt, a message."""
        ...

    def received(self, frames: list[Frame]) -> None:
        """What came for its id in one read."""
        ...

    def connection_lost(self, connection: Connection, why: str) -> None:
        """Called once; the connection has forgotten it already."""
        ...


class Watched(Protocol):
    """A consumer of whose standstills the broker may have to hear."""

    def look_at_wait(self) -> ConsumerWait | None:
        """What the broker is to be told now."""
        ...

    @property
    def is_watch_over(self) -> bool:
        """Nothing is to be told before it wants to be watched again."""
        ...


Connect = Callable[["Connection", str, int], Awaitable[None]]
"""Connects a protocol to (host, port), or raises ``OSError``."""


async def connect_tcp(connection: Connection, host: str, port: int) -> None:
    await asyncio.get_running_loop().create_connection(lambda: connection, host, port)


class ConnectionPool:
    """One connection for each broker; lives on the client's thread."""

    def __init__(
        self, options: ClientOptions, clock: Clock, *, connect: Connect = connect_tcp
    ) -> None:
        self.options: Final = options
        self.clock: Final = clock
        self._connect = connect
        self._connections: dict[str, Connection] = {}
        self._dials: dict[str, asyncio.Task[Connection]] = {}
        self._request_id = 0
        self.is_closed = False

    def next_request_id(self) -> int:
        """One count for all that a client asks."""
        self._request_id += 1
        return self._request_id

    def connected(self) -> list[Connection]:
        return [each for each in self._connections.values() if not each.is_closed]

    async def get(self, address: str, proxied_to: str = "") -> Connection:
        """The connection to ``host:port``, ready; raises ``ClientError``.

        ``proxied_to`` is the broker behind a proxy at that address.
        """
        key = f"{address} {proxied_to}"
        found = self._connections.get(key)
        if found is not None and not found.is_closed:
            return found
        if self.is_closed:
            raise StateError("the client is closed; make a new one")
        dial = self._dials.get(key)
        if dial is None:
            if len(self._connections) + len(self._dials) >= CONNECTIONS_MAX:
                raise WouldBlock(
                    f"{address} is not dialled: {CONNECTIONS_MAX} connections are open"
                )
            dial = asyncio.get_running_loop().create_task(self._dial(key, address, proxied_to))
            self._dials[key] = dial
            dial.add_done_callback(lambda _: self._dials.pop(key, None))
        return await shielded(dial)

    async def close(self) -> None:
        self.is_closed = True
        for dial in list(self._dials.values()):
            dial.cancel()
        for connection in list(self._connections.values()):
            connection.close("the client was closed")
        # One turn, so that transports close their sockets before the caller goes on.
        await asyncio.sleep(0)

    async def _dial(self, key: str, address: str, proxied_to: str) -> Connection:
        connection = Connection(address, self.options, self.clock)
        timeout_ms = self.options["connection_timeout_ms"]
        host, port = split_address(address)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._connect(connection, host, port)
                await connection.say_hello(proxied_to)
        except TimeoutError:
            connection.close("no answer in time", is_dead=True)
            raise Unreachable(address, f"no connection within {timeout_ms} ms") from None
        except OSError as problem:
            connection.close(str(problem))
            raise Unreachable(address, f"{problem}; is a broker running there?") from None
        except BaseException:
            connection.close("dialling was given up")
            raise
        connection.on_closed = lambda: self._forget(key, connection)
        self._connections[key] = connection
        _log.debug("connected", extra={"to": address, "server": connection.server_version})
        return connection

    def _forget(self, key: str, connection: Connection) -> None:
        if self._connections.get(key) is connection:
            del self._connections[key]


class Connection(asyncio.Protocol):
    """One connection; see the head of this room."""

    def __init__(self, address: str, options: ClientOptions, clock: Clock) -> None:
        self.address: Final = address
        self.is_closed = False
        self.closed_why = ""
        self.server_version = ""
        self.protocol_version = 0
        self.max_message_size = MAX_MESSAGE_SIZE
        self.on_closed: Callable[[], None] = _nothing
        self._options = options
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameParser()
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._requests: dict[int, _Request] = {}
        self._consumers: dict[int, FrameOwner] = {}
        self._producers: dict[int, FrameOwner] = {}
        self._holders: dict[int, FrameOwner] = {}
        """Consumers that had no room behind what came last; all of them would be thousands."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_flush_due = False
        self._is_write_blocked = False
        self._is_reading = True
        self._timer: asyncio.TimerHandle | None = None
        self._watched: dict[int, Watched] = {}
        self._watch_timer: asyncio.TimerHandle | None = None
        self._life = KeepAlive(options["keep_alive_interval_ms"])

    # ---- who is on it ----------------------------------------------------------------------------

    def add_consumer(self, consumer_id: int, owner: FrameOwner) -> None:
        """Before SUBSCRIBE is sent: what the broker says of it may come with the answer."""
        self._add(self._consumers, consumer_id, owner)

    def add_producer(self, producer_id: int, owner: FrameOwner) -> None:
        self._add(self._producers, producer_id, owner)

    def remove_consumer(self, consumer_id: int) -> None:
        self._consumers.pop(consumer_id, None)
        self._holders.pop(consumer_id, None)
        self._watched.pop(consumer_id, None)
        self.review_reading()

    def remove_producer(self, producer_id: int) -> None:
        self._producers.pop(producer_id, None)
        self.review_reading()

    def _add(self, owners: dict[int, FrameOwner], owner_id: int, owner: FrameOwner) -> None:
        if len(owners) >= OWNERS_MAX:
            raise WouldBlock(f"{OWNERS_MAX} are on the connection to {self.address} already")
        owners[owner_id] = owner

    # ---- what the broker hears of consumers ------------------------------------------------------

    def watch(self, consumer_id: int, consumer: Watched) -> None:
        """Something happened to it that may end in a standstill."""
        if not self.server_version.startswith(PENSTOCK) or consumer_id not in self._consumers:
            return
        self._watched[consumer_id] = consumer
        if self._watch_timer is None:
            self._watch_timer = self._loop.call_later(WAITS_MS / 1000, self._look_again)

    def _look_again(self) -> None:
        self._watch_timer = None
        if self.is_closed:
            return
        self.tell_waits()
        if self._watched:
            self._watch_timer = self._loop.call_later(WAITS_MS / 1000, self._look_again)

    def tell_waits(self) -> None:
        """Look at those who are watched, and tell what is new."""
        waits = []
        for consumer_id, consumer in list(self._watched.items()):
            wait = consumer.look_at_wait()
            if wait is not None:
                wait.consumer_id = consumer_id
                waits.append(wait)
            if consumer.is_watch_over:
                del self._watched[consumer_id]
        for at in range(0, len(waits), WAITS_PER_PING):
            self.send(
                BaseCommand(type=BaseCommand.PING, ping={"waits": waits[at : at + WAITS_PER_PING]})
            )

    # ---- writing ---------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the operating system has not taken yet."""
        transport = self._transport
        return self._out_bytes + (0 if transport is None else transport.get_write_buffer_size())

    @property
    def can_write(self) -> bool:
        """False when a frame more would pass the bound."""
        return not self.is_closed and self._out_bytes <= self._options["unsent_bytes_max"]

    def write(self, *pieces: bytes) -> None:
        """Send a frame; what is written in one turn of the loop goes out together."""
        if self.is_closed:
            return
        self._out += pieces
        self._out_bytes += sum(map(len, pieces))
        if not self._is_flush_due and not self._is_write_blocked:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def send(self, command: BaseCommand) -> None:
        """A command that nobody answers."""
        self.write(encode(command))

    async def request(
        self,
        command: BaseCommand,
        request_id: int,
        what: str,
        *,
        timeout_ms: int | None = None,
        on_queued: Callable[[], None] = _nothing,
    ) -> BaseCommand:
        """The answer; raises ``Refused``, ``TimedOut``, ``Unreachable`` or ``WouldBlock``.

        ``what`` is the request in a sentence: ``subscription 's' of topic 't'``. ``on_queued`` is
        called when the broker said of a PRODUCER that it must wait for others: from then on the
        answer may take as long as it likes.
        """
        if self.is_closed:
            raise Unreachable(self.address, self.closed_why)
        if len(self._requests) >= REQUESTS_MAX or not self.can_write:
            raise WouldBlock(
                f"{what}: {len(self._requests)} requests and {self.unsent_bytes} bytes are under"
                f" way to {self.address}, limits {REQUESTS_MAX} and"
                f" {self._options['unsent_bytes_max']} (unsent_bytes_max)"
            )
        if timeout_ms is None:
            timeout_ms = self._options["operation_timeout_ms"]
        request = _Request(self._loop.create_future(), what, on_queued)
        request.timer = self._loop.call_later(
            timeout_ms / 1000, self._request_timed_out, request_id, timeout_ms
        )
        self._requests[request_id] = request
        self.write(encode(command))
        self.review_reading()
        try:
            return await request.future
        finally:
            request.timer.cancel()
            self._requests.pop(request_id, None)

    def _request_timed_out(self, request_id: int, timeout_ms: int) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None and not request.future.done():
            request.future.set_exception(TimedOut(self.address, timeout_ms, request.what))

    def _flush(self) -> None:
        self._is_flush_due = False
        transport = self._transport
        if not self._out or self._is_write_blocked or transport is None:
            return
        data = self._out
        self._out, self._out_bytes = [], 0
        transport.writelines(data)

    # ---- life ------------------------------------------------------------------------------------

    async def say_hello(self, proxied_to: str = "") -> None:
        """CONNECT, and wait for CONNECTED; raises ``Refused`` or ``Unreachable``."""
        command = BaseCommand(type=BaseCommand.CONNECT)
        hello = command.connect
        hello.client_version = CLIENT_VERSION
        hello.protocol_version = PROTOCOL_VERSION
        hello.feature_flags.supports_auth_refresh = True
        token = self._options["token"]
        hello.auth_method_name = "none" if token is None else "token"
        if token is not None:
            hello.auth_data = token.encode()
        if proxied_to:
            hello.proxy_to_broker_url = proxied_to
        self.write(encode(command))
        await self._hello

    def close(self, why: str, *, is_dead: bool = False) -> None:
        """Hang up; requests under way fail, and every owner hears of it.

        ``is_dead``: it does not answer, and what it has not taken is not kept for it.
        """
        if self.is_closed:
            return
        self._flush()
        self.is_closed = True
        self.closed_why = why
        for timer in (self._timer, self._watch_timer):
            if timer is not None:
                timer.cancel()
        self._watched.clear()
        if self._transport is not None:
            if is_dead:
                self._transport.abort()
            else:
                self._transport.close()
        self._out.clear()
        self._out_bytes = 0
        self._frames.close()
        if not self._hello.done():
            self._hello.set_exception(Unreachable(self.address, why))
            # Dialling may have been given up: then nobody looks at it.
            self._hello.exception()
        requests, self._requests = self._requests, {}
        for request in requests.values():
            if not request.future.done():
                request.future.set_exception(Unreachable(self.address, why))
        owners = [*self._producers.values(), *self._consumers.values()]
        self._producers.clear()
        self._consumers.clear()
        self._holders.clear()
        self.on_closed()
        for owner in owners:
            try:
                owner.connection_lost(self, why)
            except Exception:
                _log.exception("a lost connection was not taken well", extra={"by": str(owner)})

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._transport = cast("asyncio.Transport", transport)
        if self.is_closed:
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The broker hung up, or the network did."""
        why = str(exc) if exc is not None else "the broker closed the connection"
        if not self._hello.done():
            # A server of another protocol, or of TLS, may hang up without a word.
            why = f"{why} before it said CONNECTED; check host and port ({_USUAL_PORT})"
        self.close(why)

    def pause_writing(self) -> None:
        self._is_write_blocked = True

    def resume_writing(self) -> None:
        self._is_write_blocked = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Hand what came to whom it is for."""
        self._life.heard()
        try:
            frames = cast("list[Frame]", self._frames.feed(data))
        except FrameError as problem:
            self._take(cast("list[Frame]", problem.frames))
            why = f"what it sent is no Pulsar frame: {problem}"
            if not self._hello.done():
                hint = f"{_spoken(data)}{why}; check host and port ({_USUAL_PORT})"
                self._hello.set_exception(NotPulsar(self.address, hint))
            self.close(why)
            return
        self._take(frames)

    def _take(self, frames: list[Frame]) -> None:
        lists: dict[tuple[bool, int], list[Frame]] = {}
        for frame in frames:
            command = frame[0]
            kind = command.type
            if kind == _MESSAGE:
                key = (False, command.message.consumer_id)
            elif kind in _OF_PRODUCERS:
                key = (True, getattr(command, _OF_PRODUCERS[kind]).producer_id)
            elif kind in _OF_CONSUMERS:
                key = (False, getattr(command, _OF_CONSUMERS[kind]).consumer_id)
            else:
                self._take_command(command)
                continue
            found = lists.get(key)
            if found is None:
                lists[key] = [frame]
            else:
                found.append(frame)
        for (is_producer, owner_id), mine in lists.items():
            owner = (self._producers if is_producer else self._consumers).get(owner_id)
            if owner is None:
                # Of one that was closed here while this was on its way.
                continue
            try:
                owner.received(mine)
            except Exception:
                _log.exception("received frames failed", extra={"by": str(owner)})
                self.close("frames could not be handled, see the log")
                return
            if self._consumers.get(owner_id) is owner and owner.holds_reading:
                self._holders[owner_id] = owner
        self.review_reading()

    def _take_command(self, command: BaseCommand) -> None:
        kind = command.type
        name = _ANSWERS.get(kind)
        if name is not None:
            self._answered(getattr(command, name).request_id, command)
        elif kind == BaseCommand.ERROR:
            self._refused(command)
        elif kind == BaseCommand.PING:
            self.write(_PONG)
        elif kind == BaseCommand.CONNECTED:
            self._connected(command)
        elif kind == BaseCommand.AUTH_CHALLENGE:
            self._prove(command)
        elif kind != BaseCommand.PONG:
            _log.debug("command of no use here", extra={"type": kind, "of": self.address})

    def _connected(self, command: BaseCommand) -> None:
        if self._hello.done():
            return
        said = command.connected
        self.server_version = said.server_version
        self.protocol_version = said.protocol_version
        if said.max_message_size > 0:
            self.max_message_size = said.max_message_size
            self._frames.frame_bytes_max = said.max_message_size + FRAME_HEADROOM
        self._hello.set_result(None)
        self._tick()

    def _prove(self, command: BaseCommand) -> None:
        """The token is asked for again: it may have been renewed meanwhile."""
        answer = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
        answer.auth_response.client_version = CLIENT_VERSION
        answer.auth_response.protocol_version = PROTOCOL_VERSION
        token = self._options["token"]
        answer.auth_response.response.auth_method_name = "none" if token is None else "token"
        answer.auth_response.response.auth_data = (token or "").encode()
        self.write(encode(answer))

    def _answered(self, request_id: int, command: BaseCommand) -> None:
        request = self._requests.get(request_id)
        if request is None or request.future.done():
            # Too late: whoever asked was told that time is up.
            return
        if (
            command.type == BaseCommand.PRODUCER_SUCCESS
            and not command.producer_success.producer_ready
        ):
            request.timer.cancel()
            request.on_queued()
            return
        request.future.set_result(command)

    def _refused(self, command: BaseCommand) -> None:
        said = command.error
        if said.request_id == NO_ID or not self._hello.done():
            problem = Refused(said.error, said.message, f"connection to {self.address}")
            if not self._hello.done():
                self._hello.set_exception(problem)
            self.close(said.message)
            return
        request = self._requests.get(said.request_id)
        if request is not None and not request.future.done():
            request.future.set_exception(Refused(said.error, said.message, request.what))

    def _tick(self) -> None:
        """Life signs, three times in each interval."""
        if self.is_closed:
            return
        step = self._life.tick(is_reading=self._is_reading)
        if step is None:
            self.close(
                f"nothing was heard from it for {self._options['keep_alive_interval_ms']} ms"
                " (keep_alive_interval_ms)",
                is_dead=True,
            )
            return
        if step:
            self.write(_PING)
        self._timer = self._loop.call_later(
            self._options["keep_alive_interval_ms"] / KeepAlive.TICKS / 1000, self._tick
        )

    # ---- reading ---------------------------------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        """False while the application's side has no room."""
        return self._is_reading

    def review_reading(self) -> None:
        """Stop or go on reading: to be called when an owner's wish may have changed."""
        if self.is_closed or self._transport is None:
            return
        wanted = self._is_reading_wanted()
        if wanted == self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        elif self._is_reading_wanted():
            # A thread that began to wait in between saw that there is reading, and told nobody.
            self._is_reading = True
        else:
            self._transport.pause_reading()

    def _is_reading_wanted(self) -> bool:
        if self._requests or not self._holders:
            return True
        for owner_id, owner in list(self._holders.items()):
            if not owner.holds_reading:
                del self._holders[owner_id]
        if not self._holders:
            return True
        owners = chain(self._producers.values(), self._consumers.values())
        return any(each.awaits_answer for each in owners)


async def shielded(task: asyncio.Task[T]) -> T:
    """What others wait for, too: who gives up does not take it from them.

    It is cancelled when the client is closed; then raises ``StateError``.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if not task.cancelled() or waiting is None or waiting.cancelling():
            raise
        raise StateError("the client was closed meanwhile; make a new one") from None


class KeepAlive:
    """When to send a PING, and when silence has lasted too long; pure."""

    TICKS: Final = 3
    """Of one interval."""

    __slots__ = ("_count", "_interval_ms", "_is_heard")

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._count = 0
        self._is_heard = True

    def heard(self) -> None:
        self._is_heard = True

    def tick(self, *, is_reading: bool) -> bool | None:
        """True = send a PING; None = the peer is gone."""
        self._count += 1
        if not is_reading:
            # What it says is not read: its silence means nothing, and it must hear us.
            self._is_heard = True
            return True
        if self._count % self.TICKS:
            return False
        if not self._is_heard:
            return None
        self._is_heard = False
        return True


class _Request:
    __slots__ = ("future", "on_queued", "timer", "what")

    def __init__(
        self, future: asyncio.Future[BaseCommand], what: str, on_queued: Callable[[], None]
    ) -> None:
        self.future = future
        self.what = what
        self.on_queued = on_queued
        self.timer: asyncio.TimerHandle


def _spoken(data: bytes) -> str:
    """What it is that does not speak Pulsar, where that is easily told."""
    other = next((each for each in _OTHERS if data.startswith(each)), None)
    return "" if other is None else f"it speaks {other.decode()}; "


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of ``host:port`` or ``[v6]:port``."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or not host or _NO_HOST.search(host):
        raise InvalidUse(f"address {address!r} is not host:port")
    try:
        host.encode("idna")
    except UnicodeError:
        raise InvalidUse(f"address {address!r}: {host!r} cannot be the name of a host") from None
    if not 0 < int(port) <= PORT_MAX:
        raise InvalidUse(f"port {port} of address {address!r} is not within 1..{PORT_MAX}")
    return host.strip("[]"), int(port)


def addresses_of(url: str) -> list[str]:
    """``host:port`` of each broker in ``pulsar://host[:port][,host[:port]...]``."""
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if scheme == "pulsar+ssl":
        raise InvalidUse(f"{url!r}: TLS is not supported by this client; use pulsar://")
    if not separator or scheme != "pulsar" or not rest.strip("/"):
        raise InvalidUse(f"{url!r} is no service URL; use pulsar://host:{DEFAULT_PORT}")
    rest = rest.rstrip("/")
    if "/" in rest:
        raise InvalidUse(
            f"{url!r}: a service URL ends behind host and port; a topic is named when something is"
            " opened"
        )
    found = []
    for part in rest.split(","):
        has_port = ":" in part.rpartition("]")[2]
        address = part if has_port else f"{part}:{DEFAULT_PORT}"
        split_address(address)
        found.append(address)
    return found
