"""A message as the broker keeps it: neutral facts beside the bytes the protocol sent (D2, D3).

``Record`` is made once, by an adapter from a publish or by the log from disk, and then only read.
``position`` and ``store_ms`` are filled in by the append and are part of the record from then on.

What many messages have in common is said once: a ``Shape`` is shared by all records like it and is
never changed. Whoever makes records remembers the shapes it needs (``lru_cache``): then a record is
cheap to make, and a run of equal ones is known by a look at one object. Nothing depends on it:
records with equal shapes that are not the same object are stored just as well, only slower.

Not here: the on-disk layout (``log/format.py``), who may read origin bytes (``wire/<p>/facts.py``).
"""

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from functools import lru_cache
from operator import mul
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.model.ids import LogPosition


class Wire(IntEnum):
    """Whose bytes ``origin`` holds."""

    NEUTRAL = 0
    AMQP = 1
    ROCKETMQ = 2
    PULSAR = 3


class RecordKind(IntEnum):
    """What a log record means to recovery."""

    MESSAGE = 1
    SETTLE = 2
    RELEASE = 3
    STAGE_COMMIT = 4


class RecordFlag(IntFlag):
    """Flags of a message record."""

    TRANSIENT = 1
    """Not awaited by a confirm and dropped at restart (D6)."""
    DELAYED = 2
    """Has no index entry until a release record gives it an offset (D14)."""
    NO_INDEX = 4
    """Staged by the Spark sink: visible only after its stage commit (D19)."""
    COMPRESSED = 8
    """The body in ``origin`` is compressed as the protocol compressed it."""
    PLACED = 16
    """It was given its offset, with a hole before it, instead of the next one there is: a copy that
    is found under the offset of its original (``Appending.first_offset``)."""


NO_STAMP: Final = -1
TAG_CACHED_BYTES_MAX: Final = 128
_TRANSIENT: Final = int(RecordFlag.TRANSIENT)


