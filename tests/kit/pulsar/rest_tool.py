"""Somebody who calls Pulsar's REST API as ASGI, without a socket.

The engine is a bench in the test's hands: whenever a handler asks for a turn, it comes to rest.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from starlette.applications import Starlette

from kit.pulsar.bench import PulsarBench
from penstock.server.pulsar_rest.api import PulsarRestApi

HTTP: Final = "127.0.0.1:8080"


class RestAnswer(NamedTuple):
    """What came back."""

    status: int
    body: bytes
    headers: dict[str, str]
    pieces: int
    """In how many it came."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        found: str = self.json["reason"]
        return found


class RestTool:
    """Asks one broker; paths are below ``/admin/v2`` unless they begin with a slash."""

    def __init__(self, bench: PulsarBench) -> None:
        self.bench: Final = bench

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        client: str = "127.0.0.1",
        host: str = "localhost",
        **headers: str,
    ) -> RestAnswer:
        """One request; a body that is bytes is sent as it is."""
        raw = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        place, _, query = path.partition("?")
        place = place if place.startswith("/") else f"/admin/v2/{place}"
        pairs = [(b"host", host.encode())]
        pairs += [(name.replace("_", "-").encode(), text.encode())
                  for name, text in headers.items()]  # fmt: skip
        scope = {
            "type": "http",
            "asgi": {"spec_version": "2.4"},
            "method": method,
            "path": unquote(place),
            "raw_path": place.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "server": ("127.0.0.1", 8080),
            "client": (client, 2),
            "headers": pairs,
        }
        return asyncio.run(self._ask(scope, raw))

    def get(self, path: str) -> Any:
        """What a path shows; it must."""
        found = self("GET", path)
        assert found.status == 200, found
        return found.json

    def done(self, method: str, path: str, body: Any = None) -> None:
        """A change that is made without another word."""
        found = self(method, path, body)
        assert (found.status, found.body) == (204, b""), found

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and reason of what is not done."""
        found = self(method, path, body)
        assert found.status >= 400, found
        return found.status, found.reason

    async def _ask(self, scope: dict[str, Any], raw: bytes) -> RestAnswer:
        endpoints = {"pulsar": "127.0.0.1:6650", "http": HTTP}
        # Made anew for each: the broker is another one after a restart.
        api = PulsarRestApi(self.bench.broker, self.bench.settle, endpoints)
        app = Starlette(routes=api.routes())
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        pieces = [message["body"] for message in sent[1:] if message.get("body")]
        return RestAnswer(
            sent[0]["status"],
            b"".join(pieces),
            {name.decode(): text.decode("latin-1") for name, text in sent[0]["headers"]},
            len(pieces),
        )


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()
