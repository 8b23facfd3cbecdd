"""Overview, nodes, health, connections, channels and consumers.

======  ==========================================  ==============================================
GET     /api/overview                               totals, rates, listeners, versions
GET     /api/whoami                                 name and tags of who asks
GET     /api/nodes, /api/nodes/NAME                 this process as a node
GET     /api/health/checks/alarms, local-alarms     200, or 503 while an alarm is raised
GET     /api/health/checks/port-listener/PORT       200 when something of ours listens there; also
                                                    protocol-listener/NAME
GET     /api/aliveness-test/VHOST                   always ok: the answer is the proof
GET     /api/policies, /api/parameters and others   empty: there is no such thing here
GET     /api/connections, /api/vhosts/V/connections clients
GET     /api/connections/NAME, .../channels         one of them
DELETE  /api/connections/NAME                       closed with 320; header X-Reason says why
GET     /api/channels, /api/vhosts/V/channels       their channels; /api/channels/NAME
GET     /api/consumers, /api/consumers/VHOST        their consumers
======  ==========================================  ==============================================
"""

from __future__ import annotations

import os
from typing import Any, Final

from penstock import __version__
from penstock.adapters.amqp.client_views import (
    channel_name,
    channel_view,
    connection_view,
    consumer_view,
    node_of,
)
from penstock.adapters.amqp.session import Session
from penstock.server.http.management.asked import Asked, not_found, paged
from penstock.server.http.management.place import ANY, Done, Failed, Place, Table

CLOSED: Final = "Closed via management plugin"
AMQP: Final = "amqp"
EMPTY: Final = (
    "policies", "operator-policies", "parameters", "global-parameters", "topic-permissions",
    "vhost-limits", "user-limits", "extensions", "federation-links", "shovels",
)  # fmt: skip
"""Lists that tools ask for and that are always empty here."""


async def overview(place: Place, _asked: Asked) -> dict[str, Any]:
    """Everything in a few numbers."""
    house = place.house
    settings, engine = house.settings, house.engine
    sessions = list(house.sessions.values())
    queues = [queue for vhost in house.vhosts.values() for queue in vhost.queues]
    ready = sum(queue.ready for queue in queues)
    unacked = sum(queue.unacked for queue in queues)
    now_ms = house.clock.monotonic_ms()
    figures = engine.counters
    totals = {"messages_ready": ready, "messages_unacknowledged": unacked}
    return {
        "management_version": settings.server_version,
        "rabbitmq_version": settings.server_version,
        "product_name": settings.server_product,
        "product_version": settings.server_version,
        "penstock_version": __version__,
        "erlang_version": "",
        "erlang_full_version": "",
        "cluster_name": house.cluster_name,
        "node": node_of(house),
        "rates_mode": "basic",
        "statistics_db_event_queue": 0,
        "message_stats": place.rates.details(
            "overview",
            {
                "publish": figures.published,
                "confirm": figures.confirmed,
                "drop_unroutable": figures.unroutable,
            },
            now_ms,
        ),
        "queue_totals": {"messages": ready + unacked, **totals},
        "object_totals": {
            "connections": len(sessions),
            "channels": sum(len(each.channels) for each in sessions),
            "consumers": sum(queue.consumers for queue in queues),
            "exchanges": sum(len(vhost.exchanges) for vhost in house.vhosts.values()),
            "queues": len(queues),
        },
        "exchange_types": [
            {"name": kind, "description": "", "enabled": True}
            for kind in ("direct", "fanout", "headers", "topic")
        ],
        "listeners": [
            {"node": node_of(house), "protocol": protocol, **_address(endpoint)}
            for protocol, endpoint in place.endpoints.items()
        ],
        "contexts": [],
    }


async def whoami(_place: Place, asked: Asked) -> dict[str, Any]:
    """Who asks."""
    return {"name": asked.user.name, "tags": list(asked.user.tags)}


async def nodes(place: Place, asked: Asked) -> Any:
    """The one node."""
    return await paged(asked, [place], _node)


async def node(place: Place, _asked: Asked, name: str) -> dict[str, Any]:
    """The one node by its name."""
    found = _node(place)
    if found["name"] != name:
        raise not_found()
    return found


def _node(place: Place) -> dict[str, Any]:
    alarms = place.house.engine.alarms
    return {
        "name": node_of(place.house),
        "type": "disc",
        "running": True,
        "os_pid": str(os.getpid()),
        "processors": os.cpu_count() or 1,
        "uptime": place.house.clock.monotonic_ms() - place.started_ms,
        "sockets_used": len(place.house.sessions),
        "mem_used": alarms.memory.value,
        "mem_limit": alarms.memory.limit,
        "mem_alarm": alarms.memory.is_raised,
        "disk_free": alarms.disk.value,
        "disk_free_limit": alarms.disk.limit,
        "disk_free_alarm": alarms.disk.is_raised,
        "partitions": [],
        "being_drained": False,
    }


