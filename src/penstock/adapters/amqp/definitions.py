"""Definitions as one JSON document, in RabbitMQ's shape: for backup, and for moving in.

Exported are users (with their hashes, never passwords), vhosts, exchanges, queues and bindings, all
but what nobody can make (the default exchange, ``amq.*``) and what ends with a connection. Imported
is the same; permissions, policies, parameters and limits of a RabbitMQ export are passed over, for
there is nothing here that they could change.

What is there already must be equivalent, as for a client that declares it; the first that is not
ends the import, and what came before it stays.
Not here: HTTP (``server/http/management``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from penstock.adapters.amqp.binding import to_exchange, to_queue
from penstock.adapters.amqp.exchange import Exchange
from penstock.adapters.amqp.exchanges import clean_name, declare_exchange, known_kind
from penstock.adapters.amqp.json_values import plain
from penstock.adapters.amqp.queue_book import Declaration
from penstock.adapters.amqp.topology_views import binding_view, exchange_view, user_view
from penstock.adapters.amqp.users import SHA256, User, hash_of
from penstock.model.position import ConnectionId
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.method import short_bytes
from penstock.wire.amqp.table import encode_table

if TYPE_CHECKING:
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.queue import AmqpQueue
    from penstock.adapters.amqp.vhost import VirtualHost

VHOST_NAME_BYTES_MAX: Final = 255
ANYTHING: Final = ".*"

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


class QueueDefinition(msgspec.Struct):
    """One queue."""

    name: str = ""
    vhost: str = ""
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = {}


class BindingDefinition(msgspec.Struct):
    """One binding."""

    source: str = ""
    vhost: str = ""
    destination: str = ""
    destination_type: str = "queue"
    routing_key: str = ""
    arguments: Arguments = {}


class Definitions(msgspec.Struct):
    """The document."""

    users: list[UserDefinition] = []
    vhosts: list[VhostDefinition] = []
    exchanges: list[ExchangeDefinition] = []
    queues: list[QueueDefinition] = []
    bindings: list[BindingDefinition] = []


class _Operator:
    """Who declares for the operator: nobody's exclusive queue is its own."""

    connection_id = ConnectionId(0)


OPERATOR: Final = _Operator()


def exported(house: House, vhost: VirtualHost | None = None) -> dict[str, Any]:
    """Everything, or what one vhost has (then nothing says which)."""
    vhosts = list(house.vhosts.values()) if vhost is None else [vhost]
    document: dict[str, Any] = {
        "rabbit_version": house.settings.server_version,
        "rabbitmq_version": house.settings.server_version,
        "product_name": house.settings.server_product,
        "product_version": house.settings.server_version,
    }
    if vhost is None:
        users = house.users.all()
        document["users"] = [user_view(user) for user in users]
        document["vhosts"] = [{"name": each.name} for each in vhosts]
        document["permissions"] = [
            permission_view(user.name, each.name) for user in users for each in vhosts
        ]
        document["topic_permissions"] = []
        document["global_parameters"] = []
    document["parameters"] = []
    document["policies"] = []
    document["queues"] = [_queue(each) for host in vhosts for each in _queues(host)]
    document["exchanges"] = [
        _exchange(host, each)
        for host in vhosts
        for each in host.exchanges.values()
        if not each.is_reserved
    ]
    document["bindings"] = [each for host in vhosts for each in _bindings(host)]
    if vhost is not None:
        for kind in ("queues", "exchanges", "bindings"):
            for row in document[kind]:
                del row["vhost"]
    return document


def import_definitions(
    house: House, document: Definitions, vhost: VirtualHost | None = None
) -> None:
    """Make what is defined; raises ``AmqpError`` or ``ValueError`` at the first that cannot be."""
    if vhost is None:
        for each in document.users:
            house.users.put(each.user)
        for host in document.vhosts:
            make_vhost(house, host.name)

    def place(named: str) -> VirtualHost:
        return vhost if vhost is not None else find_vhost(house, named)

    for exchange in document.exchanges:
        make_exchange(place(exchange.vhost), exchange)
    for queue in document.queues:
        make_queue(place(queue.vhost), queue)
    for binding in document.bindings:
        make_binding(place(binding.vhost), binding)


