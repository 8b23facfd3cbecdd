"""One AMQP connection: bytes in, events to their channels, frames out; adapter and outlet in one.

The inflow turns bytes into events (runs of publishes, runs of acks, commands). Before the virtual
host is open they go to the handshake, then to their channels (``dispatch.py``). An ``AmqpError``
that leaves any of them closes the channel or the connection, by its code.

Invariants: what happens on one channel never harms another; after our close only its answer is
heard; everything is given back exactly once, at the first of close, error and loss.
Bounds: channels by ``channel_max``; contents that are not complete by ``contents.py``; answers that
wait for the disk by ``amqp.answers_held_bytes_max``; unsent deliveries by F14.
Not here: sockets (``server/pump.py``), shared state (``broker.py``).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock import __version__
from penstock.adapters.amqp.channel import AmqpChannel
from penstock.adapters.amqp.commands import Backlog
from penstock.adapters.contract import Peer
from penstock.adapters.replies import HandOverCount
from penstock.engine.connection import Channel, ConnectionOptions
from penstock.engine.ports import Confirmation
from penstock.flow.budgets import UnsentLimit
from penstock.flow.reason import Reason
from penstock.model.ids import ConnectionId
from penstock.model.refusal import Refusal
from penstock.wire.amqp.codes import (
    FRAME_MAX_MIN,
    PROTOCOL_HEADER,
    AmqpError,
    ReplyCode,
    WrongProtocol,
)
from penstock.wire.amqp.frames import HEARTBEAT, method_frame
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
)
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.parser import Inflow
from penstock.wire.amqp.table import decode_entries

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import AmqpBroker
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.adapters.amqp.users import User
    from penstock.engine.connection import Connection
    from penstock.engine.pull import Pull, PullResult
    from penstock.engine.subscription.consumer import Consumer, Delivery


# ---- caller -------------------------------------------------------------------------------------
# Who is at the other end of a connection, and the way to speak to it.
#
# The part of a session that the handshake fills in: login, virtual host, what was negotiated, what
# the client says of itself; its outbox, and what it is told of alarms.
# Not here: what is done with what it says (``session.py``).


OWN_NAME_MAX: Final = 64
"""Characters of a client's own name that operators are shown beside its address."""


