"""Routes of the HTTP port: one short function per path, JSON unless a standard says otherwise.

=============  ======================================================================
/livez         200 as long as the process answers at all
/readyz        200 while the broker takes work, 503 with the reason otherwise
/metrics       Prometheus text; with ``?all`` every topic by name however many there are, with
               ``?compat=rabbitmq`` under RabbitMQ's names
/api/flow      who is slow, who waits for whom, and why (flow-control.md section 3); credits of
               the hops are seen and changed at /api/flow/credit, the limits
               of the alarms at /api/flow/limits
/api/queries   Spark queries: where each stands, how far behind, what is kept for it
/api/topics    topics and groups, to see and to change; /api/groups as well
/api/faults    only with ``--faults``
/api/...       RabbitMQ's management API, with a password (``management/``)
=============  ======================================================================

Without credentials these are for loopback (D21). Handlers run on the broker's own loop between two
turns: each is bounded whatever the number of connections and topics, and what takes longer is made
in pieces with turns in between (``server/view.py``).
"""

import asyncio
import contextlib
import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.engine.topic import Overflow
from penstock.model.errors import AlreadyExists, NotFound, PenstockError, SettingsError
from penstock.server.admin import Administration
from penstock.server.faults import FaultOrder, Faults
from penstock.server.probes import AlarmLimits
from penstock.server.view import BrokerView, in_pieces

RABBITMQ: Final = "rabbitmq"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
_ENCODER = msgspec.json.Encoder()


class Json(Response):
    """A JSON answer; msgspec is ten times as quick as the standard library here."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _ENCODER.encode(content)


def make_app(
    broker: BrokerView,
    faults: Faults | None = None,
    administration: Administration | None = None,
    routes: Sequence[Route] = (),
) -> Starlette:
    """The application for one broker; ``routes`` are its protocols' own."""

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        readiness = broker.readiness()
        return Json(msgspec.to_builtins(readiness), 200 if readiness.is_ready else 503)

    async def metrics(request: Request) -> Response:
        if request.query_params.get("compat") == RABBITMQ:
            return Response(await broker.rabbitmq_metrics_page(), media_type=PROMETHEUS)
        pieces = await broker.metrics_page(is_all="all" in request.query_params)
        return PartsResponse(pieces, PROMETHEUS)

    async def flow(_request: Request) -> Response:
        return PartsResponse([await broker.flow_page()], "application/json")

    found = [
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/api/flow", flow),
    ]
    if administration is not None:
        found += AdminApi(administration).routes()
        found += credit_routes(administration)
        if administration.alarm_limits is not None:
            found += limit_routes(administration.alarm_limits)
    if faults is not None:
        found += fault_routes(faults)
    return Starlette(
        routes=[*found, *routes],
        exception_handlers={404: _not_found},
        middleware=[Middleware(RequestCheck)],
    )


PART_BYTES: Final = 64 * 1024
"""A large body goes out bit by bit: copying it is work, too."""


class PartsResponse(Response):
    """An answer made of pieces of text, in parts of some size."""

    def __init__(self, pieces: Sequence[bytes], media_type: str) -> None:
        size = sum([len(each) for each in pieces])
        super().__init__(media_type=media_type, headers={"content-length": str(size)})
        self._pieces = pieces

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        status = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **status})
        for part in self._parts():
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    def _parts(self) -> Iterator[bytes]:
        part = bytearray()
        for piece in self._pieces:
            for at in range(0, len(piece), PART_BYTES):
                part += piece[at : at + PART_BYTES]
                if len(part) >= PART_BYTES:
                    yield bytes(part)
                    part.clear()
        yield bytes(part)


HEAD_BYTES_MAX: Final = 16 * 1024
"""Names and values of all headers of a request."""


