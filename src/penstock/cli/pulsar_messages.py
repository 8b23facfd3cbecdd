"""What ``penstock publish`` and ``penstock consume`` do with a ``pulsar://`` URL.

    pulsar://HOST:PORT/orders                      persistent://public/default/orders
    pulsar://HOST:PORT/tenant/namespace/orders
    pulsar://HOST:PORT/non-persistent/tenant/namespace/orders

Messages are printed and read as lines like those of RocketMQ (``message_lines.py``), so that one
protocol's topic can be piped into the other's.

Not here: the verbs themselves (``publish.py``, ``consume.py``), the client (``client/pulsar``).
"""

import json
import time
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import click

from penstock.cli.message_lines import body_fields, duration_ms, read_record, shown_body
from penstock.client.pulsar import (
    Client,
    Consumer,
    InitialPosition,
    Message,
    MessageId,
    NothingReceived,
    ReceivedMessage,
    SubscriptionType,
)

SCHEME: Final = "pulsar://"
TAGS: Final = "TAGS"
"""The property that is RocketMQ's tag (docs/pulsar.md)."""
TYPES: Final = {each.name.lower().replace("_", "-"): each for each in SubscriptionType}
DOMAINS: Final = ("persistent", "non-persistent")


class PulsarTarget(NamedTuple):
    """Where a URL points to."""

    service_url: str
    topic: str


def parse_target(text: str) -> PulsarTarget | None:
    """The target of a ``pulsar://`` URL; None when it is the name of a topic."""
    scheme, separator, _ = text.partition("://")
    if not separator:
        return None
    if scheme != "pulsar":
        raise click.UsageError(
            f"{text!r}: there is no {scheme}:// here; give the name of a topic (RocketMQ), or "
            f"{SCHEME}HOST:PORT/TOPIC, without TLS"
        )
    address, _, path = text.removeprefix(SCHEME).partition("/")
    parts = path.split("/") if path else []
    domain = "persistent"
    if len(parts) == 4 and parts[0] in DOMAINS:
        domain, *parts = parts
    if len(parts) == 1:
        parts = ["public", "default", *parts]
    if not address or len(parts) != 3 or not all(parts):
        raise click.UsageError(
            f"{text!r} is not pulsar://HOST:PORT/TOPIC or pulsar://HOST:PORT/TENANT/NAMESPACE/TOPIC"
        )
    return PulsarTarget(SCHEME + address, f"{domain}://{'/'.join(parts)}")


# ---- publishing ---------------------------------------------------------------------------------


def message_of(body: bytes, given: dict[str, Any], properties: dict[str, str]) -> Message:
    """A message with what the flags of ``publish`` say."""
    if given["delay_level"]:
        raise click.UsageError("--delay-level is RocketMQ's; use --delay")
    keys = given["keys"]
    if len(keys) > 1:
        raise click.UsageError("a message of Pulsar has one --key")
    if given["tag"]:
        properties = {**properties, TAGS: given["tag"]}
    ordering_key = given["ordering_key"]
    return Message(
        body,
        key=keys[0] if keys else None,
        ordering_key=ordering_key.encode() if ordering_key else None,
        properties=properties,
        deliver_after_ms=duration_ms(given["delay"]) if given["delay"] else None,
    )


def from_record(line: str) -> Message:
    """The message that a line of JSON describes; of RocketMQ's keys the first is the key."""
    given, body, properties = read_record(line)
    keys = given.get("keys") or ()
    key = given.get("key") or (keys[0] if isinstance(keys, list) and keys else None)
    ordering_key = given.get("ordering_key")
    if given.get("tag"):
        properties[TAGS] = str(given["tag"])
    return Message(
        body,
        key=None if key is None else str(key),
        ordering_key=str(ordering_key).encode() if ordering_key else None,
        properties=properties,
    )


def stored_line(message_id: MessageId) -> str:
    """What ``publish`` prints of a message that is stored."""
    return f"STORED  {message_id}"


def stored_json(message_id: MessageId) -> dict[str, Any]:
    """The same for ``--json``."""
    return {
        "status": "STORED",
        "id": str(message_id),
        "ledger": message_id.ledger_id,
        "entry": message_id.entry_id,
        "partition": message_id.partition,
        "batch_index": message_id.batch_index,
    }


# ---- consuming ----------------------------------------------------------------------------------


class PulsarSource:
    """A subscription as ``consume`` reads it: what was shown is acknowledged, nothing else."""

    def __init__(self, target: PulsarTarget, subscription: str, start: str, kind: str) -> None:
        self._client = Client(target.service_url)
        try:
            position = InitialPosition.LATEST if start == "last" else InitialPosition.EARLIEST
            self._consumer: Consumer = self._client.subscribe(
                target.topic,
                subscription,
                subscription_type=TYPES[kind],
                initial_position=position,
            )
            if start not in ("first", "last"):
                self._consumer.seek(_start_ms(start))
        except BaseException:
            self._client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def poll(self, timeout_ms: int, *, max_messages: int) -> list[ReceivedMessage]:
        """What is there, or comes within this time."""
        try:
            first = self._consumer.receive(timeout_ms)
        except NothingReceived:
            return []
        return [first, *self._consumer.receive_batch(max_messages - 1, timeout_ms=0)]

    def queues(self) -> list[str]:
        """Topics and partitions; a subscription has them from the beginning."""
        return self._consumer.topics

    def shown(self, message: ReceivedMessage) -> None:
        """It was printed: it does not come again."""
        self._consumer.acknowledge(message)


def _start_ms(start: str) -> int:
    try:
        return int(datetime.fromisoformat(start).timestamp() * 1000)
    except ValueError:
        try:
            ago_ms = duration_ms(start.removesuffix("ago").strip())
        except click.UsageError:
            raise click.UsageError(
                f"--from {start!r} is neither first, last nor a time as 2026-01-31T08:00 or 10m"
            ) from None
        return int(time.time() * 1000) - ago_ms


def as_record(message: ReceivedMessage) -> dict[str, Any]:
    """A message, ready for JSON."""
    properties = dict(message.properties)
    key = message.key
    ordering_key = message.ordering_key
    return {
        "topic": message.topic,
        **body_fields(message.data),
        "tag": properties.pop(TAGS, None),
        "keys": [] if key is None else [key],
        "properties": properties,
        "ordering_key": None if ordering_key is None else ordering_key.decode("utf-8", "replace"),
        "id": str(message.message_id),
        "producer": message.producer_name,
        "sequence_id": message.sequence_id,
        "published_at_ms": message.publish_time_ms,
        "event_time_ms": message.event_time_ms,
        "redelivery_count": message.redelivery_count,
    }


def as_line(message: ReceivedMessage) -> str:
    """A message for people: when, where, key, body."""
    when = datetime.fromtimestamp(message.publish_time_ms / 1000).strftime("%H:%M:%S.%f")[:-3]
    key = f"  [{message.key}]" if message.key is not None else ""
    again = f"  (try {message.redelivery_count + 1})" if message.redelivery_count else ""
    body = "(no value)" if message.is_null else shown_body(message.data)
    return f"{when}  {message.message_id}{key}{again}  {body}"


def as_json(message: ReceivedMessage) -> str:
    """One line of JSON."""
    return json.dumps(as_record(message), ensure_ascii=False)
