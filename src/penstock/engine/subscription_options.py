"""How a subscription behaves, decided when it is made."""

from collections.abc import Callable
from enum import Enum

import msgspec

from penstock.engine.filter_port import Filter
from penstock.model.record import Record


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


class Start(Enum):
    """Where a new subscription begins when no offset is named."""

    EARLIEST = "earliest"
    LATEST = "latest"


def ordering_key(record: Record) -> bytes:
    """The key by which key_shared keeps order, unless the options bring their own reader."""
    return record.key


class SubscriptionOptions(msgspec.Struct, frozen=True):
    """Everything about a subscription that is not its place in the queues."""

    mode: Mode = Mode.SHARED
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
    filter: Filter | None = None
    """What it does not want is settled unseen."""
    is_priority: bool = False
    """The topic's queues are priorities: the highest non-empty one is served first (D10)."""
    ordering_key: Callable[[Record], bytes] = ordering_key