class RequestCheck:
    """Refuses what no honest client sends, before any path is looked at.

    * A broker that listens on loopback is addressed by a loopback name, for reading, too: a page
      whose name was pointed at 127.0.0.1 (DNS rebinding) gets nothing. Without any name (HTTP/1.0)
      there is health only.
    * A connection accepted above all limits is for health checks.
    * A body has one length: with two, whoever is between us and the client may see another end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = _wrong_with(scope)

        async def send_checked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), NOSNIFF]
            await send(message)

        if refused is None:
            # Who hangs up in the midst of its body is no mistake of ours.
            with contextlib.suppress(ClientDisconnect):
                await self._app(scope, receive, send_checked)
        else:
            refused.headers["connection"] = "close"
            await refused(scope, receive, send_checked)


HEALTH_ONLY: Final = "health_only"
"""In the state of a request: its connection was accepted above all limits, for a health check."""
HEALTH_PATHS: Final = ("/livez", "/readyz")
NOSNIFF: Final = (b"x-content-type-options", b"nosniff")


def _wrong_with(scope: Scope) -> Response | None:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    names = [name for name, _ in headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        return problem(400, "a body has Content-Length or Transfer-Encoding, not both")
    if sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES_MAX:
        return problem(431, f"the headers of a request have at most {HEAD_BYTES_MAX} bytes")
    local, _ = scope.get("server") or ("", 0)
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    # HTTP/1.0 needs no Host: load balancers ask for health like that, browsers never do.
    is_named = bool(hosts) or scope["path"] in HEALTH_PATHS
    if _is_loopback(local) and not (
        is_named and all(_is_loopback(_name_in(each)) for each in hosts)
    ):
        return problem(403, "address this broker as localhost")
    if scope.get("state", {}).get(HEALTH_ONLY) and scope["path"] not in HEALTH_PATHS:
        return problem(
            503,
            "too many HTTP connections (listeners.http_connections_max, "
            "listeners.http_connections_per_address_max); close some, or come again",
        )
    return None


def _name_in(host: str) -> str:
    """The name in a Host header, empty when it is none."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::\d{1,5})?", host)
    return "" if found is None else (found[1] or found[2]).lower()


async def _not_found(request: Request, _error: Exception) -> Response:
    return Json(
        {
            "error": f"there is no {request.url.path} here",
            "try": [
                "/readyz",
                "/metrics",
                "/api/flow",
                "/api/topics",
                "/api/groups",
                "/api/queries",
            ],
        },
        404,
    )


# ---- admin --------------------------------------------------------------------------------------
# ``/api/topics`` and ``/api/groups``: see and change them. Neither is a path of RabbitMQ's API.
#
# ======  =====================================  =============================================
# GET     /api/topics ?offset ?contains ?hidden  a page of topics
# POST    /api/topics                            create: {"name", "space", "queues"}
# GET     /api/topics/NAME ?space                one topic with queues and groups
# DELETE  /api/topics/NAME ?space                with its messages
# POST    /api/topic-purges                      {"topic", "space"}: settled for every group
# POST    /api/topic-policies                    {"topic", "space", "spark_backpressure", ...}
# GET     /api/queries                           Spark queries: position, lag, rate, lease, batch;
#                                                and sinks: last batch, what is staged, what waits
# DELETE  /api/queries/NAME                      forget one, with its positions
# GET     /api/groups ?offset ?contains ?hidden  a page of (group, topic) with lag
# GET     /api/groups/NAME                       its topics, queue by queue
# DELETE  /api/groups/NAME ?topic ?space         from one topic or from all
# POST    /api/group-offsets                     reset: {"group", "topic", "space", "to", "queue"}
# POST    /api/group-modes                       {"group", "topic", "mode", "share"}, here only
# GET     /api/places                            its name and address in clusters, and name servers
# ======  =====================================  =============================================
#
# Names may hold slashes, so nothing comes behind one in a path. Reading is free like ``/api/flow``;
# changes are for this machine (``refusal``) and answered once they would survive a crash.


DURABLE_SECONDS_MAX: Final = 10.0
_CHANGES: Final = "topics and groups are changed"


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A topic to make."""

    name: str
    space: str = ""
    queues: int = 4


class PurgeTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A topic whose groups go on at its end."""

    topic: str
    space: str = ""


class ResetGroup(msgspec.Struct, forbid_unknown_fields=True):
    """A group to move."""

    group: str
    topic: str
    space: str = ""
    to: str | int = "latest"
    queue: int | None = None


class SetMode(msgspec.Struct, forbid_unknown_fields=True):
    """Pop or pull."""

    group: str
    topic: str
    mode: str
    space: str = ""
    share: int = -1


