"""The broker as a whole, its health, and its connections, channels and consumers.

======  ==========================================  ==============================================
GET     /api/overview                               totals, rates, listeners, versions
GET     /api/whoami                                 name and tags of who asks
GET     /api/cluster-name                           what the broker calls itself
GET     /api/nodes, /api/nodes/NAME                 this process as a node
GET     /api/health/checks/alarms, local-alarms     200, or 503 while an alarm is raised
GET     /api/health/checks/port-listener/PORT       200 when something of ours listens there; also
                                                    protocol-listener/NAME
GET     /api/healthchecks/node, .../NAME            the older check of alarms: 200 with the status,
                                                    also when it failed
GET     /api/aliveness-test/VHOST                   always ok: the answer is the proof
GET     /api/policies, /api/parameters and others   empty: there is no such thing here; PUT is
                                                    refused
GET     /api/connections, /api/vhosts/V/connections clients
GET     /api/connections/NAME, .../channels         one of them
DELETE  /api/connections/NAME                       closed with 320; header X-Reason says why
GET     /api/channels, /api/vhosts/V/channels       their channels; /api/channels/NAME
GET     /api/consumers, /api/consumers/VHOST        their consumers
======  ==========================================  ==============================================

Figures of the Erlang machine (processes, reductions, garbage, Mnesia) are left out.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any, Final

from penstock import __version__
from penstock.adapters.amqp.broker import AmqpBroker
from penstock.adapters.amqp.connection import AmqpConnection
from penstock.adapters.amqp.context import CHURN
from penstock.adapters.amqp.management.statistics import (
    DELIVERY_COUNTERS,
    MESSAGE_COUNTS,
    OVERVIEW,
    broker_statistics,
    vhost_steps,
)
from penstock.adapters.amqp.management.views import (
    channel_name,
    channel_view,
    connection_view,
    consumer_view,
    node_of,
)
from penstock.engine.sampler import WINDOW_MS
from penstock.model.steps import COUNTER_LOOK, Steps
from penstock.server.management.request import (
    ANY,
    QUEUES_AT_A_TIME,
    ApiContext,
    ApiRequest,
    EmptyResponse,
    HealthCheckFailed,
    RouteTable,
    bad_request,
    not_found,
    paged,
)
from penstock.server.view import in_pieces

CLOSED: Final = "Closed via management plugin"
AMQP: Final = "amqp"
EMPTY: Final = (
    "parameters", "global-parameters", "topic-permissions",
    "vhost-limits", "user-limits", "extensions", "federation-links", "shovels",
)  # fmt: skip
"""Lists that tools ask for and that are always empty here."""
_NAMES: Final = ((ANY, ANY), (ANY, ANY, ANY))
"""How one of them is named: by vhost and name, parameters by component as well."""
HTTP: Final = "http"
OPEN_FILES: Final = Path("/proc/self/fd")
PUBLISHED: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable")
RATES_MODE: Final = "basic"
"""Rates of each thing by itself, none of pairs such as channel and queue."""


async def overview(api: ApiContext, _request: ApiRequest) -> dict[str, Any]:
    broker = api.broker
    settings, vhosts = broker.settings, list(broker.vhosts.values())
    totals = [await in_pieces(vhost_steps(each), QUEUES_AT_A_TIME) for each in vhosts]
    channels = await in_pieces(_channel_count(broker))
    statistics = broker_statistics(broker, [each.statistics for each in totals])
    return {
        "management_version": settings.server_version,
        "rabbitmq_version": settings.server_version,
        "product_name": settings.server_product,
        "product_version": settings.server_version,
        "penstock_version": __version__,
        "erlang_version": "",
        "erlang_full_version": "",
        "cluster_name": broker.context.cluster_name,
        "node": node_of(broker.context),
        "rates_mode": RATES_MODE,
        "sample_retention_policies": {
            kind: [WINDOW_MS // 1000] for kind in ("global", "basic", "detailed")
        },
        "disable_stats": False,
        "enable_queue_totals": False,
        "statistics_db_event_queue": 0,
        "message_stats": broker.context.rates.details(
            OVERVIEW, statistics, (*PUBLISHED, *DELIVERY_COUNTERS)
        ),
        "churn_rates": broker.context.rates.details(OVERVIEW, statistics, CHURN),
        "queue_totals": broker.context.rates.details(OVERVIEW, statistics, MESSAGE_COUNTS),
        "object_totals": {
            "connections": len(broker.connections),
            "channels": channels,
            "consumers": sum([each.consumers for each in totals]),
            "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
            "queues": sum([each.queues for each in totals]),
        },
        "exchange_types": _exchange_types(),
        "listeners": [
            {"node": node_of(broker.context), "protocol": protocol, **_address(endpoint)}
            for protocol, endpoint in api.endpoints.items()
        ],
        "contexts": [{"node": node_of(broker.context), **each} for each in _contexts(api)],
    }


def _channel_count(broker: AmqpBroker) -> Steps[int]:
    channels = 0
    for connection in list(broker.connections.values()):
        channels += len(connection.channels)
        yield COUNTER_LOOK
    return channels


async def whoami(_api: ApiContext, request: ApiRequest) -> dict[str, Any]:
    return {"name": request.user.name, "tags": list(request.user.tags)}


async def cluster_name(api: ApiContext, _request: ApiRequest) -> dict[str, str]:
    return {"name": api.broker.context.cluster_name}


async def nodes(api: ApiContext, request: ApiRequest) -> Any:
    return await paged(request, [api], _node)


async def node(api: ApiContext, _request: ApiRequest, name: str) -> dict[str, Any]:
    found = _node(api)
    if found["name"] != name:
        raise not_found()
    return found


def _node(api: ApiContext) -> dict[str, Any]:
    alarms = api.broker.engine.alarms
    return {
        "name": node_of(api.broker.context),
        "type": "disc",
        "running": True,
        "os_pid": str(os.getpid()),
        "processors": os.cpu_count() or 1,
        "uptime": api.broker.clock.monotonic_ms() - api.started_ms,
        **_files(),
        "sockets_used": len(api.broker.connections),
        "sockets_total": api.broker.all_settings.listeners.connections_max,
        "mem_used": alarms.memory.value,
        "mem_limit": alarms.memory.limit,
        "mem_alarm": alarms.memory.is_raised,
        "mem_calculation_strategy": "rss",
        "disk_free": alarms.disk.value,
        "disk_free_limit": alarms.disk.limit,
        "disk_free_alarm": alarms.disk.is_raised,
        "rates_mode": RATES_MODE,
        "exchange_types": _exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": "", "enabled": True} for name in ("PLAIN", "AMQPLAIN")
        ],
        "applications": [
            {"name": "penstock", "description": "Penstock", "version": __version__},
        ],
        "contexts": _contexts(api),
        "enabled_plugins": ["rabbitmq_management"],
        "cluster_links": [],
        "partitions": [],
        "being_drained": False,
    }


def _files() -> dict[str, int]:
    """Open files and how many there may be; how many there are is told by Linux alone."""
    limits = {"fd_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
    if OPEN_FILES.is_dir():
        limits["fd_used"] = sum(1 for _ in OPEN_FILES.iterdir())
    return limits


def _exchange_types() -> list[dict[str, Any]]:
    return [
        {"name": kind, "description": f"AMQP {kind} exchange", "enabled": True}
        for kind in ("direct", "fanout", "headers", "topic")
    ]


def _contexts(api: ApiContext) -> list[dict[str, str]]:
    return [
        {
            "description": "RabbitMQ Management",
            "path": "/",
            "ip": address["ip_address"],
            "port": str(address["port"]),
        }
        for protocol, endpoint in api.endpoints.items()
        if protocol == HTTP
        for address in (_address(endpoint),)
    ]


def _address(endpoint: str) -> dict[str, Any]:
    host, _, port = endpoint.rpartition(":")
    return {"ip_address": host.strip("[]"), "port": int(port)}


async def alarms(api: ApiContext, _request: ApiRequest) -> dict[str, str] | HealthCheckFailed:
    """503 while an alarm is raised."""
    raised = api.broker.engine.alarms.raised
    if raised:
        told = ", ".join(f"{reason.value} ({culprit})" for reason, culprit in raised.items())
        return HealthCheckFailed(f"alarms in effect: {told}")
    return {"status": "ok"}


async def node_check(
    api: ApiContext, request: ApiRequest, name: str | None = None
) -> dict[str, str]:
    """What RabbitMQ has deprecated and tools still ask; a failure is an answer, not a 503."""
    if name not in (None, node_of(api.broker.context)):
        raise not_found()
    found = await alarms(api, request)
    if isinstance(found, HealthCheckFailed):
        return {"status": "failed", "reason": found.reason}
    return found


async def aliveness_test(api: ApiContext, _request: ApiRequest, vhost: str) -> dict[str, str]:
    api.vhost(vhost)
    return {"status": "ok"}


async def listener_check(
    api: ApiContext, _request: ApiRequest, wanted: str
) -> dict[str, str] | HealthCheckFailed:
    """503 unless a listener has that name or port."""
    known = {each for name, at in api.endpoints.items() for each in (name, at.rpartition(":")[2])}
    # RabbitMQ's health checks call it by version as well.
    if wanted not in known and not wanted.startswith(f"{AMQP}/"):
        return HealthCheckFailed(f"no listener for {wanted}")
    return {"status": "ok"}


async def always_ok(_api: ApiContext, _request: ApiRequest) -> dict[str, str]:
    """Checks of things that cannot go wrong here."""
    return {"status": "ok"}


async def empty_list(_api: ApiContext, _request: ApiRequest, *_names: str) -> list[Any]:
    return []


async def unsupported(_api: ApiContext, request: ApiRequest, *_names: str) -> EmptyResponse:
    """Saying yes would be a lie."""
    raise bad_request(f"there are no {request.path[0]} here")


async def no_such_object(_api: ApiContext, _request: ApiRequest, *_names: str) -> EmptyResponse:
    raise not_found()


async def connections(api: ApiContext, request: ApiRequest, vhost: str | None = None) -> Any:
    found = _connections(api, vhost)
    return await paged(request, found, connection_view)


async def connection(api: ApiContext, _request: ApiRequest, name: str) -> dict[str, Any]:
    return connection_view(_connection(api, name))


async def connection_channels(api: ApiContext, request: ApiRequest, name: str) -> Any:
    found = _connection(api, name).channels.values()
    return await paged(request, found, channel_view)


async def close(api: ApiContext, request: ApiRequest, name: str) -> EmptyResponse:
    connection = _connection(api, name)
    reason = request.headers.get("x-reason") or CLOSED
    api.broker.close_connection(connection.connection_id, reason)
    return EmptyResponse()


async def channels(api: ApiContext, request: ApiRequest, vhost: str | None = None) -> Any:
    found = [
        each for connection in _connections(api, vhost) for each in connection.channels.values()
    ]
    return await paged(request, found, channel_view)


async def channel(api: ApiContext, _request: ApiRequest, name: str) -> dict[str, Any]:
    """One channel, with its consumers."""
    for connection in _connections(api, None):
        for each in connection.channels.values():
            if channel_name(each) == name:
                return channel_view(each, is_detailed=True)
    raise not_found()


async def consumers(api: ApiContext, request: ApiRequest, vhost: str | None = None) -> Any:
    found = [
        entry
        for connection in _connections(api, vhost)
        for each in connection.channels.values()
        for entry in each.consumers.by_tag.values()
    ]
    return await paged(request, found, consumer_view)


def _connections(api: ApiContext, vhost: str | None) -> list[AmqpConnection]:
    if vhost is not None:
        api.vhost(vhost)
    return [
        each
        for each in api.broker.connections.values()
        if vhost is None or each.vhost.name == vhost
    ]


def _connection(api: ApiContext, name: str) -> AmqpConnection:
    for each in api.broker.connections.values():
        if each.name == name:
            return each
    raise not_found()


CLIENT_ROUTES: Final[RouteTable] = {
    ("GET", ("overview",)): overview,
    ("GET", ("whoami",)): whoami,
    ("GET", ("cluster-name",)): cluster_name,
    ("GET", ("nodes",)): nodes,
    ("GET", ("nodes", ANY)): node,
    ("GET", ("health", "checks", "alarms")): alarms,
    ("GET", ("health", "checks", "local-alarms")): alarms,
    ("GET", ("healthchecks", "node")): node_check,
    ("GET", ("healthchecks", "node", ANY)): node_check,
    ("GET", ("health", "checks", "virtual-hosts")): always_ok,
    ("GET", ("health", "checks", "node-is-quorum-critical")): always_ok,
    ("GET", ("health", "checks", "port-listener", ANY)): listener_check,
    ("GET", ("health", "checks", "protocol-listener", ANY)): listener_check,
    ("GET", ("aliveness-test", ANY)): aliveness_test,
    **{("GET", (kind,)): empty_list for kind in EMPTY},
    **{("GET", (kind, ANY)): empty_list for kind in EMPTY},
    **{("PUT", (kind, *names)): unsupported for kind in EMPTY for names in _NAMES},
    **{("GET", (kind, *names)): no_such_object for kind in EMPTY for names in _NAMES},
    **{("DELETE", (kind, *names)): no_such_object for kind in EMPTY for names in _NAMES},
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