class Caller:
    """What every session is."""

    # A session has more than thirty attributes: without slots each would be a look-up in a table.
    __slots__ = (
        "_notices",
        "_outbox",
        "auth_mechanism",
        "broker",
        "channel_max",
        "client_capabilities",
        "client_properties",
        "clock",
        "connected_ms",
        "connection_id",
        "connection_name",
        "context",
        "engine_connection",
        "frame_max",
        "heartbeat",
        "is_over",
        "name",
        "peer",
        "received_bytes",
        "receives",
        "sends",
        "sent_bytes",
        "user",
        "vhost",
        "wake",
    )  # fmt: skip

    def __init__(
        self, connection_id: ConnectionId, peer: Peer, broker: AmqpBroker, wake: Callable[[], None]
    ) -> None:
        self.connection_id: Final = connection_id
        self.peer: Final = peer
        self.broker: Final = broker
        self.context: Final = broker.context
        self.clock: Final = broker.clock
        self.wake: Final = wake
        self.name: Final = f"{peer} -> {Peer(peer.local_host, peer.local_port, '', 0)}"
        """As RabbitMQ names connections."""
        self.connected_ms: Final = broker.clock.wall_ms()
        # Known when the handshake is done, not before.
        self.user: User
        self.vhost: VirtualHost
        self.engine_connection: Connection
        self.auth_mechanism = ""
        self.client_properties: dict[str, Any] = {}
        self.client_capabilities: frozenset[str] = frozenset()
        self.connection_name = ""
        """What the client calls it."""
        self.channel_max = broker.settings.channel_max
        self.frame_max = FRAME_MAX_MIN
        self.heartbeat = 0
        """Seconds, as negotiated."""
        self.is_over = False
        """Closed by either side, or lost: nothing is heard or said any more."""
        self.received_bytes = self.sent_bytes = 0
        self.receives = self.sends = 0
        """Pieces in which they came and went."""
        self._outbox: list[bytes] = []
        self._notices: Final = BlockedNotices()

    @property
    def now_ms(self) -> int:
        return self.clock.monotonic_ms()

    @property
    def user_name(self) -> str:
        return self.user.name

    def may_claim(self, user_id: bytes) -> bool:
        """True when messages of this connection may carry that user-id."""
        return user_id == self.user.name.encode() or self.user.is_impersonator

    def send(self, data: bytes) -> None:
        """Frames that are made already."""
        if not self.is_over:
            self._outbox.append(data)
            self.sent_bytes += len(data)
            self.sends += 1
            self.wake()

    def say(self, method: Method) -> None:
        self.send(method_frame(0, method))

    def introduce(self, properties: dict[str, Any]) -> None:
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

    @property
    def known_as(self) -> str:
        """How operators meet this connection, with the name it gave itself: ``penstock why``."""
        own = self.connection_name[:OWN_NAME_MAX]
        return f"amqp-{self.connection_id} {self.peer}" + (f" {own}" if own else "")

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """Tell the peer of alarms, if it wants to know; ``is_reading`` does the rest."""
        notice = self._notices.changed(reasons)
        if notice is not None and CAPABILITY in self.client_capabilities:
            self.say(notice)
        self.wake()

    # What the engine says and nobody here listens to.

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Consumers have outlets of their own."""

    def cancelled(self, consumer: Consumer, cause: str) -> None: ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None: ...

    def answered(self, pull: Pull, result: PullResult) -> None: ...


# ---- blocked ------------------------------------------------------------------------------------
# connection.blocked and unblocked: what a publisher is told of memory and disk alarms (F2, F3).
#
# Told once per episode, to clients that announced the capability, in RabbitMQ's words; never for
# flow, holds or rates. The engine names resource reasons only for connections that publish.
#
# Not here: whether the socket is read meanwhile (``Connection.may_read``).


WORDS: Final = {Reason.MEMORY: "low on memory", Reason.DISK: "low on disk"}
CAPABILITY: Final = "connection.blocked"


class BlockedNotices:
    """What one peer was told last."""

    __slots__ = ("_is_blocked",)

    def __init__(self) -> None:
        self._is_blocked = False

    @property
    def is_blocked(self) -> bool:
        """True while an alarm holds its publishes."""
        return self._is_blocked

    def changed(self, reasons: Iterable[Reason]) -> Method | None:
        """What to say about these reasons, if anything."""
        words = [text for reason, text in WORDS.items() if reason in set(reasons)]
        if bool(words) == self._is_blocked:
            return None
        self._is_blocked = bool(words)
        return Blocked(" & ".join(words)) if words else Unblocked()


# ---- session ------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)


class AmqpConnection(Caller):
    """One client."""

    __slots__ = (
        "_beat", "_contents", "_farewell", "_handed", "_inflow", "_is_hung_up",
        "channels", "commands", "confirming", "flows", "handshake", "is_established", "unsent",
        "waiting", "wants_close",
    )  # fmt: skip

    def __init__(
        self, connection_id: ConnectionId, peer: Peer, broker: AmqpBroker, wake: Callable[[], None]
    ) -> None:
        super().__init__(connection_id, peer, broker, wake)
        self.channels: Final[dict[int, AmqpChannel]] = {}
        self.flows: Final[dict[Channel, AmqpChannel]] = {}
        """Channels of the engine that belong to channels of ours."""
        self.waiting: Final[dict[AmqpChannel, None]] = {}
        """Channels whose answers wait for the disk."""
        self.confirming: dict[AmqpChannel, None] = {}
        """Channels with confirms that are made of a whole turn."""
        flow = broker.all_settings.flow
        self.unsent: Final = UnsentLimit(
            flow.unsent_messages_max, flow.unsent_bytes_max, broker.engine.unsent_pool
        )
        """What the socket has not taken of the deliveries to all consumers (F14)."""
        self.is_established = False
        """True once a virtual host is open."""
        self.wants_close = False
        self.handshake: Final = Handshake(self)
        self._inflow: Final = Inflow(message_bytes_max=broker.context.message_bytes_max)
        self.commands: Final = Backlog(self, self._inflow)
        self._contents: Final = broker.content_share(self.name, wake)
        self._beat = Heartbeat(0, self.now_ms)
        self._farewell: Farewell | None = None
        self._is_hung_up = False
        self._handed: Final = HandOverCount(self.unsent)

    # For channels, handshake and operators.

    def fail(self, error: AmqpError) -> None:
        """Close the connection for this error; from now on only the answer to that is heard."""
        if self.is_over:
            return
        logger.info("closing %s: %s", self.name, error)
        self.context.note_close(error)
        self._end(close_frame(error))
        self._farewell = Farewell(self.now_ms + self.broker.settings.close_ms_max)

    def leave(self) -> None:
        """The peer closes the connection: say so, and listen until it has hung up.

        Whoever closes a socket with unread bytes in it resets it, and close-ok would be lost.
        """
        self._end(CLOSE_OK)
        self._farewell = Farewell(self.now_ms + self.broker.settings.close_ms_max)

    def forget(self, channel: AmqpChannel) -> None:
        """A channel is gone, its number is free."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]

    def tune(self, channel_max: int, frame_max: int, heartbeat: int) -> None:
        self.channel_max, self.frame_max, self.heartbeat = channel_max, frame_max, heartbeat
        self._inflow.tune(frame_max, channel_max)
        self._beat = Heartbeat(heartbeat, self.now_ms)

    def enter(self, vhost: VirtualHost) -> None:
        """The virtual host is open: the connection exists for the engine, too."""
        self.vhost = vhost
        options = ConnectionOptions(
            pending_publishes_max=self.broker.settings.pending_publishes_max
        )
        self.engine_connection = self.broker.engine.connect(
            self.connection_id, self, self.known_as, options
        )
        self._contents.connection = self.engine_connection
        self.broker.enter(self)
        self.is_established = True

    # What the pump calls.

    @property
    def is_reading(self) -> bool:
        """As the gate wants it, nothing waits to be done, and there is room for late answers."""
        if self.is_over or not self.is_established:
            return True
        if self.commands.is_waiting:
            return False
        # A gate without a reason is open: the rule, and asked seven times in a turn.
        if self.engine_connection.gate.reasons and not self.engine_connection.may_read:
            return False
        if self.waiting:
            held = sum([channel.line.held_bytes for channel in self.waiting])
            if held >= self.broker.settings.answers_held_bytes_max:
                return False
        return not self._contents.is_waiting or self._contents.may_read(self.now_ms)

    def receive(self, data: bytes) -> None:
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
        if self.commands.take(events) and (not inflow.is_clear or self._contents.charged_bytes):
            self._all_done()

    def outgoing(self) -> list[bytes]:
        """Everything to send; what waited for this turn is done first."""
        if self.commands.is_waiting and self.commands.go_on():
            self._all_done()
            self.wants_close = self.wants_close or self._is_hung_up
        if self.confirming:
            confirming, self.confirming = self.confirming, {}
            for channel in confirming:
                channel.publisher.say_confirms()
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
                channel.consumers.wake()

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
        self.wants_close = self.wants_close or not self.commands.is_waiting

    def stopping(self, reason: str) -> None:
        if self.is_established:
            self.fail(shutdown())
        self.wants_close = True

    def closed(self, reason: str) -> None:
        """The connection is gone; give everything back."""
        self._end()

    # What the engine calls; the rest of it is heard by nobody (``caller.py``).

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        ours = self.flows.get(channel)
        if ours is not None:
            ours.publisher.confirmed(confirmations)

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        ours = self.flows.get(channel)
        if ours is not None:
            ours.publisher.refused(refusals)

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
                self.engine_connection.note_publisher()
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
        self.commands.clear()
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
        if self.broker.leave(self):
            try:
                self.vhost.queues.connection_closed(self.connection_id)
            finally:
                self.engine_connection.close()


