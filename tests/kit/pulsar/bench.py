"""A Pulsar client without a socket: it drives a connection in memory and keeps what it hears.

``PulsarBench`` is a workbench with a Pulsar broker on it; ``bench.client()`` connects. A client
speaks in commands: ``say`` sends one, ``call`` sends one and gives the first thing that comes back,
``heard`` is everything that came since it was last asked. ``advance`` of the bench also drives the
deadlines of the adapter's timers and of every connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from google.protobuf.message import Message

from kit.pulsar_payload import PUBLISH_MS
from kit.workbench import Workbench
from penstock.adapters.contract import Peer
from penstock.adapters.pulsar.broker import PulsarBroker
from penstock.adapters.pulsar.connection import PulsarConnection
from penstock.adapters.pulsar.factory import COMMAND_GROUPS
from penstock.engine.broker import Engine
from penstock.engine.ports import FactsReader
from penstock.log.store import Store
from penstock.model.ids import ConnectionId
from penstock.server.protocols import dead_letter_formats, fact_readers
from penstock.settings.load import Settings
from penstock.wire.pulsar.frames import Frame, FrameParser, ServerError, encode, payload_frame
from penstock.wire.pulsar.frames import crc32c as checksum
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    MessageMetadata,
    SingleMessageMetadata,
)

STEP_MS: Final = 100
"""How finely ``advance`` looks at the deadlines of connections."""
_SIZE: Final = Struct(">I")


class PulsarBench(Workbench):
    """An engine on a simulated disk with a Pulsar broker on top."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        seed: int = 0,
        facts: dict[int, FactsReader] | None = None,
    ) -> None:
        self.broker: PulsarBroker
        self.clients: list[PulsarClient] = []
        self._count = 0
        super().__init__(settings, seed=seed, facts=fact_readers() | (facts or {}))

    def _open(self) -> None:
        self.clients = []
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
        self.broker = PulsarBroker(self.engine, self.clock, self.settings)

    def stranger(self, *, host: str = "127.0.0.1") -> PulsarClient:
        """A client that has connected and said nothing yet."""
        self._count += 1
        client = PulsarClient(self, self._count, host)
        self.clients.append(client)
        return client

    def client(self, version: str = "Pulsar-Test", protocol_version: int = 20) -> PulsarClient:
        """A client that is connected, in Pulsar's sense."""
        client = self.stranger()
        answer = client.call("CONNECT", client_version=version, protocol_version=protocol_version)
        assert answer.type == BaseCommand.CONNECTED
        return client

    def pass_time(self, ms: int) -> None:
        """Like ``advance``, with the deadlines of the broker's timers and of all connections."""
        end_ms = self.clock.monotonic_ms() + ms
        while True:
            self.settle()
            now_ms = self.clock.monotonic_ms()
            timers = self.broker.timers
            due_ms = timers.next_deadline_ms()
            if due_ms is not None and due_ms <= now_ms:
                timers.due(now_ms)
            for client in self.clients:
                client.look(now_ms)
            self.settle()
            if now_ms >= end_ms:
                return
            self.advance(min(STEP_MS, end_ms - now_ms))


