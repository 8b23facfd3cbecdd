"""A driver that costs next to nothing: frames are encoded before the clock starts.

One connection keeps ``window`` sends in flight: as many frames leave as answers came. Answers are
cut by their length field and checked for ``"code":0``; nothing of them is decoded. Frames use JSON
headers in letters (V2), which every RocketMQ client and broker of today speaks.
"""

import re
import selectors
import socket
import struct
import time
from dataclasses import dataclass
from itertools import cycle, islice

from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.frames import encode
from penstock.wire.rocketmq.headers import PullFlag, PullHeader, SendHeaderV2, fields

READ_BYTES = 1 << 20
FRAMES_MADE = 1024
SILENCE_SECONDS_MAX = 30
GROUP = "bench-consumers"
_LENGTH = struct.Struct(">I")
_OK = re.compile(rb'"code"\s*:\s*0\b')
_NEXT = re.compile(rb'"nextBeginOffset"\s*:\s*"?(\d+)')
_HEADER_MARK = struct.Struct(">I")
_PREFIX = struct.Struct(">II")


@dataclass
class Sent:
    messages: int
    seconds: float
    refused: int
    first_refusal: str

    @property
    def per_second(self):
        return self.messages / self.seconds


@dataclass
class Pulled:
    messages: int
    pulls: int
    seconds: float

    @property
    def per_second(self):
        return self.messages / self.seconds


class Wire:
    """A blocking socket that gives whole frames."""

    def __init__(self, host, port):
        self.socket = socket.create_connection((host, port), timeout=SILENCE_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def frames(self):
        """At least one whole frame, all that came."""
        while True:
            data = self.socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the broker hung up")
            buffer = self._rest + data
            found, at, end = [], 0, len(buffer)
            while at + 4 <= end:
                size = 4 + _LENGTH.unpack_from(buffer, at)[0]
                if at + size > end:
                    break
                found.append(buffer[at : at + size])
                at += size
            self._rest = buffer[at:]
            if found:
                return found

    def ask(self, code, ext=None, body=b""):
        """One request, one answer, as bytes."""
        self.socket.sendall(encode(Command(int(code), ext or {}, body, 999_999)))
        return self.frames()[0]

    def close(self):
        self.socket.close()


def send_frames(topic, *, queues, body_bytes):
    """Different unique keys, as clients have them; queues in turn."""
    made = []
    for number in range(FRAMES_MADE):
        key = f"7F000001{number:024X}"
        header = SendHeaderV2(
            producer_group="bench-producers",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=queues,
            queue_id=number % queues,
            born_timestamp=int(time.time() * 1000),
            properties=f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
        )
        body = bytes(number % 251 for _ in range(body_bytes))
        made.append(encode(Command(int(RequestCode.SEND_MESSAGE_V2), fields(header), body, number)))
    return made


def send_all(wire, frames, messages, *, window):
    """Send so many messages with so many in flight."""
    supply = islice(cycle(frames), messages)
    answered = refused = 0
    first_refusal = ""
    began = time.perf_counter()
    wire.socket.sendall(b"".join(islice(supply, window)))
    while answered < messages:
        answers = wire.frames()
        wire.socket.sendall(b"".join(islice(supply, len(answers))))
        answered += len(answers)
        for answer in answers:
            if not _OK.search(answer, 8, 400):
                refused += 1
                first_refusal = first_refusal or answer[8:408].decode("utf-8", "replace")
    return Sent(messages, time.perf_counter() - began, refused, first_refusal)


def pull_frame(topic, queue, offset, *, count=32, hold_ms=0, opaque=0, group=GROUP):
    header = PullHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=int(PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if hold_ms else 0)),
        suspend_timeout_millis=hold_ms,
        subscription="*",
        expression_type="TAG",
    )
    return encode(Command(int(RequestCode.PULL_MESSAGE), fields(header), b"", opaque))


def pull_all(wire, topic, *, queues, messages, count=32):
    """One pull per queue under way, each from where the last one ended, until all were read."""
    halves, offsets = [], [0] * queues
    for queue in range(queues):
        # Only the offset and the two lengths change from one pull to the next.
        frame = pull_frame(topic, queue, 9_999_999_999, count=count, opaque=queue)
        halves.append(frame[8:].split(b"9999999999"))
    began = time.perf_counter()
    seen = pulls = 0
    opaque_of = re.compile(rb'"opaque"\s*:\s*(\d+)')

    def ask(queue):
        head, tail = halves[queue]
        header = b"%b%d%b" % (head, offsets[queue], tail)
        return _PREFIX.pack(4 + len(header), len(header)) + header

    wire.socket.sendall(b"".join(ask(queue) for queue in range(queues)))
    done = set()
    while len(done) < queues:
        for answer in wire.frames():
            pulls += 1
            head = answer[8 : 8 + (_HEADER_MARK.unpack_from(answer, 4)[0] & 0xFFFFFF)]
            queue = int(opaque_of.search(head).group(1))
            if not _OK.search(head):
                done.add(queue)
                continue
            following = int(_NEXT.search(head).group(1))
            seen += following - offsets[queue]
            offsets[queue] = following
            if seen >= messages:
                done = set(range(queues))
                break
            wire.socket.sendall(ask(queue))
    return Pulled(seen, pulls, time.perf_counter() - began)


def hold_polls(host, port, topic, *, polls, seconds, cpu_seconds, hold_ms=15_000):
    """Share of one core that idle long polls cost; each is asked again when it comes back."""
    selector = selectors.DefaultSelector()
    wires = []
    frame = pull_frame(topic, 0, 0, hold_ms=hold_ms, group="bench-idle")
    for _ in range(polls):
        wire = Wire(host, port)
        wire.socket.sendall(frame)
        selector.register(wire.socket, selectors.EVENT_READ, wire)
        wires.append(wire)
    settled = time.perf_counter() + 3
    began = cpu = None
    answers = 0
    while began is None or time.perf_counter() < began + seconds:
        if began is None and time.perf_counter() >= settled:
            began, cpu = time.perf_counter(), cpu_seconds()
        for key, _ in selector.select(0.2):
            answers += len(key.data.frames())
            key.fileobj.sendall(frame)
    share = (cpu_seconds() - cpu) / (time.perf_counter() - began)
    for wire in wires:
        wire.close()
    return share, answers
