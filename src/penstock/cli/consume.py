"""``penstock consume``: read a topic as a member of a group, for people and for pipes.

    penstock consume orders --group billing               a line per message, until Ctrl-C
    penstock consume orders --from first --count 10 --json
    penstock consume orders --group copy --json | penstock publish orders-copy --records
    penstock consume orders --group meter --rate          how many per second, nothing else
    penstock consume pulsar://localhost:6650/orders --group billing

A topic is one of RocketMQ's unless it is a ``pulsar://`` URL (``pulsar_messages.py``); then the
group is a subscription. What was printed counts as consumed, and nothing else does: offsets are
stored up to there, also when it is ended in the middle. Several with one group share the queues.
"""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeVar

import click

from penstock.cli.endpoint import NAME_SERVER, find_endpoint, takes_name_server
from penstock.cli.message_lines import as_line, as_record, duration_ms
from penstock.cli.publish import keep_quiet
from penstock.cli.pulsar_messages import TYPES, PulsarSource, PulsarTarget, as_json, parse_target
from penstock.cli.pulsar_messages import as_line as pulsar_line
from penstock.client import LitePullConsumer, ReceivedMessage
from penstock.client.consumer.options import LitePullOptions
from penstock.client.pulsar import ReceivedMessage as PulsarMessage

T = TypeVar("T")

POLL_MS: Final = 200
RATE_SECONDS: Final = 1.0
BATCH: Final = 32
JOIN_SECONDS_MAX: Final = 5.0
"""A member that has no queue by then gets none: the others have them all."""


@click.command("consume", short_help="Print messages of a topic of RocketMQ or Pulsar.")
@click.argument("topic")
@click.option(
    "--group",
    "-g",
    default="penstock-cli",
    show_default=True,
    help="Consumer group; of Pulsar the subscription.",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(TYPES)),
    default="shared",
    show_default=True,
    help="Of Pulsar: how the subscription deals messages out.",
)
@takes_name_server
@click.option("--tags", help="Only messages with one of these: 'a || b'.")
@click.option("--sql", help="Only messages for which this SQL92 expression holds.")
@click.option(
    "--from",
    "start",
    default="last",
    show_default=True,
    metavar="WHERE",
    help="Where a new group begins: first, last, or a time as 2026-01-31T08:00 or 10m ago.",
)
@click.option("--count", type=click.IntRange(1), help="End after so many messages.")
@click.option("--wait", metavar="TIME", help="End after so long without a message: 5s.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object per message.")
@click.option("--body", "is_body", is_flag=True, help="The body and a newline, nothing else.")
@click.option("--rate", "is_rate", is_flag=True, help="Only how many per second.")
def command(topic: str, group: str, **given: Any) -> None:
    """Print the messages of TOPIC as they come; Ctrl-C ends it cleanly.

    TOPIC is a topic of RocketMQ, or a URL: pulsar://HOST:PORT/TOPIC.
    """
    if sum(given[name] for name in ("is_json", "is_body", "is_rate")) > 1:
        raise click.UsageError("--json, --body and --rate exclude each other")
    if given["tags"] and given["sql"]:
        raise click.UsageError("--tags and --sql exclude each other")
    keep_quiet()
    target = parse_target(topic)
    if target is not None:
        _consume_pulsar(target, group, given)
        return
    name_server = find_endpoint(NAME_SERVER, given["name_server"], given["data"])
    signal.signal(signal.SIGTERM, _interrupt)
    consumer = LitePullConsumer(name_server, group, **_options(given["start"]))
    if given["sql"]:
        consumer.subscribe(topic, sql=given["sql"])
    else:
        consumer.subscribe(topic, tags=given["tags"] or "*")
    reader = Reader(_printer(given), given["count"], given["wait"], is_quiet=given["is_rate"])
    # Inside the with block: leaving it by an exception would not store what was printed last.
    with consumer, contextlib.suppress(KeyboardInterrupt):
        reader.read(consumer)
    reader.close()


