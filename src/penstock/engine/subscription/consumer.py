"""A consumer, the deliveries on their way to it, and what is in flight.

What a consumer may be handed is the least of four: its demand (F10 window, F11 permits, F12 one
pull), its in-flight messages and bytes (F13), and what its connection's socket has not taken yet
(F14). Each belongs to it alone or to its connection, never to the subscription: a stuck consumer
stops itself (law 8). Only when all sockets together are far behind (D22) does everybody get one
message at a time. Whoever changes demand or the unsent bytes from outside calls ``wake`` afterwards
(law 4).

A message that is handed over is two objects: a ``Delivery`` carries the record to the adapter and
is gone once it is encoded; a ``PendingEntry`` is what is in flight, small and without the record,
so that consumers who never settle hold numbers and not payloads (laws 2 and 8). A dead letter reads
its record again.

Not here: which consumer gets a message (``dispatchers.py``), demand (``flow/demand.py``).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Protocol, Required, TypedDict

import msgspec
from msgspec.structs import replace

from penstock.engine.host import ConsumerHost, FailoverRule, HostedSubscription, Mode
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import (
    UNLIMITED,
    ClientSays,
    Demand,
    InflightLimit,
    Permits,
    Window,
    Withheld,
)
from penstock.flow.progress import Unsettled
from penstock.model.ids import ConsumerId, QueueId
from penstock.model.record import Record
from penstock.settings.flow import FlowSettings

KeyRange = tuple[int, int]
"""Inclusive range of key slots (0..65535) that a sticky consumer claims."""


class ConsumerKeywords(TypedDict, total=False):
    """What ``Subscription.attach`` may be told about a consumer; see the attributes below."""

    name: Required[str]
    label: str
    mode: Mode | None
    failover: FailoverRule | None
    priority: int
    key_ranges: Sequence[KeyRange]
    halves_keys: bool
    queue_ids: Sequence[QueueId]
    is_auto_settled: bool
    is_passive: bool
    visibility_ms: int
    unacked_max: int | None
    unacked_bytes_max: int | None
    """F13: what it may have in flight; 0 = no limit, None = as ``flow`` is set."""


class RefusalReason(Enum):
    """Why a consumer is not taken in."""

    BUSY = "busy"
    """Another one has exclusive use."""
    MODE = "mode"
    """Those who are there read in another way: another type, or keys shared out differently."""
    KEY_RANGE = "key-range"
    """Its key ranges are no ranges, or another has some of them."""
    TOO_MANY = "too-many"


class ConsumerRefusal(msgspec.Struct, frozen=True):
    """A consumer is not taken in; an answer, not an error."""

    reason: RefusalReason
    text: str


class ConsumerOutlet(Protocol):
    """The part of ``connection.Outlet`` that concerns consumers."""

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Messages for this consumer, within what is available to it."""
        ...

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """It is gone, not by its own will."""
        ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Failover: whether it is the one that gets messages; may be told inside ``attach``.

        Where taking over takes a while, everybody hears of every change, also who knows already.
        """
        ...


class Consumer:
    """One consumer of a subscription, and every reason why it may not be handed more.

    Made by ``Subscription.attach``. It is no connection: one connection may have many.
    """

    __slots__ = (
        "_host",
        "_permits",
        "_subscription",
        "_unsettled",
        "active_queues",
        "connection_id",
        "consumer_id",
        "delivered_messages",
        "demand",
        "failover",
        "halves_keys",
        "inflight",
        "is_attached",
        "is_auto_settled",
        "is_passive",
        "key_ranges",
        "label",
        "mode",
        "name",
        "outlet",
        "owns_unsent",
        "priority",
        "queue_ids",
        "redelivered_messages",
        "says",
        "unsent",
        "visibility_ms",
    )

    def __init__(
        self,
        consumer_id: ConsumerId,
        outlet: ConsumerOutlet,
        demand: Demand,
        *,
        name: str,
        label: str = "",
        subscription: HostedSubscription,
        host: ConsumerHost,
        unsent: UnsentLimit,
        owns_unsent: bool = True,
        mode: Mode | None = None,
        failover: FailoverRule | None = None,
        priority: int = 0,
        key_ranges: Sequence[KeyRange] = (),
        halves_keys: bool = False,
        queue_ids: Sequence[QueueId] = (),
        is_auto_settled: bool = False,
        is_passive: bool = False,
        visibility_ms: int = 0,
        unacked_max: int | None = None,
        unacked_bytes_max: int | None = None,
    ) -> None:
        self.consumer_id = consumer_id
        self.outlet = outlet
        self.demand = demand
        self.name = name
        self.label = label or name
        """For people; the name is what failover and key_shared choose by."""
        self.unsent = unsent
        self.owns_unsent = owns_unsent
        """False: it is its connection's, whose adapter closes it."""
        self.inflight = _inflight_limit(host.flow, unacked_max, unacked_bytes_max)
        self.mode = mode
        """The subscription type it came with; None = whichever its queues have."""
        self.failover = failover
        """How failover is done where it is the first; None = as it is done there."""
        self.priority = priority
        """Higher is served first."""
        self.key_ranges = tuple(key_ranges)
        self.halves_keys = halves_keys
        """Where it is the first: keys by ranges, halved for who comes, not by a ring of hashes."""
        self.queue_ids = tuple(queue_ids)
        """The queues it takes from; empty = all of the topic."""
        self.is_auto_settled = is_auto_settled
        """Handing over settles: nothing is in flight for it."""
        self.is_passive = is_passive
        """Never chosen by dispatch; takes by ``Subscription.take``."""
        self.connection_id = 0  # for people who look; whoever attaches it says which it is on
        self.visibility_ms = visibility_ms
        """Its deliveries go back by themselves after this time; 0 = never."""
        self.is_attached = True
        self.active_queues = 0
        """In how many queues it is the active one of a failover."""
        self.delivered_messages = self.redelivered_messages = 0
        self.says: ClientSays | None = None  # why it takes no more, where its client tells
        self._unsettled = Unsettled()
        self._host, self._subscription = host, subscription
        self._permits = demand if isinstance(demand, Permits) else None

    def __repr__(self) -> str:
        return f"<Consumer {self.name} {self.consumer_id}>"

    def takes_from(self, queue_id: QueueId) -> bool:
        """Whether it wants messages of this queue."""
        return not self.queue_ids or queue_id in self.queue_ids

    def keeps_reading(self, gone_id: QueueId, left_ids: list[QueueId]) -> bool:
        """A queue is gone; False when it wants nothing of those that are left.

        Should the queue be subscribed again, it would have to come again, too: so it does not wait
        for it, and is told when it has nothing else.
        """
        if not self.queue_ids:
            return True
        kept = tuple([each for each in self.queue_ids if each != gone_id])
        if not any(each in kept for each in left_ids):
            return False
        self.queue_ids = kept
        return True

    def available_messages(self) -> int:
        """Messages it may be handed now; 0 for whichever reason (``blocked_by`` names them)."""
        return self.available()[0]

    def available(self) -> tuple[int, int]:
        """Messages and bytes it may be handed now, or none of both.

        One entry may cross the line of the bytes, none is ever split.
        """
        unsent, demand = self.unsent, self.demand
        if unsent.is_held:
            return 0, 0
        messages, size = self.inflight.available()
        messages = min(messages, demand.available_messages())
        size = min(size, demand.available_bytes())
        if unsent.messages_max:
            messages = min(messages, unsent.messages_max - unsent.messages)
        if unsent.bytes_max:
            size = min(size, unsent.bytes_max - unsent.bytes)
        if unsent.pool is not None and unsent.pool.is_short:
            if unsent.messages:
                unsent.pool.wait(self)
                return 0, 0
            messages = min(messages, 1)
        return (messages, size) if messages > 0 and size > 0 else (0, 0)

    def shared_limits(self) -> list[tuple[object, int, int]]:
        """Limits it has together with others: messages and bytes that each allows them now."""
        found: list[tuple[object, int, int]] = []
        unsent = self.unsent
        if not self.owns_unsent:
            messages = unsent.messages_max - unsent.messages if unsent.messages_max else UNLIMITED
            size = unsent.bytes_max - unsent.bytes if unsent.bytes_max else UNLIMITED
            found.append((unsent, messages, size))
        channel = self.demand.channel if isinstance(self.demand, Window) else None
        if channel is not None and channel.count:
            found.append((channel, channel.available_messages(), UNLIMITED))
        return found

    @property
    def has_demand(self) -> bool:
        """Whether it asks for more, whatever it may have: permits kept aside are asked for."""
        permits = self._permits
        if permits is not None:
            return permits.permits + permits.aside > 0
        return self.demand.available_messages() > 0 and self.demand.available_bytes() > 0

    @property
    def window(self) -> int:
        """Its window, if it has one (F10); 0 = it has none, or it is no window."""
        return self.demand.window if isinstance(self.demand, Window) else 0

    @property
    def is_unlimited(self) -> bool:
        """It could have a window and asked for none."""
        return isinstance(self.demand, Window) and not self.demand.window

    def blocked_by(self) -> tuple[Withheld, ...]:
        """Everything of its own that keeps it from taking more; empty = it would.

        What keeps messages from it beside that: ``Subscription.withheld_from``.
        """
        reasons = []
        if not self.has_demand:
            reasons.append(Withheld.DEMAND)
        if self.inflight.is_held_by_messages:
            reasons.append(Withheld.UNSETTLED)
        if self.inflight.is_held_by_bytes:
            reasons.append(Withheld.BYTES)
        pool = self.unsent.pool
        if self.unsent.is_held or (pool is not None and pool.is_short and self.unsent.messages):
            reasons.append(Withheld.UNSENT)
        return tuple(reasons)

    def grant(self, permits: int) -> None:
        """It will take so many more (Pulsar's FLOW); the time of the last one is shown."""
        assert self._permits is not None, "permits for a consumer that does not count in them"
        self._permits.add(permits, self._host.clock.monotonic_ms())

    @property
    def last_grant_ms(self) -> int | None:
        """When it was last granted permits (monotonic); None = never."""
        return None if self._permits is None else self._permits.granted_ms

    def taken(self, messages: int, size: int) -> None:
        """It is about to be handed this much."""
        self.delivered_messages += messages
        self.demand.taken(messages, size)
        self.unsent.queued(messages, size)
        if self.is_auto_settled:
            self.demand.returned(messages, size)
        elif self.inflight.add(messages, size) and self._permits is not None:
            self._permits.block()

    def returned(self, messages: int, size: int) -> None:
        """This much of what it had is settled or goes back."""
        if self.inflight.remove(messages, size) and self._permits is not None:
            self._permits.unblock()
        self.demand.returned(messages, size)

    def unsettled_ms(self, now_ms: int, settled_ms: int) -> int:
        """For how long it has messages and gave none of them back (``Unsettled.look``)."""
        has = self.inflight.messages
        return self._unsettled.look(self.delivered_messages - has, has, now_ms, settled_ms)

    @property
    def usual_ms(self) -> int:
        """How long it took until it gave something back, lately."""
        return self._unsettled.usual_ms

    def limit_unacked(self, messages_max: int, bytes_max: int = 0) -> None:
        """Other limits for what it has in flight (F13), which count at once; 0 = none."""
        inflight = self.inflight
        if (messages_max, bytes_max) == (inflight.messages_max, inflight.bytes_max):
            return
        inflight.resize(messages_max, bytes_max)
        if self._permits is not None:
            if inflight.is_blocked:
                self._permits.block()
            else:
                self._permits.unblock()
        self.wake()

    def resume(self) -> None:
        """It gave messages back: below its limits it goes on, with the permits kept aside."""
        if self.inflight.resume():
            if self._permits is not None:
                self._permits.unblock()
            self.wake()

    def wake(self) -> None:
        """Demand grew or the socket took something: dispatch may go on."""
        if self.is_attached:
            self._host.wake(self._subscription)

    def sent(self, messages: int, size: int) -> None:
        """The socket took these deliveries (F14)."""
        if self.unsent.sent(messages, size):
            self.wake()


