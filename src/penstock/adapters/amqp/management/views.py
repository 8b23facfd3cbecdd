"""Objects of the AMQP broker as JSON, in RabbitMQ's field names.

Every view is made of what the objects say at this moment; nothing is kept for it but the samples
that rates are made of. What the broker does not have is left out, not invented. A queue and a
channel in detail have the first ``SHOWN_MAX`` of their consumers; ``consumers`` and
``consumer_count`` count all, and ``/api/consumers`` lists them.

Not here: HTTP (``server/management``), counting (``statistics.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from penstock.adapters.amqp.management.statistics import (
    DELIVERY_COUNTERS,
    MESSAGE_COUNTS,
    QueueStatistics,
    channel_key,
    channel_state,
    channel_statistics,
    connection_key,
    connection_state,
    connection_statistics,
    queue_key,
    queue_state,
    queue_statistics,
    vhost_key,
)
from penstock.adapters.amqp.topology.matching import Binding, to_queue
from penstock.adapters.amqp.topology.queue import SUBSCRIPTION
from penstock.flow.crowd import SHOWN_MAX
from penstock.wire.amqp.properties import Properties
from penstock.wire.amqp.table import Timestamp

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import AmqpBroker
    from penstock.adapters.amqp.channel import AmqpChannel
    from penstock.adapters.amqp.connection import AmqpConnection
    from penstock.adapters.amqp.consumer import BasicConsumer
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.adapters.amqp.ports import ChannelPort, ConnectionPort
    from penstock.adapters.amqp.topology.exchange import Exchange
    from penstock.adapters.amqp.topology.policies import EffectivePolicy, Policy
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.adapters.amqp.users import User


def node_of(context: AmqpContext) -> str:
    """What the broker is called where RabbitMQ says which node."""
    return f"penstock@{context.cluster_name}"


_PUBLISHING: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable")
_NO_TLS: Final = dict.fromkeys(
    (
        "ssl_protocol", "ssl_key_exchange", "ssl_cipher", "ssl_hash",
        "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity",
    )
)  # fmt: skip


def connection_view(connection: AmqpConnection) -> dict[str, Any]:
    context, peer = connection.context, connection.peer
    now_ms = context.clock.monotonic_ms()
    statistics = connection_statistics(connection)
    return {
        "name": connection.name,
        "user_provided_name": connection.connection_name or None,
        "node": node_of(context),
        "vhost": connection.vhost.name,
        "user": connection.user.name,
        "user_who_performed_action": connection.user.name,
        "protocol": "AMQP 0-9-1",
        "type": "network",
        "state": connection_state(connection.engine_connection, context.engine, now_ms),
        "peer_host": peer.host,
        "peer_port": peer.port,
        "host": peer.local_host,
        "port": peer.local_port,
        "ssl": False,
        **_NO_TLS,
        "auth_mechanism": connection.auth_mechanism,
        "channels": len(connection.channels),
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_max,
        "timeout": connection.heartbeat,
        "connected_at": connection.connected_ms,
        "client_properties": plain(connection.client_properties),
        "recv_cnt": connection.receives,
        "send_cnt": connection.sends,
        "send_pend": connection.unsent.messages,
        **context.rates.details(connection_key(connection), statistics, ("recv_oct", "send_oct")),
        "message_stats": context.rates.details(
            connection_key(connection), statistics, ("publish",)
        ),
    }


def channel_view(channel: AmqpChannel, *, is_detailed: bool = False) -> dict[str, Any]:
    """One channel; in detail with its consumers."""
    connection, publishing, consuming = channel.connection, channel.publisher, channel.consumers
    now_ms = connection.context.clock.monotonic_ms()
    tx, confirms = publishing.tx, publishing.confirms
    uncommitted, acks = tx.held if tx is not None else (0, 0)
    unconfirmed = confirms.outstanding if confirms is not None else 0
    statistics = channel_statistics(channel)
    view: dict[str, Any] = {
        "name": channel_name(channel),
        "number": channel.number,
        "node": node_of(connection.context),
        "vhost": channel.vhost.name,
        "user": connection.user.name,
        "user_who_performed_action": connection.user.name,
        "state": channel_state(channel.engine_channel, now_ms),
        "confirm": confirms is not None,
        "transactional": tx is not None,
        "prefetch_count": consuming.prefetch_count,
        "global_prefetch_count": consuming.global_prefetch_count,
        "consumer_count": len(consuming.by_tag),
        "messages_unacknowledged": consuming.unacked_count,
        "messages_unconfirmed": unconfirmed,
        "messages_uncommitted": uncommitted,
        "acks_uncommitted": acks,
        "connection_details": connection_details(connection),
        "message_stats": connection.context.rates.details(
            channel_key(channel), statistics, (*_PUBLISHING, *DELIVERY_COUNTERS)
        ),
    }
    if is_detailed:
        shown = islice(consuming.by_tag.values(), SHOWN_MAX)
        view["consumer_details"] = [consumer_view(each) for each in shown]
        # Which exchange and which queue: RabbitMQ shows none either, with basic rates.
        view["publishes"] = view["deliveries"] = []
    return view


def consumer_view(entry: BasicConsumer) -> dict[str, Any]:
    """One consumer, as lists and details of queues and channels show it."""
    channel = entry.channel
    return {
        "consumer_tag": entry.tag,
        "queue": {"name": entry.queue.name, "vhost": channel.vhost.name},
        "ack_required": not entry.is_no_ack,
        "exclusive": entry.is_exclusive,
        "prefetch_count": entry.prefetch_count,
        "active": entry.is_active,
        "activity_status": "up" if entry.is_active else "waiting",
        "arguments": plain(entry.arguments),
        "channel_details": channel_details(channel),
    }


def connection_details(connection: ConnectionPort) -> dict[str, Any]:
    """How other views name a connection."""
    return {
        "name": connection.name,
        "peer_host": connection.peer.host,
        "peer_port": connection.peer.port,
    }


def channel_details(channel: ChannelPort) -> dict[str, Any]:
    """How other views name a channel."""
    connection = channel.connection
    return {
        "name": channel_name(channel),
        "number": channel.number,
        "connection_name": connection.name,
        "node": node_of(channel.context),
        "peer_host": connection.peer.host,
        "peer_port": connection.peer.port,
        "user": connection.user.name,
    }


def channel_name(channel: ChannelPort) -> str:
    """A channel's name in paths."""
    return f"{channel.connection.name} ({channel.number})"


