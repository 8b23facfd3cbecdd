"""``/api/faults``: GET what is in force, POST an order (D26). Exists only with ``--faults``.

Loopback only, and not for web pages: a browser on this machine can reach loopback, too, so the
order must be JSON by its content type and addressed to a loopback name. A page of another origin
can do neither without asking first, and nobody answers that question.
"""

import ipaddress
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.model.errors import PenstockError
from penstock.server.faults import FaultOrder, Faults

ORDER_BYTES_MAX: Final = 4096
_DECODER: Final = msgspec.json.Decoder(FaultOrder)


def fault_routes(faults: Faults) -> list[Route]:
    """The routes of one broker."""

    async def show(request: Request) -> Response:
        return _refusal(request) or JSONResponse(faults.view())

    async def order(request: Request) -> Response:
        if (refusal := _refusal(request)) is not None:
            return refusal
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _error(415, "send the order as application/json")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > ORDER_BYTES_MAX:
                return _error(413, f"an order has at most {ORDER_BYTES_MAX} bytes")
        try:
            done = faults.order(_DECODER.decode(body))
        except (msgspec.MsgspecError, PenstockError) as error:
            return _error(400, str(error))
        return JSONResponse({"done": done, "faults": faults.view()})

    return [
        Route("/api/faults", show, methods=["GET"]),
        Route("/api/faults", order, methods=["POST"]),
    ]


def _refusal(request: Request) -> Response | None:
    client = request.client.host if request.client is not None else ""
    if not _is_loopback(client):
        return _error(403, "faults are ordered from this machine only")
    if not _is_loopback(request.url.hostname or ""):
        return _error(403, "address this broker as localhost")
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _error(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status)
