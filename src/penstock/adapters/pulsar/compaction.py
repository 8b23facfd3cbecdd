"""Compaction: of every key the newest message, kept beside the topic for ``read_compacted``.

It runs when REST asks. What was stored until then is the *horizon*; below it the newest message of
each key survives. A null value or an empty payload deletes its key, messages without a key are
dropped. Messages of a batch count singly; what cannot be opened (encrypted, corrupt, too large) is
kept as it is, and so are the chunks of a message that is not complete yet.

    scan    read the last view and what came since: key -> offset of its newest message
    copy    the survivors, in order, into a queue that nobody else can name
    switch  one transaction of the catalog: the row names the new queue, the old one is deleted

The *view* is that queue: copies under the offsets of their originals, with holes between them. So
positions, acks and seeks are those of the topic, and a reader goes from the view to the tail
without a seam (``CompactedIndex``). Of a batch that survives in part each survivor is an entry of
its own at its own offset: not every client passes over what Pulsar marks ``compacted_out`` in a
batch, and none of those would ever ack it.

The topic's own messages go as its subscriptions and its retention let them; those behind the
horizon stay for the next compaction, at most ``pulsar.compaction_kept_bytes_max`` of them. Beyond
that the broker compacts by itself, and where that fails it keeps them no longer.

One topic is compacted at a time, in pieces of ``PIECE_STEPS``. Memory: some 300 bytes a key, at
most ``pulsar.compaction_keys_max`` keys. A crash leaves the last view: what was copied for another
one is deleted at the start.

Invariants: a view names only what is durable; it has, for every key, what a reader of the topic up
to the horizon would know of it. Not here: who reads it (``subscriptions.py``), REST.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from functools import lru_cache
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

from penstock.adapters.pulsar.naming import pulsar_name
from penstock.adapters.pulsar.present import ForeignReader
from penstock.engine.connection import ConnectionOptions
from penstock.engine.ports import Publication
from penstock.engine.pull import Pull, PullResult
from penstock.engine.subscription.cursor import OffsetSet
from penstock.engine.topic import DirectRoute, TopicPolicy
from penstock.model.errors import AlreadyExists, PenstockError
from penstock.model.ids import ConnectionId
from penstock.model.names import TopicName
from penstock.model.record import (
    NO_STAMP,
    SHAPES_KEPT,
    Record,
    RecordFlag,
    RecordKind,
    Shape,
    Wire,
)
from penstock.wire.pulsar.facts import BatchPayload
from penstock.wire.pulsar.metadata import Unreadable, is_readable, octets, parse_metadata
from penstock.wire.pulsar.names import PulsarName

if TYPE_CHECKING:
    from penstock.adapters.pulsar.topics import PulsarTopic
    from penstock.engine.broker import Engine
    from penstock.engine.connection import Channel
    from penstock.engine.host import EntryIndex, IndexEntry
    from penstock.engine.ports import Confirmation
    from penstock.engine.subscription.consumer import Consumer, Delivery
    from penstock.engine.topic import Queue, Topic
    from penstock.flow.reason import Reason
    from penstock.model.clock import Clock
    from penstock.model.refusal import Refusal
    from penstock.settings.protocols import PulsarSettings
    from penstock.wire.pulsar.protocol_pb2 import MessageMetadata

logger = logging.getLogger(__name__)

COMPACTED_KIND: Final = "pulsar.compacted"
"""Rows of views."""
VIEWS_SPACE: Final = "penstock.compacted"
"""Where their queues are: no namespace and no virtual host has that name."""
KEPT_MS: Final = 1 << 53
"""Retention of a view: it goes as a whole."""
CONNECTION_ID: Final = ConnectionId((1 << 62) + 2)

PIECE_STEPS: Final = 200
"""Messages looked at in one go, about 2 ms."""
PAUSE_MS: Final = 8
"""Between two pieces, so that it takes a quarter of a core and no more."""
READ_MESSAGES: Final = 64
READ_BYTES: Final = 256 * 1024
"""Read from the log at a time; at least one entry."""
STEP_BYTES: Final = 16 * 1024
"""Reading so much counts as much as looking at a message."""
PASSED_ENTRIES: Final = 256
PASSED_STEPS: Final = 32
"""Entries that are passed over in one go, and what that counts."""
COPIES_AT_A_TIME: Final = 100
UNCONFIRMED_BYTES_MAX: Final = 1 << 20
"""Copies on their way to the disk."""
WAITING_MAX: Final = 20_000
"""Topics that wait to be compacted; partitions of one may be many."""
STATUSES_KEPT: Final = 30_000
"""Topics whose last compaction is remembered; then the oldest is told as not run."""
LOOK_MS: Final = 1_000
LOOKED_AT: Final = 50
"""Views that are looked at in one go for what is kept behind their horizons."""
CHUNKED_MAX: Final = 1_000
"""Messages in chunks that are not complete; of more the oldest are given up."""
KEY_BYTES: Final = 32
"""Longer keys are known by their hash."""
SHARDS: Final = 64
"""The table of keys is so many: one that grows is copied, and one of a million takes too long."""

WAIT: Final = 0
"""Yielded by a run that can go on only when something was confirmed."""

Steps = Generator[int, None, None]
"""Work that yields what it cost so far."""

_PULSAR: Final = int(Wire.PULSAR)
_KEPT_FLAGS: Final = int(RecordFlag.COMPRESSED)
_PLACED: Final = int(RecordFlag.PLACED)


class CompactionStatus(msgspec.Struct, frozen=True):
    """As REST tells it."""

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"] = "NOT_RUN"
    last_error: str = ""


class Compaction:
    """The views of all topics, and the one run that makes the next; a task of the timers."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        settings: PulsarSettings,
        find: Callable[[PulsarName], PulsarTopic | None],
        reschedule: Callable[[], None],
    ) -> None:
        self._engine: Final = engine
        self._clock: Final = clock
        self._settings: Final = settings
        self._find: Final = find
        self._reschedule: Final = reschedule
        self.on_replaced: Callable[[PulsarName, int], None] = lambda _name, _horizon: None
        """Called with a topic and its old horizon before an old view goes."""
        self._views: Final[dict[PulsarName, View]] = {}
        self._statuses: Final[dict[PulsarName, CompactionStatus]] = {}
        self._waiting: Final[deque[PulsarName]] = deque()
        self._run: _Run | None = None
        self._piece_ms = 0
        self._look_ms = clock.monotonic_ms() + LOOK_MS
        # Views that are to be looked at in this round.
        self._unseen: deque[PulsarName] = deque()
        self._restore()
        engine.watch_removals(self._removed)

    # What REST asks.

    def start(self, name: PulsarName) -> None:
        """Compact what a topic or partition has; raises ``AlreadyExists`` while that is done."""
        if self.status(name).status == "RUNNING":
            raise AlreadyExists("Compaction already in progress")
        if len(self._waiting) >= WAITING_MAX:
            raise AlreadyExists(f"{WAITING_MAX} topics wait to be compacted already")
        self._tell(name, CompactionStatus("RUNNING"))
        self._waiting.append(name)
        self._go_on()

    def status(self, name: PulsarName) -> CompactionStatus:
        """Of the last compaction since the start of the broker."""
        return self._statuses.get(name, CompactionStatus())

    # What readers ask.

    def index_of(self, topic: PulsarTopic) -> CompactedIndex | None:
        """How to read a topic compacted; None = it never was."""
        view = self._views.get(topic.name)
        return None if view is None else view.index

    def view_of(self, topic: PulsarTopic) -> View | None:
        """What is left of a topic's keys; None = it was never compacted."""
        return self._views.get(topic.name)

    # The task.

    def next_deadline_ms(self) -> int | None:
        if self._run is not None and not self._run.is_waiting:
            return min(self._piece_ms, self._look_ms)
        return self._look_ms if self._views or self._run is not None else None

    def due(self, now_ms: int) -> None:
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            self._look_at_some()
        run = self._run
        if run is None or now_ms < self._piece_ms:
            return
        try:
            is_done = run.work()
        except PenstockError as error:
            # There are too many keys, queues or messages; or the topic is gone.
            run.fail(str(error))
            is_done = True
        self._piece_ms = self._clock.monotonic_ms() + PAUSE_MS
        if is_done:
            self._end(run)

    def _go_on(self) -> None:
        """The next topic that waits has its turn."""
        while self._run is None and self._waiting:
            topic = self._find(self._waiting.popleft())
            if topic is None:
                continue
            view = self._views.get(topic.name)
            self._run = _Run(self._engine, self._settings, topic, view, self._reschedule)
            self._piece_ms = self._clock.monotonic_ms()
        self._reschedule()

    def _end(self, run: _Run) -> None:
        self._run = None
        run.close()
        name = run.topic.name
        if run.error:
            logger.warning(
                "a topic was not compacted", extra={"topic": str(name), "why": run.error}
            )
            self._tell(name, CompactionStatus("ERROR", run.error))
            run.undo()
        else:
            self._switch(run)
        self._go_on()

    def _switch(self, run: _Run) -> None:
        """The copies are durable: from now on they are the view."""
        engine, name = self._engine, run.topic.name
        old, queue, target = self._views.get(name), run.queue, run.target
        assert target is not None, "a run that ended without a view"
        view = View(name, queue, target.queues[0], run.horizon)
        if old is not None:
            self.on_replaced(name, old.horizon)
        self._views[name] = view
        queue.kept_from = run.horizon
        # Whoever finds its name adds nothing to it.
        engine.terminate_topic(target.name)
        engine.define(COMPACTED_KIND, str(name), msgspec.json.encode(view.row))
        if old is not None:
            engine.delete_topic(old.queue.topic.name, "compacted anew")
        engine.after_durable(lambda: self._tell(name, CompactionStatus("SUCCESS")))

    def _tell(self, name: PulsarName, status: CompactionStatus) -> None:
        self._statuses.pop(name, None)
        self._statuses[name] = status
        if len(self._statuses) > STATUSES_KEPT:
            del self._statuses[next(iter(self._statuses))]

    # What is kept behind the horizons.

    def _look_at_some(self) -> None:
        if not self._unseen:
            self._unseen.extend(self._views)
        for _ in range(min(LOOKED_AT, len(self._unseen))):
            view = self._views.get(self._unseen.popleft())
            if view is not None:
                self._look_at(view)

    def _look_at(self, view: View) -> None:
        queue, bytes_max = view.origin, self._settings.compaction_kept_bytes_max
        if queue.kept_from is None:
            return
        if queue.index.bytes_between(view.horizon, queue.index.next_offset) <= bytes_max:
            return
        status = self.status(view.name)
        if status.status == "ERROR":
            logger.warning(
                "what came since the last compaction is kept no longer",
                extra={"topic": str(view.name), "why": status.last_error},
            )
            queue.kept_from = None
        elif status.status != "RUNNING" and len(self._waiting) < WAITING_MAX:
            self.start(view.name)

    # Ends and beginnings.

    def _removed(self, topic: Topic) -> None:
        """Deleted by anybody: its views go, too."""
        whole = pulsar_name(topic.name)
        if whole is None:
            return
        for name in (whole, *[whole.of_partition(each) for each in range(len(topic.queues))]):
            self._statuses.pop(name, None)
            view = self._views.get(name)
            if view is not None and view.origin in topic.queues:
                del self._views[name]
                self._engine.define(COMPACTED_KIND, str(name), None)
                self._engine.delete_topic(view.queue.topic.name, "its topic is gone")
        run = self._run
        if run is not None and run.topic.topic_name == topic.name:
            run.fail("the topic was deleted")

    def _restore(self) -> None:
        engine = self._engine
        named = set()
        for key, body in engine.definitions(COMPACTED_KIND).items():
            row = msgspec.json.decode(body, type=_ViewRow)
            origin, queue = engine.queue(row.origin_id), engine.queue(row.queue_id)
            if origin is None or origin.incarnation != row.incarnation or queue is None:
                engine.define(COMPACTED_KIND, key, None)
                continue
            view = self._views[row.name] = View(row.name, origin, queue, row.horizon)
            named.add(queue.topic.name)
            origin.kept_from = view.horizon
        for topic in engine.topics():
            if topic.name.space == VIEWS_SPACE and topic.name not in named:
                engine.delete_topic(topic.name, "its compaction did not end")


