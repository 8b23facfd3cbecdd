"""What raises the alarms, over HTTP, for this machine only."""

import asyncio
import json
import logging

import pytest
from starlette.applications import Starlette

from kit.workbench import Workbench
from penstock.server.http.app import limit_routes
from penstock.server.probes import AlarmLimits, Probes

GIB = 1 << 30


class Loop:
    """Looks come only when they are asked for."""

    def call_later(self, _seconds, _callback):
        return self

    def cancel(self):
        pass


class Scene:
    def __init__(self):
        self.bench = Workbench()
        self.probes = Probes(
            self.bench.engine,
            Loop(),
            rss_bytes=lambda: GIB,
            free_bytes=lambda: 10 * GIB,
            written=lambda: 0,
            memory_limit=4 * GIB,
            disk_limit=GIB,
            check_ms=500,
            looked=lambda: None,
        )
        self.probes.set_limits(4 * GIB, GIB)
        alarms = self.bench.engine.alarms
        self.limits = AlarmLimits(self.probes, alarms, lambda: (8 * GIB, 100 * GIB))

    def call(self, method, order=None, *, client="127.0.0.1", kind=b"application/json"):
        sent = []

        async def receive():
            body = b"" if order is None else json.dumps(order).encode()
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "method": method, "path": "/api/flow/limits", "query_string": b"",
            "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 1),
            "client": (client, 2), "headers": [(b"host", b"localhost"), (b"content-type", kind)],
        }  # fmt: skip
        asyncio.run(Starlette(routes=limit_routes(self.limits))(scope, receive, send))
        return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.fixture
def scene():
    return Scene()


def test_limits_are_shown_with_what_they_are_compared_with(scene):
    status, told = scene.call("GET")
    assert status == 200
    assert told["memory"] == {
        "limit_bytes": 4 * GIB, "now_bytes": GIB, "total_bytes": 8 * GIB, "is_raised": False,
        "setting": "flow.memory_limit",
    }  # fmt: skip
    assert told["disk"]["now_bytes"] == 10 * GIB
    assert told["disk"]["limit_bytes"] == GIB


def test_a_change_is_in_effect_at_once_is_told_and_leaves_the_other_alone(scene, caplog):
    caplog.set_level(logging.INFO)
    alarms = scene.bench.engine.alarms
    status, told = scene.call("PUT", {"memory": "512MiB"})
    assert status == 200
    assert told["memory"]["is_raised"]
    assert alarms.memory.is_raised
    assert told["disk"]["limit_bytes"] == GIB
    assert [each.to_bytes for each in caplog.records if hasattr(each, "to_bytes")] == [GIB // 2]
    assert not scene.call("PUT", {"memory": "50%", "disk": "auto"})[1]["memory"]["is_raised"]
    assert not alarms.memory.is_raised
    assert scene.probes.memory_limit == 4 * GIB


def test_less_free_disk_than_the_new_limit_raises_its_alarm(scene):
    assert scene.call("PUT", {"disk": 20 * GIB})[1]["disk"]["is_raised"]
    assert scene.bench.engine.alarms.disk.is_raised


def test_a_limit_of_nothing_stops_publishers_until_there_is_another(scene):
    assert scene.call("PUT", {"memory": 0})[1]["memory"]["is_raised"]
    assert not scene.call("PUT", {"memory": "0.9"})[1]["memory"]["is_raised"]


@pytest.mark.parametrize(
    "order",
    [
        {},
        {"memory": "9GiB"},
        {"memory": "1.5"},
        {"memory": "auto"},
        {"memory": "-1"},
        {"memory": -1},
        {"disk": "200GiB"},
        {"disk": "much"},
        {"swap": "1GiB"},
        {"memory": ["1GiB"]},
        {"memory": "2GiB", "disk": "200GiB"},
    ],
)
def test_a_senseless_order_is_answered_with_a_sentence_and_changes_nothing(scene, order):
    status, told = scene.call("PUT", order)
    assert status == 400
    assert told["error"]
    assert (scene.probes.memory_limit, scene.probes.disk_limit) == (4 * GIB, GIB)


def test_changes_are_for_this_machine_and_not_for_web_pages(scene):
    assert scene.call("PUT", {"memory": "1GiB"}, client="192.0.2.1")[0] == 403
    assert scene.call("PUT", {"memory": "1GiB"}, kind=b"text/plain")[0] == 415
    assert scene.probes.memory_limit == 4 * GIB