def _consume_pulsar(target: PulsarTarget, subscription: str, given: dict[str, Any]) -> None:
    if given["tags"] or given["sql"]:
        raise click.UsageError("--tags and --sql are RocketMQ's; Pulsar has no filters here")
    signal.signal(signal.SIGTERM, _interrupt)
    with PulsarSource(target, subscription, given["start"], given["kind"]) as source:
        show = _pulsar_printer(given)

        def show_and_settle(message: PulsarMessage) -> None:
            if show is not None:
                show(message)
            source.shown(message)

        reader = Reader(show_and_settle, given["count"], given["wait"], is_quiet=given["is_rate"])
        with contextlib.suppress(KeyboardInterrupt):
            reader.read(source)
    reader.close()


class Source(Protocol[T]):
    """Where messages come from: a consumer of RocketMQ, or a subscription of Pulsar."""

    def poll(self, timeout_ms: int, *, max_messages: int) -> list[T]:
        """What is there, or comes within this time."""
        ...

    def queues(self) -> Sequence[object]:
        """Those it reads; none before it has joined."""
        ...


class Reader(Generic[T]):
    """Polls and prints until it is over."""

    def __init__(
        self,
        show: Callable[[T], None] | None,
        count: int | None,
        wait: str | None,
        *,
        is_quiet: bool,
    ) -> None:
        """``is_quiet``: nothing is printed of messages, only how many there are."""
        self._show = show
        self._is_silent = is_quiet
        self._left = count
        self._wait = duration_ms(wait) / 1000 if wait else None
        self._seen = 0
        self._began = self._heard = time.monotonic()
        self._told = (self._began, 0)

    def read(self, consumer: Source[T]) -> None:
        """Until so many came, nobody came for so long, or somebody interrupts."""
        while self._left is None or self._left > 0:
            most = BATCH if self._left is None else min(BATCH, self._left)
            messages = consumer.poll(POLL_MS, max_messages=most)
            if messages:
                self._heard = time.monotonic()
                self._take(messages)
            elif self._wait is not None and self._is_quiet(consumer, self._wait):
                return
            if self._is_silent:
                self._tell_rate()

    def close(self) -> None:
        """The last words, on the error output."""
        seconds = max(time.monotonic() - self._began, 0.001)
        if self._is_silent or sys.stderr.isatty():
            click.echo(f"{self._seen:,} messages, {self._seen / seconds:,.0f}/s", err=True)

    def _is_quiet(self, consumer: Source[T], seconds: float) -> bool:
        """Nothing came for so long; the time until a member has its queues does not count."""
        now = time.monotonic()
        if not consumer.queues() and now - self._began < JOIN_SECONDS_MAX:
            self._heard = now
        return now - self._heard > seconds

    def _take(self, messages: list[T]) -> None:
        if self._show is not None:
            for message in messages:
                self._show(message)
            sys.stdout.flush()
        self._seen += len(messages)
        if self._left is not None:
            self._left -= len(messages)

    def _tell_rate(self) -> None:
        now = time.monotonic()
        at, seen = self._told
        if now - at >= RATE_SECONDS:
            click.echo(f"{(self._seen - seen) / (now - at):,.0f}/s  {self._seen:,} in all")
            self._told = (now, self._seen)


def _printer(given: dict[str, Any]) -> Callable[[ReceivedMessage], None] | None:
    if given["is_rate"]:
        return None
    if given["is_json"]:
        return lambda message: click.echo(json.dumps(as_record(message), ensure_ascii=False))
    if given["is_body"]:
        return lambda message: click.echo(message.body)
    return lambda message: click.echo(as_line(message))


def _pulsar_printer(given: dict[str, Any]) -> Callable[[PulsarMessage], None] | None:
    if given["is_rate"]:
        return None
    if given["is_json"]:
        return lambda message: click.echo(as_json(message))
    if given["is_body"]:
        return lambda message: click.echo(message.data)
    return lambda message: click.echo(pulsar_line(message))


def _options(start: str) -> LitePullOptions:
    if start in ("first", "last"):
        return {"consume_from": start, "pull_batch": BATCH}
    try:
        at_ms = int(datetime.fromisoformat(start).timestamp() * 1000)
    except ValueError:
        try:
            ago_ms = duration_ms(start.removesuffix("ago").strip())
        except click.UsageError:
            raise click.UsageError(
                f"--from {start!r} is neither first, last nor a time as 2026-01-31T08:00 or 10m"
            ) from None
        at_ms = int(time.time() * 1000) - ago_ms
    return {
        "consume_from": "timestamp",
        "consume_timestamp": at_ms,
        "pull_batch": BATCH,
    }


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
