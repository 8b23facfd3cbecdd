"""One remoting connection of the broker: frames in, requests to their handlers, responses out.

Sends take the short way (``send.py``): all of one read are parsed, checked and published as a list.
Everything else becomes a ``RemotingRequest``: it is run at once, or waits in its class (F5) and is
run or answered "busy" later. A handler answers with ``answer``, now or any time before the
connection goes, or raises ``ErrorResponse``; a oneway request is never answered, whatever happens.

Invariants: a frame that cannot be read ends the connection only when nothing in it can be answered;
requests that the peer has not seen answered are bounded by F5's capacities and F9.
Not here: shared state (``broker.py``), which handler serves which code (``factory.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.broker import ClientResponse, RocketmqBroker
from penstock.adapters.rocketmq.remoting import RemotingConnection
from penstock.adapters.rocketmq.requests import (
    SEND,
    ErrorResponse,
    busy_remark,
    class_of,
    refusal_response,
    unknown_code,
)
from penstock.adapters.rocketmq.send import SendHandler
from penstock.engine.connection import Channel, ConnectionOptions
from penstock.engine.ports import Confirmation
from penstock.flow.fast_fail import Busy
from penstock.flow.reason import Culprit, Reason
from penstock.model.errors import PenstockError
from penstock.model.ids import ConnectionId
from penstock.model.refusal import Refusal
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.frames import decode, encode, parse_send, send_of
from penstock.wire.rocketmq.message_id import encode_host

if TYPE_CHECKING:
    from penstock.engine.pull import Pull, PullResult
    from penstock.engine.subscription.consumer import Consumer, Delivery

logger = logging.getLogger(__name__)

PUSHED_MAX: Final = 1000
"""Requests of ours that wait for the client's response; beyond it the oldest is given up."""

_FAIRNESS_FIELDS: Final = ("topic", "consumerGroup", "group", "originTopic")
"""Requests of a class wait by the first of these: a topic that floods waits behind itself."""

Handler = Callable[["RocketmqConnection", Command], None]
"""Serves one request: answers it now or later, or raises ``ErrorResponse``, ``Malformed`` (code 1)
or a ``PenstockError`` (code 1)."""
PullAnswered = Callable[["Pull", "PullResult"], None]


