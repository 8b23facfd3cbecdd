"""Definitions as one JSON document, in RabbitMQ's shape: for backup, and for moving in.

Exported are users (with their hashes, never passwords), vhosts, exchanges, queues and bindings, all
but what nobody can make (the default exchange, ``amq.*``) and what ends with a connection. Imported
is the same; permissions, policies, parameters and limits of a RabbitMQ export are passed over, for
there is nothing here that they could change.

An import is all or nothing, also through a crash. What is there already must be equivalent, as for
a client that declares it: then the same document changes nothing a second time.
Not here: HTTP (``server/http/management``), the parts of a document (``document.py``), whether all
of one can be made (``survey.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp.exchanges import declare_exchange
from penstock.adapters.amqp.json_values import plain
from penstock.adapters.amqp.survey import check_source, check_vhost_name, survey
from penstock.adapters.amqp.topology_views import binding_view, exchange_view, user_view
from penstock.model.ids import ConnectionId

if TYPE_CHECKING:
    from penstock.adapters.amqp.document import (
        BindingDefinition,
        Definitions,
        ExchangeDefinition,
        QueueDefinition,
    )
    from penstock.adapters.amqp.exchange import Exchange
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.queue import AmqpQueue
    from penstock.adapters.amqp.vhost import VirtualHost

ANYTHING: Final = ".*"


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
    """Make what is defined, all of it or nothing.

    Raises ``AmqpError`` or ``ValueError`` for the first part that cannot be, before anything is
    made. The rest is one transaction of the catalog: nothing here waits for anybody.
    """
    survey(house, document, vhost)
    if vhost is None:
        for each in document.users:
            house.users.put(each.user)
        for host in document.vhosts:
            make_vhost(house, host.name)

    def place(named: str) -> VirtualHost:
        return vhost if vhost is not None else house.vhosts[named]

    for exchange in document.exchanges:
        make_exchange(place(exchange.vhost), exchange)
    for queue in document.queues:
        make_queue(place(queue.vhost), queue)
    for binding in document.bindings:
        make_binding(place(binding.vhost), binding)


def make_vhost(house: House, name: str) -> VirtualHost:
    """A vhost, new or there already."""
    check_vhost_name(name)
    return house.make_vhost(name)


def make_exchange(vhost: VirtualHost, wanted: ExchangeDefinition) -> Exchange:
    """An exchange, new or equivalent."""
    return declare_exchange(vhost, wanted.exchange)


def make_queue(vhost: VirtualHost, wanted: QueueDefinition) -> AmqpQueue:
    """A queue, new or equivalent."""
    return vhost.queues.declare(wanted.declaration, OPERATOR)


def make_binding(vhost: VirtualHost, wanted: BindingDefinition) -> str:
    """A binding, new or there already; its name in paths."""
    if wanted.is_implied:
        return wanted.routing_key
    check_source(wanted)
    binding = vhost.bindings.bind(
        wanted.source, wanted.target, wanted.routing_key, dict(wanted.arguments)
    )
    return binding.properties_key


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
