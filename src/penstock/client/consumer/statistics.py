"""What a consumer did lately, what it has, and which limit holds which queue.

Rates are kept in slices of a second for the last minute, so a rate is that of now and not that of
the whole life; totals are of the whole life. Everything is counted per list, not per message.
``running_info`` is the same in the words of RocketMQ's tools, for brokers that ask (request 307).

Not here: the rule of thresholds (``flow/thresholds.py``).
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from penstock.client.consumer.executor import Finished, ResultKind
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.flow.thresholds import (
    Cached,
    EpisodeSink,
    HeldEpisode,
    Threshold,
    Thresholds,
    Throttle,
)
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.bodies import SubscriptionData

_log = logging.getLogger(__name__)

WINDOW_S: Final = 60
MIB: Final = 1 << 20
HELD_SHOWN_MAX: Final = 50
"""Held queues named in a property; the number of all is there, too."""
_SUCCESS: Final = ResultKind.SUCCESS


class ConsumerStatistics:
    """Counters of a consumer, by topic; retries count for the retry topic."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicStatistics] = {}

    def topic(self, name: str) -> TopicStatistics:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = TopicStatistics()
        return found

    def forget(self, name: str) -> None:
        self._topics.pop(name, None)

    def figures(self, now_ms: int) -> dict[str, TopicFigures]:
        return {name: each.figures(now_ms) for name, each in self._topics.items()}


class TopicStatistics:
    """Counters of one topic."""

    __slots__ = (
        "_calls",
        "_consumed",
        "_failed",
        "_pulled",
        "_pulls",
        "results",
        "retried",
        "sent",
    )

    def __init__(self) -> None:
        self._pulls = MinuteSum()
        self._pulled = MinuteSum()
        self._calls = MinuteSum()
        self._consumed = MinuteSum()
        self._failed = MinuteSum()
        self.results: dict[ResultKind, int] = dict.fromkeys(ResultKind, 0)
        self.sent = 0
        self.retried = 0

    def pulled(self, messages: int, spent_ms: float, now_ms: int) -> None:
        self._pulls.add(1, spent_ms, now_ms)
        self._pulled.add(messages, 0.0, now_ms)

    def finished(self, calls: Sequence[Finished], now_ms: int) -> None:
        consumed = failed = succeeded = 0
        spent_ms = 0.0
        for call in calls:
            count = len(call.messages)
            spent_ms += call.spent_ms
            if call.kind is _SUCCESS:
                succeeded += count
                continue
            self.results[call.kind] += count
            if call.is_success:
                consumed += count
            else:
                failed += count
        self.results[_SUCCESS] += succeeded
        consumed += succeeded
        self._calls.add(len(calls), spent_ms, now_ms)
        if consumed:
            self._consumed.add(consumed, 0.0, now_ms)
        if failed:
            self._failed.add(failed, 0.0, now_ms)

    def figures(self, now_ms: int) -> TopicFigures:
        return TopicFigures(
            pulled=self._pulled.count,
            pulled_per_s=self._pulled.per_second(now_ms),
            pull_ms=self._pulls.average(now_ms),
            results=dict(self.results),
            consumed_per_s=self._consumed.per_second(now_ms),
            failed_per_s=self._failed.per_second(now_ms),
            failed_recently=self._failed.recent(now_ms),
            consume_ms=self._calls.average(now_ms),
            sent_back=self.sent,
            retried_locally=self.retried,
        )


