"""Exchanges, queues, bindings, vhosts and users in RabbitMQ's field names.

A queue's figures are those of its subscription ``amqp``: ready and unacknowledged messages, bytes
of log behind it, and what happened since the start. ``consumer_utilisation`` is 1 while some
consumer could take the next message and 0 while none could; RabbitMQ averages it.

Not here: connections, channels and consumers (``client_views.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.adapters.amqp.binding import Binding, to_queue
from penstock.adapters.amqp.client_views import connection_details, consumer_view, node_of
from penstock.adapters.amqp.json_values import plain
from penstock.adapters.amqp.queue import SUBSCRIPTION
from penstock.adapters.amqp.states import queue_state

if TYPE_CHECKING:
    from penstock.adapters.amqp.exchange import Exchange
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.queue import AmqpQueue
    from penstock.adapters.amqp.rates import Rates
    from penstock.adapters.amqp.users import User
    from penstock.adapters.amqp.vhost import VirtualHost


def exchange_view(vhost: VirtualHost, exchange: Exchange) -> dict[str, Any]:
    """One exchange."""
    return {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.kind,
        "durable": exchange.is_durable,
        "auto_delete": exchange.is_auto_delete,
        "internal": exchange.is_internal,
        "arguments": plain(exchange.arguments),
        "policy": None,
    }


def queue_view(queue: AmqpQueue, rates: Rates, *, is_detailed: bool = False) -> dict[str, Any]:
    """One queue; in detail with every consumer."""
    house = queue.vhost.house
    now_ms = house.clock.monotonic_ms()
    subscription = queue.topic.subscriptions.get(SUBSCRIPTION)
    figures = subscription.statistics() if subscription is not None else None
    ready = figures.ready + figures.delayed if figures is not None else 0
    unacked = figures.unacked if figures is not None else 0
    counters = {"publish": sum(each.index.next_offset for each in queue.topic.queues)}
    if figures is not None:
        counters["ack"] = figures.settled
        counters["redeliver"] = figures.redelivered
        counters["deliver_get"] = figures.settled + unacked + figures.redelivered
    owner = house.sessions.get(queue.owner) if queue.owner is not None else None
    view: dict[str, Any] = {
        "name": queue.name,
        "vhost": queue.vhost.name,
        "node": node_of(house),
        "type": queue.kind,
        "state": queue_state(queue.topic, now_ms),
        "durable": queue.is_durable,
        "auto_delete": queue.is_auto_delete,
        "exclusive": queue.is_exclusive,
        "arguments": plain(queue.arguments),
        "messages": ready + unacked,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        "message_bytes": figures.backlog_bytes if figures is not None else 0,
        "consumers": queue.consumers,
        "consumer_utilisation": _utilisation(queue),
        "consumer_capacity": _utilisation(queue) or 0,
        "exclusive_consumer_tag": None,
        "single_active_consumer_tag": None,
        "policy": None,
        "operator_policy": None,
        "effective_policy_definition": {},
        "owner_pid_details": connection_details(owner) if owner is not None else None,
        "message_stats": rates.details(queue.topic.topic_id, counters, now_ms),
    }
    for name in ("messages", "messages_ready", "messages_unacknowledged"):
        key = (queue.topic.topic_id, name)
        view[f"{name}_details"] = {"rate": rates.rate(key, view[name], now_ms)}
    if is_detailed:
        consumers = consumers_of(queue)
        view["consumer_details"] = consumers
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
    ready = unacked = 0
    for queue in vhost.queues:
        ready += queue.ready
        unacked += queue.unacked
    return {
        "name": vhost.name,
        "description": "",
        "tags": [],
        "default_queue_type": "classic",
        "tracing": False,
        "cluster_state": {node_of(house): "running"},
        "messages": ready + unacked,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
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
    takers = [each for each in subscription.consumers if not each.is_passive]
    return 1.0 if any(not each.blocked_by() for each in takers) else 0.0
