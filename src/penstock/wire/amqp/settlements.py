"""What a client says of messages it was given, many words at a time.

    | 01 ch u16 size 13 | class 60 | 80 ack, 90 reject, 120 nack | tag u64 | bits | CE |

All three are of one size, so a row of them is read by columns, whichever they are. Acks alone are
an ``AckRun``; with nacks or rejects among them it is a ``SettleRun``. Those that speak of several
messages (multiple) are runs of acks, or commands by themselves.

Bound: ``RUN_TAGS_MAX`` tags are one run; what follows is the next one.
Not here: writing them (``answers.py``), what they mean (``adapters/amqp/settling.py``).
"""

from struct import Struct
from typing import Final

from penstock.wire.amqp.basic_methods import Ack, Nack, Reject
from penstock.wire.amqp.codes import CLASS_BASIC, FRAME_END
from penstock.wire.amqp.content import AckRun, SettleRun

_ACK: Final = Ack.method_id
_NACK: Final = Nack.method_id
_REJECT: Final = Reject.method_id
SETTLE: Final = Struct(">11sQBB")
"""Frame head with class and method, tag, bits, end."""
SETTLE_IDS: Final = frozenset(
    bytes((0, CLASS_BASIC, 0, kind.method_id)) for kind in (Ack, Nack, Reject)
)
SETTLE_FRONTS: Final = frozenset(b"\0\0\0\x0d" + ids for ids in SETTLE_IDS)
"""Size of the payload, class and method."""
RUN_TAGS_MAX: Final = 15_000
"""Tags of one run: more than one read of a socket brings at most times."""


def read_settlements(data: bytes, at: int) -> AckRun | SettleRun | None:
    """What lies at ``at``, with what follows of its kind; None when it is to be read by itself."""
    count = min((len(data) - at) // SETTLE.size, RUN_TAGS_MAX)
    fixed, tag, bits, last = SETTLE.unpack_from(data, at)
    channel = fixed[1] << 8 | fixed[2]
    if count == 1 and fixed[10] == _ACK and last == FRAME_END:
        return AckRun(channel, [tag], bool(bits & 1))
    view = memoryview(data)[at : at + count * SETTLE.size]
    if fixed[10] == _ACK:
        tags = _alike(view, fixed, bits)
        stop = len(tags) * SETTLE.size
        if bits & 1 or stop == len(view) or not _says(fixed, *SETTLE.unpack_from(view, stop)):
            return AckRun(channel, tags, bool(bits & 1))
    return _mixed(view, fixed, channel)


def _alike(view: memoryview, fixed: bytes, bits: int) -> list[int]:
    """The tags of the first rows that differ in nothing else."""
    tags: list[int] = []
    for front, tag, its_bits, last in SETTLE.iter_unpack(view):
        if front != fixed or its_bits != bits or last != FRAME_END:
            break
        tags.append(tag)
    return tags


def _mixed(view: memoryview, fixed: bytes, channel: int) -> SettleRun | None:
    tags: list[int] = []
    words = bytearray()
    known: dict[tuple[bytes, int, int], int] = {}
    for front, tag, bits, last in SETTLE.iter_unpack(view):
        word = known.get((front, bits, last))
        if word is None:
            word = known[front, bits, last] = _says(fixed, front, tag, bits, last)
        if not word:
            break
        tags.append(tag)
        words.append(word)
    return SettleRun(channel, tags, bytes(words)) if tags else None


def _says(fixed: bytes, front: bytes, _tag: int, bits: int, last: int) -> int:
    """The word of a row (``SettleRun.words``); 0 when it is none, or of another channel."""
    method = front[10]
    if front[:10] != fixed[:10] or last != FRAME_END:
        return 0
    if method == _REJECT:
        return method + (bits & 1)
    if bits & 1:
        return 0
    if method == _NACK:
        return method + (bits >> 1 & 1)
    return method if method == _ACK else 0
