"""The frame: what one turn appends, and the unit that is either wholly there or torn (D1).

    byte   0        4     6     8           12          16                  24
           | magic  | ver | flg | frame_len | records   | base_position     |
           24                  32          36              40         44         48
           | durable_upto      | epoch     | prev_head_crc | head_crc | reserved |
           48 ... frame_len
           | record | record | ...   each a multiple of 8 bytes with its own crc (entry.py)

Little-endian. ``frame_len`` counts head and records. ``base_position`` is the position of the
head's own first byte, so a head found anywhere else is not a head. ``durable_upto`` is the position
up to which everything was synced when this frame was written: it never decreases from frame to
frame, and the largest one is the synced mark at recovery. ``epoch`` changes when written bytes may
have been lost (D7).

``head_crc`` is the crc32c of these 48 bytes with ``head_crc`` itself taken as zero; place and rule
hold for all versions, so a newer format can be told from damage. ``prev_head_crc`` is the
``head_crc`` of the frame before, 0 where the writer did not know it (first frame of all, first
after a start that read no frame).

A frame with flag ``VOID`` holds no records: recovery put it over bytes that were torn before they
were ever known to be durable, so that they stay dropped as a unit.

Not here: where frames go (``writer.py``), what to do with bad ones (``scan.py``).
"""

import struct
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from penstock.model.errors import FormatTooNew, InvariantBroken

MAGIC: Final = b"PNST"
VERSION: Final = 1
HEAD_BYTES: Final = 48
FRAME_BYTES_MAX: Final = 1 << 30
"""One write; Linux takes at most 2 GiB - 4 KiB in one call, and a turn is far smaller."""

VOID: Final = 1
"""Flag: the frame's content was dropped by recovery; ``frame_len`` says how far to skip."""

_HEAD: Final = struct.Struct("<4sHHIIQQIIII")
_PACK_FRONT: Final = struct.Struct("<4sHHIIQQII").pack
_PACK_END: Final = struct.Struct("<II").pack
_CRC_AT: Final = 40
_NO_CRC: Final = bytes(4)
_NO_END: Final = bytes(HEAD_BYTES - _CRC_AT)
assert _HEAD.size == HEAD_BYTES


class FrameHead(NamedTuple):
    """A checked frame head."""

    frame_len: int
    records: int
    base_position: int
    durable_upto: int
    epoch: int
    prev_head_crc: int
    head_crc: int
    flags: int

    @property
    def end_position(self) -> int:
        """Position of the first byte after the frame."""
        return self.base_position + self.frame_len

    @property
    def is_void(self) -> bool:
        """True when recovery dropped what was here."""
        return bool(self.flags & VOID)


def encode_head(
    frame_len: int,
    records: int,
    base_position: int,
    *,
    durable_upto: int,
    epoch: int = 0,
    prev_head_crc: int = 0,
    flags: int = 0,
) -> tuple[bytes, int]:
    """The 48 bytes of a head and their ``head_crc``, which the next frame carries on."""
    if (
        frame_len & 7
        or base_position & 7
        or not HEAD_BYTES <= frame_len <= FRAME_BYTES_MAX
        or durable_upto > base_position
    ):
        raise InvariantBroken(
            f"frame at {base_position} with {frame_len} bytes and synced mark {durable_upto}: "
            "lengths and positions are multiples of 8 and nothing is durable before it is written"
        )
    front = _PACK_FRONT(
        MAGIC, VERSION, flags, frame_len, records, base_position, durable_upto, epoch, prev_head_crc
    )
    head_crc = crc32c(front + _NO_END)
    return front + _PACK_END(head_crc, 0), head_crc


def parse_head(buffer: bytes, at: int, position: int) -> FrameHead | None:
    """The head at ``buffer[at:]`` if it is a good one for this ``position``, else None.

    Raises ``FormatTooNew`` for a good head of a version we do not know.
    """
    if buffer[at : at + 4] != MAGIC or len(buffer) - at < HEAD_BYTES:
        return None
    _, version, flags, frame_len, records, base, durable, epoch, previous, head_crc, _ = (
        _HEAD.unpack_from(buffer, at)
    )
    if base != position:
        return None
    middle = at + _CRC_AT
    if crc32c(buffer[at:middle] + _NO_CRC + buffer[middle + 4 : at + HEAD_BYTES]) != head_crc:
        return None
    if version > VERSION:
        raise FormatTooNew(
            f"the log frame at position {position} has format {version}, this Penstock knows "
            f"{VERSION}; use the newer Penstock that wrote it"
        )
    if frame_len & 7 or frame_len < HEAD_BYTES or durable > base:
        return None
    return FrameHead(frame_len, records, base, durable, epoch, previous, head_crc, flags)


def find_head(buffer: bytes, at: int, position: int) -> FrameHead | None:
    """The first good head in ``buffer`` from ``at`` on; ``buffer[0]`` is at ``position``.

    Heads start at multiples of 8, so positions, not places in the buffer, are what is aligned.
    """
    while (at := buffer.find(MAGIC, at)) >= 0:
        if not (position + at) & 7:
            head = parse_head(buffer, at, position + at)
            if head is not None:
                return head
        at += 1
    return None
