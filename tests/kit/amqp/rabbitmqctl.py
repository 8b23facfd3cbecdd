"""A stand-in for ``rabbitmqctl``: the verbs a client's tests use, done to a Penstock.

The script that the tests call (``command``) only carries its arguments over loopback to
``Rabbitmqctl`` in the process that owns the broker: restarting it needs its owner, and a script of
few imports answers in a tenth of a second, where Erlang's takes one.

=======================================  ========================================================
list_connections COLUMN ...              GET /api/connections; ``pid`` is the connection's name
close_connection NAME REASON             DELETE /api/connections/NAME
close_all_connections REASON             the same for each
delete_queue QUEUE                       DELETE /api/queues/%2F/QUEUE
set_policy, clear_policy                 PUT, DELETE /api/policies/%2F/NAME
set_user_tags USER TAG ...               PUT /api/users/USER, password as the name
set_vm_memory_high_watermark FRACTION    ``penstock fault memory`` below one in a thousand
eval rabbit_alarm:set_alarm, clear_...   ``penstock fault memory|disk``, and their end
stop_app, start_app                      the process is ended politely, and started again
=======================================  ========================================================

Everything else, and every node but the first, is refused with code 64 or 69, as the real one does.
"""

import argparse
import base64
import contextlib
import http.client
import json
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

NODE: Final = "rabbit@localhost"
USAGE: Final = 64
UNAVAILABLE: Final = 69
"""Exit codes of the real one."""
SECONDS_MAX: Final = 60.0
WATERMARK_MIN: Final = 0.001
"""A smaller part of the memory is meant to raise the alarm."""
MEMORY_BYTES: Final = 1 << 50
LOGIN: Final = "Basic " + base64.b64encode(b"guest:guest").decode()

_ALARM: Final = re.compile(r"rabbit_alarm:(set|clear)_alarm\(\{+resource_limit, *(memory|disk)\b")


class Refused(Exception):
    """The order cannot be carried out: exit code and sentence."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Owner(Protocol):
    """Who has the broker's process."""

    @property
    def endpoints(self) -> dict[str, str]:
        """Of the broker that runs now."""

    def start(self) -> None:
        """Start the broker, and return once it is ready."""

    def stop(self) -> None:
        """End it politely."""