class SetPolicy(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Rules of a topic to change; what is left out stays, -1 and "" mean "as in the settings"."""

    topic: str
    space: str = ""
    spark_backpressure: str | None = None
    spark_backlog_messages_max: int | None = None
    spark_backlog_bytes_max: int | None = None
    spark_backlog_age_ms_max: int | None = None
    length_max: int | None = None
    bytes_max: int | None = None
    overflow: Overflow | None = None
    publish_messages_per_s: int | None = None
    publish_bytes_per_s: int | None = None
    quota_bytes_max: int | None = None
    quota_age_ms_max: int | None = None
    unacked_max: int | None = None


Body = TypeVar("Body", bound=msgspec.Struct)


class AdminApi:
    """The handlers of one broker."""

    def __init__(self, administration: Administration) -> None:
        self._admin = administration

    def routes(self) -> list[Route]:
        return [
            Route("/api/topics", self.topics, methods=["GET"]),
            Route("/api/topics", self.create_topic, methods=["POST"]),
            Route("/api/topic-purges", self.purge_topic, methods=["POST"]),
            Route("/api/topic-policies", self.set_policy, methods=["POST"]),
            Route("/api/queries", self.queries, methods=["GET"]),
            Route("/api/queries/{name:path}", self.forget_query, methods=["DELETE"]),
            Route("/api/topics/{name:path}", self.topic, methods=["GET"]),
            Route("/api/topics/{name:path}", self.delete_topic, methods=["DELETE"]),
            Route("/api/groups", self.groups, methods=["GET"]),
            Route("/api/groups/{name:path}", self.group, methods=["GET"]),
            Route("/api/groups/{name:path}", self.delete_group, methods=["DELETE"]),
            Route("/api/group-offsets", self.reset_group, methods=["POST"]),
            Route("/api/group-modes", self.set_mode, methods=["POST"]),
            Route("/api/places", self.places, methods=["GET"]),
        ]

    async def topics(self, request: Request) -> Response:
        found = await in_pieces(self._admin.topics(**_paging(request)))
        return _answer(lambda: found)

    async def topic(self, request: Request) -> Response:
        name, space = request.path_params["name"], request.query_params.get("space", "")
        return _answer(lambda: self._admin.topic(name, space))

    async def create_topic(self, request: Request) -> Response:

        def create(order: CreateTopic) -> dict[str, str]:
            self._admin.create_topic(order.name, order.space, queues=order.queues)
            return {"done": f"topic '{order.name}' created with {order.queues} queues"}

        return await self._change(request, CreateTopic, create)

    async def delete_topic(self, request: Request) -> Response:
        name, space = request.path_params["name"], request.query_params.get("space", "")

        def delete() -> dict[str, str]:
            self._admin.delete_topic(name, space)
            return {"done": f"topic '{name}' deleted with its messages"}

        return refusal(request, _CHANGES) or await self._durable(delete)

    async def purge_topic(self, request: Request) -> Response:

        def purge(order: PurgeTopic) -> dict[str, Any]:
            count = self._admin.purge_topic(order.topic, order.space)
            return {"done": f"topic '{order.topic}' purged of {count:,} messages", "count": count}

        return await self._change(request, PurgeTopic, purge)

    async def set_policy(self, request: Request) -> Response:

        def change(order: SetPolicy) -> dict[str, str]:
            given = msgspec.structs.asdict(order)
            topic, space = given.pop("topic"), given.pop("space")
            changes = {name: value for name, value in given.items() if value is not None}
            self._admin.set_topic_policy(topic, space, **changes)
            return {"done": f"topic '{topic}' has its new policy"}

        return await self._change(request, SetPolicy, change)

    async def queries(self, _request: Request) -> Response:
        return _answer(lambda: {"queries": self._admin.queries(), "sinks": self._admin.sinks()})

    async def forget_query(self, request: Request) -> Response:
        name = request.path_params["name"]

        def forget() -> dict[str, str]:
            self._admin.forget_query(name)
            return {"done": f"query '{name}' forgotten"}

        return refusal(request, _CHANGES) or await self._durable(forget)

    async def groups(self, request: Request) -> Response:
        found = await in_pieces(self._admin.groups(**_paging(request)))
        return _answer(lambda: found)

    async def group(self, request: Request) -> Response:
        name = request.path_params["name"]
        return _answer(lambda: {"group": name, "topics": self._admin.group(name)})

    async def delete_group(self, request: Request) -> Response:
        name, query = request.path_params["name"], request.query_params

        def delete() -> dict[str, str]:
            count = self._admin.delete_group(name, query.get("topic"), query.get("space", ""))
            return {"done": f"group '{name}' deleted from {count} topics"}

        return refusal(request, _CHANGES) or await self._durable(delete)

    async def reset_group(self, request: Request) -> Response:

        def reset(order: ResetGroup) -> dict[str, Any]:
            queues = self._admin.reset(
                order.group, order.topic, order.space, to=order.to, queue=order.queue
            )
            done = f"group '{order.group}' stands at {order.to} of '{order.topic}'"
            return {"done": done, "queues": queues}

        return await self._change(request, ResetGroup, reset)

    async def set_mode(self, request: Request) -> Response:

        def change(order: SetMode) -> dict[str, str]:
            self._admin.set_mode(
                order.group, order.topic, order.space, mode=order.mode, share=order.share
            )
            return {"done": f"group '{order.group}' reads '{order.topic}' by {order.mode}"}

        return await self._change(request, SetMode, change)

    async def places(self, _request: Request) -> Response:
        """Where others of its clusters are asked for."""
        return _answer(self._admin.places)

    async def _change(
        self, request: Request, kind: type[Body], change: Callable[[Body], Any]
    ) -> Response:
        body = await json_body(request, _CHANGES)
        if isinstance(body, Response):
            return body
        try:
            order = msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            return problem(400, str(error))
        return await self._durable(lambda: change(order))

    async def _durable(self, change: Callable[[], Any]) -> Response:
        """Make a change and answer once the disk has it."""
        answer = _answer(change)
        if answer.status_code != 200:
            return answer
        is_durable = asyncio.Event()
        self._admin.after_durable(is_durable.set)
        try:
            await asyncio.wait_for(is_durable.wait(), DURABLE_SECONDS_MAX)
        except TimeoutError:
            return problem(503, "the change was made, but the disk has not taken it yet")
        return answer


def _paging(request: Request) -> dict[str, Any]:
    query = request.query_params
    offset = query.get("offset", "0")
    return {
        "offset": int(offset) if offset.isdecimal() and len(offset) < 10 else 0,
        "contains": query.get("contains", ""),
        "with_hidden": query.get("hidden", "") in ("1", "true"),
    }


def _answer(make: Callable[[], Any]) -> Response:
    try:
        content = msgspec.json.encode(make())
    except NotFound as error:
        return problem(404, str(error))
    except AlreadyExists as error:
        return problem(409, str(error))
    except PenstockError as error:
        return problem(400, str(error))
    return Response(content, media_type="application/json")


# ---- credit api ---------------------------------------------------------------------------------
# ``/api/flow/credit``: how far each hop may be ahead of the next, seen and changed (F1).
#
# ======  ================  ============================================================
# GET     /api/flow/credit  {"reader_channel": {"credit": 400, "more": 200}, ...}
# PUT     /api/flow/credit  {"hop": "channel_queue", "credit": 800, "more": 400}
# ======  ================  ============================================================
#
# A change holds at once, for what is under way too, and until the next start; like every change
# without a password it is for this machine (``refusal``).


class SetCredit(msgspec.Struct, forbid_unknown_fields=True):
    """A hop and its new figures."""

    hop: str
    credit: int
    more: int


def credit_routes(administration: Administration) -> list[Route]:

    async def show(_request: Request) -> Response:
        return JSONResponse(msgspec.to_builtins(administration.credits()))

    async def change(request: Request) -> Response:
        body = await json_body(request, "credits are changed")
        if isinstance(body, Response):
            return body
        try:
            order = msgspec.json.decode(body, type=SetCredit)
            administration.set_credit(order.hop, order.credit, order.more)
        except (msgspec.DecodeError, SettingsError) as refused:
            return problem(400, str(refused))
        return JSONResponse(msgspec.to_builtins(administration.credits()))

    return [
        Route("/api/flow/credit", show, methods=["GET"]),
        Route("/api/flow/credit", change, methods=["PUT"]),
    ]


# ---- limits api ---------------------------------------------------------------------------------
# ``/api/flow/limits``: what raises the memory and the disk alarm, seen and changed (F3).
#
# ======  ================  ============================================================
# GET     /api/flow/limits  {"memory": {"limit_bytes": 2147483648, ...}, "disk": {...}}
# PUT     /api/flow/limits  {"memory": "2GiB"}, {"disk": "auto"}, or both
# ======  ================  ============================================================
#
# As with credit: at once, until the next start, and for this machine.


class SetLimits(msgspec.Struct, forbid_unknown_fields=True):
    """New limits, as the settings are written; what is not named stays."""

    memory: str | int | None = None
    disk: str | int | None = None


def limit_routes(limits: AlarmLimits) -> list[Route]:

    async def show(_request: Request) -> Response:
        return JSONResponse(msgspec.to_builtins(limits.show()))

    async def change(request: Request) -> Response:
        body = await json_body(request, "alarm limits are changed")
        if isinstance(body, Response):
            return body
        try:
            order = msgspec.json.decode(body, type=SetLimits)
            memory, disk = order.memory, order.disk
            limits.change(
                memory=None if memory is None else str(memory),
                disk=None if disk is None else str(disk),
            )
        except (msgspec.DecodeError, SettingsError) as refused:
            return problem(400, str(refused))
        return JSONResponse(msgspec.to_builtins(limits.show()))

    return [
        Route("/api/flow/limits", show, methods=["GET"]),
        Route("/api/flow/limits", change, methods=["PUT"]),
    ]


# ---- faults api ---------------------------------------------------------------------------------
# ``/api/faults``: GET what is in force, POST an order (D26). Exists only with ``--faults``.
#
# Loopback only, and not for web pages (``refusal``).


_DECODER: Final = msgspec.json.Decoder(FaultOrder)
_FAULTS: Final = "faults are ordered"


def fault_routes(faults: Faults) -> list[Route]:

    async def show(request: Request) -> Response:
        return refusal(request, _FAULTS) or JSONResponse(faults.view())

    async def order(request: Request) -> Response:
        body = await json_body(request, _FAULTS)
        if isinstance(body, Response):
            return body
        try:
            done = faults.order(_DECODER.decode(body))
        except (msgspec.MsgspecError, PenstockError) as error:
            return problem(400, str(error))
        return JSONResponse({"done": done, "faults": faults.view()})

    return [
        Route("/api/faults", show, methods=["GET"]),
        Route("/api/faults", order, methods=["POST"]),
    ]


# ---- loopback -----------------------------------------------------------------------------------
# Who may change something over HTTP without a password: this machine, and no web page on it.
#
# A browser on this machine can reach loopback, too, so a change must be JSON by its content type
# (or carry no body and be a DELETE) and addressed to a loopback name. A page of another origin can
# do neither without asking first, and nobody answers that question.


BODY_BYTES_MAX: Final = 4096


def refusal(request: Request, what: str) -> Response | None:
    """The answer for whoever may not; None for those who may. ``what``: "faults are ordered"."""
    client = request.client.host if request.client is not None else ""
    if not _is_loopback(client):
        return problem(403, f"{what} from this machine only")
    if not _is_loopback(request.url.hostname or ""):
        return problem(403, "address this broker as localhost")
    return None


async def read_body(request: Request, bytes_max: int) -> bytes | None:
    """The body of a request as far as a route takes it; None when it is larger."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > bytes_max:
            return None
    return b"".join(chunks)


async def json_body(request: Request, what: str) -> bytes | Response:
    """The body of a change, or the answer that refuses it."""
    if (refused := refusal(request, what)) is not None:
        return refused
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        return problem(415, "send the order as application/json")
    body = await read_body(request, BODY_BYTES_MAX)
    if body is None:
        return problem(413, f"an order has at most {BODY_BYTES_MAX} bytes")
    return body


def problem(status: int, sentence: str) -> Response:
    """An answer that says what is wrong."""
    return JSONResponse({"error": sentence}, status)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
