"""``/api/faults``: GET what is in force, POST an order (D26). Exists only with ``--faults``.

Loopback only, and not for web pages (``loopback.py``).
"""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.model.errors import PenstockError
from penstock.server.faults import FaultOrder, Faults
from penstock.server.http.loopback import json_body, problem, refusal

_DECODER: Final = msgspec.json.Decoder(FaultOrder)
_WHAT: Final = "faults are ordered"


def fault_routes(faults: Faults) -> list[Route]:
    """The routes of one broker."""

    async def show(request: Request) -> Response:
        return refusal(request, _WHAT) or JSONResponse(faults.view())

    async def order(request: Request) -> Response:
        body = await json_body(request, _WHAT)
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
