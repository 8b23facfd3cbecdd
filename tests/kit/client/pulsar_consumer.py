"""A Pulsar client against a broker that is a Python object: real connections, no sockets.

    @scene
    async def test_...(bench):
        consumer = await bench.subscribe("t", "s")
        bench.broker.deliver(b"one")
        message = await consumer.receive_async()

What the client writes is parsed, remembered and answered in the next turn of the loop, as a test
has told the broker to. The clock is a ``ManualClock``; back-off is a millisecond of the loop's
time. Everything runs on the client's own thread.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from kit.pulsar_payload import PulsarMessage, batch_tail, single_tail
from penstock.client.loop import client_loop
from penstock.client.pulsar.client import Client
from penstock.client.pulsar.connection import Connection
from penstock.testing.clock import ManualClock
from penstock.wire.pulsar import protocol_pb2 as pb
from penstock.wire.pulsar.frames import NO_ID, FrameParser, encode

TYPES = pb.BaseCommand
_SUCCEED = (
    TYPES.SUBSCRIBE,
    TYPES.CLOSE_CONSUMER,
    TYPES.CLOSE_PRODUCER,
    TYPES.SEEK,
    TYPES.UNSUBSCRIBE,
)
NAMES = {field.number: field.name for field in TYPES.DESCRIPTOR.fields}


class FakeTransport:
    """A socket's place: what is written goes to the broker."""

    def __init__(self, broker: "FakePulsar", connection: Connection) -> None:
        self.broker = broker
        self.connection = connection
        self.is_reading = True
        self.is_closed = False
        self.is_aborted = False
        self._parser = FrameParser()
        self.kept: list[bytes] | None = None
        """What is to arrive in one piece with what follows."""
        self._unread: list[bytes] = []

    def writelines(self, pieces: list[bytes]) -> None:
        frames: list[Any] = self._parser.feed(b"".join(pieces))
        for command, _ in frames:
            self.broker.told(self, command)

    def answer(self, data: bytes) -> None:
        if self.kept is not None:
            self.kept.append(data)
            return
        asyncio.get_running_loop().call_soon(self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if self.is_closed:
            return
        if not self.is_reading:
            self._unread.append(data)
            return
        self.connection.data_received(data)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
        unread, self._unread = self._unread, []
        for data in unread:
            self.answer(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True


class FakePulsar:
    """A broker whose answers a test decides; it keeps what it was told."""

    def __init__(self) -> None:
        self.transports: list[FakeTransport] = []
        self.commands: list[pb.BaseCommand] = []
        self.partitions: dict[str, int] = {}
        self.topics: list[str] = []
        self.refusals: dict[int, list[tuple[int, str]]] = {}
        """By the type of a command: refused one after the other before it succeeds."""
        self.refused: dict[str, tuple[int, str]] = {}
        """Topics to which nobody subscribes."""
        self.held: set[int] = set()
        """Types of commands that get no answer until ``release``."""
        self.waiting: list[tuple[FakeTransport, pb.BaseCommand]] = []
        self.on_flow: Callable[[], Any] = lambda: None
        """Called after each FLOW."""
        self.is_away = False
        self.is_silent = False
        self.version = "fake"
        self.entry = 0
        self.last_id = pb.MessageIdData(ledgerId=NO_ID, entryId=NO_ID)

    async def connect(self, connection: Connection, host: str, port: int) -> None:
        await asyncio.sleep(0)
        if self.is_away:
            raise OSError("nobody is there")
        transport: Any = FakeTransport(self, connection)
        self.transports.append(transport)
        connection.connection_made(transport)

    # ---- what it was told ------------------------------------------------------------------------

    def all(self, kind: int) -> list[Any]:
        return [getattr(each, NAMES[kind]) for each in self.commands if each.type == kind]

    @property
    def subscribes(self) -> list[Any]:
        return self.all(TYPES.SUBSCRIBE)

    @property
    def flows(self) -> list[int]:
        return [each.messagePermits for each in self.all(TYPES.FLOW)]

    @property
    def acks(self) -> list[list[tuple[int, int]]]:
        """Ids of each ACK."""
        return [[(i.ledgerId, i.entryId) for i in each.message_id] for each in self.all(TYPES.ACK)]

    @property
    def waits(self) -> list[Any]:
        """What consumers said of why they take no more."""
        return [wait for each in self.all(TYPES.PING) for wait in each.waits]

    def told(self, transport: FakeTransport, command: pb.BaseCommand) -> None:
        self.commands.append(command)
        if self.is_silent:
            return
        if command.type in self.held:
            self.waiting.append((transport, command))
            return
        self._answer(transport, command)
        if command.type == TYPES.FLOW:
            self.on_flow()

    def release(self, kind: int) -> None:
        self.held.discard(kind)
        waiting, self.waiting = self.waiting, []
        for transport, command in waiting:
            self._answer(transport, command)

    def _answer(self, transport: FakeTransport, command: pb.BaseCommand) -> None:
        kind = command.type
        asked = getattr(command, NAMES[kind])
        request_id = getattr(asked, "request_id", 0)
        refusals = self.refusals.get(kind)
        refused = self.refused.get(asked.topic) if kind == TYPES.SUBSCRIBE else None
        if refusals or refused is not None:
            code, text = refused or self.refusals[kind].pop(0)
            error: Any = {"request_id": request_id, "error": code, "message": text}
            transport.answer(encode(pb.BaseCommand(type=TYPES.ERROR, error=error)))
            return
        answer = pb.BaseCommand()
        if kind == TYPES.CONNECT:
            answer.type = TYPES.CONNECTED
            answer.connected.server_version = self.version
            answer.connected.protocol_version = 20
        elif kind == TYPES.LOOKUP:
            answer.type = TYPES.LOOKUP_RESPONSE
            it = answer.lookup_topic_response
            it.response, it.request_id = pb.CommandLookupTopicResponse.Connect, request_id
            it.brokerServiceUrl, it.authoritative = "pulsar://broker:6650", True
        elif kind == TYPES.PARTITIONED_METADATA:
            answer.type = TYPES.PARTITIONED_METADATA_RESPONSE
            said = answer.partition_metadata_response
            said.request_id, said.partitions = request_id, self.partitions.get(asked.topic, 0)
        elif kind == TYPES.GET_TOPICS_OF_NAMESPACE:
            answer.type = TYPES.GET_TOPICS_OF_NAMESPACE_RESPONSE
            answer.get_topics_of_namespace_response.request_id = request_id
            answer.get_topics_of_namespace_response.topics.extend(self.topics)
        elif kind == TYPES.GET_LAST_MESSAGE_ID:
            answer.type = TYPES.GET_LAST_MESSAGE_ID_RESPONSE
            answer.get_last_message_id_response.request_id = request_id
            answer.get_last_message_id_response.last_message_id.CopyFrom(self.last_id)
        elif kind == TYPES.ACK:
            if not asked.HasField("request_id"):
                return
            answer.type = TYPES.ACK_RESPONSE
            answer.ack_response.request_id = request_id
            answer.ack_response.consumer_id = asked.consumer_id
        elif kind == TYPES.PRODUCER:
            answer.type = TYPES.PRODUCER_SUCCESS
            answer.producer_success.request_id = request_id
            answer.producer_success.producer_name = "made-by-broker"
        elif kind in _SUCCEED:
            answer.type = TYPES.SUCCESS
            answer.success.request_id = request_id
        else:
            return
        transport.answer(encode(answer))

    # ---- what it says ----------------------------------------------------------------------------

    def deliver(
        self,
        *bodies: bytes,
        consumer_id: int | None = None,
        entry: int | None = None,
        is_batch: bool | None = None,
        tail: bytes | None = None,
        **fields: Any,
    ) -> int:
        """One entry, a batch if there are several bodies; its number."""
        number = self.entry if entry is None else entry
        self.entry = max(self.entry, number + 1)
        if tail is None:
            messages = [PulsarMessage(each) for each in bodies]
            is_several = len(bodies) > 1 if is_batch is None else is_batch
            tail = batch_tail(*messages) if is_several else single_tail(messages[0])
        command = pb.BaseCommand(type=TYPES.MESSAGE)
        it = command.message
        it.consumer_id = self.subscribes[-1].consumer_id if consumer_id is None else consumer_id
        it.message_id.ledgerId, it.message_id.entryId = 7, number
        it.redelivery_count = fields.pop("redelivery_count", 0)
        it.ack_set.extend(fields.pop("ack_set", ()))
        if "consumer_epoch" in fields:
            it.consumer_epoch = fields["consumer_epoch"]
        data = command.SerializeToString()
        sizes = (len(data) + 4 + len(tail)).to_bytes(4, "big") + len(data).to_bytes(4, "big")
        self.transports[-1].answer(sizes + data + tail)
        return number

    def say(self, kind: Any, **fields: Any) -> None:
        command = pb.BaseCommand(type=kind)
        part = getattr(command, NAMES[kind])
        part.MergeFrom(type(part)(**fields))
        self.transports[-1].answer(encode(command))

    @contextmanager
    def one_read(self) -> Iterator[None]:
        """What is delivered and said inside comes in one piece."""
        transport = self.transports[-1]
        kept: list[bytes] = []
        transport.kept = kept
        yield
        transport.kept = None
        transport.answer(b"".join(kept))

    def cut(self) -> None:
        """The newest connection breaks."""
        transport = self.transports[-1]
        transport.is_closed = True
        transport.connection.connection_lost(None)


class ConsumerBench:
    """A client, its broker and its clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = FakePulsar()
        self.client = self.make_client()

    def make_client(self, **options: Any) -> Client:
        given: dict[str, Any] = {"backoff_initial_ms": 1, "backoff_max_ms": 1, **options}
        return Client(
            "pulsar://broker:6650", clock=self.clock, connect=self.broker.connect, **given
        )

    async def subscribe(self, topic: Any = "t", name: str = "s", **options: Any) -> Any:
        return await self.client.subscribe_async(topic, name, **options)

    def part(self, consumer: Any, number: int = 0) -> Any:
        return list(consumer._parts.values())[number]

    async def look(self, times: int = 2) -> list[Any]:
        """Seconds pass in which consumers are looked at; what the broker heard of them."""
        before = len(self.broker.waits)
        for _ in range(times):
            self.clock.advance(1_000)
            for transport in self.broker.transports:
                transport.connection.tell_waits()
            await self.settle()
        return self.broker.waits[before:]

    async def settle(self, turns: int = 12) -> None:
        """Let everything that is under way happen."""
        for _ in range(turns):
            await asyncio.sleep(0)

    async def receive(self, consumer: Any, count: int) -> list[bytes]:
        return [(await consumer.receive_async(5_000)).data for _ in range(count)]


async def until(condition: Callable[[], Any], what: str = "it") -> None:
    """Turns of the loop until it holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.0005)
    raise AssertionError(f"{what} never came")


def scene(test: Callable[[ConsumerBench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that runs on the client's thread, with a bench that is closed at its end."""

    async def play() -> None:
        bench = ConsumerBench()
        try:
            await test(bench)
        finally:
            bench.broker.held.clear()
            bench.broker.is_silent = False
            await bench.client.close_async()

    def run() -> None:
        client_loop().run(play(), 30)

    # Not functools.wraps: pytest would take the bench for a fixture.
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
