"""Statistics of topics in Pulsar's shape: its names for what the engine and the adapter count.

Backlogs are in messages, also where they are batches (Pulsar counts those as one). Rates are those
of the last whole span of ten seconds. What came in is counted since the topic was made, what went
out since the clients came who got it. What nobody counts here is left out: there is no 0 that means
"unknown".

A topic may have thousands of clients, a partitioned one thousands of partitions: all of it goes at
a pace, and what is gone meanwhile is not shown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.adapters.pulsar.consumer import Consumer, ConsumerStats
from penstock.adapters.pulsar.namespaces import AGE_QUOTA, STORAGE_QUOTA
from penstock.adapters.pulsar.producer import Producer, ProducerView
from penstock.adapters.pulsar.subscriptions import MODE_NAMES, PulsarSubscription
from penstock.engine.host import Mode
from penstock.model.errors import NotFound
from penstock.server.pulsar_rest.request import Pace, json_pieces
from penstock.wire.pulsar.metadata import publish_ms

if TYPE_CHECKING:
    from penstock.adapters.pulsar.broker import PulsarBroker
    from penstock.adapters.pulsar.topics import PulsarTopic
    from penstock.engine.subscription.subscription import Subscription
    from penstock.engine.topic import Queue
    from penstock.log.index import IndexEntry

NOBODY: Final = "None"
"""The type of a subscription without consumers."""
TOPIC_STEPS: Final = 5
"""What it costs to look at a topic that nobody uses."""
RANGES_SHOWN: Final = 1_000
"""Of what is acked above the place up to which everything is."""

BLOCKED: Final = "blockedSubscriptionOnUnackedMsgs"
OUT: Final = ("msgRateOut", "msgThroughputOut", "bytesOutCounter", "msgOutCounter")
SUMMED: Final = (
    "msgRateIn", "msgThroughputIn", "bytesInCounter", "msgInCounter", *OUT, "storageSize",
    "backlogSize", "waitingPublishers",
)  # fmt: skip
"""Of all partitions together."""
SUMMED_OF_SUBSCRIPTION: Final = (
    *OUT, "msgRateRedeliver", "messageAckRate", "msgBacklog", "backlogSize", "msgBacklogNoDelayed",
    "msgDelayed", "msgInReplay", "unackedMessages", "nonContiguousDeletedMessagesRanges",
)  # fmt: skip
SUMMED_OF_CONSUMER: Final = (
    *OUT, "msgRateRedeliver", "messageAckRate", "availablePermits", "unackedMessages",
)  # fmt: skip
SUMMED_OF_PUBLISHER: Final = ("msgRateIn", "msgThroughputIn")


class Wanted(msgspec.Struct, frozen=True):
    """What somebody asks for."""

    pace: Pace
    publishers: bool = True
    consumers: bool = True
    earliest: bool = False
    """When the oldest message of a backlog was published, for which it must be read."""
    owner: str = ""
    """This broker, as the client calls it."""


# ---- one topic ----------------------------------------------------------------------------------


async def topic_statistics(
    broker: PulsarBroker, topic: PulsarTopic, wanted: Wanted
) -> dict[str, Any]:
    """One topic or one partition; raises ``NotFound`` when it goes meanwhile."""
    publishers: list[ProducerView] = []
    for each in list(broker.access.of(topic).producers.values()):
        if isinstance(each, Producer):
            publishers.append(each.view())
            await wanted.pace.step()
    found: dict[str, Any] = {
        "msgRateIn": sum([each.message_rate for each in publishers]),
        "msgThroughputIn": sum([each.byte_rate for each in publishers]),
        **dict.fromkeys(OUT, 0),
        "storageSize": 0,
        "backlogSize": 0,
        "publishers": [_publisher(each) for each in publishers if wanted.publishers],
        "waitingPublishers": len(broker.access.of(topic).waiting),
        "subscriptions": {},
        "replication": {},
        "deduplicationStatus": _deduplication(broker, topic),
        "compaction": {},
        "ownerBroker": wanted.owner,
        **_received(broker, topic, publishers),
    }
    if topic.is_persistent:
        found |= _quota(broker, topic)
    messages = found["msgInCounter"]
    found["averageMsgSize"] = found["bytesInCounter"] / messages if messages else 0.0
    for name in broker.subscriptions.names(topic):
        subscription = broker.subscriptions.find(topic, name)
        if subscription is None:
            continue
        shown = await _subscription(broker, subscription, wanted)
        found["subscriptions"][name] = shown
        for figure in OUT:
            found[figure] += shown[figure]
        found["backlogSize"] = max(found["backlogSize"], shown["backlogSize"])
    await wanted.pace.step(TOPIC_STEPS)
    return found


def _received(
    broker: PulsarBroker, topic: PulsarTopic, publishers: list[ProducerView]
) -> dict[str, Any]:
    if topic.is_persistent:
        index = topic.queue.index
        return {
            "msgInCounter": index.next_offset,
            "bytesInCounter": index.end_bytes,
            "storageSize": index.bytes_between(index.min_offset, index.next_offset),
        }
    # Not by the topic itself: it would come back for being looked at.
    unlogged = broker.engine.non_persistent.get(topic.topic_name)
    if unlogged is None:
        raise NotFound(f"Topic {topic.name} not found")
    if len(unlogged.queue_ids) > 1:
        # Its partitions are counted together; of this one its producers know.
        return {
            "msgInCounter": sum([each.messages for each in publishers]),
            "bytesInCounter": sum([each.bytes for each in publishers]),
        }
    return {
        "msgInCounter": unlogged.published_messages,
        "bytesInCounter": unlogged.published_bytes,
        "msgDropped": unlogged.dropped_messages,
    }


def _quota(broker: PulsarBroker, topic: PulsarTopic) -> dict[str, int]:
    """Of the topic, in all of its partitions together; -1 = none."""
    quotas = broker.namespaces.effective(topic.topic_name).backlog_quotas
    size, age = quotas.get(STORAGE_QUOTA), quotas.get(AGE_QUOTA)
    return {
        "backlogQuotaLimitSize": -1 if size is None else size.limit_size,
        "backlogQuotaLimitTime": -1 if age is None else age.limit_time,
    }


def _deduplication(broker: PulsarBroker, topic: PulsarTopic) -> str:
    return "Enabled" if broker.namespaces.effective(topic.topic_name).deduplication else "Disabled"


def _publisher(view: ProducerView) -> dict[str, Any]:
    return {
        "accessMode": view.access_mode,
        "msgRateIn": view.message_rate,
        "msgThroughputIn": view.byte_rate,
        "averageMsgSize": view.bytes / view.messages if view.messages else 0.0,
        "producerId": view.producer_id,
        "supportsPartialProducer": False,
        "producerName": view.name,
        "address": f"/{view.address}",
        "connectedSince": iso_time(view.connected_ms),
        "clientVersion": view.client_version,
        "metadata": view.metadata,
    }


# ---- its subscriptions --------------------------------------------------------------------------


async def _subscription(
    broker: PulsarBroker, subscription: PulsarSubscription, wanted: Wanted
) -> dict[str, Any]:
    consumers: list[ConsumerStats] = []
    active = ""
    for user in list(subscription.users):
        if isinstance(user, Consumer):
            consumers.append(user.view())
            is_alone = user.manner.mode is Mode.EXCLUSIVE
            if is_alone or (user.attached is not None and user.attached.active_queues):
                active = user.name
            await wanted.pace.step()
    # Looked at now, in one go: the figures fit to each other.
    mode = subscription.mode
    found: dict[str, Any] = {
        "msgRateOut": sum([each.message_rate for each in consumers]),
        "msgThroughputOut": sum([each.byte_rate for each in consumers]),
        "bytesOutCounter": sum([each.bytes for each in consumers]),
        "msgOutCounter": sum([each.messages for each in consumers]),
        "msgRateRedeliver": sum([each.redeliver_rate for each in consumers]),
        "messageAckRate": sum([each.ack_rate for each in consumers]),
        "type": NOBODY if mode is None else MODE_NAMES[mode],
        "consumers": [_consumer(each) for each in consumers if wanted.consumers],
        "isReplicated": False,
        "replicated": False,
        "subscriptionProperties": {},
        **_places(subscription),
    }
    if mode in (Mode.FAILOVER, Mode.EXCLUSIVE):
        found["activeConsumerName"] = active
    if mode is Mode.KEY_SHARED:
        manner = next(iter(subscription.users)).manner
        found["allowOutOfOrderDelivery"] = manner.allows_disorder
        found["keySharedMode"] = "STICKY" if manner.is_sticky else "AUTO_SPLIT"
    if wanted.earliest and subscription.stored is not None:
        found["earliestMsgPublishTimeInBacklog"] = _earliest(broker, subscription)
        await wanted.pace.step(5)
    await wanted.pace.step(2)
    return found


def _places(subscription: PulsarSubscription) -> dict[str, Any]:
    """Where it stands, of a topic with a log."""
    stored = subscription.stored
    if stored is None:
        figures = ("msgBacklog", "backlogSize", "msgBacklogNoDelayed", "msgDelayed", "msgInReplay")
        others = ("unackedMessages", "nonContiguousDeletedMessagesRanges")
        nothing = dict.fromkeys((*figures, *others), 0)
        return {**nothing, BLOCKED: False, "isDurable": False, "durable": False}
    cursor = stored.cursor(subscription.queue.queue_id)
    backlog, delayed = cursor.unsettled_messages, cursor.redelivery.delayed_messages
    return {
        "msgBacklog": backlog,
        "backlogSize": cursor.backlog_bytes if backlog else 0,
        "msgBacklogNoDelayed": max(0, backlog - delayed),
        BLOCKED: stored.is_blocked,
        "msgDelayed": delayed,
        "msgInReplay": len(cursor.redelivery.ready),
        "unackedMessages": cursor.pending.messages,
        "nonContiguousDeletedMessagesRanges": len(cursor.settled.starts),
        "isDurable": stored.options.is_durable,
        "durable": stored.options.is_durable,
    }


def _earliest(broker: PulsarBroker, subscription: PulsarSubscription) -> int:
    """When the oldest message that is not acked was published; 0 = there is none."""
    found, _ = broker.subscriptions.unacked_entries(subscription.topic, subscription.name)
    located = broker.engine.locate(found[0][0]) if found else None
    return 0 if located is None else publish_ms(located.record)


def _consumer(view: ConsumerStats) -> dict[str, Any]:
    found: dict[str, Any] = {
        "msgRateOut": view.message_rate,
        "msgThroughputOut": view.byte_rate,
        "bytesOutCounter": view.bytes,
        "msgOutCounter": view.messages,
        "msgRateRedeliver": view.redeliver_rate,
        "messageAckRate": view.ack_rate,
        "consumerName": view.name,
        "availablePermits": view.permits,
        "unackedMessages": view.unacked,
        "blockedConsumerOnUnackedMsgs": view.is_blocked,
        "address": f"/{view.address}",
        "connectedSince": iso_time(view.connected_ms),
        "clientVersion": view.client_version,
        "metadata": view.metadata,
    }
    if view.key_ranges:
        found["keyHashRangeArrays"] = [list(each) for each in view.key_ranges]
    return found


# ---- partitions ---------------------------------------------------------------------------------


async def partitioned_statistics(
    broker: PulsarBroker, parts: list[PulsarTopic], wanted: Wanted, *, is_each_shown: bool
) -> AsyncIterator[bytes]:
    """JSON in pieces: each partition if that is wanted, and then all of them together."""
    whole = _Whole()
    yield b'{"partitions":{'
    separator = b""
    for part in parts:
        try:
            shown = await topic_statistics(broker, part, wanted)
        except NotFound:
            continue  # gone meanwhile
        whole.add(shown)
        if is_each_shown:
            yield separator + msgspec.json.encode(str(part.name)) + b":"
            async for piece in json_pieces(shown):
                yield piece
            separator = b","
    yield b"},"
    is_first = True
    async for piece in json_pieces(whole.shown(len(parts))):
        yield piece[1:] if is_first else piece
        is_first = False


class _Whole:
    """A partitioned topic: the sums of its partitions.

    Of a client's consumers, which has one for each partition, it shows one with their sums, as long
    as they have the same name and connection; of its producers likewise.
    """

    def __init__(self) -> None:
        self._sums: Final[dict[str, Any]] = dict.fromkeys(SUMMED, 0)
        self._publishers: Final[dict[tuple[str, str], dict[str, Any]]] = {}
        self._subscriptions: Final[dict[str, dict[str, Any]]] = {}
        self._consumers: Final[dict[str, dict[tuple[str, str], dict[str, Any]]]] = {}

    def add(self, shown: dict[str, Any]) -> None:
        _add(self._sums, shown, SUMMED)
        for each in shown["publishers"]:
            key = (each["producerName"], each["address"])
            _merge(self._publishers, key, each, SUMMED_OF_PUBLISHER)
        for name, each in shown["subscriptions"].items():
            known = self._subscriptions.get(name)
            _merge(self._subscriptions, name, each, SUMMED_OF_SUBSCRIPTION)
            if known is not None:
                if known["type"] == NOBODY:
                    known["type"] = each["type"]
                known[BLOCKED] |= each[BLOCKED]
            consumers = self._consumers.setdefault(name, {})
            for one in each["consumers"]:
                key = (one["consumerName"], one["address"])
                _merge(consumers, key, one, SUMMED_OF_CONSUMER)

    def shown(self, partitions: int) -> dict[str, Any]:
        messages = self._sums["msgInCounter"]
        subscriptions = {
            name: {**each, "consumers": list(self._consumers[name].values())}
            for name, each in self._subscriptions.items()
        }
        return {
            **self._sums,
            "averageMsgSize": self._sums["bytesInCounter"] / messages if messages else 0.0,
            "publishers": list(self._publishers.values()),
            "subscriptions": subscriptions,
            "replication": {},
            "metadata": partitioned_metadata(partitions),
        }


def _merge(
    known: dict[Any, dict[str, Any]], key: Any, each: dict[str, Any], figures: Iterable[str]
) -> None:
    if key in known:
        _add(known[key], each, figures)
    else:
        known[key] = dict(each)


def _add(known: dict[str, Any], each: dict[str, Any], figures: Iterable[str]) -> None:
    for name in figures:
        known[name] += each[name]


def partitioned_metadata(partitions: int) -> dict[str, Any]:
    return {"partitions": partitions, "deleted": False}


# ---- the inside ---------------------------------------------------------------------------------


async def internal_statistics(
    broker: PulsarBroker, topic: PulsarTopic, pace: Pace
) -> dict[str, Any]:
    """What Pulsar says of ledgers: ours is one, the queue's incarnation."""
    if not topic.is_persistent:
        cursors: dict[str, Any] = {each: {} for each in broker.subscriptions.names(topic)}
        return {"numberOfEntries": 0, "totalSize": 0, "cursors": cursors}
    queue = topic.queue
    index, ledger = queue.index, queue.incarnation
    entry = last_entry(queue)
    size = index.bytes_between(index.min_offset, index.next_offset)
    found: dict[str, Any] = {
        "entriesAddedCounter": index.next_offset,
        "numberOfEntries": index.messages,
        "totalSize": size,
        "currentLedgerEntries": index.messages,
        "currentLedgerSize": size,
        "lastConfirmedEntry": f"{ledger}:{-1 if entry is None else entry[1]}",
        "state": "Terminated" if topic.topic.is_terminated else "LedgerOpened",
        "ledgers": [
            {
                "ledgerId": ledger, "entries": index.messages, "size": size,
                "offloaded": False, "underReplicated": False,
            }
        ],
        "cursors": {},
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": -1, "entries": -1, "size": -1, "offloaded": False,
            "underReplicated": False,
        },
    }  # fmt: skip
    for name in broker.subscriptions.names(topic):
        subscription = broker.subscriptions.find(topic, name)
        if subscription is not None and subscription.stored is not None:
            found["cursors"][name] = _cursor(subscription, subscription.stored)
            await pace.step(5)
    return found


