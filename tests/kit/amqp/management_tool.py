"""Somebody with a password who calls the management API as ASGI, without a socket.

The engine is a bench in the test's hands: whenever a handler asks for a turn, it comes to rest.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette

from kit.amqp.peer import AmqpBench
from penstock.server.management.api import ManagementApi

Answer = tuple[int, Any]
"""Status, and what the JSON says."""


class ManagementTool:
    """Asks one broker."""

    def __init__(self, bench: AmqpBench, login: str = "guest:guest") -> None:
        self.login = login
        self.headers: dict[str, str] = {}
        """Of the last answer."""
        api = ManagementApi(bench.broker, bench.settle, {"amqp": "127.0.0.1:5672"})
        self._app = Starlette(routes=api.routes())

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        client: str = "127.0.0.1",
        host: str = "localhost",
        **headers: str,
    ) -> Answer:
        """One request; a body that is bytes is sent as it is."""
        raw = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        pairs = [(b"host", host.encode())]
        if self.login:
            pairs.append((b"authorization", b"Basic " + b64encode(self.login.encode())))
        pairs += [
            (name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()
        ]
        place, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(place),
            "raw_path": place.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "server": ("127.0.0.1", 1),
            "client": (client, 2),
            "headers": pairs,
        }
        return asyncio.run(self._ask(scope, raw))

    def get(self, path: str) -> Any:
        """What a path shows; it must."""
        status, found = self("GET", path)
        assert status == 200, found
        return found

    async def _ask(self, scope: dict[str, Any], raw: bytes) -> Answer:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        self.headers = {name.decode(): text.decode() for name, text in sent[0]["headers"]}
        text = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(text) if text else None


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()
