"""A raw Pulsar client: one blocking socket, protobuf commands, nothing done behind a test's back.

    with PulsarPeer(("127.0.0.1", 6650)) as peer:
        peer.connect()
        producer = peer.producer("persistent://public/default/orders")
        producer.publish(b"hello")
        consumer = peer.consumer(topic, "shop", "Shared", initialPosition="Earliest")
        consumer.flow(10)
        consumer.message().payload

It answers no PING, sends no FLOW and repeats nothing: what a test does not say is not sent. Nobody
sleeps: a test waits for frames, and "nothing comes" is a round of PINGs answered by PONGs only
(``expect_nothing``), after ``quiet_seconds`` where the broker reads its disk in threads of its own.

``PulsarRest`` is the same for ``/admin/v2`` and ``/lookup/v2``.
"""

import base64
import http.client
import itertools
import json
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import google_crc32c

from penstock.wire.pulsar import protocol_pb2 as pb

NONE: Final = (1 << 64) - 1
"""-1 in an unsigned field: no such id."""

EARLIEST: Final = (NONE, NONE)
LATEST: Final = ((1 << 63) - 1, (1 << 63) - 1)

ANSWER_SECONDS_MAX: Final = 15.0
"""Long enough for a busy machine; a green test waits a fraction of it."""

BARRIER_ROUNDS: Final = 3
"""PINGs of one barrier: the first may overtake what the turn it falls into will still send."""

_CHECKSUM_MAGIC: Final = b"\x0e\x01"
_BROKER_METADATA_MAGIC: Final = b"\x0e\x02"
_WORD: Final = struct.Struct(">I")

MessageId = tuple[int, int]


class Frame(NamedTuple):
    """One frame from the broker."""

    kind: str
    """Name of the command as of its field: ``send_receipt``."""
    command: Any
    tail: bytes
    """What follows a MESSAGE command."""


class Delivery:
    """One MESSAGE: its id, its count, and what was stored."""

    def __init__(self, frame: Frame) -> None:
        self.command = frame.command
        self.tail = frame.tail
        self.id: MessageId = (frame.command.message_id.ledgerId, frame.command.message_id.entryId)
        self.count: int = frame.command.redelivery_count
        self.ack_set: list[int] = list(frame.command.ack_set)
        body = frame.tail
        self.broker_metadata: pb.BrokerEntryMetadata | None = None
        if body[:2] == _BROKER_METADATA_MAGIC:
            (size,) = _WORD.unpack_from(body, 2)
            self.broker_metadata = pb.BrokerEntryMetadata.FromString(body[6 : 6 + size])
            body = body[6 + size :]
        self.has_checksum = body[:2] == _CHECKSUM_MAGIC
        if self.has_checksum:
            assert _WORD.unpack_from(body, 2)[0] == google_crc32c.value(body[6:]), "bad CRC"
            body = body[6:]
        (size,) = _WORD.unpack_from(body)
        self.metadata = pb.MessageMetadata.FromString(body[4 : 4 + size])
        self.payload = body[4 + size :]

    @property
    def messages(self) -> int:
        """How many messages the entry holds."""
        return self.metadata.num_messages_in_batch

    @property
    def payloads(self) -> list[bytes]:
        """Of each message of a batch; of an entry without one, its own."""
        if not self.metadata.HasField("num_messages_in_batch"):
            return [self.payload]
        return [body for _, body in batch_singles(self.payload, self.messages)]

    def __repr__(self) -> str:
        return f"<{self.id[0]}:{self.id[1]} count {self.count} {self.payload[:20]!r}>"


