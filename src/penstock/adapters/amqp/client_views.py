"""Connections, channels and consumers in RabbitMQ's field names.

Every view is made of what the objects say at this moment; nothing is kept for it but the samples
of ``rates.py``. Figures that the broker does not have are left out, not invented.

Not here: exchanges, queues and bindings (``topology_views.py``), HTTP (``server/http/management``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp.figures import (
    HANDED,
    channel_figures,
    channel_key,
    connection_figures,
    connection_key,
)
from penstock.adapters.amqp.json_values import plain
from penstock.adapters.amqp.publish import Mode
from penstock.adapters.amqp.states import channel_state, connection_state

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState
    from penstock.adapters.amqp.consumers import ConsumerEntry
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.session import Session


def node_of(house: House) -> str:
    """What the broker is called where RabbitMQ says which node."""
    return f"penstock@{house.cluster_name}"


_PUBLISHING: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable")
_NO_TLS: Final = dict.fromkeys(
    (
        "ssl_protocol", "ssl_key_exchange", "ssl_cipher", "ssl_hash",
        "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity",
    )
)  # fmt: skip


def connection_view(session: Session) -> dict[str, Any]:
    """One connection."""
    house, peer = session.house, session.peer
    now_ms = house.clock.monotonic_ms()
    figures = connection_figures(session)
    return {
        "name": session.name,
        "user_provided_name": session.connection_name or None,
        "node": node_of(house),
        "vhost": session.vhost.name,
        "user": session.user.name,
        "user_who_performed_action": session.user.name,
        "protocol": "AMQP 0-9-1",
        "type": "network",
        "state": connection_state(session.connection, house.engine, now_ms),
        "peer_host": peer.host,
        "peer_port": peer.port,
        "host": peer.local_host,
        "port": peer.local_port,
        "ssl": False,
        **_NO_TLS,
        "auth_mechanism": session.auth_mechanism,
        "channels": len(session.channels),
        "channel_max": session.channel_max,
        "frame_max": session.frame_max,
        "timeout": session.heartbeat,
        "connected_at": session.connected_ms,
        "client_properties": plain(session.client_properties),
        "recv_cnt": session.receives,
        "send_cnt": session.sends,
        "send_pend": session.unsent.messages,
        **house.rates.details(connection_key(session), figures, ("recv_oct", "send_oct")),
        "message_stats": house.rates.details(connection_key(session), figures, ("publish",)),
    }


def channel_view(channel: ChannelState, *, is_detailed: bool = False) -> dict[str, Any]:
    """One channel; in detail with its consumers."""
    session, publishing, consuming = channel.session, channel.publishing, channel.consuming
    now_ms = session.house.clock.monotonic_ms()
    tx, confirms = publishing.tx, publishing.confirms
    uncommitted, acks = tx.held if tx is not None else (0, 0)
    unconfirmed = confirms.outstanding if confirms is not None else 0
    figures = channel_figures(channel)
    view: dict[str, Any] = {
        "name": channel_name(channel),
        "number": channel.number,
        "node": node_of(session.house),
        "vhost": channel.vhost.name,
        "user": session.user.name,
        "user_who_performed_action": session.user.name,
        "state": channel_state(channel.engine_channel, now_ms),
        "confirm": publishing.mode is Mode.CONFIRM,
        "transactional": tx is not None,
        "prefetch_count": consuming.prefetch_count,
        "global_prefetch_count": consuming.global_prefetch_count,
        "consumer_count": len(consuming.consumers),
        "messages_unacknowledged": consuming.unacked_count,
        "messages_unconfirmed": unconfirmed,
        "messages_uncommitted": uncommitted,
        "acks_uncommitted": acks,
        "connection_details": connection_details(session),
        "message_stats": session.house.rates.details(
            channel_key(channel), figures, (*_PUBLISHING, *HANDED)
        ),
    }
    if is_detailed:
        view["consumer_details"] = [consumer_view(each) for each in consuming.consumers.values()]
        # Which exchange and which queue: RabbitMQ shows none either, with basic rates.
        view["publishes"] = view["deliveries"] = []
    return view


def consumer_view(entry: ConsumerEntry) -> dict[str, Any]:
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


def connection_details(session: Session) -> dict[str, Any]:
    """How other views name a connection."""
    return {
        "name": session.name,
        "peer_host": session.peer.host,
        "peer_port": session.peer.port,
    }


def channel_details(channel: ChannelState) -> dict[str, Any]:
    """How other views name a channel."""
    session = channel.session
    return {
        "name": channel_name(channel),
        "number": channel.number,
        "connection_name": session.name,
        "node": node_of(session.house),
        "peer_host": session.peer.host,
        "peer_port": session.peer.port,
        "user": session.user.name,
    }


def channel_name(channel: ChannelState) -> str:
    """A channel's name in paths."""
    return f"{channel.session.name} ({channel.number})"
