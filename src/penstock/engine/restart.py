"""After a restart: topics, subscriptions and cursors as the catalog and the log left them (D5, D6).

Order matters: topics with their queues, then subscriptions, then each cursor's snapshot, then the
settlements since, in the order of the log, and last the transient messages that a restart drops.
Rows that name something that is not there any more are deleted rather than kept for ever.

After an unclean stop everything below a cursor's delivered mark counts as delivered before
(``subscription/cursor.py`` flags it, D13): the mark is part of the cursor's state and always
reserved ahead.
"""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec

from penstock.engine.commit import SettlementBuffer
from penstock.engine.delay import NEVER_MS, Delays
from penstock.engine.host import Host, SubscriptionOptions
from penstock.engine.registry import (
    SUBSCRIPTION_KIND,
    TOPIC_KIND,
    Registry,
    SubscriptionRow,
    TopicRow,
)
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import Queue, Topic
from penstock.log.recovery import Recovered
from penstock.log.store import Store
from penstock.model.errors import LogCorrupt, NotFound
from penstock.model.ids import QueueId, QueueOffset, SubscriptionId, TopicId
from penstock.model.names import TopicName
from penstock.model.settlement import Cause, QueueSettlement, Settlement

logger = logging.getLogger(__name__)

RowT = TypeVar("RowT")


def restore(
    registry: Registry,
    store: Store,
    recovered: Recovered,
    *,
    delays: Delays,
    settlements: SettlementBuffer,
    host: Host,
) -> None:
    """Make the registry what it was."""
    topics = _restore_topics(registry, store)
    _restore_subscriptions(registry, store, topics, host)
    _restore_cursors(registry, recovered, settlements)
    _drop_orphan_queues(registry, store)
    delays.restore(store.delayed.pending(NEVER_MS))


def _restore_topics(registry: Registry, store: Store) -> dict[int, Topic]:
    topics: dict[int, Topic] = {}
    for key, body in store.definitions.all(TOPIC_KIND).items():
        row = _decoded(body, TopicRow, f"topic {key}")
        name = TopicName(row.space, row.name)
        topic = Topic(TopicId(row.topic_id), name, row.policy, is_durable=True)
        topic.is_terminated, topic.protocol = row.is_terminated, row.protocol
        for queue_id in row.queues:
            try:
                registry.make_queue(topic, queue_id)
            except NotFound as problem:
                raise LogCorrupt(
                    f"topic '{name}' names queue {queue_id}, which the catalog does not have; "
                    "restore catalog.db from a backup"
                ) from problem
        registry.add_topic(topic)
        topics[row.topic_id] = topic
    return topics


def _restore_subscriptions(
    registry: Registry, store: Store, topics: dict[int, Topic], host: Host
) -> None:
    for key, body in store.definitions.all(SUBSCRIPTION_KIND).items():
        row = _decoded(body, SubscriptionRow, f"subscription {key}")
        topic = topics.get(row.topic_id)
        queues = [] if topic is None else _read_by(row, topic)
        if topic is None or not queues:
            store.definitions.delete(SUBSCRIPTION_KIND, key)
            continue
        options = SubscriptionOptions(
            mode=row.mode,
            holds_data=row.holds_data,
            sees_unsynced=row.sees_unsynced,
            delivery_limit=row.delivery_limit,
            is_priority=row.is_priority,
            whole_batches=row.whole_batches,
        )
        subscription_id = SubscriptionId(row.subscription_id)
        subscription = Subscription(subscription_id, row.name, queues, options, host, is_new=False)
        registry.add_subscription(topic, subscription)


def _read_by(row: SubscriptionRow, topic: Topic) -> list[Queue]:
    """Of a row from before subscriptions could choose: all."""
    return [each for each in topic.queues if row.queues is None or each.queue_id in row.queues]


def _restore_cursors(
    registry: Registry, recovered: Recovered, settlements: SettlementBuffer
) -> None:
    for (subscription_id, _), state in recovered.cursors.items():
        subscription = registry.subscription(subscription_id)
        if subscription is not None:
            subscription.restore(state)
    for settlement in recovered.settlements:
        subscription = registry.subscription(settlement.subscription_id)
        if subscription is not None:
            subscription.apply(settlement)
            settlements.replayed(settlement)
    for queue_id, ranges in recovered.transient:
        queue = registry.queues.get(QueueId(queue_id))
        if queue is None:
            continue
        dropped = [QueueSettlement(queue.queue_id, QueueOffset(-1), ranges)]
        for subscription in queue.topic.subscriptions.values():
            subscription.apply(Settlement(subscription.subscription_id, int(Cause.PURGED), dropped))


def _drop_orphan_queues(registry: Registry, store: Store) -> None:
    """A queue whose topic is not in the catalog: the two rows were never committed together."""
    for index in store.queues():
        if QueueId(index.queue_id) not in registry.queues:
            logger.warning("a queue without a topic is dropped", extra={"queue": index.queue_id})
            store.drop_queue(index.queue_id)


def _decoded(body: bytes, kind: type[RowT], what: str) -> RowT:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as problem:
        raise LogCorrupt(
            f"the definition of {what} cannot be read ({problem}); restore catalog.db from a backup"
        ) from problem