async def alarms(place: Place, _asked: Asked) -> dict[str, str] | Failed:
    """503 while an alarm is raised."""
    raised = place.house.engine.alarms.raised
    if raised:
        told = ", ".join(f"{reason.value} ({culprit})" for reason, culprit in raised.items())
        return Failed(f"alarms in effect: {told}")
    return {"status": "ok"}


async def alive(place: Place, _asked: Asked, vhost: str) -> dict[str, str]:
    """It answers, so it lives."""
    place.vhost(vhost)
    return {"status": "ok"}


async def listens(place: Place, _asked: Asked, wanted: str) -> dict[str, str] | Failed:
    """503 unless a listener has that name or port."""
    known = {each for name, at in place.endpoints.items() for each in (name, at.rpartition(":")[2])}
    # RabbitMQ's health checks call it by version as well.
    if wanted not in known and not wanted.startswith(f"{AMQP}/"):
        return Failed(f"no listener for {wanted}")
    return {"status": "ok"}


async def well(_place: Place, _asked: Asked) -> dict[str, str]:
    """Checks of things that cannot go wrong here."""
    return {"status": "ok"}


async def nothing(_place: Place, _asked: Asked, *_names: str) -> list[Any]:
    """Lists of what we do not have."""
    return []


async def cluster_name(place: Place, _asked: Asked) -> dict[str, str]:
    """What the broker calls itself."""
    return {"name": place.house.cluster_name}


async def connections(place: Place, asked: Asked, vhost: str | None = None) -> Any:
    """Every client."""
    found = _sessions(place, vhost)
    return await paged(asked, found, lambda each: connection_view(each, place.rates))


async def connection(place: Place, _asked: Asked, name: str) -> dict[str, Any]:
    """One client."""
    return connection_view(_session(place, name), place.rates)


async def connection_channels(place: Place, asked: Asked, name: str) -> Any:
    """Its channels."""
    found = _session(place, name).channels.values()
    return await paged(asked, found, lambda each: channel_view(each, place.rates))


async def close(place: Place, asked: Asked, name: str) -> Done:
    """End a connection."""
    session = _session(place, name)
    reason = asked.headers.get("x-reason") or CLOSED
    place.house.close_connection(session.connection_id, reason)
    return Done()


async def channels(place: Place, asked: Asked, vhost: str | None = None) -> Any:
    """Every channel."""
    found = [each for session in _sessions(place, vhost) for each in session.channels.values()]
    return await paged(asked, found, lambda each: channel_view(each, place.rates))


async def channel(place: Place, _asked: Asked, name: str) -> dict[str, Any]:
    """One channel, with its consumers."""
    for session in _sessions(place, None):
        for each in session.channels.values():
            if channel_name(each) == name:
                entries = each.consuming.consumers.values()
                consumers = [consumer_view(entry) for entry in entries]
                return {**channel_view(each, place.rates), "consumer_details": consumers}
    raise not_found()


async def consumers(place: Place, asked: Asked, vhost: str | None = None) -> Any:
    """Every consumer."""
    found = [
        entry
        for session in _sessions(place, vhost)
        for each in session.channels.values()
        for entry in each.consuming.consumers.values()
    ]
    return await paged(asked, found, consumer_view)


def _address(endpoint: str) -> dict[str, Any]:
    host, _, port = endpoint.rpartition(":")
    return {"ip_address": host.strip("[]"), "port": int(port)}


def _sessions(place: Place, vhost: str | None) -> list[Session]:
    if vhost is not None:
        place.vhost(vhost)
    return [
        each for each in place.house.sessions.values() if vhost is None or each.vhost.name == vhost
    ]


def _session(place: Place, name: str) -> Session:
    for each in place.house.sessions.values():
        if each.name == name:
            return each
    raise not_found()


TABLE: Final[Table] = {
    ("GET", ("overview",)): overview,
    ("GET", ("whoami",)): whoami,
    ("GET", ("nodes",)): nodes,
    ("GET", ("nodes", ANY)): node,
    ("GET", ("health", "checks", "alarms")): alarms,
    ("GET", ("health", "checks", "local-alarms")): alarms,
    ("GET", ("healthchecks", "node")): alarms,
    ("GET", ("health", "checks", "virtual-hosts")): well,
    ("GET", ("health", "checks", "node-is-quorum-critical")): well,
    ("GET", ("health", "checks", "port-listener", ANY)): listens,
    ("GET", ("health", "checks", "protocol-listener", ANY)): listens,
    ("GET", ("aliveness-test", ANY)): alive,
    ("GET", ("cluster-name",)): cluster_name,
    **{("GET", (kind,)): nothing for kind in EMPTY},
    **{("GET", (kind, ANY)): nothing for kind in EMPTY},
    ("GET", ("connections",)): connections,
    ("GET", ("vhosts", ANY, "connections")): connections,
    ("GET", ("connections", ANY)): connection,
    ("GET", ("connections", ANY, "channels")): connection_channels,
    ("DELETE", ("connections", ANY)): close,
    ("GET", ("channels",)): channels,
    ("GET", ("vhosts", ANY, "channels")): channels,
    ("GET", ("channels", ANY)): channel,
    ("GET", ("consumers",)): consumers,
    ("GET", ("consumers", ANY)): consumers,
}
