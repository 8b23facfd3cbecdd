"""The body of a compressed REGISTER_BROKER: deflated, and not JSON as a whole.

    i32 length . data version as JSON
    i32 count  . count times: i32 length . "topic read write perm filterType [attributes as JSON]"
    i32 length . filter servers as JSON
    since 5.0 more follows, which a name server can do without

What it inflates to is bounded before anything is read. JSON that was deflated as a whole is read
as well.

Not here: the shapes (``route_bodies.py``).
"""

import struct
import zlib
from typing import Final

from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.lenient_json import decode_body
from penstock.wire.rocketmq.route_bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)

_I32: Final = struct.Struct(">i")
_SEPARATOR: Final = " "
_FIELDS_MIN: Final = 5


def unpack_registration(data: bytes, bytes_max: int) -> RegisterBrokerBody:
    """Topics and version; raises ``Malformed``."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, bytes_max)
    except zlib.error as problem:
        raise Malformed(f"the compressed registration cannot be read: {problem}") from None
    if inflater.unconsumed_tail:
        raise Malformed(f"the registration inflates to more than {bytes_max} bytes")
    if plain.startswith(b"{"):
        return decode_body(plain, RegisterBrokerBody, bytes_max=bytes_max)
    try:
        return _unpacked(plain)
    except (struct.error, ValueError) as problem:
        raise Malformed(f"the compressed registration cannot be read: {problem}") from None


def _unpacked(plain: bytes) -> RegisterBrokerBody:
    text, at = _piece(plain, 0)
    version = decode_body(text, DataVersion)
    (count,) = _I32.unpack_from(plain, at)
    at += _I32.size
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):
        text, at = _piece(plain, at)
        config = _topic(text.decode("utf-8", "replace"))
        topics[config.topic_name] = config
    return RegisterBrokerBody(
        topics=TopicConfigTable(topic_config_table=topics, data_version=version)
    )


def _piece(plain: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _I32.unpack_from(plain, at)
    at += _I32.size
    if not 0 <= size <= len(plain) - at:
        raise Malformed(f"a part of {size} bytes where {len(plain) - at} are left")
    return plain[at : at + size], at + size


def _topic(text: str) -> TopicConfig:
    fields = text.split(_SEPARATOR, _FIELDS_MIN)
    if len(fields) < _FIELDS_MIN:
        raise Malformed(f"a topic needs {_FIELDS_MIN} fields: {text[:80]!r}")
    name, read, write, perm, filter_type = fields[:_FIELDS_MIN]
    return TopicConfig(
        topic_name=name,
        read_queue_nums=int(read),
        write_queue_nums=int(write),
        perm=int(perm),
        topic_filter_type=filter_type,
    )
