"""A request to Pulsar's REST API, its possible answers, and what handlers share.

Paths are split before they are decoded, because a topic's name may hold a slash. There are no users
(D21): whoever reaches the port may look; changes are for this machine, and not for web pages on it.

Long work goes in pieces: ``Pace`` counts its steps and lets the broker take its turns, and what is
large is sent as it is encoded (``streamed``).

Bound: a body has at most ``BODY_BYTES_MAX`` bytes, and is read only for who may send one.
Not here: which path goes where (``api.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.adapters.contract import Peer
from penstock.adapters.pulsar.naming import parse_name
from penstock.server.http.app import read_body, refusal
from penstock.wire.pulsar.names import PulsarName

if TYPE_CHECKING:
    from penstock.adapters.pulsar.broker import PulsarBroker
    from penstock.model.names import TopicName

BODY_BYTES_MAX: Final = 2 * 1024 * 1024
"""Schemas are the largest."""
DURABLE_SECONDS_MAX: Final = 10.0
CLUSTER: Final = "standalone"
"""The only one there is, by the name of Pulsar's own single broker."""

ANY: Final = "*"
"""A name, in the pattern of a path."""

T = TypeVar("T")
Handler = Callable[..., Awaitable[Any]]
RouteTable = dict[tuple[str, tuple[str, ...]], Handler]
"""(method, pattern) -> handler(api, request, *names)."""


class RestError(Exception):
    """An answer that says what is wrong."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status: Final = status
        self.reason: Final = reason


class RestRequest:
    """Query and body of a request that may be served."""

    def __init__(self, request: Request) -> None:
        self._request: Final = request
        self.query: Final = request.query_params
        self.headers: Final = request.headers

    @property
    def maker(self) -> str:
        """For whom it counts what this request makes (``flow/reserve.py``)."""
        client = self._request.client
        return "" if client is None else Peer(client.host, client.port, "", 0).maker

    @property
    def host(self) -> str:
        """The name by which the client reached us, in brackets where that is needed."""
        name = self._request.url.hostname or "localhost"
        return f"[{name}]" if ":" in name else name

    @property
    def authority(self) -> str:
        """The same with the port."""
        return self._request.url.netloc

    def is_set(self, name: str) -> bool:
        """True when a query parameter says so."""
        return self.query.get(name, "").lower() == "true"

    def number(self, name: str) -> int:
        """A query parameter that is a number; 400 when it is none, or missing."""
        return to_number(name, self.query.get(name, ""))

    async def body(self) -> bytes:
        """As it came."""
        body = await read_body(self._request, BODY_BYTES_MAX)
        if body is None:
            raise RestError(413, f"a body has at most {BODY_BYTES_MAX} bytes")
        return body

    async def json(self, kind: type[T], absent: T | None = None) -> T:
        """The body as this type; 400 when it is not. ``absent``: what an empty one means."""
        body = await self.body()
        if absent is not None and not body.strip():
            return absent
        return decoded(body, kind)


def decoded(body: bytes, kind: type[T]) -> T:
    """JSON of this shape; 400 when it is not.

    As Java's reader has it, numbers and booleans may be strings; as its writers do, members that
    are null say nothing.
    """
    try:
        found = msgspec.json.decode(body)
        if isinstance(found, dict):
            found = {name: value for name, value in found.items() if value is not None}
        return msgspec.convert(found, kind, strict=False)
    except RecursionError:
        raise RestError(400, "the body is nested too deep") from None
    except msgspec.MsgspecError as problem:
        raise RestError(400, f"the body is not understood: {problem}") from None


def to_number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise RestError(400, f"{name} is {text[:40]!r}; it must be a whole number")
    return int(text)


# ---- what takes long ----------------------------------------------------------------------------

STEPS_AT_A_TIME: Final = 200
"""Steps of some ten microseconds each, until others have their turn."""
PAUSES_A_TURN: Final = 10
PIECE_BYTES: Final = 64 * 1024
"""Encoded in less than a millisecond."""
ITEMS_AT_A_TIME: Final = 50


class Pace:
    """Counts the steps of one request."""

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        """``wake``: for who changes something, so that the engine need not do all of it at once."""
        self._left = STEPS_AT_A_TIME
        self._pauses = 0
        self._wake = wake

    async def step(self, steps: int = 1) -> None:
        """So much was done; the broker takes its turns if that was enough for once."""
        self._left -= steps
        if self._left <= 0:
            self._left = STEPS_AT_A_TIME
            self._pauses += 1
            # Not every time: a turn costs something for each queue of a subscription.
            if self._wake is not None and self._pauses % PAUSES_A_TURN == 0:
                self._wake()
            await asyncio.sleep(0)


def streamed(content: Any) -> Response:
    """An answer that may be large: JSON in pieces, or such pieces themselves."""
    pieces = content if isinstance(content, AsyncIterator) else json_pieces(content)
    return StreamingResponse(_gathered(pieces), media_type="application/json")


async def _gathered(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Small ones together: each costs a call of the socket."""
    found = bytearray()
    async for piece in pieces:
        found += piece
        if len(found) >= PIECE_BYTES:
            yield bytes(found)
            found.clear()
    yield bytes(found)


