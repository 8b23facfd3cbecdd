"""One Pulsar connection: the handshake, frames in and out, life signs, and which room serves what.

All producers and consumers of a client share it. So nothing that holds a producer stops the socket
(``ConnectionOptions.holds_channels``): acks and permits that may free it come the same way. Only
bytes beyond the connection's share do, and then the client is sent a PONG every ten seconds: it
takes silence of a minute for death.

One read may bring thousands of commands, or acks of very many messages. Beyond ``COMMANDS_AT_ONCE``
they wait for the next turn, so that others are served between them (law 5); the socket is not read
meanwhile. Bound: what one read brought. Seen as ``undone`` of the connection's stage.

Life signs are Pulsar's: a PING every 30 s whatever the traffic; whoever said nothing at all between
two of them is cut off, and so is whoever has not connected by the first. Bytes that are no frame,
commands that are not known or not for a broker, and anything but PING and PONG before CONNECT end
the connection without a word.

Not here: what commands do (``ports.CommandGroup``, and those who are one).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.adapters.contract import Peer
from penstock.adapters.pulsar.broker import PulsarBroker
from penstock.adapters.pulsar.errors import CloseConnection, PulsarError
from penstock.adapters.pulsar.ports import CommandGroup, Handler, PublishOutlet, RunHandler
from penstock.adapters.replies import HandOverCount
from penstock.engine.connection import Channel, ConnectionOptions
from penstock.engine.content_budget import ContentShare
from penstock.engine.ports import Confirmation
from penstock.flow.budgets import UnsentLimit
from penstock.flow.reason import Reason
from penstock.flow.views import COMMANDS, UndoneView
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.ids import ConnectionId
from penstock.model.refusal import Refusal
from penstock.wire.pulsar.frames import (
    NO_ID,
    AckRun,
    Frame,
    FrameError,
    FrameParser,
    ProtocolVersion,
    Run,
    SendRun,
    ServerError,
    encode,
)
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, CommandConnect
from penstock.wire.pulsar.runs import RunReader

if TYPE_CHECKING:
    from penstock.engine.connection import Connection
    from penstock.engine.pull import Pull, PullResult
    from penstock.engine.subscription.consumer import Consumer, Delivery

logger = logging.getLogger(__name__)

PING_MS: Final = 30_000
PONG_MS: Final = 10_000
"""How often a client is told that we live while its socket is not read."""
COMMANDS_AT_ONCE: Final = 400
"""Commands of one connection that are served in one turn. SENDs cost nothing here: they are the
engine's to spread."""
ACKS_PER_COMMAND: Final = 10
"""Messages that are acked for the price of a command."""
ACKS_AT_ONCE: Final = 2_000
"""Of a run that is longer the rest waits."""
PROBE_MS: Final = 5_000
"""A client that is asked whether it is there has so long to say anything."""

_PING: Final = encode(BaseCommand(type=BaseCommand.PING, ping={}))
_PONG: Final = encode(BaseCommand(type=BaseCommand.PONG, pong={}))

MakeGroup = Callable[["PulsarConnection", PulsarBroker], CommandGroup]


