"""Actors of a scene that speak Pulsar over real sockets.

Clients are what applications have: ``ClientConsumer`` and ``ClientProducer`` are processes with a
``penstock.client.pulsar`` each, which are gone without a word when they leave. Of raw actors the
scene says every frame, and hears each: ``PulsarProducer`` hears that it is closed, and comes again;
``PulsarConsumer`` grants permits, by hand if need be, takes and acks. They are for what a client
does not do, or keeps from its application.

Not here: paces, windows and counts (``steady.py``); what a client does by itself
(``penstock.client.pulsar``).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from penstock.client.pulsar import (
    Client,
    Consumer,
    InitialPosition,
    MessageId,
    Producer,
    ReceivedMessage,
    SubscriptionType,
)
from penstock.client.pulsar.connection import Connection
from penstock.demo.steady import (
    ANSWER_SECONDS_MAX,
    ROUND_SECONDS,
    AckingConsumer,
    LinkT,
    NumberedPublisher,
    Pace,
    SocketLink,
    open_socket,
)
from penstock.model.errors import PenstockError
from penstock.wire.pulsar.frames import (
    CHECKSUM_MAGIC,
    Frame,
    FrameParser,
    ServerError,
    crc32c,
    encode,
    payload_frame,
    signed,
)
from penstock.wire.pulsar.metadata import read_metadata, read_single
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, MessageMetadata

WINDOW: Final = 1_000
"""Messages without a receipt, as Pulsar's clients have it (max_pending_messages)."""
COME_AGAIN_SECONDS: Final = (0.1, 0.2, 0.4)
"""Between tries to open a producer that was closed; the last of them again and again."""


class _Producer(NumberedPublisher[LinkT]):
    """What the ticker tells of a producer."""

    def _remark(self) -> str:
        return f" ({self.outstanding} without a receipt)"


class PulsarProducer(_Producer["PulsarLink"]):
    """Sends to one topic, each message by itself."""

    def __init__(self, link: PulsarLink, name: str, topic: str, body_bytes: int) -> None:
        super().__init__(name, link, body_bytes)
        self.closes = 0
        """How often the broker closed it."""
        self.refusals: Final[list[PulsarRefused]] = []
        """What it was told when it came again."""
        self.is_open = False
        self._topic = full_name(topic)
        self._id = next(link.ids)
        self._epoch = 0
        self._pending: Final[dict[int, bytes]] = {}
        """Number of a message, which is its sequence id -> its SEND; bounded by the window."""
        self._return: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        link: PulsarLink,
        name: str,
        topic: str,
        *,
        per_second: int,
        body_bytes: int,
        count_max: int | None = None,
    ) -> PulsarProducer:
        """A producer, of so many messages in all."""
        self = cls(link, name, topic, body_bytes)
        link.listen(("producer", self._id), self._hear)
        await self._open()
        self._begin(self._publish(Pace(per_second), count_max, WINDOW))
        return self

    def leave(self) -> None:
        if self._return is not None:
            self._return.cancel()
        super().leave()

    async def _open(self) -> None:
        """Raises ``PulsarRefused``."""
        await self.link.ask(
            "producer",
            topic=self._topic,
            producer_id=self._id,
            producer_name=self.name,
            epoch=self._epoch,
        )
        self.is_open = True
        for frame in self._pending.values():
            self.link.write(frame)

    async def _send(self, numbers: range) -> None:
        for number in numbers:
            tail = message_tail(self.name, number, self._body(number))
            frame = command_frame("send", tail, producer_id=self._id, sequence_id=number)
            self._pending[number] = frame
            if self.is_open:
                self.link.write(frame)
        await self.link.room()

    def _remark(self) -> str:
        return super()._remark() + ("" if self.is_open else " closed by the broker")

    def _hear(self, command: BaseCommand, _tail: bytes) -> None:
        if command.type == BaseCommand.SEND_RECEIPT:
            number = command.send_receipt.sequence_id
            del self._pending[number]
            self.confirmed_numbers.add(number)
        elif command.type == BaseCommand.CLOSE_PRODUCER:
            self.closes += 1
            self.is_open = False
            self._return = asyncio.create_task(self._come_again())

    async def _come_again(self) -> None:
        """As clients do: 7 means to wait on, 8 that what waits has failed."""
        for tries in count():
            await asyncio.sleep(COME_AGAIN_SECONDS[min(tries, len(COME_AGAIN_SECONDS) - 1)])
            self._epoch += 1
            try:
                await self._open()
            except PulsarRefused as refused:
                self.refusals.append(refused)
                if refused.code == ServerError.ProducerBlockedQuotaExceededException:
                    self.failed_numbers.update(self._pending)
                    self._pending.clear()
            else:
                return


