"""A request to the management API, its possible answers, and what handlers share.

Paths are split before they are decoded, because a vhost is usually called ``/`` and comes as
``%2F``. Basic authentication is checked first of all; ``guest`` may ask from this machine only, and
must address it by a loopback name, so that no web page can use its known password through a name of
its own (DNS rebinding). A request that a page of another origin sends is refused as well.

Bound: a body has at most ``BODY_BYTES_MAX`` bytes, and is read only for users who may send one.
Not here: which path goes where (``api.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from starlette.requests import Request

from penstock.adapters.amqp.management.operator_service import OperatorService
from penstock.adapters.contract import is_loopback
from penstock.engine.spark.topic_search import PatternTooLong, checked_pattern, ways
from penstock.model.names import NAME_BYTES_MAX
from penstock.server.http.app import read_body

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import AmqpBroker
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.adapters.amqp.users import User, Users
    from penstock.wire.amqp.codes import AmqpError

BODY_BYTES_MAX: Final = 10 * 1024 * 1024
REALM: Final = 'Basic realm="RabbitMQ Management"'

PAGE_MAX: Final = 500
VIEWS_AT_A_TIME: Final = 15
"""Rows made in one go, unless they weigh more than one; then others have their turn."""
LISTED_AT_A_TIME: Final = 300
"""Objects that are only listed in one go."""
QUEUES_AT_A_TIME: Final = 100
"""Queues that are added up in one go."""
SEARCH_STEPS_MAX: Final = 8 * NAME_BYTES_MAX**2
"""Of a pattern in one name, and of all names that are looked at in one go: some milliseconds."""
_ANYTHING_BEFORE: Final = re.compile(r"^\^?\.\*(?![?+*{])")
_ANYTHING_BEHIND: Final = re.compile(r"(?<!\\)\.\*\$?$")

ANY: Final = "*"
"""A name, in the pattern of a path."""
DURABLE_SECONDS_MAX: Final = 10.0

T = TypeVar("T")
Handler = Callable[..., Awaitable[Any]]
RouteTable = dict[tuple[str, tuple[str, ...]], Handler]
"""(method, pattern) -> handler(api, request, *names)."""


class ApiRequest:
    """An authenticated request: user, path, query and body."""

    def __init__(self, request: Request, user: User, path: tuple[str, ...]) -> None:
        self._request: Final = request
        self.user: Final = user
        self.path: Final = path
        """Decoded parts behind ``/api``."""
        self.method: Final = request.method
        self.query: Final = request.query_params
        self.headers: Final = request.headers

    async def body(self, kind: type[T]) -> T:
        """The JSON body as this type; 400 when it is not."""
        body = await self.raw_body()
        with bad_json():
            # Not strict: RabbitMQ's own tool writes numbers and booleans as text.
            return msgspec.json.decode(body, type=kind, strict=False)

    async def raw_body(self) -> bytes:
        """The JSON body as it came; an empty one means nothing is said."""
        body = await read_body(self._request, BODY_BYTES_MAX)
        if body is None:
            raise ApiError(413, "too_large", f"a body has at most {BODY_BYTES_MAX} bytes")
        return body or b"{}"

    def is_set(self, name: str) -> bool:
        """True when a query parameter says so."""
        return self.query.get(name, "").lower() in ("true", "1")

    def check_administrator(self) -> None:
        """Raise unless the user may change users, vhosts and definitions."""
        if not self.user.is_administrator:
            raise ApiError(403, "not_authorised", "Not administrator user")


class ApiContext:
    """What all handlers share: the broker, its listeners, and waiting for what takes a while."""

    def __init__(
        self, broker: AmqpBroker, wake: Callable[[], None], endpoints: Mapping[str, str]
    ) -> None:
        self.broker: Final = broker
        self.endpoints: Final = endpoints
        """Listeners of the broker, ``host:port`` by name."""
        self.wake: Final = wake
        """Asks for a turn of the engine."""
        self.started_ms: Final = broker.clock.monotonic_ms()
        self.operator: Final = OperatorService(broker)

    def vhost(self, name: str) -> VirtualHost:
        found = self.broker.vhost(name)
        if found is None:
            raise not_found()
        return found

    async def durable(self) -> None:
        """Return once everything changed so far would survive a crash."""
        await self._wait_for(self.broker.engine.after_durable, "durable")

    async def in_effect(self, vhost: VirtualHost) -> None:
        """Return once every change of policies so far holds for all that lives in a vhost."""
        if vhost.sweep.is_running:
            await self._wait_for(vhost.sweep.after, "in effect")

    async def gone(self, queue: AmqpQueue) -> None:
        """Return once a queue that is being deleted has stored its dead letters, and is gone."""
        if not queue.is_deleted:
            await self._wait_for(queue.on_gone.append, "gone")

    async def _wait_for(self, subscribe: Callable[[Callable[[], None]], None], what: str) -> None:
        done = asyncio.get_running_loop().create_future()

        def resolve() -> None:
            if not done.done():
                done.set_result(None)

        subscribe(resolve)
        self.wake()
        try:
            await asyncio.wait_for(done, DURABLE_SECONDS_MAX)
        except TimeoutError:
            reason = f"not {what} after {DURABLE_SECONDS_MAX:.0f} s; it may still become so"
            raise ApiError(503, "timeout", reason) from None


# ---- answers ------------------------------------------------------------------------------------


class EmptyResponse(NamedTuple):
    """A change was made: 201 when something is new, else 204."""

    is_new: bool = False
    location: str = ""


class HealthCheckFailed(NamedTuple):
    """A health check that found something: 503."""

    reason: str


class ApiError(Exception):
    """An error response, in RabbitMQ's two fields."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status: Final = status
        self.error: Final = error
        self.reason: Final = reason