class PulsarPeer:
    """A connection; ``connect`` says hello."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        seconds: float = ANSWER_SECONDS_MAX,
        quiet_seconds: float = 0.0,
    ) -> None:
        self.seconds = seconds
        self.quiet_seconds = quiet_seconds
        self.socket = socket.create_connection(address, timeout=seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._stash: list[Frame] = []
        self._ids = itertools.count(1)
        self._requests = itertools.count(1000)

    def __enter__(self) -> "PulsarPeer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut the connection without a word."""
        self.socket.close()

    # ---- out

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        self.socket.sendall(data)

    def command(self, kind: str, tail: bytes = b"", **fields: Any) -> None:
        """Send one command; fields as of its message, nested ones as dictionaries."""
        self.write(frame(kind, tail, **fields))

    def request(self, kind: str, **fields: Any) -> int:
        """Send a command with a request id of its own; that id."""
        number = next(self._requests)
        self.command(kind, request_id=number, **fields)
        return number

    def ask(self, kind: str, **fields: Any) -> Frame:
        """Send a request and wait for its answer; what comes between is kept for ``expect``."""
        return self.answer(self.request(kind, **fields))

    def answer(self, request_id: int, seconds: float | None = None) -> Frame:
        """The frame that answers this request."""
        until = time.monotonic() + (self.seconds if seconds is None else seconds)
        kept = []
        try:
            while True:
                found = self.receive(until - time.monotonic())
                if getattr(found.command, "request_id", None) == request_id:
                    return found
                kept.append(found)
        finally:
            self._stash[:0] = kept

    # ---- in

    def receive(self, seconds: float | None = None) -> Frame:
        """The next frame; ``TimeoutError`` without one, ``ConnectionError`` at the end."""
        if self._stash:
            return self._stash.pop(0)
        until = time.monotonic() + (self.seconds if seconds is None else seconds)
        while (found := self._next()) is None:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("no frame came")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 18)
            finally:
                self.socket.settimeout(self.seconds)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._received += data
        return found

    def expect(self, kind: str, seconds: float | None = None, **fields: Any) -> Any:
        """The next frame's command, which must be of this kind and have these fields."""
        try:
            found = self.receive(seconds)
        except (TimeoutError, ConnectionError) as error:
            raise AssertionError(f"{kind} did not come: {error}") from error
        assert found.kind == kind, f"{kind} was expected, this came: {found.kind} {found.command}"
        for name, value in fields.items():
            seen = getattr(found.command, name)
            assert seen == value, f"{kind}.{name} is {seen!r}, not {value!r}"
        return found.command

    def expect_error(self, code: str, text: str | None = None, seconds: float | None = None) -> Any:
        """The next frame is an ERROR of this code, with ``text`` in its message."""
        found = self.expect("error", seconds)
        check_error(found, code, text)
        return found

    def refused(self, code: str, text: str | None, kind: str, **fields: Any) -> Any:
        """Send a request that is answered by an ERROR."""
        found = self.ask(kind, **fields)
        assert found.kind == "error", f"an error was expected, this came: {found}"
        check_error(found.command, code, text)
        return found.command

    def message(self, seconds: float | None = None) -> Delivery:
        """The next frame, a MESSAGE."""
        try:
            found = self.receive(seconds)
        except (TimeoutError, ConnectionError) as error:
            raise AssertionError(f"no message came: {error}") from error
        assert found.kind == "message", f"a message was expected, this came: {found}"
        return Delivery(found)

    def messages(self, count: int, seconds: float | None = None) -> list[Delivery]:
        """The next ``count`` frames, all of them MESSAGEs."""
        return [self.message(seconds) for _ in range(count)]

    def expect_nothing(self) -> None:
        """Nothing is on its way: PINGs are answered, and nothing comes with the answers."""
        assert not self._stash, f"this came: {self._stash}"
        if self.quiet_seconds:
            try:
                found = self.receive(self.quiet_seconds)
            except TimeoutError:
                pass
            else:
                raise AssertionError(f"nothing was expected, this came: {found}")
        for _ in range(BARRIER_ROUNDS):
            self.command("ping")
            self.expect("pong")

    def expect_closed(self, seconds: float | None = None) -> None:
        """The broker closes the connection without another word."""
        try:
            found = self.receive(seconds)
        except TimeoutError:
            raise AssertionError("the connection was not closed") from None
        except OSError:
            return
        raise AssertionError(f"the end was expected, this came: {found}")

    def drain(self) -> list[Frame]:
        """All frames up to the end of the connection."""
        found = []
        try:
            while True:
                found.append(self.receive())
        except TimeoutError:
            raise
        except OSError:
            return found

    def gather(self) -> list[Frame]:
        """What comes until nothing comes any more."""
        found: list[Frame] = []
        rounds = 0
        while rounds < BARRIER_ROUNDS:
            try:
                while self.quiet_seconds:
                    found.append(self.receive(self.quiet_seconds))
            except TimeoutError:
                pass
            came = self.barrier()
            found += came
            rounds = 0 if came else rounds + 1
        return found

    def barrier(self) -> list[Frame]:
        """What came before the answer to a PING."""
        self.command("ping")
        found = []
        while (each := self.receive()).kind != "pong":
            found.append(each)
        return found

    def _next(self) -> Frame | None:
        if len(self._received) < 4:
            return None
        (size,) = _WORD.unpack_from(self._received)
        if len(self._received) < 4 + size:
            return None
        body = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        (length,) = _WORD.unpack_from(body)
        base = pb.BaseCommand.FromString(body[4 : 4 + length])
        kind = KIND_OF[base.type]
        return Frame(kind, getattr(base, kind), body[4 + length :])

    # ---- verbs

    def connect(self, **fields: Any) -> Any:
        """CONNECT, and what CONNECTED says."""
        fields = {"client_version": "penstock-raw-peer", "protocol_version": 20, **fields}
        self.command("connect", **fields)
        return self.expect("connected")

    def lookup(self, topic: str, **fields: Any) -> Any:
        """LOOKUP's answer."""
        return self.ask("lookup_topic", topic=topic, **fields).command

    def partitions(self, topic: str, **fields: Any) -> Any:
        """PARTITIONED_METADATA's answer."""
        return self.ask("partition_metadata", topic=topic, **fields).command

    def producer(self, topic: str, name: str | None = None, **fields: Any) -> "RawProducer":
        """PRODUCER, and its success."""
        if name is not None:
            fields["producer_name"] = name
        number = fields.pop("producer_id", None)
        number = next(self._ids) if number is None else number
        found = self.ask("producer", topic=topic, producer_id=number, **fields)
        assert found.kind == "producer_success", f"no producer: {found}"
        return RawProducer(self, number, found.command)

    def no_producer(
        self, code: str, text: str | None, topic: str, name: str | None = None, **fields: Any
    ) -> Any:
        """PRODUCER, which is refused."""
        if name is not None:
            fields["producer_name"] = name
        fields.setdefault("producer_id", next(self._ids))
        return self.refused(code, text, "producer", topic=topic, **fields)

    def subscribe(
        self, topic: str, subscription: str, kind: str = "Exclusive", **fields: Any
    ) -> tuple[int, int]:
        """Send SUBSCRIBE, without waiting; request id and consumer id."""
        number = fields.pop("consumer_id", None)
        number = next(self._ids) if number is None else number
        request = self.request(
            "subscribe",
            topic=topic,
            subscription=subscription,
            subType=kind,
            consumer_id=number,
            **fields,
        )
        return request, number

    def consumer(
        self, topic: str, subscription: str, kind: str = "Exclusive", **fields: Any
    ) -> "RawConsumer":
        """SUBSCRIBE, and its success."""
        request, number = self.subscribe(topic, subscription, kind, **fields)
        found = self.answer(request)
        assert found.kind == "success", f"no consumer: {found}"
        return RawConsumer(self, number)

    def no_consumer(
        self,
        refusal: tuple[str, str | None],
        topic: str,
        subscription: str,
        kind: str = "Exclusive",
        **fields: Any,
    ) -> Any:
        """SUBSCRIBE, which is refused with this code and text."""
        request, _ = self.subscribe(topic, subscription, kind, **fields)
        found = self.answer(request)
        assert found.kind == "error", f"an error was expected, this came: {found}"
        check_error(found.command, *refusal)
        return found.command

    def reader(
        self, topic: str, start: MessageId = EARLIEST, name: str = "reader-x", **fields: Any
    ) -> "RawConsumer":
        """A non-durable subscription that starts there."""
        start_id = {"ledgerId": start[0], "entryId": start[1]}
        return self.consumer(topic, name, durable=False, start_message_id=start_id, **fields)