class Entry(NamedTuple):
    """One MESSAGE: a message, or a batch of them."""

    message_id: tuple[int, int]
    """Ledger and entry."""
    bodies: list[bytes]
    redeliveries: int


class PulsarConsumer(AckingConsumer["PulsarLink", Entry]):
    """Takes from one subscription; see ``subscribe``."""

    def __init__(self, link: PulsarLink, name: str, queue: int) -> None:
        super().__init__(name, link)
        self.arrived_messages = 0
        self.entries: Final[list[Entry]] = []
        """Everything that came, in order."""
        self.is_taking = True
        """False: the application asks for nothing; what comes stays in the client's queue."""
        self._id = next(link.ids)
        self._queue_size = queue
        # Bounded by the permits, which are the size of the queue.
        self._queue: deque[Entry] = deque()
        self._to_grant = 0

    @classmethod
    async def subscribe(
        cls,
        link: PulsarLink,
        name: str,
        topic: str,
        subscription: str,
        *,
        queue: int,
    ) -> PulsarConsumer:
        """A consumer from the first message on; with a queue of 0 permits are given by ``flow``."""
        self = cls(link, name, queue)
        link.listen(("consumer", self._id), self._hear)
        await link.ask(
            "subscribe",
            topic=full_name(topic),
            subscription=subscription,
            subType="Shared",
            consumer_id=self._id,
            consumer_name=name,
            initialPosition="Earliest",
        )
        if queue:
            self.flow(queue)
        self._begin(self._take(), self._settle())
        return self

    @property
    def unacked(self) -> int:
        """Messages it has, also in its queue, and did not ack."""
        return sum([len(each.bodies) for each in (*self._queue, *self._in_hand)])

    def flow(self, permits: int) -> None:
        """It will take so many messages more."""
        self.link.tell("flow", consumer_id=self._id, messagePermits=permits)

    async def ack(self, messages: int) -> None:
        """The oldest entries in hand, until so many messages are acked."""
        done: list[Entry] = []
        while self._in_hand and messages > 0:
            done.append(self._in_hand.popleft())
            messages -= len(done[-1].bodies)
        if not done:
            return
        ids = [{"ledgerId": each.message_id[0], "entryId": each.message_id[1]} for each in done]
        self.link.tell("ack", consumer_id=self._id, ack_type="Individual", message_id=ids)
        for each in done:
            self.bodies.extend(each.bodies)

    def give_back(self) -> None:
        """Everything that it has is to come again (REDELIVER)."""
        self.link.tell("redeliver_unacknowledged_messages", consumer_id=self._id)
        self._queue.clear()
        self._in_hand.clear()

    async def permits(self) -> int:
        """What the broker counts: below zero after a batch that was larger than what was left."""
        found = await self.link.ask("consumer_stats", consumer_id=self._id)
        return signed(found.availablePermits)

    async def _take(self) -> None:
        """The application takes entries; permits go back when they are half of the queue."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            while self.is_taking and self._queue:
                entry = self._queue.popleft()
                self._in_hand.append(entry)
                self._to_grant += len(entry.bodies)
                if self._queue_size and self._to_grant >= max(1, self._queue_size // 2):
                    self.flow(self._to_grant)
                    self._to_grant = 0

    def _hear(self, command: BaseCommand, tail: bytes) -> None:
        if command.type == BaseCommand.MESSAGE:
            entry = _entry(command, tail)
            self.entries.append(entry)
            self.arrived_messages += len(entry.bodies)
            self._queue.append(entry)


# ---- clients ------------------------------------------------------------------------------------


class ClientProcess:
    """A process with a client of ours and one connection to the broker."""

    def __init__(self, endpoint: str) -> None:
        self.client: Final = Client(f"pulsar://{endpoint}", connect=self._connect)
        self._gone: Final = threading.Event()
        self._cuts: Final[list[Callable[[], object]]] = []
        """One for each connection that was made; a scene's broker breaks none."""

    def leave(self) -> None:
        """Gone without a word: the connection is cut, and there will be no other one."""
        if self._gone.is_set():
            return
        self._gone.set()
        for cut in self._cuts:
            cut()
        # It would block the broker's loop.
        asyncio.get_running_loop().run_in_executor(None, self.client.close)

    async def _connect(self, connection: Connection, host: str, port: int) -> None:
        """On the client's thread."""
        if self._gone.is_set():
            raise ConnectionRefusedError("this process is gone")
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: connection, host, port)
        self._cuts.append(partial(loop.call_soon_threadsafe, transport.abort))
        if self._gone.is_set():
            transport.abort()