class PulsarClient:
    """One client."""

    def __init__(self, bench: PulsarBench, number: int, host: str) -> None:
        self.bench: Final = bench
        self.connection: Final = PulsarConnection(
            # Far from the ids that a workbench gives to its own connections.
            ConnectionId(1_000_000 + number),
            Peer(host, 40_000 + number, "127.0.0.1", 6650),
            bench.broker,
            COMMAND_GROUPS,
            lambda: None,
        )
        self.unsent_bytes = 0
        """What ``flushed`` is told: a socket that takes nothing says how much is left."""
        self._frames = FrameParser()
        self._heard: list[Frame] = []
        self._ids = itertools.count(5_000)

    @property
    def is_closed(self) -> bool:
        return self.connection.wants_close

    # Speaking.

    def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self.connection.receive(data)

    def say(self, kind: str, **fields: Any) -> None:
        """A command, by its name and the fields of its message."""
        self.raw(encode(command(kind, **fields)))

    def call(self, kind: str, **fields: Any) -> BaseCommand:
        """A command, and the first thing that was not heard before."""
        self.say(kind, **fields)
        return self.next()

    def publish(
        self, producer_id: int, sequence_id: int, *bodies: bytes, tail: bytes = b"", **fields: Any
    ) -> None:
        """A SEND of one message, or of a batch of several."""
        fields.setdefault("num_messages", max(1, len(bodies)))
        said = command("SEND", producer_id=producer_id, sequence_id=sequence_id, **fields)
        tail = tail or message_tail(sequence_id, *bodies)
        self.raw(b"".join(payload_frame(said.SerializeToString(), tail)))

    # Hearing.

    def heard(self) -> list[Frame]:
        """Everything that came since it was asked last; the engine has come to rest."""
        self.bench.settle()
        self._take()
        heard, self._heard = self._heard, []
        return heard

    def heard_so_far(self) -> list[BaseCommand]:
        """What came, whether the engine is at rest or not; it stays."""
        self._take()
        return [command for command, _ in self._heard]

    def commands(self) -> list[BaseCommand]:
        """The same without what follows the commands."""
        return [command for command, _ in self.heard()]

    def take(self, is_wanted: Callable[[BaseCommand], bool]) -> list[Frame]:
        """Of what came only this; the rest stays."""
        self.bench.settle()
        self._take()
        found = [each for each in self._heard if is_wanted(each[0])]
        self._heard = [each for each in self._heard if not is_wanted(each[0])]
        return found

    def heard_of(self, kind: int) -> list[Frame]:
        """The commands of one type among what came; the rest stays."""
        return self.take(lambda each: each.type == kind)

    def answer(self, request_id: int) -> BaseCommand:
        """SUCCESS or ERROR for a request, which must have come; the rest stays."""
        (found,) = self.take(
            lambda each: (
                (each.type == BaseCommand.SUCCESS and each.success.request_id == request_id)
                or (each.type == BaseCommand.ERROR and each.error.request_id == request_id)
            )
        )
        return found[0]

    def new_id(self) -> int:
        """A number that no other request, producer or consumer of it has."""
        return next(self._ids)

    def next(self) -> BaseCommand:
        """The first of what came; the rest stays."""
        self.bench.settle()
        self._take()
        assert self._heard, "nothing came"
        return self._heard.pop(0)[0]

    def error(self, kind: str, **fields: Any) -> tuple[ServerError, str]:
        """A command that fails: its code and text."""
        answer = self.call(kind, **fields)
        assert answer.type == BaseCommand.ERROR, answer
        return ServerError(answer.error.error), answer.error.message

    def look(self, now_ms: int) -> None:
        """What the pump does when time passes."""
        deadline_ms = self.connection.next_deadline_ms()
        if not self.connection.is_over and deadline_ms is not None and deadline_ms <= now_ms:
            self.connection.due(now_ms)
            self._take()
        if self.connection.wants_close:
            self.vanish()

    def vanish(self) -> None:
        """The socket is gone."""
        self.connection.closed("gone")
        self.bench.settle()

    def _take(self) -> None:
        was_working = True
        while was_working:
            was_working = self.connection.is_working
            for data in self.connection.outgoing():
                self._heard += [each for each in self._frames.feed(data) if isinstance(each, tuple)]
            self.connection.flushed(self.unsent_bytes)
            if was_working:
                # What the client said goes in pieces, one in a turn.
                self.bench.settle()


def command(kind: str, **fields: Any) -> BaseCommand:
    """A command by its name; fields are those of its message, nested ones as dicts."""
    number = BaseCommand.Type.Value(kind)
    made = BaseCommand(type=kind)
    part: Message = getattr(made, BaseCommand.DESCRIPTOR.fields_by_number[number].name)
    part.SetInParent()
    part.MergeFrom(type(part)(**fields))
    return made


def message_tail(sequence_id: int, *bodies: bytes, **fields: Any) -> bytes:
    """What follows SEND: checksum, metadata and payload of one message or of a batch."""
    fields = {"producer_name": "p", "publish_time": PUBLISH_MS, **fields}
    metadata = MessageMetadata(sequence_id=sequence_id, **fields)
    payload = b"".join(bodies)
    if len(bodies) > 1:
        metadata.num_messages_in_batch = len(bodies)
        payload = b"".join([_single(body) for body in bodies])
    data = metadata.SerializeToString()
    rest = _SIZE.pack(len(data)) + data + payload
    return b"\x0e\x01" + _SIZE.pack(checksum(rest)) + rest


def _single(body: bytes) -> bytes:
    data = SingleMessageMetadata(payload_size=len(body)).SerializeToString()
    return _SIZE.pack(len(data)) + data + body
