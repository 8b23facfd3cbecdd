"""Exchanges, queues, bindings, vhosts and users in RabbitMQ's field names.

A queue's figures are those of its subscription ``amqp``: ready and unacknowledged messages, bytes
of their bodies (exact for few of them or even ones, ``engine/subscription/cursor.py``), and what happened
since the start. ``consumer_utilisation`` is the share of the time between the last two samples in
which no message was ready that nobody could take.

Not here: connections, channels and consumers (``client_views.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.adapters.amqp.binding import Binding, to_queue
from penstock.adapters.amqp.client_views import connection_details, consumer_view, node_of
from penstock.adapters.amqp.figures import (
    HANDED,
    LEVELS,
    queue_figures,
    queue_key,
    vhost_figures,
    vhost_key,
)
from penstock.adapters.amqp.json_values import plain
from penstock.adapters.amqp.queue import SUBSCRIPTION
from penstock.adapters.amqp.states import queue_state

if TYPE_CHECKING:
    from penstock.adapters.amqp.exchange import Exchange
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.queue import AmqpQueue
    from penstock.adapters.amqp.users import User
    from penstock.adapters.amqp.vhost import VirtualHost


def exchange_view(
    vhost: VirtualHost, exchange: Exchange, *, is_detailed: bool = False
) -> dict[str, Any]:
    """One exchange; in detail with who publishes, which RabbitMQ's basic rates do not tell."""
    details: dict[str, Any] = {"incoming": [], "outgoing": []} if is_detailed else {}
    return {
        **details,
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.kind,
        "durable": exchange.is_durable,
        "auto_delete": exchange.is_auto_delete,
        "internal": exchange.is_internal,
        "arguments": plain(exchange.arguments),
        "policy": None,
    }


def queue_view(queue: AmqpQueue, *, is_detailed: bool = False) -> dict[str, Any]:
    """One queue; in detail with every consumer."""
    house, key = queue.vhost.house, queue_key(queue)
    figures = queue_figures(queue)
    subscription = queue.topic.subscriptions.get(SUBSCRIPTION)
    ready_bytes, unacked_bytes = subscription.body_bytes() if subscription is not None else (0, 0)
    utilisation = _utilisation(queue)
    owner = house.sessions.get(queue.owner) if queue.owner is not None else None
    view: dict[str, Any] = {
        "name": queue.name,
        "vhost": queue.vhost.name,
        "node": node_of(house),
        "type": queue.kind,
        "state": queue_state(queue.topic, house.clock.monotonic_ms()),
        "durable": queue.is_durable,
        "auto_delete": queue.is_auto_delete,
        "exclusive": queue.is_exclusive,
        "arguments": plain(queue.arguments),
        **house.rates.details(key, figures, LEVELS),
        "message_bytes": ready_bytes + unacked_bytes,
        "message_bytes_ready": ready_bytes,
        "message_bytes_unacknowledged": unacked_bytes,
        "head_message_timestamp": None,
        "consumers": queue.consumers,
        "consumer_utilisation": utilisation,
        "consumer_capacity": utilisation or 0.0,
        "exclusive_consumer_tag": None,
        "single_active_consumer_tag": None,
        "policy": None,
        "operator_policy": None,
        "effective_policy_definition": {},
        "owner_pid_details": connection_details(owner) if owner is not None else None,
        "message_stats": house.rates.details(key, figures, ("publish", *HANDED)),
    }
    if is_detailed:
        consumers = consumers_of(queue)
        view["consumer_details"] = consumers
        view["incoming"] = view["deliveries"] = []
        for each in consumers:
            if each["exclusive"]:
                view["exclusive_consumer_tag"] = each["consumer_tag"]
            if queue.arguments.get("x-single-active-consumer") and each["active"]:
                view["single_active_consumer_tag"] = each["consumer_tag"]
    return view


def consumers_of(queue: AmqpQueue) -> list[dict[str, Any]]:
    """The consumers of a queue, on whatever connection."""
    return [
        consumer_view(entry)
        for session in queue.vhost.house.sessions.values()
        for channel in session.channels.values()
        for entry in channel.consuming.consumers.values()
        if entry.queue is queue
    ]


def binding_view(vhost: VirtualHost, binding: Binding) -> dict[str, Any]:
    """One binding."""
    return {
        "source": binding.source,
        "vhost": vhost.name,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind,
        "routing_key": binding.routing_key,
        "arguments": plain(binding.arguments),
        "properties_key": binding.properties_key,
    }


def all_bindings(vhost: VirtualHost) -> Iterator[Binding]:
    """Those that were made and those that every queue has: from the default exchange, by name."""
    for queue in vhost.queues:
        yield default_binding(queue.name)
    yield from vhost.bindings


def default_binding(queue: str) -> Binding:
    """The binding of a queue to the default exchange, which nobody made."""
    return Binding("", to_queue(queue), queue, is_durable=True)


def vhost_view(house: House, vhost: VirtualHost) -> dict[str, Any]:
    """One vhost with its totals."""
    figures, key = vhost_figures(vhost), vhost_key(vhost)
    return {
        "name": vhost.name,
        "description": "",
        "tags": [],
        "metadata": {"description": "", "tags": []},
        "default_queue_type": "classic",
        "tracing": False,
        "cluster_state": {node_of(house): "running"},
        **house.rates.details(key, figures, LEVELS),
        "message_stats": house.rates.details(key, figures, HANDED),
    }


def user_view(user: User) -> dict[str, Any]:
    """One user."""
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.algorithm,
        "tags": list(user.tags),
        "limits": {},
    }


def _utilisation(queue: AmqpQueue) -> float | None:
    subscription = queue.topic.subscriptions.get(SUBSCRIPTION)
    if subscription is None or not queue.consumers:
        return None
    rates = queue.vhost.house.rates.per_second(queue_key(queue))
    if rates is None:
        return 0.0 if subscription.is_unserved else 1.0
    return max(0.0, 1.0 - rates["unserved_ms"] / 1000)
