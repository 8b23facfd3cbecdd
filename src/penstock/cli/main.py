"""The ``penstock`` command: finds the verb, runs it, turns errors into one sentence and a code.

To add a verb, write ``cli/<verb>.py`` with a click command (or group) named ``command``, add its
name to ``VERBS`` and what people type to ``EXAMPLES``. Only the file of the verb in use is
imported, so a verb may import what it likes without slowing ``up``. ``EXIT_CODES`` are explained in
``docs/reference/exit-codes.md``.

click and not typer: typer 0.29 imports pydantic, and the broker must be ready in 0.4 s.
"""

import sys
from collections.abc import Mapping, Sequence
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
    "bindings", "connections", "policies", "queries", "pipeline", "spark", "settings", "limits",
    "log", "fault", "bench", "interop", "doctor",
)  # fmt: skip
"""Names of the verbs and of their files here, in the order in which the help lists them."""

ELSEWHERE: Final = {
    "demo": "penstock.demo.command",
    "bench": "benchmarks.engine.bench",
    "interop": "kit.interop",
    **dict.fromkeys(
        ("queues", "exchanges", "bindings", "connections", "policies"), "penstock.cli.amqp_objects"
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
        _add_examples(command, cmd_name)
        return command


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`penstock VERB --help` explains a verb, with examples.",
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


# ---- examples -----------------------------------------------------------------------------------
# What ``--help`` of every verb ends with. In one place, so that a test can read each of them as the
# command line would.


EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "up": ("up", "up --data /var/lib/penstock --memory-limit 2GiB", "up --amqp 5673 --pulsar off"),
    "publish": (
        'publish orders "one teapot" --tag new --key 4711',
        'publish load "message {n}" --count 100000 --rate 5000',
        "publish logs < app.log",
    ),
    "consume": (
        "consume orders --group billing",
        "consume orders --from first --count 10 --json",
        'consume orders --from "10m ago" --tags "new || paid"',
    ),
    "demo": ("demo", "demo --list", "demo credit-flow"),
    "why": ("why", "why orders --watch", "why --endpoint 127.0.0.1:15672 --json"),
    "topics": ("topics list",),
    "topics create": ("topics create orders --queues 8",),
    "topics list": ("topics list", "topics list orders --all --json"),
    "topics show": ("topics show orders",),
    "topics set": ("topics set orders --spark-backpressure hard --spark-backlog-max 3000",),
    "topics delete": ("topics delete orders", "topics delete orders --yes"),
    "topics purge": ("topics purge orders", "topics purge orders --yes"),
    "groups": ("groups list",),
    "groups list": ("groups list", "groups list billing --json"),
    "groups show": ("groups show billing",),
    "groups reset": (
        "groups reset billing --topic orders --to earliest",
        "groups reset billing --topic orders --to 2026-01-31T08:00",
    ),
    "groups delete": ("groups delete billing", "groups delete billing --topic orders"),
    "groups mode": ("groups mode billing pop --topic orders",),
    "queues": ("queues list",),
    "queues list": ("queues list", "queues list orders --vhost / --json"),
    "exchanges": ("exchanges list",),
    "exchanges list": ("exchanges list amq",),
    "bindings": ("bindings list",),
    "bindings list": ("bindings list orders",),
    "connections": ("connections list",),
    "connections list": ("connections list", "connections list --user admin --password secret"),
    "connections close": (
        'connections close "127.0.0.1:51234 -> 127.0.0.1:5672" --reason "too many publishes"',
    ),
    "policies": ("policies list",),
    "policies list": ("policies list", "policies list orders --vhost / --json"),
    "policies show": ("policies show short-lived",),
    "policies set": (
        """policies set short-lived "^orders" '{"message-ttl": 60000}' --apply-to queues""",
        """policies set limits ".*" '{"max-length": 1000000}' --operator""",
    ),
    "policies clear": ("policies clear short-lived", "policies clear limits --operator"),
    "queries": ("queries", "queries --json"),
    "queries forget": ("queries forget daily-report",),
    "queries sinks": ("queries sinks", "queries sinks --json"),
    "spark": ("spark package",),
    "spark package": ("spark package", "spark package /tmp/penstock-executor.zip"),
    "pipeline": ("pipeline init", "pipeline run pipeline.toml"),
    "pipeline init": ("pipeline init", "pipeline init archive.toml --from archive"),
    "pipeline run": (
        "pipeline run pipeline.toml",
        "pipeline run pipeline.toml --flow orders --once",
        "pipeline run pipeline.toml --dry-run",
        "pipeline run archive --set TOPICS=orders --set OUT=/srv/archive",
        "pipeline run replay --set RATE=5000",
    ),
    "pipeline compact": ("pipeline compact out/orders", "pipeline compact pipeline.toml --json"),
    "settings": ("settings", "settings --durability os --json"),
    "limits": ("limits show",),
    "limits show": ("limits show", "limits show --json"),
    "limits set": (
        "limits set --memory 2GiB --disk-free 5GiB",
        "limits set --hop channel_queue --credit 400 --more 200",
    ),
    "log": ("log check penstock-data",),
    "log check": ("log check penstock-data",),
    "log dump": ("log dump penstock-data --limit 10 --body",),
    "fault": ("fault store-hold --ms 3s",),
    "fault store-hold": ("fault store-hold --ms 3s",),
    "fault sync-delay": ("fault sync-delay --ms 20",),
    "fault write-error": ("fault write-error --count 3 --error eio",),
    "fault queue-delay": ("fault queue-delay --topic orders --ms 5s",),
    "fault memory": ("fault memory --bytes 64GiB",),
    "fault disk": ("fault disk --bytes 10MiB",),
    "fault clear": ("fault clear",),
    "bench": ("bench engine",),
    "bench engine": ("bench engine --only cpu",),
    "interop": ("interop pika ../pika",),
    "interop pika": ("interop pika ../pika --json",),
    "interop amqplib": ("interop amqplib ../amqplib",),
    "interop rabbitmq-java": (
        "interop rabbitmq-java ../rabbitmq-java-client",
        "interop rabbitmq-java ../rabbitmq-java-client --grep QosTests#fairness",
    ),
    "interop ali-ons": ("interop ali-ons ../ali-ons",),
    "interop rocketmq-tests": ("interop rocketmq-tests ../rocketmq --only pop",),
    "interop pulsar": ("interop pulsar ../pulsar-client-python --grep seek",),
    "doctor": ("doctor", "doctor --data /var/lib/penstock --json"),
}
"""Verb -> lines behind ``penstock``."""


def _add_examples(command: click.Command, words: str) -> None:
    lines = [f"  penstock {line}" for line in EXAMPLES.get(words, ())]
    if lines and not command.epilog:
        command.epilog = "\n".join(["\b", "Examples:" if len(lines) > 1 else "Example:", *lines])
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            _add_examples(each, f"{words} {name}")
