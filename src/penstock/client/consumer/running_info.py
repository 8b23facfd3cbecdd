"""What a consumer tells a broker that asks for it (request 307), in the words of RocketMQ's tools.

``mqadmin consumerStatus`` and Penstock's own tools show it. Besides RocketMQ's fields, properties
say which threshold holds which queue since when, so that a slow listener is seen from the broker:

    "held": "orders@broker-a:0 by messages (limit 1000) since 2024-05-01T12:00:00Z; ..."

Times inside the client are monotonic; here they are wall times, computed from how long ago it was.

Not here: collecting the figures (``statistics.py``, ``thresholds.py``), queues as JSON keys
(``queue_tables.py``).
"""

import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.consumer.statistics import TopicFigures
from penstock.client.consumer.thresholds import HeldQueue, name_of
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.bodies import SubscriptionData

MIB: Final = 1 << 20
HELD_SHOWN_MAX: Final = 50
"""Held queues named in a property; the number of all is there, too."""


class ConsumerFacts(NamedTuple):
    """What stays the same while a consumer runs."""

    name_servers: str
    is_ordered: bool
    is_broadcasting: bool
    threads: int
    started_at_ms: int
    """Wall time."""
    version: str


def running_info(
    facts: ConsumerFacts,
    *,
    subscriptions: Sequence[SubscriptionData],
    owned: Mapping[QueueRef, AssignedQueue],
    committed: Mapping[QueueRef, int],
    topics: Mapping[str, TopicFigures],
    held: Sequence[HeldQueue],
    clock: Clock,
    popped: Mapping[QueueRef, dict[str, Any]] | None = None,
    with_stacks: bool = False,
) -> dict[str, Any]:
    """The body of the answer; ``mqTable`` has ``QueueRef`` keys."""
    ahead_ms = clock.wall_ms() - clock.monotonic_ms()
    info: dict[str, Any] = {
        "properties": {**_properties(facts), **_held(held, ahead_ms)},
        "subscriptionSet": [msgspec.to_builtins(each) for each in subscriptions],
        "mqTable": {
            queue: _queue(each, committed.get(queue), ahead_ms) for queue, each in owned.items()
        },
        "mqPopTable": dict(popped or {}),
        "statusTable": {topic: _status(figures) for topic, figures in topics.items()},
        "userConsumerInfo": {},
    }
    if with_stacks:
        info["jstack"] = stacks()
    return info


def stacks() -> str:
    """Where every thread of this process is now."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def _properties(facts: ConsumerFacts) -> dict[str, str]:
    return {
        "PROP_NAMESERVER_ADDR": facts.name_servers,
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMEORDERLY": str(facts.is_ordered).lower(),
        "PROP_THREADPOOL_CORE_SIZE": str(facts.threads),
        "PROP_CONSUMER_START_TIMESTAMP": str(facts.started_at_ms),
        "PROP_CLIENT_VERSION": facts.version,
        "messageModel": "BROADCASTING" if facts.is_broadcasting else "CLUSTERING",
    }


def _held(held: Sequence[HeldQueue], ahead_ms: int) -> dict[str, str]:
    shown = [
        f"{name_of(each.queue)} by {each.threshold.value} (limit {each.limit}) since"
        f" {_time_text(each.since_ms + ahead_ms)}"
        for each in held[:HELD_SHOWN_MAX]
    ]
    return {"heldQueues": str(len(held)), "held": "; ".join(shown)}


def _time_text(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _queue(assigned: AssignedQueue, committed: int | None, ahead_ms: int) -> dict[str, Any]:
    cache = assigned.process_queue
    lowest, taken = cache.lowest, cache.taken_offsets()
    return {
        "commitOffset": -1 if committed is None else committed,
        "cachedMsgMinOffset": 0 if lowest is None else lowest,
        "cachedMsgMaxOffset": 0 if lowest is None else lowest + cache.span,
        "cachedMsgCount": cache.count - len(taken),
        "cachedMsgSizeInMiB": cache.size_bytes // MIB,
        "transactionMsgMinOffset": min(taken, default=0),
        "transactionMsgMaxOffset": max(taken, default=0),
        "transactionMsgCount": len(taken),
        "locked": assigned.is_locked,
        "tryUnlockTimes": assigned.unlock_tries,
        "lastLockTimestamp": assigned.last_locked_ms and assigned.last_locked_ms + ahead_ms,
        "droped": assigned.is_dropped,
        "lastPullTimestamp": assigned.last_pull_ms + ahead_ms,
        "lastConsumeTimestamp": assigned.last_consume_ms + ahead_ms,
    }


def _status(figures: TopicFigures) -> dict[str, Any]:
    return {
        "pullRT": figures.pull_ms,
        "pullTPS": figures.pulled_per_s,
        "consumeRT": figures.consume_ms,
        "consumeOKTPS": figures.consumed_per_s,
        "consumeFailedTPS": figures.failed_per_s,
        "consumeFailedMsgs": figures.failed_recently,
    }
