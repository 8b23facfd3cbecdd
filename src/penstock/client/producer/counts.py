"""What a producer counted, and what its statistics show."""

from dataclasses import dataclass, field

from penstock.client.errors import BrokerBusy, ClientError
from penstock.client.message import SendResult


class SendCounts:
    """Plain counters; the client's thread writes, anybody reads."""

    __slots__ = ("busy", "degraded", "failed", "oneway", "retried", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.degraded = 0
        self.failed = 0
        self.busy = 0
        self.oneway = 0
        self.retried = 0

    def ended(self, outcome: SendResult | ClientError | None) -> None:
        """A send is over."""
        if isinstance(outcome, SendResult):
            self.sent += 1
            if not outcome.is_ok:
                self.degraded += 1
        elif outcome is None:
            self.oneway += 1
        else:
            self.failed += 1
            if isinstance(outcome, BrokerBusy):
                self.busy += 1


@dataclass(frozen=True)
class ProducerStatistics:
    """How a producer does; times are milliseconds ago or from now, not clock readings."""

    group: str
    sent: int
    """Stored, as a broker says; batches count once."""
    degraded: int
    """Of these: not as well as wanted (flush or replica late)."""
    failed: int
    """Ended with an error."""
    busy: int
    """Of these: because a broker was under flow control."""
    oneway: int
    """Handed to the network, whatever became of them."""
    retried: int
    """Tries after the first one."""
    in_flight_messages: int
    in_flight_messages_max: int
    in_flight_bytes: int
    in_flight_bytes_max: int
    waiting: int
    """Sends that wait for a permit now."""
    waiting_ms: int
    """For how long the first of them has."""
    waiting_for: str
    """Which limit holds them: ``messages``, ``bytes`` or nothing."""
    held_episodes: int
    """How often sends began to wait; held and released within a second is one."""
    held_share: float
    """Part of the last ten seconds in which somebody waited."""
    isolated: dict[str, int] = field(default_factory=dict)
    """Brokers that are avoided for being slow, and for how many milliseconds more."""
