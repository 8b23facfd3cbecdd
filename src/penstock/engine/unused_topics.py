"""Topics that go when nobody uses them for a while (``TopicPolicy.expires_ms``).

Use is: somebody consumes, or touched the topic (declared it, took by hand). Each topic stands once
in a heap, at a time before which it cannot expire; when that comes it is looked at, and goes, or
gets a later time. Who consumes is looked at whenever a subscription had its turn: whoever leaves
makes one, so that is the moment of leaving.

Invariant: no topic's entry is later than the end of its time. So thousands of them cost nothing
while nothing happens to them.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.topic import Topic


class UnusedTopics:
    """All topics that may expire."""

    def __init__(self) -> None:
        self.topics: dict[int, Topic] = {}
        """By id; to be looked at only."""
        self._armed: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """(monotonic time, topic id); what is not armed any more is passed over."""

    def add(self, topic: Topic, now_ms: int) -> None:
        """A topic that may expire, or whose time has changed."""
        self.topics[topic.topic_id] = topic
        self._arm(topic, now_ms)

    def remove(self, topic: Topic) -> None:
        """It is gone, or may not expire any more."""
        self.topics.pop(topic.topic_id, None)
        self._armed.pop(topic.topic_id, None)

    def look(self, topic: Topic, now_ms: int) -> None:
        """Somebody may have come or left."""
        if topic.topic_id in self.topics:
            is_used = _is_used(topic)
            if is_used or topic.was_used:
                topic.touch(now_ms)
            topic.was_used = is_used

    def due(self, now_ms: int) -> list[Topic]:
        """Those whose time is over."""
        over: list[Topic] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            at_ms, topic_id = heappop(heap)
            if self._armed.get(topic_id) != at_ms:
                continue
            topic = self.topics[topic_id]
            self.look(topic, now_ms)
            if _end_ms(topic, now_ms) <= now_ms:
                over.append(topic)
                self.remove(topic)
            else:
                self._arm(topic, now_ms)
        return over

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next of them is to be looked at."""
        return self._heap[0][0] if self._heap else None

    def _arm(self, topic: Topic, now_ms: int) -> None:
        at_ms = self._armed[topic.topic_id] = _end_ms(topic, now_ms)
        heappush(self._heap, (at_ms, topic.topic_id))


def _end_ms(topic: Topic, now_ms: int) -> int:
    since_ms = now_ms if topic.was_used else topic.last_used_ms
    return since_ms + topic.policy.expires_ms


def _is_used(topic: Topic) -> bool:
    """Whether somebody consumes; who takes by hand says so each time (``Topic.touch``)."""
    for subscription in topic.subscriptions.values():
        for consumer in subscription.roster:
            if not consumer.is_passive:
                return True
    return False
