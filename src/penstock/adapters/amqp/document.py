"""Definitions as tools write them: the parts of RabbitMQ's JSON document, and what each stands for.

Everything may be left out that has a meaning without; a path may say the name instead. What is
passed over (permissions, policies, parameters, limits) has no part here.

Not here: the document of this broker, and making what one defines (``definitions.py``).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.adapters.amqp.binding import Destination, to_exchange, to_queue
from penstock.adapters.amqp.exchange import Exchange
from penstock.adapters.amqp.exchanges import clean_name, known_kind
from penstock.adapters.amqp.queue_book import Declaration
from penstock.adapters.amqp.users import SHA256, User, hash_of
from penstock.wire.amqp.methods.method import short_bytes
from penstock.wire.amqp.table import encode_table

Arguments = dict[str, Any] | Annotated[list[Any], msgspec.Meta(max_length=0)]
"""A table; an empty one may come as an empty list, from tools that cannot tell them apart."""


class UserDefinition(msgspec.Struct):
    """One user; ``password`` is for people, ``password_hash`` for exports."""

    name: str = ""
    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str = SHA256
    tags: str | list[str] = ""

    @property
    def user(self) -> User:
        """The user it defines."""
        tags = self.tags.split(",") if isinstance(self.tags, str) else self.tags
        names = tuple(tag.strip() for tag in tags if tag.strip())
        if self.password is not None:
            return User(self.name, hash_of(self.password), names)
        return User(self.name, self.password_hash or "", names, self.hashing_algorithm)


class VhostDefinition(msgspec.Struct):
    """One vhost."""

    name: str


class ExchangeDefinition(msgspec.Struct):
    """One exchange."""

    name: str = ""
    vhost: str = ""
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = {}

    @property
    def exchange(self) -> Exchange:
        """The exchange it defines; raises for a type nobody knows or a name no client could say."""
        return Exchange(
            fitting(self.name),
            known_kind(self.type),
            is_durable=self.durable,
            is_auto_delete=self.auto_delete,
            is_internal=self.internal,
            arguments=dict(self.arguments),
        )


class QueueDefinition(msgspec.Struct):
    """One queue."""

    name: str = ""
    vhost: str = ""
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = {}

    @property
    def declaration(self) -> Declaration:
        """What a client would declare; raises for what JSON can say and no client could."""
        encode_table(dict(self.arguments))
        return Declaration(
            fitting(self.name),
            is_durable=self.durable,
            is_auto_delete=self.auto_delete,
            arguments=dict(self.arguments),
        )


class BindingDefinition(msgspec.Struct):
    """One binding."""

    source: str = ""
    vhost: str = ""
    destination: str = ""
    destination_type: str = "queue"
    routing_key: str = ""
    arguments: Arguments = {}

    @property
    def is_implied(self) -> bool:
        """True for what every queue has, and exports of RabbitMQ may name."""
        to = self.target
        return not self.source and to.is_queue and self.routing_key == self.destination

    @property
    def target(self) -> Destination:
        """Where it leads."""
        is_exchange = self.destination_type in ("exchange", "e")
        return to_exchange(self.destination) if is_exchange else to_queue(self.destination)


class Definitions(msgspec.Struct):
    """The document."""

    users: list[UserDefinition] = []
    vhosts: list[VhostDefinition] = []
    exchanges: list[ExchangeDefinition] = []
    queues: list[QueueDefinition] = []
    bindings: list[BindingDefinition] = []


def fitting(name: str) -> str:
    """A name as a client could say it; raises when it is too long for one."""
    cleaned = clean_name(name)
    short_bytes(cleaned)
    return cleaned
