"""The bytes of settle and release records, and of cursor snapshots (D5, D14).

A settle record's origin is a msgpack ``Settlement``; a release record's origin is a fixed 24 byte
``Release`` that points back at the delayed record; a cursor snapshot is a JSON ``CursorState`` in
the catalog, so that a person can read it with the sqlite3 shell.

Invariant: decoding what was encoded gives an equal value; anything else raises ``LogCorrupt``.

Not here: what a settlement does to a cursor (``engine/cursor.py``).
"""

from struct import Struct, error
from typing import Final, NamedTuple

import msgspec

from penstock.model.errors import LogCorrupt
from penstock.model.ids import QueueId, QueueOffset, SubscriptionId
from penstock.model.record import Record, RecordFlag, RecordKind, Shape, tag_hash
from penstock.model.settlement import Settlement


class CursorState(msgspec.Struct, gc=False):
    """Where one subscription stands in one queue, complete enough to go on from."""

    subscription_id: SubscriptionId
    queue_id: QueueId
    low_mark: QueueOffset
    """Everything below is settled."""
    ranges: list[tuple[int, int]] = []
    """Half-open [start, end) offsets at or above the low mark that are settled, ascending."""
    delivered_mark: int = 0
    """No offset at or above was ever delivered (reserved ahead, D13)."""
    counts: list[tuple[int, int]] = []
    """(offset, deliveries so far) of messages that went back."""


class Release(NamedTuple):
    """What a release record says about the delayed record it gives offsets to."""

    position: int
    length: int
    messages: int
    tag_hash: int
    flags: int
    """Index flags of the entries to make (``queue_index.IndexFlag``) without RELEASED."""


# Plain numbers: arithmetic with members of an enum costs a microsecond.
_TRANSIENT: Final = int(RecordFlag.TRANSIENT)
_DELAYED: Final = int(RecordFlag.DELAYED)
_SETTLE: Final = Shape(kind=int(RecordKind.SETTLE))
_RELEASE: Final = Struct("<QIIiI")
_SETTLEMENT_ENCODER: Final = msgspec.msgpack.Encoder()
_SETTLEMENT_DECODER: Final = msgspec.msgpack.Decoder(Settlement)
_CURSOR_ENCODER: Final = msgspec.json.Encoder()
_CURSOR_DECODER: Final = msgspec.json.Decoder(CursorState)


def encode_settlement(settlement: Settlement) -> bytes:
    """Origin bytes of a settle record."""
    return _SETTLEMENT_ENCODER.encode(settlement)


def decode_settlement(origin: bytes) -> Settlement:
    """The settlement in a settle record's origin; padding after it is not allowed."""
    try:
        return _SETTLEMENT_DECODER.decode(origin)
    except msgspec.MsgspecError as problem:
        raise LogCorrupt(f"a settle record holds no settlement: {problem}") from problem


def settlement_record(settlement: Settlement, *, born_ms: int = 0) -> Record:
    """A settle record ready to be appended (it has no target queues)."""
    return Record(_SETTLEMENT_ENCODER.encode(settlement), _SETTLE, born_ms)


def encode_release(release: Release) -> bytes:
    """Origin bytes of a release record."""
    return _RELEASE.pack(*release)


def decode_release(origin: bytes) -> Release:
    """The release in a release record's origin."""
    try:
        return Release(*_RELEASE.unpack(origin))
    except error as problem:
        raise LogCorrupt(f"a release record holds no release: {problem}") from problem


def release_record(original: Record, length: int) -> Record:
    """A release record for a stored delayed record of ``length`` bytes in the log.

    Appended with target queues it gives the original an offset in each of them; appended with none
    it cancels the delayed record (RocketMQ's rollback).
    """
    shape = original.shape
    hashed = tag_hash(original.tag) if shape.tag_len else 0
    release = Release(original.position, length, shape.messages, hashed, entry_flags(shape))
    return Record(
        _RELEASE.pack(*release),
        Shape(kind=int(RecordKind.RELEASE), messages=shape.messages, deliver_ms=shape.deliver_ms),
        original.born_ms,
    )


INDEX_RELEASED: Final = 1
INDEX_TRANSIENT: Final = 2
INDEX_DEFERRED: Final = 4
INDEX_EXPIRES: Final = 8


def entry_flags(shape: Shape) -> int:
    """Flags of the index entries of such records: what dispatch must know without reading them.

    A topic-level delayed record is over its delay once it has an entry, so only a deliver time
    without DELAYED (Pulsar's deliver_at) makes an entry DEFERRED.
    """
    flags = INDEX_TRANSIENT if shape.flags & _TRANSIENT else 0
    if shape.deliver_ms and not shape.flags & _DELAYED:
        flags |= INDEX_DEFERRED
    if shape.expire_ms:
        flags |= INDEX_EXPIRES
    return flags


def encode_cursor(state: CursorState) -> bytes:
    """Body of a cursor row."""
    return _CURSOR_ENCODER.encode(state)


def decode_cursor(body: bytes) -> CursorState:
    """The cursor state in a catalog row."""
    try:
        return _CURSOR_DECODER.decode(body)
    except msgspec.MsgspecError as problem:
        raise LogCorrupt(f"a cursor snapshot cannot be read: {problem}") from problem
