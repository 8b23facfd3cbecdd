"""Pulsar's REST API: its paths, found in one table.

Every path that we have is in the table of the file of its concept: ``namespaces`` (tenants,
clusters, brokers and look-ups, too), ``policies``, ``topics``, ``subscriptions``, ``messages`` and
``schemas``. A pattern is a tuple of parts; ``*`` stands for a name.

A handler gets the request and the names in its path. It returns JSON content for 200, nothing for
204, a response of its own, or raises: ``RestError`` as it is, what adapter and engine raise by its
kind. Changes are answered once they would survive a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.adapters.pulsar.errors import PulsarError
from penstock.model.errors import AlreadyExists, NotFound, PenstockError
from penstock.server.pulsar_rest import (
    messages,
    namespaces,
    policies,
    schemas,
    subscriptions,
    topics,
)
from penstock.server.pulsar_rest.request import (
    ANY,
    Handler,
    RestContext,
    RestError,
    RestRequest,
    RouteTable,
    check_may_change,
    path_of,
)
from penstock.wire.pulsar.frames import ServerError

if TYPE_CHECKING:
    from penstock.adapters.pulsar.broker import PulsarBroker

ADMIN: Final = "/admin/v2"
LOOKUP: Final = "/lookup/v2"
METHODS: Final = ["GET", "PUT", "POST", "DELETE"]

_STATUS: Final = {
    ServerError.TopicNotFound: 404,
    ServerError.SubscriptionNotFound: 404,
    ServerError.ServiceNotReady: 503,
    ServerError.NotAllowedError: 409,
    ServerError.IncompatibleSchema: 409,
}
"""By error code; every other is a 412."""


class PulsarRestApi:
    """Finds and calls the handler of a request, and turns its result into a response."""

    def __init__(
        self, broker: PulsarBroker, wake: Callable[[], None], endpoints: Mapping[str, str]
    ) -> None:
        self._api = RestContext(broker, wake, endpoints)
        self._admin = Paths(
            {
                **namespaces.NAMESPACE_ROUTES,
                **policies.POLICY_ROUTES,
                **topics.TOPIC_ROUTES,
                **subscriptions.SUBSCRIPTION_ROUTES,
                **messages.MESSAGE_ROUTES,
                **schemas.SCHEMA_ROUTES,
            }
        )
        self._lookup = Paths(namespaces.LOOKUP_ROUTES)

    def routes(self) -> list[Route]:
        """What it answers to."""
        return [
            Route(f"{ADMIN}/{{rest:path}}", self.administer, methods=METHODS),
            Route(f"{LOOKUP}/{{rest:path}}", self.look_up, methods=METHODS),
        ]

    async def administer(self, request: Request) -> Response:
        return await self._answer(self._admin, request)

    async def look_up(self, request: Request) -> Response:
        return await self._answer(self._lookup, request)

    async def _answer(self, paths: Paths, request: Request) -> Response:
        try:
            if request.method not in ("GET", "HEAD"):
                check_may_change(request)
            handler, names = paths.find(request.method, path_of(request))
            found = await handler(self._api, RestRequest(request), *names)
        except (RestError, PulsarError, PenstockError, ValueError) as error:
            problem = _rest_error(error)
            return _json({"reason": problem.reason}, problem.status)
        finally:
            # Whatever was done may need a turn, also what went wrong half-way.
            self._api.wake()
        if isinstance(found, Response):
            return found
        return Response(status_code=204) if found is None else _json(found)


class Paths:
    """A table of handlers."""

    def __init__(self, table: RouteTable) -> None:
        self._table: Final = table
        self._by_length: Final[dict[int, set[tuple[str, ...]]]] = {}
        for _, pattern in table:
            self._by_length.setdefault(len(pattern), set()).add(pattern)

    def find(self, method: str, path: tuple[str, ...]) -> tuple[Handler, list[str]]:
        """The handler of a path; literal parts go before names."""
        method = "GET" if method == "HEAD" else method
        fitting = [each for each in self._by_length.get(len(path), ()) if _matches(each, path)]
        fitting.sort(key=lambda pattern: pattern.count(ANY))
        for pattern in fitting:
            handler = self._table.get((method, pattern))
            if handler is not None:
                names = [part for part, each in zip(path, pattern, strict=True) if each == ANY]
                return handler, names
        if not fitting:
            raise RestError(404, f"there is no {'/'.join(path)[:300]} here")
        raise RestError(405, f"no {method} here")


def _matches(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return all(each in (ANY, part) for each, part in zip(pattern, path, strict=True))


def _rest_error(error: Exception) -> RestError:
    if isinstance(error, RestError):
        return error
    if isinstance(error, PulsarError):
        return RestError(_STATUS.get(error.code, 412), error.text)
    if isinstance(error, NotFound):
        return RestError(404, str(error))
    # A limit of ours, or a name that is taken; a name that is none.
    return RestError(409 if isinstance(error, AlreadyExists) else 412, str(error))


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
