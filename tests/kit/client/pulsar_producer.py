"""A producer's cluster without a socket: frames go into a list, receipts are given by the test.

    async def scene():
        bench = ProducerBench()
        producer = await bench.partition()
        producer.begin([bench.send(b"x")])
        assert bench.broker.sends[0].payloads == [b"x"]
        bench.broker.confirm()

Time is a ``ManualClock``; back-off is a millisecond of the loop's time, awaited through
``bench.until``.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.client.options import resolve
from penstock.client.pulsar.backoff import Backoff
from penstock.client.pulsar.batching import Batching
from penstock.client.pulsar.compression import Compression
from penstock.client.pulsar.encoding import Content, content_of
from penstock.client.pulsar.errors import Refused, Unreachable
from penstock.client.pulsar.message import Message
from penstock.client.pulsar.options import ClientOptions
from penstock.client.pulsar.partition_producer import (
    AccessMode,
    PartitionOptions,
    PartitionProducer,
)
from penstock.client.pulsar.pending import NEVER_MS, Send
from penstock.client.pulsar.routing import BatchLimits
from penstock.client.pulsar.topics import parse_topic
from penstock.testing.clock import ManualClock
from penstock.wire.pulsar import protocol_pb2 as pb
from penstock.wire.pulsar.frames import FrameParser, check
from penstock.wire.pulsar.metadata import read_metadata, read_single

NO_ID = 2**64 - 1


class SentEntry:
    """One SEND as the broker reads it."""

    def __init__(self, command: pb.BaseCommand, tail: bytes) -> None:
        assert check(tail), "a wrong checksum"
        self.command = command.send
        self.metadata, at = read_metadata(tail)
        self.payload = tail[at:]

    @property
    def sequence_id(self) -> int:
        return self.command.sequence_id

    @property
    def singles(self) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
        found = []
        at = 0
        for _ in range(self.metadata.num_messages_in_batch):
            single, begin = read_single(self.payload, at)
            at = begin + single.payload_size
            found.append((single, self.payload[begin:at]))
        return found

    @property
    def payloads(self) -> list[bytes]:
        if self.metadata.HasField("num_messages_in_batch"):
            return [payload for _, payload in self.singles]
        return [self.payload]


class FakeConnection:
    """Satisfies what a producer asks of a connection."""

    def __init__(self, broker: "FakeBroker") -> None:
        self.address = "broker:6650"
        self.max_message_size = broker.max_message_size
        self.is_closed = False
        self.is_reading = True
        self.broker = broker
        self.owners: dict[int, Any] = {}
        self.sends: list[SentEntry] = []
        self.goodbyes: list[int] = []
        self._parser = FrameParser()

    def add_producer(self, producer_id: int, owner: Any) -> None:
        self.owners[producer_id] = owner

    def remove_producer(self, producer_id: int) -> None:
        self.owners.pop(producer_id, None)

    def review_reading(self) -> None:
        self.is_reading = True

    def write(self, *pieces: bytes) -> None:
        frames: list[Any] = self._parser.feed(b"".join(pieces))
        self.sends += [SentEntry(command, tail) for command, tail in frames]

    async def request(
        self, command: Any, request_id: int, what: str, *, on_queued: Callable[[], None] = print
    ) -> Any:
        if command.type == pb.BaseCommand.CLOSE_PRODUCER:
            return pb.BaseCommand(type=pb.BaseCommand.SUCCESS, success={"request_id": request_id})
        asked = pb.CommandProducer()
        asked.CopyFrom(command.producer)
        self.broker.asked.append(asked)
        return await self.broker.answer(asked, what, on_queued)

    def send(self, command: Any) -> None:
        self.goodbyes.append(command.close_producer.producer_id)

    def close(self, why: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        owners, self.owners = list(self.owners.values()), {}
        for owner in owners:
            owner.connection_lost(self, why)

    def say(self, kind: Any, *, producer_id: int | None = None, **fields: Any) -> None:
        """A command of the broker's to one producer on it, or to all."""
        name = {
            pb.BaseCommand.SEND_RECEIPT: "send_receipt",
            pb.BaseCommand.SEND_ERROR: "send_error",
            pb.BaseCommand.CLOSE_PRODUCER: "close_producer",
        }[kind]
        for number, owner in list(self.owners.items()):
            if producer_id not in (None, number):
                continue
            command = pb.BaseCommand(type=kind)
            getattr(command, name).MergeFrom(type(getattr(command, name))(producer_id=0, **fields))
            owner.received([(command, b"")])


