"""Deduplication: what a producer sends again is not stored again, also after a crash.

Clients number what they send, upwards, and send again what they had no receipt for. Of every
producer name of a topic two numbers are kept: the highest that was handed to the engine, *pushed*,
and the highest that is durable, *persisted*::

    number > pushed      new
    number <= persisted  a duplicate: its receipt says so, nothing is stored
    in between           on its way into the log; nobody can say yet

A batch counts as its first number when it is judged and as its last one when it is stored. Of the
chunks of a large message only the last is judged.

On disk: a row for each producer and one for the topic, which says from which offset on the log
knows more than the rows. While somebody publishes, rows are written every ``SNAPSHOT_ENTRIES``
messages or ``SNAPSHOT_MS``; at a start the rest is read from the log, which names producer and
number in every message. Nobody is let in before the row is durable that says so (*dirty*); when
the last one is gone and all of his is safe, the topic is *clean* and a start reads nothing.

What was under way when a producer's connection was lost is found out by looking: a record with a
position below the durable one is stored; one that is in no inbox any more is not.

Invariants: ``persisted <= pushed``; rows say only what is durable, and with the log from their
offset on, all of it. Bounds: ``PRODUCERS_MAX`` names a topic, the longest idle go first; names
that nobody used for ``IDLE_MS`` are forgotten.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.pulsar.naming import pulsar_name
from penstock.engine.pull import Pull, PullResult
from penstock.model.record import Record, Wire
from penstock.wire.pulsar.frames import signed
from penstock.wire.pulsar.metadata import Unreadable, octets, parse_metadata
from penstock.wire.pulsar.names import PulsarName

if TYPE_CHECKING:
    from penstock.adapters.pulsar.namespaces import Namespaces
    from penstock.adapters.pulsar.topics import PulsarTopic
    from penstock.engine.broker import Engine
    from penstock.engine.connection import Channel
    from penstock.engine.ports import Publication
    from penstock.engine.topic import Queue, Topic
    from penstock.model.clock import Clock
    from penstock.model.names import TopicName
    from penstock.wire.pulsar.protocol_pb2 import MessageMetadata

TOPIC_KIND: Final = "pulsar.dedup"
PRODUCER_KIND: Final = "pulsar.dedup_producer"

SNAPSHOT_ENTRIES: Final = 1_000
SNAPSHOT_MS: Final = 120_000
LOOK_MS: Final = 1_000
"""How often topics with producers are looked at: other protocols may fill them, too."""
SWEEP_MS: Final = 600_000
"""How often idle producers are looked for."""
IDLE_MS: Final = 6 * 3_600_000
PRODUCERS_MAX: Final = 10_000
"""Of one topic. Clients without names of their own get a new one each time they start."""
REPLAY_MESSAGES: Final = 1_000
"""Read from the log at a time."""
NONE: Final = -1
"""Before the first number, as PRODUCER_SUCCESS says it."""


class Verdict(Enum):
    """What a number means that a producer sends."""

    NEW = "new"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"


class Deduplication:
    """All topics that have, or had, producers with deduplication; a task of the timers."""

    def __init__(self, engine: Engine, clock: Clock, namespaces: Namespaces) -> None:
        self._engine: Final = engine
        self._namespaces: Final = namespaces
        self._clock: Final = clock
        self._topics: Final[dict[PulsarName, TopicSequences]] = {}
        self._dirty: Final[dict[TopicSequences, None]] = {}
        self._look_ms = 0
        self._sweep_ms = clock.monotonic_ms() + SWEEP_MS
        self._restore()
        engine.watch_removals(self._removed)
        namespaces.watch(self._policies_changed)

    def open(self, topic: PulsarTopic, producer: str) -> ProducerSequence:
        """The numbers of a producer who begins to publish; he must be closed.

        What this changes is durable after ``Engine.after_durable``.
        """
        queue = topic.queue
        found = self._topics.get(topic.name)
        if found is None or found.incarnation != queue.incarnation:
            if found is not None:
                self._forget(found)
            found = TopicSequences(topic.name, queue, self._engine)
            self._topics[topic.name] = found
        if not found.is_dirty:
            if not self._dirty:
                self._look_ms = self._clock.monotonic_ms() + LOOK_MS
            self._dirty[found] = None
            found.begin(self._clock.monotonic_ms())
        return found.open(producer, self._clock.wall_ms())

    def close(self, sequence: ProducerSequence) -> None:
        """He publishes no more. What of his is under way is found out later."""
        sequence.is_live = False
        sequence.last_used_ms = self._clock.wall_ms()
        sequence.is_changed = True

    def next_deadline_ms(self) -> int | None:
        if self._dirty:
            return min(self._look_ms, self._sweep_ms)
        return self._sweep_ms if self._topics else None

    def due(self, now_ms: int) -> None:
        wall_ms = self._clock.wall_ms()
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            for topic in list(self._dirty):
                if topic.look(now_ms, wall_ms):
                    del self._dirty[topic]
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + SWEEP_MS
            for topic in list(self._topics.values()):
                if topic.forget_idle(wall_ms):
                    self._forget(topic)

    def _forget(self, topic: TopicSequences) -> None:
        del self._topics[topic.name]
        self._dirty.pop(topic, None)
        topic.delete_rows()

    def _policies_changed(self, namespace: str, name: TopicName | None) -> None:
        """Where it is switched off, old numbers would make duplicates of new messages later."""
        for topic in list(self._topics.values()):
            is_concerned = name in (None, topic.topic_name) and namespace == topic.name.namespace
            if is_concerned and not self._namespaces.effective(topic.topic_name).deduplication:
                self._forget(topic)

    def _removed(self, topic: Topic) -> None:
        whole = pulsar_name(topic.name)
        if whole is None or not self._topics:
            return
        for name in (whole, *[whole.of_partition(each) for each in range(len(topic.queues))]):
            found = self._topics.get(name)
            if found is not None:
                self._forget(found)

    # A start.

    def _restore(self) -> None:
        engine = self._engine
        for key, body in engine.definitions(TOPIC_KIND).items():
            row = msgspec.json.decode(body, type=_TopicRow)
            queue = engine.queue(row.queue_id)
            if (
                queue is None
                or queue.incarnation != row.incarnation
                or not self._namespaces.effective(queue.topic.name).deduplication
            ):
                engine.define(TOPIC_KIND, key, None)
                continue
            topic = TopicSequences(row.name, queue, engine)
            topic.row = row
            self._topics[row.name] = topic
        for key, body in engine.definitions(PRODUCER_KIND).items():
            row_of = msgspec.json.decode(body, type=_ProducerRow)
            found = self._topics.get(row_of.name)
            if found is None or found.incarnation != row_of.incarnation:
                engine.define(PRODUCER_KIND, key, None)
            else:
                found.take_row(row_of)
        for topic in self._topics.values():
            if topic.is_dirty:
                topic.replay(self._clock.wall_ms())


class TopicSequences:
    """The producers of one topic, or of one partition."""

    __slots__ = ("_engine", "_producers", "_queue", "_snapshot_ms", "name", "row")

    def __init__(self, name: PulsarName, queue: Queue, engine: Engine) -> None:
        self.name: Final = name
        self.row: _TopicRow | None = None
        """As it is in the catalog."""
        self._queue: Final = queue
        self._engine: Final = engine
        self._producers: Final[dict[str, ProducerSequence]] = {}
        self._snapshot_ms = 0

    @property
    def incarnation(self) -> int:
        return self._queue.incarnation

    @property
    def is_dirty(self) -> bool:
        return self.row is not None and self.row.is_dirty

    @property
    def topic_name(self) -> TopicName:
        return self._queue.topic.name

    def begin(self, now_ms: int) -> None:
        """Somebody is about to publish: from here on the log knows more than the rows."""
        self._snapshot_ms = now_ms
        self._put_row(self._queue.index.next_offset, is_dirty=True)

    def open(self, producer: str, wall_ms: int) -> ProducerSequence:
        found = self._producers.pop(producer, None)
        if found is None:
            if len(self._producers) >= PRODUCERS_MAX:
                self._forget_first()
            found = ProducerSequence(producer, self._queue)
        # Those at the front are the longest idle.
        self._producers[producer] = found
        found.is_live = True
        found.last_used_ms = wall_ms
        found.resolve(self._engine.durable_position)
        return found

    def look(self, now_ms: int, wall_ms: int) -> bool:
        """Write what is due; True when the topic is clean."""
        durable_position = self._engine.durable_position
        for each in self._producers.values():
            each.resolve(durable_position)
        is_done = not any(each.is_live or each.is_under_way for each in self._producers.values())
        row = self.row
        if (
            is_done
            or row is None
            or self._queue.durable_end - row.offset >= SNAPSHOT_ENTRIES
            or now_ms - self._snapshot_ms >= SNAPSHOT_MS
        ):
            self._snapshot_ms = now_ms
            self._snapshot(is_dirty=not is_done)
        return is_done

    def _snapshot(self, *, is_dirty: bool) -> None:
        for each in self._producers.values():
            if each.is_changed:
                each.is_changed = False
                row = _ProducerRow(
                    self.name, self.incarnation, each.name, each.persisted, each.last_used_ms
                )
                self._engine.define(PRODUCER_KIND, self._key(each.name), msgspec.json.encode(row))
        # Whatever is durable was resolved: what is still under way lies behind it.
        self._put_row(self._queue.durable_end, is_dirty=is_dirty)

    def _put_row(self, offset: int, *, is_dirty: bool) -> None:
        row = _TopicRow(self.name, self._queue.queue_id, self.incarnation, offset, is_dirty)
        if row != self.row:
            self.row = row
            self._engine.define(TOPIC_KIND, str(self.name), msgspec.json.encode(row))

    def take_row(self, row: _ProducerRow) -> None:
        sequence = ProducerSequence(row.producer, self._queue)
        sequence.pushed = sequence.persisted = row.persisted
        sequence.last_used_ms = row.last_used_ms
        self._producers[row.producer] = sequence

    def replay(self, wall_ms: int) -> None:
        """Read from the log what the rows do not know; the topic is clean then."""
        row = self.row
        offset = 0 if row is None else row.offset
        pulls, end = self._engine.pulls, self._queue.durable_end
        while offset < end:
            pull = Pull(_NOBODY, self._queue, offset, REPLAY_MESSAGES, whole_batches=True)
            result = pulls.read(pull)
            for record in result.records:
                self._replay_one(record, wall_ms)
            # It never stands still, whatever is in the log.
            offset = max(result.next_offset, offset + 1)
        self._snapshot(is_dirty=False)

    def _replay_one(self, record: Record, wall_ms: int) -> None:
        if record.wire != Wire.PULSAR or not record.shape.props_len:
            return
        try:
            metadata = parse_metadata(record.properties)
        except Unreadable:
            return
        if not is_judged(metadata):
            return
        name = octets(metadata.producer_name).decode("utf-8", "replace")
        sequence = self._producers.get(name)
        if sequence is None:
            if len(self._producers) >= PRODUCERS_MAX:
                self._forget_first()
            sequence = self._producers[name] = ProducerSequence(name, self._queue)
        number = last_number(metadata.sequence_id, metadata.highest_sequence_id)
        sequence.persisted = max(sequence.persisted, number)
        sequence.pushed = sequence.persisted
        sequence.last_used_ms = wall_ms
        sequence.is_changed = True

    def _forget_first(self) -> None:
        """Room for another: the longest idle goes."""
        for name, each in self._producers.items():
            if not (each.is_live or each.is_under_way):
                self._forget(name)
                return

    def forget_idle(self, wall_ms: int) -> bool:
        """Names that nobody used for long go; True when nothing is left to keep."""
        idle = [
            name
            for name, each in self._producers.items()
            if not (each.is_live or each.is_under_way) and wall_ms - each.last_used_ms >= IDLE_MS
        ]
        for name in idle:
            self._forget(name)
        return not (self._producers or self.is_dirty)

    def _forget(self, name: str) -> None:
        self._producers.pop(name).is_forgotten = True
        self._engine.define(PRODUCER_KIND, self._key(name), None)

    def delete_rows(self) -> None:
        for name in list(self._producers):
            self._forget(name)
        self.row = None
        self._engine.define(TOPIC_KIND, str(self.name), None)

    def _key(self, producer: str) -> str:
        # No topic has a blank in its name.
        return f"{self.name} {producer}"


class ProducerSequence:
    """What one producer of a topic has sent, as far as it is numbered."""

    __slots__ = (
        "_queue",
        "_under_way",
        "is_changed",
        "is_forgotten",
        "is_live",
        "last_used_ms",
        "name",
        "persisted",
        "pushed",
    )

    def __init__(self, name: str, queue: Queue) -> None:
        self.name: Final = name
        self.pushed = NONE
        self.persisted = NONE
        self.is_live = False
        """A producer with that name is connected."""
        self.is_changed = False
        """Since its row was written."""
        self.is_forgotten = False
        """Its numbers are kept no more: deduplication was switched off, its topic is gone or made
        anew, or nobody used its name for long."""
        self.last_used_ms = 0
        """Wall time."""
        self._queue: Final = queue
        # Bounded by what the engine has of a producer (F9, its connection's share).
        self._under_way: deque[tuple[int, Publication, Channel]] = deque()

    @property
    def is_under_way(self) -> bool:
        """Something of it is neither stored nor dropped."""
        return bool(self._under_way)

    def judge(self, number: int, durable_position: int) -> Verdict:
        """What the first number of a SEND means that comes now."""
        if number > self.pushed:
            return Verdict.NEW
        self.resolve(durable_position)
        if number <= self.persisted:
            return Verdict.DUPLICATE
        return Verdict.UNKNOWN if number <= self.pushed else Verdict.NEW

    def push(self, number: int, publication: Publication, channel: Channel) -> None:
        """A new one goes to the engine."""
        self.pushed = number
        self._under_way.append((number, publication, channel))

    def resolve(self, durable_position: int) -> None:
        """Look what became of what is under way."""
        under_way = self._under_way
        while under_way:
            number, publication, channel = under_way[0]
            position = publication.record.position
            if 0 <= position < durable_position:
                self.persisted = max(self.persisted, number)
                self.is_changed = True
            elif position >= 0 or self._is_waiting(publication, channel):
                return
            under_way.popleft()
        self.pushed = self.persisted

    def _is_waiting(self, publication: Publication, channel: Channel) -> bool:
        """Whether it may still be stored: it is in its channel's inbox, or in the queue's."""
        if not channel.is_closed and channel.refusal is None:
            return True
        if any(publication is each for batch in channel.inbox for each in batch.publications):
            return True
        return any(
            publication is each for batch in self._queue.inbox for each in batch.publications
        )


class _TopicRow(msgspec.Struct, frozen=True):
    """A row of kind ``pulsar.dedup``."""

    name: PulsarName
    queue_id: int
    incarnation: int
    offset: int
    """From here on the log knows more than the rows of producers."""
    is_dirty: bool


class _ProducerRow(msgspec.Struct, frozen=True):
    """A row of kind ``pulsar.dedup_producer``."""

    name: PulsarName
    incarnation: int
    producer: str
    persisted: int
    last_used_ms: int


class _Nobody:
    """Who reads at a start, and never waits."""

    def answered(self, pull: Pull, result: PullResult) -> None: ...


_NOBODY: Final = _Nobody()


def last_number(sequence_id: int, highest_sequence_id: int) -> int:
    """The number of the last message of a SEND; not every client says it of a batch."""
    return max(signed(sequence_id), signed(highest_sequence_id))


def is_judged(metadata: MessageMetadata) -> bool:
    """False for the chunks of a message but the last: they all have its number."""
    chunks = metadata.num_chunks_from_msg
    return chunks <= 1 or metadata.chunk_id == chunks - 1