class RawProducer:
    """A producer of a peer: sequence ids are counted, unless given."""

    def __init__(self, peer: PulsarPeer, number: int, success: Any) -> None:
        self.peer = peer
        self.id = number
        self.success = success
        self.name: str = success.producer_name
        self._sequence = itertools.count(success.last_sequence_id + 1)

    def send(
        self,
        payload: bytes | Sequence[bytes] = b"x",
        *,
        sequence: int | None = None,
        fields: dict[str, Any] | None = None,
        is_checked: bool = True,
        **metadata: Any,
    ) -> int:
        """SEND one message, or a list of them as a batch; ``fields`` are SEND's own."""
        number = next(self._sequence) if sequence is None else sequence
        told = {"producer_id": self.id, "sequence_id": number, **(fields or {})}
        about: dict[str, Any] = {
            "producer_name": self.name,
            "sequence_id": number,
            "publish_time": int(time.time() * 1000),
            **metadata,
        }
        if not isinstance(payload, bytes):
            about.setdefault("num_messages_in_batch", len(payload))
            told.setdefault("num_messages", len(payload))
            payload = batch(payload)
        tail = stored(pb.MessageMetadata(**about), payload, is_checked=is_checked)
        self.peer.command("send", tail, **told)
        return number

    def receipt(self, seconds: float | None = None) -> MessageId:
        """The next frame, a SEND_RECEIPT of this producer; the id in it."""
        found = self.peer.expect("send_receipt", seconds, producer_id=self.id)
        return found.message_id.ledgerId, found.message_id.entryId

    def publish(self, payload: bytes | Sequence[bytes] = b"x", **options: Any) -> MessageId:
        """SEND and its receipt: the id."""
        self.send(payload, **options)
        return self.receipt()

    def publish_all(
        self, payloads: Iterable[bytes | Sequence[bytes]], **options: Any
    ) -> list[MessageId]:
        """SENDs, then their receipts: the ids."""
        count = 0
        for each in payloads:
            self.send(each, **options)
            count += 1
        return [self.receipt() for _ in range(count)]

    def close(self) -> None:
        """CLOSE_PRODUCER and its SUCCESS."""
        found = self.peer.ask("close_producer", producer_id=self.id)
        assert found.kind == "success", found


