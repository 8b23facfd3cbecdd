"""Queues in memory and a host without an engine: what a subscription needs, and nothing else.

``MemoryHost`` satisfies ``engine.host.Host``: it keeps records by position, remembers dead letters
and settlements, and calls ``dispatch`` only when a test says ``run``. ``MemoryQueue`` satisfies
``engine.host.SubscribedQueue`` with an index that knows batches, holes and trimming. ``consume``
attaches a ``Taker``, a peer that remembers what it was given.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from kit.batches import BatchFacts
from penstock.engine.batch import Batches
from penstock.engine.host import DelayedBudget, HostedSubscription, IndexEntry, SubscribedQueue
from penstock.engine.subscription.consumer import Consumer, ConsumerKeywords, Delivery
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.budgets import UnsentLimit, UnsentPool
from penstock.flow.demand import Demand, Unlimited
from penstock.flow.rate import DispatchLimit
from penstock.log.format import entry_flags
from penstock.model.ids import LogPosition, QueueId
from penstock.model.record import Record, Wire, neutral_record, tag_hash
from penstock.model.settlement import Cause, Settlement
from penstock.settings.broker import TopicSettings
from penstock.settings.flow import FlowSettings
from penstock.testing.clock import ManualClock


@dataclass(slots=True)
class MemoryPolicy:
    """The part of a topic's policy that delivery follows."""

    message_ttl_ms: int = 0
    delivery_limit: int = 0


@dataclass(slots=True)
class MemoryTopic:
    """A topic that is only its policy."""

    policy: MemoryPolicy = field(default_factory=MemoryPolicy)
    dispatch_limit: DispatchLimit | None = None


class MemoryIndex:
    """An index whose entries are a list."""

    def __init__(self) -> None:
        self.all: list[IndexEntry] = []
        self.firsts: list[int] = []
        self.next_offset = 0
        self.min_offset = 0

    def entries(self, from_offset: int, count_max: int) -> list[IndexEntry]:
        """As ``QueueIndex.entries``: the one that holds the offset, or the next one."""
        from_offset = max(from_offset, self.min_offset)
        at = bisect_right(self.firsts, from_offset) - 1
        if at < 0 or self.firsts[at] + self.all[at][5] <= from_offset:
            at += 1
        return self.all[at : at + count_max]

    def plain_run(self, from_offset: int, count_max: int) -> tuple[list[int], list[int]] | None:
        """Positions and lengths of plain entries."""
        found = self.entries(from_offset, count_max)
        if any(entry[1] != from_offset + n or entry[5] != 1 for n, entry in enumerate(found)):
            return None
        if not found or from_offset < self.min_offset or any(entry[7] for entry in found):
            return None
        return [entry[0] for entry in found], [entry[4] for entry in found]

    def search_time(self, store_ms: int) -> int:
        """The first offset stored at or after that time."""
        at = bisect_left(self.all, store_ms, key=lambda entry: entry[3])
        return self.all[at][1] if at < len(self.all) else self.next_offset

    def bytes_between(self, start: int, end: int) -> int:
        """Bytes of the entries that begin in [start, end)."""
        return sum(entry[4] for entry in self.all if start <= entry[1] < end)


class MemoryQueue:
    """A queue that a test appends to by hand."""

    def __init__(
        self,
        host: "MemoryHost",
        queue_id: int = 1,
        *,
        topic: MemoryTopic | None = None,
        number: int = 0,
    ) -> None:
        self.queue_id = QueueId(queue_id)
        self.number = number
        self.name = f"queue-{queue_id}"
        self.index = MemoryIndex()
        self.topic = topic or MemoryTopic()
        self.durable_end = 0
        self._host = host

    def visible_end(self, sees_unsynced: bool) -> int:
        """Everything, or only what ``sync`` has covered."""
        return self.index.next_offset if sees_unsynced else self.durable_end

    def append(self, records: Iterable[Record], *, is_synced: bool = True) -> list[int]:
        """Store records; returns their first offsets."""
        index = self.index
        firsts = []
        for record in records:
            length = 88 + len(record.origin)
            last = index.all[-1] if index.all else None
            cumulative = last[2] + last[4] if last else 0
            position = self._host.store(record)
            record.position = LogPosition(position)
            record.store_ms = self._host.clock.wall_ms()
            hashed = tag_hash(record.tag) if record.shape.tag_len else 0
            index.all.append(
                (
                    position,
                    index.next_offset,
                    cumulative,
                    record.store_ms,
                    length,
                    record.messages,
                    hashed,
                    entry_flags(record.shape),
                )
            )
            index.firsts.append(index.next_offset)
            firsts.append(index.next_offset)
            index.next_offset += record.messages
        if is_synced:
            self.sync()
        return firsts

    def fill(self, count: int, *, key: bytes = b"") -> list[int]:
        """Append so many small messages whose body is their offset."""
        start = self.index.next_offset
        return self.append(
            neutral_record(b"%d" % at, key=key) for at in range(start, start + count)
        )

    def sync(self) -> None:
        """What is appended is durable now."""
        self.durable_end = self.index.next_offset

    def skip(self, count: int) -> None:
        """Leave a hole: offsets that no entry has."""
        self.index.next_offset += count

    def trim(self, min_offset: int) -> None:
        """Retention removed everything below."""
        index = self.index
        while index.all and index.all[0][1] + index.all[0][5] <= min_offset:
            del index.all[0], index.firsts[0]
        index.min_offset = min_offset


