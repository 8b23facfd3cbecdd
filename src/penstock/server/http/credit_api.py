"""``/api/flow/credit``: how far each hop may be ahead of the next, seen and changed (F1).

======  ================  ============================================================
GET     /api/flow/credit  {"reader_channel": {"credit": 400, "more": 200}, ...}
PUT     /api/flow/credit  {"hop": "channel_queue", "credit": 800, "more": 400}
======  ================  ============================================================

A change holds at once, for what is under way too, and until the next start; like every change
without a password it is for this machine (``loopback.py``).
"""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.model.errors import SettingsError
from penstock.server.administration import Administration
from penstock.server.http.loopback import json_body, problem


class SetCredit(msgspec.Struct, forbid_unknown_fields=True):
    """A hop and its new figures."""

    hop: str
    credit: int
    more: int


def credit_routes(administration: Administration) -> list[Route]:
    """What it answers to."""

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