class Rabbitmqctl:
    """Carries out what the real one would, on the broker of ``owner``."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._alarms: set[str] = set()
        self._verbs: dict[str, Callable[[Sequence[str]], str]] = {
            "list_connections": self._list_connections,
            "close_connection": self._close_connection,
            "close_all_connections": self._close_all_connections,
            "delete_queue": self._delete_queue,
            "set_policy": self._set_policy,
            "clear_policy": self._clear_policy,
            "set_user_tags": self._set_user_tags,
            "set_vm_memory_high_watermark": self._set_watermark,
            "eval": self._eval,
            "stop_app": self._stop_app,
            "start_app": self._start_app,
        }

    def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Exit code and what is printed."""
        rest = list(arguments)
        try:
            if rest[:1] == ["-n"]:
                if rest[1] != NODE:
                    raise Refused(UNAVAILABLE, f"there is no node {rest[1]}, only {NODE}")
                del rest[:2]
            verb = self._verbs.get(rest[0] if rest else "")
            if verb is None:
                raise Refused(USAGE, f"the stand-in has no verb {' '.join(rest[:1])!r}")
            return 0, verb([each for each in rest[1:] if each != "-q"])
        except Refused as why:
            return why.code, f"Error: {why}\n"
        except (OSError, IndexError, ValueError) as problem:
            return UNAVAILABLE, f"Error: {' '.join(rest)}: {problem!r}\n"

    # ---- connections, queues, policies, users

    def _list_connections(self, columns: Sequence[str]) -> str:
        lines = ["\t".join(columns)]
        for each in self._connections():
            told = {**each, "pid": each["name"], "client_properties": _erlang(each)}
            lines.append("\t".join(str(told.get(column, "")) for column in columns))
        return "\n".join(lines) + "\n"

    def _close_connection(self, arguments: Sequence[str]) -> str:
        name, reason = arguments
        self._close(name, reason)
        return ""

    def _close_all_connections(self, arguments: Sequence[str]) -> str:
        for each in self._connections():
            # One that left meanwhile is closed, too.
            with contextlib.suppress(Refused):
                self._close(each["name"], arguments[0])
        return ""

    def _close(self, name: str, reason: str) -> None:
        self._ask(
            "DELETE", f"/api/connections/{quote(name, safe='')}", headers={"X-Reason": reason}
        )

    def _connections(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("GET", "/api/connections")
        return found

    def _delete_queue(self, arguments: Sequence[str]) -> str:
        self._ask("DELETE", f"/api/queues/%2F/{quote(arguments[0], safe='')}")
        return ""

    def _set_policy(self, arguments: Sequence[str]) -> str:
        parser = argparse.ArgumentParser(exit_on_error=False)
        parser.add_argument("--priority", type=int, default=0)
        parser.add_argument("--apply-to", default="all")
        for name in ("name", "pattern", "definition"):
            parser.add_argument(name)
        given = parser.parse_args(list(arguments))
        policy = {
            "pattern": given.pattern,
            "definition": json.loads(given.definition),
            "priority": given.priority,
            "apply-to": given.apply_to,
        }
        self._ask("PUT", f"/api/policies/%2F/{quote(given.name, safe='')}", policy)
        return ""

    def _clear_policy(self, arguments: Sequence[str]) -> str:
        self._ask("DELETE", f"/api/policies/%2F/{quote(arguments[0], safe='')}")
        return ""

    def _set_user_tags(self, arguments: Sequence[str]) -> str:
        name, *tags = arguments
        user = {"password": name, "tags": ",".join(tags)}
        self._ask("PUT", f"/api/users/{quote(name, safe='')}", user)
        return ""

    # ---- alarms

    def _set_watermark(self, arguments: Sequence[str]) -> str:
        self._alarm("memory", is_raised=float(arguments[0]) < WATERMARK_MIN)
        return ""

    def _eval(self, arguments: Sequence[str]) -> str:
        found = _ALARM.match(arguments[0])
        if found is None:
            raise Refused(USAGE, f"the stand-in speaks no Erlang but alarms: {arguments[0]}")
        self._alarm(found[2], is_raised=found[1] == "set")
        return "ok\n"

    def _alarm(self, which: str, *, is_raised: bool) -> None:
        if is_raised:
            self._alarms.add(which)
            self._fault(which)
        elif which in self._alarms:
            self._alarms.discard(which)
            # There is one end for all faults, so that of the other alarm begins again.
            self._ask("POST", "/api/faults", {"fault": "clear"})
            for other in self._alarms:
                self._fault(other)

    def _fault(self, which: str) -> None:
        size = MEMORY_BYTES if which == "memory" else 0
        self._ask("POST", "/api/faults", {"fault": which, "bytes": size})

    # ---- the process

    def _stop_app(self, _arguments: Sequence[str]) -> str:
        self._owner.stop()
        self._alarms.clear()
        return ""

    def _start_app(self, _arguments: Sequence[str]) -> str:
        self._owner.start()
        return ""

    def _ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Any:
        where = http.client.HTTPConnection(self._owner.endpoints["http"], timeout=SECONDS_MAX)
        with contextlib.closing(where):
            content = None if body is None else json.dumps(body)
            sent = {"Authorization": LOGIN, "Content-Type": "application/json", **(headers or {})}
            where.request(method, path, content, sent)
            answer = where.getresponse()
            text = answer.read().decode()
        if answer.status >= 400:
            raise Refused(UNAVAILABLE, f"{method} {path}: {answer.status} {text}")
        return json.loads(text) if text else None


def _erlang(connection: dict[str, Any]) -> str:
    """The client's properties as Erlang prints a list of pairs; tables inside are left out."""
    given = connection.get("client_properties") or {}
    pairs = [
        f"{{{json.dumps(key)},{json.dumps(value)}}}"
        for key, value in given.items()
        if not isinstance(value, dict | list)
    ]
    return f"[{','.join(pairs)}]"


# ---- the script ---------------------------------------------------------------------------------


@contextlib.contextmanager
def stand_in(owner: Owner, scratch: Path) -> Iterator[Path]:
    """A program to call as ``rabbitmqctl``, for as long as the block lasts."""
    control = Rabbitmqctl(owner)
    # Orders of two tests at once would raise alarms the other ends.
    turn = threading.Lock()

    class Orders(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with turn:
                code, text = control.run(arguments)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps([code, text]).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Orders)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    program = scratch / "rabbitmqctl"
    call = shlex.join((sys.executable, "-S", "-E", __file__, str(server.server_address[1])))
    program.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
    program.chmod(0o755)
    try:
        yield program
    finally:
        server.shutdown()
        server.server_close()


def command(port: int, arguments: Sequence[str]) -> int:
    """What the program does: hand the arguments over, print what comes back."""
    where = http.client.HTTPConnection("127.0.0.1", port, timeout=2 * SECONDS_MAX)
    where.request("POST", "/", json.dumps(list(arguments)))
    code, text = json.loads(where.getresponse().read())
    (sys.stderr if code else sys.stdout).write(text)
    return int(code)


if __name__ == "__main__":
    sys.exit(command(int(sys.argv[1]), sys.argv[2:]))
