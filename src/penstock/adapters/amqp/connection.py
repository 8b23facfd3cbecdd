"""One AMQP connection: bytes in, events to their channels, frames out; adapter and outlet in one.

The parser turns bytes into events (runs of publishes, runs of acks, commands). ``CommandQueue``
decides when each is done, ``dispatch`` to whom it goes: channel 0, and everything before the
virtual host is open, is the connection's; a number without a channel must hear channel.open;
everything else goes to the channel's publisher, its consumers, or the handler of its method. An
``AmqpError`` that leaves any of them closes the channel or the connection, by its code.

How a connection ends::

    error of the peer   close(code, text, class, method) ... close-ok, end of stream, or time is up
    the peer's close    close-ok ... end of stream, or time is up
    the broker stops    close 320, and the socket is closed behind it

Invariants: what happens on one channel never harms another; after our close only its answer is
heard; everything is given back exactly once, at the first of close, error and loss.
Bounds: channels by ``channel_max``; contents that are not complete by
``engine/content_budget.py``; replies that wait for the disk by ``amqp.answers_held_bytes_max``;
unsent deliveries by F14. Not here: sockets (``server/pump.py``), shared state (``broker.py``), the
table of states (``states.py``), what is checked on the way in (``handshake.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.adapters.amqp.channel import AmqpChannel
from penstock.adapters.amqp.commands import HANDLERS, CommandQueue
from penstock.adapters.amqp.handshake import (
    check_tuning,
    claimed_user,
    login,
    opened_vhost,
    server_properties,
)
from penstock.adapters.amqp.states import (
    CONNECTION_INPUTS,
    OVER,
    ChannelInput,
    ChannelState,
    ConnectionInput,
    ConnectionState,
    next_channel_state,
    next_connection_state,
)
from penstock.adapters.contract import Peer
from penstock.adapters.replies import HandOverCount
from penstock.engine.connection import Channel, ConnectionOptions
from penstock.engine.ports import Confirmation
from penstock.flow.budgets import UnsentLimit
from penstock.flow.reason import Reason
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.ids import ConnectionId
from penstock.model.refusal import Refusal
from penstock.wire.amqp.codes import (
    CLASS_BASIC,
    FRAME_MAX_MIN,
    PROTOCOL_HEADER,
    AmqpError,
    ReplyCode,
    WrongProtocol,
)
from penstock.wire.amqp.frames import (
    HEARTBEAT,
    AckRun,
    Command,
    ContentRefused,
    Event,
    PublishRun,
    SettleRun,
    method_frame,
)
from penstock.wire.amqp.methods.basic import Ack, Publish
from penstock.wire.amqp.methods.channel import Open as ChannelOpen
from penstock.wire.amqp.methods.channel import OpenOk as ChannelOpenOk
from penstock.wire.amqp.methods.connection import (
    Blocked,
    Close,
    CloseOk,
    Open,
    OpenOk,
    Start,
    StartOk,
    Tune,
    TuneOk,
    Unblocked,
    UpdateSecretOk,
)
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.parser import AmqpParser

if TYPE_CHECKING:
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.adapters.amqp.direct_reply import DirectReplyRegistry
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.adapters.amqp.transactions import TxBudget
    from penstock.adapters.amqp.users import User, Users
    from penstock.engine.connection import Connection
    from penstock.engine.content_budget import ContentShare
    from penstock.engine.pull import Pull, PullResult
    from penstock.engine.subscription.consumer import Consumer, Delivery

OWN_NAME_MAX: Final = 64
"""Characters of a client's own name that operators are shown beside its address."""
BLOCKED_WORDS: Final = {Reason.MEMORY: "low on memory", Reason.DISK: "low on disk"}
BLOCKED_CAPABILITY: Final = "connection.blocked"
"""Clients that announced it are told of alarms."""
SILENT_INTERVALS_MAX: Final = 2
CLOSE_OK: Final = method_frame(0, CloseOk())
logger = logging.getLogger(__name__)


