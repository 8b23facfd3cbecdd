"""Finding good records in bytes, whole frames at once or in what damage has left of them.

A record is good when its crc fits and it says that it lies where it lies; so good records can be
found without any help from what stands before them, in steps of 8 bytes.

``read_frame`` is the fast way: all records of a frame or None. ``salvage`` is the slow way for
frames that are not whole: it gives the good records and the stretches between them.

Not here: which bytes to look at and what a damaged stretch means (``scan.py``).
"""

import struct
from typing import Final

from google_crc32c import value as crc32c

from penstock.log.entry import (
    FLAGS_MASK,
    HEADER_BYTES,
    HEADER_VERSION,
    TARGET_BYTES,
    Targets,
    padding_length,
    record_too_new,
)
from penstock.model.record import RecordKind, tag_hash

ScannedRecord = tuple[int, int, int, int, int, int, int, int, int, Targets, bytes]
"""``(position, length, kind, flags, messages, store_ms, expire_ms, deliver_ms, tag_hash, targets,
payload)``: all that indexes and recovery need of a record. ``payload`` is the origin of settle,
release and stage-commit records and empty for messages, which stay on disk. A plain tuple, because
recovery makes millions of them."""

_BRIEF: Final = struct.Struct("<IIBxHHxBIQqxxxxxxxxqqxxxxxxHI")
"""The header fields of a scan: crc len kind flags targets version messages position store_ms
expire_ms deliver_ms tag_len tag_at."""
_CRC_LEN: Final = struct.Struct("<II")
_TARGET: Final = struct.Struct("<IQ")
_POSITION_AT: Final = 20
_SEARCH_STEPS: Final = 8192
"""Places looked at together when a good record is searched."""
_MESSAGE: Final = int(RecordKind.MESSAGE)


def read_frame(buffer: bytes, at: int, end: int, base: int) -> list[ScannedRecord] | None:
    """All records in ``buffer[at:end]``, or None when any of it is not a good record.

    ``base`` is the position of ``buffer[0]``; ``buffer`` reaches at least to ``end``.
    """
    found: list[ScannedRecord] = []
    add = found.append
    unpack, unpack_target = _BRIEF.unpack_from, _TARGET.unpack_from
    header_end_max = end - HEADER_BYTES
    while at < end:
        if at > header_end_max:
            return None
        (
            crc, length, kind, flags, count, version, messages, position, store_ms, expire_ms,
            deliver_ms, tag_len, tag_at,
        ) = unpack(buffer, at)  # fmt: skip
        after = at + length
        if position != base + at or length < HEADER_BYTES or after > end:
            return None
        if crc32c(buffer[at + 4 : after]) != crc:
            return None
        if version != HEADER_VERSION:
            raise record_too_new(version, position)
        start = at + HEADER_BYTES
        targets: Targets
        if count == 1:
            targets = (unpack_target(buffer, start),)
            start += TARGET_BYTES
        elif count:
            targets = tuple(_TARGET.iter_unpack(buffer[start : start + TARGET_BYTES * count]))
            start += TARGET_BYTES * count
        else:
            targets = ()
        tag = tag_hash(buffer[start + tag_at : start + tag_at + tag_len]) if tag_len else 0
        payload = (
            b""
            if kind == _MESSAGE
            else buffer[start : after - padding_length(buffer, after, flags)]
        )
        add((
            position, length, kind, flags & FLAGS_MASK, messages, store_ms, expire_ms, deliver_ms,
            tag, targets, payload,
        ))  # fmt: skip
        at = after
    return found


def good_length(buffer: bytes, at: int, end: int, base: int) -> int:
    """Length of the good record at ``buffer[at:]``; 0 when there is none."""
    if end - at < HEADER_BYTES:
        return 0
    crc, length = _CRC_LEN.unpack_from(buffer, at)
    if length < HEADER_BYTES or length & 7 or at + length > end:
        return 0
    stated = int.from_bytes(buffer[at + _POSITION_AT : at + _POSITION_AT + 8], "little")
    if stated != base + at or crc32c(buffer[at + 4 : at + length]) != crc:
        return 0
    return int(length)


def find_record(buffer: bytes, at: int, end: int, base: int) -> int:
    """The first place from ``at`` on, in steps of 8, with a good record; ``end`` if none."""
    while (steps := min(_SEARCH_STEPS, (end - at - HEADER_BYTES) // 8 + 1)) > 0:
        stated = struct.unpack_from(f"<{steps}Q", buffer, at + _POSITION_AT)
        for place, position in zip(range(at, at + 8 * steps, 8), stated, strict=True):
            if position == base + place and good_length(buffer, place, end, base):
                return place
        at += 8 * steps
    return end


def salvage(
    buffer: bytes, at: int, end: int, base: int, records: int | None
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Good records and damaged stretches of ``buffer[at:end]``, both as (start, end).

    ``records`` is how many there should be, if a good head says so. A damaged record's own length
    is believed only when that number comes out right: then nothing inside a damaged payload can
    pass for a record. Otherwise the nearest good record is where things go on.
    """
    if records is not None:
        good, bad = _pick(buffer, at, end, base, believes_lengths=True)
        if len(good) + len(bad) == records:
            return good, bad
    return _pick(buffer, at, end, base, believes_lengths=False)


def _pick(
    buffer: bytes, at: int, end: int, base: int, *, believes_lengths: bool
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    good: list[tuple[int, int]] = []
    bad: list[tuple[int, int]] = []
    while at < end:
        length = good_length(buffer, at, end, base)
        if length:
            good.append((at, at + length))
            at += length
            continue
        after = 0
        if believes_lengths and end - at >= HEADER_BYTES:
            claimed = _CRC_LEN.unpack_from(buffer, at)[1]
            is_likely = claimed >= HEADER_BYTES and not claimed & 7 and at + claimed <= end
            if is_likely and (at + claimed == end or good_length(buffer, at + claimed, end, base)):
                after = at + claimed
        if not after:
            after = find_record(buffer, at + 8, end, base)
        bad.append((at, after))
        at = after
    return good, bad