class FakeBroker:
    """Answers PRODUCER, and confirms what a test says."""

    def __init__(self) -> None:
        self.max_message_size = 5 * 1024 * 1024
        self.asked: list[pb.CommandProducer] = []
        self.connections: list[FakeConnection] = []
        self.refusals: list[Any] = []
        """Raised one after the other before a PRODUCER succeeds."""
        self.line: asyncio.Future[None] | None = None
        """Set by a test: who comes waits in line for it."""
        self.last_sequence_id = -1
        self.entry = 0

    async def answer(self, asked: Any, what: str, on_queued: Callable[[], None]) -> Any:
        await asyncio.sleep(0)
        if self.refusals:
            problem = self.refusals.pop(0)
            raise Refused(problem, "text", what) if isinstance(problem, int) else problem
        if self.line is not None:
            on_queued()
            await asyncio.shield(self.line)
        answer = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS)
        said = answer.producer_success
        said.request_id = asked.request_id
        said.producer_name = asked.producer_name or "made-by-broker"
        said.last_sequence_id = self.last_sequence_id
        said.schema_version = b"\0" * 8 if asked.HasField("schema") else b""
        if asked.producer_access_mode:
            said.topic_epoch = 7
        return answer

    @property
    def connection(self) -> FakeConnection:
        return self.connections[-1]

    @property
    def sends(self) -> list[SentEntry]:
        return self.connection.sends

    def confirm(self, count: int | None = None, *, of: FakeConnection | None = None) -> None:
        """Receipts for the first so many that have none; all by default."""
        connection = of or self.connection
        for sent in connection.sends[:count]:
            self.confirm_one(
                sent.sequence_id, connection=connection, producer_id=sent.command.producer_id
            )
        del connection.sends[:count]

    def confirm_one(
        self,
        sequence_id: int,
        *,
        is_duplicate: bool = False,
        connection: FakeConnection | None = None,
        producer_id: int | None = None,
    ) -> None:
        ids = {"ledgerId": 3, "entryId": self.entry}
        if is_duplicate:
            ids = {"ledgerId": NO_ID, "entryId": NO_ID}
        self.entry += 1
        (connection or self.connection).say(
            pb.BaseCommand.SEND_RECEIPT,
            producer_id=producer_id,
            sequence_id=sequence_id,
            message_id=ids,
        )


class FakePool:
    def __init__(self) -> None:
        self._last = 0

    def next_request_id(self) -> int:
        self._last += 1
        return self._last


class FakeCluster:
    """Satisfies what producers ask of a cluster."""

    def __init__(self, clock: ManualClock, **options: Any) -> None:
        self.url = "pulsar://broker:6650"
        self.clock = clock
        self.options = resolve(ClientOptions, {"backoff_initial_ms": 1, **options})
        self.pool = FakePool()
        self.broker = FakeBroker()
        self.partition_count = 0
        self.is_away = False
        self._ids = -1

    def next_producer_id(self) -> int:
        self._ids += 1
        return self._ids

    def backoff(self, mandatory_stop_ms: int = 0) -> Backoff:
        return Backoff(self.clock, initial_ms=1, max_ms=1, mandatory_stop_ms=mandatory_stop_ms)

    async def connect(self, topic: Any) -> FakeConnection:
        await asyncio.sleep(0)
        if self.is_away:
            raise Unreachable("broker:6650", "nobody is there")
        found = self.broker.connections
        if not found or found[-1].is_closed:
            found.append(FakeConnection(self.broker))
        return found[-1]

    async def partitions(self, topic: Any) -> int:
        return self.partition_count

    async def retried(self, ask: Callable[[], Any], what: str) -> Any:
        return await ask()


class HeardSend(Send, kw_only=True):
    """A send whose end a test sees in ``outcome``."""

    def done(self, outcome: Any) -> None:
        assert self.outcome is None, "it ended twice"
        self.outcome = outcome


class ProducerBench:
    """One partition, its broker and its clock."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.cluster: Any = FakeCluster(self.clock, **options)
        self.broker = self.cluster.broker
        self.over: list[Send] = []

    async def partition(self, topic: str = "t", **options: Any) -> PartitionProducer:
        given: dict[str, Any] = {
            "producer_name": None,
            "access_mode": AccessMode.SHARED,
            "send_timeout_ms": 30_000,
            "limits": None,
            "batching": Batching.DEFAULT,
            "compression": Compression.NONE,
            "chunk_bytes_max": -1,
            "initial_sequence_id": None,
            "properties": {},
            "initial_subscription_name": None,
            "schema": None,
        }
        producer = PartitionProducer(
            self.cluster,
            parse_topic(topic),
            PartitionOptions(**{**given, **options}),
            self.over.extend,
        )
        await producer.handler.open()
        return producer

    def send(self, payload: bytes, **fields: Any) -> HeardSend:
        content: Content = content_of(Message(payload, **fields), payload, self.clock.wall_ms())
        deadline_ms = fields.pop("deadline_ms", NEVER_MS)
        return HeardSend(content, content.size_bytes, deadline_ms)

    def sends(self, *payloads: bytes) -> list[HeardSend]:
        return [self.send(each) for each in payloads]

    def cut(self) -> None:
        """The connection breaks."""
        self.broker.connection.close("cut by the test")


async def until(condition: Callable[[], Any], turns: int = 10_000) -> None:
    """Turns of the loop until it holds."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0.0002)
    raise AssertionError("it never came")


LIMITS = BatchLimits(3, 1000, 10_000)
