"""Numbers for observers: frozen snapshots of plain integers, made when somebody asks.

``EngineCounters`` only ever grow and are written in the hot path; everything else is looked up at
the moment of asking. Telemetry reads these from above; nothing here knows of metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from penstock.engine.non_persistent import NonPersistentStatistics
from penstock.engine.subscription.subscription import SubscriptionStatistics
from penstock.engine.topic import Topic, furthest_behind_steps
from penstock.flow.fast_fail import RequestClassStatistics
from penstock.model.refusal import RefusalKind
from penstock.model.steps import A_QUEUE, Steps, finished


class EngineCounters(msgspec.Struct):
    """What happened since the start; written in the hot path, one per engine."""

    published: int = 0
    """Messages that came in, whatever became of them; of a batch all it holds, here and below."""
    confirmed: int = 0
    refused: dict[RefusalKind, int] = {}
    routed: int = 0
    """Copies handed to queues: a publish to three queues counts three."""
    unroutable_dropped: int = 0
    """No queue was there for them, and their publisher did not ask to hear of it."""
    unroutable_returned: int = 0
    """No queue was there for them, and their publisher was told."""
    bytes_in: int = 0
    """Origin bytes of admitted publishes."""
    dropped_after_close: int = 0
    """Publishes held on after a polite close, and then refused: nobody was there to be told."""

    def note_unroutable(self, messages: int, *, is_returned: bool) -> None:
        """No queue was there for them: the one count of it, whoever found it out."""
        if is_returned:
            self.unroutable_returned += messages
        else:
            self.unroutable_dropped += messages


class TopicStatistics(msgspec.Struct, frozen=True):
    """One topic now."""

    name: str
    is_durable: bool
    queues: int
    messages_in: int
    """Messages ever appended, all queues together."""
    messages_kept: int
    """Of those, how many can still be read."""
    ready: int
    """Messages the slowest holder has not been given yet."""
    unacked: int
    """Delivered and not settled, all subscriptions together."""
    backlog_bytes: int
    """Log bytes from the slowest holder's low mark to the end."""
    oldest_age_ms: int
    """Age of the oldest message some holder has not settled."""
    subscriptions: tuple[SubscriptionStatistics, ...]


class EngineStatistics(msgspec.Struct, frozen=True):
    """The whole engine now."""

    published: int
    confirmed: int
    refused: dict[RefusalKind, int]
    routed: int
    unroutable_dropped: int
    unroutable_returned: int
    bytes_in: int
    turns: int
    settlements: int
    released: int
    """Delayed messages that got their offsets."""
    delayed: int
    """Delayed messages held in memory, for whole topics and for single subscriptions."""
    dead_letters: int
    deaths_dropped: int
    """Deaths without a dead-letter target."""
    held_pulls: int
    """Pulls that wait for something to arrive (F12)."""
    connections: int
    channels: int
    connections_held: int
    """Connections whose gate is closed."""
    inflight_bytes: int
    """Used by publishers of their part of ``flow.inflight_bytes_max`` (D22)."""
    unsent_bytes: int
    """Deliveries that sockets have not taken (F14), paid by the other part."""
    unsynced_messages: int
    unsynced_bytes: int
    free_buffers: int
    is_memory_alarmed: bool
    is_disk_alarmed: bool
    is_log_held: bool
    is_store_busy: bool
    is_failed: bool
    topics: tuple[TopicStatistics, ...] = ()
    requests: tuple[RequestClassStatistics, ...] = ()
    """Classes of requests that fail fast (F5)."""
    draining: int = 0
    """Publishes of closed channels that are held on (D23)."""
    dropped_after_close: int = 0
    """Of those, ever, how many were dropped in the end."""
    non_persistent: tuple[NonPersistentStatistics, ...] = ()
    """Topics without a log."""
    non_persistent_topics: int = 0
    non_persistent_published: int = 0
    """Messages published to those, ever, also to those that are gone."""
    non_persistent_dropped: int = 0
    """The same: messages that nobody took, once for each subscription."""


def topic_statistics(topic: Topic, wall_ms: int) -> TopicStatistics:
    return finished(topic_statistics_steps(topic, wall_ms))


A_READER: Final = 0.3
"""Steps that a look at one subscription is, beside its queues."""


def topic_statistics_steps(topic: Topic, wall_ms: int) -> Steps[TopicStatistics]:
    """In steps: it may have a thousand subscriptions, and a thousand queues."""
    subscriptions: list[SubscriptionStatistics] = []
    for each in list(topic.subscriptions.values()):
        subscriptions.append((yield from each.statistics_steps()))
        yield A_READER
    messages_in = kept = 0
    for queue in list(topic.queues):
        messages_in += queue.index.next_offset
        kept += queue.index.next_offset - queue.index.min_offset
        yield A_QUEUE
    ready, size, age_ms = yield from furthest_behind_steps(topic, wall_ms)
    return TopicStatistics(
        name=str(topic.name),
        is_durable=topic.is_durable,
        queues=len(topic.queues),
        messages_in=messages_in,
        messages_kept=kept,
        ready=ready,
        unacked=sum([each.unacked for each in subscriptions]),
        backlog_bytes=size,
        oldest_age_ms=age_ms,
        subscriptions=tuple(subscriptions),
    )


NAMES_MAX: Final = 100
LABELS_MAX: Final = 100
"""Labels of one name that are shown; adapters count by status or cause, never by peer."""


class CounterFamily(NamedTuple):
    """Counters of one name, by label."""

    name: str
    """In snake case, with the protocol in front: ``rocketmq_pulls``."""
    text: str
    label: str
    """What the keys are: ``status``."""
    counts: Mapping[str, int]


class CounterFamilies:
    """Counters that adapters keep and everybody may see.

    An adapter counts in a dictionary of its own (label -> how often) and registers it once, under a
    name; it is read when somebody asks. So counting costs what adding to a dictionary costs, and
    the engine knows nothing of what is counted. Names and labels are bounded when they are read,
    whatever an adapter does.
    """

    __slots__ = ("_families",)

    def __init__(self) -> None:
        self._families: dict[str, CounterFamily] = {}

    def register(self, name: str, text: str, label: str, counts: Mapping[str, int]) -> None:
        """Show a dictionary from now on; a second one of the name takes its place."""
        if name in self._families or len(self._families) < NAMES_MAX:
            self._families[name] = CounterFamily(name, text, label, counts)

    def __iter__(self) -> Iterator[CounterFamily]:
        for family in list(self._families.values()):
            shown = dict(list(family.counts.items())[:LABELS_MAX])
            yield family._replace(counts=shown)
