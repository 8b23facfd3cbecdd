"""An AMQP client without a socket: it drives a session in memory and keeps what it hears.

``AmqpBench`` is a workbench with an open house; ``bench.peer()`` connects. ``AmqpPeer`` speaks in
methods: ``call`` sends one and gives its answer, ``send`` and ``publish`` give nothing, ``turn``
lets the engine come to rest. What was not asked for is in ``received``, in order.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kit.workbench import Workbench
from penstock.adapters.amqp.broker import AmqpBroker
from penstock.adapters.amqp.connection import AmqpConnection
from penstock.adapters.amqp.factory import open_broker
from penstock.adapters.amqp.topology.queue import AmqpQueue
from penstock.adapters.contract import Peer
from penstock.engine.broker import Engine
from penstock.engine.ports import FactsReader
from penstock.engine.topic import Topic
from penstock.log.store import Store
from penstock.model.ids import ConnectionId
from penstock.model.names import TopicName
from penstock.server.protocols import dead_letter_formats, fact_readers
from penstock.settings.load import Settings
from penstock.wire.amqp.codes import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, PROTOCOL_HEADER
from penstock.wire.amqp.frames import CONTENT_HEAD, AmqpFrames, Frame, content_frames, method_frame
from penstock.wire.amqp.methods import decode_method
from penstock.wire.amqp.methods.basic import Ack, Cancel, Deliver, Nack, Publish, Return
from penstock.wire.amqp.methods.channel import Close, CloseOk
from penstock.wire.amqp.methods.channel import Open as OpenChannel
from penstock.wire.amqp.methods.connection import (
    Blocked,
    Open,
    Start,
    StartOk,
    Tune,
    TuneOk,
    Unblocked,
)
from penstock.wire.amqp.methods.connection import Close as CloseConnection
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.methods.queue import Declare, DeclareOk
from penstock.wire.amqp.properties import Properties, encode_properties

NO_PROPERTIES: Final = b"\0\0"
UNASKED: Final = (Deliver, Return, Ack, Nack, Cancel, Blocked, Unblocked)
"""Methods that are nobody's answer."""
CAPABILITIES: Final = (
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "publisher_confirms",
)


class Heard(msgspec.Struct):
    """One thing the broker said; ``method`` is None for a heartbeat."""

    channel: int
    method: Method | None
    properties: bytes = b""
    body: bytes = b""


