"""Messages: what is sent, what was received, what became of a send.

A ``Message`` may be changed until it is handed to a producer, and belongs to the producer until the
send is over. A ``ReceivedMessage`` is a thin view of the stored bytes: body, properties and hosts
are unpacked when somebody looks, because most listeners look at the body only.

Invariant: ``ReceivedMessage.topic`` is the topic the listener subscribed to; a message that comes
from a retry topic shows its first topic, ``stored.topic`` keeps the other (``queue.topic``, too).

Not here: bytes of a send (``producer/encoding.py``), the stored layout (``wire/rocketmq/stored``).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from enum import Enum
from importlib import import_module
from typing import Final

import msgspec

from penstock.client.errors import BodyUnreadable, InvalidMessage
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.message_id import decode_host
from penstock.wire.rocketmq.properties import value_of
from penstock.wire.rocketmq.stored import StoredMessage, SysFlag, decode_all, unwrap

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"

_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_INNER_BATCH: Final = int(SysFlag.INNER_BATCH)

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Brokers take 4 MiB compressed by default; 16 times that is text at its most repetitive."""

_LZ4: Final = 1
_ZSTD: Final = 2
_LIBRARIES: Final = {_LZ4: ("LZ4", "lz4.frame", "lz4"), _ZSTD: ("ZSTD", "zstandard", "zstandard")}


class Message:
    """One message to send.

    ``keys`` are for finding it later (``Admin``); ``ordering_key`` decides the queue, so that
    messages of one key keep their order. At most one of ``delay_level`` (1 to 18: 1 s to 2 h),
    ``delay_ms`` and ``deliver_at_ms`` (wall time) may be given.
    """

    __slots__ = (
        "body",
        "delay_level",
        "delay_ms",
        "deliver_at_ms",
        "flag",
        "keys",
        "ordering_key",
        "properties",
        "tag",
        "topic",
        "wait_store_ok",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        flag: int = 0,
        wait_store_ok: bool = True,
    ) -> None:
        if body.__class__ is not bytes:
            body = _bytes_of(body)
        self.topic = topic
        self.body = body
        self.tag = tag
        self.keys: tuple[str, ...] = (keys,) if isinstance(keys, str) else tuple(keys)
        self.properties: dict[str, str] = {} if properties is None else dict(properties)
        self.ordering_key = ordering_key
        self.delay_level = delay_level
        self.delay_ms = delay_ms
        self.deliver_at_ms = deliver_at_ms
        self.flag = flag
        self.wait_store_ok = wait_store_ok

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} B, tag={self.tag!r}, keys={self.keys})"


def _bytes_of(body: object) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise InvalidMessage(f"the body of a message is bytes, not {type(body).__name__}; encode it")


class ReceivedMessage:
    """One message as a consumer gets it."""

    __slots__ = (
        "_body",
        "_properties",
        "pop_handle",
        "queue",
        "reconsume_times",
        "stored",
        "topic",
    )

    def __init__(
        self, stored: StoredMessage, queue: QueueRef, pop_handle: str | None = None
    ) -> None:
        self.stored: Final = stored
        """As it came; hosts and properties still as bytes."""
        self.queue: Final = queue
        """Where it was read; of a retry its topic is the retry topic."""
        self.pop_handle = pop_handle
        """What acknowledges it in pop mode."""
        self.topic: str = stored.topic
        self.reconsume_times: int = stored.reconsume_times
        """How often it was delivered before; local retries count it up."""
        self._body: bytes | None = None
        self._properties: dict[str, str] | None = None
        if stored.topic[:7] == RETRY_PREFIX:
            self.topic = self.property_value("RETRY_TOPIC") or stored.topic

    @property
    def body(self) -> bytes:
        """What was sent, decompressed; ``BodyUnreadable`` when that cannot be done."""
        stored = self.stored
        if not stored.sys_flag & _COMPRESSED:
            return stored.body
        if self._body is None:
            self._body = decompress(stored.body, stored.sys_flag)
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, RocketMQ's own included; a map of this message's own."""
        if self._properties is None:
            self._properties = self.stored.property_map()
        return self._properties

    def property_value(self, name: str) -> str | None:
        """One property, without making the map of all; None when it has none of that name."""
        if self._properties is not None:
            return self._properties.get(name)
        return value_of(self.stored.properties, name).decode("utf-8", "replace") or None

    @property
    def tag(self) -> str | None:
        """What consumers filter by; None when it has none."""
        return self.property_value("TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """What it can be found by."""
        return tuple((self.property_value("KEYS") or "").split())

    @property
    def ordering_key(self) -> str | None:
        """The key that decided its queue; None when the sender named none."""
        return self.property_value("__SHARDINGKEY")

    @property
    def offset(self) -> int:
        """Its place in the queue."""
        return self.stored.queue_offset

    @property
    def message_id(self) -> str:
        """The sender's id (UNIQ_KEY), the same in every retry; else the broker's."""
        return self.property_value("UNIQ_KEY") or self.stored.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: where this copy is stored."""
        return self.stored.offset_message_id

    @property
    def commit_log_offset(self) -> int:
        """Its place on the broker."""
        return self.stored.commit_log_offset

    @property
    def born_at_ms(self) -> int:
        """Wall time of the sender."""
        return self.stored.born_ms

    @property
    def stored_at_ms(self) -> int:
        """Wall time of the broker."""
        return self.stored.store_ms

    @property
    def born_host(self) -> tuple[str, int]:
        """(ip, port) of the sender."""
        return decode_host(self.stored.born_host)

    @property
    def store_host(self) -> tuple[str, int]:
        """(ip, port) of the broker."""
        return decode_host(self.stored.store_host)

    @property
    def sys_flag(self) -> int:
        """RocketMQ's flags (``wire.rocketmq.stored.SysFlag``)."""
        return self.stored.sys_flag

    @property
    def flag(self) -> int:
        """The sender's flag."""
        return self.stored.flag

    @property
    def stored_bytes(self) -> int:
        """Bytes of the body as it was stored: what the byte limits of a cache count."""
        return len(self.stored.body)

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage({self.topic!r}, {self.queue.broker}/{self.queue.queue}"
            f"@{self.offset}, {self.message_id}, {self.stored_bytes} B)"
        )


