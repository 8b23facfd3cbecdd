"""Topics over REST: made, grown, ended, deleted, listed, and what they look like.

A partition is a topic to Pulsar and a queue of one topic to us: what cannot be done to one queue
alone (delete it, end it) is refused with a sentence, and works for the whole topic.

Not here: subscriptions (``subscriptions.py``), single messages (``messages.py``).
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Any, Final

import msgspec
from starlette.responses import Response

from penstock.adapters.pulsar.topics import Listed, PulsarTopic
from penstock.model.errors import PenstockError
from penstock.model.names import NON_PERSISTENT, PERSISTENT
from penstock.server.pulsar_rest.request import (
    ANY,
    Handler,
    Pace,
    RestContext,
    RestError,
    RestRequest,
    RouteTable,
    decoded,
    no_topic,
    of_topic,
    streamed,
)
from penstock.server.pulsar_rest.statistics import (
    Wanted,
    internal_statistics,
    last_message_id,
    partitioned_internal_statistics,
    partitioned_metadata,
    partitioned_statistics,
    topic_statistics,
)
from penstock.wire.pulsar.names import PulsarName

PARTITIONS_MAX: Final = 10_000
"""Of one topic; the broker's limit of queues may be lower."""
PARTITIONS_AT_A_TIME: Final = 100
"""Made in one go: some milliseconds."""
RUN_NAMES: Final = 1_000
"""Names that are sorted in one go."""


# ---- lists --------------------------------------------------------------------------------------


async def listed_names(api: RestContext, namespace: str, listed: Listed) -> list[str]:
    """Topics of a namespace, partitions each by its own name, sorted; 404 without it."""
    api.check_namespace(namespace)
    pace, topics = Pace(), api.broker.topics
    runs: list[list[str]] = [[]]
    for whole in topics.walk(namespace, listed):
        await pace.step()
        for each in () if whole is None else topics.parts(whole):
            runs[-1].append(str(each))
            await pace.step()
            if len(runs[-1]) == RUN_NAMES:
                runs[-1].sort()
                runs.append([])
    runs[-1].sort()
    found: list[str] = []
    for name in heapq.merge(*runs):
        found.append(name)
        await pace.step()
    return found


def _listing(listed: Listed) -> Handler:
    async def topics(api: RestContext, _request: RestRequest, tenant: str, name: str) -> Response:
        return streamed(await listed_names(api, f"{tenant}/{name}", listed))

    return topics


def _partitioned_listing(listed: Listed) -> Handler:
    async def topics(api: RestContext, _request: RestRequest, tenant: str, name: str) -> Response:
        api.check_namespace(f"{tenant}/{name}")
        pace = Pace()
        found: list[str] = []
        for whole in api.broker.topics.walk(f"{tenant}/{name}", listed):
            await pace.step()
            if whole is not None and api.broker.topics.partitions(whole):
                found.append(str(whole))
        return streamed(found)

    return topics


# ---- making and ending --------------------------------------------------------------------------


