"""``penstock publish``: send messages to a topic, from the command line or a pipe.

    penstock publish orders hello --tag new --key 4711
    tail -f app.log | penstock publish logs
    penstock publish load "message {n}" --count 100000 --rate 5000
    penstock publish pulsar://localhost:6650/orders hello --key 4711

A topic is one of RocketMQ's unless it is a ``pulsar://`` URL (``pulsar_messages.py``).
One argument is one message; without it, or with ``-``, every line of the standard input is one.
Sends run side by side, as many as the client allows; the first failures are told on the error
output, and the exit code is 1 when there was any.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import click

from penstock.cli.endpoint import NAME_SERVER, find_endpoint, takes_name_server
from penstock.cli.message_lines import duration_ms, from_record
from penstock.cli.pulsar_messages import from_record as pulsar_from_record
from penstock.cli.pulsar_messages import message_of, parse_target, stored_json, stored_line
from penstock.client import ClientError, Message, Producer, SendResult
from penstock.client.pulsar import Client, MessageId
from penstock.client.pulsar import Message as PulsarMessage

M = TypeVar("M")

FAILURES_TOLD: Final = 5
PROGRESS_SECONDS: Final = 0.5
STDIN: Final = "-"


@click.command("publish", short_help="Send messages to a topic of RocketMQ or Pulsar.")
@click.argument("topic")
@click.argument("body", default=STDIN)
@takes_name_server
@click.option("--tag", help="What consumers filter by.")
@click.option("--key", "keys", multiple=True, help="What it can be found by; may be repeated.")
@click.option("--property", "-p", "pairs", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--ordering-key", help="Messages of one key keep their order.")
@click.option("--delay", metavar="TIME", help="Deliver later: 500ms, 5s, 2m, 1h.")
@click.option("--delay-level", type=click.IntRange(1, 18), help="Deliver later: 1 = 1 s ... 2 h.")
@click.option("--count", default=1, type=click.IntRange(1), help="Send BODY so often; {n} counts.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Messages per second.")
@click.option("--records", is_flag=True, help="Lines are JSON, as `consume --json` prints them.")
@click.option("--whole", is_flag=True, help="All of the standard input is one message.")
@click.option("--group", default="penstock-cli", show_default=True, help="Producer group.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object per message sent.")
def command(topic: str, body: str, **given: Any) -> None:
    """Send BODY to TOPIC, or every line of the standard input when BODY is missing or -.

    TOPIC is a topic of RocketMQ, or a URL: pulsar://HOST:PORT/TOPIC.
    """
    if body == STDIN and given["count"] > 1:
        raise click.UsageError("--count needs a BODY to repeat")
    keep_quiet()
    tally = PublishStatistics(is_json=given["is_json"], is_many=body == STDIN or given["count"] > 1)
    pace = Pace(given["rate"])
    target = parse_target(topic)
    if target is not None:
        with Client(target.service_url) as client, client.create_producer(target.topic) as sender:
            _send_all(_pulsar_messages(body, given), sender.send_callback, pace, tally)
    else:
        name_server = find_endpoint(NAME_SERVER, given["name_server"], given["data"])
        with Producer(name_server, given["group"]) as producer:
            _send_all(_messages(topic, body, given), producer.send_callback, pace, tally)
    tally.close()
    sys.exit(1 if tally.failures else 0)


def _send_all(
    messages: Iterator[M],
    send: Callable[[M, Callable[..., None]], None],
    pace: "Pace",
    tally: "PublishStatistics",
) -> None:
    for message in messages:
        pace.wait()
        try:
            send(message, tally.done)
        except ClientError as error:
            tally.failed(error)
        tally.sent()
    tally.wait()


def keep_quiet() -> None:
    """What the client logs is for programs; here it would come between the messages."""
    logging.getLogger("penstock.client").addHandler(logging.NullHandler())


def _messages(topic: str, body: str, given: dict[str, Any]) -> Iterator[Message]:
    options = _options(given)
    for each in _bodies(body, given):
        if isinstance(each, str):
            yield from_record(topic, each)
        else:
            yield Message(topic, each, **options)


def _pulsar_messages(body: str, given: dict[str, Any]) -> Iterator[PulsarMessage]:
    properties = _properties(given)
    for each in _bodies(body, given):
        if isinstance(each, str):
            yield pulsar_from_record(each)
        else:
            yield message_of(each, given, properties)


def _bodies(body: str, given: dict[str, Any]) -> Iterator[bytes | str]:
    """Bodies of messages; with ``--records`` lines that say more than that, as texts."""
    if body != STDIN:
        for number in range(1, given["count"] + 1):
            text = body.replace("{n}", str(number)) if given["count"] > 1 else body
            yield text.encode()
    elif given["whole"]:
        yield sys.stdin.buffer.read()
    else:
        if sys.stdin.isatty():
            click.echo("every line is a message; Ctrl-D ends", err=True)
        for line in sys.stdin.buffer:
            bare = line.rstrip(b"\r\n")
            yield bare.decode("utf-8", "replace") if given["records"] else bare


def _properties(given: dict[str, Any]) -> dict[str, str]:
    properties = {}
    for pair in given["pairs"]:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--property {pair!r} is not NAME=VALUE")
        properties[name] = value
    return properties


def _options(given: dict[str, Any]) -> dict[str, Any]:
    properties = _properties(given)
    if given["delay"] and given["delay_level"]:
        raise click.UsageError("--delay and --delay-level exclude each other")
    return {
        "tag": given["tag"],
        "keys": given["keys"],
        "properties": properties,
        "ordering_key": given["ordering_key"],
        "delay_ms": duration_ms(given["delay"]) if given["delay"] else None,
        "delay_level": given["delay_level"] or 0,
    }


class Pace:
    """Lets one message pass every so often."""

    def __init__(self, per_second: float | None) -> None:
        self._pause = 1 / per_second if per_second else 0.0
        self._due = time.monotonic()

    def wait(self) -> None:
        """Until the next one may go; a late one does not make the next ones hurry for long."""
        if self._pause:
            now = time.monotonic()
            if now < self._due:
                time.sleep(self._due - now)
            self._due = max(self._due + self._pause, now - 1)


class PublishStatistics:
    """What became of the messages; results come on a thread of the client."""

    def __init__(self, *, is_json: bool, is_many: bool) -> None:
        self.stored = 0
        self.failures = 0
        self._is_json = is_json
        self._is_many = is_many
        self._sent = 0
        self._changed = threading.Condition()
        self._began = self._told = time.monotonic()
        self._is_watched = is_many and sys.stderr.isatty()

    def sent(self) -> None:
        """One more is on its way, or could not be."""
        self._sent += 1
        if self._is_watched and time.monotonic() - self._told > PROGRESS_SECONDS:
            self._told = time.monotonic()
            click.echo(f"\r{self._figures()}\x1b[K", nl=False, err=True)

    def done(self, outcome: SendResult | MessageId | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self.failed(outcome)
            return
        if self._is_json:
            click.echo(json.dumps(_as_json(outcome)))
        elif self._is_many:
            pass
        elif isinstance(outcome, MessageId):
            click.echo(stored_line(outcome))
        else:
            where = f"{outcome.queue.broker}/{outcome.queue.queue}@{outcome.queue_offset}"
            click.echo(f"{outcome.status.name}  {where}  {outcome.message_id}")
        with self._changed:
            self.stored += 1
            self._changed.notify()

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self.failures += 1
            self._changed.notify()
        if self.failures <= FAILURES_TOLD:
            click.echo(f"penstock: not sent: {error}", err=True)

    def wait(self) -> None:
        """Until every send has ended; each has a time-out of its own."""
        with self._changed:
            self._changed.wait_for(lambda: self.stored + self.failures >= self._sent)

    def close(self) -> None:
        if self._is_watched:
            click.echo("\r\x1b[K", nl=False, err=True)
        if self._is_many:
            click.echo(self._figures(), err=True)

    def _figures(self) -> str:
        seconds = max(time.monotonic() - self._began, 0.001)
        failed = f", {self.failures:,} failed" if self.failures else ""
        return f"{self.stored:,} sent, {self.stored / seconds:,.0f}/s{failed}"


def _as_json(result: SendResult | MessageId) -> dict[str, Any]:
    if isinstance(result, MessageId):
        return stored_json(result)
    return {
        "status": result.status.name,
        "id": result.message_id,
        "offset_id": result.offset_message_id,
        "broker": result.queue.broker,
        "queue": result.queue.queue,
        "offset": result.queue_offset,
    }
