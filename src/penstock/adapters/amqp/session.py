"""One AMQP connection: bytes in, events to their channels, frames out; adapter and outlet in one.

The inflow turns bytes into events (runs of publishes, runs of acks, commands). Before the virtual
host is open they go to the handshake, then to their channels (``dispatch.py``). An ``AmqpError``
that leaves any of them closes the channel or the connection, by its code.

Invariants: what happens on one channel never harms another; after our close only its answer is
heard; everything is given back exactly once, at the first of close, error and loss.
Bounds: channels by ``channel_max``; contents that are not complete by ``contents.py``; answers that
wait for the disk by ``amqp.answers_held_bytes_max``; unsent deliveries by F14.
Not here: sockets (``server/pump.py``), shared state (``house.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.caller import Caller
from penstock.adapters.amqp.channel import ChannelState
from penstock.adapters.amqp.closing import CLOSE_OK, Farewell, close_frame, shutdown
from penstock.adapters.amqp.handed_over import HandedOver
from penstock.adapters.amqp.handshake import Handshake
from penstock.adapters.amqp.heartbeat import Heartbeat
from penstock.adapters.amqp.ordering import Backlog
from penstock.adapters.contract import Peer
from penstock.engine.connection import Channel, ConnectionOptions
from penstock.engine.ports import Confirmation
from penstock.flow.budgets import UnsentLimit
from penstock.model.ids import ConnectionId
from penstock.model.refusal import Refusal
from penstock.wire.amqp.codes import (
    PROTOCOL_HEADER,
    AmqpError,
    ReplyCode,
    WrongProtocol,
)
from penstock.wire.amqp.frames import HEARTBEAT
from penstock.wire.amqp.parser import Inflow

if TYPE_CHECKING:
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.vhost import VirtualHost

logger = logging.getLogger(__name__)


class Session(Caller):
    """One client."""

    __slots__ = (
        "_beat", "_contents", "_farewell", "_handed", "_inflow", "_is_hung_up", "backlog",
        "channels", "confirming", "flows", "handshake", "is_established", "unsent", "waiting",
        "wants_close",
    )  # fmt: skip

    def __init__(
        self, connection_id: ConnectionId, peer: Peer, house: House, wake: Callable[[], None]
    ) -> None:
        super().__init__(connection_id, peer, house, wake)
        self.channels: Final[dict[int, ChannelState]] = {}
        self.flows: Final[dict[Channel, ChannelState]] = {}
        """Channels of the engine that belong to channels of ours."""
        self.waiting: Final[dict[ChannelState, None]] = {}
        """Channels whose answers wait for the disk."""
        self.confirming: dict[ChannelState, None] = {}
        """Channels with confirms that are made of a whole turn."""
        flow = house.all_settings.flow
        self.unsent: Final = UnsentLimit(
            flow.unsent_messages_max, flow.unsent_bytes_max, house.engine.unsent_pool
        )
        """What the socket has not taken of the deliveries to all consumers (F14)."""
        self.is_established = False
        """True once a virtual host is open."""
        self.wants_close = False
        self.handshake: Final = Handshake(self)
        self._inflow: Final = Inflow(message_bytes_max=house.message_bytes_max)
        self.backlog: Final = Backlog(self, self._inflow)
        self._contents: Final = house.content_share(self.name, wake)
        self._beat = Heartbeat(0, self.now_ms)
        self._farewell: Farewell | None = None
        self._is_hung_up = False
        self._handed: Final = HandedOver(self.unsent)

    # For channels, handshake and operators.

    def fail(self, error: AmqpError) -> None:
        """Close the connection for this error; from now on only the answer to that is heard."""
        if self.is_over:
            return
        logger.info("closing %s: %s", self.name, error)
        self.house.note_close(error)
        self._end(close_frame(error))
        self._farewell = Farewell(self.now_ms + self.house.settings.close_ms_max)

    def leave(self) -> None:
        """The peer closes the connection: say so, and listen until it has hung up.

        Whoever closes a socket with unread bytes in it resets it, and close-ok would be lost.
        """
        self._end(CLOSE_OK)
        self._farewell = Farewell(self.now_ms + self.house.settings.close_ms_max)

    def forget(self, channel: ChannelState) -> None:
        """A channel is gone, its number is free."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]

    def tune(self, channel_max: int, frame_max: int, heartbeat: int) -> None:
        """What was negotiated."""
        self.channel_max, self.frame_max, self.heartbeat = channel_max, frame_max, heartbeat
        self._inflow.tune(frame_max, channel_max)
        self._beat = Heartbeat(heartbeat, self.now_ms)

    def enter(self, vhost: VirtualHost) -> None:
        """The virtual host is open: the connection exists for the engine, too."""
        self.vhost = vhost
        options = ConnectionOptions(pending_publishes_max=self.house.settings.pending_publishes_max)
        self.connection = self.house.engine.connect(
            self.connection_id, self, self.known_as, options
        )
        self._contents.connection = self.connection
        self.house.enter(self)
        self.is_established = True

    # What the pump calls.

    @property
    def is_reading(self) -> bool:
        """As the gate wants it, nothing waits to be done, and there is room for late answers."""
        if self.is_over or not self.is_established:
            return True
        if self.backlog.is_waiting:
            return False
        # A gate without a reason is open: the rule, and asked seven times in a turn.
        if self.connection.gate.reasons and not self.connection.may_read:
            return False
        if self.waiting:
            held = sum([channel.line.held_bytes for channel in self.waiting])
            if held >= self.house.settings.answers_held_bytes_max:
                return False
        return not self._contents.is_waiting or self._contents.may_read(self.now_ms)

    def receive(self, data: bytes) -> None:
        """Any cut of frames."""
        if self.heartbeat:
            self._beat.heard_ms = self.clock.monotonic_ms()
        self.received_bytes += len(data)
        self.receives += 1
        if self.is_over:
            if self._farewell is not None and self._farewell.is_heard(data):
                self.wants_close = True
            return
        inflow = self._inflow
        events = inflow.feed(data, self.clock.wall_ms())
        if not self.is_established and inflow.is_greeted:
            self.handshake.greet()
        # Mostly nothing is left of the bytes, and nothing was left before.
        if self.backlog.take(events) and (not inflow.is_clear or self._contents.charged_bytes):
            self._all_done()

    def outgoing(self) -> list[bytes]:
        """Everything to send; what waited for this turn is done first."""
        if self.backlog.is_waiting and self.backlog.go_on():
            self._all_done()
            self.wants_close = self.wants_close or self._is_hung_up
        if self.confirming:
            confirming, self.confirming = self.confirming, {}
            for channel in confirming:
                channel.publishing.say_confirms()
        outbox, self._outbox = self._outbox, []
        if outbox and self.heartbeat:
            self._beat.sent_ms = self.clock.monotonic_ms()
        if self.unsent.messages:
            self._handed.count([channel.line for channel in self.waiting] if self.waiting else [])
        return outbox

    def flushed(self, unsent_bytes: int) -> None:
        """The socket took everything: the deliveries in it count no longer (F14)."""
        if unsent_bytes or self.is_over or not self.unsent.messages:
            return
        if self._handed.taken():
            for channel in self.channels.values():
                channel.consuming.wake()

    def next_deadline_ms(self) -> int | None:
        """Heartbeats, late contents, or a peer that does not answer our close."""
        if self._farewell is not None:
            return self._farewell.until_ms
        if not self._contents.is_waiting:
            return self._beat.deadline_ms
        deadlines = (self._beat.deadline_ms, self._contents.deadline_ms)
        return min([at_ms for at_ms in deadlines if at_ms is not None], default=None)

    def due(self, now_ms: int) -> None:
        """Say something, or notice that nobody is there."""
        if self._farewell is not None:
            self.wants_close = self.wants_close or now_ms >= self._farewell.until_ms
            return
        try:
            self._contents.check(now_ms)
        except AmqpError as error:
            self.fail(error)
            return
        if not self.is_reading or self._notices.is_blocked:
            self._beat.heard_ms = now_ms
        if self._beat.is_dead(now_ms):
            logger.info("missed heartbeats of %s, interval %d s", self.name, self.heartbeat)
            self.wants_close = True
        elif self._beat.wants_beat(now_ms):
            self.send(HEARTBEAT)
            self._beat.sent_ms = now_ms
        self._beat.looked()

    def eof(self) -> None:
        """The peer will say no more: nobody listens once all it said is done."""
        self._is_hung_up = True
        self.wants_close = self.wants_close or not self.backlog.is_waiting

    def stopping(self, reason: str) -> None:
        """The broker goes down."""
        if self.is_established:
            self.fail(shutdown())
        self.wants_close = True

    def closed(self, reason: str) -> None:
        """The connection is gone; give everything back."""
        self._end()

    # What the engine calls; the rest of it is heard by nobody (``caller.py``).

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        """Durable."""
        ours = self.flows.get(channel)
        if ours is not None:
            ours.publishing.confirmed(confirmations)

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        """Not stored."""
        ours = self.flows.get(channel)
        if ours is not None:
            ours.publishing.refused(refusals)

    # Parts.

    def _all_done(self) -> None:
        """What is left of the bytes is not complete, or cannot be read."""
        if self._inflow.failure is not None:
            self._unreadable(self._inflow.failure)
        elif self._inflow.held_bytes or self._contents.charged_bytes:
            self._keep()

    def _keep(self) -> None:
        """Something is not complete: it is on an open channel, and there is room for it."""
        try:
            numbers = self._inflow.content_channels
            if numbers:
                if not self.is_established or not self.channels.keys() >= numbers:
                    raise AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
                # Alarms concern it from now on.
                self.connection.note_publisher()
            self._contents.keeps(self._inflow.held_bytes, self.now_ms)
        except AmqpError as error:
            self.fail(error)

    def _unreadable(self, error: AmqpError) -> None:
        if isinstance(error, WrongProtocol):
            self.send(PROTOCOL_HEADER)
            self.wants_close = True
        else:
            self.fail(error)

    def _end(self, last_words: bytes = b"") -> None:
        """Nothing is heard or said any more but this; everything goes back to the engine."""
        if self.is_over:
            return
        if last_words:
            self.send(last_words)
        self.is_over = True
        self.backlog.clear()
        channels = list(self.channels.values())
        self.channels.clear()
        # Last in, first out; whatever fails in one of them, the others are not left behind.
        with ExitStack() as stack:
            stack.callback(self._contents.close)
            stack.callback(self.unsent.close)
            stack.callback(self._disconnect)
            for channel in channels:
                stack.callback(channel.vanish)
        self.waiting.clear()

    def _disconnect(self) -> None:
        """Consumers are gone: now exclusive queues, then the connection itself."""
        if self.house.leave(self):
            try:
                self.vhost.queues.connection_closed(self.connection_id)
            finally:
                self.connection.close()