# ---- topology -----------------------------------------------------------------------------------


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
        **_policy_fields(exchange.policy),
    }


def policy_view(vhost: VirtualHost, policy: Policy) -> dict[str, Any]:
    """One policy, of a user or of an operator."""
    return {
        "vhost": vhost.name,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }


def _policy_fields(policy: EffectivePolicy) -> dict[str, Any]:
    return {
        "policy": policy.name,
        "operator_policy": policy.operator,
        "effective_policy_definition": policy.definition,
    }


def queue_view(
    broker: AmqpBroker, queue: AmqpQueue, *, is_detailed: bool = False
) -> dict[str, Any]:
    """One queue; in detail with every consumer.

    Messages and their bytes are those of its subscription ``amqp`` (bytes of bodies: exact for few
    of them or even ones, ``engine/subscription/cursor.py``). ``consumer_utilisation`` is the share
    of the time between the last two samples in which no message was ready that nobody could take.
    """
    rates, key = broker.context.rates, queue_key(queue)
    statistics = queue_statistics(queue)
    subscription = queue.topic.subscriptions.get(SUBSCRIPTION)
    ready_bytes, unacked_bytes = subscription.body_bytes() if subscription is not None else (0, 0)
    utilisation = _utilisation(broker, queue)
    owner = broker.connections.get(queue.owner) if queue.owner is not None else None
    view: dict[str, Any] = {
        "name": queue.name,
        "vhost": queue.vhost_name,
        "node": node_of(broker.context),
        "type": queue.kind,
        "state": queue_state(queue.topic, broker.clock.monotonic_ms()),
        "durable": queue.is_durable,
        "auto_delete": queue.is_auto_delete,
        "exclusive": queue.is_exclusive,
        "arguments": plain(queue.arguments),
        **rates.details(key, statistics, MESSAGE_COUNTS),
        "message_bytes": ready_bytes + unacked_bytes,
        "message_bytes_ready": ready_bytes,
        "message_bytes_unacknowledged": unacked_bytes,
        "head_message_timestamp": None,
        "consumers": queue.consumers,
        "consumer_utilisation": utilisation,
        "consumer_capacity": utilisation or 0.0,
        "exclusive_consumer_tag": None,
        "single_active_consumer_tag": None,
        **_policy_fields(queue.policy),
        "owner_pid_details": connection_details(owner) if owner is not None else None,
        "message_stats": rates.details(key, statistics, ("publish", *DELIVERY_COUNTERS)),
    }
    if is_detailed:
        consumers = [consumer_view(each) for each in consumers_of(queue)]
        view["consumer_details"] = consumers
        view["incoming"] = view["deliveries"] = []
        for each in consumers:
            if each["exclusive"]:
                view["exclusive_consumer_tag"] = each["consumer_tag"]
            if queue.arguments.get("x-single-active-consumer") and each["active"]:
                view["single_active_consumer_tag"] = each["consumer_tag"]
    return view