class ClientProducer(_Producer[ClientProcess]):
    """Sends messages one by one or in full batches."""

    def __init__(
        self, name: str, process: ClientProcess, producer: Producer, key_of: KeyOf | None
    ) -> None:
        super().__init__(name, process)
        self._producer = producer
        self._key_of = key_of

    @classmethod
    async def start(
        cls,
        process: ClientProcess,
        name: str,
        topic: str,
        *,
        per_second: int,
        batch: int = 1,
        count_max: int | None = None,
        key_of: KeyOf | None = None,
    ) -> ClientProducer:
        """A producer; ``count_max`` is a multiple of the messages of a batch."""
        producer = await process.client.create_producer_async(
            topic,
            producer_name=name,
            batching_enabled=batch > 1,
            batching_max_messages=batch,
            # Batches leave when they are full.
            batching_max_publish_delay_ms=ANSWER_SECONDS_MAX * 1000,
        )
        self = cls(name, process, producer, key_of)
        self._begin(self._publish(Pace(per_second, batch), count_max, WINDOW))
        return self

    async def _send(self, numbers: range) -> None:
        for number in numbers:
            key = None if self._key_of is None else self._key_of(number)
            future = self._producer.send_async(self._body(number), key=key)
            future.add_done_callback(partial(self._answered, number))

    def _answered(self, number: int, answer: asyncio.Future[MessageId]) -> None:
        is_stored = not answer.cancelled() and answer.exception() is None
        (self.confirmed_numbers if is_stored else self.failed_numbers).add(number)


class Taken(NamedTuple):
    """A message as an application got it."""

    message: ReceivedMessage
    at_s: float

    @property
    def body(self) -> bytes:
        return self.message.data

    @property
    def key(self) -> str:
        return self.message.key or ""

    @property
    def partition(self) -> int:
        return self.message.message_id.partition


class ActiveNotice(NamedTuple):
    """A client was told that it is the active one of a partition, or that it is not (Failover)."""

    at_s: float
    partition: int
    is_active: bool