# ---- handshake ----------------------------------------------------------------------------------
# From the protocol header to an open virtual host (sheet 1.4).
#
# | client: header     start-ok            tune-ok        open
# | server:      start        (login) tune        (check)      (enter)  open-ok
#
# Invariants: nothing of the engine is touched before open-ok; what the client settles for is never
# above what was offered (530). A refused login is told only to clients that announced they
# understand it; others are simply cut off. Not here: how long it may take (``server/pump.py``),
# users (``users.py``).


CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
"""What RabbitMQ 3.13 announces; clients use nothing that is not in here."""
FAILURE_CLOSE: Final = "authentication_failure_close"
CHANNEL_MAX_MIN: Final = 1


class Step(Enum):
    """What is awaited."""

    GREETING = "protocol header"
    STARTING = "start-ok"
    TUNING = "tune-ok"
    OPENING = "open"
    DONE = "nothing"


class Handshake:
    """One connection's way in."""

    def __init__(self, session: AmqpConnection) -> None:
        self._session = session
        self.step = Step.GREETING

    def greet(self) -> None:
        """The header came and is right; only the first time counts."""
        if self.step is Step.GREETING:
            self.step = Step.STARTING
            self._session.say(Start(server_properties=server_properties(self._session.context)))

    def take(self, method: Method) -> None:
        """The next method of the client."""
        if self.step is Step.STARTING and isinstance(method, StartOk):
            self._started(method)
        elif self.step is Step.TUNING and isinstance(method, TuneOk):
            self._tuned(method)
        elif self.step is Step.OPENING and isinstance(method, Open):
            self._opened(method)
        else:
            text = f"unexpected method, awaited is {self.step.value}"
            raise AmqpError(ReplyCode.CHANNEL_ERROR, text)

    def _started(self, method: StartOk) -> None:
        session = self._session
        session.introduce(method.client_properties)
        given = credentials(method.mechanism, method.response)
        user = None if given is None else self._login(given)
        if user is None:
            if FAILURE_CLOSE in session.client_capabilities:
                raise _refused(method.mechanism)
            session.wants_close = True
            return
        session.user = user
        session.auth_mechanism = method.mechanism
        settings = session.broker.settings
        self.step = Step.TUNING
        session.say(Tune(settings.channel_max, settings.frame_max, settings.heartbeat_s))

    def _login(self, given: Credentials) -> Any:
        return self._session.broker.users.login(given.user, given.password, self._session.peer.host)

    def _tuned(self, method: TuneOk) -> None:
        settings = self._session.broker.settings
        check_limit("channel_max", method.channel_max, CHANNEL_MAX_MIN, settings.channel_max)
        check_limit("frame_max", method.frame_max, FRAME_MAX_MIN, settings.frame_max)
        self._session.tune(method.channel_max, method.frame_max, method.heartbeat)
        self.step = Step.OPENING

    def _opened(self, method: Open) -> None:
        session = self._session
        name = method.virtual_host
        vhost: VirtualHost | None = session.broker.vhost(name)
        if vhost is None:
            raise AmqpError(ReplyCode.NOT_ALLOWED, f"vhost {name} not found")
        if not session.broker.users.may_enter(session.user, name):
            text = f"access to vhost '{name}' refused for user '{session.user.name}'"
            raise AmqpError(ReplyCode.NOT_ALLOWED, text)
        self.step = Step.DONE
        session.enter(vhost)
        session.say(OpenOk())