def consumers_of(queue: AmqpQueue) -> list[BasicConsumer]:
    """Some consumers of a queue, of any connection; if others stand by, the active one first."""
    subscription = queue.topic.subscriptions.get(SUBSCRIPTION)
    members = () if subscription is None else subscription.consumers
    # Who only asks (basic.get) has no tag, and is passive.
    found = [each.outlet for each in members if not each.is_passive]
    entries = cast("list[BasicConsumer]", found)
    if queue.arguments.get("x-single-active-consumer"):
        entries.sort(key=lambda each: not each.is_active)
    return entries[:SHOWN_MAX]


def binding_view(vhost: VirtualHost, binding: Binding) -> dict[str, Any]:
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


def vhost_view(
    broker: AmqpBroker, vhost: VirtualHost, statistics: QueueStatistics
) -> dict[str, Any]:
    """One vhost with its totals."""
    key = vhost_key(vhost)
    return {
        "name": vhost.name,
        "description": "",
        "tags": [],
        "metadata": {"description": "", "tags": []},
        "default_queue_type": "classic",
        "tracing": False,
        "cluster_state": {node_of(broker.context): "running"},
        **broker.context.rates.details(key, statistics, MESSAGE_COUNTS),
        "message_stats": broker.context.rates.details(key, statistics, DELIVERY_COUNTERS),
    }


def user_view(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.algorithm,
        "tags": list(user.tags),
        "limits": {},
        **({"denied_vhosts": list(user.denied_vhosts)} if user.denied_vhosts else {}),
    }


def _utilisation(broker: AmqpBroker, queue: AmqpQueue) -> float | None:
    subscription = queue.topic.subscriptions.get(SUBSCRIPTION)
    if subscription is None or not queue.consumers:
        return None
    rates = broker.context.rates.per_second(queue_key(queue))
    if rates is None:
        return 0.0 if subscription.is_unserved else 1.0
    return max(0.0, 1.0 - rates["unserved_ms"] / 1000)


# ---- JSON values --------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A field value in JSON's types.

    Text that is no UTF-8 loses what is not, bytes become text the same way, decimals become
    numbers. The way back needs nothing: every JSON value is a field value.
    """
    if isinstance(value, dict):
        return {plain(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (str, bytes)):
        raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "replace")
    if isinstance(value, Decimal):
        return float(value)
    return int(value) if type(value) is Timestamp else value


def plain_properties(properties: Properties) -> dict[str, Any]:
    """Those basic properties that are there."""
    found = msgspec.structs.asdict(properties)
    return {name: plain(value) for name, value in found.items() if value is not None}