# ---- a run --------------------------------------------------------------------------------------


class _Run:
    """One topic on its way to a new view; the outlet of the connection that writes it."""

    def __init__(
        self,
        engine: Engine,
        settings: PulsarSettings,
        topic: PulsarTopic,
        view: View | None,
        wake: Callable[[], None],
    ) -> None:
        self.topic: Final = topic
        self.queue: Final = topic.queue
        self.horizon: Final = self.queue.durable_end
        self.target: Topic | None = None
        """Where the copies go."""
        self.error = ""
        """Why it ends without a view."""
        self.is_waiting = False
        """It goes on when copies are confirmed."""
        self._engine: Final = engine
        self._settings: Final = settings
        self._wake: Final = wake
        # What is read, in order: (queue, from, to).
        sources = [(self.queue, 0, self.horizon)]
        if view is not None:
            before = (view.queue, 0, view.queue.durable_end)
            sources = [before, (self.queue, view.horizon, self.horizon)]
        self._sources: Final = sources
        self._newest: Final = _NewestOfKeys(settings.compaction_keys_max)
        self._channel: Channel | None = None
        self._route: DirectRoute
        """To the target; from its making on."""
        self._copies: list[Publication] = []
        self._copied_bytes = 0
        self._unconfirmed_bytes = 0
        self._work: Final = self._all()

    def work(self) -> bool:
        """One piece; True when it is over. Raises ``PenstockError``."""
        self.is_waiting = False
        steps = 0
        while not self.error:
            cost = next(self._work, None)
            if cost is None:
                return True
            if cost == WAIT:
                self.is_waiting = True
                return False
            steps += cost
            if steps >= PIECE_STEPS:
                return False
        return True

    def fail(self, why: str) -> None:
        self.error = self.error or why
        self.is_waiting = False
        self._wake()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.connection.close()

    def undo(self) -> None:
        """What was copied is nobody's."""
        if self.target is not None and not self.target.is_deleted:
            self._engine.delete_topic(self.target.name, "its compaction did not end")

    def _all(self) -> Steps:
        for source in self._sources:
            yield from self._scan(*source)
        self._open()
        for source in self._sources:
            yield from self._copy(*source)
        yield from self._send(is_last=True)

    # Scan.

    def _scan(self, queue: Queue, offset: int, end: int) -> Steps:
        while offset < end:
            pull = Pull(self, queue, offset, READ_MESSAGES, READ_BYTES, whole_batches=True)
            found = self._engine.pulls.read(pull)
            for entry, record in zip(found.entries, found.records, strict=True):
                if entry[1] < end:
                    yield 1 + len(record.origin) // STEP_BYTES
                    yield from self._note(entry[1], record)
            # It never stands still, whatever is in the log.
            offset = max(found.next_offset, offset + 1)
            yield 1

    def _note(self, offset: int, record: Record) -> Steps:
        """The messages of an entry are the newest of their keys so far."""
        newest = self._newest
        if record.wire != _PULSAR:
            if record.messages > 1:
                newest.keep(offset)
            elif key := self._foreign_key(record):
                newest.note(key, offset, is_deleted=not record.shape.body_len)
            return
        try:
            metadata = parse_metadata(record.properties)
        except Unreadable:
            return  # nobody can read it
        if metadata.HasField("num_messages_in_batch"):
            yield from self._note_batch(offset, record)
        elif metadata.num_chunks_from_msg > 1:
            newest.note_chunk(metadata, offset)
        elif is_readable(record) and metadata.HasField("partition_key"):
            key = octets(metadata.partition_key)
            newest.note(key, offset, is_deleted=_is_empty(metadata, record))

    def _note_batch(self, offset: int, record: Record) -> Steps:
        try:
            batch = BatchPayload(record, self._settings.max_message_size)
        except ValueError:
            self._newest.keep(offset)
            return
        try:
            for message in batch:
                single = message.single
                if single.HasField("partition_key"):
                    self._newest.note(
                        octets(single.partition_key),
                        offset + message.number,
                        is_deleted=single.null_value or not single.payload_size,
                    )
                yield 1
        except ValueError:
            return  # what is behind it no client can read

    def _foreign_key(self, record: Record) -> bytes:
        """As its consumers of Pulsar see it (``present.py``)."""
        reader: object = self._engine.facts.get(record.wire)
        if isinstance(reader, ForeignReader):
            return reader.facts(record).key.encode("utf-8", "replace")
        return record.key

    # Copy.

    def _copy(self, queue: Queue, offset: int, end: int) -> Steps:
        has_some = self._newest.survivors.has_some
        while offset < end:
            entries = queue.index.entries(offset, PASSED_ENTRIES)
            offset = entries[-1][1] + entries[-1][5] if entries else end
            yield PASSED_STEPS
            wanted = [
                each for each in entries if each[1] < end and has_some(each[1], each[1] + each[5])
            ]
            while wanted:
                found = self._read(queue, wanted)
                for record, entry in zip(found, wanted, strict=False):
                    yield 1 + len(record.origin) // STEP_BYTES
                    yield from self._copy_entry(entry, record)
                # What cannot be read any more is left out.
                del wanted[: max(1, len(found))]

    def _read(self, queue: Queue, entries: list[IndexEntry]) -> list[Record]:
        """The records of the first of these entries, as many as follow each other there."""
        first, end, messages = entries[0][1], entries[0][1], 0
        for entry in entries[:READ_MESSAGES]:
            if entry[1] != end:
                break
            end = entry[1] + entry[5]
            messages += entry[5]
        pull = Pull(self, queue, first, messages, READ_BYTES, whole_batches=True)
        found = self._engine.pulls.read(pull)
        pairs = zip(found.entries, entries, strict=False)
        # Behind one that is gone others would be taken for it.
        same = sum(1 for _ in takewhile(lambda pair: pair[0][1] == pair[1][1], pairs))
        return found.records[:same]

    def _open(self) -> None:
        """A queue for the copies, beside that of the last view."""
        engine = self._engine
        names = [TopicName(VIEWS_SPACE, f"penstock.{self.queue.queue_id}.{each}") for each in "ab"]
        name = next(each for each in names if engine.topic(each) is None)
        self.target = engine.create_topic(name, policy=TopicPolicy(retention_ms=KEPT_MS))
        self._route = DirectRoute(self.target.queues[0])
        options = ConnectionOptions(pending_publishes_max=0)
        connection = engine.connect(CONNECTION_ID, self, "pulsar-compaction", options)
        self._channel = connection.open_channel("1")

    def _copy_entry(self, entry: IndexEntry, record: Record) -> Steps:
        """What survives of an entry: all of it as it is, or some of its messages, each by itself.

        What would not fit into a frame by itself stays in its batch, with its companions.
        """
        first, messages = entry[1], entry[5]
        survivors, singles = self._newest.survivors, []
        if messages > 1:
            try:
                batch = BatchPayload(record, self._settings.max_message_size)
                for message in batch:
                    if first + message.number in survivors:
                        single = batch.alone(message)
                        single.born_ms = single.born_ms or record.born_ms
                        singles.append((first + message.number, single))
                    yield 1
            except ValueError:
                pass  # what was found before it, if anything, is all that clients can read
            if any(len(each.origin) > self._settings.max_message_size for _, each in singles):
                singles.clear()
        if len(singles) in (0, messages):
            singles = [(first, record)]
        for offset, each in singles:
            self._add(offset, each)
            yield from self._send()

    def _add(self, offset: int, record: Record) -> None:
        copy = Record(record.origin, _placed(record.shape), record.born_ms)
        self._copies.append(Publication(copy, first_offset=offset, route=self._route))
        self._copied_bytes += len(copy.origin)

    def _send(self, *, is_last: bool = False) -> Steps:
        """Hand the copies over when they are enough; no more than the disk keeps up with."""
        channel = self._channel
        assert channel is not None, "copies before there is a place for them"
        is_due = len(self._copies) >= COPIES_AT_A_TIME or self._copied_bytes >= READ_BYTES
        if self._copies and (is_due or is_last):
            copies, self._copies = self._copies, []
            self._unconfirmed_bytes += self._copied_bytes
            self._copied_bytes = 0
            channel.publish(copies)
            yield 1
        while self._unconfirmed_bytes > (0 if is_last else UNCONFIRMED_BYTES_MAX):
            yield WAIT

    # Callbacks of the engine.

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        self._unconfirmed_bytes -= sum([len(each.record.origin) for each in confirmations])
        self.is_waiting = False
        self._wake()

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        self.fail(refusals[0][1].text)

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None: ...

    def cancelled(self, consumer: Consumer, cause: str) -> None: ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None: ...

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """There is no socket to stop: it waits for its confirms."""

    def answered(self, pull: Pull, result: PullResult) -> None:
        """None of its pulls ever waits."""


