"""Who may change something over HTTP without a password: this machine, and no web page on it.

A browser on this machine can reach loopback, too, so a change must be JSON by its content type (or
carry no body and be a DELETE) and addressed to a loopback name. A page of another origin can do
neither without asking first, and nobody answers that question.
"""

import ipaddress
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

BODY_BYTES_MAX: Final = 4096


def refusal(request: Request, what: str) -> Response | None:
    """The answer for whoever may not; None for those who may. ``what``: "faults are ordered"."""
    client = request.client.host if request.client is not None else ""
    if not _is_loopback(client):
        return problem(403, f"{what} from this machine only")
    if not _is_loopback(request.url.hostname or ""):
        return problem(403, "address this broker as localhost")
    return None


async def json_body(request: Request, what: str) -> bytes | Response:
    """The body of a change, or the answer that refuses it."""
    if (refused := refusal(request, what)) is not None:
        return refused
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        return problem(415, "send the order as application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
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