class ClientConsumer(AckingConsumer[ClientProcess, Taken]):
    """An application that takes from one subscription; see ``start``."""

    def __init__(self, name: str, process: ClientProcess, *, is_taking: bool) -> None:
        super().__init__(name, process)
        self.taken: Final[list[Taken]] = []
        """Everything that the application got, in order."""
        self.acked: Final[list[Taken]] = []
        """Of that, in the order of the acks."""
        self.is_taking = is_taking
        """False: the application asks for nothing; what comes stays in the client's queue."""
        self.notices: Final[list[ActiveNotice]] = []
        self._consumer: Consumer

    @classmethod
    async def start(
        cls,
        process: ClientProcess,
        name: str,
        topic: str,
        subscription: str,
        *,
        kind: SubscriptionType = SubscriptionType.SHARED,
        queue: int = 100,
        priority: int = 0,
        is_taking: bool = True,
    ) -> ClientConsumer:
        """A consumer from the first message on."""
        self = cls(name, process, is_taking=is_taking)
        self._consumer = await process.client.subscribe_async(
            topic,
            subscription,
            subscription_type=kind,
            consumer_name=name,
            receiver_queue_size=queue,
            initial_position=InitialPosition.EARLIEST,
            priority_level=priority,
            active_listener=self._note if kind is SubscriptionType.FAILOVER else None,
        )
        self._begin(self._take(), self._settle())
        return self

    @property
    def in_hand(self) -> list[Taken]:
        """What the application has and did not ack."""
        return list(self._in_hand)

    @property
    def arrived_messages(self) -> int:
        """What its client was sent, taken or not."""
        return self._consumer.statistics().messages

    @property
    def queued(self) -> int:
        """Of these, what waits for the application in the client's queue."""
        return self._consumer.statistics().queued

    @property
    def permits(self) -> int:
        """What its client has granted and was not sent."""
        return self._consumer.statistics().permits_outstanding

    @property
    def active(self) -> list[int]:
        """Failover: the partitions in which it is the one, as it was told last."""
        last = {each.partition: each.is_active for each in list(self.notices)}
        return sorted(number for number, is_active in last.items() if is_active)

    def why(self) -> str:
        """What the client says that it waits for."""
        return str(self._consumer.why())

    async def ack(self, messages: int) -> None:
        done = [self._in_hand.popleft() for _ in range(min(messages, len(self._in_hand)))]
        await self._consumer.acknowledge_async([each.message for each in done])
        self.acked.extend(done)
        self.bodies.extend(each.body for each in done)

    async def stop_acking(self) -> None:
        """From now on; what was acked so far the broker has."""
        self.is_acking = False
        await self._consumer.flush_acks_async()

    async def give_back(self) -> None:
        """Everything that it has is to come again."""
        self._in_hand.clear()
        await self._consumer.redeliver_unacknowledged_async()

    def _remark(self) -> str:
        active = ", ".join(map(str, self.active))
        mark = "" if not self.notices else f" active in {active}" if active else " stands by"
        return super()._remark() + mark

    async def _take(self) -> None:
        while True:
            if not self.is_taking:
                await asyncio.sleep(ROUND_SECONDS)
                continue
            message = await self._consumer.receive_async()
            taken = Taken(message, time.monotonic())
            self.taken.append(taken)
            self._in_hand.append(taken)

    def _note(self, _consumer: Consumer, topic: str, is_active: bool | None) -> None:
        """On a thread of the client's; None is said when the connection is lost."""
        partition = int(topic.rpartition("-partition-")[2])
        self.notices.append(ActiveNotice(time.monotonic(), partition, bool(is_active)))


# ---- pulsar link --------------------------------------------------------------------------------
# A Pulsar client in a few lines, for scenes: one socket, its producers and consumers.
#
# It speaks with ``wire/pulsar`` over asyncio: ``ask`` waits for the answer to its request, ``tell``
# only writes, what nobody asked for goes to whoever listens to that producer or consumer. PING is
# answered, so that the broker does not take it for dead.


PROTOCOL_VERSION: Final = 20

_FIELD_OF: Final = {
    field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.number > 1
}
"""Type of a command -> its field in ``BaseCommand``: they have the same number."""
_TYPE_OF: Final = {name: number for number, name in _FIELD_OF.items()}

KeyOf = Callable[[int], str]
"""The key of a message, by its number."""
Listener = Callable[[BaseCommand, bytes], None]
Ear = tuple[str, int]
"""``producer`` or ``consumer``, and its id."""