def _inflight_limit(
    flow: FlowSettings, messages_max: int | None, bytes_max: int | None
) -> InflightLimit:
    return InflightLimit(
        flow.unacked_consumer_max if messages_max is None else messages_max,
        flow.unacked_consumer_bytes_max if bytes_max is None else bytes_max,
    )


# ---- deliveries and what is in flight -----------------------------------------------------------


STALE_DEADLINES_MIN = 64
"""Outdated entries the deadline heap may hold before it is rebuilt, beside one per held entry."""


NO_CONSUMER = 0
"""No consumer's id: of rejected entries, in flight until they are dead letters (``settle.py``)."""


class Delivery(msgspec.Struct, gc=False):
    """One record on its way to one consumer."""

    record: Record
    queue_id: QueueId
    offset: int
    """Its first offset; a batch record covers ``record.messages`` of them."""
    size: int
    """Log bytes, as the limits count them."""
    attempts: int = 0
    """How often it came back and was counted; 0 = first."""
    is_redelivered: bool = False
    messages: int = 1
    """Messages in it that are not settled yet: what demand and limits are charged."""
    slot: int = 0
    """Key slot of key_shared, 0 elsewhere."""
    tag: int = 0
    """The adapter's own number for it."""


class PendingEntry(msgspec.Struct, gc=False):
    """What is remembered of one delivery in flight, or of several single messages of one size.

    So it is replaced, not changed, except for that of a batch, which is never shared.
    """

    consumer_id: int
    size: int
    attempts: int = 0
    messages: int = 1
    """Charged and not yet returned; falls as offsets inside a batch are settled one by one."""
    span: int = 1
    """Offsets the entry covers."""
    slot: int = 0
    deadline_ms: int = 0
    """Monotonic time at which it goes back by itself; 0 = never."""
    tag: int = 0
    """The adapter's own number for this hand-over: what a receipt must name."""