def _cursor(subscription: PulsarSubscription, stored: Subscription) -> dict[str, Any]:
    queue = subscription.queue
    ledger = queue.incarnation
    cursor = stored.cursor(queue.queue_id)
    mark = subscription.mark_delete
    settled = cursor.settled
    ranges = [
        f"({ledger}:{start - 1}..{ledger}:{end - 1}]"
        for start, end in zip(
            settled.starts[:RANGES_SHOWN], settled.ends[:RANGES_SHOWN], strict=True
        )
    ]
    return {
        "markDeletePosition": f"{mark.ledger}:{mark.entry}",
        "readPosition": f"{ledger}:{cursor.next_offset}",
        "messagesConsumedCounter": settled.low_mark + settled.settled_above,
        "individuallyDeletedMessages": f"[{','.join(ranges)}]",
        "totalNonContiguousDeletedMessagesRange": len(settled.starts),
        "numberOfEntriesSinceFirstNotAckedMessage": max(0, cursor.next_offset - settled.low_mark),
        "state": "Open",
        "active": bool(subscription.users),
        "properties": {},
    }


async def partitioned_internal_statistics(
    broker: PulsarBroker, parts: list[PulsarTopic], pace: Pace
) -> AsyncIterator[bytes]:
    """JSON in pieces: each partition."""
    yield b'{"metadata":' + msgspec.json.encode(partitioned_metadata(len(parts)))
    yield b',"partitions":{'
    separator = b""
    for part in parts:
        try:
            shown = await internal_statistics(broker, part, pace)
        except NotFound:
            continue  # gone meanwhile
        yield separator + msgspec.json.encode(str(part.name)) + b":"
        async for piece in json_pieces(shown):
            yield piece
        separator = b","
        await pace.step(10)
    yield b"}}"


# ---- ids and times ------------------------------------------------------------------------------


def message_id(topic: PulsarTopic, entry: int, batch_index: int = -1) -> dict[str, Any]:
    """As Pulsar writes it down."""
    return {
        "ledgerId": topic.queue.incarnation,
        "entryId": entry,
        "partitionIndex": topic.partition,
        "batchIndex": batch_index,
    }


def last_message_id(topic: PulsarTopic) -> dict[str, Any]:
    """Of the last entry; entry -1 where there is none."""
    entry = last_entry(topic.queue)
    return message_id(topic, -1 if entry is None else entry[1])


def last_entry(queue: Queue) -> IndexEntry | None:
    """The last one on the disk."""
    index, end = queue.index, queue.durable_end
    found = index.entries(end - 1, 1) if end > index.min_offset else []
    return found[0] if found else None


def iso_time(wall_ms: int) -> str:
    found = datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return found.replace("+00:00", "Z")