class PulsarRefused(PenstockError):
    """The broker answered with an ERROR."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{ServerError(code).name}: {text}")
        self.code: Final = ServerError(code)
        self.text: Final = text


class PulsarLink(SocketLink):
    """One connection, its producers and consumers; made by ``connect``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.ids: Final = count(1)
        """Of producers and consumers."""
        self._requests: Final = count(1)
        self._frames: Final = FrameParser()
        self._answers: Final[dict[int, asyncio.Future[BaseCommand]]] = {}
        self._ears: Final[dict[Ear, Listener]] = {}
        self._connected: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, endpoint: str, name: str) -> PulsarLink:
        link = cls(*await open_socket(endpoint))
        link.tell("connect", client_version=name, protocol_version=PROTOCOL_VERSION)
        await asyncio.wait_for(link._connected, ANSWER_SECONDS_MAX)
        return link

    def listen(self, ear: Ear, listener: Listener) -> None:
        self._ears[ear] = listener

    async def ask(self, kind: str, **fields: Any) -> Any:
        """Send a request and wait for what answers it; raises ``PulsarRefused``."""
        number = next(self._requests)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self.tell(kind, request_id=number, **fields)
        try:
            command = await asyncio.wait_for(answer, ANSWER_SECONDS_MAX)
        finally:
            del self._answers[number]
        if command.type == BaseCommand.ERROR:
            raise PulsarRefused(command.error.error, command.error.message)
        return _said(command)

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a command; its answer, if it has one, is somebody else's business."""
        self.write(command_frame(kind, **fields))

    def _heard(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            if isinstance(frame, tuple):
                self._understand(frame)

    def _understand(self, frame: Frame) -> None:
        command, tail = frame
        said = _said(command)
        answer = self._answers.get(getattr(said, "request_id", 0))
        if command.type == BaseCommand.CONNECTED:
            self._connected.set_result(None)
        elif command.type == BaseCommand.PING:
            self.tell("pong")
        elif answer is not None and not answer.done():
            answer.set_result(command)
        else:
            kind = "producer" if hasattr(said, "producer_id") else "consumer"
            listener = self._ears.get((kind, getattr(said, f"{kind}_id", 0)))
            if listener is not None:
                listener(command, tail)


# ---- bytes --------------------------------------------------------------------------------------


def full_name(topic: str) -> str:
    """As it stands on the wire."""
    return topic if "://" in topic else f"persistent://public/default/{topic}"


def command_frame(kind: str, tail: bytes = b"", **fields: Any) -> bytes:
    """A command by the name of its field in ``BaseCommand``, with what follows it."""
    made: dict[str, Any] = {"type": _TYPE_OF[kind], kind: fields}
    command = BaseCommand(**made)
    return b"".join(payload_frame(command.SerializeToString(), tail)) if tail else encode(command)


def message_tail(producer: str, sequence_id: int, payload: bytes) -> bytes:
    """What follows the SEND of a message."""
    metadata = MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=int(time.time() * 1000)
    )
    about = metadata.SerializeToString()
    checked = b"".join((len(about).to_bytes(4, "big"), about, payload))
    return b"".join((CHECKSUM_MAGIC, crc32c(checked).to_bytes(4, "big"), checked))


def _entry(command: BaseCommand, tail: bytes) -> Entry:
    metadata, at = read_metadata(tail)
    bodies = [tail[at:]]
    if metadata.HasField("num_messages_in_batch"):
        bodies = []
        for _ in range(metadata.num_messages_in_batch):
            single, at = read_single(tail, at)
            bodies.append(tail[at : at + single.payload_size])
            at += single.payload_size
    message = command.message
    return Entry(
        (message.message_id.ledgerId, message.message_id.entryId),
        # What a body is padded with is not kept.
        [body.rstrip() for body in bodies],
        message.redelivery_count,
    )


def _said(command: BaseCommand) -> Any:
    return getattr(command, _FIELD_OF[command.type])
