"""Acks and nacks, the shortest of all methods: confirms for publishers, settlement of consumers.

    | 01 ch u16 size 13 | class 60 | 80 ack, 120 nack | tag u64 | bits: multiple, requeue | CE |

Not here: which tags may be answered together (``flow/confirms.py``), reading them (``inflow.py``).
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from penstock.wire.amqp.codes import CLASS_BASIC, FRAME_END, FRAME_METHOD

_FRAME: Final = Struct(">BHIHHQBB")
_PAYLOAD_BYTES: Final = 13
_ACK: Final = 80
_NACK: Final = 120


def ack_frame(channel: int, tag: int, *, is_multiple: bool = False) -> bytes:
    """basic.ack."""
    return _FRAME.pack(
        FRAME_METHOD, channel, _PAYLOAD_BYTES, CLASS_BASIC, _ACK, tag, is_multiple, FRAME_END
    )


def nack_frame(
    channel: int, tag: int, *, is_multiple: bool = False, is_requeue: bool = False
) -> bytes:
    """basic.nack."""
    bits = is_multiple | is_requeue << 1
    return _FRAME.pack(
        FRAME_METHOD, channel, _PAYLOAD_BYTES, CLASS_BASIC, _NACK, tag, bits, FRAME_END
    )


def confirms(
    channel: int, upto: int | None, singles: Iterable[int], *, is_ack: bool = True
) -> bytes:
    """What ``flow.confirms.Answers`` says: one cumulative answer, then single ones."""
    answer = ack_frame if is_ack else nack_frame
    pieces = [] if upto is None else [answer(channel, upto, is_multiple=True)]
    pieces += [answer(channel, tag) for tag in singles]
    return b"".join(pieces)
