"""Statistics of topics in Pulsar's shape: its names for what the engine and the adapter count.

Backlogs are in messages, also where they are batches (Pulsar counts those as one). Rates are those
of the last whole span of ten seconds; what is counted, is counted since the topic was made, and of
clients since they came.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.pulsar.naming import SUBSCRIPTION_PREFIX
from penstock.adapters.pulsar.producer import Producer, ProducerView
from penstock.engine.host import Mode

if TYPE_CHECKING:
    from penstock.adapters.pulsar.broker import PulsarBroker
    from penstock.adapters.pulsar.topics import PulsarTopic
    from penstock.engine.subscription.subscription import Subscription
    from penstock.engine.topic import Queue
    from penstock.log.index import IndexEntry

TYPES: Final = {
    Mode.EXCLUSIVE: "Exclusive",
    Mode.SHARED: "Shared",
    Mode.FAILOVER: "Failover",
    Mode.KEY_SHARED: "Key_Shared",
}

SUMMED: Final = (
    "msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "bytesInCounter",
    "msgInCounter", "bytesOutCounter", "msgOutCounter", "storageSize", "backlogSize",
)  # fmt: skip
"""Of all partitions together."""
SUMMED_OF_SUBSCRIPTION: Final = (
    "msgRateOut", "msgThroughputOut", "bytesOutCounter", "msgOutCounter", "msgRateRedeliver",
    "msgBacklog", "backlogSize", "msgDelayed", "unackedMessages",
)  # fmt: skip


def topic_statistics(broker: PulsarBroker, topic: PulsarTopic) -> dict[str, Any]:
    """One topic or one partition."""
    publishers = _publishers(broker, topic)
    found: dict[str, Any] = {
        "msgRateIn": sum(each.message_rate for each in publishers),
        "msgThroughputIn": sum(each.byte_rate for each in publishers),
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "bytesInCounter": 0,
        "msgInCounter": 0,
        "bytesOutCounter": 0,
        "msgOutCounter": 0,
        "averageMsgSize": 0.0,
        "msgChunkPublished": False,
        "storageSize": 0,
        "backlogSize": 0,
        "publishers": [_publisher(each) for each in publishers],
        "waitingPublishers": len(broker.access.of(topic).waiting),
        "subscriptions": {},
        "replication": {},
        "deduplicationStatus": _deduplication(broker, topic),
        "topicEpoch": None,
        "compaction": {},
    }
    if topic.is_persistent:
        _add_log(found, topic)
    else:
        unlogged = topic.unlogged
        found["msgInCounter"] = unlogged.published_messages
        found["bytesInCounter"] = unlogged.published_bytes
        found["msgDropped"] = unlogged.dropped_messages
    if found["msgInCounter"]:
        found["averageMsgSize"] = found["bytesInCounter"] / found["msgInCounter"]
    return found


def _add_log(found: dict[str, Any], topic: PulsarTopic) -> None:
    queue = topic.queue
    index = queue.index
    found["msgInCounter"] = index.next_offset
    found["storageSize"] = index.bytes_between(index.min_offset, index.next_offset)
    found["bytesInCounter"] = index.end_bytes
    found["subscriptions"] = {
        name.removeprefix(SUBSCRIPTION_PREFIX): _subscription(each, queue)
        for name, each in topic.topic.subscriptions.items()
        if name.startswith(SUBSCRIPTION_PREFIX) and each.reads(queue.queue_id)
    }
    shown = found["subscriptions"].values()
    for name in ("msgRateOut", "msgThroughputOut", "bytesOutCounter", "msgOutCounter"):
        found[name] = sum(each[name] for each in shown)
    found["backlogSize"] = max((each["backlogSize"] for each in shown), default=0)


def _publishers(broker: PulsarBroker, topic: PulsarTopic) -> list[ProducerView]:
    entered = broker.access.of(topic).producers.values()
    return [each.view() for each in entered if isinstance(each, Producer)]


def _publisher(view: ProducerView) -> dict[str, Any]:
    return {
        "accessMode": view.access_mode,
        "msgRateIn": view.message_rate,
        "msgThroughputIn": view.byte_rate,
        "averageMsgSize": view.bytes / view.messages if view.messages else 0.0,
        "chunkedMessageRate": 0.0,
        "producerId": view.producer_id,
        "producerName": view.name,
        "address": f"/{view.address}",
        "connectedSince": iso_time(view.connected_ms),
        "clientVersion": view.client_version,
        "supportsPartialProducer": False,
        "metadata": view.metadata,
    }


def _subscription(subscription: Subscription, queue: Queue) -> dict[str, Any]:
    queue_id = queue.queue_id
    unacked = subscription.unacked(queue_id)
    return {
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "bytesOutCounter": 0,
        "msgOutCounter": 0,
        "msgRateRedeliver": 0.0,
        "messageAckRate": 0.0,
        "chunkedMessageRate": 0,
        "msgBacklog": subscription.ready(queue_id) + unacked,
        "backlogSize": subscription.backlog_bytes(queue_id),
        "msgBacklogNoDelayed": subscription.ready(queue_id) + unacked,
        "blockedSubscriptionOnUnackedMsgs": subscription.statistics().is_blocked,
        "msgDelayed": 0,
        "unackedMessages": unacked,
        "type": TYPES[subscription.options.mode],
        "msgRateExpired": 0.0,
        "totalMsgExpired": 0,
        "consumers": [],
        "isDurable": subscription.options.is_durable,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "consumersAfterMarkDeletePosition": {},
        "nonContiguousDeletedMessagesRanges": 0,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "subscriptionProperties": {},
        "filterProcessedMsgCount": 0,
        "durable": subscription.options.is_durable,
        "replicated": False,
    }


def partitioned_statistics(
    broker: PulsarBroker, parts: list[PulsarTopic], *, is_each_shown: bool
) -> dict[str, Any]:
    """All partitions together, and each if that is wanted."""
    each_part = {str(each.name): topic_statistics(broker, each) for each in parts}
    found: dict[str, Any] = dict.fromkeys(SUMMED, 0)
    subscriptions: dict[str, dict[str, Any]] = {}
    for shown in each_part.values():
        for name in SUMMED:
            found[name] += shown[name]
        for key, one in shown["subscriptions"].items():
            known = subscriptions.get(key)
            if known is None:
                subscriptions[key] = {**one, "consumers": list(one["consumers"])}
                continue
            for name in SUMMED_OF_SUBSCRIPTION:
                known[name] += one[name]
            known["consumers"] += one["consumers"]
    messages = found["msgInCounter"]
    return {
        **found,
        "averageMsgSize": found["bytesInCounter"] / messages if messages else 0.0,
        "publishers": [each for shown in each_part.values() for each in shown["publishers"]],
        "subscriptions": subscriptions,
        "replication": {},
        "metadata": {"partitions": len(parts), "deleted": False},
        "partitions": each_part if is_each_shown else {},
    }


def internal_statistics(topic: PulsarTopic) -> dict[str, Any]:
    """What Pulsar says of ledgers: ours is one, the queue's incarnation."""
    queue = topic.queue
    index, ledger = queue.index, queue.incarnation
    entry = last_entry(queue)
    size = index.bytes_between(index.min_offset, index.next_offset)
    last = -1 if entry is None else entry[1]
    return {
        "entriesAddedCounter": index.next_offset,
        "numberOfEntries": index.messages,
        "totalSize": size,
        "currentLedgerEntries": index.messages,
        "currentLedgerSize": size,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "lastConfirmedEntry": f"{ledger}:{last}",
        "state": "Terminated" if topic.topic.is_terminated else "LedgerOpened",
        "ledgers": [
            {
                "ledgerId": ledger, "entries": index.messages, "size": size,
                "offloaded": False, "underReplicated": False,
            }
        ],
        "cursors": {
            name.removeprefix(SUBSCRIPTION_PREFIX): _cursor(each, queue)
            for name, each in topic.topic.subscriptions.items()
            if name.startswith(SUBSCRIPTION_PREFIX) and each.reads(queue.queue_id)
        },
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": -1, "entries": -1, "size": -1, "offloaded": False,
            "underReplicated": False,
        },
    }  # fmt: skip


def _cursor(subscription: Subscription, queue: Queue) -> dict[str, Any]:
    low = subscription.low_mark(queue.queue_id)
    return {
        "markDeletePosition": f"{queue.incarnation}:{low - 1}",
        "readPosition": f"{queue.incarnation}:{low}",
        "waitingReadOp": False,
        "pendingReadOps": 0,
        "messagesConsumedCounter": low,
        "individuallyDeletedMessages": "[]",
        "state": "Open",
        "active": bool(subscription.consumers),
        "properties": {},
    }


def message_id(topic: PulsarTopic) -> dict[str, Any]:
    """Of the last message; entry -1 where there is none."""
    entry = last_entry(topic.queue)
    return {
        "ledgerId": topic.queue.incarnation,
        "entryId": -1 if entry is None else entry[1],
        "partitionIndex": topic.partition,
    }


def last_entry(queue: Queue) -> IndexEntry | None:
    index = queue.index
    found = index.entries(index.next_offset - 1, 1) if index.messages else []
    return found[0] if found else None


def _deduplication(broker: PulsarBroker, topic: PulsarTopic) -> str:
    return "Enabled" if broker.namespaces.effective(topic.topic_name).deduplication else "Disabled"


def iso_time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