class MinuteSum:
    """A number of things and their sum over the last minute."""

    __slots__ = ("_slices", "count")

    def __init__(self) -> None:
        self._slices: deque[tuple[int, int, float]] = deque()
        self.count = 0

    def add(self, count: int, value: float, now_ms: int) -> None:
        """So many things happened, together worth ``value``."""
        self.count += count
        second = now_ms // 1000
        if self._slices and self._slices[-1][0] == second:
            _, before, worth = self._slices[-1]
            self._slices[-1] = (second, before + count, worth + value)
            return
        self._slices.append((second, count, value))
        self._forget(second)

    def per_second(self, now_ms: int) -> float:
        """Things per second over the last minute, or since the first when that is shorter."""
        self._forget(now_ms // 1000)
        if not self._slices:
            return 0.0
        seconds = now_ms // 1000 - self._slices[0][0] + 1
        return sum(count for _, count, _ in self._slices) / seconds

    def average(self, now_ms: int) -> float:
        """Mean worth of one thing over the last minute."""
        self._forget(now_ms // 1000)
        count = sum(count for _, count, _ in self._slices)
        return sum(worth for _, _, worth in self._slices) / count if count else 0.0

    def recent(self, now_ms: int) -> int:
        """Things of the last minute."""
        self._forget(now_ms // 1000)
        return sum(count for _, count, _ in self._slices)

    def _forget(self, second: int) -> None:
        while self._slices and self._slices[0][0] <= second - WINDOW_S:
            self._slices.popleft()


class QueueThresholds(EpisodeSink):
    """The throttles of all queues of one consumer: their limits, who is held, the log lines (F15).

    Limits are those of a queue, or the topic's divided by the queues owned, computed anew at each
    change of the assignment. Each episode is two log lines, however often a pull loop looked: which
    limit holds which queue, with what in its cache; and how long it lasted.
    """

    def __init__(
        self,
        group: str,
        per_queue: Thresholds,
        *,
        topic_messages_max: int = 0,
        topic_bytes_max: int = 0,
    ) -> None:
        self._group = group
        self._per_queue = per_queue
        self._topic_messages_max = topic_messages_max
        self._topic_bytes_max = topic_bytes_max
        self._throttles: dict[QueueRef, Throttle] = {}
        self._limits: dict[str, Thresholds] = {}
        self.episodes: dict[Threshold, int] = dict.fromkeys(Threshold, 0)
        """Episodes begun since the start, by the limit that began them."""

    def open(self, queue: QueueRef) -> Throttle:
        limits = self._limits.get(queue.topic, self._per_queue)
        throttle = Throttle(name_of(queue), limits, self)
        self._throttles[queue] = throttle
        return throttle

    def close(self, queue: QueueRef, throttle: Throttle, now_ms: int) -> None:
        if self._throttles.get(queue) is throttle:
            del self._throttles[queue]
        throttle.close(now_ms)

    def divide(self, topic: str, mine: Collection[QueueRef]) -> Thresholds:
        """The assignment changed: a topic's limits are divided by the queues owned of it."""
        limits = self._per_queue.divided(self._topic_messages_max, self._topic_bytes_max, len(mine))
        self._limits[topic] = limits
        for queue, throttle in self._throttles.items():
            if queue.topic == topic:
                throttle.thresholds = limits
        return limits

    def held(self, now_ms: int) -> list[HeldQueue]:
        """The queues held now, longest first."""
        found = [
            HeldQueue(
                queue,
                episode.threshold,
                episode.limit,
                episode.since_ms,
                now_ms - episode.since_ms,
                episode.cached,
            )
            for queue, throttle in self._throttles.items()
            if (episode := throttle.current(now_ms)) is not None
        ]
        return sorted(found, key=lambda each: each.since_ms)

    def entered(self, name: str, episode: HeldEpisode) -> None:
        self.episodes[episode.threshold] += 1
        _log.warning(
            "queue is not pulled: its cache is over the limit",
            extra={
                "group": self._group,
                "queue": name,
                "threshold": episode.threshold.value,
                "limit": episode.limit,
                **episode.cached._asdict(),
            },
        )

    def ended(self, name: str, episode: HeldEpisode) -> None:
        lasted_ms = (episode.until_ms or episode.since_ms) - episode.since_ms
        _log.info(
            "queue is pulled again",
            extra={
                "group": self._group,
                "queue": name,
                "threshold": episode.threshold.value,
                "limit": episode.limit,
                "lasted_ms": lasted_ms,
                "looks": episode.looks,
            },
        )


def name_of(queue: QueueRef) -> str:
    """A queue for people: topic, broker, number."""
    return f"{queue.topic}@{queue.broker}:{queue.queue}"


class TopicFigures(NamedTuple):
    """One topic, now."""

    pulled: int
    """Messages pulled since the start."""
    pulled_per_s: float
    pull_ms: float
    """Mean time of a pull that found something."""
    results: Mapping[ResultKind, int]
    """Messages by what became of them, since the start."""
    consumed_per_s: float
    failed_per_s: float
    failed_recently: int
    """Messages that failed within the last minute."""
    consume_ms: float
    """Mean time of a call of the listener."""
    sent_back: int
    """Messages given back to the broker for a later try."""
    retried_locally: int
    """Messages tried again here, because they could not be given back."""


class QueueFigures(NamedTuple):
    """One owned queue, now."""

    queue: QueueRef
    cached_messages: int
    cached_bytes: int
    span: int
    next_offset: int
    committed: int | None
    """What this consumer knows to be settled; None before anything was."""
    is_paused: bool
    is_locked: bool
    pulled_ms_ago: int
    consumed_ms_ago: int


class ConsumerFigures(msgspec.Struct, frozen=True):
    """What ``consumer.statistics()`` returns."""

    group: str
    topics: Mapping[str, TopicFigures]
    queues: Sequence[QueueFigures]
    held: Sequence[HeldQueue]
    """Queues that are not pulled because of a threshold: which, by what, since when."""
    threshold_episodes: Mapping[str, int]
    """How often each threshold began to hold a queue, since the start."""
    pop: PopFigures | None = None
    """Pop mode; None for a consumer that does not pop."""

    @property
    def cached_messages(self) -> int:
        """Messages in all caches."""
        return sum(each.cached_messages for each in self.queues)

    @property
    def cached_bytes(self) -> int:
        """Bytes of bodies in all caches."""
        return sum(each.cached_bytes for each in self.queues)


class PopFigures(NamedTuple):
    """Pop mode, now."""

    unacked: Mapping[QueueRef, int]
    """Popped and not yet settled messages by queue (-1: all queues of the broker)."""
    popped: int
    acked: int
    given_back: int
    buried: int
    too_late: int
    """Results that came after the invisible time, and were ignored."""
    lost: int
    """Settlements that did not reach the broker: these messages come again."""
    held: list[HeldQueue]
    """Queues that are not popped because of the limit: which, since when."""


class HeldQueue(NamedTuple):
    """A queue that is not pulled because of a limit, for ``consumer.statistics()``."""

    queue: QueueRef
    threshold: Threshold
    limit: int
    since_ms: int
    """Monotonic."""
    held_ms: int
    """How long until now."""
    cached: Cached
    """What was cached when it began."""


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
    """The body of the answer; ``mqTable`` has ``QueueRef`` keys.

    Besides RocketMQ's fields, properties say which threshold holds which queue since when, so that
    a slow listener is seen from the broker:

        "held": "orders@broker-a:0 by messages (limit 1000) since 2024-05-01T12:00:00Z; ..."

    Times inside the client are monotonic; here they are wall times, computed from how long ago it
    was.
    """
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
