"""Tenants and namespaces over REST, and what a single broker says of clusters and look-ups.

Policies of namespaces: ``policies.py``.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import PlainTextResponse, Response

from penstock.adapters.pulsar.namespaces import Tenant
from penstock.adapters.pulsar.topics import Listed
from penstock.model.names import NON_PERSISTENT, PERSISTENT
from penstock.server.pulsar_rest.policies import given_policies
from penstock.server.pulsar_rest.request import (
    ANY,
    CLUSTER,
    Pace,
    RestContext,
    RestError,
    RestRequest,
    RouteTable,
    of_topic,
    streamed,
)
from penstock.server.pulsar_rest.topics import listed_names
from penstock.wire.pulsar.names import PulsarName

VERSION: Final = "4.0.8"
"""Of the Pulsar whose answers these are."""
WHOLE_BUNDLE: Final = "0x00000000_0xffffffff"
"""A namespace is not divided here."""
TOPICS_AT_A_TIME: Final = 100
"""Deleted, or told to come again, in one go; then others have their turn."""

BUNDLES: Final = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
"""A namespace is not divided here."""

_LISTED: Final[dict[str, Listed]] = {
    "PERSISTENT": "persistent",
    "NON_PERSISTENT": "non-persistent",
    "ALL": "all",
}


# ---- tenants -------------------------------------------------------------------------------------


async def tenants(api: RestContext, _request: RestRequest) -> list[str]:
    return api.broker.namespaces.tenants


async def tenant(api: RestContext, _request: RestRequest, name: str) -> Tenant:
    return api.broker.namespaces.tenant(name)


async def create_tenant(api: RestContext, request: RestRequest, name: str) -> None:
    row = await request.json(Tenant, Tenant())
    _check_clusters(row)
    api.broker.namespaces.create_tenant(name, row)
    await api.durable()


async def update_tenant(api: RestContext, request: RestRequest, name: str) -> None:
    row = await request.json(Tenant, Tenant())
    _check_clusters(row)
    api.broker.namespaces.update_tenant(name, row)
    await api.durable()


async def delete_tenant(api: RestContext, _request: RestRequest, name: str) -> None:
    api.broker.namespaces.delete_tenant(name)
    await api.durable()


def _check_clusters(row: Tenant) -> None:
    unknown = sorted(set(row.allowed_clusters) - {CLUSTER})
    if unknown:
        raise RestError(412, f"Clusters [{', '.join(unknown)}] do not exist")


# ---- clusters, brokers, look-ups -----------------------------------------------------------------


async def clusters(_api: RestContext, _request: RestRequest) -> list[str]:
    return [CLUSTER]


async def cluster(api: RestContext, request: RestRequest, name: str) -> dict[str, Any]:
    if name != CLUSTER:
        raise RestError(404, "Cluster does not exist")
    return {
        "serviceUrl": f"http://{request.authority}",
        "brokerServiceUrl": _broker_url(api, request),
    }


async def brokers(_api: RestContext, request: RestRequest, *_cluster: str) -> list[str]:
    return [request.authority]


async def leader(api: RestContext, request: RestRequest) -> dict[str, str]:
    del api
    return {"brokerId": request.authority, "serviceUrl": f"http://{request.authority}"}


async def health(api: RestContext, _request: RestRequest) -> Response:
    if api.broker.engine.is_failed:
        raise RestError(500, "the log takes nothing more; restart the broker")
    return PlainTextResponse("ok")


async def version(_api: RestContext, _request: RestRequest) -> Response:
    return PlainTextResponse(VERSION)


async def runtime_configuration(_api: RestContext, _request: RestRequest) -> dict[str, str]:
    """What Pulsar's tool looks for in it; our settings have other names (``penstock settings``)."""
    return {"clusterName": CLUSTER}


async def dynamic_names(_api: RestContext, _request: RestRequest) -> list[str]:
    """None of our settings changes while the broker runs."""
    return []


async def dynamic_values(_api: RestContext, _request: RestRequest) -> dict[str, str]:
    return {}


async def look_up(api: RestContext, request: RestRequest, name: PulsarName) -> dict[str, str]:
    """Where a topic is served: at the address that the client dialled."""
    api.check_namespace(name.namespace, "Namespace not found")
    listener = request.query.get("listenerName") or request.headers.get("x-pulsar-listenername")
    if listener:
        raise RestError(404, f"the broker do not have {listener[:100]} listener")
    url = _broker_url(api, request)
    return {
        "brokerUrl": url,
        "httpUrl": f"http://{request.authority}",
        "nativeUrl": url,
        "brokerUrlSsl": "",
    }


async def bundle(_api: RestContext, _request: RestRequest, _name: PulsarName) -> Response:
    return PlainTextResponse(WHOLE_BUNDLE)


def _broker_url(api: RestContext, request: RestRequest) -> str:
    port = api.endpoints["pulsar"].rpartition(":")[2]
    return f"pulsar://{api.broker.settings.advertised_host or request.host}:{port}"


