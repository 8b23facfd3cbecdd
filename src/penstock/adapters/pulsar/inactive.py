"""Topics that nobody uses are deleted, where a policy says so (``inactiveTopicPolicies``; off).

A topic is unused while it has no producer and no consumer of Pulsar's, nothing is published to it
by anybody, and, as the policy's mode says, it has no subscription at all, or only such of Pulsar's
that have acked everything. Those of other protocols and of Spark always keep it. After
``maxInactiveDurationSeconds`` of that it goes, at the next look.

Partitioned topics stay: what a client would make anew would have no partitions. Topics without a
log go by themselves (``engine/non_persistent.py``).

Bounds: a look takes ``TOPICS_AT_ONCE`` topics at a time; what is remembered is a pair of numbers
for each topic that may go.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.adapters.pulsar.naming import SUBSCRIPTION_PREFIX, pulsar_name
from penstock.model.errors import NotFound

if TYPE_CHECKING:
    from penstock.adapters.pulsar.namespaces import Namespaces
    from penstock.adapters.pulsar.topics import PulsarTopics
    from penstock.engine.broker import Engine
    from penstock.engine.topic import Topic
    from penstock.model.names import TopicName

logger = logging.getLogger(__name__)

LOOK_MS: Final = 2_000
"""Between two looks at all topics; a topic may live so much longer than its policy says."""
TOPICS_AT_ONCE: Final = 200
PIECE_MS: Final = 5
"""Between two pieces of a look: others come first."""
CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"
CAUSE: Final = "nobody used it"


class InactiveTopics:
    """Looks for them; a task of the timers."""

    def __init__(
        self, engine: Engine, namespaces: Namespaces, topics: PulsarTopics, now_ms: int
    ) -> None:
        self._engine: Final = engine
        self._namespaces: Final = namespaces
        self._topics: Final = topics
        self._next_ms = now_ms + LOOK_MS
        self._is_wanted = True
        """False once a look has found that no policy asks for it, until policies change."""
        self._has_met_rule = False
        """In the look that is under way."""
        self._left: list[Topic] = []
        """Of that look."""
        self._unused: Final[dict[int, tuple[int, int]]] = {}
        """Topic id -> since when, and how far its queues had come then."""
        namespaces.watch(self._policies_changed)
        engine.watch_removals(self._removed)

    def next_deadline_ms(self) -> int | None:
        return self._next_ms if self._is_wanted else None

    def due(self, now_ms: int) -> None:
        if now_ms < self._next_ms:
            return
        if not self._left:
            self._left = self._engine.topics()
            self._has_met_rule = False
        piece = self._left[-TOPICS_AT_ONCE:]
        del self._left[-TOPICS_AT_ONCE:]
        for topic in piece:
            self._look(topic, now_ms)
        self._next_ms = now_ms + (PIECE_MS if self._left else LOOK_MS)
        if not self._left:
            self._is_wanted = self._has_met_rule or self._namespaces.deletes_inactive_topics

    def _policies_changed(self, _namespace: str, _topic: TopicName | None) -> None:
        self._is_wanted = True

    def _removed(self, topic: Topic) -> None:
        self._unused.pop(topic.topic_id, None)

    def _look(self, topic: Topic, now_ms: int) -> None:
        if topic.is_deleted or topic.is_deleting or topic.name.is_hidden:
            return
        rule = self._namespaces.effective(topic.name).inactive_topic
        self._has_met_rule |= rule.delete_while_inactive
        if not rule.delete_while_inactive or self._is_used(topic, rule.inactive_topic_delete_mode):
            self._unused.pop(topic.topic_id, None)
            return
        end = sum([queue.index.next_offset for queue in topic.queues])
        since_ms, end_then = self._unused.get(topic.topic_id, (now_ms, -1))
        if end != end_then:
            self._unused[topic.topic_id] = (now_ms, end)
        elif now_ms - since_ms >= rule.max_inactive_duration_seconds * 1000:
            self._delete(topic)

    def _is_used(self, topic: Topic, mode: str) -> bool:
        name = pulsar_name(topic.name)
        if name is None or self._topics.partitions(name) or self._topics.used(name):
            return True
        if mode != CAUGHT_UP:
            return bool(topic.subscriptions)
        for subscription in topic.subscriptions.values():
            if not subscription.name.startswith(SUBSCRIPTION_PREFIX) or subscription.consumers:
                return True
            if any(subscription.ready(each) or subscription.unacked(each)
                   for each in subscription.queue_ids):  # fmt: skip
                return True
        return False

    def _delete(self, topic: Topic) -> None:
        name = pulsar_name(topic.name)
        if name is None:
            return
        logger.info("an unused topic is deleted", extra={"topic": str(name)})
        try:
            self._topics.delete(name, CAUSE)
        except NotFound:
            # Somebody was faster.
            return
