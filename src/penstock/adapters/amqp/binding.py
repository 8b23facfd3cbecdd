"""A binding: what a source exchange gets goes on to a queue or another exchange.

Invariant: two bindings are the same when source, destination, routing key and arguments are, these
whatever their order and however wide their integers came.
Not here: which bindings there are (``bindings.py``), what they match (``matching.py``).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus

from penstock.wire.amqp.table import encode_table

FINGERPRINT_BYTES: Final = 16


class Destination(NamedTuple):
    """Where a binding leads; a queue and an exchange may have the same name."""

    is_queue: bool
    name: str

    @property
    def kind(self) -> str:
        """The word for it in texts and in the management JSON."""
        return "queue" if self.is_queue else "exchange"


def to_queue(name: str) -> Destination:
    """The queue of this name."""
    return Destination(True, name)


def to_exchange(name: str) -> Destination:
    """The exchange of this name."""
    return Destination(False, name)


class BindingKey(NamedTuple):
    """What makes a binding the one it is."""

    source: str
    destination: Destination
    routing_key: str
    fingerprint: str
    """Of the arguments; empty when there are none."""


class Binding:
    """One binding."""

    __slots__ = ("arguments", "destination", "is_durable", "key", "routing_key", "source")

    def __init__(
        self,
        source: str,
        destination: Destination,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        *,
        is_durable: bool = False,
    ) -> None:
        self.source: Final = source
        self.destination: Final = destination
        self.routing_key: Final = routing_key
        self.arguments: Final[dict[str, Any]] = arguments or {}
        self.is_durable: Final = is_durable
        """Both ends are durable: it outlives the process."""
        self.key: Final = BindingKey(
            source, destination, routing_key, fingerprint_of(self.arguments)
        )

    def __repr__(self) -> str:
        return f"<Binding {self.source!r} -{self.routing_key}-> {self.destination}>"

    @property
    def properties_key(self) -> str:
        """Its name below source and destination in management paths, quoted as RabbitMQ does."""
        routing_key = quote_plus(self.routing_key).replace("~", "%7E")
        if not self.key.fingerprint:
            return routing_key or "~"
        return f"{routing_key}~{self.key.fingerprint}"


def fingerprint_of(arguments: dict[str, Any]) -> str:
    """A short text that is equal for equal arguments, whatever their order."""
    if not arguments:
        return ""
    table = encode_table(dict(sorted(arguments.items())))
    return blake2b(table, digest_size=FINGERPRINT_BYTES).hexdigest()
