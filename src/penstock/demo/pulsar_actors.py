"""Actors of a scene that speak Pulsar over real sockets, on the scene's own loop.

A producer sends numbered messages at a steady pace, alone or in batches, and keeps what it was
told: a receipt, or that its producer is closed; then it comes again with what has no receipt, as
Pulsar's clients do. A consumer grants permits, takes, acks at once, after a while or not at all,
and keeps the bodies. Both may share one connection.

Not here: what real clients do beside that (look-ups, reconnects, schemas, negative acks).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, NamedTuple

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
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    MessageMetadata,
    SingleMessageMetadata,
)

ROUND_SECONDS: Final = 0.01
"""How often a producer sends its share of a second."""
WINDOW: Final = 1_000
"""Messages without a receipt, as Pulsar's clients have it (max_pending_messages)."""
COME_AGAIN_SECONDS: Final = (0.1, 0.2, 0.4)
"""Between tries to open a producer that was closed; the last of them again and again."""


class PulsarProducer:
    """Sends to one topic and counts the receipts."""

    def __init__(self, link: PulsarLink, name: str, topic: str, key_of: KeyOf | None) -> None:
        self.name: Final = name
        self.link: Final = link
        self.sent = 0
        """Messages, those of a batch each for itself."""
        self.confirmed_numbers: Final[set[int]] = set()
        self.failed_numbers: Final[set[int]] = set()
        """What the application was told is not stored."""
        self.closes = 0
        """How often the broker closed it."""
        self.refusals: Final[list[PulsarRefused]] = []
        """What it was told when it came again."""
        self.is_open = False
        self._topic = full_name(topic)
        self._key_of = key_of
        self._id = next(link.ids)
        self._epoch = 0
        self._pending: Final[dict[int, tuple[range, bytes]]] = {}
        """Sequence id of a SEND -> its messages and its bytes; bounded by the window."""
        self._last = 0
        self._task: asyncio.Task[None] | None = None
        self._return: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        link: PulsarLink,
        name: str,
        topic: str,
        *,
        per_second: int,
        batch: int = 1,
        body_bytes: int = 0,
        count_max: int | None = None,
        window: int = WINDOW,
        key_of: KeyOf | None = None,
    ) -> PulsarProducer:
        """A producer; with so many messages in a SEND, without a receipt, or in all."""
        self = cls(link, name, topic, key_of)
        link.listen(("producer", self._id), self._hear)
        await self._open()
        self._task = asyncio.create_task(
            self._publish(per_second, batch, body_bytes, (count_max, window))
        )
        return self

    @property
    def outstanding(self) -> int:
        return self.sent - len(self.confirmed_numbers) - len(self.failed_numbers)

    @property
    def is_done(self) -> bool:
        """It has sent what it was to send, and everything was answered."""
        return self._task is not None and self._task.done() and not self.outstanding

    def stop(self) -> None:
        """Send nothing more; answers still come."""
        if self._task is not None:
            self._task.cancel()

    def leave(self) -> None:
        self.stop()
        if self._return is not None:
            self._return.cancel()
        self.link.leave()

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        rate = (len(self.confirmed_numbers) - self._last) / seconds
        self._last = len(self.confirmed_numbers)
        mark = "" if self.is_open else " closed by the broker"
        return f"{self.name} {rate:6,.0f}/s ({self.outstanding} without a receipt){mark}"

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
        for _, frame in self._pending.values():
            self.link.write(frame)

    async def _publish(
        self, per_second: int, batch: int, body_bytes: int, limits: tuple[int | None, int]
    ) -> None:
        count_max, window = limits
        share = max(1, round(per_second * ROUND_SECONDS / batch)) * batch
        while count_max is None or self.sent < count_max:
            await asyncio.sleep(share / per_second)
            room = window - self.outstanding
            if count_max is not None:
                room = min(room, count_max - self.sent)
            for _ in range(min(share, room) // batch):
                self._send(range(self.sent + 1, self.sent + 1 + batch), body_bytes)
            await self.link.room()

    def _send(self, numbers: range, body_bytes: int) -> None:
        bodies = [b"%s %d" % (self.name.encode(), number) for number in numbers]
        if body_bytes:
            bodies = [body.ljust(body_bytes) for body in bodies]
        key = None if self._key_of is None else self._key_of(numbers[0])
        tail = message_tail(self.name, numbers[0], bodies, key)
        frame = command_frame(
            "send", tail, producer_id=self._id, sequence_id=numbers[0], num_messages=len(numbers)
        )
        self.sent += len(numbers)
        self._pending[numbers[0]] = (numbers, frame)
        if self.is_open:
            self.link.write(frame)

    def _hear(self, command: BaseCommand, _tail: bytes) -> None:
        if command.type == BaseCommand.SEND_RECEIPT:
            numbers, _ = self._pending.pop(command.send_receipt.sequence_id)
            self.confirmed_numbers.update(numbers)
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
                    for numbers, _ in self._pending.values():
                        self.failed_numbers.update(numbers)
                    self._pending.clear()
            else:
                return


class Entry(NamedTuple):
    """One MESSAGE: a message, or a batch of them."""

    message_id: tuple[int, int]
    """Ledger and entry."""
    bodies: list[bytes]
    key: str
    redeliveries: int
    at_s: float
    """When it came."""


class PulsarConsumer:
    """Takes from one subscription; see ``subscribe``."""

    def __init__(self, link: PulsarLink, name: str, queue: int) -> None:
        self.name: Final = name
        self.link: Final = link
        self.bodies: Final[list[bytes]] = []
        """Acked ones, in order."""
        self.keys: Final[list[str]] = []
        """Of those, entry by entry."""
        self.arrived_messages = 0
        self.entries: Final[list[Entry]] = []
        """Everything that came, in order."""
        self.is_taking = True
        """False: the application asks for nothing; what comes stays in the client's queue."""
        self.is_acking = True
        """False: the application takes, and acks nothing."""
        self.message_seconds = 0.0
        """What an entry costs it; may be changed at any time."""
        self.notices: Final[list[tuple[float, bool]]] = []
        """When it was told that it is the active one, or that it is not (Failover)."""
        self._id = next(link.ids)
        self._queue_size = queue
        # Bounded by the permits, which are the size of the queue.
        self._queue: deque[Entry] = deque()
        # Bounded by F13 of the broker.
        self._in_hand: deque[Entry] = deque()
        self._to_grant = 0
        self._last = 0
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def subscribe(
        cls,
        link: PulsarLink,
        name: str,
        topic: str,
        subscription: str,
        *,
        kind: str = "Shared",
        queue: int = 100,
        **fields: Any,
    ) -> PulsarConsumer:
        """A consumer from the first message on; with a queue of 0 permits are given by ``flow``."""
        self = cls(link, name, queue)
        link.listen(("consumer", self._id), self._hear)
        fields.setdefault("initialPosition", "Earliest")
        await link.ask(
            "subscribe",
            topic=full_name(topic),
            subscription=subscription,
            subType=kind,
            consumer_id=self._id,
            consumer_name=name,
            **fields,
        )
        if queue:
            self.flow(queue)
        self._task = asyncio.create_task(self._work())
        return self

    @property
    def unacked(self) -> int:
        """Messages it has and did not ack."""
        return sum([len(each.bodies) for each in (*self._queue, *self._in_hand)])

    @property
    def is_active(self) -> bool:
        """Failover: what it was told last."""
        return bool(self.notices) and self.notices[-1][1]

    def flow(self, permits: int) -> None:
        """It will take so many messages more."""
        self.link.tell("flow", consumer_id=self._id, messagePermits=permits)

    def ack(self, messages: int) -> None:
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
            self.keys.append(each.key)

    def give_back(self) -> None:
        """Everything that it has is to come again (REDELIVER)."""
        self.link.tell("redeliver_unacknowledged_messages", consumer_id=self._id)
        self._queue.clear()
        self._in_hand.clear()

    async def permits(self) -> int:
        """What the broker counts: below zero after a batch that was larger than what was left."""
        found = await self._statistics()
        return signed(found.availablePermits)

    async def is_blocked(self) -> bool:
        """Whether the broker says that too much is unacked."""
        return bool((await self._statistics()).blockedConsumerOnUnackedMsgs)

    def leave(self) -> None:
        """Hang up; what is not acked goes to others."""
        if self._task is not None:
            self._task.cancel()
        self.link.leave()

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        rate = (len(self.bodies) - self._last) / seconds
        self._last = len(self.bodies)
        mark = "" if not self.notices else " active" if self.is_active else " stands by"
        return f"{self.name} {rate:6,.0f}/s ({self.unacked} unacked){mark}"

    async def _statistics(self) -> Any:
        return await self.link.ask("consumer_stats", consumer_id=self._id)

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(self.message_seconds or ROUND_SECONDS)
            if self.is_taking:
                entries = 1 if self.message_seconds else len(self._queue)
                for _ in range(min(entries, len(self._queue))):
                    self._take()
            if self.is_acking:
                self.ack(sum([len(each.bodies) for each in self._in_hand]))

    def _take(self) -> None:
        """The application has the next entry; permits go back when they are half of the queue."""
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
        elif command.type == BaseCommand.ACTIVE_CONSUMER_CHANGE:
            is_active = command.active_consumer_change.is_active
            self.notices.append((time.monotonic(), is_active))


# ---- pulsar link --------------------------------------------------------------------------------
# A Pulsar client in a few lines, for scenes: one socket, its producers and consumers.
#
# It speaks with ``wire/pulsar`` over asyncio: ``ask`` waits for the answer to its request, ``tell``
# only writes, what nobody asked for goes to whoever listens to that producer or consumer. PING is
# answered, so that the broker does not take it for dead.
#
# Bound: the transport's own buffer; whoever sends a lot awaits ``room``.


READ_BYTES: Final = 1 << 18
ANSWER_SECONDS_MAX: Final = 15.0
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


class PulsarLink:
    """One connection to the broker; made by ``connect``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ids: Final = count(1)
        """Of producers and consumers."""
        self._reader = reader
        self._writer = writer
        self._requests: Final = count(1)
        self._frames: Final = FrameParser()
        self._answers: Final[dict[int, asyncio.Future[BaseCommand]]] = {}
        self._ears: Final[dict[Ear, Listener]] = {}
        self._connected: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hear())

    @classmethod
    async def connect(cls, endpoint: str, name: str) -> PulsarLink:
        host, _, port = endpoint.rpartition(":")
        link = cls(*await asyncio.open_connection(host.strip("[]"), int(port)))
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

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def room(self) -> None:
        """Wait while the broker does not read and the socket's buffer is full."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def leave(self) -> None:
        """Cut the connection without a word."""
        self._task.cancel()
        self._writer.transport.abort()

    async def _hear(self) -> None:
        while True:
            try:
                data = await self._reader.read(READ_BYTES)
            except ConnectionError:
                return
            if not data:
                return
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


def message_tail(producer: str, sequence_id: int, bodies: list[bytes], key: str | None) -> bytes:
    """What follows a SEND: one message as it is, several as a batch."""
    metadata = MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=int(time.time() * 1000)
    )
    if key is not None:
        metadata.partition_key = key
    payload = bodies[0]
    if len(bodies) > 1:
        metadata.num_messages_in_batch = len(bodies)
        singles = [SingleMessageMetadata(payload_size=len(each)) for each in bodies]
        heads = [each.SerializeToString() for each in singles]
        pairs = zip(heads, bodies, strict=True)
        payload = b"".join([len(head).to_bytes(4, "big") + head + each for head, each in pairs])
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
        str(metadata.partition_key),
        message.redelivery_count,
        time.monotonic(),
    )


def _said(command: BaseCommand) -> Any:
    return getattr(command, _FIELD_OF[command.type])
