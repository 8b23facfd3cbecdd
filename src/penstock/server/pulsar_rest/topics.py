"""Topics over REST: made, grown, ended, deleted, listed, and what they look like.

A partition is a topic to Pulsar and a queue of one topic to us: what cannot be done to one queue
alone (delete it, end it) is refused with a sentence, and works for the whole topic.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.adapters.pulsar.naming import PulsarName
from penstock.adapters.pulsar.topics import Listed, PulsarTopic
from penstock.model.names import NON_PERSISTENT, PERSISTENT
from penstock.server.pulsar_rest.request import (
    ANY,
    Handler,
    RestContext,
    RestError,
    RestRequest,
    RouteTable,
    no_topic,
    of_topic,
)
from penstock.server.pulsar_rest.statistics import (
    internal_statistics,
    last_entry,
    message_id,
    partitioned_statistics,
    topic_statistics,
)

PARTITIONS_MAX: Final = 10_000
"""Of one topic; the broker's limit of queues may be lower."""


# ---- lists --------------------------------------------------------------------------------------


def _listing(listed: Listed) -> Handler:
    async def topics(api: RestContext, _request: RestRequest, tenant: str, name: str) -> list[str]:
        api.check_namespace(f"{tenant}/{name}")
        return [str(each) for each in api.broker.topics.names(f"{tenant}/{name}", listed)]

    return topics


def _partitioned_listing(listed: Listed) -> Handler:
    async def topics(api: RestContext, _request: RestRequest, tenant: str, name: str) -> list[str]:
        api.check_namespace(f"{tenant}/{name}")
        return [str(each) for each in api.broker.topics.partitioned(f"{tenant}/{name}", listed)]

    return topics


# ---- making and ending --------------------------------------------------------------------------