class RocketmqConnection(RemotingConnection):
    """One client; satisfies ``adapters.contract.Adapter`` and ``engine.ports.Outlet``."""

    def __init__(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        broker: RocketmqBroker,
        handlers: Mapping[int, Handler],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(
            peer,
            broker.clock,
            wake,
            name=f"rocketmq-{connection_id} {peer}",
            settings=broker.settings,
            contents=broker.engine.contents,
            first_requests=broker.first_requests,
            client_log=broker.client_log,
        )
        self.broker: Final = broker
        self.connection_id: Final = connection_id
        self.born_host: Final = encode_host(peer.host, peer.port)
        """The client's address as messages carry it."""
        self.engine_connection: Final = broker.engine.connect(
            connection_id,
            self,
            self.name,
            ConnectionOptions(
                pending_publishes_max=broker.settings.pending_sends_max, is_fast_failing=True
            ),
        )
        self.contents.connection = self.engine_connection
        self.sends: Final = SendHandler(self, self.engine_connection.open_channel())
        """What this connection publishes."""
        self._handlers = handlers
        self._opaque = 0
        self._pushed: dict[int, ClientResponse] = {}
        self._pulls: dict[int, PullAnswered] = {}
        self._closers: list[Callable[[], None]] = []
        broker.connections[connection_id] = self

    # For handlers.

    def fail(self, request: Command, error: ErrorResponse) -> None:
        logger.debug("%s: %s ends with %d", self.name, request, error.code)
        self.answer(request, error.code, remark=error.remark)

    def push(self, command: Command, on_response: ClientResponse | None = None) -> None:
        """Send the client a request; without ``on_response`` it should be a oneway command."""
        self._opaque += 1
        command.opaque = self._opaque
        if on_response is not None:
            if len(self._pushed) >= PUSHED_MAX:
                self._pushed.pop(next(iter(self._pushed)))(None)
            self._pushed[self._opaque] = on_response
        self.write(encode(command))

    def forget(self, command: Command) -> None:
        """Nobody waits for the response to this push any more."""
        self._pushed.pop(command.opaque, None)

    def await_pull(self, token: int, on_answer: PullAnswered) -> None:
        """Call back when the held pull with this token has its answer (``Pull.token``)."""
        self._pulls[token] = on_answer

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back when the connection is gone."""
        self._closers.append(callback)

    # What the pump calls.

    @property
    def is_reading(self) -> bool:
        if not self.engine_connection.may_read:
            return False
        return not self.contents.is_waiting or super().is_reading

    def receive(self, data: bytes) -> None:
        if self.wants_close:
            return
        self._feed(data)
        sends = self.sends
        frames: list[bytes] = []
        try:
            frames = self._frames.frames()
            for frame in frames:
                send = parse_send(frame)
                if send is not None:
                    sends.add(send)
                    if not self.is_established:
                        self._is_known()
                else:
                    sends.flush()
                    self._serve(frame)
        except Malformed as problem:
            self._give_up(problem)
        else:
            # Mostly nothing is left, and nothing was left before.
            if self._frames or self._begun_ms is not None:
                self._keep_rest(is_new=bool(frames))
        sends.flush()

    def closed(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.broker.connections.pop(self.connection_id, None)
        for callback in self._closers:
            callback()
        self._closers.clear()
        pushed, self._pushed = self._pushed, {}
        for on_response in pushed.values():
            on_response(None)
        self._pulls.clear()
        self.sends.clear()
        self._close_contents()
        self.engine_connection.abort()

    # What the engine calls.

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        self.sends.confirmed(confirmations)

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        self.sends.refused(refusals)

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Nobody is pushed to here: whoever attaches a consumer brings an outlet of its own."""

    def cancelled(self, consumer: Consumer, cause: str) -> None: ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None: ...

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """RocketMQ has no notice for it; ``is_reading`` does the rest."""
        self._wake()

    def answered(self, pull: Pull, result: PullResult) -> None:
        """A held pull has its answer."""
        on_answer = self._pulls.pop(pull.token, None)
        if on_answer is not None:
            on_answer(pull, result)

    def _serve(self, frame: bytes) -> None:
        try:
            command = decode(frame)
        except Malformed as problem:
            if problem.opaque is None:
                raise
            # Its opaque could be read, so the peer learns what is wrong and the stream goes on.
            self._answer_unreadable(problem)
            return
        if command.is_response:
            on_response = self._pushed.pop(command.opaque, None)
            if on_response is not None:
                on_response(command)
            return
        if not self.is_established:
            self._is_known()
        handler = self._handlers.get(command.code)
        if handler is None:
            self.fail(command, unknown_code(command.code))
        else:
            RemotingRequest(self, command, handler).submit()


class RemotingRequest:
    """A command between decoding and its handler; satisfies ``engine.request_queue.Request``.

    Whatever a handler does or raises, a request that wants an answer gets at most one here.
    """

    __slots__ = ("_command", "_connection", "_handler")

    def __init__(self, connection: RocketmqConnection, command: Command, handler: Handler) -> None:
        self._connection = connection
        self._command = command
        self._handler = handler

    def submit(self) -> None:
        """Run it now, let it wait, or answer "busy": the waiting room decides."""
        command = self._command
        class_name = class_of(command.code)
        engine = self._connection.broker.engine
        if class_name == SEND and (refusal := engine.refuse_now()) is not None:
            code, remark = refusal_response(refusal, is_arrival=True)
            engine.request_queue.count_refused(class_name, refusal, self.publisher)
            self._connection.answer(command, code, remark=remark)
            return
        ext = command.ext
        key = next((ext[name] for name in _FAIRNESS_FIELDS if name in ext), "")
        engine.request_queue.submit(class_name, key, self)

    def run(self) -> None:
        connection, command = self._connection, self._command
        if connection.is_closed:
            return
        try:
            self._handler(connection, command)
        except ErrorResponse as error:
            connection.fail(command, error)
        except (Malformed, PenstockError) as problem:
            connection.answer(command, ResponseCode.SYSTEM_ERROR, remark=f"{problem}")

    @property
    def publisher(self) -> Culprit:
        stage = self._connection.engine_connection.stage
        return Culprit(stage.name, stage.id)

    def refuse(self, busy: Busy) -> None:
        """It waited too long, or found no place to wait."""
        self._connection.answer(self._command, ResponseCode.SYSTEM_BUSY, remark=busy_remark(busy))


def serve_send(connection: RocketmqConnection, command: Command) -> None:
    """A send in a frame that ``parse_send`` leaves to the general decoder."""
    connection.sends.run(send_of(command))
