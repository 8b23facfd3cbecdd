"""What a subscription needs from the engine around it, and how it sees a queue.

The engine implements ``Host`` once, tests implement it with a handful of lines. Everything the
delivery side does to the outside goes through it: reading records, saving settlements, burying dead
letters, asking for a turn.

Not here: how peers are spoken to (``connection.Outlet``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol

import msgspec

from penstock.engine.batch import Batches
from penstock.engine.filter.filters import Filter
from penstock.flow.budgets import UnsentPool
from penstock.flow.rate import DispatchLimit, DispatchRate
from penstock.log.delayed import DelayedSpill, SpillNote
from penstock.model.clock import Clock
from penstock.model.ids import QueueId, SubscriptionId
from penstock.model.record import Record
from penstock.model.settlement import Cause, Settlement
from penstock.settings.broker import TopicSettings
from penstock.settings.flow import FlowSettings

IndexEntry = tuple[int, int, int, int, int, int, int, int]
"""(position, first_offset, cumulative_bytes, store_ms, length, messages, tag_hash, flags), D4."""

OWN_MIN: Final = 16
"""What a lane may put aside in any case; about as large as the lane itself."""

_NEVER_MS: Final = 1 << 62


class EntryIndex(Protocol):
    """The part of ``log.QueueIndex`` that readers use."""

    @property
    def next_offset(self) -> int:
        """The offset the next append will get."""
        ...

    @property
    def min_offset(self) -> int:
        """The oldest offset that is still there."""
        ...

    def entries(self, from_offset: int, count_max: int) -> list[IndexEntry]:
        """At most ``count_max`` entries, the first being the one that holds ``from_offset``."""
        ...

    def plain_run(self, from_offset: int, count_max: int) -> tuple[list[int], list[int]] | None:
        """Positions and lengths of the same entries, if each is one message and has no flag."""
        ...

    def search_time(self, store_ms: int) -> int:
        """The first offset stored at or after that wall time."""
        ...

    def bytes_between(self, start: int, end: int) -> int:
        """Log bytes of the entries in [start, end)."""
        ...


class QueuePolicy(Protocol):
    """The part of a topic's policy that delivery follows; read anew each time, so it may change."""

    @property
    def message_ttl_ms(self) -> int:
        """Time to live counted from the store time; 0 = none."""
        ...

    @property
    def delivery_limit(self) -> int:
        """Comings back before a message is a dead letter; 0 = no limit."""
        ...


class QueueTopic(Protocol):
    """The topic a queue belongs to."""

    @property
    def policy(self) -> QueuePolicy: ...

    @property
    def dispatch_limit(self) -> DispatchLimit | None:
        """What all its subscriptions together may hand out; None = no such rule (F8)."""
        ...


class SubscribedQueue(Protocol):
    """A queue as its subscriptions see it."""

    @property
    def queue_id(self) -> QueueId: ...

    @property
    def name(self) -> str:
        """For people: the topic's name, with the number of the queue when there are several."""
        ...

    @property
    def number(self) -> int:
        """Which of its topic's queues it is, from 0 on."""
        ...

    @property
    def index(self) -> EntryIndex: ...

    @property
    def topic(self) -> QueueTopic: ...

    @property
    def durable_end(self) -> int:
        """The end of what survives a crash."""
        ...

    def visible_end(self, sees_unsynced: bool) -> int:
        """The end of what such a reader may see: everything appended, or only the durable (D7)."""
        ...


class HostedSubscription(Protocol):
    """A subscription as its host sees it: it wants a dispatch, or has settlements to save."""

    @property
    def subscription_id(self) -> SubscriptionId: ...

    @property
    def queue_ids(self) -> Sequence[QueueId]: ...

    def dispatch(self, messages_max: int) -> int: ...

    def take_settlements(self) -> list[Settlement]: ...