class Shape(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Everything about a record but its bytes, its birth and its place in the log.

    The spans (``key_at`` ...) point into the origin; a length of 0 means "none".
    """

    wire: int = 0
    kind: int = 1
    flags: int = 0
    priority: int = 0
    messages: int = 1
    expire_ms: int = 0
    """Wall time after which it is expired; 0 = never."""
    deliver_ms: int = 0
    """Wall time before which it is not delivered; 0 = at once."""
    key_at: int = 0
    key_len: int = 0
    tag_at: int = 0
    tag_len: int = 0
    props_at: int = 0
    props_len: int = 0
    body_at: int = 0
    body_len: int = 0
    stamp_offset_at: int = NO_STAMP
    """Where in the origin the append writes the queue offset (big-endian i64), if anywhere: a
    protocol whose stored form carries its own offset needs no copy on the way out (D3)."""
    stamp_position_at: int = NO_STAMP
    """The same for the log position."""
    stamp_store_ms_at: int = NO_STAMP
    """The same for the store time."""


SHAPES_KEPT: Final = 1024
"""Shapes that one maker of records remembers: what peers can make it hold is bounded (law 2)."""
_PLAIN: Final = Shape()


class Record(msgspec.Struct, gc=False):
    """One stored unit: a message, or a batch of ``messages`` that the protocol sent as one."""

    origin: bytes
    shape: Shape = _PLAIN
    born_ms: int = 0
    position: LogPosition = LogPosition(-1)
    store_ms: int = 0

    def reshape(self, **changes: int) -> None:
        """Say something else of this record; others of its shape are not concerned."""
        self.shape = replace(self.shape, **changes)

    # Facts of the shape; loops over many records ask the shape, once for a run of them.

    @property
    def wire(self) -> int:
        """Whose bytes ``origin`` holds, a ``Wire``."""
        return self.shape.wire

    @property
    def kind(self) -> int:
        """What it means to recovery, a ``RecordKind``."""
        return self.shape.kind

    @property
    def flags(self) -> int:
        return self.shape.flags

    @property
    def messages(self) -> int:
        """How many messages the protocol sent as this one."""
        return self.shape.messages

    @property
    def expire_ms(self) -> int:
        """Wall time after which it is expired; 0 = never."""
        return self.shape.expire_ms

    @property
    def deliver_ms(self) -> int:
        """Wall time before which it is not delivered; 0 = at once."""
        return self.shape.deliver_ms

    @property
    def is_transient(self) -> bool:
        """True when no confirm waits for its sync and a restart drops it."""
        return bool(self.shape.flags & _TRANSIENT)

    # Parts of the origin.

    @property
    def key(self) -> bytes:
        """The partition or routing key, empty when there is none."""
        at = self.shape.key_at
        return self.origin[at : at + self.shape.key_len]

    @property
    def tag(self) -> bytes:
        """The tag used by tag filters, empty when there is none."""
        at = self.shape.tag_at
        return self.origin[at : at + self.shape.tag_len]

    @property
    def properties(self) -> bytes:
        """The protocol's own encoding of user properties."""
        at = self.shape.props_at
        return self.origin[at : at + self.shape.props_len]

    @property
    def body(self) -> bytes:
        """The payload, byte for byte as it was sent."""
        at = self.shape.body_at
        return self.origin[at : at + self.shape.body_len]


def tag_hash(tag: bytes) -> int:
    """32-bit hash of a tag as index entries carry it; 0 for no tag.

    It is Java's ``String.hashCode``: any hash would do for us, this one saves RocketMQ clients'
    subscriptions from being hashed again. Only short tags are remembered: what a cache of long
    ones holds would be up to the peers (law 2).
    """
    return _short_tag_hash(tag) if len(tag) <= TAG_CACHED_BYTES_MAX else _java_hash(tag)


def _java_hash(tag: bytes) -> int:
    units: Sequence[int] = tag
    if not tag.isascii():
        encoded = tag.decode("utf-8", "replace").encode("utf-16-le")
        units = struct.unpack(f"<{len(encoded) // 2}H", encoded)
    value = 0
    # In blocks, so that the numbers stay small and the work is done by ``sum``.
    for at in range(0, len(units), _BLOCK):
        block = units[at : at + _BLOCK]
        powers = _POWERS[_BLOCK - len(block) :]
        value = (value * powers[0] * 31 + sum(map(mul, block, powers))) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_BLOCK: Final = 64
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in reversed(range(_BLOCK)))
_short_tag_hash: Final = lru_cache(maxsize=4096)(_java_hash)


def neutral_record(
    body: bytes, *, properties: bytes = b"", key: bytes = b"", tag: bytes = b""
) -> Record:
    """A record of our own protocol: ``key tag properties body`` laid end to end."""
    shape = _neutral_shape(len(key), len(tag), len(properties), len(body))
    return Record(key + tag + properties + body, shape)


@lru_cache(maxsize=SHAPES_KEPT)
def _neutral_shape(key_len: int, tag_len: int, props_len: int, body_len: int) -> Shape:
    return Shape(
        key_len=key_len,
        tag_at=key_len,
        tag_len=tag_len,
        props_at=key_len + tag_len,
        props_len=props_len,
        body_at=key_len + tag_len + props_len,
        body_len=body_len,
    )


# ---- facts --------------------------------------------------------------------------------------
# Neutral facts of a message, read out of the bytes its protocol sent (D15, D16).
#
# ``wire/<protocol>/facts.py`` makes them; other protocols' presenters, Spark and people read them.
# Text only, except for the body, which is not here: it may have to be inflated, so it is asked for
# separately and with a limit.


class Facts(msgspec.Struct, gc=False, kw_only=True):
    """One message as every protocol can tell it; empty and 0 mean "none"."""

    key: str = ""
    tag: str = ""
    message_id: str = ""
    born_ms: int = 0
    expire_ms: int = 0
    deliver_ms: int = 0
    attempts: int = 0
    """Deliveries before this one, as far as the message itself says."""
    properties: dict[str, str] = {}
    """The user's own; what the protocol added is not among them."""