async def create(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    topics = api.broker.topics
    if name.partition >= 0 and topics.find(name) is None:
        raise RestError(
            412,
            f"{name} is the name of a partition; create {name.whole} with partitions, or update "
            "their number",
        )
    topics.create(name, maker=request.maker)
    await api.durable()


class GivenPartitions(msgspec.Struct):
    """What Go's tools send in place of a number; properties of topics are not kept."""

    partitions: int


async def create_partitioned(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    body = await request.body()
    is_object = body.lstrip().startswith(b"{")
    count = decoded(body, GivenPartitions).partitions if is_object else decoded(body, int)
    if name.partition >= 0:
        raise RestError(412, "Partitioned Topic Name should not contain '-partition-'")
    _check_count(count)
    api.broker.topics.create(name, min(count, PARTITIONS_AT_A_TIME), request.maker)
    try:
        await _grow(api, name, count)
    except PenstockError:
        # There is no room for all of them: then none is made.
        if api.broker.topics.partitions(name):
            api.broker.topics.delete(name)
        raise
    await api.durable()


async def update_partitions(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    count = await request.json(int)
    api.check_namespace(name.namespace, "Namespace not found")
    found = api.broker.topics.partitions(name)
    if not found:
        raise RestError(409, f"Topic {name} is not the partitioned topic.")
    if count < found:
        raise RestError(
            422, f"Desired partitions {count} can't be less than the current partitions {found}."
        )
    _check_count(count)
    await _grow(api, name, count)
    await api.durable()


async def _grow(api: RestContext, name: PulsarName, count: int) -> None:
    """More partitions, some at a time; raises ``NotFound``, ``AlreadyExists`` without room."""
    topics = api.broker.topics
    while (found := topics.partitions(name) or 0) < count:
        topics.grow(name, min(count, found + PARTITIONS_AT_A_TIME))
        api.wake()
        await asyncio.sleep(0)


def _check_count(count: int) -> None:
    if not 0 < count <= PARTITIONS_MAX:
        raise RestError(406, f"Number of partitions should be more than 0, up to {PARTITIONS_MAX}")


def make_topic(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    """A topic that somebody needs, if it is not there and clients may make it; else 404."""
    api.check_namespace(name.namespace, "Namespace not found")
    topics = api.broker.topics
    is_partition = name.partition >= 0 and bool(topics.partitions(name.whole))
    count = topics.partitions_for(name, may_create=not is_partition, maker=request.maker)
    if count is None:
        raise no_topic(name)
    if not count and topics.find(name) is None:
        topics.create(name, maker=request.maker)


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
    return partitioned_metadata(count)


async def delete(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    if api.broker.topics.partitions(name):
        raise RestError(
            409,
            f"{name} is a partitioned topic, instead of calling delete topic, please call "
            "delete-partitioned-topic.",
        )
    await _delete(api, request, _plain(api, name, "deleted").name)


async def delete_partitioned(api: RestContext, request: RestRequest, name: PulsarName) -> None:
    if not api.broker.topics.partitions(name):
        raise no_topic(name)
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
    """Nobody may publish to it any more; the answer is its last message."""
    _check_may_end(name)
    if api.broker.topics.partitions(name):
        raise RestError(405, "Termination of a partitioned topic is not allowed")
    found = _plain(api, name, "terminated")
    api.broker.terminate(name)
    await api.durable()
    return last_message_id(found)


async def terminate_partitions(
    api: RestContext, _request: RestRequest, name: PulsarName
) -> dict[str, Any]:
    _check_may_end(name)
    parts = await partitions_of(api, name)
    api.broker.terminate(name)
    await api.durable()
    return {str(each.number): last_message_id(each) for each in parts}


def _check_may_end(name: PulsarName) -> None:
    if not name.is_persistent:
        raise RestError(406, "Need to provide a persistent topic name")


# ---- compacting ---------------------------------------------------------------------------------


async def compact(api: RestContext, _request: RestRequest, name: PulsarName) -> None:
    """A partitioned topic is compacted partition by partition."""
    parts, compaction, pace = _compacted(api, name), api.broker.compaction, Pace()
    for each in parts:
        await pace.step()
        if compaction.status(each).status == "RUNNING":
            raise RestError(409, "Compaction already in progress")
    for each in parts:
        await pace.step()
        compaction.start(each)


async def compaction_status(
    api: RestContext, _request: RestRequest, name: PulsarName
) -> dict[str, Any]:
    """Of several partitions that of the one which is furthest from being done."""
    parts, pace = _compacted(api, name), Pace()
    worst = api.broker.compaction.status(parts[0])
    for each in parts:
        await pace.step()
        found = api.broker.compaction.status(each)
        worst = min(worst, found, key=lambda status: _FURTHEST_FIRST.index(status.status))
    return {"status": worst.status, "lastError": worst.last_error}


_FURTHEST_FIRST: Final = ("RUNNING", "ERROR", "NOT_RUN", "SUCCESS")


def _compacted(api: RestContext, name: PulsarName) -> list[PulsarName]:
    if not name.is_persistent:
        raise RestError(405, f"Topic {name} is not persistent: it keeps nothing")
    api.existing(name)
    count = api.broker.topics.partitions(name)
    return [name.of_partition(number) for number in range(count)] if count else [name]


# ---- looking ------------------------------------------------------------------------------------


async def stats(api: RestContext, request: RestRequest, name: PulsarName) -> Response:
    found = topic_of(api, name)
    return streamed(await topic_statistics(api.broker, found, _wanted(request)))


async def partitioned_stats(api: RestContext, request: RestRequest, name: PulsarName) -> Response:
    is_each_shown = request.query.get("perPartition", "true").lower() == "true"
    parts = await partitions_of(api, name)
    wanted = _wanted(request)
    return streamed(partitioned_statistics(api.broker, parts, wanted, is_each_shown=is_each_shown))


def _wanted(request: RestRequest) -> Wanted:
    return Wanted(
        Pace(),
        publishers=not request.is_set("excludePublishers"),
        consumers=not request.is_set("excludeConsumers"),
        earliest=request.is_set("getEarliestTimeInBacklog"),
        owner=request.authority,
    )


async def internal_stats(api: RestContext, _request: RestRequest, name: PulsarName) -> Response:
    return streamed(await internal_statistics(api.broker, topic_of(api, name), Pace()))


async def partitioned_internal_stats(
    api: RestContext, _request: RestRequest, name: PulsarName
) -> Response:
    parts = await partitions_of(api, name)
    return streamed(partitioned_internal_statistics(api.broker, parts, Pace()))


async def permissions(api: RestContext, _request: RestRequest, name: PulsarName) -> dict[str, Any]:
    """Nobody has any: there are no users."""
    api.existing(name)
    return {}


def topic_of(api: RestContext, name: PulsarName) -> PulsarTopic:
    """A plain topic or a partition; 404 for what is not there, and for a partitioned topic."""
    api.check_namespace(name.namespace, "Namespace not found")
    found = api.broker.topics.find(name)
    if found is None and api.broker.topics.partitions(name):
        raise RestError(404, f"Topic {name} is partitioned; ask for one of its partitions")
    if found is None:
        raise no_topic(name)
    return found


def _plain(api: RestContext, name: PulsarName, done: str) -> PulsarTopic:
    found = topic_of(api, name)
    if found.is_partition:
        raise RestError(
            409, f"{name} is a partition of {name.whole}, which can be {done} as a whole only"
        )
    return found


async def partitions_of(api: RestContext, name: PulsarName) -> list[PulsarTopic]:
    """Of a partitioned topic; 404 for anything else."""
    api.check_namespace(name.namespace, "Namespace not found")
    topics, pace = api.broker.topics, Pace()
    count = topics.partitions(name)
    if not count:
        raise RestError(404, f"Partitioned Topic {name} not found")
    parts: list[PulsarTopic] = []
    for number in range(count):
        found = topics.find(name.of_partition(number))
        if found is not None:
            parts.append(found)
        await pace.step()
    return parts


_HANDLERS: Final[dict[tuple[str, str], Handler]] = {
    ("PUT", ""): create,
    ("DELETE", ""): delete,
    ("PUT", "partitions"): create_partitioned,
    ("POST", "partitions"): update_partitions,
    ("GET", "partitions"): show_partitions,
    ("DELETE", "partitions"): delete_partitioned,
    ("PUT", "unload"): unload,
    ("POST", "terminate"): terminate,
    ("PUT", "compaction"): compact,
    ("GET", "compaction"): compaction_status,
    ("POST", "terminate/partitions"): terminate_partitions,
    ("GET", "permissions"): permissions,
    ("GET", "stats"): stats,
    ("GET", "partitioned-stats"): partitioned_stats,
    ("GET", "internalStats"): internal_stats,
    ("GET", "partitioned-internalStats"): partitioned_internal_stats,
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
