"""Several messages in one body: what a batch send carries, and an inner batch when stored.

    repeated: | totalSize i32 | magic i32 (0) | bodyCRC i32 (0) | flag i32 |
              | bodyLen i32 | body | propLen i16 | properties |

A batch send is stored as separate messages, so a pull never shows its shape. Inner batches (a flag
of the stored message) come from other brokers only; the client unwraps them.

Not here: the topic and the rest, which the messages of a batch share (``send_headers.py``).
"""

from collections.abc import Iterable
from struct import Struct, error
from typing import Final

import msgspec

from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.properties import PROPERTIES_BYTES_MAX
from penstock.wire.rocketmq.stored import StoredMessage, SysFlag

BATCH_MESSAGES_MAX: Final = 65536
"""A body of 4 MiB could claim three times as many; each costs us a few hundred bytes."""

_HEAD: Final = Struct(">iiiii")
_I16: Final = Struct(">h")
_INNER: Final = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP


class BatchItem(msgspec.Struct, gc=False):
    """One message of a batch."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def split_batch(body: bytes) -> list[BatchItem]:
    """The messages of a batch body, in order."""
    items: list[BatchItem] = []
    at, size = 0, len(body)
    while at < size:
        try:
            total, _, _, flag, body_len = _HEAD.unpack_from(body, at)
            body_at = at + _HEAD.size
            props_at = body_at + body_len + 2
            props_len = _I16.unpack_from(body, props_at - 2)[0] if body_len >= 0 else -1
        except error:
            raise Malformed(f"batch message at byte {at} of {size} ends early") from None
        end = at + total
        if props_len < 0 or props_at + props_len > end or end > size:
            raise Malformed(f"batch message at byte {at} of {size}: wrong length {total}")
        if len(items) == BATCH_MESSAGES_MAX:
            raise Malformed(f"batch of more than {BATCH_MESSAGES_MAX} messages; send smaller ones")
        items.append(
            BatchItem(
                body[body_at : body_at + body_len], body[props_at : props_at + props_len], flag
            )
        )
        at = end
    return items


def join_batch(items: Iterable[BatchItem]) -> bytes:
    """The body that carries these messages."""
    pieces: list[bytes] = []
    for item in items:
        body, properties = item.body, item.properties
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise Malformed(f"properties of {len(properties)} bytes, limit {PROPERTIES_BYTES_MAX}")
        total = _HEAD.size + len(body) + 2 + len(properties)
        try:
            head = _HEAD.pack(total, 0, 0, item.flag, len(body))
        except error:
            raise Malformed(f"message of {len(body)} bytes, flag {item.flag}: no fit") from None
        pieces += (head, body, _I16.pack(len(properties)), properties)
    return b"".join(pieces)


def unwrap(message: StoredMessage) -> list[StoredMessage]:
    """The messages of an inner batch, with the offsets it stands for; any other message itself."""
    if message.sys_flag & _INNER != _INNER:
        return [message]
    return [
        msgspec.structs.replace(
            message,
            body=item.body,
            properties=item.properties,
            flag=item.flag,
            sys_flag=message.sys_flag & ~_INNER,
            queue_offset=message.queue_offset + number,
            body_crc=-1,
        )
        for number, item in enumerate(split_batch(message.body))
    ]
