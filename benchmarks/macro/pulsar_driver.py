"""A Pulsar client that costs next to nothing: its SENDs are encoded before the clock starts.

One connection, as a client has it, with a producer, a consumer, or both. The producer keeps
``window`` messages without a receipt under way: as many frames leave as receipts came. The consumer
has as many permits as a client's queue of 1,000 and asks for more when half of them are used; it
acknowledges every entry by itself, ``acks`` of them in a command. Frames are cut by their length;
of a MESSAGE only the id is looked at, which lies at a fixed place in what brokers of today write.

Checked: every SEND has its receipt, every entry comes once.
"""

import itertools
import select
import socket
import struct
import time
from dataclasses import dataclass

from penstock.wire.pulsar.frames import crc32c, encode, payload_frame
from penstock.wire.pulsar.hot_commands import varint
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    MessageMetadata,
    SingleMessageMetadata,
)

READ_BYTES = 1 << 20
FRAMES_MADE = 256
FIRST_SEQUENCE = 1 << 14
"""Numbers of three bytes: all frames are equally long."""
MESSAGES_PER_MS = 32
"""Of equal publish times in a row, as a producer has them that sends some 30,000 a second."""
SILENCE_SECONDS_MAX = 30
PERMITS = 1_000
_SIZE = struct.Struct(">I")
_KIND_AT = 9
_ID_LEN_AT = 15
_ID_AT = 16
_NO_PARTITION = b"\x18" + b"\xff" * 9 + b"\x01"
_PONG = encode(BaseCommand(type=BaseCommand.PONG, pong={}))
_RECEIPT, _MESSAGE, _PING = BaseCommand.SEND_RECEIPT, BaseCommand.MESSAGE, BaseCommand.PING


class Unexpected(Exception):
    """The broker said something that no healthy run has, or nothing."""


@dataclass
class Load:
    """What a run is to do."""

    topic: str
    messages: int
    batch: int = 1
    """Messages of a SEND; 1 = not batched at all."""
    body_bytes: int = 128
    window: int = 1_000
    """Messages without a receipt."""
    acks: int = 1
    """Entries acknowledged by one command."""
    has_keys: bool = False
    """Every SEND has a partition key, 256 different ones."""
    subscription_type: str = "Shared"
    is_producing: bool = True
    is_consuming: bool = True

    @property
    def entries(self):
        return self.messages // self.batch


@dataclass
class Done:
    entries: int
    messages: int
    seconds: float

    @property
    def per_second(self):
        return self.messages / self.seconds


class Wire:
    """A socket that is never waited for when it can be read or written."""

    def __init__(self, host, port):
        self.socket = socket.create_connection((host, port), timeout=SILENCE_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = itertools.count(1)
        self._rest = b""
        self._unsent = b""
        self.ask("CONNECT", client_version="Pulsar-Bench-1", protocol_version=20)
        self.socket.setblocking(False)

    def ask(self, kind, **fields):
        """A command, and the one that answers it."""
        command = BaseCommand(type=kind)
        number = BaseCommand.Type.Value(kind)
        part = getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[number].name)
        if "request_id" in part.DESCRIPTOR.fields_by_name:
            fields["request_id"] = next(self._requests)
        part.SetInParent()
        part.MergeFrom(type(part)(**fields))
        self.write(encode(command))
        until = time.monotonic() + SILENCE_SECONDS_MAX
        while time.monotonic() < until:
            for data in self.frames():
                size = _SIZE.unpack_from(data, 4)[0]
                answer = BaseCommand.FromString(data[8 : 8 + size])
                if answer.type == BaseCommand.PING:
                    self.write(_PONG)
                elif answer.type == BaseCommand.ERROR:
                    raise Unexpected(f"{kind}: {answer.error.message}")
                elif answer.type != BaseCommand.ACTIVE_CONSUMER_CHANGE:
                    return answer
        raise Unexpected(f"{kind}: no answer")

    def look_up(self, topic):
        """As every client does: a real server serves no topic that nobody looked for."""
        self.ask("LOOKUP", topic=topic)

    def write(self, data):
        """Now as far as it goes; the rest when ``read`` finds that it can."""
        self._unsent += data
        self._push()

    def _push(self):
        try:
            taken = self.socket.send(self._unsent)
        except BlockingIOError:
            return
        self._unsent = self._unsent[taken:]

    def read(self):
        """Whole frames and perhaps the beginning of another one, which is given again."""
        while True:
            write = [self.socket] if self._unsent else []
            readable, writable, _ = select.select([self.socket], write, [], SILENCE_SECONDS_MAX)
            if not readable and not writable:
                raise Unexpected(f"nothing came for {SILENCE_SECONDS_MAX} s")
            if writable:
                self._push()
            if readable:
                data = self.socket.recv(READ_BYTES)
                if not data:
                    raise Unexpected("the broker hung up")
                return self._rest + data if self._rest else data

    def keep(self, rest):
        self._rest = rest

    def frames(self):
        """What came, cut."""
        data = self.read()
        found, at = [], 0
        while at + 4 <= len(data):
            stop = at + 4 + _SIZE.unpack_from(data, at)[0]
            if stop > len(data):
                break
            found.append(data[at:stop])
            at = stop
        self.keep(data[at:])
        return found

    def close(self):
        self.socket.close()


def run(wire, load):
    """Produce, consume or both, until everything is answered and delivered."""
    wire.look_up(load.topic)
    sends = _open_producer(wire, load) if load.is_producing else b""
    if load.is_consuming:
        open_consumer(wire, load)
    state = _Run(wire, load, sends)
    began = time.perf_counter()
    state.begin()
    while not state.is_done:
        state.turn()
    seconds = time.perf_counter() - began
    state.end()
    return Done(load.entries, load.messages, seconds)


