"""The management API of one AMQP broker: RabbitMQ's paths, found in one table.

Every path that RabbitMQ's tools use and we have is in the table of one of three files: ``clients``
(totals, the node, health, connections, channels), ``topology`` (vhosts, users, policies, exchanges,
bindings, definitions) and ``queues`` (queues and messages). A pattern is a tuple of parts; ``*``
stands for a name. Our own paths below ``/api`` (flow, topics, groups, queries, faults) begin with
other words.

A handler gets the request and the names in its path. It returns JSON content for 200,
``EmptyResponse`` for 201 and 204, ``HealthCheckFailed`` for 503, or raises: ``ApiError`` as it is,
``AmqpError`` by its code. Changes are answered once they would survive a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.server.management import clients, queues, topology
from penstock.server.management.request import (
    ANY,
    REALM,
    ApiContext,
    ApiError,
    ApiRequest,
    EmptyResponse,
    Handler,
    HealthCheckFailed,
    RouteTable,
    bad_request,
    login,
    not_found,
    path_of,
    reason_of,
)
from penstock.wire.amqp.codes import AmqpError, ReplyCode

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import AmqpBroker

_STATUS: Final = {
    ReplyCode.NOT_FOUND: 404,
    ReplyCode.ACCESS_REFUSED: 403,
    ReplyCode.NOT_ALLOWED: 403,
}
"""By reply code; every other is a 400."""


class ManagementApi:
    """Finds and calls the handler of a request, and turns its result into a response."""

    def __init__(
        self, broker: AmqpBroker, wake: Callable[[], None], endpoints: Mapping[str, str]
    ) -> None:
        self._api = ApiContext(broker, wake, endpoints)
        self._table: RouteTable = {
            **clients.CLIENT_ROUTES,
            **topology.TOPOLOGY_ROUTES,
            **queues.QUEUE_ROUTES,
        }
        self._patterns = {pattern for _, pattern in self._table}

    def routes(self) -> list[Route]:
        """What it answers to: every first word, and everything below it."""
        words = sorted({pattern[0] for pattern in self._patterns})
        methods = ["GET", "PUT", "POST", "DELETE"]
        return [
            Route(path, self.answer, methods=methods)
            for word in words
            for path in (f"/api/{word}", f"/api/{word}/{{rest:path}}")
        ]

    async def answer(self, request: Request) -> Response:
        """Any request below ``/api``."""
        try:
            user = login(request, self._api.broker.users)
            path = path_of(request)
            handler, names = self._find(request.method, path)
            found = await handler(self._api, ApiRequest(request, user, path), *names)
        except (ApiError, ValueError) as error:
            return _error_response(_api_error(error))
        finally:
            # Whatever was done may need a turn, also what went wrong half-way.
            self._api.wake()
        if isinstance(found, HealthCheckFailed):
            return _json({"status": "failed", "reason": found.reason}, 503)
        if isinstance(found, EmptyResponse):
            headers = {"location": found.location} if found.location else None
            return Response(status_code=201 if found.is_new else 204, headers=headers)
        return _json(found)

    def _find(self, method: str, path: tuple[str, ...]) -> tuple[Handler, list[str]]:
        """The handler of a path; literal parts go before names."""
        method = "GET" if method == "HEAD" else method
        fitting = [each for each in self._patterns if _matches(each, path)]
        if not fitting:
            raise not_found()
        fitting.sort(key=lambda pattern: pattern.count(ANY))
        for pattern in fitting:
            handler = self._table.get((method, pattern))
            if handler is not None:
                names = [part for part, each in zip(path, pattern, strict=True) if each == ANY]
                return handler, names
        raise ApiError(405, "method_not_allowed", f"no {method} here")


def _matches(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return len(pattern) == len(path) and all(
        each in (ANY, part) for each, part in zip(pattern, path, strict=True)
    )


def _api_error(error: ApiError | ValueError) -> ApiError:
    """What went wrong as HTTP says it; every ``AmqpError`` is a ``ValueError``."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, AmqpError):
        return bad_request(str(error))
    status = _STATUS.get(error.code, 400)
    word = "not_found" if status == 404 else "bad_request"
    return ApiError(status, word, reason_of(error))


def _error_response(problem: ApiError) -> Response:
    headers = {"www-authenticate": REALM} if problem.status == 401 else None
    return _json({"error": problem.error, "reason": problem.reason}, problem.status, headers)


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")
