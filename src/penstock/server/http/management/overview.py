"""The broker as a whole.

======  ===========================  =============================================================
GET     /api/overview                totals, rates, listeners, versions
GET     /api/whoami                  name and tags of who asks
GET     /api/cluster-name            what the broker calls itself
GET     /api/nodes, /api/nodes/NAME  this process as a node
======  ===========================  =============================================================

Figures of the Erlang machine (processes, reductions, garbage, Mnesia) are left out.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any, Final

from penstock import __version__
from penstock.adapters.amqp.broker import CHURN
from penstock.adapters.amqp.management.figures import (
    HANDED,
    LEVELS,
    OVERVIEW,
    STEP_MS,
    house_figures,
    vhost_figures,
)
from penstock.adapters.amqp.management.views import node_of
from penstock.server.http.management.asked import Asked, not_found, paged
from penstock.server.http.management.place import ANY, Place, Table

HTTP: Final = "http"
OPEN_FILES: Final = Path("/proc/self/fd")
PUBLISHED: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable")
RATES_MODE: Final = "basic"
"""Rates of each thing by itself, none of pairs such as channel and queue."""


async def overview(place: Place, _asked: Asked) -> dict[str, Any]:
    """Everything in a few numbers."""
    house = place.house
    settings, vhosts = house.settings, list(house.vhosts.values())
    sessions = list(house.sessions.values())
    queues = [queue for vhost in vhosts for queue in vhost.queues]
    figures = house_figures(house, [vhost_figures(vhost) for vhost in vhosts])
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
        "rates_mode": RATES_MODE,
        "sample_retention_policies": {
            kind: [STEP_MS // 1000] for kind in ("global", "basic", "detailed")
        },
        "disable_stats": False,
        "enable_queue_totals": False,
        "statistics_db_event_queue": 0,
        "message_stats": house.rates.details(OVERVIEW, figures, (*PUBLISHED, *HANDED)),
        "churn_rates": house.rates.details(OVERVIEW, figures, CHURN),
        "queue_totals": house.rates.details(OVERVIEW, figures, LEVELS),
        "object_totals": {
            "connections": len(sessions),
            "channels": sum(len(each.channels) for each in sessions),
            "consumers": sum(queue.consumers for queue in queues),
            "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
            "queues": len(queues),
        },
        "exchange_types": _exchange_types(),
        "listeners": [
            {"node": node_of(house), "protocol": protocol, **_address(endpoint)}
            for protocol, endpoint in place.endpoints.items()
        ],
        "contexts": [{"node": node_of(house), **each} for each in _contexts(place)],
    }


async def whoami(_place: Place, asked: Asked) -> dict[str, Any]:
    """Who asks."""
    return {"name": asked.user.name, "tags": list(asked.user.tags)}


async def cluster_name(place: Place, _asked: Asked) -> dict[str, str]:
    """What the broker calls itself."""
    return {"name": place.house.cluster_name}


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
        **_files(),
        "sockets_used": len(place.house.sessions),
        "sockets_total": place.house.all_settings.listeners.connections_max,
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
        "contexts": _contexts(place),
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


def _contexts(place: Place) -> list[dict[str, str]]:
    """Where this very API is."""
    return [
        {
            "description": "RabbitMQ Management",
            "path": "/",
            "ip": address["ip_address"],
            "port": str(address["port"]),
        }
        for protocol, endpoint in place.endpoints.items()
        if protocol == HTTP
        for address in (_address(endpoint),)
    ]


def _address(endpoint: str) -> dict[str, Any]:
    host, _, port = endpoint.rpartition(":")
    return {"ip_address": host.strip("[]"), "port": int(port)}


TABLE: Final[Table] = {
    ("GET", ("overview",)): overview,
    ("GET", ("whoami",)): whoami,
    ("GET", ("cluster-name",)): cluster_name,
    ("GET", ("nodes",)): nodes,
    ("GET", ("nodes", ANY)): node,
}
