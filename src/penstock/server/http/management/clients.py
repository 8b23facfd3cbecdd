"""Health, connections, channels and consumers.

======  ==========================================  ==============================================
GET     /api/health/checks/alarms, local-alarms     200, or 503 while an alarm is raised
GET     /api/health/checks/port-listener/PORT       200 when something of ours listens there; also
                                                    protocol-listener/NAME
GET     /api/aliveness-test/VHOST                   always ok: the answer is the proof
GET     /api/policies, /api/parameters and others   empty: there is no such thing here; PUT is
                                                    refused
GET     /api/connections, /api/vhosts/V/connections clients
GET     /api/connections/NAME, .../channels         one of them
DELETE  /api/connections/NAME                       closed with 320; header X-Reason says why
GET     /api/channels, /api/vhosts/V/channels       their channels; /api/channels/NAME
GET     /api/consumers, /api/consumers/VHOST        their consumers
======  ==========================================  ==============================================
"""

from __future__ import annotations

from typing import Any, Final

from penstock.adapters.amqp.connection import Session
from penstock.adapters.amqp.management.views import (
    channel_name,
    channel_view,
    connection_view,
    consumer_view,
)
from penstock.server.http.management.asked import Asked, bad_request, not_found, paged
from penstock.server.http.management.place import ANY, Done, Failed, Place, Table

CLOSED: Final = "Closed via management plugin"
AMQP: Final = "amqp"
EMPTY: Final = (
    "policies", "operator-policies", "parameters", "global-parameters", "topic-permissions",
    "vhost-limits", "user-limits", "extensions", "federation-links", "shovels",
)  # fmt: skip
"""Lists that tools ask for and that are always empty here."""
_NAMES: Final = ((ANY, ANY), (ANY, ANY, ANY))
"""How one of them is named: by vhost and name, parameters by component as well."""


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


async def not_built(_place: Place, asked: Asked, *_names: str) -> Done:
    """Saying yes would be a lie."""
    raise bad_request(f"there are no {asked.path[0]} here")


async def none_of_them(_place: Place, _asked: Asked, *_names: str) -> Done:
    """One of what we do not have."""
    raise not_found()


async def connections(place: Place, asked: Asked, vhost: str | None = None) -> Any:
    """Every client."""
    found = _sessions(place, vhost)
    return await paged(asked, found, connection_view)


async def connection(place: Place, _asked: Asked, name: str) -> dict[str, Any]:
    """One client."""
    return connection_view(_session(place, name))


async def connection_channels(place: Place, asked: Asked, name: str) -> Any:
    """Its channels."""
    found = _session(place, name).channels.values()
    return await paged(asked, found, channel_view)


async def close(place: Place, asked: Asked, name: str) -> Done:
    """End a connection."""
    session = _session(place, name)
    reason = asked.headers.get("x-reason") or CLOSED
    place.house.close_connection(session.connection_id, reason)
    return Done()


async def channels(place: Place, asked: Asked, vhost: str | None = None) -> Any:
    """Every channel."""
    found = [each for session in _sessions(place, vhost) for each in session.channels.values()]
    return await paged(asked, found, channel_view)


async def channel(place: Place, _asked: Asked, name: str) -> dict[str, Any]:
    """One channel, with its consumers."""
    for session in _sessions(place, None):
        for each in session.channels.values():
            if channel_name(each) == name:
                return channel_view(each, is_detailed=True)
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
    ("GET", ("health", "checks", "alarms")): alarms,
    ("GET", ("health", "checks", "local-alarms")): alarms,
    ("GET", ("healthchecks", "node")): alarms,
    ("GET", ("health", "checks", "virtual-hosts")): well,
    ("GET", ("health", "checks", "node-is-quorum-critical")): well,
    ("GET", ("health", "checks", "port-listener", ANY)): listens,
    ("GET", ("health", "checks", "protocol-listener", ANY)): listens,
    ("GET", ("aliveness-test", ANY)): alive,
    **{("GET", (kind,)): nothing for kind in EMPTY},
    **{("GET", (kind, ANY)): nothing for kind in EMPTY},
    **{("PUT", (kind, *names)): not_built for kind in EMPTY for names in _NAMES},
    **{("GET", (kind, *names)): none_of_them for kind in EMPTY for names in _NAMES},
    **{("DELETE", (kind, *names)): none_of_them for kind in EMPTY for names in _NAMES},
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
