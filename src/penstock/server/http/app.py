"""Routes of the HTTP port: one short function per path, JSON unless a standard says otherwise.

=============  ======================================================================
/livez         200 as long as the process answers at all
/readyz        200 while the broker takes work, 503 with the reason otherwise
/metrics       Prometheus text; with ``?compat=rabbitmq`` under RabbitMQ's names
/api/flow      who is slow, who waits for whom, and why (flow-control.md section 3); credits of
               the hops are seen and changed at /api/flow/credit (``credit_api.py``)
/api/queries   Spark queries: where each stands, how far behind, what is kept for it
/api/topics    topics and groups, to see and to change (``admin.py``); /api/groups as well
/api/faults    only with ``--faults`` (``faults_api.py``)
/api/...       RabbitMQ's management API, with a password (``management/``)
=============  ======================================================================

Without credentials these are for loopback (D21). Handlers run on the broker's own loop between two
turns: none of them waits, and each is bounded whatever the number of connections and topics.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.server.administration import Administration
from penstock.server.faults import Faults
from penstock.server.http.admin import AdminApi
from penstock.server.http.credit_api import credit_routes
from penstock.server.http.faults_api import fault_routes
from penstock.server.readiness import Readiness

RABBITMQ: Final = "rabbitmq"
_ENCODER = msgspec.json.Encoder()


class Observed(Protocol):
    """What HTTP shows of a broker."""

    def readiness(self) -> Readiness:
        """Whether it takes work."""
        ...

    def flow_page(self) -> dict[str, Any]:
        """The flow map."""
        ...

    async def metrics_page(self) -> bytes:
        """All metrics as Prometheus text."""
        ...

    def rabbitmq_metrics_page(self) -> bytes:
        """The few that dashboards made for RabbitMQ need, under its names."""
        ...


class Json(Response):
    """A JSON answer; msgspec is ten times as quick as the standard library here."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode."""
        return _ENCODER.encode(content)


def make_app(
    broker: Observed,
    faults: Faults | None = None,
    administration: Administration | None = None,
    management: Sequence[Route] = (),
) -> Starlette:
    """The application for one broker."""

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        readiness = broker.readiness()
        return Json(msgspec.to_builtins(readiness), 200 if readiness.is_ready else 503)

    async def metrics(request: Request) -> Response:
        if request.query_params.get("compat") == RABBITMQ:
            page = broker.rabbitmq_metrics_page()
        else:
            page = await broker.metrics_page()
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def flow(_request: Request) -> Response:
        return Json(broker.flow_page())

    routes = [
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/api/flow", flow),
    ]
    if administration is not None:
        routes += AdminApi(administration).routes()
        routes += credit_routes(administration)
    if faults is not None:
        routes += fault_routes(faults)
    routes += management
    return Starlette(routes=routes, exception_handlers={404: _not_found})


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