@dataclass(slots=True)
class DeadLetterFormat:
    """One call of ``dead_letter``."""

    queue_id: int
    offset: int
    record: Record
    cause: Cause
    attempts: int


class MemoryHost:
    """The engine, as far as subscriptions can tell."""

    def __init__(
        self, *, flow: FlowSettings | None = None, topics: TopicSettings | None = None
    ) -> None:
        self.clock = ManualClock()
        self.flow = flow or FlowSettings()
        self.topics = topics or TopicSettings()
        self.unsent_pool = UnsentPool(self.flow.inflight_bytes_max)
        self.delayed_budget = DelayedBudget(self.topics.delayed_in_memory_max, self.wake)
        self.transient_floor = 0
        self.batches = Batches({Wire.PULSAR: BatchFacts()}, self.topics.message_bytes_max)
        self.records: dict[int, Record | None] = {}
        self.awake: dict[HostedSubscription, None] = {}
        self.noted: dict[HostedSubscription, None] = {}
        self.burials: list[DeadLetterFormat] = []
        self.carried: list[tuple[Record, int]] = []
        self.saved: list[Settlement] = []
        self._end = 0

    def store(self, record: Record) -> int:
        """Keep a record; returns its position."""
        position = self._end
        self._end += 1024
        self.records[position] = record
        return position

    def read(self, wanted: Sequence[tuple[int, int]]) -> list[Record | None]:
        """The records; None where a test has lost one."""
        get = self.records.get
        return [get(position) for position, _ in wanted]

    def ordering_key(self, record: Record) -> bytes:
        """The key, unless a test reads it elsewhere."""
        return record.key

    def recent(self, positions: list[int]) -> list[Record] | None:
        """The records; as if none of them were at hand while a test has lost one."""
        found = [record for at in positions if (record := self.records.get(at)) is not None]
        return found if len(found) == len(positions) else None

    def wake(self, subscription: HostedSubscription) -> None:
        """It gets a dispatch with the next ``run``."""
        self.awake[subscription] = None

    def note_settlement(self, subscription: HostedSubscription) -> None:
        """It is asked with the next ``save``."""
        self.noted[subscription] = None

    def save_definition(self, subscription: HostedSubscription) -> None:
        """There is no catalog."""

    def dead_letter(
        self, queue: SubscribedQueue, offset: int, record: Record, cause: Cause, attempts: int
    ) -> None:
        """Remember a dead letter."""
        self.burials.append(DeadLetterFormat(queue.queue_id, offset, record, cause, attempts))

    def carry(self, record: Record, target: SubscribedQueue) -> None:
        """Remember where it goes."""
        self.carried.append((record, target.queue_id))

    def run(self, messages_max: int = 1000, *, rounds_max: int = 1000) -> int:
        """Dispatch whoever is awake until nobody is; returns messages moved."""
        moved = 0
        for _ in range(rounds_max):
            if not self.awake:
                break
            awake, self.awake = self.awake, {}
            moved += sum(subscription.dispatch(messages_max) for subscription in awake)
        return moved

    def save(self) -> list[Settlement]:
        """Take what there is to save, as a turn does before its append."""
        noted, self.noted = self.noted, {}
        taken = [each for subscription in noted for each in subscription.take_settlements()]
        self.saved += taken
        return taken


class Taker:
    """A consumer's peer that keeps what it was given and, if told so, settles it at once."""

    def __init__(self, subscription: Subscription, *, settles: bool = False) -> None:
        self.subscription = subscription
        self.settles = settles
        self.reads = True
        """False: its socket takes nothing."""
        self.lists: list[list[Delivery]] = []
        self.active: list[bool] = []
        self.cancelled_by = ""
        self.consumer: Consumer | None = None

    @property
    def deliveries(self) -> list[Delivery]:
        """Everything it was given, in order."""
        return [delivery for each in self.lists for delivery in each]

    @property
    def offsets(self) -> list[int]:
        """The first offsets of everything it was given, in order."""
        return [delivery.offset for delivery in self.deliveries]

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """As ``Outlet.deliver``."""
        self.lists.append(deliveries)
        if self.reads:
            consumer.unsent.sent_all()
        if self.settles:
            self.settle(*deliveries)

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """As ``Outlet.cancelled``."""
        self.cancelled_by = cause

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """As ``Outlet.active_changed``."""
        self.active.append(is_active)

    def settle(self, *deliveries: Delivery) -> None:
        """Settle these, whole batches and all."""
        by_queue: dict[QueueId, list[int]] = {}
        for delivery in deliveries:
            span = range(delivery.offset, delivery.offset + delivery.record.messages)
            by_queue.setdefault(delivery.queue_id, []).extend(span)
        for queue_id, offsets in by_queue.items():
            self.subscription.settle(queue_id, offsets)


def consume(
    subscription: Subscription,
    demand: Demand | None = None,
    *,
    settles: bool = False,
    unsent: UnsentLimit | None = None,
    **keywords: Unpack[ConsumerKeywords],
) -> Taker:
    """Attach a ``Taker``; it must be welcome."""
    taker = Taker(subscription, settles=settles)
    attached = subscription.attach(
        taker, demand if demand is not None else Unlimited(), unsent=unsent, **keywords
    )
    assert isinstance(attached, Consumer), attached
    taker.consumer = attached
    return taker