def _is_empty(metadata: MessageMetadata, record: Record) -> bool:
    """A message that deletes its key. Of an encrypted one only its producer can say so."""
    if metadata.compression and not metadata.encryption_keys:
        return metadata.null_value or not metadata.uncompressed_size
    return metadata.null_value or not record.shape.body_len


@lru_cache(maxsize=SHAPES_KEPT)
def _placed(shape: Shape) -> Shape:
    """Of a copy that has an offset already, and lasts."""
    return replace(
        shape,
        kind=int(RecordKind.MESSAGE),
        flags=shape.flags & _KEPT_FLAGS | _PLACED,
        stamp_offset_at=NO_STAMP,
        stamp_position_at=NO_STAMP,
        stamp_store_ms_at=NO_STAMP,
    )


class _NewestOfKeys:
    """Where the newest message of each key is, and so which messages survive."""

    def __init__(self, keys_max: int) -> None:
        self.survivors: Final = OffsetSet()
        self._keys_max: Final = keys_max
        self._shards: Final[list[dict[bytes, int]]] = [{} for _ in range(SHARDS)]
        # Chunks so far of messages that are not complete, by their uuid, the oldest first.
        self._chunked: Final[dict[bytes, list[int]]] = {}
        # Offset of the last chunk -> those of the others.
        self._chunks: Final[dict[int, list[int]]] = {}

    def note(self, key: bytes, offset: int, *, is_deleted: bool = False) -> None:
        """A later message of a key than all before; raises ``AlreadyExists`` for one too many."""
        if len(key) > KEY_BYTES:
            key = blake2b(key, digest_size=KEY_BYTES).digest() + b"#"
        shard = self._shards[hash(key) % SHARDS]
        old = shard.pop(key, None)
        if old is not None:
            self.survivors.remove(old)
            self._forget(self._chunks.pop(old, []))
        if not is_deleted:
            shard[key] = offset
            self.keep(offset)

    def keep(self, offset: int) -> None:
        """It survives, whatever comes."""
        self.survivors.add(offset)
        if self.survivors.count > self._keys_max:
            raise AlreadyExists(
                f"there are more than {self._keys_max} keys (pulsar.compaction_keys_max); "
                "raise it, or use a topic for fewer"
            )

    def note_chunk(self, metadata: MessageMetadata, offset: int) -> None:
        """All chunks of a message survive together, with its last one, and until that has come."""
        uuid, number = octets(metadata.uuid), metadata.chunk_id
        chunks = self._chunked.get(uuid)
        if number == 0:
            self._forget(self._chunked.pop(uuid, []))
            chunks = self._chunked[uuid] = []
        if chunks is None or number < len(chunks):
            return  # its beginning is gone, or it was sent twice
        if number > len(chunks):
            self._forget(self._chunked.pop(uuid))
            return
        if number + 1 < metadata.num_chunks_from_msg:
            chunks.append(offset)
            self.keep(offset)
            if len(self._chunked) > CHUNKED_MAX:
                self._forget(self._chunked.pop(next(iter(self._chunked))))
            return
        del self._chunked[uuid]
        if metadata.HasField("partition_key"):
            self.note(octets(metadata.partition_key), offset)
            self._chunks[offset] = chunks
        else:
            self._forget(chunks)

    def _forget(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.survivors.remove(offset)


# ---- views --------------------------------------------------------------------------------------


class CompactedIndex:
    """A queue's index as readers of the compacted topic have it; satisfies ``host.EntryIndex``.

    Below the horizon it is that of the copies, from there on the queue's own. Offsets are the same.
    """

    __slots__ = ("_above", "_below", "_horizon")

    min_offset = 0
    """Copies outlive what they are copies of."""

    def __init__(self, below: EntryIndex, horizon: int, above: EntryIndex) -> None:
        self._below = below
        self._horizon = horizon
        self._above = above

    @property
    def next_offset(self) -> int:
        return self._above.next_offset

    def entries(self, from_offset: int, count_max: int) -> list[IndexEntry]:
        above, horizon = self._above, self._horizon
        if from_offset >= horizon:
            return above.entries(from_offset, count_max)
        found = self._below.entries(from_offset, count_max)
        more = above.entries(horizon, count_max - len(found))
        if found and more:
            # Bytes before an entry are counted anew in each index.
            shift = found[-1][2] + found[-1][4] - more[0][2]
            more = [(*each[:2], each[2] + shift, *each[3:]) for each in more]
        return found + more

    def plain_run(self, from_offset: int, count_max: int) -> tuple[list[int], list[int]] | None:
        if from_offset < self._horizon:
            return None
        return self._above.plain_run(from_offset, count_max)

    def search_time(self, store_ms: int) -> int:
        """Only what is behind the horizon has times that compare with those of the topic."""
        return max(self._horizon, self._above.search_time(store_ms))

    def bytes_between(self, start: int, end: int) -> int:
        horizon = self._horizon
        below = self._below.bytes_between(start, min(end, horizon)) if start < horizon else 0
        return below + self._above.bytes_between(max(start, horizon), end)

    def last_entry(self, end: int) -> IndexEntry | None:
        """The last one that begins before ``end``, which is not before the horizon."""
        if end > self._horizon:
            found = self._above.entries(end - 1, 1)
        else:
            found = self._below.entries(self._below.next_offset - 1, 1)
        return found[0] if found else None


class View:
    """The newest messages of a topic's keys, as of its horizon."""

    __slots__ = ("horizon", "index", "name", "origin", "queue")

    def __init__(self, name: PulsarName, origin: Queue, queue: Queue, horizon: int) -> None:
        self.name: Final = name
        self.origin: Final = origin
        """The queue of the topic itself."""
        self.queue: Final = queue
        """That of the copies."""
        self.horizon: Final = horizon
        self.index: Final = CompactedIndex(queue.index, horizon, origin.index)

    @property
    def row(self) -> _ViewRow:
        origin = self.origin
        return _ViewRow(
            self.name, origin.queue_id, origin.incarnation, self.queue.queue_id, self.horizon
        )


class _ViewRow(msgspec.Struct, frozen=True):
    """A row of kind ``pulsar.compacted``."""

    name: PulsarName
    origin_id: int
    incarnation: int
    """Of the topic's queue: a row speaks of one topic, not of the next one of that name."""
    queue_id: int
    horizon: int
