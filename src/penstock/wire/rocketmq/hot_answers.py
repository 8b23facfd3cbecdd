"""The short cut for what a client sees per message: answers, read in one step.

Brokers write JSON headers with nothing but strings in ``extFields``; such a header becomes a
``Command`` without a map in between. Whatever else there is (binary headers, numbers, nulls, broken
text) takes the general road (``frame.decode``), which also finds the words for what is wrong.

Invariant: what comes out equals what ``frame.decode`` gives, but for the language, which nobody
needs of an answer.
Not here: answers as a broker writes them (``hot_frames.py``).
"""

from typing import Final

import msgspec

from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.frame import EXT_FIELDS_MAX, HEADER_BYTES_MAX, I32, decode


class _Plain(Command, gc=False):
    """A command whose JSON fields have their wire names."""

    code: I32
    ext: dict[str, str] = msgspec.field(name="extFields", default_factory=dict)
    opaque: I32 = 0
    flag: I32 = 0
    remark: str | None = None
    version: I32 = 0
    # Names no header has: the body follows the header, the others are known.
    body: bytes = msgspec.field(name="-body", default=b"")
    language: int = msgspec.field(name="-language", default=0)
    serialization: int = msgspec.field(name="-serialization", default=0)


_DECODE: Final = msgspec.json.Decoder(_Plain).decode


def decode_answer(frame: bytes) -> Command:
    """The command in a whole frame; raises ``Malformed`` as ``frame.decode`` does."""
    # With type 0 (JSON) the mark in bytes 4 to 7 is the length of the header.
    end = 8 + int.from_bytes(frame[4:8], "big")
    if end > len(frame) or end > 8 + HEADER_BYTES_MAX:
        return decode(frame)
    try:
        command = _DECODE(frame[8:end])
    except (ValueError, RecursionError):
        return decode(frame)
    if len(command.ext) > EXT_FIELDS_MAX:
        return decode(frame)
    command.body = frame[end:]
    return command
