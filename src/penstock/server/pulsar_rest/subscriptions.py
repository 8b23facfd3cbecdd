"""Subscriptions of topics over REST: listed, made, deleted, moved.

What is asked of a partitioned topic is done to every partition that has the subscription, except
what makes sense for one partition only (skip some, go to an id). Topics without a log have
subscriptions, but no places in them.

Every answer to a change comes when it would survive a crash. Consumers hear of what moves or
removes their subscription, not of what is skipped or expires.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from starlette.responses import Response

from penstock.adapters.pulsar.subscriptions import Position
from penstock.adapters.pulsar.topics import PulsarTopic
from penstock.engine.host import Start
from penstock.model.errors import AlreadyExists
from penstock.server.pulsar_rest.request import (
    ANY,
    Handler,
    Pace,
    RestContext,
    RestError,
    RestRequest,
    RouteTable,
    decoded,
    streamed,
    to_number,
)
from penstock.server.pulsar_rest.topics import make_topic, partitions_of, topic_of, topic_routes
from penstock.wire.pulsar.names import PulsarName

SEARCH_STEPS: Final = 50
"""What it costs to look for a time: a record is read for each step of a bisection."""
CHANGE_STEPS: Final = 10
"""What it costs to make or move a subscription of one partition."""
DELETE_STEPS: Final = 40
"""What it costs to delete one of thousands of partitions."""
ANALYZED_ENTRIES_MAX: Final = 10_000
"""Unacked entries that an analysis counts, as many as in Pulsar; with more it says ``aborted``."""


class GivenPosition(msgspec.Struct, frozen=True, rename="camel"):
    """An id of a message as REST has it; what it says of batches means the whole entry."""

    ledger_id: int = 0
    entry_id: int = 0
    excluded: bool = False
    """The next one is meant."""

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)

    def offset_in(self, api: RestContext, topic: PulsarTopic) -> int:
        found = api.broker.subscriptions.offset_of(topic, self.position)
        return _behind(topic, found) if self.excluded else found


def _behind(topic: PulsarTopic, offset: int) -> int:
    """Where the entry ends that holds an offset."""
    entries = topic.queue.index.entries(offset, 1)
    return entries[0][1] + entries[0][5] if entries else offset


# ---- looking ------------------------------------------------------------------------------------


async def names(api: RestContext, _request: RestRequest, name: PulsarName) -> Response:
    """Of a partitioned topic those that any of its partitions has."""
    pace = Pace()
    found: dict[str, None] = {}
    for topic in await _parts(api, name):
        for each in _names(api, topic):
            found[each] = None
            await pace.step()
        await pace.step()
    return streamed(sorted(found))


async def analyze(
    api: RestContext, request: RestRequest, name: PulsarName, subscription: str
) -> dict[str, Any]:
    """What is unacked, counted entry by entry, from a given id on or from the first.

    A batch that is acked in part counts as a whole. There are no filters here: all are accepted.
    """
    body = await request.body()
    topic = one_topic(api, name, "Analyze backlog")
    subscriptions = api.broker.subscriptions
    subscriptions.get(topic, subscription)
    end = decoded(body, GivenPosition).offset_in(api, topic) if body.strip() else 0
    entries = messages = 0
    first = last = at = -1
    while at != end and entries < ANALYZED_ENTRIES_MAX:
        at = end
        found, end = subscriptions.unacked_entries(topic, subscription, at)
        found = found[: ANALYZED_ENTRIES_MAX - entries]
        if found:
            first = found[0][1] if first < 0 else first
            last = found[-1][1]
        entries += len(found)
        messages += sum([each[5] for each in found])
        await asyncio.sleep(0)
    ledger = topic.queue.incarnation
    ids = {"firstMessageId": f"{ledger}:{first}", "lastMessageId": f"{ledger}:{last}"}
    return {
        "entries": entries,
        "messages": messages,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": entries,
        "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0,
        "filterAcceptedMessages": messages,
        "filterRescheduledMessages": 0,
        "aborted": entries >= ANALYZED_ENTRIES_MAX,
        **(ids if entries else {}),
    }


# ---- making and deleting ------------------------------------------------------------------------


async def create(
    api: RestContext, request: RestRequest, name: PulsarName, subscription: str
) -> None:
    """Its topic is made, too, if it is not there and clients may make it."""
    body = await request.body()
    if not name.is_persistent:
        raise RestError(
            400, "Create subscription on non-persistent topic can only be done through client"
        )
    start = _given_start(body)
    make_topic(api, request, name)
    subscriptions, pace = api.broker.subscriptions, Pace(api.wake)
    is_new = False
    for topic in await _parts(api, name):
        if subscriptions.find(topic, subscription) is not None:
            continue
        # An id is where it begins, whatever it says of being excluded: so it is in Pulsar.
        where = start if isinstance(start, Start) else subscriptions.offset_of(topic, start)
        subscriptions.create(topic, subscription, where)
        is_new = True
        await pace.step(CHANGE_STEPS)
    if not is_new:
        raise AlreadyExists("Subscription already exists for topic")
    await api.durable()


_WORDS: Final = {"latest": Start.LATEST, "earliest": Start.EARLIEST}


def _given_start(body: bytes) -> Start | Position:
    """At the latest without a word; 400 for what is no place."""
    said = decoded(body, Any) if body.strip() else None
    if said is None:
        return Start.LATEST
    if isinstance(said, str):
        if said not in _WORDS:
            raise RestError(400, f"a position is an id, or one of {', '.join(_WORDS)}")
        return _WORDS[said]
    return decoded(body, GivenPosition).position


async def delete(
    api: RestContext, request: RestRequest, name: PulsarName, subscription: str
) -> None:
    """412 while it has consumers, unless by force; then they are told."""
    subscriptions, pace = api.broker.subscriptions, Pace(api.wake)
    force = request.is_set("force")
    parts = await _having(api, name, subscription)
    for topic in parts if not force else ():
        if subscriptions.of(topic, subscription).users:
            raise RestError(412, "Subscription has active connected consumers")
        await pace.step()
    for topic in parts:
        if subscriptions.find(topic, subscription) is not None:
            subscriptions.delete(topic, subscription, force=force)
        await pace.step(DELETE_STEPS)
    await api.durable()


# ---- moving -------------------------------------------------------------------------------------


async def skip(
    api: RestContext, _request: RestRequest, name: PulsarName, subscription: str, count: str
) -> None:
    """So many entries that are not acked count as acked; of batches each is one entry."""
    topic = one_topic(api, name, "Skip messages")
    left = to_number("the number of messages", count)
    api.broker.subscriptions.get(topic, subscription)
    while left > 0:
        skipped = api.broker.subscriptions.skip(topic, subscription, left)
        if not skipped:
            break
        left -= skipped
        await asyncio.sleep(0)
    await api.durable()


async def skip_all(
    api: RestContext, _request: RestRequest, name: PulsarName, subscription: str
) -> None:
    _check_logged(name, "Skip messages")
    pace = Pace(api.wake)
    for topic in await _having(api, name, subscription):
        if api.broker.subscriptions.find(topic, subscription) is not None:
            api.broker.subscriptions.skip_all(topic, subscription)
        await pace.step(CHANGE_STEPS)
    await api.durable()


async def truncate(api: RestContext, _request: RestRequest, name: PulsarName) -> None:
    """All of Pulsar's subscriptions skip everything.

    Other protocols' readers keep their places, and messages go as always: when nobody needs them.
    """
    if not name.is_persistent:
        raise RestError(412, "unsupport truncate")
    pace, subscriptions = Pace(api.wake), api.broker.subscriptions
    for topic in await _parts(api, name):
        for subscription in _names(api, topic):
            if subscriptions.find(topic, subscription) is not None:
                subscriptions.skip_all(topic, subscription)
            await pace.step(CHANGE_STEPS)
    await api.durable()


async def clear_namespace(
    api: RestContext, _request: RestRequest, tenant: str, namespace: str, *subscription: str
) -> None:
    """Everything is skipped in all topics of a namespace, for one subscription or for all."""
    pace, subscriptions = Pace(api.wake), api.broker.subscriptions
    for topic in await _logged_topics(api, f"{tenant}/{namespace}"):
        for name in _names(api, topic):
            is_meant = not subscription or name in subscription
            if is_meant and subscriptions.find(topic, name) is not None:
                subscriptions.skip_all(topic, name)
            await pace.step(CHANGE_STEPS)
    await api.durable()


async def unsubscribe_namespace(
    api: RestContext, _request: RestRequest, tenant: str, namespace: str, subscription: str
) -> None:
    """A subscription goes from all topics of a namespace, where nobody uses it; else 412."""
    pace, subscriptions = Pace(api.wake), api.broker.subscriptions
    for topic in await _logged_topics(api, f"{tenant}/{namespace}"):
        if subscriptions.find(topic, subscription) is not None:
            subscriptions.delete(topic, subscription)
        await pace.step(DELETE_STEPS)
    await api.durable()


async def _logged_topics(api: RestContext, namespace: str) -> list[PulsarTopic]:
    """Every topic and partition of a namespace that has a log."""
    api.check_namespace(namespace)
    pace, topics = Pace(), api.broker.topics
    found: list[PulsarTopic] = []
    for whole in topics.walk(namespace):
        await pace.step()
        for each in () if whole is None else topics.parts(whole):
            topic = topics.find(each)
            if topic is not None:
                found.append(topic)
            await pace.step()
    return found


async def expire(
    api: RestContext, _request: RestRequest, name: PulsarName, subscription: str, seconds: str
) -> None:
    """What was published longer ago counts as acked; 0 says nothing, as in Pulsar."""
    _check_logged(name, "Expire messages")
    older_than_s = to_number("the number of seconds", seconds)
    pace = Pace(api.wake)
    for topic in await _having(api, name, subscription):
        await _expire(api, topic, subscription, older_than_s, pace)
    await api.durable()


async def expire_all(
    api: RestContext, _request: RestRequest, name: PulsarName, seconds: str
) -> None:
    """The same for all subscriptions."""
    _check_logged(name, "Expire messages")
    older_than_s = to_number("the number of seconds", seconds)
    pace = Pace(api.wake)
    for topic in await _parts(api, name):
        for subscription in _names(api, topic):
            await _expire(api, topic, subscription, older_than_s, pace)
    await api.durable()


async def _expire(
    api: RestContext, topic: PulsarTopic, subscription: str, older_than_s: int, pace: Pace
) -> None:
    if older_than_s and api.broker.subscriptions.find(topic, subscription) is not None:
        now_ms = api.broker.clock.wall_ms()
        api.broker.subscriptions.expire(topic, subscription, older_than_s, now_ms)
    await pace.step(SEARCH_STEPS)


async def expire_upto(
    api: RestContext, request: RestRequest, name: PulsarName, subscription: str
) -> None:
    """Everything up to an id, and with it."""
    given = await request.json(GivenPosition)
    topic = one_topic(api, name, "Expire messages by position")
    stored = api.broker.subscriptions.get(topic, subscription).stored
    first = Position(topic.queue.incarnation, 0)
    if stored is not None and given.position >= first:
        offset = given.offset_in(api, topic)
        upto = offset if given.excluded else _behind(topic, offset)
        stored.settle_upto(topic.queue.queue_id, min(upto, topic.queue.durable_end))
    await api.durable()


async def reset_to_time(
    api: RestContext, _request: RestRequest, name: PulsarName, subscription: str, time_ms: str
) -> None:
    """To the first message that was published then or later; its consumers come again."""
    to_ms = to_number("the time", time_ms)
    parts = await _having(api, name, subscription)
    if not name.is_persistent:
        return
    pace = Pace(api.wake)
    for topic in parts:
        found = api.broker.subscriptions.find(topic, subscription)
        if found is not None:
            found.seek(api.broker.subscriptions.offset_at(topic, to_ms))
        await pace.step(SEARCH_STEPS)
    await api.durable()


async def reset_to_position(
    api: RestContext, request: RestRequest, name: PulsarName, subscription: str
) -> None:
    given = await request.json(GivenPosition)
    if api.broker.topics.partitions(name):
        raise RestError(405, "Reset-cursor at position is not allowed for partitioned-topic")
    topic = one_topic(api, name, "Reset-cursor at position")
    found = api.broker.subscriptions.get(topic, subscription)
    found.seek(given.offset_in(api, topic))
    await api.durable()


# ---- parts --------------------------------------------------------------------------------------


async def _parts(api: RestContext, name: PulsarName) -> list[PulsarTopic]:
    """The partitions of a topic, or itself; 404 without it."""
    if api.broker.topics.partitions(name):
        return await partitions_of(api, name)
    return [topic_of(api, name)]


def _names(api: RestContext, topic: PulsarTopic) -> list[str]:
    """Of a topic that may have gone since the work on it began."""
    is_there = api.broker.topics.find(topic.name) is not None
    return api.broker.subscriptions.names(topic) if is_there else []


async def _having(api: RestContext, name: PulsarName, subscription: str) -> list[PulsarTopic]:
    """Those of them that have a subscription, at least one; 404 without."""
    pace = Pace()
    found: list[PulsarTopic] = []
    for topic in await _parts(api, name):
        if api.broker.subscriptions.find(topic, subscription) is not None:
            found.append(topic)
        await pace.step()
    if not found:
        raise RestError(404, f"Subscription {subscription} not found for topic {name}")
    return found


def one_topic(api: RestContext, name: PulsarName, what: str) -> PulsarTopic:
    """A plain topic or a partition, with a log; 405 for others."""
    _check_logged(name, what)
    if api.broker.topics.partitions(name):
        raise RestError(405, f"{what} on a partitioned topic is not allowed")
    return topic_of(api, name)


def _check_logged(name: PulsarName, what: str) -> None:
    if not name.is_persistent:
        raise RestError(405, f"{what} on a non-persistent topic is not allowed")


_HANDLERS: Final[dict[tuple[str, str], Handler]] = {
    ("GET", "subscriptions"): names,
    ("PUT", f"subscription/{ANY}"): create,
    ("DELETE", f"subscription/{ANY}"): delete,
    ("POST", f"subscription/{ANY}/skip/{ANY}"): skip,
    ("POST", f"subscription/{ANY}/skip_all"): skip_all,
    ("DELETE", "truncate"): truncate,
    ("POST", f"subscription/{ANY}/analyzeBacklog"): analyze,
    ("POST", f"subscription/{ANY}/expireMessages/{ANY}"): expire,
    ("POST", f"subscription/{ANY}/expireMessages"): expire_upto,
    ("POST", f"all_subscription/expireMessages/{ANY}"): expire_all,
    ("POST", f"subscription/{ANY}/resetcursor/{ANY}"): reset_to_time,
    ("POST", f"subscription/{ANY}/resetcursor"): reset_to_position,
}

SUBSCRIPTION_ROUTES: Final[RouteTable] = {
    ("POST", ("namespaces", ANY, ANY, "clearBacklog")): clear_namespace,
    ("POST", ("namespaces", ANY, ANY, "clearBacklog", ANY)): clear_namespace,
    ("POST", ("namespaces", ANY, ANY, "unsubscribe", ANY)): unsubscribe_namespace,
    **topic_routes(_HANDLERS),
}