# ---- namespaces ----------------------------------------------------------------------------------


async def of_tenant(api: RestContext, _request: RestRequest, tenant: str) -> list[str]:
    api.broker.namespaces.tenant(tenant)
    return api.broker.namespaces.namespaces_of(tenant)


async def create(api: RestContext, request: RestRequest, tenant: str, name: str) -> None:
    said = await request.json(dict[str, Any], {})
    api.broker.namespaces.create(f"{tenant}/{name}", given_policies(said))
    await api.in_effect()


async def delete(api: RestContext, request: RestRequest, tenant: str, name: str) -> None:
    """Without its topics, unless force says so; those are gone for good then."""
    namespace = f"{tenant}/{name}"
    api.check_namespace(namespace)
    found = await _wholes(api, namespace)
    if found and not request.is_set("force"):
        raise RestError(409, "Cannot delete non empty namespace")
    for number, whole in enumerate(found):
        if api.broker.topics.partitions(whole) is not None:
            api.broker.topics.delete(whole)
        if number % TOPICS_AT_A_TIME == TOPICS_AT_A_TIME - 1:
            api.wake()
            await asyncio.sleep(0)
    api.broker.namespaces.delete(namespace)
    await api.in_effect()


async def topics_of(api: RestContext, request: RestRequest, tenant: str, name: str) -> Response:
    listed = _LISTED.get(request.query.get("mode", "PERSISTENT"))
    if listed is None:
        raise RestError(400, f"mode is one of {', '.join(_LISTED)}")
    return streamed(await listed_names(api, f"{tenant}/{name}", listed))


async def unload(
    api: RestContext, _request: RestRequest, tenant: str, name: str, *_bundle: str
) -> None:
    """Its clients are told to come again."""
    api.check_namespace(f"{tenant}/{name}")
    for number, whole in enumerate(await _wholes(api, f"{tenant}/{name}")):
        api.broker.topics.unload(whole)
        if number % TOPICS_AT_A_TIME == TOPICS_AT_A_TIME - 1:
            api.wake()
            await asyncio.sleep(0)


async def _wholes(api: RestContext, namespace: str) -> list[PulsarName]:
    """The topics of a namespace, partitioned ones by their own names."""
    pace = Pace()
    found: list[PulsarName] = []
    for whole in api.broker.topics.walk(namespace, "all"):
        if whole is not None:
            found.append(whole)
        await pace.step()
    return found


async def bundles(
    api: RestContext, _request: RestRequest, tenant: str, name: str
) -> dict[str, Any]:
    api.check_namespace(f"{tenant}/{name}")
    return BUNDLES


async def clusters_of(api: RestContext, _request: RestRequest, tenant: str, name: str) -> list[str]:
    api.check_namespace(f"{tenant}/{name}")
    return [CLUSTER]


async def permissions(
    api: RestContext, _request: RestRequest, tenant: str, name: str
) -> dict[str, Any]:
    """Nobody has any: there are no users."""
    api.check_namespace(f"{tenant}/{name}")
    return {}


NAMESPACE_ROUTES: Final[RouteTable] = {
    ("GET", ("namespaces", ANY)): of_tenant,
    ("PUT", ("namespaces", ANY, ANY)): create,
    ("DELETE", ("namespaces", ANY, ANY)): delete,
    ("GET", ("namespaces", ANY, ANY, "topics")): topics_of,
    ("PUT", ("namespaces", ANY, ANY, "unload")): unload,
    ("PUT", ("namespaces", ANY, ANY, ANY, "unload")): unload,
    ("GET", ("namespaces", ANY, ANY, "bundles")): bundles,
    ("GET", ("namespaces", ANY, ANY, "replication")): clusters_of,
    ("GET", ("namespaces", ANY, ANY, "permissions")): permissions,
    ("GET", ("tenants",)): tenants,
    ("GET", ("tenants", ANY)): tenant,
    ("PUT", ("tenants", ANY)): create_tenant,
    ("POST", ("tenants", ANY)): update_tenant,
    ("DELETE", ("tenants", ANY)): delete_tenant,
    ("GET", ("clusters",)): clusters,
    ("GET", ("clusters", ANY)): cluster,
    ("GET", ("brokers",)): brokers,
    ("GET", ("brokers", CLUSTER)): brokers,
    ("GET", ("brokers", "health")): health,
    ("GET", ("brokers", "ready")): health,
    ("GET", ("brokers", "version")): version,
    ("GET", ("brokers", "leaderBroker")): leader,
    ("GET", ("brokers", "configuration")): dynamic_names,
    ("GET", ("brokers", "configuration", "values")): dynamic_values,
    ("GET", ("brokers", "configuration", "runtime")): runtime_configuration,
}
LOOKUP_ROUTES: Final[RouteTable] = {
    ("GET", ("topic", domain, ANY, ANY, ANY, *more)): of_topic(handler, domain)
    for domain in (PERSISTENT, NON_PERSISTENT)
    for more, handler in (((), look_up), (("bundle",), bundle))
}