def check_limit(name: str, value: int, low: int, high: int) -> None:
    """Refuse what a client settled for unless it is within the limits; 0 = it wants none."""
    if value and value < low:
        word, kind, limit = "lower", "minimum", low
    elif not value or value > high:
        word, kind, limit = "higher", "maximum", high
    else:
        return
    detail = "" if value else " (no limit)"
    text = f"negotiated {name} = {value}{detail} is {word} than the {kind} allowed value ({limit})"
    raise AmqpError(ReplyCode.NOT_ALLOWED, text)


def server_properties(context: AmqpContext) -> dict[str, Any]:
    """Whom we say we are: the name clients know, and ours beside it."""
    settings = context.settings
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": context.cluster_name,
        "copyright": "The authors of Penstock",
        "information": f"Penstock {__version__}, which speaks as {settings.server_product}",
        "platform": f"Python {sys.version.split()[0]}",
        "product": settings.server_product,
        "version": settings.server_version,
    }


def _refused(mechanism: str) -> AmqpError:
    text = (
        f"Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile."
    )
    return AmqpError(ReplyCode.ACCESS_REFUSED, text)


# ---- login --------------------------------------------------------------------------------------
# What a client says to prove who it is: PLAIN and AMQPLAIN, read and nothing more.
#
# | PLAIN      NUL user NUL password
# | AMQPLAIN   a field table without its length: LOGIN, PASSWORD
#
# Not here: whether it is true (``users.py``).