def bad_request(reason: str) -> ApiError:
    return ApiError(400, "bad_request", reason)


@contextlib.contextmanager
def bad_json() -> Iterator[None]:
    """400 for a body that is no JSON, or of another shape."""
    try:
        yield
    except RecursionError:
        raise bad_request("the body is nested too deep") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise bad_request(str(problem)) from None


def reason_of(error: AmqpError) -> str:
    """What went wrong, without the word that closes channels begin with."""
    return str(error).removeprefix(f"{error.code.name} - ")


def not_found() -> ApiError:
    return ApiError(404, "Object Not Found", "Not Found")


# ---- path and login -----------------------------------------------------------------------------


def path_of(request: Request) -> tuple[str, ...]:
    """Decoded parts of a path behind ``/api``."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.partition(b"?")[0].decode("latin-1").removeprefix("/api/").rstrip("/")
    return tuple(unquote(part) for part in path.split("/"))


def login(request: Request, users: Users) -> User:
    """The user behind a request; raises 401 or 403."""
    given = _credentials(request.headers.get("authorization", ""))
    host = request.client.host if request.client is not None else ""
    user = None if given is None else users.login(*given, host)
    if user is None:
        raise ApiError(401, "not_authorized", "Not_Authorized")
    if not user.may_manage:
        raise ApiError(401, "not_authorized", "Not management user")
    if request.method not in ("GET", "HEAD") and not user.may_change:
        raise ApiError(401, "not_authorised", "Not management user: monitoring only looks")
    named = request.url.hostname or ""
    if user.is_loopback_only and is_loopback(host) and not _is_local(named):
        raise ApiError(403, "not_authorised", "address this broker as localhost")
    origin = request.headers.get("origin")
    if origin and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise ApiError(403, "not_authorised", "pages of another origin may not ask")
    return user


def _credentials(header: str) -> tuple[str, str] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = b64decode(encoded, validate=True).decode().partition(":")
    except (NotBase64, ValueError):
        return None
    return (name, password) if colon else None


def _is_local(host: str) -> bool:
    return host == "localhost" or is_loopback(host)


# ---- lists --------------------------------------------------------------------------------------


async def paged(
    request: ApiRequest,
    items: Iterable[T],
    view: Callable[[T], dict[str, Any]],
    weight: Callable[[T], float] = lambda _: 1,
) -> list[dict[str, Any]] | dict[str, Any]:
    """Views of all items, or one page of them when the request says which.

    Nothing is shown that was not asked for: without a wish for order only the items of the page are
    looked at, and a long list lets the broker take turns in between. ``weight``: as how many usual
    views one counts there.
    """
    query = request.query
    is_whole = "page" not in query or bool(query.get("name") or query.get("sort"))
    found = list(items)
    page, size = _number(request, "page", 1), min(PAGE_MAX, _number(request, "page_size", 100))
    part = slice((page - 1) * size, page * size)
    rows = await _rows(found if is_whole else found[part], view, weight)
    total = filtered = len(found)
    if is_whole:
        rows = await _filtered(request, rows)
        filtered = len(rows)
        rows = rows if "page" not in query else rows[part]
    if query.get("columns"):
        rows = [_columns(row, query["columns"].split(",")) for row in rows]
    if "page" not in query:
        return rows
    return {
        "page": page,
        "page_size": size,
        "page_count": max(1, -(-filtered // size)),
        "total_count": total,
        "filtered_count": filtered,
        "item_count": len(rows),
        "items": rows,
    }


async def listed(items: Iterable[T]) -> list[T]:
    """Very many that are found one by one; who gives them must not mind what happens meanwhile."""
    found: list[T] = []
    for each in items:
        found.append(each)
        if len(found) % LISTED_AT_A_TIME == 0:
            await asyncio.sleep(0)
    return found


async def _rows(
    items: list[T], view: Callable[[T], dict[str, Any]], weight: Callable[[T], float]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    left: float = VIEWS_AT_A_TIME
    for item in items:
        if left <= 0:
            await asyncio.sleep(0)
            left = VIEWS_AT_A_TIME
        rows.append(view(item))
        left -= weight(item)
    return rows


async def _filtered(request: ApiRequest, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    name, sort = request.query.get("name"), request.query.get("sort")
    if name and request.is_set("use_regex"):
        rows = await _searched(name, rows)
    elif name:
        name = name.lower()
        rows = [row for row in rows if name in str(row.get("name", "")).lower()]
    if sort:
        rows.sort(key=lambda row: _sort_key(row.get(sort)), reverse=request.is_set("sort_reverse"))
    return rows


async def _searched(text: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those in whose name the pattern is found, whatever the case; 400 for one that takes long."""
    # Found anywhere: "anything" before or behind says nothing, and would be tried at every place.
    wanted = _ANYTHING_BEHIND.sub("", _ANYTHING_BEFORE.sub("", text))
    is_anchored = wanted.startswith("^") and "|" not in wanted
    places = 1 if is_anchored else NAME_BYTES_MAX
    try:
        pattern = checked_pattern(wanted, SEARCH_STEPS_MAX // places, re.IGNORECASE)
    except PatternTooLong:
        raise bad_request(
            f"name {text!r} may take too long: at most one of * and + in a pattern, two behind ^, "
            "and none in a group that is repeated itself"
        ) from None
    except ValueError as problem:
        raise bad_request(f"name {problem}") from None
    steps = ways(wanted) * places
    found: list[dict[str, Any]] = []
    count = SEARCH_STEPS_MAX // max(steps, NAME_BYTES_MAX)
    for at in range(0, len(rows), count):
        if at:
            await asyncio.sleep(0)
        found += [
            row
            for row in rows[at : at + count]
            if pattern.search(str(row.get("name", ""))[:NAME_BYTES_MAX])
        ]
    return found


def _sort_key(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then everything else as text."""
    is_number = isinstance(value, (int, float))
    return not is_number, value if is_number else str(value)


def _columns(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        source, target = row, found
        *outer, last = name.split(".")
        for part in outer:
            inner = source.get(part)
            source = inner if isinstance(inner, dict) else {}
            target = target.setdefault(part, {})
        if last in source:
            target[last] = source[last]
    return found


def _number(request: ApiRequest, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise bad_request(f"{name} is {text!r}; it must be a number from 1 on")
    return int(text)