class ConsumerHost(Protocol):
    """What a single consumer needs of it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def flow(self) -> FlowSettings: ...

    def wake(self, subscription: HostedSubscription) -> None:
        """Something became available to a consumer of this subscription."""
        ...


class Host(Protocol):
    """The engine, as far as subscriptions are concerned."""

    @property
    def clock(self) -> Clock: ...

    @property
    def flow(self) -> FlowSettings: ...

    @property
    def topics(self) -> TopicSettings:
        """Ceilings of subscriptions."""
        ...

    @property
    def delayed_budget(self) -> DelayedBudget:
        """What all subscriptions together may put aside until its time."""
        ...

    @property
    def unsent_pool(self) -> UnsentPool:
        """What all sockets together may be behind with."""
        ...

    @property
    def transient_floor(self) -> int:
        """Transient records below this log position were dropped by the restart (D6)."""
        ...

    @property
    def batches(self) -> Batches:
        """Where batches are opened for readers that want single messages."""
        ...

    def read(self, wanted: Sequence[tuple[int, int]]) -> list[Record | None]:
        """The records at (position, length); None = gone or corrupt."""
        ...

    def ordering_key(self, record: Record) -> bytes:
        """The key by which key_shared keeps order, as the record's protocol reads it."""
        ...

    def recent(self, positions: list[int]) -> list[Record] | None:
        """The records at these positions if they are at hand and were stored in a row."""
        ...

    def wake(self, subscription: HostedSubscription) -> None:
        """Call ``dispatch`` in this turn or the next; repeated calls are one."""
        ...

    def note_settlement(self, subscription: HostedSubscription) -> None:
        """Call ``take_settlements`` before the next append; repeated calls are one.

        What it gives then goes into the same frame as the dead letters made since (D5).
        """
        ...

    def save_definition(self, subscription: HostedSubscription) -> None:
        """What the catalog says of it has changed: its row goes into the next transaction."""
        ...

    def dead_letter(
        self, queue: SubscribedQueue, offset: int, record: Record, cause: Cause, attempts: int
    ) -> None:
        """A message died: append a copy to the dead-letter target in the next frame, if any."""
        ...

    def carry(self, record: Record, target: SubscribedQueue) -> None:
        """Append a new record in the next frame, beside the settlement of what it replaces."""
        ...


class DelayHolder(Protocol):
    """A cursor's part of what is put aside until its time (``cursor.Redelivery``)."""

    @property
    def owner(self) -> HostedSubscription | None:
        """Who is woken when a moment of its came nearer."""
        ...

    @property
    def is_resting(self) -> bool:
        """Whether any of it rests in the files."""
        ...

    def in_memory(self) -> list[SpillNote]:
        """What it has aside and not in the files."""
        ...

    def rest_from(self, first: SpillNote) -> None:
        """Everything in memory from that one on goes into the files."""
        ...

    def come_back(self, note: SpillNote) -> bool:
        """One goes from the files into memory; False when it is not aside any more."""
        ...


