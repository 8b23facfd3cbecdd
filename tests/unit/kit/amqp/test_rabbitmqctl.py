"""The stand-in for ``rabbitmqctl``: what its verbs become, and what it refuses."""

import contextlib
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kit.amqp.rabbitmqctl import NODE, UNAVAILABLE, USAGE, Rabbitmqctl, stand_in

CONNECTIONS = [
    {
        "name": "127.0.0.1:4711 -> 127.0.0.1:5672",
        "peer_port": 4711,
        "client_properties": {"capabilities": {"a": True}, "connection_name": "abc-1"},
    },
    {"name": "127.0.0.1:4712 -> 127.0.0.1:5672", "peer_port": 4712, "client_properties": {}},
]


class Api:
    """A broker's HTTP port that notes what it is asked, and its owner."""

    def __init__(self):
        self.asked = []
        self.status = 200
        self.restarts = []
        self.endpoints = {}

    def start(self):
        self.restarts.append("start")

    def stop(self):
        self.restarts.append("stop")


@pytest.fixture
def api():
    told = Api()

    class Answers(BaseHTTPRequestHandler):
        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            order = json.loads(body) if body else self.headers.get("X-Reason")
            told.asked.append((self.command, self.path, order))
            self.send_response(told.status)
            self.end_headers()
            listed = CONNECTIONS if self.path == "/api/connections" else {"error": "why"}
            self.wfile.write(json.dumps(listed).encode())

        def do_GET(self):
            self.answer()

        def do_PUT(self):
            self.answer()

        def do_POST(self):
            self.answer()

        def do_DELETE(self):
            self.answer()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        told.endpoints = {"http": f"127.0.0.1:{server.server_address[1]}"}
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with contextlib.ExitStack() as stack:
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            yield told


def test_connections_are_listed_in_the_columns_asked_for(api):
    columns = ("pid", "peer_port", "client_properties")
    code, said = Rabbitmqctl(api).run(("-n", NODE, "list_connections", "-q", *columns))
    assert code == 0
    assert said.splitlines() == [
        "pid\tpeer_port\tclient_properties",
        '127.0.0.1:4711 -> 127.0.0.1:5672\t4711\t[{"connection_name","abc-1"}]',
        "127.0.0.1:4712 -> 127.0.0.1:5672\t4712\t[]",
    ]


def test_all_connections_are_closed_with_the_reason(api):
    assert Rabbitmqctl(api).run(("close_all_connections", "over")) == (0, "")
    assert api.asked[1:] == [
        ("DELETE", "/api/connections/127.0.0.1%3A4711%20-%3E%20127.0.0.1%3A5672", "over"),
        ("DELETE", "/api/connections/127.0.0.1%3A4712%20-%3E%20127.0.0.1%3A5672", "over"),
    ]


POLICY = {"pattern": "^q", "definition": {"max-length": 1}, "priority": 1, "apply-to": "all"}


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("delete_queue", "a/b"), ("DELETE", "/api/queues/%2F/a%2Fb", None)),
        (
            ("set_policy", "--priority", "1", "p", "^q", '{"max-length":1}'),
            ("PUT", "/api/policies/%2F/p", POLICY),
        ),
        (("clear_policy", "p"), ("DELETE", "/api/policies/%2F/p", None)),
        (
            ("set_user_tags", "guest", "administrator", "impersonator"),
            (
                "PUT",
                "/api/users/guest",
                {"password": "guest", "tags": "administrator,impersonator"},
            ),
        ),
    ],
)
def test_a_verb_is_one_request(api, arguments, asked):
    assert Rabbitmqctl(api).run(("-n", NODE, *arguments)) == (0, "")
    assert api.asked == [asked]


def test_an_alarm_ends_alone(api):
    control = Rabbitmqctl(api)
    control.run(("set_vm_memory_high_watermark", "0.000000001"))
    control.run(("eval", "rabbit_alarm:set_alarm({{resource_limit, disk, node()}, []})."))
    control.run(("set_vm_memory_high_watermark", "0.4"))
    control.run(("eval", "rabbit_alarm:clear_alarm({resource_limit, memory, node()})."))
    assert [order["fault"] for _, _, order in api.asked] == ["memory", "disk", "clear", "disk"]


def test_a_restart_is_asked_of_the_owner(api):
    control = Rabbitmqctl(api)
    assert [control.run((verb,))[0] for verb in ("stop_app", "start_app")] == [0, 0]
    assert api.restarts == ["stop", "start"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-n", "hare@localhost", "stop_app"), UNAVAILABLE),
        (("cluster_status",), USAGE),
        (("eval", "rabbit:status()."), USAGE),
        (("close_connection", "one"), UNAVAILABLE),
        ((), USAGE),
    ],
)
def test_what_it_cannot_do_is_an_error(api, arguments, code):
    found, said = Rabbitmqctl(api).run(arguments)
    assert found == code
    assert said.startswith("Error: ")
    assert api.asked == []


def test_a_refusal_of_the_broker_is_an_error_that_says_it(api):
    api.status = 404
    code, said = Rabbitmqctl(api).run(("delete_queue", "q"))
    assert (code, said) == (UNAVAILABLE, 'Error: DELETE /api/queues/%2F/q: 404 {"error": "why"}\n')


def test_the_program_carries_arguments_and_answers(api, tmp_path):
    with stand_in(api, tmp_path) as program:
        good = subprocess.run((program, "-n", NODE, "delete_queue", "a b"), check=False)
        bad = subprocess.run((program, "status"), check=False, capture_output=True, text=True)
    assert (good.returncode, api.asked) == (0, [("DELETE", "/api/queues/%2F/a%20b", None)])
    assert (bad.returncode, bad.stderr) == (USAGE, "Error: the stand-in has no verb 'status'\n")
