"""A tiny text protocol, so that the broker can be driven, filled and killed without a real client.

One command per line, words separated by one space; names and bodies have no spaces in them::

    > TOPIC name [queues]               < TOPIC name                   once it is durable
    > SUB topic subscription window     < SUB topic subscription       (shared, from the beginning)
    > PUB topic token body              < CONFIRM token queue offset   once it is durable
                                        < REFUSED token kind
                                        < MSG topic subscription queue offset redelivered body
    > ACK topic subscription queue offset [offset ...]
    > BACK topic subscription queue offset [offset ...]                requeue, counted
    > PING text                         < PONG text
                                        < BLOCKED reason,... | UNBLOCKED
                                        < CANCELLED subscription cause
                                        < ERROR text                   then the connection is closed

It satisfies ``adapters.contract.Adapter`` and is the smallest example of one. Its peers see
offsets, so they get only what is durable (D7).

Not here: sockets (``server/pump.py``), a client (``line_client.py``).
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.adapters.contract import Peer
from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.ports import Publication
from penstock.engine.subscription.consumer import Consumer
from penstock.engine.topic import route_to
from penstock.flow.demand import Window
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.ids import ConnectionId, QueueId
from penstock.model.names import topic_name
from penstock.model.record import neutral_record

if TYPE_CHECKING:
    from penstock.engine.broker import Engine
    from penstock.engine.connection import Channel
    from penstock.engine.ports import Confirmation, Route
    from penstock.engine.pull import Pull, PullResult
    from penstock.engine.subscription.consumer import Delivery
    from penstock.engine.subscription.subscription import Subscription
    from penstock.flow.reason import Reason
    from penstock.model.refusal import Refusal

LINE_BYTES_MAX: Final = 1 << 20
"""A line longer than this is an error of the peer, told and closed."""

ROUTES_MAX: Final = 1000
"""Topics one connection may publish to or subscribe."""


class LineError(Exception):
    """The peer said something that is not in the protocol."""


class LineAdapter:
    """One connection."""

    def __init__(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        engine: Engine,
        wake: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._wake = wake
        self._connection = engine.connect(connection_id, self, f"line-{connection_id} {peer}")
        self._channel = self._connection.open_channel()
        self._inbox = b""
        self._outbox: list[bytes] = []
        self._batch: list[Publication] = []
        self._routes: dict[str, Route[object]] = {}
        self._consumers: dict[tuple[str, str], tuple[Subscription, Consumer]] = {}
        self._names: dict[Consumer, str] = {}
        self._unsent: dict[Consumer, tuple[int, int]] = {}
        self._is_closed = False
        self.is_established = True
        self.handshake_bytes_max = None
        self.wants_close = False
        self._verbs: Final[dict[str, Callable[[list[str]], None]]] = {
            "TOPIC": self._topic,
            "SUB": self._subscribe,
            "PUB": self._publish,
            "ACK": self._ack,
            "BACK": self._back,
            "PING": self._ping,
        }

    # What the pump calls.

    @property
    def is_reading(self) -> bool:
        """As the connection's gate wants it."""
        return self._connection.may_read

    def receive(self, data: bytes) -> None:
        """Any cut of lines; publishes of one call travel as one list."""
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        try:
            if len(self._inbox) > LINE_BYTES_MAX:
                raise LineError(f"line longer than {LINE_BYTES_MAX} bytes")
            for line in lines:
                words = line.decode("utf-8", "replace").split(" ")
                verb = self._verbs.get(words[0])
                if verb is None:
                    raise LineError(f"unknown word {words[0][:40]!r}")
                if self._batch and words[0] != "PUB":
                    self._flush_batch()
                verb(words[1:])
        except (LineError, PenstockError, ValueError, IndexError) as problem:
            self._say(f"ERROR {problem}")
            self.wants_close = True
        self._flush_batch()

    def outgoing(self) -> list[bytes]:
        """Everything to send."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def flushed(self, unsent_bytes: int) -> None:
        """The socket took everything: the deliveries in it count no longer (F14)."""
        if unsent_bytes == 0 and self._unsent:
            unsent, self._unsent = self._unsent, {}
            for consumer, (messages, size) in unsent.items():
                consumer.sent(messages, size)

    def next_deadline_ms(self) -> int | None:
        """The protocol has no heartbeats."""
        return None

    def due(self, now_ms: int) -> None:
        """Nothing is ever due."""

    def eof(self) -> None:
        """The peer will say no more, so nobody listens either."""
        self.wants_close = True

    def stopping(self, reason: str) -> None:
        """Say goodbye."""
        self._say(f"ERROR {reason}")
        self.wants_close = True

    def closed(self, reason: str) -> None:
        """Give everything back: what was not acknowledged is requeued."""
        if self._is_closed:
            return
        self._is_closed = True
        for subscription, consumer in self._consumers.values():
            subscription.detach(consumer)
        self._consumers.clear()
        self._connection.abort()

    # What the engine calls.

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        """Durable."""
        self._say(*[f"CONFIRM {c.token} {c.queue_id} {c.offset}" for c in confirmations])

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        """Not stored."""
        self._say(*[f"REFUSED {token} {refusal.kind.value}" for token, refusal in refusals])

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Messages, with their offsets."""
        name = self._names[consumer]
        self._say(*[f"MSG {name} {_message_words(d)}" for d in deliveries])
        messages, size = self._unsent.get(consumer, (0, 0))
        self._unsent[consumer] = (
            messages + sum([d.messages for d in deliveries]),
            size + sum([d.size for d in deliveries]),
        )

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """The subscription is gone."""
        name = self._names.pop(consumer)
        topic, _, subscription = name.partition(" ")
        self._consumers.pop((topic, subscription), None)
        self._unsent.pop(consumer, None)
        self._say(f"CANCELLED {subscription} {cause}")

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Shared subscriptions have no active one."""

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """Tell the peer; ``is_reading`` does the rest."""
        names = ",".join(sorted(reason.value for reason in reasons))
        self._say("UNBLOCKED" if is_open else f"BLOCKED {names}")

    def answered(self, pull: Pull, result: PullResult) -> None:
        """Nobody pulls here."""

    # The words.

    def _topic(self, words: list[str]) -> None:
        name = topic_name(words[0])
        queues = int(words[1]) if len(words) > 1 else 1
        if self._engine.topic(name) is None:
            self._engine.create_topic(name, queues=queues)
        self._engine.after_durable(lambda: self._say(f"TOPIC {words[0]}"))

    def _subscribe(self, words: list[str]) -> None:
        topic, name, window = words
        found = self._engine.topic(topic_name(topic))
        if found is None:
            raise LineError(f"no topic {topic}")
        if len(self._consumers) >= ROUTES_MAX or (topic, name) in self._consumers:
            raise LineError(f"subscription {name} again, or too many")
        subscription = found.subscriptions.get(name)
        if subscription is None:
            options = SubscriptionOptions(mode=Mode.SHARED)
            subscription = self._engine.create_subscription(found.name, name, options)
        attached = subscription.attach(
            self, Window(int(window)), name=f"{self._connection.name} {name}"
        )
        if not isinstance(attached, Consumer):
            raise LineError(f"subscription {name} refuses: {attached}")
        self._consumers[topic, name] = (subscription, attached)
        self._names[attached] = f"{topic} {name}"
        self._engine.after_durable(lambda: self._say(f"SUB {topic} {name}"))

    def _publish(self, words: list[str]) -> None:
        topic, token, body = words
        route = self._routes.get(topic)
        if route is None:
            found = self._engine.topic(topic_name(topic))
            if found is None or len(self._routes) >= ROUTES_MAX:
                raise LineError(f"no topic {topic}, or too many")
            route = self._routes[topic] = route_to(found)
            self._connection.note_publisher()
        self._batch.append(
            Publication(
                record=neutral_record(body.encode()), queues=(), route=route, token=int(token)
            )
        )

    def _ack(self, words: list[str]) -> None:
        subscription, _ = self._consumer(words)
        subscription.settle(QueueId(int(words[2])), [int(offset) for offset in words[3:]])

    def _back(self, words: list[str]) -> None:
        subscription, _ = self._consumer(words)
        subscription.requeue(QueueId(int(words[2])), [int(offset) for offset in words[3:]])

    def _ping(self, words: list[str]) -> None:
        self._say("PONG " + " ".join(words))

    def _consumer(self, words: list[str]) -> tuple[Subscription, Consumer]:
        found = self._consumers.get((words[0], words[1]))
        if found is None:
            raise LineError(f"no subscription {words[1]} of {words[0]} on this connection")
        return found

    def _flush_batch(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._channel.publish(batch)

    def _say(self, *lines: str) -> None:
        if lines and not self._is_closed:
            self._outbox.append(("\n".join(lines) + "\n").encode())
            self._wake()


def _message_words(delivery: Delivery) -> str:
    body = delivery.record.body.decode("utf-8", "replace")
    return f"{delivery.queue_id} {delivery.offset} {int(delivery.is_redelivered)} {body}"


class LineFactory:
    """Makes the adapters of the ``line`` listener."""

    protocol = "line"

    def make(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
    ) -> LineAdapter:
        """An adapter for a new connection."""
        return LineAdapter(connection_id, peer, engine, wake)


# ---- line client --------------------------------------------------------------------------------
# The client side of the line protocol: a plain socket that speaks and hears whole lines.
#
# It never blocks unless asked to (``ask``, ``wait_for``), so one test thread can drive many of
# them. A connection that broke is an ordinary end: ``is_over`` turns True and what was heard stays.


READ_BYTES: Final = 65536
WAIT_SECONDS_MAX: Final = 20.0
"""A broker that says nothing for this long is broken; tests fail with a sentence, not a hang."""


class LineClient:
    """One connection to a line broker."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=WAIT_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._inbox = b""
        self._outbox = bytearray()
        self._heard: list[list[str]] = []
        self.is_over = False

    def fileno(self) -> int:
        """For ``select``."""
        return self._socket.fileno()

    def say(self, *lines: str) -> None:
        """Queue lines and send as much as the socket takes now."""
        for line in lines:
            self._outbox += line.encode() + b"\n"
        self.flush()

    @property
    def unsent_bytes(self) -> int:
        """Said, and not taken by the socket yet."""
        return len(self._outbox)

    def flush(self) -> None:
        """Send as much as the socket takes now."""
        while self._outbox and not self.is_over:
            try:
                sent = self._socket.send(self._outbox)
            except BlockingIOError:
                return
            except OSError:
                self.is_over = True
                return
            del self._outbox[:sent]

    def hear(self) -> list[list[str]]:
        """Lines that arrived, split into words; never waits."""
        chunks = [self._inbox]
        while not self.is_over:
            try:
                chunk = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                self.is_over = True
                break
            if not chunk:
                self.is_over = True
            chunks.append(chunk)
        *lines, self._inbox = b"".join(chunks).split(b"\n")
        heard, self._heard = self._heard, []
        return heard + [line.decode().split(" ") for line in lines]

    def wait_for(self, *words: str, seconds_max: float = WAIT_SECONDS_MAX) -> list[str]:
        """The first line that begins with ``words``; the others are heard again later."""
        until = time.monotonic() + seconds_max
        others: list[list[str]] = []
        while True:
            heard = self.hear()
            for at, line in enumerate(heard):
                if tuple(line[: len(words)]) == words:
                    self._heard = others + heard[at + 1 :]
                    return line
                if line[0] == "ERROR":
                    raise ConnectionError(f"broker said {' '.join(line)} instead of {words}")
                others.append(line)
            left = until - time.monotonic()
            if self.is_over or left <= 0:
                why = "connection lost" if self.is_over else f"silence for {seconds_max} s"
                raise ConnectionError(f"{why} while waiting for {' '.join(words)}")
            self.flush()
            select.select([self._socket], [self._socket] if self._outbox else [], [], left)

    def ask(self, line: str, *answer: str) -> list[str]:
        """Say a line and wait for its answer."""
        self.say(line)
        return self.wait_for(*answer)

    def close(self) -> None:
        """Hang up."""
        self.is_over = True
        with contextlib.suppress(OSError):
            self._socket.close()