class _Run(msgspec.Struct, gc=False):
    """Neighbours in the hands of one consumer."""

    consumer_id: int
    sizes: list[int]
    settled: int = 0
    """How many at its beginning are settled."""


class PendingEntries:
    """What one subscription has in flight in one queue: the ledger of unsettled deliveries.

    Its key is an entry's first offset; an entry is in flight at most once. The limits of F13 bound
    it; they are checked before a delivery is made.

    Two representations, because most of what is in flight was handed over in a run and is settled
    in a run: neighbours, single messages without a deadline. Such a run is one object as long as it
    is settled from its beginning (``add_run``, ``take_run``), and no object per message is made.
    Whoever needs anything else calls ``spill`` first, which turns all runs into entries; a message
    is spilled at most once.

    AMQP's ledger of delivery tags (``UnackedTags``) is not a copy of it: that one belongs to a
    channel and is in the order of tags, over several queues; this one belongs to a queue and goes
    by offset. One ledger for both would need an entry per message here, which runs avoid.
    """

    __slots__ = ("_batches", "_entries", "_runs", "deadlines", "messages")

    def __init__(self) -> None:
        self._entries: dict[int, PendingEntry] = {}
        # First unsettled offset -> run; disjoint from the entries.
        self._runs: dict[int, _Run] = {}
        self.messages = 0
        """Messages in flight: batches counted by what is unsettled in them."""
        # First offsets of entries that span several, sorted: the way from an offset to its entry.
        self._batches: list[int] = []
        self.deadlines: list[tuple[int, int]] = []
        """(moment, first offset), a heap; some may be outdated."""

    def add_run(self, consumer_id: int, start: int, sizes: list[int]) -> None:
        """Single messages without a deadline, at ``start`` and behind it, went to a consumer."""
        self._runs[start] = _Run(consumer_id, sizes)
        self.messages += len(sizes)

    def take_run(self, offsets: Sequence[int]) -> list[tuple[int, int, int]] | None:
        """Take neighbours out from the beginning of runs: (consumer, messages, bytes) of each run.

        None, and nothing is done, when that is not what these offsets are.
        """
        if not (self._runs and offsets and offsets[0] in self._runs):
            return None
        left = len(offsets)
        if left > 1 and (offsets[-1] - offsets[0] + 1 != left or not _is_run(offsets)):
            return None
        return self.take_range(offsets[0], offsets[0] + left)

    def take_range(self, start: int, end: int) -> list[tuple[int, int, int]] | None:
        """The same for the neighbours of [start, end), which is not empty."""
        runs, left = self._runs, end - start
        if (run := runs.get(start)) is None:
            return None
        if left == len(run.sizes) and not run.settled:
            # Most of them are taken as they were given: one and all of it.
            del runs[start]
            self.messages -= left
            return [(run.consumer_id, left, sum(run.sizes))]
        at, taken_messages = start, left
        while at < end:
            if (run := runs.get(at)) is None:
                return None
            at += len(run.sizes) - run.settled
        taken: list[tuple[int, int, int]] = []
        while left:
            run = runs.pop(start)
            first = run.settled
            count = min(left, len(run.sizes) - first)
            run.settled += count
            start, left = start + count, left - count
            taken.append((run.consumer_id, count, sum(run.sizes[first : first + count])))
            if run.settled < len(run.sizes):
                runs[start] = run
        self.messages -= taken_messages
        return taken

    def spill(self) -> dict[int, PendingEntry]:
        """Turn runs into entries; first offset -> entry, of everything that is in flight.

        The dict is the ledger itself and stays valid until the next ``add_run``.
        """
        entries = self._entries
        if self._runs:
            runs, self._runs = self._runs, {}
            for start, run in runs.items():
                sizes = run.sizes[run.settled :]
                # One for all of a size: what is held of a single message says nothing but that.
                held = {size: PendingEntry(run.consumer_id, size) for size in set(sizes)}
                entries.update(enumerate(map(held.__getitem__, sizes), start))
        return entries

    def add(self, offset: int, entry: PendingEntry) -> None:
        """An entry was handed to a consumer."""
        self.spill()[offset] = entry
        self.messages += entry.messages
        if entry.span > 1:
            insort(self._batches, offset)
        if entry.deadline_ms:
            self.arm(offset, entry, entry.deadline_ms)

    def pop(self, offset: int) -> PendingEntry | None:
        """Take an entry out by its first offset."""
        entry = self.spill().pop(offset, None)
        if entry is not None:
            self.messages -= entry.messages
            if entry.span > 1:
                del self._batches[bisect_right(self._batches, offset) - 1]
        return entry

    def first_offset(self, offset: int) -> int | None:
        """The key of the entry that covers ``offset``, if it is in flight."""
        entries = self.spill()
        if offset in entries:
            return offset
        at = bisect_right(self._batches, offset) - 1
        if at < 0:
            return None
        start = self._batches[at]
        return start if offset < start + entries[start].span else None

    def held_by(self, consumer_id: int, offsets: Iterable[int] | None = None) -> list[int]:
        """First offsets of what a consumer has: all, or what covers these offsets."""
        entries = self.spill()
        if offsets is None:
            starts: Iterable[int] = entries
        else:
            found = dict.fromkeys([self.first_offset(offset) for offset in offsets])
            starts = [start for start in found if start is not None]
        return [start for start in starts if entries[start].consumer_id == consumer_id]

    def holds(self, offset: int) -> bool:
        """True when an entry that begins there is in flight; spills nothing."""
        return offset in self._entries or any(
            start <= offset < start + len(run.sizes) - run.settled
            for start, run in self._runs.items()
        )

    def forget_slots(self) -> None:
        """Nobody keeps the order of keys any more; what is in flight belongs to none."""
        entries = self._entries  # what is in a run has no key
        for offset, entry in entries.items():
            if entry.slot:
                entries[offset] = replace(entry, slot=0)

    def shrink(self, entry: PendingEntry, messages: int) -> None:
        """``messages`` of a batch are settled while the rest stays in flight."""
        entry.messages -= messages
        self.messages -= messages

    def arm(self, offset: int, entry: PendingEntry, deadline_ms: int) -> None:
        """Set or move the moment at which an entry goes back by itself; 0 = never."""
        entries = self.spill()
        if entry.deadline_ms != deadline_ms:
            entries[offset] = replace(entry, deadline_ms=deadline_ms)
        if deadline_ms:
            heappush(self.deadlines, (deadline_ms, offset))
            if len(self.deadlines) > 2 * len(entries) + STALE_DEADLINES_MIN:
                self.deadlines = [
                    (entry.deadline_ms, start)
                    for start, entry in entries.items()
                    if entry.deadline_ms
                ]
                heapify(self.deadlines)

    def extend(self, offset: int, deadline_ms: int) -> bool:
        """Move the deadline of the entry that covers ``offset``; False if it is not in flight."""
        start = self.first_offset(offset)
        if start is not None:
            self.arm(start, self._entries[start], deadline_ms)
        return start is not None

    def overdue(self, now_ms: int, count_max: int = UNLIMITED) -> list[int]:
        """First offsets whose deadline has passed; they stay in flight until popped.

        What is more than ``count_max`` is found by the next call.
        """
        found: list[int] = []
        deadlines = self.deadlines
        while deadlines and deadlines[0][0] <= now_ms and len(found) < count_max:
            deadline_ms, offset = heappop(deadlines)
            entry = self._entries.get(offset)
            if entry is not None and entry.deadline_ms == deadline_ms:
                found.append(offset)
        return found

    def next_deadline_ms(self) -> int | None:
        """When ``overdue`` may next find something."""
        deadlines = self.deadlines
        while deadlines:
            deadline_ms, offset = deadlines[0]
            entry = self._entries.get(offset)  # what is in a run has no deadline
            if entry is not None and entry.deadline_ms == deadline_ms:
                return deadline_ms
            heappop(deadlines)
        return None


def _is_run(offsets: Sequence[int]) -> bool:
    """Whether each is the neighbour of the one before; first and last are as far apart as that."""
    return list(offsets) == list(range(offsets[0], offsets[-1] + 1))