class ConnectionHost(Protocol):
    """What a connection uses of ``AmqpBroker``."""

    @property
    def context(self) -> AmqpContext: ...
    @property
    def users(self) -> Users: ...
    @property
    def vhosts(self) -> dict[str, VirtualHost]: ...
    @property
    def transactions(self) -> TxBudget: ...
    @property
    def direct_replies(self) -> DirectReplyRegistry: ...

    def content_share(self, name: str, wake: Callable[[], None]) -> ContentShare:
        """What a new connection keeps of contents that are not complete."""
        ...

    def enter(self, connection: AmqpConnection) -> None:
        """A connection has opened its virtual host."""
        ...

    def leave(self, connection: AmqpConnection) -> bool:
        """It is gone; False when it never entered, or left before."""
        ...


class AmqpConnection:
    """One client: an ``Adapter`` to the pump, an ``Outlet`` to the engine.

    It owns the client's channels and hands them events in the order in which they came; what a
    channel says leaves in the order in which it was said. It knows no socket: bytes come by
    ``receive`` and leave by ``outgoing``.
    """

    handshake_bytes_max = None
    """As for every listener."""

    # More than thirty attributes: without slots each would be a look-up in a table.
    __slots__ = (
        "_awaited_close_ok", "_contents", "_handed_over", "_heartbeat", "_host", "_inflow",
        "_is_half_closed", "_lost_reason", "_notices", "_outbox", "auth_mechanism", "channel_max",
        "channels", "client_capabilities", "client_properties", "clock", "commands", "confirming",
        "connected_ms", "connection_id", "connection_name", "context", "engine_channels",
        "engine_connection", "frame_max", "heartbeat", "is_established", "is_over", "name", "peer",
        "received_bytes", "receives", "sends", "sent_bytes", "state", "unsent", "user", "vhost",
        "waiting", "wake", "wants_close",
    )  # fmt: skip

    def __init__(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        host: ConnectionHost,
        wake: Callable[[], None],
    ) -> None:
        context = host.context
        self.connection_id: Final = connection_id
        self.peer: Final = peer
        self.context: Final = context
        self.clock: Final = context.clock
        self.wake: Final = wake
        self.name: Final = f"{peer} -> {Peer(peer.local_host, peer.local_port, '', 0)}"
        """As RabbitMQ names connections."""
        self.connected_ms: Final = context.clock.wall_ms()
        self._host: Final = host
        self.state = ConnectionState.AWAIT_HEADER
        # Both follow from the state and are kept beside it because every frame asks.
        self.is_established = False
        """True once a virtual host is open, and from then on."""
        self.is_over = False
        """Closed by either side, or lost: nothing is heard or said any more."""
        self.wants_close = False
        self._is_half_closed = False
        """The peer will say no more."""
        self._lost_reason = ""
        """Why we gave it up, when it was us."""
        # Known when the handshake is done, not before.
        self.user: User
        self.vhost: VirtualHost
        self.engine_connection: Connection
        self.auth_mechanism = ""
        self.client_properties: dict[str, Any] = {}
        self.client_capabilities: frozenset[str] = frozenset()
        self.connection_name = ""
        """What the client calls it."""
        self.channel_max = context.settings.channel_max
        self.frame_max = FRAME_MAX_MIN
        self.heartbeat = 0
        """Seconds, as negotiated."""
        # Bytes, and the pieces in which they came and went.
        self.received_bytes = self.sent_bytes = self.receives = self.sends = 0
        self.channels: Final[dict[int, AmqpChannel]] = {}
        self.engine_channels: Final[dict[Channel, AmqpChannel]] = {}
        """Channels of the engine that belong to channels of ours."""
        self.waiting: Final[dict[AmqpChannel, None]] = {}
        """Channels whose replies wait for the disk."""
        self.confirming: dict[AmqpChannel, None] = {}
        """Channels with confirms that are sent at the end of the turn."""
        self.unsent: Final = _unsent_limit(context)
        """What the socket has not taken of the deliveries to all consumers (F14)."""
        self._handed_over: Final = HandOverCount(self.unsent)
        self._outbox: list[bytes] = []
        self._inflow: Final = AmqpParser(message_bytes_max=context.message_bytes_max)
        self.commands: Final = CommandQueue(self, self._inflow)
        self._contents: Final = host.content_share(self.name, wake)
        self._heartbeat = Heartbeat(0, self.now_ms)
        self._notices: Final = BlockedNotices()
        self._awaited_close_ok: AwaitedCloseOk | None = None

    @property
    def now_ms(self) -> int:
        return self.clock.monotonic_ms()

    @property
    def wall_ms(self) -> int:
        return self.clock.wall_ms()

    @property
    def maker(self) -> str:
        """For whom a queue counts that it makes."""
        return self.peer.maker

    @property
    def known_as(self) -> str:
        """How operators meet this connection, with the name it gave itself: ``penstock why``."""
        own = self.connection_name[:OWN_NAME_MAX]
        return f"amqp-{self.connection_id} {self.peer}" + (f" {own}" if own else "")

    # What the pump calls.

    @property
    def is_reading(self) -> bool:
        """As the gate wants it, no command waits, and there is room for late replies."""
        if self.is_over or not self.is_established:
            return True
        if self.commands.is_waiting:
            return False
        # A gate without a reason is open: the rule, and asked seven times in a turn.
        engine_connection = self.engine_connection
        if engine_connection.gate.reasons and not engine_connection.may_read:
            return False
        if self.waiting:
            held = sum([channel.replies.held_bytes for channel in self.waiting])
            if held >= self.context.settings.answers_held_bytes_max:
                return False
        return not self._contents.is_waiting or self._contents.may_read(self.now_ms)

    def receive(self, data: bytes) -> None:
        if self.heartbeat:
            self._heartbeat.heard_ms = self.clock.monotonic_ms()
        self.received_bytes += len(data)
        self.receives += 1
        if self.is_over:
            self._look_for_close_ok(data)
            return
        inflow = self._inflow
        events = inflow.feed(data, self.clock.wall_ms())
        if self.state is ConnectionState.AWAIT_HEADER and inflow.is_greeted:
            self._advance(ConnectionInput.HEADER)
            self._say(Start(server_properties=server_properties(self.context)))
        # Mostly nothing is left of the bytes, and nothing was left before.
        if self.commands.take(events) and (not inflow.is_clear or self._contents.charged_bytes):
            self._keep_rest()

    def outgoing(self) -> list[bytes]:
        """Everything to send; what waited for this turn is done first."""
        if self.commands.is_waiting and self.commands.go_on():
            self._keep_rest()
            self.wants_close = self.wants_close or self._is_half_closed
        if self.confirming:
            confirming, self.confirming = self.confirming, {}
            for channel in confirming:
                channel.publisher.send_confirms()
        outbox, self._outbox = self._outbox, []
        if outbox and self.heartbeat:
            self._heartbeat.sent_ms = self.clock.monotonic_ms()
        if self.unsent.messages:
            self._handed_over.count([each.replies for each in self.waiting] if self.waiting else [])
        return outbox

    def flushed(self, unsent_bytes: int) -> None:
        """The socket took everything: the deliveries in it count no longer (F14)."""
        if unsent_bytes or self.is_over or not self.unsent.messages:
            return
        if self._handed_over.taken():
            for channel in self.channels.values():
                channel.consumers.wake()

    def next_deadline_ms(self) -> int | None:
        """Heartbeats, late contents, or a peer that does not answer our close."""
        if self._awaited_close_ok is not None:
            return self._awaited_close_ok.until_ms
        if not self._contents.is_waiting:
            return self._heartbeat.deadline_ms
        deadlines = (self._heartbeat.deadline_ms, self._contents.deadline_ms)
        return min([at_ms for at_ms in deadlines if at_ms is not None], default=None)

    def due(self, now_ms: int) -> None:
        """Say something, or notice that nobody is there."""
        if self._awaited_close_ok is not None:
            self.wants_close = self.wants_close or now_ms >= self._awaited_close_ok.until_ms
            return
        overdue = self._contents.overdue(now_ms)
        if overdue is not None:
            self.fail(AmqpError(ReplyCode.RESOURCE_ERROR, overdue))
            return
        heartbeat = self._heartbeat
        if not self.is_reading or self._notices.is_blocked:
            heartbeat.heard_ms = now_ms
        if heartbeat.is_dead(now_ms):
            silent_s = SILENT_INTERVALS_MAX * self.heartbeat
            self._lost_reason = f"it was silent for {silent_s} s, two heartbeat intervals"
            self.wants_close = True
        elif heartbeat.wants_beat(now_ms):
            self.send(HEARTBEAT)
            heartbeat.sent_ms = now_ms
        heartbeat.looked()

    def eof(self) -> None:
        """The peer will say no more: nobody listens once all it said is done."""
        self._is_half_closed = True
        self.wants_close = self.wants_close or not self.commands.is_waiting

    def stopping(self, reason: str) -> None:
        if self.is_established:
            self.fail(shutdown())
        self.wants_close = True

    def closed(self, reason: str) -> None:
        """The connection is gone; give everything back."""
        if not self.is_over:
            if self.is_established:
                self._log(logging.INFO, "connection lost", reason=self._lost_reason or reason)
            self._end(ConnectionInput.LOST)
        elif self.state is not ConnectionState.CLOSED:
            self._advance(ConnectionInput.LOST)

    # What the engine calls.

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        ours = self.engine_channels.get(channel)
        if ours is not None:
            ours.publisher.confirmed(confirmations)

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        ours = self.engine_channels.get(channel)
        if ours is not None:
            ours.publisher.refused(refusals)

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """Tell the peer of alarms, if it wants to know; ``is_reading`` does the rest."""
        notice = self._notices.changed(reasons)
        if notice is not None and BLOCKED_CAPABILITY in self.client_capabilities:
            self._say(notice)
        self.wake()

    # Consumers have outlets of their own, and nobody here pulls.

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None: ...

    def cancelled(self, consumer: Consumer, cause: str) -> None: ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None: ...

    def answered(self, pull: Pull, result: PullResult) -> None: ...

    # What its channels and its queue of commands call.

    def send(self, data: bytes) -> None:
        """Frames that are made already."""
        if not self.is_over:
            self._outbox.append(data)
            self.sent_bytes += len(data)
            self.sends += 1
            self.wake()

    def dispatch(self, event: Event) -> bool:
        """One thing that the peer said; False when it was the end of the connection."""
        channel = self.channels.get(event.channel)
        try:
            if channel is None:
                self._without_channel(event)
            elif type(event) is Command:
                _handle(channel, event.method)
            elif not channel.is_open:
                pass
            elif type(event) is PublishRun:
                channel.publisher.publish(event)
            elif type(event) is AckRun:
                channel.consumers.ack(event)
            elif type(event) is SettleRun:
                channel.consumers.settle(event)
            elif type(event) is ContentRefused:
                raise event.error
        except AmqpError as error:
            if channel is None:
                self.fail(error)
            else:
                channel.fail(error.about(event.channel, *_ids(event)))
        except (NotFound, AlreadyExists) as error:
            # Two words for the same thing, a check that was forgotten: ours, and the peer may know.
            logger.exception("a command of %s failed by our mistake", self.name)
            self.fail(AmqpError(ReplyCode.INTERNAL_ERROR, str(error)))
        return not self.is_over

    def forget(self, channel: AmqpChannel) -> None:
        """A channel is gone, its number is free."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]

    def wait_for_deletion(self, queue: AmqpQueue) -> None:
        """What the peer says next is heard when this queue is gone."""
        self.commands.wait_for(queue)

    def note_requeued(self) -> None:
        """Messages went back to a queue with a limit: commands that look wait for what it does."""
        self.commands.has_requeued = True

    def fail(self, error: AmqpError) -> None:
        """Close the connection for this error; from now on only the answer to that is heard."""
        if self.is_over:
            return
        self._log_error(error)
        self.context.note_close(error)
        self._end(ConnectionInput.ERROR, close_frame(error))
        self._await_close_ok()

    # Methods without a channel.

    def _without_channel(self, event: Event) -> None:
        number = event.channel
        is_awaited = self.is_established if number else type(event) is Command
        if not is_awaited:
            text = f"frame on channel {number} before the connection is open"
            raise AmqpError(ReplyCode.UNEXPECTED_FRAME, text)
        try:
            if number:
                self._open_channel(event)
            elif type(event) is Command:
                self._command(event.method)
        except AmqpError as error:
            raise error.about(number, *_ids(event)) from None

    def _open_channel(self, event: Event) -> None:
        """The first method on a free number; anything but channel.open is an error."""
        is_open = type(event) is Command and type(event.method) is ChannelOpen
        next_channel_state(ChannelState.FREE, ChannelInput.OPEN if is_open else None)
        number, limit = event.channel, self.channel_max
        # The limit is on how many there are; a number may be any of the 65,535.
        if len(self.channels) >= limit:
            text = (
                f"number of channels opened ({len(self.channels)}) has reached the negotiated "
                f"channel_max ({limit})"
            )
            raise AmqpError(ReplyCode.NOT_ALLOWED, text)
        channel = AmqpChannel(number, self, self._host.direct_replies, self._host.transactions)
        self.channels[number] = channel
        channel.answer(ChannelOpenOk())

    def _command(self, method: Method) -> None:
        """A method on channel 0: checked against the table first, done, then the state changes."""
        received = CONNECTION_INPUTS.get(type(method))
        # Raises for what is not awaited.
        next_connection_state(self.state, received)
        if isinstance(method, Close):
            said = f"by its client: {method.reply_code} {method.reply_text}".rstrip()
            self._log(logging.INFO, "connection closed", reason=said)
            self._leave()
        elif isinstance(method, StartOk):
            self._log_in(method)
        elif isinstance(method, TuneOk):
            self._tune(method)
        elif isinstance(method, Open):
            self._open_vhost(method)
        else:
            # update-secret: there are no secrets that end; a new one is as good as the old one.
            self._say(UpdateSecretOk())

    def _log_in(self, method: StartOk) -> None:
        self._introduce(method.client_properties)
        try:
            user = login(self._host.users, method, self.peer.host, self.client_capabilities)
        except AmqpError as error:
            if error.code is ReplyCode.ACCESS_REFUSED:
                self._log_refused(method)
            raise
        if user is None:
            self._log_refused(method)
            self.wants_close = True
            return
        self.user = user
        self.auth_mechanism = method.mechanism
        self._advance(ConnectionInput.START_OK)
        settings = self.context.settings
        self._say(Tune(settings.channel_max, settings.frame_max, settings.heartbeat_s))

    def _introduce(self, properties: dict[str, Any]) -> None:
        """What the client says of itself."""
        self.client_properties = properties
        capabilities = properties.get("capabilities")
        if isinstance(capabilities, dict):
            self.client_capabilities = frozenset(
                name for name, is_there in capabilities.items() if is_there is True
            )
        name = properties.get("connection_name")
        if isinstance(name, str):
            # What is not UTF-8 came as surrogates, which nobody can print.
            self.connection_name = name.encode("utf-8", "replace").decode()

    def _tune(self, method: TuneOk) -> None:
        check_tuning(method, self.context.settings)
        self.channel_max, self.frame_max = method.channel_max, method.frame_max
        self.heartbeat = method.heartbeat
        self._inflow.tune(self.frame_max, self.channel_max)
        self._heartbeat = Heartbeat(self.heartbeat, self.now_ms)
        self._advance(ConnectionInput.TUNE_OK)

    def _open_vhost(self, method: Open) -> None:
        """The virtual host is open: the connection exists for the engine, too."""
        host = self._host
        self.vhost = opened_vhost(host.vhosts, host.users, self.user, method.virtual_host)
        options = ConnectionOptions(
            pending_publishes_max=self.context.settings.pending_publishes_max
        )
        self.engine_connection = self.context.engine.connect(
            self.connection_id, self, self.known_as, options
        )
        self._contents.connection = self.engine_connection
        product = self.client_properties.get("product")
        own = self.connection_name or (product if isinstance(product, str) else "")
        self.engine_connection.name_application("amqp", own)
        host.enter(self)
        self._advance(ConnectionInput.OPEN)
        client = self.connection_name[:OWN_NAME_MAX]
        self._log(logging.INFO, "connection opened", vhost=self.vhost.name, client=client)
        self._say(OpenOk())

    def _say(self, method: Method) -> None:
        self.send(method_frame(0, method))

    # What operators read of it.

    def _log(self, level: int, message: str, **fields: object) -> None:
        if self.is_established:
            fields = {"user": self.user.name, **fields}
        self.context.client_log.say(
            level, message, self.peer, connection=self.connection_id, **fields
        )

    def _log_refused(self, method: StartOk) -> None:
        self._log(
            logging.WARNING,
            "log-in refused",
            user=claimed_user(method),
            mechanism=method.mechanism,
            reason="user or password is wrong, or the user may not come from this address",
        )

    def _log_error(self, error: AmqpError) -> None:
        if error.code is ReplyCode.CONNECTION_FORCED:
            self._log(logging.INFO, "connection closed", reason=str(error))
        elif error.code is not ReplyCode.ACCESS_REFUSED or self.is_established:  # told before
            self._log(
                logging.WARNING,
                "connection error",
                channel=error.channel,
                code=int(error.code),
                text=str(error),
            )

    # What is left of the bytes.

    def _keep_rest(self) -> None:
        """All commands are done: what is left of the bytes is not complete, or cannot be read."""
        failure = self._inflow.failure
        if isinstance(failure, WrongProtocol):
            self.send(PROTOCOL_HEADER)
            self.wants_close = True
        elif failure is not None:
            self.fail(failure)
        elif self._inflow.held_bytes or self._contents.charged_bytes:
            self._keep_content()

    def _keep_content(self) -> None:
        """Something is not complete: it is on an open channel, and there is room for it."""
        numbers = self._inflow.content_channels
        if numbers:
            if not self.is_established or not self.channels.keys() >= numbers:
                self.fail(AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'"))
                return
            # A raised alarm concerns it from now on.
            self.engine_connection.note_publisher()
        refused = self._contents.keep(self._inflow.held_bytes, self.now_ms)
        if refused is not None:
            self.fail(AmqpError(ReplyCode.RESOURCE_ERROR, refused))

    # Its end.

    def _advance(self, received: ConnectionInput) -> None:
        """The only place where the state changes."""
        self.state = state = next_connection_state(self.state, received)
        self.is_over = state in OVER
        self.is_established = self.is_established or state is ConnectionState.RUNNING

    def _leave(self) -> None:
        """The peer closes the connection: say so, and listen until it has hung up.

        Whoever closes a socket with unread bytes in it resets it, and close-ok would be lost.
        """
        self._end(ConnectionInput.CLOSE, CLOSE_OK)
        self._await_close_ok()

    def _await_close_ok(self) -> None:
        self._awaited_close_ok = AwaitedCloseOk(self.now_ms + self.context.settings.close_ms_max)

    def _look_for_close_ok(self, data: bytes) -> None:
        """While an answer is awaited everything else is thrown away: it is about what is gone."""
        if self._awaited_close_ok is not None and self._awaited_close_ok.is_heard(data):
            self.wants_close = True
            if self.state is ConnectionState.CLOSING:
                self._advance(ConnectionInput.CLOSE_OK)

    def _end(self, received: ConnectionInput, last_words: bytes = b"") -> None:
        """Nothing is heard or said any more but this; everything goes back to the engine."""
        if last_words:
            self.send(last_words)
        self._advance(received)
        self.commands.clear()
        is_polite = received is ConnectionInput.CLOSE
        channels = list(self.channels.values())
        self.channels.clear()
        # Last in, first out; whatever fails in one of them, the others are not left behind.
        with ExitStack() as stack:
            stack.callback(self._contents.close)
            stack.callback(self.unsent.close)
            stack.callback(self._disconnect)
            for channel in channels:
                stack.callback(channel.connection_over, is_polite=is_polite)
        self.waiting.clear()

    def _disconnect(self) -> None:
        """Consumers are gone: now exclusive queues, then the connection itself."""
        if self._host.leave(self):
            try:
                self.vhost.queues.connection_closed(self.connection_id)
            finally:
                # Its channels were ended in their own ways.
                self.engine_connection.abort()


def _unsent_limit(context: AmqpContext) -> UnsentLimit:
    flow = context.all_settings.flow
    return UnsentLimit(flow.unsent_messages_max, flow.unsent_bytes_max, context.engine.unsent_pool)


def _handle(channel: AmqpChannel, method: Method) -> None:
    if not channel.is_open:
        channel.receive_closing(method)
        return
    handler = HANDLERS.get(type(method))
    if handler is None:
        text = f"unexpected method {type(method).__name__}"
        raise AmqpError(ReplyCode.COMMAND_INVALID, text)
    handler(channel, method)


def _ids(event: Event) -> tuple[int, int]:
    """Class and method that the event came by."""
    if type(event) is Command:
        return event.method.class_id, event.method.method_id
    if type(event) is SettleRun:
        return CLASS_BASIC, event.words[0] & ~1
    return CLASS_BASIC, Ack.method_id if type(event) is AckRun else Publish.method_id


def close_frame(error: AmqpError) -> bytes:
    """connection.close for this error."""
    close = Close(int(error.code), error.reply_text, error.class_id, error.method_id)
    return method_frame(0, close)


def shutdown() -> AmqpError:
    """What peers are told when the broker stops."""
    text = "broker forced connection closure with reason 'shutdown'"
    return AmqpError(ReplyCode.CONNECTION_FORCED, text)


class AwaitedCloseOk:
    """Looks for the peer's close-ok, however its bytes are cut; nothing else is read any more."""

    __slots__ = ("_tail", "until_ms")

    def __init__(self, until_ms: int) -> None:
        self.until_ms: Final = until_ms
        """Then the peer is cut off."""
        self._tail = b""

    def is_heard(self, data: bytes) -> bool:
        """True when close-ok is in these bytes or ends with them."""
        whole = self._tail + data
        self._tail = whole[-(len(CLOSE_OK) - 1) :]
        return CLOSE_OK in whole