class RawConsumer:
    """A consumer of a peer."""

    def __init__(self, peer: PulsarPeer, number: int) -> None:
        self.peer = peer
        self.id = number

    def flow(self, permits: int) -> None:
        """FLOW."""
        self.peer.command("flow", consumer_id=self.id, messagePermits=permits)

    def message(self, seconds: float | None = None) -> Delivery:
        """The next frame, a MESSAGE for this consumer."""
        found = self.peer.message(seconds)
        assert found.command.consumer_id == self.id, found.command
        return found

    def messages(self, count: int, seconds: float | None = None) -> list[Delivery]:
        """The next ``count`` frames, all of them MESSAGEs for this consumer."""
        return [self.message(seconds) for _ in range(count)]

    def ack(self, *ids: MessageId, kind: str = "Individual", **fields: Any) -> None:
        """ACK without a receipt."""
        self.peer.command(
            "ack", consumer_id=self.id, ack_type=kind, message_id=[as_id(i) for i in ids], **fields
        )

    def acked(self, *ids: MessageId | dict[str, Any], kind: str = "Individual") -> Any:
        """ACK with a request id, and its ACK_RESPONSE."""
        found = self.peer.ask(
            "ack", consumer_id=self.id, ack_type=kind, message_id=[as_id(i) for i in ids]
        )
        assert found.kind == "ack_response", found
        return found.command

    def redeliver(self, *ids: MessageId, **fields: Any) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES: these, or all."""
        self.peer.command(
            "redeliver_unacknowledged_messages",
            consumer_id=self.id,
            message_ids=[as_id(i) for i in ids],
            **fields,
        )

    def seek(self, target: MessageId | None = None, **fields: Any) -> int:
        """Send SEEK; its request id."""
        if target is not None:
            fields["message_id"] = as_id(target)
        return self.peer.request("seek", consumer_id=self.id, **fields)

    def last_id(self) -> Any:
        """GET_LAST_MESSAGE_ID's answer."""
        found = self.peer.ask("get_last_message_id", consumer_id=self.id)
        assert found.kind == "get_last_message_id_response", found
        return found.command

    def stats(self) -> Any:
        """CONSUMER_STATS' answer."""
        return self.peer.ask("consumer_stats", consumer_id=self.id).command

    @property
    def permits(self) -> int:
        """What the broker counts, below zero as it does."""
        found: int = self.stats().availablePermits
        return found - (1 << 64) if found >> 63 else found

    @property
    def unacked(self) -> int:
        """What the broker counts."""
        found: int = self.stats().unackedMessages
        return found

    def unsubscribe(self, **fields: Any) -> Frame:
        """UNSUBSCRIBE's answer."""
        return self.peer.ask("unsubscribe", consumer_id=self.id, **fields)

    def close(self) -> None:
        """CLOSE_CONSUMER and its SUCCESS."""
        found = self.peer.ask("close_consumer", consumer_id=self.id)
        assert found.kind == "success", found

    def expect_closed(self) -> None:
        """The broker closes this consumer."""
        self.peer.expect("close_consumer", consumer_id=self.id, request_id=NONE)


# ---- bytes --------------------------------------------------------------------------------------

KIND_OF: Final = {
    field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.number > 1
}
"""Type of a command -> its field in ``BaseCommand``: they have the same number."""

_TYPE_OF: Final = {name: number for number, name in KIND_OF.items()}