class DelayedBudget:
    """How many messages all subscriptions together may skip until their time (D14, law 2).

    A delayed message that a reader passed over is remembered, by its offset, until it is due. Each
    is small, but a thousand subscriptions of one topic would each remember all of them: so the
    bound is the process's, not each queue's. What is due beyond a horizon, and the later half when
    memory is full, rests in the files of ``DelayedSpill`` and comes back well before its time.

    Who spends: a cursor that puts a message aside. Who grants: the message's time, its settlement,
    or the files. Who stops: when the files have no room either (``is_full``), a cursor that has
    ``OWN_MIN`` aside already reads no further; one that has fewer goes on, so that nobody stands
    still because of others (law 8). What wakes it: an eighth of the budget being free again, or
    room in the files.

    Invariant: every note in the files from ``_horizon`` on may still be wanted, none before it is.
    Notes are in a total order, so that a million due in one millisecond come in parts, too.
    """

    __slots__ = (
        "_holders",
        "_horizon",
        "_horizon_ms",
        "_is_short",
        "_last_number",
        "_low",
        "_now_ms",
        "_spill",
        "_waiting",
        "_wake",
        "count",
        "count_max",
        "is_full",
        "own_min",
        "refill_ms",
    )

    def __init__(
        self,
        count_max: int,
        wake: Callable[[HostedSubscription], None],
        *,
        spill: DelayedSpill | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        horizon_ms: int = 0,
    ) -> None:
        self.count = 0
        """Messages aside in memory."""
        self.count_max = count_max
        self.own_min = min(OWN_MIN, count_max)
        self.is_full = False
        self.refill_ms = _NEVER_MS
        """When the next stretch is to be taken out of the files."""
        self._low = count_max - max(1, count_max // 8)
        self._wake = wake
        self._waiting: dict[HostedSubscription, None] = {}
        self._holders: dict[int, DelayHolder] = {}
        self._last_number = 0
        self._spill = spill
        self._now_ms = now_ms
        self._horizon_ms = horizon_ms
        self._horizon: SpillNote = (0, 0, 0, 0)
        # True while files have more that is due soon than memory has room for.
        self._is_short = False
        if spill is not None:
            spill.on_room = self._room_again

    def enrol(self, holder: DelayHolder) -> int:
        """A cursor that begins to put messages aside; the number is its name in the files."""
        self._last_number += 1
        self._holders[self._last_number] = holder
        return self._last_number

    def dismiss(self, number: int) -> None:
        """Nothing under this number is aside any more."""
        del self._holders[number]
        if self._spill is not None and self._spill.notes:
            self._spill.forget(number)

    def add(self) -> None:
        self.count += 1
        if self.count >= self.count_max and not self.is_full:
            self._send_back()

    def remove(self, count: int = 1) -> None:
        """So many are not aside in memory any more."""
        self.count -= count
        assert self.count >= 0, "more taken out of the budget than were in it"
        has_room = self._spill is None or self._spill.has_room
        if self.is_full and has_room and self.count <= self._low:
            self._free()
        if self._is_short and self.count <= self.count_max // 4:
            self._refill_at(self._now_ms())

    def wait(self, subscription: HostedSubscription) -> None:
        """Wake it when there is room again."""
        self._waiting[subscription] = None

    def forget(self, subscription: HostedSubscription) -> None:
        self._waiting.pop(subscription, None)

    # Beyond memory.

    def rests(self, note: SpillNote) -> bool:
        """Whether it is due so late that it went into the files."""
        spill = self._spill
        if spill is None or note < self._horizon:
            return False
        if not spill.notes:
            now_ms = self._now_ms()
            self._horizon = (now_ms + self._horizon_ms, 0, 0, 0)
            self.refill_ms = now_ms + max(1, self._horizon_ms // 2)
            self._is_short = False
            if note < self._horizon:
                return False
        if not spill.has_room:
            # Kept in memory, where it is in the way of others: no further ones are looked for.
            self.is_full = True
            return False
        spill.add(note)
        return True

    def put_back(self, note: SpillNote) -> None:
        """It was in memory only, and goes into the files."""
        assert self._spill is not None, "files are full of what there is no place for"
        self._spill.add(note)

    def refill(self, now_ms: int) -> None:
        """Take the next stretch out of the files, as far as memory has room."""
        spill = self._spill
        if spill is None or now_ms < self.refill_ms:
            return
        # In parts, each a turn's work: everything may be due in the same millisecond.
        part = max(1, self.count_max // 4)
        if self.count > self.count_max - part:
            self._is_short, self.refill_ms = True, _NEVER_MS
            return
        end_ms = now_ms + self._horizon_ms
        notes, following = spill.take(self._horizon, end_ms, part)
        woken: dict[HostedSubscription, None] = {}
        for note in notes:
            holder = self._holders.get(note[1])
            if holder is not None and holder.come_back(note):
                self.count += 1
                if holder.owner is not None:
                    woken[holder.owner] = None
        for subscription in woken:
            self._wake(subscription)
        if following is None:
            self._horizon = max(self._horizon, (end_ms, 0, 0, 0))
            self.refill_ms = now_ms + max(1, self._horizon_ms // 2)
        else:
            self._horizon = following
            self._refill_at(now_ms)
        # Only what has been given out: a machine may have slept for hours.
        spill.end_hours(min(now_ms, self._horizon[0]))

    def _send_back(self) -> None:
        """Memory is full: the later half rests in the files, if those have room."""
        spill = self._spill
        if spill is None or not spill.has_room:
            self.is_full = True
            return
        aside = sorted(note for holder in self._holders.values() for note in holder.in_memory())
        # What is due by now was noted before, perhaps: an old note must not be read as a new one.
        cut = max(aside[len(aside) // 2], (self._now_ms() + 1, 0, 0, 0))
        before = self.count
        self._horizon = min(self._horizon, cut)
        self._is_short, self.refill_ms = True, _NEVER_MS
        self._rest_from(cut)
        if before - self.count < self.count_max // 8:
            self.is_full = True  # it is all due; sorting it again for each one more helps nobody

    def _rest_from(self, first: SpillNote) -> None:
        for holder in [*self._holders.values()]:
            holder.rest_from(first)

    def _refill_at(self, at_ms: int) -> None:
        """Sooner than those who have something in the files have been told."""
        self._is_short, self.refill_ms = False, at_ms
        for holder in self._holders.values():
            if holder.is_resting and holder.owner is not None:
                self._wake(holder.owner)

    def _room_again(self) -> None:
        """The files have room: what is in memory only for want of it goes there."""
        if self.is_full:
            self._rest_from(self._horizon)
            if self.count < self.count_max:
                self._free()

    def _free(self) -> None:
        self.is_full = False
        waiting, self._waiting = self._waiting, {}
        for subscription in waiting:
            self._wake(subscription)


class Mode(Enum):
    """Who of several consumers gets a message."""

    EXCLUSIVE = "exclusive"
    """One consumer; a second is refused."""
    FAILOVER = "failover"
    """One active consumer, the others wait for it to leave."""
    SINGLE_ACTIVE = "single_active"
    """The same, strictly first come: nobody is displaced by a priority or a name."""
    SHARED = "shared"
    """Everyone in turn, the highest priority first."""
    KEY_SHARED = "key_shared"
    """Everyone, but messages of one key to one consumer at a time."""

    @property
    def honours_delay(self) -> bool:
        """Whether a message's delivery time is waited for: only where order is not promised."""
        return self in (Mode.SHARED, Mode.KEY_SHARED)


class FailoverRule(msgspec.Struct, frozen=True):
    """Who of a queue's failover consumers is active, and how soon.

    As it stands here: the first by name of those with the highest priority, at once.
    """

    takeover_ms: int = 0
    """So long nobody gets anything after the choice has changed; Pulsar's second saves duplicates
    while many consumers come at once."""
    is_by_partition: bool = False
    """Queues are spread: the number of the queue chooses, modulo those of the highest priority."""
    ring_name: str = ""
    """Topics are spread: this name's place on a ring of the consumers' names chooses."""


class Start(Enum):
    """Where a new subscription begins when no offset is named."""

    EARLIEST = "earliest"
    LATEST = "latest"


class SubscriptionOptions(msgspec.Struct, frozen=True):
    """Everything about a subscription that is not its place in the queues."""

    mode: Mode = Mode.SHARED
    """What its queues begin with. Consumers may bring another (``Subscription.attach``); then it is
    what was brought last."""
    is_durable: bool = True
    """False: nothing of it is saved, it ends with the process."""
    holds_data: bool = True
    """Whether its cursor keeps segments from being removed (D11)."""
    sees_unsynced: bool = False
    """True only where peers cannot see offsets (D7)."""
    start: Start | int = Start.EARLIEST
    delivery_limit: int = 0
    """A message that came back more often than this is a dead letter; 0 = no limit, -1 = at the
    first time."""
    unacked_max: int | None = None
    """Messages all its consumers together may have in flight (F13); 0 = no limit, None = as
    ``flow.unacked_subscription_max`` says. A restart forgets it: whoever sets it does so again."""
    dispatch_rate: DispatchRate | None = None
    """How much it hands out in a period (F8), beside its topic's rate; None = no such rule. A
    restart forgets it, too."""
    filter: Filter | None = None
    """What it does not want is settled unseen."""
    whole_batches: bool = False
    """What a producer sent as one is delivered as one (Pulsar's). Else each message of a batch is a
    delivery of its own, with a record made of it (``batch.py``)."""
    is_priority: bool = False
    """The topic's queues are priorities: the highest non-empty one is served first (D10)."""
