"""One remoting connection of the broker: frames in, requests to their families, answers out.

Sends take the short way (``send.py``): all of one read are parsed, checked and published as a list.
Everything else becomes a ``Request``: it is run at once, or waits in its class (F5) and is run or
answered "busy" later. A handler answers with ``answer``, now or any time before the connection
goes, or raises ``Answer``; a oneway request is never answered, whatever happens.

State of a family that belongs to one connection: ``session.part(Kind)`` makes ``Kind(session)`` on
first use; ``on_close`` tells it of the end.

Invariants: a frame that cannot be read ends the connection only when nothing in it can be answered;
requests that the peer has not seen answered are bounded by F5's capacities and F9.
Not here: shared state (``broker.py``), code -> handler (``families.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.broker import RocketmqBroker
from penstock.adapters.rocketmq.line import Line, unreadable
from penstock.adapters.rocketmq.requests import Handler, Request
from penstock.adapters.rocketmq.send import SendHandler
from penstock.engine.connection import Channel, ConnectionOptions
from penstock.engine.ports import Confirmation
from penstock.flow.reason import Reason
from penstock.model.ids import ConnectionId
from penstock.model.refusal import Refusal
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.frames import decode, encode, parse_send
from penstock.wire.rocketmq.message_id import encode_host

if TYPE_CHECKING:
    from penstock.engine.pull import Pull, PullResult
    from penstock.engine.subscription.consumer import Consumer, Delivery

logger = logging.getLogger(__name__)

ASKED_MAX: Final = 1000
"""Requests of ours that wait for the peer's answer; beyond it the oldest is given up."""

Answered = Callable[[Command | None], None]
"""Gets the peer's answer, or None when there will be none."""
PullAnswered = Callable[["Pull", "PullResult"], None]
PartT = TypeVar("PartT")


class RocketmqConnection(Line):
    """One client."""

    def __init__(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        broker: RocketmqBroker,
        handlers: Mapping[int, Handler],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(peer, broker, wake)
        self.connection_id: Final = connection_id
        self.name: Final = f"rocketmq-{connection_id} {peer}"
        self.born_host: Final = encode_host(peer.host, peer.port)
        """The client's address as messages carry it."""
        self.connection: Final = broker.engine.connect(
            connection_id,
            self,
            self.name,
            ConnectionOptions(
                pending_publishes_max=broker.settings.pending_sends_max, is_fast_failing=True
            ),
        )
        self.channel: Final = self.connection.open_channel()
        self._handlers = handlers
        self._sends = SendHandler(self)
        self._opaque = 0
        self._asked: dict[int, Answered] = {}
        self._pulls: dict[int, PullAnswered] = {}
        self._closers: list[Callable[[], None]] = []
        self._parts: dict[object, Any] = {}
        broker.sessions[connection_id] = self

    # For the families.

    def push(self, command: Command, answered: Answered | None = None) -> None:
        """Ask the client for something; without ``answered`` it should be a oneway command."""
        self._opaque += 1
        command.opaque = self._opaque
        if answered is not None:
            if len(self._asked) >= ASKED_MAX:
                self._asked.pop(next(iter(self._asked)))(None)
            self._asked[self._opaque] = answered
        self.write(encode(command))

    def forget(self, command: Command) -> None:
        """Nobody waits for the answer to this push any more."""
        self._asked.pop(command.opaque, None)

    @property
    def sends(self) -> SendHandler:
        """What this connection publishes: ``session.sends.store([Storing(...)])``."""
        return self._sends

    def await_pull(self, token: int, answered: PullAnswered) -> None:
        """Call back when the held pull with this token has its answer (``Pull.token``)."""
        self._pulls[token] = answered

    def part(self, kind: Callable[[RocketmqConnection], PartT]) -> PartT:
        """The one object of this class for this connection: ``kind(session)``."""
        found: PartT | None = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = kind(self)
        return found

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back when the connection is gone."""
        self._closers.append(callback)

    # What the pump calls.

    @property
    def is_reading(self) -> bool:
        """As the connection's gate wants it."""
        return self.connection.may_read

    def receive(self, data: bytes) -> None:
        self.heard_ms = self.broker.clock.monotonic_ms()
        self._frames.feed(data)
        sends = self._sends
        try:
            for frame in self._frames.frames():
                send = parse_send(frame)
                if send is not None:
                    sends.add(send)
                else:
                    sends.flush()
                    self._take(frame)
        except Malformed as problem:
            logger.warning("closing %s: %s", self.name, problem)
            self._give_up(problem)
        sends.flush()

    def closed(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.broker.sessions.pop(self.connection_id, None)
        for callback in self._closers:
            callback()
        self._closers.clear()
        asked, self._asked = self._asked, {}
        for answered in asked.values():
            answered(None)
        self._pulls.clear()
        self._sends.clear()
        self.connection.close()

    # What the engine calls.

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        self._sends.confirmed(confirmations)

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        self._sends.refused(refusals)

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Nobody is pushed to here: whoever attaches a consumer brings an outlet of its own."""

    def cancelled(self, consumer: Consumer, cause: str) -> None: ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None: ...

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """RocketMQ has no notice for it; ``is_reading`` does the rest."""
        self._wake()

    def answered(self, pull: Pull, result: PullResult) -> None:
        """A held pull has its answer."""
        callback = self._pulls.pop(pull.token, None)
        if callback is not None:
            callback(pull, result)

    # Requests.

    def _take(self, frame: bytes) -> None:
        try:
            command = decode(frame)
        except Malformed as problem:
            if problem.opaque is None:
                raise
            # Its opaque could be read, so the peer learns what is wrong and the stream goes on.
            self.write(encode(unreadable(problem)))
            return
        if command.is_response:
            answered = self._asked.pop(command.opaque, None)
            if answered is not None:
                answered(command)
            return
        Request(self, command, self._handlers.get(command.code)).submit()
