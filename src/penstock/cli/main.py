"""The ``penstock`` command: finds the verb, runs it, turns errors into one sentence and a code.

To add a verb, write ``cli/<verb>.py`` with a click command (or group) named ``command`` and add its
name to ``VERBS``. Only the file of the verb in use is imported, so a verb may import what it likes
without slowing ``up``. ``EXIT_CODES`` are explained in ``docs/reference/exit-codes.md``.

click and not typer: typer 0.29 imports pydantic, and the broker must be ready in 0.4 s.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from penstock import __version__
from penstock.model.errors import (
    AppendFailed,
    FormatTooNew,
    LogCorrupt,
    PenstockError,
    SettingsError,
    StartRefused,
    SyncFailed,
)

VERBS: Final = (
    "up", "publish", "consume", "demo", "why", "topics", "groups", "queues", "exchanges",
    "bindings", "connections", "queries", "settings", "log", "fault", "bench", "interop", "doctor",
)  # fmt: skip
"""Names of the verbs and of their files here, in the order in which the help lists them."""

ELSEWHERE: Final = {
    "demo": "penstock.demo.command",
    "bench": "benchmarks.engine.bench",
    "interop": "kit.interop",
    **dict.fromkeys(
        ("queues", "exchanges", "bindings", "connections"), "penstock.cli.amqp_objects"
    ),
}
"""Verbs whose files have other names; ``bench`` and ``interop`` are in a clone only."""

FAILED: Final = 1
EXIT_CODES: Final[Sequence[tuple[type[PenstockError], int]]] = (
    (SettingsError, 2),
    (StartRefused, 3),
    (LogCorrupt, 4),
    (FormatTooNew, 4),
    (SyncFailed, 5),
    (AppendFailed, 5),
)
"""Which error ends the process with which code; every other ``PenstockError`` is ``FAILED``."""


class Verbs(click.Group):
    """A group that imports a verb's file when the verb is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of ``VERBS``."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command; a misspelt verb is a usage error that names the nearest."""
        if cmd_name not in VERBS:
            from difflib import get_close_matches

            nearest = get_close_matches(cmd_name, VERBS, n=1)
            ctx.fail(
                f"there is no verb {cmd_name!r}; "
                + (f"did you mean {nearest[0]}?" if nearest else f"use one of {', '.join(VERBS)}")
            )
        try:
            module = import_module(ELSEWHERE.get(cmd_name, f"penstock.cli.{cmd_name}"))
        except ModuleNotFoundError as problem:
            if problem.name not in ("benchmarks", "kit"):
                raise
            ctx.fail(
                f"{cmd_name} is no part of the wheel: clone Penstock, then ./penstock {cmd_name}"
            )
        command = getattr(module, cmd_name, None) or module.command
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`penstock VERB --help` explains a verb.",
)
@click.version_option(__version__, message="penstock %(version)s")
def penstock() -> None:
    """One broker for RabbitMQ, RocketMQ and Pulsar clients, with flow control you can see."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in ``SystemExit``."""
    try:
        penstock.main(arguments, prog_name="penstock")
    except PenstockError as error:
        # A traceback is for us, a sentence for the user.
        print(f"penstock: {error}", file=sys.stderr)
        raise SystemExit(exit_code(error)) from None


def exit_code(error: PenstockError) -> int:
    """The documented code for an error that ends the process."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), FAILED)
