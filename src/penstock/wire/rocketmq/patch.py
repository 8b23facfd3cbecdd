"""Stored bytes as another queue shows them: a copy with some fields changed (D14).

A delayed message that was released, a committed half message or a copy in a second queue lies in
the log once, under the topic and place it was first written for. Readers get it with the topic,
queueId, queueOffset and commitLogOffset of the queue they read.

Invariant: what is not named stays as it was, byte for byte; checksum and body are never touched.

Not here: making a new message out of an old one (``stored.record_of``).
"""

from struct import Struct, error
from typing import Final

from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.properties import PROPERTIES_BYTES_MAX
from penstock.wire.rocketmq.stored import (
    HEADS,
    HOST_BITS,
    MAGIC_V1,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    topic_field,
)

_I32: Final = Struct(">i")
_U16: Final = Struct(">H")
_FRONT: Final = Struct(">II")
_PLACE: Final = Struct(">qq")
_TAIL: Final = Struct(">iqi")


def placed(origin: bytes, queue_id: int, queue_offset: int, position: int) -> bytes:
    """The message at another place: the common case, one copy."""
    copy = bytearray(origin)
    _I32.pack_into(copy, QUEUE_ID_AT, queue_id)
    _PLACE.pack_into(copy, QUEUE_OFFSET_AT, queue_offset, position)
    return bytes(copy)


def retopic(
    origin: bytes,
    topic: str,
    *,
    properties: bytes | None = None,
    reconsume_times: int | None = None,
    prepared_offset: int | None = None,
    sys_flag: int | None = None,
) -> bytes:
    """The message under another topic, and what usually changes with it."""
    try:
        (old_flag,) = _I32.unpack_from(origin, SYS_FLAG_AT)
        head = HEADS[old_flag & HOST_BITS]
        _, old_magic = _FRONT.unpack_from(origin)
        tail_at = head.size - _TAIL.size
        old_times, old_prepared, body_len = _TAIL.unpack_from(origin, tail_at)
        topic_at = head.size + body_len
        width = 1 if old_magic == MAGIC_V1 else 2
        topic_len = int.from_bytes(origin[topic_at : topic_at + width], "big")
        props_at = topic_at + width + topic_len + 2
        if properties is None:
            properties = origin[props_at:]
        magic, field = topic_field(topic)
        total = topic_at + len(field) + 2 + len(properties)
        front = bytearray(origin[: head.size])
        _FRONT.pack_into(front, 0, total, magic)
        if sys_flag is not None:
            sys_flag = sys_flag & ~HOST_BITS | old_flag & HOST_BITS
            _I32.pack_into(front, SYS_FLAG_AT, sys_flag)
        _TAIL.pack_into(
            front,
            tail_at,
            old_times if reconsume_times is None else reconsume_times,
            old_prepared if prepared_offset is None else prepared_offset,
            body_len,
        )
    except error as problem:
        raise Malformed(f"stored message cannot be changed: {problem}") from None
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise Malformed(f"properties of {len(properties)} bytes, limit {PROPERTIES_BYTES_MAX}")
    return b"".join(
        (front, origin[head.size : topic_at], field, _U16.pack(len(properties)), properties)
    )
