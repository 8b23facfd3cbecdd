"""``penstock fault``: make a mechanism of a running broker act, on purpose (D26).

The broker must have been started with ``--faults``. Each verb is one order posted to
``/api/faults``; ``penstock fault clear`` ends them all. Exit code 1 with a sentence when there is
no such broker, or it refuses.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli.endpoint import takes_endpoint
from penstock.cli.http_client import address, send
from penstock.model.errors import PenstockError
from penstock.settings.declare import parse_bytes, parse_ms


def _read(parse: Callable[[str], int]) -> Callable[[click.Context, click.Parameter, str], int]:
    """A number with a unit, as settings take them; a bare one is the smallest unit."""

    def read(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
        try:
            return parse(text)
        except ValueError as problem:
            raise click.BadParameter(f"{text!r}: {problem}") from None

    return read


_TIME: Final[dict[str, Any]] = {"required": True, "metavar": "TIME", "callback": _read(parse_ms)}
_SIZE: Final[dict[str, Any]] = {
    "required": True,
    "metavar": "AMOUNT",
    "callback": _read(parse_bytes),
}
_MS: Final = click.option("--ms", help="How long: 500 (milliseconds), 5s, 2min.", **_TIME)


@click.group("fault", short_help="Make a running broker's disk or queues misbehave on purpose.")
def command() -> None:
    """Make a running broker's disk, memory or queues misbehave on purpose.

    The broker must have been started with --faults.
    """


@command.command("store-hold")
@_MS
@takes_endpoint
def store_hold(ms: int, **where: Any) -> None:
    """Let no sync return for a while: confirms wait, sends are refused as busy (F5, F6)."""
    _order({"fault": "store-hold", "ms": ms}, **where)


@command.command("sync-delay")
@_MS
@takes_endpoint
def sync_delay(ms: int, **where: Any) -> None:
    """Make every sync slower, until cleared."""
    _order({"fault": "sync-delay", "ms": ms}, **where)


@command.command("write-error")
@click.option("--count", default=1, type=click.IntRange(0), help="How many writes fail.")
@click.option("--error", default="enospc", type=click.Choice(["enospc", "eio"]))
@takes_endpoint
def write_error(count: int, error: str, **where: Any) -> None:
    """Let the next writes to the log fail: those publishes are refused, nothing is lost."""
    _order({"fault": "write-error", "count": count, "error": error}, **where)


@command.command("queue-delay")
@click.option("--topic", required=True, help="Topic whose queues stand still.")
@_MS
@takes_endpoint
def queue_delay(topic: str, ms: int, **where: Any) -> None:
    """Let the queues of one topic take nothing in: only its publishers wait (F1)."""
    _order({"fault": "queue-delay", "topic": topic, "ms": ms}, **where)


@command.command("memory")
@click.option("--bytes", "used", help="Memory to pretend: 2GiB.", **_SIZE)
@takes_endpoint
def memory(used: int, **where: Any) -> None:
    """Pretend that so much memory is used (F3)."""
    _order({"fault": "memory", "bytes": used}, **where)


@command.command("disk")
@click.option("--bytes", "free", help="Space to pretend: 100MiB.", **_SIZE)
@takes_endpoint
def disk(free: int, **where: Any) -> None:
    """Pretend that only so much disk is free (F3)."""
    _order({"fault": "disk", "bytes": free}, **where)


@command.command("clear")
@takes_endpoint
def clear(**where: Any) -> None:
    """End all faults."""
    _order({"fault": "clear"}, **where)


def _order(order: dict[str, object], data: Path | None, endpoint: str) -> None:
    status, answer = send("POST", "/api/faults", order, at=address(data, endpoint))
    if status == 404:
        raise PenstockError("this broker takes no faults; start it with `penstock up --faults`")
    if status != 200:
        raise PenstockError(f"the broker refused: {answer.get('error', status)}")
    click.echo(str(answer.get("done", "")))