async def json_pieces(content: Any) -> AsyncIterator[bytes]:
    """Content encoded, with turns for others in between."""
    piece = bytearray()
    for part in _parts(content):
        piece += part
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
            await asyncio.sleep(0)
    yield bytes(piece)


def _parts(content: Any) -> Iterator[bytes]:
    """Dicts member by member, lists some items at a time."""
    if isinstance(content, dict):
        yield b"{"
        separator = b""
        for name, value in content.items():
            yield separator + msgspec.json.encode(name) + b":"
            yield from _parts(value)
            separator = b","
        yield b"}"
    elif isinstance(content, list):
        yield b"["
        for at in range(0, len(content), ITEMS_AT_A_TIME):
            if at:
                yield b","
            yield msgspec.json.encode(content[at : at + ITEMS_AT_A_TIME])[1:-1]
        yield b"]"
    else:
        yield msgspec.json.encode(content)


# ---- what handlers share ------------------------------------------------------------------------


class RestContext:
    """What all handlers share: the broker, its listeners, and waiting for what takes a while."""

    def __init__(
        self, broker: PulsarBroker, wake: Callable[[], None], endpoints: Mapping[str, str]
    ) -> None:
        self.broker: Final = broker
        self.endpoints: Final = endpoints
        """Listeners of the broker, ``host:port`` by name."""
        self.wake: Final = wake
        """Asks for a turn of the engine."""

    def check_namespace(self, namespace: str, reason: str = "Namespace does not exist") -> None:
        if not self.broker.namespaces.exists(namespace):
            raise RestError(404, reason)

    def existing(self, name: PulsarName) -> TopicName:
        """The engine's name of a topic, or of that of which it is a partition; 404 without one."""
        self.check_namespace(name.namespace, "Namespace not found")
        topics = self.broker.topics
        if topics.partitions(name) is not None:
            return name.topic_name
        address = topics.address(name)
        if address is None:
            raise no_topic(name)
        return address[0]

    async def durable(self) -> None:
        """Return once everything changed so far would survive a crash."""
        done = asyncio.get_running_loop().create_future()

        def resolve() -> None:
            if not done.done():
                done.set_result(None)

        self.broker.engine.after_durable(resolve)
        self.wake()
        try:
            await asyncio.wait_for(done, DURABLE_SECONDS_MAX)
        except TimeoutError:
            raise RestError(
                503, f"not durable after {DURABLE_SECONDS_MAX:.0f} s; it may still become so"
            ) from None

    async def in_effect(self) -> None:
        """Return once every change of policies so far holds for all topics, and is durable."""
        namespaces = self.broker.namespaces
        while namespaces.is_applying:
            namespaces.apply_some()
            self.wake()
            await asyncio.sleep(0)
        await self.durable()


def no_topic(name: PulsarName) -> RestError:
    return RestError(404, f"Topic {name} not found")


def of_topic(handler: Handler, domain: str) -> Handler:
    """A handler that wants a topic, for paths with its parts."""

    async def call(
        api: RestContext, request: RestRequest, tenant: str, namespace: str, *rest: str
    ) -> Any:
        local, *others = rest
        name = parse_name(f"{domain}://{tenant}/{namespace}/{local}")
        return await handler(api, request, name, *others)

    return call


def path_of(request: Request) -> tuple[str, ...]:
    """Decoded parts of a path behind ``/admin/v2`` or ``/lookup/v2``."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.partition(b"?")[0].decode("latin-1").strip("/")
    return tuple(unquote(part) for part in path.split("/")[2:])


def check_may_change(request: Request) -> None:
    """Raise unless it comes from this machine, and from no page of another origin."""
    if refusal(request, "Pulsar's topics are changed") is not None:
        raise RestError(403, "changes are made from this machine, which is addressed as localhost")
    origin = request.headers.get("origin")
    if origin and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise RestError(403, "pages of another origin may not ask")
