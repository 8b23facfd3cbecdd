"""What a subscription needs from the engine around it, and how it sees a queue.

The engine implements ``Host`` once, tests implement it with a handful of lines. Everything the
delivery side does to the outside goes through it: reading records, saving settlements, burying dead
letters, asking for a turn.

Not here: how peers are spoken to (``ports.Outlet``).
"""

from collections.abc import Sequence
from typing import Protocol

from penstock.engine.delayed_room import DelayedRoom
from penstock.flow.budgets import UnsentPool
from penstock.model.clock import Clock
from penstock.model.ids import QueueId, SubscriptionId
from penstock.model.record import Record
from penstock.model.settlement import Cause, Settlement
from penstock.settings.broker import TopicSettings
from penstock.settings.flow import FlowSettings

IndexEntry = tuple[int, int, int, int, int, int, int, int]
"""(position, first_offset, cumulative_bytes, store_ms, length, messages, tag_hash, flags), D4."""


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
    def policy(self) -> QueuePolicy:
        """What holds now."""
        ...


class SubscribedQueue(Protocol):
    """A queue as its subscriptions see it."""

    @property
    def queue_id(self) -> QueueId:
        """Never reused."""
        ...

    @property
    def name(self) -> str:
        """For people: the topic's name, with the number of the queue when there are several."""
        ...

    @property
    def index(self) -> EntryIndex:
        """Where its messages are."""
        ...

    @property
    def topic(self) -> QueueTopic:
        """Whose queue it is."""
        ...

    @property
    def durable_end(self) -> int:
        """The end of what survives a crash."""
        ...

    def visible_end(self, sees_unsynced: bool) -> int:
        """The end of what such a reader may see: everything appended, or only the durable (D7)."""
        ...


class Awaiting(Protocol):
    """A subscription as its host sees it: it wants a dispatch, or has settlements to save."""

    @property
    def subscription_id(self) -> SubscriptionId:
        """Never reused."""
        ...

    def dispatch(self, messages_max: int) -> int:
        """Hand out what is ready."""
        ...

    def take_settlements(self) -> list[Settlement]:
        """What must be saved."""
        ...


class Host(Protocol):
    """The engine, as far as subscriptions are concerned."""

    @property
    def clock(self) -> Clock:
        """Both kinds of time."""
        ...

    @property
    def flow(self) -> FlowSettings:
        """Limits of F13 and F14."""
        ...

    @property
    def topics(self) -> TopicSettings:
        """Ceilings of subscriptions."""
        ...

    @property
    def delayed_room(self) -> DelayedRoom:
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

    def recent(self, positions: list[int]) -> list[Record] | None:
        """The records at these positions if they are at hand and were stored in a row."""
        ...

    def wake(self, subscription: Awaiting) -> None:
        """Call ``dispatch`` in this turn or the next; repeated calls are one."""
        ...

    def note_settlement(self, subscription: Awaiting) -> None:
        """Call ``take_settlements`` before the next append; repeated calls are one.

        What it gives then goes into the same frame as the dead letters made since (D5).
        """
        ...

    def dead_letter(
        self, queue: SubscribedQueue, offset: int, record: Record, cause: Cause, attempts: int
    ) -> None:
        """A message died: append a copy to the dead-letter target in the next frame, if any."""
        ...

    def carry(self, record: Record, target: SubscribedQueue) -> None:
        """Append a new record in the next frame, beside the settlement of what it replaces."""
        ...