class Credentials(NamedTuple):
    """A name and a claim to it."""

    user: str
    password: str


def credentials(mechanism: str, response: bytes) -> Credentials | None:
    """What the response says; None when it says nothing, 503 for a mechanism we do not have."""
    if mechanism == "PLAIN":
        parts = response.decode("utf-8", "surrogateescape").split("\0")
        return Credentials(parts[1], parts[2]) if len(parts) == 3 else None
    if mechanism == "AMQPLAIN":
        try:
            table = decode_entries(response, 0, len(response))
        except (AmqpError, IndexError):
            return None
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(user, str) and isinstance(password, str):
            return Credentials(user, password)
        return None
    text = f"unknown authentication mechanism '{mechanism}'"
    raise AmqpError(ReplyCode.COMMAND_INVALID, text)


# ---- heartbeat ----------------------------------------------------------------------------------
# Heartbeats of one connection: when to send one, and when the peer counts as dead.
#
# One is sent when nothing was written for half an interval. The peer is dropped when nothing was
# read for two intervals; any byte counts. While we ourselves do not read (or hold its publishes,
# for clients that stop talking then) the silence is ours, and the watch starts anew afterwards.
#
# Not here: the clock (times come in), the frame (``wire/amqp/frames.py``).


SILENT_INTERVALS_MAX = 2


class Heartbeat:
    """Both directions of one connection; an interval of 0 turns it off."""

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


# ---- closing ------------------------------------------------------------------------------------
# How a connection ends in words: our close, its answer, the texts of operators and shutdown.
#
# | error of the peer   close(code, text, class, method) ... close-ok, end of stream, or time is up
# | the peer's close    close-ok ... end of stream, or time is up
# | the broker stops    close 320, and the socket is closed behind it
#
# While an answer is awaited everything else is thrown away: it could only be about what is gone.
# Not here: when (``session.py``).


CLOSE_OK: Final = method_frame(0, CloseOk())


def close_frame(error: AmqpError) -> bytes:
    """connection.close for this error."""
    close = Close(int(error.code), error.reply_text, error.class_id, error.method_id)
    return method_frame(0, close)


def shutdown() -> AmqpError:
    """What peers are told when the broker stops."""
    text = "broker forced connection closure with reason 'shutdown'"
    return AmqpError(ReplyCode.CONNECTION_FORCED, text)


class Farewell:
    """Waits for the peer's close-ok, however its bytes are cut; nothing else is read any more."""

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