def make_vhost(house: House, name: str) -> VirtualHost:
    """A vhost, new or there already."""
    if not name or len(name.encode()) > VHOST_NAME_BYTES_MAX or not name.isprintable():
        raise ValueError(f"vhost name {name[:40]!r}: 1 to 255 bytes without control characters")
    return house.make_vhost(name)


def find_vhost(house: House, name: str) -> VirtualHost:
    """The vhost of that name; raises 404."""
    found = house.vhost(name)
    if found is None:
        raise AmqpError(ReplyCode.NOT_FOUND, f"no vhost '{name}'")
    return found


def make_exchange(vhost: VirtualHost, wanted: ExchangeDefinition) -> Exchange:
    """An exchange, new or equivalent."""
    exchange = Exchange(
        _fitting(wanted.name),
        known_kind(wanted.type),
        is_durable=wanted.durable,
        is_auto_delete=wanted.auto_delete,
        is_internal=wanted.internal,
        arguments=dict(wanted.arguments),
    )
    return declare_exchange(vhost, exchange)


def make_queue(vhost: VirtualHost, wanted: QueueDefinition) -> AmqpQueue:
    """A queue, new or equivalent."""
    # JSON can say what no field table can: found out before anything is made.
    encode_table(dict(wanted.arguments))
    declaration = Declaration(
        _fitting(wanted.name),
        is_durable=wanted.durable,
        is_auto_delete=wanted.auto_delete,
        arguments=dict(wanted.arguments),
    )
    return vhost.queues.declare(declaration, OPERATOR)


def make_binding(vhost: VirtualHost, wanted: BindingDefinition) -> str:
    """A binding, new or there already; its name in paths."""
    destination = (
        to_exchange(wanted.destination)
        if wanted.destination_type in ("exchange", "e")
        else to_queue(wanted.destination)
    )
    if not wanted.source:
        if destination.is_queue and wanted.routing_key == wanted.destination:
            # Exports of RabbitMQ may name what every queue has.
            return wanted.routing_key
        raise AmqpError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    short_bytes(wanted.routing_key)
    binding = vhost.bindings.bind(
        wanted.source, destination, wanted.routing_key, dict(wanted.arguments)
    )
    return binding.properties_key


def _fitting(name: str) -> str:
    """A name as a client could say it; raises when it is too long for one."""
    cleaned = clean_name(name)
    short_bytes(cleaned)
    return cleaned


def permission_view(user: str, vhost: str) -> dict[str, str]:
    """What a user may do in a vhost: today everything."""
    return {
        "user": user,
        "vhost": vhost,
        "configure": ANYTHING,
        "write": ANYTHING,
        "read": ANYTHING,
    }


def _queues(vhost: VirtualHost) -> list[AmqpQueue]:
    return [each for each in vhost.queues if not each.is_exclusive and not each.is_foreign]


def _queue(queue: AmqpQueue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "vhost": queue.vhost.name,
        "type": queue.kind,
        "durable": queue.is_durable,
        "auto_delete": queue.is_auto_delete,
        "arguments": plain(queue.arguments),
    }


def _exchange(vhost: VirtualHost, exchange: Exchange) -> dict[str, Any]:
    row = exchange_view(vhost, exchange)
    del row["policy"]
    return row


def _bindings(vhost: VirtualHost) -> list[dict[str, Any]]:
    lasting = {queue.name for queue in _queues(vhost)}
    rows = [
        binding_view(vhost, each)
        for each in vhost.bindings
        if not each.destination.is_queue or each.destination.name in lasting
    ]
    for row in rows:
        del row["properties_key"]
    return rows