async def create(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    if name.partition >= 0 and api.broker.topics.partitions(name.whole):
        raise RestError(412, f"{name} would be a partition of {name.whole}; update its partitions")
    api.broker.topics.create(name, maker=request.maker)
    await api.durable()


async def create_partitioned(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    count = await _partition_count(request)
    if name.partition >= 0:
        raise RestError(412, "Partitioned Topic Name should not contain '-partition-'")
    api.broker.topics.create(name, count, request.maker)
    await api.durable()


async def update_partitions(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    count = await _partition_count(request)
    api.existing(name)
    found = api.broker.topics.partitions(name)
    if not found:
        raise RestError(409, "Topic is not partitioned topic")
    if count <= found:
        raise RestError(422, f"The desired partitions {count} must be more than {found}")
    api.broker.topics.grow(name, count)
    await api.durable()


async def _partition_count(request: RestRequest) -> int:
    count = await request.json(int)
    if not 0 < count <= PARTITIONS_MAX:
        raise RestError(406, f"The number of partitions should be 1 to {PARTITIONS_MAX}")
    return count


async def show_partitions(
    api: RestContext, request: RestRequest, name: PulsarName
) -> dict[str, Any]:
    api.check_namespace(name.namespace, "Namespace not found")
    may_create = request.is_set("checkAllowAutoCreation")
    count = api.broker.topics.partitions_for(name, may_create=may_create, maker=request.maker)
    if count is None:
        raise no_topic(name)
    if count and may_create:
        await api.durable()
    return {"partitions": count, "deleted": False}


async def delete(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    found = _plain(api, name, "deleted")
    await _delete(api, request, found.name)


async def delete_partitioned(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    if not api.broker.topics.partitions(name):
        raise RestError(404, f"Partitioned Topic not found: {name} has zero partitions")
    await _delete(api, request, name)


async def _delete(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    users = _users(api, name)
    if users and not request.is_set("force"):
        raise RestError(412, f"Topic has {users} connected producers/consumers")
    api.broker.topics.delete(name)
    await api.durable()


def _users(api: RestContext, name: PulsarName) -> int:
    """Producers and consumers, those of other protocols included."""
    ours = sum(len(each.users) for each in api.broker.topics.used(name))
    topic = api.broker.engine.topic(name.topic_name)
    if topic is None:
        return ours
    others = [each for key, each in topic.subscriptions.items() if not key.startswith("pulsar/")]
    return ours + sum(len(each.consumers) for each in others)


async def unload(api: RestContext, _request: RestRequest, name: PulsarName) -> None:
    """Its clients are told to come again."""
    api.existing(name)
    api.broker.topics.unload(name)


async def terminate(api: RestContext, _request: RestRequest, name: PulsarName) -> dict[str, Any]:
    _check_may_end(name)
    found = _plain(api, name, "terminated")
    api.broker.engine.terminate_topic(found.topic_name)
    await api.durable()
    return message_id(found)


async def terminate_partitions(
    api: RestContext, _request: RestRequest, name: PulsarName
) -> dict[str, Any]:
    _check_may_end(name)
    parts = _partitions(api, name)
    api.broker.engine.terminate_topic(name.topic_name)
    await api.durable()
    return {str(each.number): message_id(each) for each in parts}


def _check_may_end(name: PulsarName) -> None:
    if not name.is_persistent:
        raise RestError(405, "Termination of a non-persistent topic is not allowed")


# ---- looking ------------------------------------------------------------------------------------


async def stats(api: RestContext, _request: RestRequest, name: PulsarName) -> dict[str, Any]:
    return topic_statistics(api.broker, _found(api, name))


async def partitioned_stats(
    api: RestContext, request: RestRequest, name: PulsarName
) -> dict[str, Any]:
    is_each_shown = request.query.get("perPartition", "true").lower() == "true"
    return partitioned_statistics(api.broker, _partitions(api, name), is_each_shown=is_each_shown)


async def internal_stats(
    api: RestContext, _request: RestRequest, name: PulsarName
) -> dict[str, Any]:
    return internal_statistics(_logged(api, name))


async def partitioned_internal_stats(
    api: RestContext, _request: RestRequest, name: PulsarName
) -> dict[str, Any]:
    parts = _partitions(api, name)
    return {
        "metadata": {"partitions": len(parts), "deleted": False},
        "partitions": {str(each.name): internal_statistics(each) for each in parts},
    }


async def last_message_id(
    api: RestContext, _request: RestRequest, name: PulsarName
) -> dict[str, Any]:
    found = _logged(api, name)
    entry = last_entry(found.queue)
    shown = message_id(found)
    if entry is not None and entry[5] > 1:
        shown["batchIndex"] = entry[5] - 1
    return shown


def _found(api: RestContext, name: PulsarName) -> PulsarTopic:
    """A plain topic or a partition; 404 for what is not there, and for a partitioned topic."""
    api.check_namespace(name.namespace, "Namespace not found")
    found = api.broker.topics.find(name)
    if found is None and api.broker.topics.partitions(name):
        raise RestError(404, f"Topic {name} is partitioned; ask for one of its partitions")
    if found is None:
        raise no_topic(name)
    return found


def _logged(api: RestContext, name: PulsarName) -> PulsarTopic:
    found = _found(api, name)
    if not found.is_persistent:
        raise RestError(405, f"Topic {name} is not persistent: it keeps nothing")
    return found


def _plain(api: RestContext, name: PulsarName, done: str) -> PulsarTopic:
    found = _found(api, name)
    if found.is_partition:
        raise RestError(
            409, f"{name} is a partition of {name.whole}, which can be {done} as a whole only"
        )
    return found


def _partitions(api: RestContext, name: PulsarName) -> list[PulsarTopic]:
    api.check_namespace(name.namespace, "Namespace not found")
    count = api.broker.topics.partitions(name)
    if not count:
        raise RestError(404, f"Partitioned Topic not found: {name} has zero partitions")
    parts = [api.broker.topics.find(name.of_partition(number)) for number in range(count)]
    return [each for each in parts if each is not None]


_HANDLERS: Final[dict[tuple[str, str], Handler]] = {
    ("PUT", ""): create,
    ("DELETE", ""): delete,
    ("PUT", "partitions"): create_partitioned,
    ("POST", "partitions"): update_partitions,
    ("GET", "partitions"): show_partitions,
    ("DELETE", "partitions"): delete_partitioned,
    ("PUT", "unload"): unload,
    ("POST", "terminate"): terminate,
    ("POST", "terminate/partitions"): terminate_partitions,
    ("GET", "stats"): stats,
    ("GET", "partitioned-stats"): partitioned_stats,
    ("GET", "internalStats"): internal_stats,
    ("GET", "partitioned-internalStats"): partitioned_internal_stats,
    ("GET", "lastMessageId"): last_message_id,
}


def topic_routes(handlers: dict[tuple[str, str], Handler]) -> RouteTable:
    """For both domains; what comes behind the topic is one text, with its slashes."""
    return {
        (method, (domain, ANY, ANY, ANY, *filter(None, more.split("/")))): of_topic(handler, domain)
        for (method, more), handler in handlers.items()
        for domain in (PERSISTENT, NON_PERSISTENT)
    }


TOPIC_ROUTES: Final[RouteTable] = {
    ("GET", (PERSISTENT, ANY, ANY)): _listing(PERSISTENT),
    ("GET", (NON_PERSISTENT, ANY, ANY)): _listing(NON_PERSISTENT),
    ("GET", (PERSISTENT, ANY, ANY, "partitioned")): _partitioned_listing(PERSISTENT),
    ("GET", (NON_PERSISTENT, ANY, ANY, "partitioned")): _partitioned_listing(NON_PERSISTENT),
    **topic_routes(_HANDLERS),
}