def received_messages(body: bytes, queue: QueueRef) -> list[ReceivedMessage]:
    """The messages in the body of an answer to a pull of one queue, inner batches taken apart."""
    return [ReceivedMessage(each, queue) for each in stored_messages(body)]


def stored_messages(body: bytes) -> list[StoredMessage]:
    """The stored messages of an answer's body, inner batches taken apart; ``Malformed`` if not."""
    found = decode_all(body)
    for each in found:
        if each.sys_flag & _INNER_BATCH:
            return [part for whole in found for part in _unwrapped(whole)]
    return found


def _unwrapped(message: StoredMessage) -> list[StoredMessage]:
    if message.sys_flag & _INNER_BATCH and message.sys_flag & _COMPRESSED:
        body = decompress(message.body, message.sys_flag)
        plain = message.sys_flag & ~(_COMPRESSED | SysFlag.COMPRESSION_TYPE)
        message = msgspec.structs.replace(message, body=body, sys_flag=int(plain), body_crc=-1)
    return unwrap(message)


class SendStatus(Enum):
    """How well a message was stored; all four mean that it is stored."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    """Values are the response codes."""


class SendResult(msgspec.Struct, gc=False, frozen=True):
    """What became of a send."""

    status: SendStatus
    message_id: str
    """The id the client gave (UNIQ_KEY); of a batch a comma list."""
    offset_message_id: str
    """The id the broker gave; of a batch a comma list."""
    queue: QueueRef
    queue_offset: int
    """Of a batch: of its first message."""
    transaction_id: str | None = None

    @property
    def is_ok(self) -> bool:
        """True when it is stored as well as the broker was told to."""
        return self.status is SendStatus.SEND_OK


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as it was before compression: zlib always, LZ4 and ZSTD where a library is there.

    Bits 8 to 10 of sysFlag name the method (0: zlib as older clients wrote it, 1: LZ4, 2: ZSTD,
    3: zlib). A small body never becomes more than ``BODY_BYTES_MAX``, whatever it claims.
    """
    method = sys_flag >> 8 & 7
    if method in _LIBRARIES:
        return _by_library(body, method)
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(body, BODY_BYTES_MAX)
    except zlib.error as problem:
        raise BodyUnreadable(f"body of {len(body)} bytes is no zlib data: {problem}") from None
    if not unpacker.eof:
        what = "has more than" if unpacker.unconsumed_tail else "ends before its end; limit"
        raise BodyUnreadable(f"body of {len(body)} bytes {what} {BODY_BYTES_MAX} bytes")
    return plain


def _by_library(body: bytes, method: int) -> bytes:
    name, module, package = _LIBRARIES[method]
    try:
        library = import_module(module)
    except ImportError:
        raise BodyUnreadable(
            f"body is compressed with {name}; install the package {package} to read it"
        ) from None
    try:
        if method == _LZ4:
            unpacker = library.LZ4FrameDecompressor()
            plain = bytes(unpacker.decompress(body, max_length=BODY_BYTES_MAX))
        else:
            limit = BODY_BYTES_MAX
            plain = bytes(library.ZstdDecompressor().decompress(body, max_output_size=limit))
    except Exception as problem:
        raise BodyUnreadable(f"body of {len(body)} bytes is no {name} data: {problem}") from None
    return plain
