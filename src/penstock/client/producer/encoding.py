"""The bytes of a send: unique key, properties, compression, and a header mostly made before.

The header of a send is JSON in letters (SEND_MESSAGE_V2). What is the same for every message of a
topic is made once (``_head``), what is the same for every message of a queue, too (``_place``); per
message remain flags, time, properties and the opaque, which the connection gives.

A body of ``compress_bytes_min`` or more is compressed with zlib and marked without a method, which
every client of every age reads; it is sent as it is when that is not smaller. The unique key stays
the same in every try, so a message that was stored twice can be told.

Threads: messages are encoded by whoever sends them, so keys are made under a lock.
Not here: what may be sent (``checking.py``), bodies of batches (``batch.py``).
"""

import threading
import zlib
from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from penstock.client.commands import CLIENT_LANGUAGE, CLIENT_VERSION
from penstock.client.message import RETRY_PREFIX, Message
from penstock.client.producer.batch import batch_body
from penstock.client.producer.property_text import properties_of
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import SendHeaderV2, fields
from penstock.wire.rocketmq.message_id import UniqueKeys
from penstock.wire.rocketmq.stored import SysFlag

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The topic whose route tells which brokers make topics by themselves."""

HEADS_MAX: Final = 4096
"""Topics whose header is kept; the oldest goes first."""

PLACES_MAX: Final = 65_536
"""Queues whose part of the header is kept; the oldest goes first."""

_PREFIX: Final = Struct(">II")
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
_JSON: Final = msgspec.json.Encoder().encode


class Encoded(msgspec.Struct, eq=False, gc=False):
    """A message ready for any queue of its topic; what each try adds is the queue."""

    encoder: "Encoder"
    topic: str
    unique_key: str
    """Of a batch: those of its messages, joined by commas."""
    properties: str
    body: bytes
    size_bytes: int
    """What it counts in the send window: the body before compression."""
    born_ms: int
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    is_batch: bool = False

    def frame(self, queue: QueueRef, opaque: int, flag: int = 0) -> bytes:
        """The frame of the request, the short way."""
        body, encoder, times_max = self.body, self.encoder, self.max_reconsume_times
        header = (
            f"{encoder.head(self.topic, self.is_batch)},{encoder.place(queue)}"
            f',"f":"{self.sys_flag}","g":"{self.born_ms}","h":"{self.flag}","j":"{self.reconsume_times}"'
            f',"i":{_JSON(self.properties).decode()}'
            f"{'' if times_max is None else _times_max(times_max)}"
            f'}},"flag":{flag},"opaque":{opaque}}}'
        ).encode()
        size = len(header)
        return b"".join((_PREFIX.pack(4 + size + len(body), size), header, body))

    def command(self, queue: QueueRef) -> Command:
        """The same as a command, for a road that must see the fields (signed requests)."""
        header = SendHeaderV2(
            producer_group=self.encoder.group,
            topic=self.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self.encoder.auto_create_queues,
            queue_id=queue.queue,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_ms,
            flag=self.flag,
            properties=self.properties,
            reconsume_times=self.reconsume_times,
            max_reconsume_times=self.max_reconsume_times,
            batch=self.is_batch,
            broker_name=queue.broker,
        )
        return Command(
            _code(self.is_batch),
            fields(header),
            self.body,
            language=CLIENT_LANGUAGE,
            version=CLIENT_VERSION,
        )


class Encoder:
    """Makes sends of one producer."""

    __slots__ = (
        "_clock", "_compress_bytes_min", "_compress_level", "_heads", "_keys", "_lock", "_places",
        "auto_create_queues", "group",
    )  # fmt: skip

    def __init__(
        self,
        group: str,
        keys: UniqueKeys,
        clock: Clock,
        *,
        compress_bytes_min: int = 4096,
        compress_level: int = 5,
        auto_create_queues: int = 4,
    ) -> None:
        self.group = group
        self.auto_create_queues = auto_create_queues
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._compress_bytes_min = compress_bytes_min
        self._compress_level = compress_level
        self._heads: dict[tuple[str, bool], str] = {}
        self._places: dict[QueueRef, str] = {}

    def encode(self, message: Message, *, is_half: bool = False) -> Encoded:
        """A checked message; ``is_half`` makes it the first part of a transaction."""
        now_ms = self._clock.wall_ms()
        with self._lock:
            key = self._keys.make_at(now_ms)
        properties = properties_of(message, key)
        if is_half:
            properties = f"TRAN_MSG\x01true\x02PGROUP\x01{self.group}\x02{properties}"
        body = message.body
        size = len(body)
        sys_flag = _PREPARED if is_half else 0
        if size >= self._compress_bytes_min:
            packed = zlib.compress(body, self._compress_level)
            if len(packed) < size:
                body = packed
                sys_flag |= _COMPRESSED
        encoded = Encoded(
            self, message.topic, key, properties, body, size, now_ms, message.flag, sys_flag,
        )  # fmt: skip
        if message.topic.startswith(RETRY_PREFIX):
            _lift_times(encoded, message)
        return encoded

    def encode_batch(self, messages: Sequence[Message]) -> Encoded:
        """A checked list of messages of one topic (``batch.check_batch``), as one request."""
        with self._lock:
            keys = [self._keys.make() for _ in messages]
        body = batch_body(messages, keys)
        # No key of its own: Apache's broker adds these to every message, after the message's.
        properties = "" if messages[0].wait_store_ok else "WAIT\x01false\x02"
        return Encoded(
            self,
            messages[0].topic,
            ",".join(keys),
            properties,
            body,
            len(body),
            self._clock.wall_ms(),
            is_batch=True,
        )

    def head(self, topic: str, is_batch: bool) -> str:
        """The front of a header, which all messages of a topic share."""
        found = self._heads.get((topic, is_batch))
        if found is None:
            found = self._make_head(topic, is_batch)
            if len(self._heads) >= HEADS_MAX:
                del self._heads[next(iter(self._heads))]
            self._heads[topic, is_batch] = found
        return found

    def place(self, queue: QueueRef) -> str:
        """The part of a header that says which queue."""
        found = self._places.get(queue)
        if found is None:
            found = f'"e":"{queue.queue}","n":{_JSON(queue.broker).decode()}'
            if len(self._places) >= PLACES_MAX:
                del self._places[next(iter(self._places))]
            self._places[queue] = found
        return found

    def _make_head(self, topic: str, is_batch: bool) -> str:
        # Brokers of ours read a send that begins with its code without taking the JSON apart twice.
        return (
            f'{{"code":{_code(is_batch)},"language":"PYTHON","version":{CLIENT_VERSION}'
            f',"serializeTypeCurrentRPC":"JSON","extFields":{{"a":{_JSON(self.group).decode()}'
            f',"b":{_JSON(topic).decode()},"c":"{AUTO_CREATE_TOPIC}"'
            f',"d":"{self.auto_create_queues}","k":"false","m":"{"true" if is_batch else "false"}"'
        )


def _code(is_batch: bool) -> int:
    return int(RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2)


def _times_max(times_max: int) -> str:
    return f',"l":"{times_max}"'


def _lift_times(encoded: Encoded, message: Message) -> None:
    """A message that goes back to be retried tells in its header how often it was."""
    times = message.properties.get("RECONSUME_TIME", "")
    times_max = message.properties.get("MAX_RECONSUME_TIMES", "")
    if times.isdecimal():
        encoded.reconsume_times = int(times)
    if times_max.isdecimal():
        encoded.max_reconsume_times = int(times_max)
