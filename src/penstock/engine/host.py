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

from penstock.engine.filter.filters import Filter
from penstock.flow.budgets import UnsentPool
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


class DelayedBudget:
    """How many messages all subscriptions together may skip until their time (D14, law 2).

    A delayed message that a reader passed over is remembered, by its offset, until it is due. Each
    is small, but a thousand subscriptions of one topic would each remember all of them: so the
    bound is the process's, not each queue's.

    Who spends: a cursor that puts a message aside. Who grants: the message's time, or its
    settlement. Who stops: a cursor that has ``OWN_MIN`` aside already reads no further while the
    budget is full; one that has fewer goes on, so that nobody stands still because of others (law
    8). What wakes it: an eighth of the budget being free again.
    """

    __slots__ = ("_low", "_waiting", "_wake", "count", "count_max", "is_full", "own_min")

    def __init__(self, count_max: int, wake: Callable[[HostedSubscription], None]) -> None:
        self.count = 0
        self.count_max = count_max
        self.own_min = min(OWN_MIN, count_max)
        self.is_full = False
        self._low = count_max - max(1, count_max // 8)
        self._wake = wake
        self._waiting: dict[HostedSubscription, None] = {}

    def add(self) -> None:
        self.count += 1
        if self.count >= self.count_max:
            self.is_full = True

    def remove(self, count: int = 1) -> None:
        """So many are not aside any more."""
        self.count -= count
        assert self.count >= 0, "more taken out of the budget than were in it"
        if self.is_full and self.count <= self._low:
            self.is_full = False
            waiting, self._waiting = self._waiting, {}
            for subscription in waiting:
                self._wake(subscription)

    def wait(self, subscription: HostedSubscription) -> None:
        """Wake it when there is room again."""
        self._waiting[subscription] = None

    def forget(self, subscription: HostedSubscription) -> None:
        self._waiting.pop(subscription, None)


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
    filter: Filter | None = None
    """What it does not want is settled unseen."""
    is_priority: bool = False
    """The topic's queues are priorities: the highest non-empty one is served first (D10)."""