class AmqpBench(Workbench):
    """An engine on a simulated disk with an AMQP house on top."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        seed: int = 0,
        facts: dict[int, FactsReader] | None = None,
    ) -> None:
        """``facts``: readers beside those that every broker has."""
        self.broker: AmqpBroker
        self._peers = 0
        super().__init__(settings, seed=seed, facts=fact_readers() | (facts or {}))

    def _open(self) -> None:
        self.store, recovered = Store.open(
            self.storage, self.catalog, self.settings.storage, self.clock
        )
        self.engine = Engine(
            self.store,
            recovered,
            self.clock,
            self.settings,
            facts=self._facts,
            dead_letter_formats=dead_letter_formats(),
        )
        self.broker = open_broker(self.engine, self.clock, self.settings)

    def peer(self, *, host: str = "127.0.0.1") -> AmqpPeer:
        """A client that has connected and said nothing yet."""
        self._peers += 1
        return AmqpPeer(self, self._peers, host)

    def client(self, **handshake: Any) -> AmqpPeer:
        """A client whose handshake is done, with channel 1 open."""
        peer = self.peer()
        peer.handshake(**handshake)
        peer.open(1)
        return peer


class AmqpPeer:
    """One client."""

    def __init__(self, bench: AmqpBench, number: int, host: str) -> None:
        self.bench: Final = bench
        self.session: Final = AmqpConnection(
            # Far from the ids that a workbench gives to its own connections.
            ConnectionId(1_000_000 + number),
            Peer(host, 40_000 + number, "127.0.0.1", 5672),
            bench.broker,
            self._woken,
        )
        self.received: list[Heard] = []
        self.frame_max = 0
        self.unsent_bytes = 0
        """What ``flushed`` is told: a socket that takes nothing says how much is left."""
        self.wakes = 0
        self._frames = AmqpFrames(frame_max=0, is_greeted=True)
        self._content: Heard | None = None
        self._left_bytes = 0

    # Speaking.

    def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self.session.receive(data)

    def send(self, channel: int, *methods: Method) -> None:
        """Methods in one write, whatever becomes of them."""
        self.raw(b"".join([method_frame(channel, method) for method in methods]))

    def call(self, channel: int, method: Method) -> Method:
        """A method and what is answered on that channel."""
        self.send(channel, method)
        self.turn()
        return self.answer(channel)

    def answer(self, channel: int) -> Method:
        """The first answer on a channel that was not taken yet."""
        return self.answer_with_content(channel)[0]

    def answer_with_content(self, channel: int) -> tuple[Method, bytes, bytes]:
        """The same with properties and body (get-ok)."""
        self.hear()
        for heard in self.received:
            method = heard.method
            if heard.channel == channel and method is not None and type(method) not in UNASKED:
                self.received.remove(heard)
                return method, heard.properties, heard.body
        raise AssertionError(f"nothing was answered on channel {channel}: {self.received}")

    def publish(
        self,
        channel: int,
        exchange: str,
        key: str,
        body: bytes,
        properties: bytes = NO_PROPERTIES,
        *,
        is_mandatory: bool = False,
    ) -> None:
        """One message; the engine has not moved yet."""
        method = Publish(0, exchange, key, is_mandatory)
        self.raw(
            method_frame(channel, method)
            + content_frames(channel, properties, body, self.frame_max)
        )

    # The usual beginning.

    def greet(self) -> Start:
        """Say which protocol it is."""
        self.raw(PROTOCOL_HEADER)
        start = self.answer(0)
        assert isinstance(start, Start)
        return start

    def login(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        capabilities: tuple[str, ...] = CAPABILITIES,
        **properties: Any,
    ) -> Method:
        """start-ok; what comes back is tune, or a close."""
        table = {"capabilities": dict.fromkeys(capabilities, True), **properties}
        response = f"\0{user}\0{password}".encode()
        return self.call(0, StartOk(table, "PLAIN", response, "en_US"))

    def handshake(
        self, vhost: str = "/", *, heartbeat: int | None = None, frame_max: int = 0, **login: Any
    ) -> Method:
        """All of it; what comes back is open-ok, or a close."""
        self.greet()
        tune = self.login(**login)
        if not isinstance(tune, Tune):
            return tune
        self.frame_max = frame_max or tune.frame_max
        beat = tune.heartbeat if heartbeat is None else heartbeat
        self.send(0, TuneOk(tune.channel_max, self.frame_max, beat))
        return self.call(0, Open(vhost))

    def open(self, channel: int) -> Method:
        """A new channel."""
        return self.call(channel, OpenChannel())

    # Listening.

    def turn(self) -> None:
        """Let the engine come to rest and hear what it has to say."""
        for _ in range(10_000):
            self.bench.settle()
            wakes = self.wakes
            is_silent = not self.hear()
            # Whoever asks to be looked at again has more to do.
            if is_silent and wakes == self.wakes and not self.bench.engine.needs_turn:
                return
        raise AssertionError("the engine does not come to rest")

    def hear(self) -> int:
        """Take what the session has to send; how many bytes."""
        data = b"".join(self.session.outgoing())
        self.session.flushed(self.unsent_bytes)
        self._frames.feed(data)
        for frame in self._frames.frames():
            self._understand(frame)
        return len(data)

    def methods(self, channel: int | None = None) -> list[Method]:
        """What was heard and not taken, of one channel or all."""
        self.hear()
        return [
            heard.method
            for heard in self.received
            if heard.method is not None and channel in (None, heard.channel)
        ]

    def take(self) -> list[Heard]:
        """Everything heard and not taken; it is forgotten."""
        self.hear()
        received, self.received = self.received, []
        return received

    def bodies(self) -> list[bytes]:
        """Bodies of the deliveries that were heard."""
        self.hear()
        return [heard.body for heard in self.received if isinstance(heard.method, Deliver)]

    def leave(self) -> None:
        """The socket is gone."""
        self.session.closed("the peer left")

    def _understand(self, frame: Frame) -> None:
        if frame.kind == FRAME_HEADER:
            content = self._content
            assert content is not None, "a content header without a method"
            self._left_bytes = CONTENT_HEAD.unpack_from(frame.payload)[2]
            content.properties = frame.payload[CONTENT_HEAD.size :]
        elif frame.kind == FRAME_BODY:
            content = self._content
            assert content is not None, "a content body without a method"
            self._left_bytes -= len(frame.payload)
            assert self._left_bytes >= 0, "more body than was announced"
            content.body += frame.payload
        elif frame.kind == FRAME_HEARTBEAT:
            self.received.append(Heard(frame.channel, None))
        else:
            assert not self._left_bytes, "a method within a content"
            heard = Heard(frame.channel, decode_method(frame.payload, frame.channel))
            self.received.append(heard)
            self._content = heard

    def _woken(self) -> None:
        self.wakes += 1


# ---- amqp deeds ---------------------------------------------------------------------------------
# What tests of the AMQP adapter do again and again: declare, put, count, be refused.
#
# | answer = declared(peer, "orders", is_durable=True)
# | put(peer, "orders", b"a", b"b")
# | assert ready(peer, "orders") == 2
#
# All of them speak on channel 1, and fail when the broker answers something else than they ask for.
#
# Not here: the client that speaks (``amqp_peer.py``).


PERSISTENT: Final = encode_properties(Properties(delivery_mode=2))
FAR_ABOVE: Final = 1 << 50
"""More memory than there is."""


def declared(peer: AmqpPeer, name: str = "q", **bits: Any) -> DeclareOk:
    """Declare a queue; the answer."""
    answer = peer.call(1, Declare(queue=name, **bits))
    assert isinstance(answer, DeclareOk), answer
    return answer


def durable_topic(peer: AmqpPeer, name: str = "q", **arguments: Any) -> Topic:
    """Declare a durable queue with these arguments; its topic."""
    declared(peer, name, is_durable=True, arguments=arguments)
    topic = peer.bench.engine.topic(TopicName("", name))
    assert topic is not None
    return topic


def put(peer: AmqpPeer, name: str, *bodies: bytes, properties: bytes = PERSISTENT) -> None:
    """Publish to a queue, and let the broker come to rest."""
    for body in bodies:
        peer.publish(1, "", name, body, properties)
    peer.turn()


def ready(peer: AmqpPeer, name: str = "q") -> int:
    """How many messages wait in a queue, as a passive declare tells it."""
    return declared(peer, name, is_passive=True).messages


def refused(peer: AmqpPeer, method: Method) -> tuple[int, str]:
    """Code and text of the close that a method earns; the channel is opened anew."""
    answer = peer.call(1, method)
    assert isinstance(answer, Close), answer
    peer.send(1, CloseOk())
    peer.open(1)
    return answer.reply_code, answer.reply_text


def cut_off(method: Method | None) -> tuple[int, str]:
    """Code and text of what must be the end of a connection."""
    assert isinstance(method, CloseConnection), method
    return method.reply_code, method.reply_text


def queue_of(bench: AmqpBench, name: str = "q") -> AmqpQueue | None:
    """A queue of vhost ``/`` as the broker has it."""
    return bench.broker.vhosts["/"].queues.get(name)


def alarm(bench: AmqpBench, is_raised: bool) -> None:
    """Raise or clear the memory alarm."""
    bench.engine.set_alarm("memory", FAR_ABOVE if is_raised else 0)
    bench.settle()