def open_consumer(wire, load, consumer_id=1):
    """A consumer with an id below 128, without permits."""
    wire.ask(
        "SUBSCRIBE",
        topic=load.topic,
        subscription="bench",
        subType=load.subscription_type,
        consumer_id=consumer_id,
        initialPosition="Earliest",
    )


class _Run:
    """What is under way on one connection."""

    def __init__(self, wire, load, sends):
        self._wire = wire
        self._load = load
        self._sends = memoryview(sends)
        self._send_bytes = len(sends) // FRAMES_MADE
        self._next_send = 0
        self._unsent = load.entries if load.is_producing else 0
        self._unanswered = self._unsent
        self._undelivered = load.entries if load.is_consuming else 0
        self._used_permits = 0
        self._ids = []
        self._seen = set()

    @property
    def is_done(self):
        return not (self._unanswered or self._undelivered)

    def begin(self):
        if self._undelivered:
            self._wire.write(flow_frame(PERMITS))
        self._wire.write(self._take_sends(self._load.window // self._load.batch))

    def turn(self):
        """One read, and what it lets us write."""
        data = self._wire.read()
        ids = self._ids
        receipts = at = 0
        end = len(data)
        fresh = len(ids)
        while end - at >= _ID_AT:
            stop = at + 4 + _SIZE.unpack_from(data, at)[0]
            if stop > end:
                break
            kind = data[at + _KIND_AT]
            if kind == _MESSAGE:
                id_at = at + _ID_AT
                ids.append(data[id_at : id_at + data[at + _ID_LEN_AT]])
            elif kind == _RECEIPT:
                receipts += 1
            else:
                self._other(data[at:stop])
            at = stop
        self._wire.keep(data[at:])
        answer = []
        delivered = len(ids) - fresh
        if delivered:
            self._undelivered -= delivered
            answer += self._acknowledge()
            self._used_permits += delivered * self._load.batch
            if self._used_permits >= PERMITS // 2:
                answer.append(flow_frame(self._used_permits))
                self._used_permits = 0
        if receipts:
            self._unanswered -= receipts
            answer.append(self._take_sends(receipts))
        if answer:
            self._wire.write(b"".join(answer))

    def end(self):
        """The rest is acknowledged, and everything came once."""
        self._wire.write(b"".join(self._acknowledge(is_last=True)))
        if self._undelivered or self._unanswered:
            raise Unexpected(
                f"{self._undelivered} entries and {self._unanswered} receipts are missing"
            )
        if self._load.is_consuming and len(self._seen) != self._load.entries:
            raise Unexpected(f"{self._load.entries - len(self._seen)} entries came twice")

    def _take_sends(self, count):
        count = min(count, self._unsent)
        self._unsent -= count
        pieces = []
        while count:
            first = self._next_send
            taken = min(count, FRAMES_MADE - first)
            size = self._send_bytes
            pieces.append(self._sends[first * size : (first + taken) * size])
            self._next_send = (first + taken) % FRAMES_MADE
            count -= taken
        return b"".join(pieces)

    def _acknowledge(self, *, is_last=False):
        ids, step = self._ids, self._load.acks
        count = len(ids) if is_last else len(ids) // step * step
        self._ids = ids[count:]
        self._seen.update(ids[:count])
        return [ack_frame(ids[at : min(at + step, count)]) for at in range(0, count, step)]

    def _other(self, frame):
        if frame[_KIND_AT] == _PING:
            self._wire.write(_PONG)
        elif frame[_KIND_AT] != BaseCommand.ACTIVE_CONSUMER_CHANGE:
            raise Unexpected(str(BaseCommand.FromString(frame[8:])))


_ACK_PART = b"\x08\x01\x10\x00"
"""Consumer 1, individual."""
_fronts = {}


def ack_frame(ids):
    """As clients do it: ledger and entry, without a partition."""
    part = _ACK_PART + b"".join([_id_field(each) for each in ids])
    size = len(part)
    front = _fronts.get(size)
    if front is None:
        mark = b"\x08\x0a\x52" + varint(size)
        front = _SIZE.pack(len(mark) + size + 4) + _SIZE.pack(len(mark) + size) + mark
        _fronts[size] = front
    return front + part


def _id_field(message_id):
    if message_id.endswith(_NO_PARTITION):
        message_id = message_id[: -len(_NO_PARTITION)]
    return b"\x1a%c%b" % (len(message_id), message_id)


def flow_frame(permits):
    return encode(
        BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": permits})
    )


def _open_producer(wire, load):
    answer = wire.ask("PRODUCER", topic=load.topic, producer_id=1)
    return b"".join(send_frames(answer.producer_success.producer_name, load))


def send_frames(producer_name, load):
    """Equally long ones, one behind the other."""
    for number in range(FRAMES_MADE):
        sequence_id = FIRST_SEQUENCE + number
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id = 1
        command.send.sequence_id = sequence_id
        command.send.num_messages = load.batch
        metadata = MessageMetadata(
            producer_name=producer_name,
            sequence_id=sequence_id,
            publish_time=int(time.time() * 1000) + number // MESSAGES_PER_MS,
        )
        if load.has_keys:
            metadata.partition_key = f"key-{number:03}"
        payload = bytes([number % 251]) * load.body_bytes
        if load.batch > 1:
            metadata.num_messages_in_batch = load.batch
            single = SingleMessageMetadata(payload_size=load.body_bytes).SerializeToString()
            payload = (_SIZE.pack(len(single)) + single + payload) * load.batch
        data = metadata.SerializeToString()
        rest = _SIZE.pack(len(data)) + data + payload
        tail = b"\x0e\x01" + _SIZE.pack(crc32c(rest)) + rest
        yield b"".join(payload_frame(command.SerializeToString(), tail))
