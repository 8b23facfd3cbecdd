"""The thresholds of all queues of one consumer: their limits, who is held, and the log lines (F15).

One ``Throttle`` per owned queue. Limits are those of a queue, or the topic's divided by the queues
owned, computed anew at each change of the assignment. Each episode is two log lines, however often
a pull loop looked: which limit holds which queue, with what in its cache; and how long it lasted.

Not here: the rule (``flow/thresholds.py``).
"""

import logging
from collections.abc import Collection
from typing import NamedTuple

from penstock.flow.thresholds import (
    Cached,
    EpisodeSink,
    HeldEpisode,
    Threshold,
    Thresholds,
    Throttle,
)
from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)


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


class QueueThresholds(EpisodeSink):
    """The throttles of a consumer's queues."""

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
        """The throttle of a queue that is ours now."""
        limits = self._limits.get(queue.topic, self._per_queue)
        throttle = Throttle(name_of(queue), limits, self)
        self._throttles[queue] = throttle
        return throttle

    def close(self, queue: QueueRef, throttle: Throttle, now_ms: int) -> None:
        """The queue is given up."""
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
        """Log and count: a queue is held."""
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
        """Log: it is pulled again."""
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
