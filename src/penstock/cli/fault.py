"""``penstock fault``: make a mechanism of a running broker act, on purpose (D26).

The broker must have been started with ``--faults``. Each verb is one order posted to
``/api/faults``; ``penstock fault clear`` ends them all. Exit code 1 with a sentence when there is
no such broker, or it refuses.
"""

import http.client
import json
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.model.errors import PenstockError, SettingsError

ANSWER_SECONDS_MAX: Final = 10.0

Data = Annotated[Path, typer.Option("--data", help="Data directory of the broker.")]
Endpoint = Annotated[
    str, typer.Option("--endpoint", help="host:port of its HTTP port; default: from --data.")
]
Ms = Annotated[int, typer.Option("--ms", help="Milliseconds.", min=0)]
HERE: Final = Path("./penstock-data")


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    verbs = typer.Typer(help="Make a running broker's disk, memory or queues misbehave on purpose.")
    verbs.command("store-hold")(store_hold)
    verbs.command("sync-delay")(sync_delay)
    verbs.command("write-error")(write_error)
    verbs.command("queue-delay")(queue_delay)
    verbs.command("memory")(memory)
    verbs.command("disk")(disk)
    verbs.command("clear")(clear)
    app.add_typer(verbs, name="fault")


def store_hold(ms: Ms, data: Data = HERE, endpoint: Endpoint = "") -> None:
    """Let no sync return for a while: confirms wait, sends are refused as busy (F5, F6)."""
    _order({"fault": "store-hold", "ms": ms}, data, endpoint)


def sync_delay(ms: Ms, data: Data = HERE, endpoint: Endpoint = "") -> None:
    """Make every sync slower, until cleared."""
    _order({"fault": "sync-delay", "ms": ms}, data, endpoint)


def write_error(
    count: Annotated[int, typer.Option("--count", help="How many writes fail.", min=0)] = 1,
    error: Annotated[str, typer.Option("--error", help="enospc or eio.")] = "enospc",
    data: Data = HERE,
    endpoint: Endpoint = "",
) -> None:
    """Let the next writes to the log fail: those publishes are refused, nothing is lost."""
    _order({"fault": "write-error", "count": count, "error": error}, data, endpoint)


def queue_delay(
    topic: Annotated[str, typer.Option("--topic", help="Topic whose queues stand still.")],
    ms: Ms,
    data: Data = HERE,
    endpoint: Endpoint = "",
) -> None:
    """Let the queues of one topic take nothing in: only its publishers wait (F1)."""
    _order({"fault": "queue-delay", "topic": topic, "ms": ms}, data, endpoint)


def memory(
    used: Annotated[int, typer.Option("--bytes", help="Resident memory to pretend.", min=0)],
    data: Data = HERE,
    endpoint: Endpoint = "",
) -> None:
    """Pretend that so much memory is used (F3)."""
    _order({"fault": "memory", "bytes": used}, data, endpoint)


def disk(
    free: Annotated[int, typer.Option("--bytes", help="Free disk to pretend.", min=0)],
    data: Data = HERE,
    endpoint: Endpoint = "",
) -> None:
    """Pretend that only so much disk is free (F3)."""
    _order({"fault": "disk", "bytes": free}, data, endpoint)


def clear(data: Data = HERE, endpoint: Endpoint = "") -> None:
    """End all faults."""
    _order({"fault": "clear"}, data, endpoint)


def _order(order: dict[str, object], data: Path, endpoint: str) -> None:
    if not endpoint:
        from penstock.server.ready_file import find_ready

        endpoint = find_ready(data).endpoints.get("http", "")
        if not endpoint:
            raise PenstockError(f"the broker on {data} has no HTTP port; start it with --http")
    host, _, port = endpoint.removeprefix("http://").rstrip("/").rpartition(":")
    if not host or not port.isdecimal():
        raise SettingsError(f"endpoint {endpoint!r} is not host:port, as 127.0.0.1:15672")
    print(_post(host.strip("[]"), int(port), order))


def _post(host: str, port: int, order: dict[str, object]) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request(
            "POST", "/api/faults", json.dumps(order), {"content-type": "application/json"}
        )
        response = connection.getresponse()
        answer = json.loads(response.read() or b"{}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise PenstockError(
            f"no broker answers at {host}:{port} ({error}); is it running, and is that its "
            "HTTP port?"
        ) from None
    finally:
        connection.close()
    if response.status == 404:
        raise PenstockError("this broker takes no faults; start it with `penstock up --faults`")
    if response.status != 200:
        raise PenstockError(f"the broker refused: {answer.get('error', response.status)}")
    return str(answer.get("done", ""))
