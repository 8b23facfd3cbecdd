"""The plain routes: one queue, several queues, by key, by priority.

A route answers "which queues get a copy" and what asking costs. Protocols with richer routing
bring their own ``Route``; they end in queues all the same.

Invariant: the tuple a route returns names every queue at most once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from penstock.model.record import Record

if TYPE_CHECKING:
    from penstock.engine.ports import Route
    from penstock.engine.queue import Queue
    from penstock.engine.topic import Topic


class DirectRoute:
    """Everything goes to one queue: the route of a client that chose the queue itself."""

    __slots__ = ("_targets", "queue")

    steps = 1
    is_constant = True

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._targets = (queue,)

    def targets(self, _record: Record, /) -> tuple[Queue, ...]:
        """That queue."""
        return self._targets


class FanoutRoute:
    """Everything goes to each of several queues: stored once, indexed many times."""

    __slots__ = ("_targets", "steps")

    is_constant = True

    def __init__(self, queues: tuple[Queue, ...]) -> None:
        self._targets = tuple(dict.fromkeys(queues))
        self.steps = max(1, len(self._targets))

    def targets(self, _record: Record, /) -> tuple[Queue, ...]:
        """All of them."""
        return self._targets


class KeyRoute:
    """One queue of a topic, by hash of the key; without a key, one after the other (D10)."""

    __slots__ = ("_next", "topic")

    steps = 1
    is_constant = False

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._next = 0

    def targets(self, record: Record, /) -> tuple[Queue, ...]:
        """The queue of the record's key."""
        queues = self.topic.queues
        if record.shape.key_len:
            return (queues[crc32(record.key) % len(queues)],)
        self._next = (self._next + 1) % len(queues)
        return (queues[self._next],)


class PriorityRoute:
    """One queue of a topic, by priority: queue i holds priority i (D10)."""

    __slots__ = ("topic",)

    steps = 1
    is_constant = False

    def __init__(self, topic: Topic) -> None:
        self.topic = topic

    def targets(self, record: Record, /) -> tuple[Queue, ...]:
        """The queue of the record's priority, capped at the topic's highest."""
        queues = self.topic.queues
        return (queues[min(record.shape.priority, len(queues) - 1)],)


def route_to(topic: Topic) -> Route:
    """The natural route to a topic as a whole: by priority, by key, or straight."""
    if topic.policy.max_priority:
        return PriorityRoute(topic)
    if len(topic.queues) > 1:
        return KeyRoute(topic)
    return DirectRoute(topic.queues[0])