class Heartbeat:
    """Both directions of one connection; an interval of 0 turns it off.

    One is sent when nothing was written for half an interval. The peer is dropped when nothing was
    read for two intervals; any byte counts. While we ourselves do not read (or hold its publishes,
    for clients that stop talking then) the silence is ours, and the watch starts anew afterwards.
    """

    __slots__ = ("_interval_ms", "deadline_ms", "heard_ms", "sent_ms")

    def __init__(self, interval_s: int, now_ms: int) -> None:
        self._interval_ms = interval_s * 1000
        self.sent_ms = now_ms
        """When bytes went out last; set by whoever writes."""
        self.heard_ms = now_ms
        """When bytes came in last, or we did not listen; set by whoever reads."""
        self.deadline_ms: int | None = None
        """When to look, never later than one of the two is due; None when heartbeats are off.

        Both only move away, so it is enough to work it out anew when it has come (``looked``).
        """
        self.looked()

    def looked(self) -> None:
        if self._interval_ms:
            self.deadline_ms = min(self.sent_ms + self._interval_ms // 2, self._dead_ms())

    def wants_beat(self, now_ms: int) -> bool:
        """True when it is time to say something."""
        return bool(self._interval_ms) and now_ms >= self.sent_ms + self._interval_ms // 2

    def is_dead(self, now_ms: int) -> bool:
        """True when the peer was silent for too long."""
        return bool(self._interval_ms) and now_ms >= self._dead_ms()

    def _dead_ms(self) -> int:
        return self.heard_ms + SILENT_INTERVALS_MAX * self._interval_ms


class BlockedNotices:
    """connection.blocked and unblocked: what a publisher is told of memory and disk alarms.

    Told once per episode, in RabbitMQ's words; never for flow, holds or rates (F2, F3). The engine
    names resource reasons only for connections that published since the alarm began.
    """

    __slots__ = ("_is_blocked",)

    def __init__(self) -> None:
        self._is_blocked = False

    @property
    def is_blocked(self) -> bool:
        """True while an alarm holds its publishes."""
        return self._is_blocked

    def changed(self, reasons: Iterable[Reason]) -> Method | None:
        """What to say about these reasons, if anything."""
        words = [text for reason, text in BLOCKED_WORDS.items() if reason in set(reasons)]
        if bool(words) == self._is_blocked:
            return None
        self._is_blocked = bool(words)
        return Blocked(" & ".join(words)) if words else Unblocked()
