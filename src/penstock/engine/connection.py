"""A connection and its channels: where publishes enter, and where pressure ends (F1, F2, F9, D23).

The connection is the chain's first stage: it spends credit towards each of its channels, and its
gate says why it is held. Two kinds of reason differ in what the adapter does with the socket:

* FLOW, PENDING and RATE pass by themselves (the disk answers, time goes by): reading stops at once.
* MEMORY, DISK, QUOTA and HELD may need this very connection's acks to pass: it is read on, and
  what it publishes is kept, until its byte share is full (then FLOW). ``may_read`` says which.

Invariants: every byte taken from the pool is given back exactly once, when its publish is durable,
refused or dropped, also after the peer is gone; a reason is opened once per episode (law 7).
Not here: what happens to a publish (``publish.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.engine.ports import Outlet, Publication
from penstock.flow.gate import Gate
from penstock.flow.stage import Stage
from penstock.model.position import ChannelId, ConnectionId


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How a protocol wants to be held; None = as in the settings."""

    pending_publishes_max: int | None = None
    """F9; 0 = no limit."""
    hold_ms_max: int | None = None
    """D23."""
    alarm_hold_ms_max: int | None = None
    """D23; 0 = no end."""
    is_fast_failing: bool = False
    """What would be held by an alarm, rate, quota or full queue is refused at once instead."""


class Channel:
    """One ordered stream of publishes."""

    channel_id: ChannelId
    connection: Connection
    stage: Stage

    def publish(self, publications: list[Publication]) -> None:
        """Take publishes in; they are routed in the next turns, confirmed or refused later."""
        raise NotImplementedError

    def close(self) -> None:
        """No more publishes; what came before goes on, unconfirmed, unless it is held."""
        raise NotImplementedError


class Connection:
    """One peer."""

    connection_id: ConnectionId
    name: str
    outlet: Outlet
    stage: Stage
    gate: Gate
    may_read: bool

    def open_channel(self, name: str = "") -> Channel:
        """A new channel."""
        raise NotImplementedError

    def note_publisher(self) -> None:
        """It publishes (a publish began to arrive): alarms concern it from now on."""
        raise NotImplementedError

    def close(self) -> None:
        """The peer is gone."""
        raise NotImplementedError
