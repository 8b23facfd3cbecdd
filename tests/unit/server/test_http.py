"""HTTP: routes called as ASGI, and the guarded protocol over a real loopback socket."""

import asyncio
import contextlib
import json

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock.server.faults import Faults
from penstock.server.http.app import make_app, read_body
from penstock.server.http.server import HttpServer
from penstock.server.listener import MADE_ROOM, ConnectionLimit, Listener, open_sockets
from penstock.server.view import Readiness


class FakeBroker:
    def __init__(self):
        self.state = Readiness(True, "running")

    def readiness(self):
        return self.state

    async def flow_page(self):
        return b'{"stages":[]}'

    async def metrics_page(self, *, is_all=False):
        return [b"penstock_up 1\n", b"penstock_all 1\n" if is_all else b""]

    async def rabbitmq_metrics_page(self):
        return b"rabbitmq_queues 1\n"


@pytest.fixture
def broker():
    return FakeBroker()


def call(
    app, path, *, method="GET", body=b"", query=b"", client="127.0.0.1", host=b"localhost",
    headers=(),
):  # fmt: skip
    """One request, straight into the application."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "server": ("127.0.0.1", 1),
        "client": (client, 2),
        "headers": [(b"host", host), *headers],
    }
    asyncio.run(app(scope, receive, send))
    text = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], text


JSON = ((b"content-type", b"application/json"),)


def order(app, content, *, headers=JSON, **more):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return call(app, "/api/faults", method="POST", body=body, headers=headers, **more)


def test_every_route_has_its_own_bound_of_a_body(broker):

    def route(path, bytes_max):
        async def answer(request):
            body = await read_body(request, bytes_max)
            return PlainTextResponse("too large" if body is None else f"{len(body)} bytes")

        return Route(path, answer, methods=["POST"])

    app = make_app(broker, routes=[route("/small", 10), route("/large", 10_000)])
    body = bytes(5_000)
    assert call(app, "/small", method="POST", body=body) == (200, b"too large")
    assert call(app, "/large", method="POST", body=body) == (200, b"5000 bytes")


def test_a_broker_that_answers_lives(broker):
    assert call(make_app(broker), "/livez") == (200, b"ok\n")


def test_ready_and_not_ready(broker):
    app = make_app(broker)
    assert call(app, "/readyz")[0] == 200
    broker.state = Readiness(False, "stopping")
    status, text = call(app, "/readyz")
    assert (status, json.loads(text)["state"]) == (503, "stopping")


def test_flow_and_metrics_are_served(broker):
    app = make_app(broker)
    assert json.loads(call(app, "/api/flow")[1]) == {"stages": []}
    assert call(app, "/metrics") == (200, b"penstock_up 1\n")
    whole = b"penstock_up 1\npenstock_all 1\n"
    assert call(app, "/metrics", query=b"all") == (200, whole)
    assert call(app, "/metrics", query=b"compat=rabbitmq") == (200, b"rabbitmq_queues 1\n")


def test_an_unknown_path_says_which_there_are(broker):
    status, text = call(make_app(broker), "/flow")
    assert status == 404
    assert "/api/flow" in json.loads(text)["try"]


def test_without_the_switch_there_are_no_faults(broker):
    assert order(make_app(broker), {"fault": "clear"})[0] == 404


def test_a_fault_is_ordered_and_shown(broker):
    app = make_app(broker, Faults())
    status, text = order(app, {"fault": "sync-delay", "ms": 20})
    assert (status, json.loads(text)["faults"]["sync_delay_ms"]) == (200, 20)
    assert json.loads(call(app, "/api/faults")[1])["sync_delay_ms"] == 20


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ({"fault": "unplug"}, 400),
        ({"fault": "store-hold", "ms": "long"}, 400),
        ({"fault": "clear", "colour": "red"}, 400),
        (b"{", 400),
        (b" " * 5000, 413),
    ],
)
def test_a_bad_order_is_answered_with_a_sentence(broker, content, status):
    answer, text = order(make_app(broker, Faults()), content)
    assert answer == status
    assert json.loads(text)["error"]


def test_faults_are_for_this_machine_and_not_for_web_pages(broker):
    app = make_app(broker, Faults())
    content = {"fault": "clear"}
    assert order(app, content, client="192.0.2.1")[0] == 403
    assert order(app, content, headers=())[0] == 415
    assert order(app, content, host=b"evil.example")[0] == 403
    assert order(app, content, host=b"[::1]:15672")[0] == 200


@contextlib.contextmanager
def serving(broker, limit, request_ms_max=10_000):
    loop = asyncio.get_running_loop()
    server = HttpServer(make_app(broker), loop=loop, request_ms_max=request_ms_max)
    sockets = open_sockets("http", ("127.0.0.1",), 0)
    listener = Listener("http", sockets, limit, server.protocol, loop=loop)
    listener.start()
    try:
        yield sockets[0].getsockname()[1], server
    finally:
        listener.stop()
        server.stop()


async def get(port, request=b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


def test_a_request_over_a_socket_is_answered(broker):
    async def scene():
        with serving(broker, ConnectionLimit(4, per_address_max=4)) as (port, _):
            return await get(port)

    answer = asyncio.run(scene())
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"ok\n")


def test_a_slow_writer_loses_its_place(broker):
    async def scene():
        limit = ConnectionLimit(1, per_address_max=1)
        with serving(broker, limit, request_ms_max=50) as (port, _):
            slow = await get(port, b"GET /livez HT")
            while limit.taken:
                await asyncio.sleep(0)
            return slow, await get(port)

    slow, quick = asyncio.run(scene())
    assert slow == b""
    assert quick.startswith(b"HTTP/1.1 200")


METRICS = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def test_the_oldest_idle_connection_gives_its_place_to_a_new_one(broker):
    async def scene():
        limit = ConnectionLimit(2, per_address_max=2)
        with serving(broker, limit) as (port, _):
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            answer = await get(port, METRICS)
            first = await asyncio.wait_for(idle[0][0].read(), 10)
            for _, writer in idle:
                writer.close()
            return answer[:12], first, limit.refused[MADE_ROOM]

    assert asyncio.run(scene()) == (b"HTTP/1.1 200", b"", 1)


def test_while_all_are_busy_health_is_answered_and_the_rest_told_to_come_again(broker):
    async def scene():
        limit = ConnectionLimit(1, per_address_max=1, health_max=2)
        with serving(broker, limit) as (port, _):
            limit.acquire("127.0.0.1").busy()
            return await get(port), await get(port, METRICS)

    health, metrics = asyncio.run(scene())
    assert health.startswith(b"HTTP/1.1 200")
    assert metrics.startswith(b"HTTP/1.1 503")
    assert b"listeners.http_connections_max" in metrics


def test_without_a_name_there_is_health_and_nothing_else(broker):
    async def scene():
        with serving(broker, ConnectionLimit(4, per_address_max=4)) as (port, _):
            return [
                (await get(port, b"GET %s HTTP/1.0\r\n\r\n" % path))[:12]
                for path in (b"/livez", b"/readyz", b"/metrics", b"/api/flow")
            ]

    assert asyncio.run(scene()) == [b"HTTP/1.1 200"] * 2 + [b"HTTP/1.1 403"] * 2


def test_nonsense_is_answered_with_400_and_harms_nobody(broker):
    async def scene():
        with serving(broker, ConnectionLimit(4, per_address_max=4)) as (port, _):
            return await get(port, b"\x00\x01\x02 nonsense\r\n\r\n"), await get(port)

    nonsense, good = asyncio.run(scene())
    assert nonsense.startswith(b"HTTP/1.1 400")
    assert good.startswith(b"HTTP/1.1 200")