class PulsarConnection:
    """One client: an ``Adapter``, an ``Outlet`` of the engine, a ``ports.ClientConnection``."""

    handshake_bytes_max = None
    """As for every listener."""

    def __init__(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        broker: PulsarBroker,
        groups: Sequence[MakeGroup],
        wake: Callable[[], None],
    ) -> None:
        settings = broker.settings
        self.connection_id: Final = connection_id
        self.peer: Final = peer
        self.broker: Final = broker
        self.name = f"pulsar-{connection_id} {peer}"
        self.client_version = ""
        self.protocol_version = 0
        self.is_established = False
        """True once CONNECTED was said."""
        self.is_over = False
        self.wants_close = False
        self.engine_connection: Connection
        """From CONNECTED on."""
        self.channels: Final[dict[Channel, PublishOutlet]] = {}
        flow = broker.all_settings.flow
        self.unsent: Final = UnsentLimit(
            flow.unsent_messages_max, flow.unsent_bytes_max, broker.engine.unsent_pool
        )
        self._handed_over: Final = HandOverCount(self.unsent)
        self._parser: Final = FrameParser(
            max_message_size=settings.max_message_size, runs=RunReader
        )
        self._contents: Final = ContentShare(
            self.name,
            broker.engine.contents,
            bytes_max=self._parser.frame_bytes_max,
            ms_max=settings.frame_ms_max,
            wake=wake,
        )
        self._wake: Final = wake
        self._outbox: list[bytes] = []
        now_ms = broker.clock.monotonic_ms()
        self._ping_ms = now_ms + PING_MS
        self._pong_ms = now_ms + PONG_MS
        self._was_heard = False
        """Since the last PING."""
        self._probes: list[Callable[[bool], None]] = []
        self._probe_ms = 0
        self._has_gathered = False
        """SENDs or ACKs came that wait for ``flush``."""
        self._undone: Iterator[_Said] | None = None
        """What the peer said that waits for a turn."""
        self._undone_ms = 0
        self._is_half_closed = False
        self._groups: Final = [make(self, broker) for make in groups]
        self._handlers: Final = self._own_handlers()
        self._run_handlers: Final[dict[type, RunHandler]] = {}
        for group in self._groups:
            self._handlers.update(group.handlers())
            self._run_handlers.update(group.run_handlers())

    def __repr__(self) -> str:
        return f"<PulsarConnection {self.name}>"

    def _own_handlers(self) -> dict[int, Handler]:
        return {
            BaseCommand.CONNECT: self._connect,
            BaseCommand.PING: self._answer_ping,
            BaseCommand.PONG: _ignore,
            BaseCommand.AUTH_RESPONSE: self._unasked_auth,
            BaseCommand.TC_CLIENT_CONNECT_REQUEST: _refuse_transactions,
        }

    # For the rooms of its commands.

    def send(self, command: BaseCommand) -> None:
        self.write(encode(command))

    def write(self, data: bytes) -> None:
        if not self.is_over:
            self._outbox.append(data)
            self._wake()

    def succeed(self, request_id: int) -> None:
        self.send(BaseCommand(type=BaseCommand.SUCCESS, success={"request_id": request_id}))

    def fail(self, request_id: int, error: PulsarError) -> None:
        logger.debug("%s: %s %s", self.name, error.code.name, error.text)
        reply = BaseCommand(type=BaseCommand.ERROR)
        reply.error.request_id = request_id
        reply.error.error = error.wire_code
        reply.error.message = error.text
        self.send(reply)

    def hang_up(self, reason: str) -> None:
        if not self.wants_close:
            self.broker.client_log.say(
                logging.INFO, "connection closed", self.peer, connection=self.name, reason=reason
            )
        self.wants_close = True
        self._wake()

    def probe(self, answered: Callable[[bool], None]) -> None:
        if self.is_over:
            answered(False)
            return
        if not self._probes:
            self._probe_ms = self.broker.clock.monotonic_ms() + PROBE_MS
            self.write(_PING)
        # Bounded: who waits for an answer is a consumer or producer of its own connection.
        self._probes.append(answered)

    # What the pump calls.

    @property
    def is_working(self) -> bool:
        """True while something that the peer said waits for its turn."""
        return self._undone is not None

    @property
    def is_reading(self) -> bool:
        if self.wants_close:
            return True
        if self._undone is not None:
            return False
        if not self.is_established:
            return True
        if not self.engine_connection.may_read:
            return False
        contents = self._contents
        return not contents.is_waiting or contents.may_read(self.broker.clock.monotonic_ms())

    def receive(self, data: bytes) -> None:
        if self.wants_close or self.is_over:
            return
        self._was_heard = True
        said: list[_Said]
        try:
            said = [*self._parser.feed(data)]
        except FrameError as error:
            said = [*error.frames, str(error)]
        if self._undone is None:
            self._work(iter(said))
        else:
            self._undone = chain(self._undone, said)
        if self.is_established and (self._parser.held_bytes or self._contents.charged_bytes):
            refused = self._contents.keep(self._parser.held_bytes, self.broker.clock.monotonic_ms())
            if refused is not None:
                self.hang_up(refused)
        # After all that was said: it may be that the place somebody asks for is free now. Whoever
        # hung up is told of when it is gone.
        if self._probes and not self.wants_close:
            self._tell_probes(True)

    def outgoing(self) -> list[bytes]:
        """Everything to send; what waited for this turn is done first."""
        if self._undone is not None and not self.is_over:
            self._work(self._undone)
        outbox, self._outbox = self._outbox, []
        if self.unsent.messages:
            self._handed_over.count(())
        return outbox

    def flushed(self, unsent_bytes: int) -> None:
        """The socket took everything: the deliveries in it count no longer (F14)."""
        if unsent_bytes or self.is_over or not self.unsent.messages:
            return
        if self._handed_over.taken():
            for group in self._groups:
                group.socket_drained()

    def next_deadline_ms(self) -> int | None:
        deadline_ms = self._ping_ms
        if self._probes:
            deadline_ms = min(deadline_ms, self._probe_ms)
        if not self.is_reading:
            deadline_ms = min(deadline_ms, self._pong_ms)
        room_ms = self._contents.deadline_ms
        return deadline_ms if room_ms is None else min(deadline_ms, room_ms)

    def due(self, now_ms: int) -> None:
        overdue = self._contents.overdue(now_ms)
        if overdue is not None:
            self.hang_up(overdue)
            return
        if not self.is_reading:
            # The silence is ours.
            self._was_heard = True
            if self._probes:
                self._tell_probes(True)
            if now_ms >= self._pong_ms:
                self.write(_PONG)
        if now_ms >= self._pong_ms:
            self._pong_ms = now_ms + PONG_MS
        if self._probes and now_ms >= self._probe_ms:
            self.hang_up(
                f"it did not answer a PING in {PROBE_MS // 1000} s, and its place is wanted"
            )
            self.closed("it did not answer")
            return
        if now_ms >= self._ping_ms:
            if not (self._was_heard and self.is_established):
                what = "nothing" if self.is_established else "no CONNECT"
                self.hang_up(f"{what} came for {PING_MS // 1000} s")
                return
            self._was_heard = False
            self._ping_ms = now_ms + PING_MS
            self.write(_PING)

    def eof(self) -> None:
        """The peer will say no more: all it said is done first."""
        self._is_half_closed = True
        self.wants_close = self.wants_close or self._undone is None

    def stopping(self, reason: str) -> None:
        """Clients are told that their producers and consumers are closed, and come again."""
        for group in self._groups:
            group.goodbye(reason)
        self.wants_close = True

    def closed(self, reason: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.wants_close = True
        self._undone = None
        self._tell_probes(False)
        self.broker.connections.pop(self.connection_id, None)
        try:
            for group in self._groups:
                group.closed()
        finally:
            self.channels.clear()
            # Now, not when the collector finds what refers to it.
            self._parser.close()
            self._outbox.clear()
            self._contents.close()
            self.unsent.close()
            if self.is_established:
                self.engine_connection.abort()

    # What the engine calls.

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        outlet = self.channels.get(channel)
        if outlet is not None:
            outlet.confirmed(confirmations)

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        outlet = self.channels.get(channel)
        if outlet is not None:
            outlet.refused(refusals)

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """Pulsar has no notice for it; ``is_reading`` and late receipts do the rest."""
        self._pong_ms = self.broker.clock.monotonic_ms() + PONG_MS
        self._wake()

    # Consumers have outlets of their own, and nobody here pulls.

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None: ...

    def cancelled(self, consumer: Consumer, cause: str) -> None: ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None: ...

    def answered(self, pull: Pull, result: PullResult) -> None: ...

    # Commands.

    def _work(self, said: Iterator[_Said]) -> None:
        """What the peer said, as much as a turn may have of it; the rest waits for the next."""
        left = COMMANDS_AT_ONCE
        while left > 0 and not self.wants_close:
            each = next(said, None)
            if isinstance(each, tuple):
                left -= each[0].type != BaseCommand.SEND
                steps = self._serve(*each)
                if steps is not None:
                    said = chain(steps, said)
            elif isinstance(each, AckRun):
                entries = each.entries
                if len(entries) > ACKS_AT_ONCE:
                    rest = AckRun(each.consumer_id, each.ledger_id, entries[ACKS_AT_ONCE:])
                    each.entries = entries[:ACKS_AT_ONCE]
                    said = chain((rest,), said)
                left -= len(each.entries) // ACKS_PER_COMMAND
                self._serve_run(each)
            elif isinstance(each, SendRun):
                self._serve_run(each)
            elif isinstance(each, int):
                left -= each
            elif each is None:
                break
            else:
                self.hang_up(each)
        self._flush()
        self._undone = None if left > 0 or self.wants_close else said
        self._show_undone()

    def _show_undone(self) -> None:
        if self._undone is not None:
            self._wake()
            if self.is_established and self.engine_connection.undone is None:
                self._undone_ms = self.broker.clock.monotonic_ms()
                self.engine_connection.undone = self
            return
        if self.is_established and self.engine_connection.undone is not None:
            self.engine_connection.undone = None
        self.wants_close = self.wants_close or self._is_half_closed

    def view(self) -> UndoneView:
        """What waits, for operators; how much it is nobody has counted."""
        return UndoneView(COMMANDS, 1, self._undone_ms)

    def _serve(self, command: BaseCommand, tail: bytes) -> Iterator[int] | None:
        kind = command.type
        if kind in _GATHERED:
            self._has_gathered = True
        elif self._has_gathered:
            self._flush()
        handler = self._handlers.get(kind)
        if handler is None or not (self.is_established or kind in _BEFORE_CONNECT):
            self.hang_up(f"{_name(kind)} is not a command that a client may send now")
            return None
        try:
            return handler(command, tail)
        except PulsarError as error:
            self.fail(_request_id(command), error)
        except CloseConnection as error:
            self.hang_up(str(error))
        except NotFound as error:
            self.fail(_request_id(command), PulsarError(ServerError.MetadataError, str(error)))
        except AlreadyExists as error:
            # A limit of topics, queues or subscriptions, which says which one it is.
            self.fail(_request_id(command), PulsarError(ServerError.NotAllowedError, str(error)))
        return None

    def _serve_run(self, run: Run) -> None:
        if not self.is_established:
            self.hang_up("a command came before CONNECT")
            return
        self._has_gathered = True
        try:
            self._run_handlers[type(run)](run)
        except CloseConnection as error:
            self.hang_up(str(error))

    def _flush(self) -> None:
        if self._has_gathered:
            self._has_gathered = False
            for group in self._groups:
                group.flush()

    def _connect(self, command: BaseCommand, tail: bytes) -> None:
        if self.is_established:
            raise CloseConnection("a second CONNECT")
        connect: CommandConnect = command.connect
        broker = self.broker
        self.client_version = connect.client_version
        self.protocol_version = min(ProtocolVersion.NEWEST, connect.protocol_version)
        own = self.client_version[:64]
        self.engine_connection = broker.engine.connect(
            self.connection_id,
            self,
            f"{self.name} {own}" if own.isprintable() else self.name,
            ConnectionOptions(
                pending_publishes_max=broker.settings.max_pending_publish_requests,
                alarm_hold_ms_max=broker.all_settings.flow.hold_ms_max,
                holds_channels=True,
                stops_at_refusal=True,
            ),
        )
        self._contents.connection = self.engine_connection
        self.engine_connection.name_application("pulsar", own)
        self.is_established = True
        broker.connections[self.connection_id] = self
        broker.client_log.say(
            logging.INFO, "connection opened", self.peer, connection=self.name, client=own
        )
        reply = BaseCommand(type=BaseCommand.CONNECTED)
        connected = reply.connected
        connected.server_version = f"Penstock {__version__}"
        connected.protocol_version = self.protocol_version
        connected.max_message_size = broker.settings.max_message_size
        connected.feature_flags.supports_topic_watchers = True
        connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
        self.send(reply)

    def _answer_ping(self, command: BaseCommand, tail: bytes) -> None:
        self.write(_PONG)
        waits = command.ping.waits
        if waits and self.is_established:
            for group in self._groups:
                group.client_waits(waits)

    def _unasked_auth(self, command: BaseCommand, tail: bytes) -> None:
        self.fail(NO_ID, PulsarError(ServerError.AuthenticationError, "Failed to authenticate"))
        raise CloseConnection("AUTH_RESPONSE without a challenge")

    def _tell_probes(self, is_alive: bool) -> None:
        probes, self._probes = self._probes, []
        for answered in probes:
            answered(is_alive)


_Said = Frame | Run | int | str
"""A number is what a step of a command cost that goes in pieces; a text is why nothing came after
the frames before it."""
_GATHERED: Final = frozenset((BaseCommand.SEND, BaseCommand.ACK))
"""What comes in large numbers: groups hand over at once what came at once."""
_BEFORE_CONNECT: Final = frozenset((BaseCommand.CONNECT, BaseCommand.PING, BaseCommand.PONG))


def _ignore(command: BaseCommand, tail: bytes) -> None: ...


def _refuse_transactions(_command: BaseCommand, _tail: bytes) -> None:
    raise PulsarError(ServerError.NotAllowedError, "Transactions are not enabled.")


def _name(kind: int) -> str:
    return str(BaseCommand.Type.Name(kind)) if kind in BaseCommand.Type.values() else f"{kind}"


def _request_id(command: BaseCommand) -> int:
    """Of whichever command it is; -1 for one that has none."""
    for _, value in command.ListFields():
        found = getattr(value, "request_id", None)
        if found is not None:
            return int(found)
    return NO_ID
