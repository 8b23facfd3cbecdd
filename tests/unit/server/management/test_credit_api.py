"""Credits of the hops over HTTP, for this machine only."""

import asyncio
import json

import pytest
from starlette.applications import Starlette

from kit.workbench import Workbench
from penstock.server.admin import Administration
from penstock.server.http.app import credit_routes


@pytest.fixture
def bench():
    return Workbench()


def call(bench, method, order=None, *, client="127.0.0.1", kind=b"application/json"):
    administration = Administration(bench.engine, bench.clock, bench.turns)
    app = Starlette(routes=credit_routes(administration))
    sent = []

    async def receive():
        body = b"" if order is None else json.dumps(order).encode()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": "/api/flow/credit", "query_string": b"",
        "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 1),
        "client": (client, 2), "headers": [(b"host", b"localhost"), (b"content-type", kind)],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_credits_are_shown_and_changed(bench):
    flow = bench.settings.flow
    given = {"credit": flow.reader_channel_credit, "more": flow.reader_channel_more}
    assert call(bench, "GET")[1]["reader_channel"] == given
    order = {"hop": "reader_channel", "credit": 50, "more": 25}
    assert call(bench, "PUT", order)[0] == 200
    assert call(bench, "GET")[1]["reader_channel"] == {"credit": 50, "more": 25}
    assert bench.channel().credit.initial == 50


@pytest.mark.parametrize(
    "order",
    [
        {"hop": "none", "credit": 1, "more": 1},
        {"hop": "queue_log", "credit": 1, "more": 2},
        {"hop": "queue_log", "credit": "much", "more": 2},
        {"hop": "queue_log"},
    ],
)
def test_a_senseless_order_is_answered_with_a_sentence(bench, order):
    status, told = call(bench, "PUT", order)
    assert status == 400
    assert told["error"]


def test_changes_are_for_this_machine_and_not_for_web_pages(bench):
    order = {"hop": "reader_channel", "credit": 50, "more": 25}
    assert call(bench, "PUT", order, client="192.0.2.1")[0] == 403
    assert call(bench, "PUT", order, kind=b"text/plain")[0] == 415
    unchanged = bench.settings.flow.reader_channel_credit
    assert bench.engine.credits()["reader_channel"].credit == unchanged
