"""What goes over ``<data>/bulk.sock`` between the broker and its Flight process (D18).

A frame on the socket is its length (u32, little-endian) and that many bytes of msgpack. A request
is a struct of ``model/queries.py``, flat, with ``id`` and ``do`` beside its fields:

    {"id": 7, "do": "resolve", "topics": ["orders"]}

The reply has the same ``id`` and either ``ok``, the response to that request, or ``error``.
Replies come in any order; at most ``IN_FLIGHT_MAX`` requests wait at a time. The same structs, as
JSON, are the bodies of Flight's actions, whose type is ``do`` (``ACTIONS``).

Not here: who answers (``server/flight.py``), who asks (``broker.py``), tickets (``tickets.py``).
"""

import struct
from typing import Final

import msgspec

from penstock.model.queries import RESPONSES, AnyRequest, AnyResponse

SOCKET_NAME: Final = "bulk.sock"
IN_FLIGHT_MAX: Final = 16
"""Requests that wait for their reply on one connection; the asker waits before it asks more."""
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest are lists of thousands of queues and index tails of ``LOCATED_ENTRIES_MAX``."""


class Problem(msgspec.Struct, kw_only=True):
    """Why there is no answer; ``kind`` is one of ``spark_batch.KINDS``."""

    kind: str
    text: str


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What comes back on the socket: ``ok`` or ``error``."""

    id: int
    ok: msgspec.Raw = msgspec.Raw()
    error: Problem | None = None


def _plain(text: object) -> str:
    """Words of the engine that know whom they mean (``flow.reason.Culprit``) travel as words."""
    if isinstance(text, str):
        return str(text)
    raise NotImplementedError


_LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = _LENGTH.size
_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_plain)
_REQUESTS: Final[msgspec.msgpack.Decoder[AnyRequest]] = msgspec.msgpack.Decoder(AnyRequest)
_REPLIES: Final = msgspec.msgpack.Decoder(Reply)


def encode_request(request: AnyRequest) -> bytes:
    return _framed(_ENCODER.encode(request))


def decode_request(payload: bytes) -> AnyRequest:
    """The request in a frame's payload; raises ``msgspec.MsgspecError``."""
    return _REQUESTS.decode(payload)


def encode_response(identifier: int, response: AnyResponse) -> bytes:
    """A whole frame with an answer."""
    return _framed(_ENCODER.encode(Reply(id=identifier, ok=msgspec.Raw(_ENCODER.encode(response)))))


def encode_problem(identifier: int, kind: str, text: str) -> bytes:
    """A whole frame with an error."""
    return _framed(_ENCODER.encode(Reply(id=identifier, error=Problem(kind=kind, text=text))))


def decode_reply(payload: bytes) -> Reply:
    """The reply in a frame's payload; ``ok`` is still packed, for ``decode_response``."""
    return _REPLIES.decode(payload)


def decode_response(name: str, ok: msgspec.Raw) -> AnyResponse:
    """The response to request ``name``."""
    return msgspec.msgpack.decode(ok, type=RESPONSES[name])


def frame_length(head: bytes) -> int:
    """Bytes of payload behind these four; raises ``ValueError`` for more than a frame may have."""
    size = int(_LENGTH.unpack(head)[0])
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes on {SOCKET_NAME}, limit {FRAME_BYTES_MAX}")
    return size


def _framed(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload
