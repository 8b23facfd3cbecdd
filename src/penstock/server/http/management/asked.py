"""One request to the management API, read: who asks, for which path, with which body.

Paths are split before they are decoded, because a vhost is usually called ``/`` and comes as
``%2F``. Basic authentication is checked first of all; ``guest`` may ask from this machine only, and
must address it by a loopback name, so that no web page can use its known password through a name of
its own (DNS rebinding). A request that a page of another origin sends is refused as well.

Bound: a body has at most ``BODY_BYTES_MAX`` bytes, and is read only for users who may send one.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from starlette.requests import Request

from penstock.adapters.amqp.users import is_loopback

if TYPE_CHECKING:
    from penstock.adapters.amqp.users import User, Users

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
REALM: Final = 'Basic realm="RabbitMQ Management"'

T = TypeVar("T")


class Problem(Exception):
    """An answer that is an error, in RabbitMQ's two fields."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status: Final = status
        self.error: Final = error
        self.reason: Final = reason


def bad_request(reason: str) -> Problem:
    """400."""
    return Problem(400, "bad_request", reason)


def not_found() -> Problem:
    """404 in RabbitMQ's words."""
    return Problem(404, "Object Not Found", "Not Found")


class Asked:
    """A request of a user who may ask."""

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
        raw = b""
        async for chunk in self._request.stream():
            raw += chunk
            if len(raw) > BODY_BYTES_MAX:
                raise Problem(413, "too_large", f"a body has at most {BODY_BYTES_MAX} bytes")
        try:
            return msgspec.json.decode(raw or b"{}", type=kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as problem:
            raise bad_request(str(problem)) from None

    def is_set(self, name: str) -> bool:
        """True when a query parameter says so."""
        return self.query.get(name, "").lower() in ("true", "1")

    def administrator(self) -> None:
        """Raise unless the user may change users, vhosts and definitions."""
        if not self.user.is_administrator:
            raise Problem(403, "not_authorised", "Not administrator user")


def parts_of(request: Request) -> tuple[str, ...]:
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
        raise Problem(401, "not_authorized", "Not_Authorized")
    if not user.may_manage:
        raise Problem(401, "not_authorized", "Not management user")
    named = request.url.hostname or ""
    if user.is_loopback_only and is_loopback(host) and not _is_local(named):
        raise Problem(403, "not_authorised", "address this broker as localhost")
    origin = request.headers.get("origin")
    if origin and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise Problem(403, "not_authorised", "pages of another origin may not ask")
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


def paged(asked: Asked, rows: list[dict[str, Any]]) -> Any:
    """Rows as they are, or one page of them when the request says which; chosen columns only."""
    name, sort = asked.query.get("name"), asked.query.get("sort")
    if name:
        rows = [row for row in rows if name in str(row.get("name", ""))]
    if sort:
        rows.sort(
            key=lambda row: (isinstance(row.get(sort), str), row.get(sort) or 0),
            reverse=asked.is_set("sort_reverse"),
        )
    columns = asked.query.get("columns")
    if columns:
        rows = [_columns(row, columns.split(",")) for row in rows]
    if "page" not in asked.query:
        return rows
    page, size = _number(asked, "page", 1), min(500, _number(asked, "page_size", 100))
    shown = rows[(page - 1) * size : page * size]
    return {
        "page": page,
        "page_size": size,
        "page_count": max(1, -(-len(rows) // size)),
        "total_count": len(rows),
        "filtered_count": len(rows),
        "item_count": len(shown),
        "items": shown,
    }


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


def _number(asked: Asked, name: str, default: int) -> int:
    text = asked.query.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise bad_request(f"{name} is {text!r}; it must be a number from 1 on")
    return int(text)
