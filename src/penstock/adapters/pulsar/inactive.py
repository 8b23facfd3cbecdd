"""Topics that nobody uses are deleted, where a policy says so (``inactiveTopicPolicies``; off).

A topic that Pulsar's clients made is unused while it has no producer and no consumer of Pulsar's,
nothing is published to it by anybody, and, as the policy's mode says, it has no subscription at
all, or only such of Pulsar's that have acked everything. Those of other protocols and of Spark
always keep it. After ``maxInactiveDurationSeconds`` of that, and not before its retention is over,
it goes, at the next look. Topics that were compacted stay: readers of the view leave no trace.

Partitioned topics stay unless ``pulsar.delete_inactive_partitioned_topics``, because what a client
makes anew may have no partitions; then one goes as a whole, when none of its partitions is used.
Topics without a log go by themselves (``engine/non_persistent.py``).

Bounds: a look takes ``TOPICS_AT_ONCE`` topics at a time, and deletes ``DELETED_AT_ONCE``; what is
remembered is a pair of numbers for each topic that may go.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.adapters.pulsar.naming import SUBSCRIPTION_PREFIX, pulsar_name
from penstock.adapters.pulsar.topics import PROTOCOL
from penstock.model.errors import NotFound

if TYPE_CHECKING:
    from penstock.adapters.pulsar.namespaces import EffectivePolicies, Namespaces
    from penstock.adapters.pulsar.topics import PulsarTopics
    from penstock.engine.broker import Engine
    from penstock.engine.subscription.subscription import Subscription
    from penstock.engine.topic import Topic
    from penstock.model.clock import Clock
    from penstock.model.names import TopicName
    from penstock.settings.protocols import PulsarSettings

logger = logging.getLogger(__name__)

LOOK_MS: Final = 2_000
"""Between two looks at all topics; a topic may live so much longer than its policy says."""
TOPICS_AT_ONCE: Final = 200
DELETED_AT_ONCE: Final = 20
PIECE_MS: Final = 5
"""Between two pieces of a look: others come first."""
CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"
CAUSE: Final = "nobody used it"
NEVER_MS: Final = 1 << 62


class InactiveTopics:
    """Looks for them; a task of the timers."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        namespaces: Namespaces,
        topics: PulsarTopics,
        settings: PulsarSettings,
    ) -> None:
        self._engine: Final = engine
        self._namespaces: Final = namespaces
        self._topics: Final = topics
        self._settings: Final = settings
        self._next_ms = clock.monotonic_ms() + LOOK_MS
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
        looked = deleted = 0
        while self._left and looked < TOPICS_AT_ONCE and deleted < DELETED_AT_ONCE:
            deleted += self._look(self._left.pop(), now_ms)
            looked += 1
        self._next_ms = now_ms + (PIECE_MS if self._left else LOOK_MS)
        if not self._left:
            self._is_wanted = self._has_met_rule or self._namespaces.deletes_inactive_topics

    def _policies_changed(self, _namespace: str, _topic: TopicName | None) -> None:
        self._is_wanted = True

    def _removed(self, topic: Topic) -> None:
        self._unused.pop(topic.topic_id, None)

    def _look(self, topic: Topic, now_ms: int) -> bool:
        """True when it was deleted."""
        if topic.is_deleted or topic.is_deleting or topic.protocol != PROTOCOL:
            return False
        policies = self._namespaces.effective(topic.name)
        rule = policies.inactive_topic
        self._has_met_rule |= rule.delete_while_inactive
        if not rule.delete_while_inactive or self._is_used(topic, rule.inactive_topic_delete_mode):
            self._unused.pop(topic.topic_id, None)
            return False
        end = sum([queue.index.next_offset for queue in topic.queues])
        since_ms, end_then = self._unused.get(topic.topic_id, (now_ms, -1))
        if end != end_then:
            self._unused[topic.topic_id] = (now_ms, end)
        elif now_ms - since_ms >= _inactive_ms(policies):
            self._delete(topic)
            return True
        return False

    def _is_used(self, topic: Topic, mode: str) -> bool:
        name = pulsar_name(topic.name)
        if name is None or self._topics.used(name):
            return True
        is_whole = self._settings.delete_inactive_partitioned_topics
        if self._topics.partitions(name) and not is_whole:
            return True
        if any(queue.kept_from is not None for queue in topic.queues):
            return True
        if mode != CAUGHT_UP:
            return bool(topic.subscriptions)
        return not all(_is_done(each, topic) for each in topic.subscriptions.values())

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


def _inactive_ms(policies: EffectivePolicies) -> int:
    """How long nobody must have used a topic."""
    minutes = policies.retention.retention_time_in_minutes
    if minutes < 0:
        return NEVER_MS
    return max(policies.inactive_topic.max_inactive_duration_seconds * 1000, minutes * 60_000)


def _is_done(subscription: Subscription, topic: Topic) -> bool:
    """Whether it is Pulsar's, nobody reads it, and it has acked everything."""
    if not subscription.name.startswith(SUBSCRIPTION_PREFIX) or subscription.consumers:
        return False
    # By what is settled: messages that wait for their time are neither ready nor in flight.
    return all(
        subscription.low_mark(queue.queue_id) >= queue.index.next_offset
        for queue in topic.queues
        if subscription.reads(queue.queue_id)
    )