def frame(kind: str, tail: bytes = b"", **fields: Any) -> bytes:
    """A whole frame; required fields may be missing."""
    made: dict[str, Any] = {"type": _TYPE_OF[kind], kind: fields}
    base = pb.BaseCommand(**made)
    getattr(base, kind).SetInParent()
    return framed(base.SerializePartialToString(), tail)


def framed(command: bytes, tail: bytes = b"") -> bytes:
    """Sizes before a serialized command, and what follows it."""
    return b"".join((
        _WORD.pack(4 + len(command) + len(tail)), _WORD.pack(len(command)), command, tail,
    ))  # fmt: skip


def stored(metadata: pb.MessageMetadata, payload: bytes, *, is_checked: bool = True) -> bytes:
    """What follows a SEND command."""
    about = metadata.SerializePartialToString()
    body = _WORD.pack(len(about)) + about + payload
    if not is_checked:
        return body
    return _CHECKSUM_MAGIC + _WORD.pack(google_crc32c.value(body)) + body


def batch(payloads: Sequence[bytes]) -> bytes:
    """The payload of an entry with several messages."""
    found = bytearray()
    for each in payloads:
        single = pb.SingleMessageMetadata(payload_size=len(each)).SerializeToString()
        found += _WORD.pack(len(single)) + single + each
    return bytes(found)


def batch_singles(payload: bytes, count: int) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
    """The messages of a batch that is not compressed: what each says of itself, and its body."""
    found, at = [], 0
    for _ in range(count):
        (size,) = _WORD.unpack_from(payload, at)
        single = pb.SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size
        found.append((single, payload[at : at + single.payload_size]))
        at += single.payload_size
    return found


def as_id(target: MessageId | dict[str, Any]) -> dict[str, Any]:
    """``MessageIdData``: from (ledger, entry), or with further fields as it is."""
    if isinstance(target, dict):
        return target
    return {"ledgerId": target[0], "entryId": target[1]}


def check_error(found: Any, code: str, text: str | None) -> None:
    """Code by its name, and what the text must contain."""
    seen = pb.ServerError.Name(found.error)
    assert seen == code, f"{seen}, not {code}: {found.message}"
    assert text is None or text in found.message, found.message


# ---- REST ---------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Status and body of an answer."""

    status: int
    text: str
    headers: dict[str, str] = {}
    """Names in lower case."""

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.text)

    @property
    def reason(self) -> str:
        """What an error says."""
        found: str = self.json["reason"]
        return found


class PulsarRest:
    """Pulsar's REST API at one address; paths below ``/admin/v2`` unless they begin with ``/``."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> Answer:
        """GET."""
        return self.call("GET", path)

    def put(self, path: str, body: Any = None) -> Answer:
        """PUT with a JSON body."""
        return self.call("PUT", path, body)

    def post(self, path: str, body: Any = None) -> Answer:
        """POST with a JSON body."""
        return self.call("POST", path, body)

    def delete(self, path: str, body: Any = None) -> Answer:
        """DELETE."""
        return self.call("DELETE", path, body)

    def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Answer:
        """Any method; the answer whatever its status."""
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(
            place.hostname or "", place.port, timeout=ANSWER_SECONDS_MAX * 2
        )
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        whole = path if path.startswith("/") else f"/admin/v2/{path}"
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, whole, text, headers)
            found = connection.getresponse()
            told = {name.lower(): value for name, value in found.getheaders()}
            return Answer(found.status, found.read().decode("utf-8", "replace"), told)
        finally:
            connection.close()

    def done(self, method: str, path: str, body: Any = None) -> None:
        """A call that must succeed."""
        found = self.call(method, path, body)
        assert found.status in {200, 204}, f"{method} {path}: {found.status} {found.text}"


def encoded_key(key: bytes) -> str:
    """A binary key as ``partition_key_b64_encoded`` has it."""
    return base64.b64encode(key).decode()


def murmur3(data: bytes) -> int:
    """MurmurHash3, 32 bits, seed 0: written apart from the broker's, to check it."""
    value, mask = 0, 0xFFFFFFFF

    def mixed(word: int) -> int:
        word = word * 0xCC9E2D51 & mask
        return ((word << 15 | word >> 17) & mask) * 0x1B873593 & mask

    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        value ^= mixed(int.from_bytes(data[at : at + 4], "little"))
        value = ((value << 13 | value >> 19) & mask) * 5 + 0xE6546B64 & mask
    if data[whole:]:
        value ^= mixed(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & mask
    value = (value ^ value >> 13) * 0xC2B2AE35 & mask
    return value ^ value >> 16
