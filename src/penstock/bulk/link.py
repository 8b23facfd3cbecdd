"""What goes over the bulk lane: frames on ``<data>/bulk.sock``, tickets and errors of Flight (D18).

A frame on the socket is its length (u32, little-endian) and that many bytes of msgpack. A request
is a struct of ``model/queries.py``, flat, with ``id`` and ``do`` beside its fields:

    {"id": 7, "do": "resolve", "topics": ["orders"]}

The reply has the same ``id`` and either ``ok``, the response to that request, or ``error``.
Replies come in any order; at most ``IN_FLIGHT_MAX`` requests wait at a time. The same structs, as
JSON, are the bodies of Flight's actions, whose type is ``do`` (``ACTIONS``).

Not here: who answers (``server/flight.py``), who asks (``broker.py``), Arrow (``layout.py``), who
reads rows (``flight.py``, ``offline.py``).
"""

import struct
from typing import Final

import msgspec

from penstock.model.errors import PenstockError
from penstock.model.queries import (
    KINDS,
    RESPONSES,
    AnyRequest,
    AnyResponse,
)

SOCKET_NAME: Final = "bulk.sock"
IN_FLIGHT_MAX: Final = 16
"""Requests that wait for their reply on one connection; the asker waits before it asks more."""
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest are lists of thousands of queues and index tails of ``LOCATED_ENTRIES_MAX``."""


class Problem(msgspec.Struct, kw_only=True):
    """Why there is no answer; ``kind`` is one of ``KINDS``."""

    kind: str
    text: str


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What comes back on the socket: ``ok`` or ``error``."""

    id: int
    ok: msgspec.Raw = msgspec.Raw()
    error: Problem | None = None


_LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = _LENGTH.size
_ENCODER: Final = msgspec.msgpack.Encoder()
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


# ---- tickets ------------------------------------------------------------------------------------
#
# | {"topic": "orders", "queue": 0, "from": 0, "to": 50000, "epoch": 1,
# |  "columns": ["offset", "body"], "filter": {"kind": "tag", "text": "A || B"}}
#
# A ticket names a range of one queue and nothing of files: it stays good as long as the messages
# do, and the same ticket gives the same rows. Rows that the filter does not want are not there.
#
# Every batch carries a ``Summary`` as JSON in its metadata: where the range stands after it. That
# of the last batch (which may have no rows) says ``next`` = ``to``, so a reader knows that nothing
# was cut off, and one that was interrupted goes on at ``next``.


COLUMNS: Final = (
    "topic",
    "queue",
    "offset",
    "timestamp",
    "born_timestamp",
    "key",
    "tag",
    "properties",
    "protocol",
    "body",
)
"""All columns of a row, in the order a reader gets them unless it says otherwise."""
TAG: Final = "tag"
SQL92: Final = "sql92"
ROWS_PER_BATCH: Final = 10_000
"""Spark's sweet spot is 5,000 to 10,000 rows."""
ROWS_PER_BATCH_MAX: Final = 100_000


class BulkError(PenstockError):
    """Why rows or an answer cannot be had; ``kind`` is one of ``KINDS``."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind: Final = kind if kind in KINDS else "unreachable"

    def __reduce__(self) -> tuple[type["BulkError"], tuple[str, str]]:
        """Errors of executors travel to the driver."""
        return BulkError, (self.kind, str(self))


class RowFilter(msgspec.Struct, frozen=True):
    """Which rows are wanted: ``kind`` is "tag" (``A || B``) or "sql92"."""

    kind: str
    text: str


NUMBER_MAX: Final = (1 << 62) - 1
"""Of queues and offsets; what is larger fits no index."""


class Ticket(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True,
    forbid_unknown_fields=True, rename={"start": "from", "end": "to"},
):  # fmt: skip
    """One range of one queue."""

    topic: str
    queue: int
    start: int
    """``from`` in JSON."""
    end: int
    """``to`` in JSON: the first offset that is not read."""
    epoch: int = 0
    """When it is not 0 and not the log's, the read is refused (kind "epoch")."""
    incarnation: int = 0
    """When it is not 0 and not the queue's, the topic was made anew: refused (kind "epoch")."""
    columns: list[str] | None = None
    """In this order; None = all."""
    filter: RowFilter | None = None
    fail_on_data_loss: bool = True
    """False: what is lost is left out and counted."""
    rows_per_batch: int = ROWS_PER_BATCH
    check: bool = False
    """Check the crc of every record: costs a pass over all bytes."""

    def __post_init__(self) -> None:
        if not 0 <= self.queue <= NUMBER_MAX or not 0 <= self.start <= self.end <= NUMBER_MAX:
            raise ValueError(f"range [{self.start}, {self.end}) of queue {self.queue} is no range")
        if not 1 <= self.rows_per_batch <= ROWS_PER_BATCH_MAX:
            raise ValueError(f"rows_per_batch is 1 to {ROWS_PER_BATCH_MAX}")
        columns = self.columns if self.columns is not None else COLUMNS
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown or not columns or len(set(columns)) != len(columns):
            raise ValueError(f"columns are some of {', '.join(COLUMNS)}, not {unknown or columns}")
        if self.filter is not None and self.filter.kind not in (TAG, SQL92):
            raise ValueError(f"a filter is of kind tag or sql92, not {self.filter.kind!r}")

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


class Summary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of a range so far: ``read + lost + dropped`` is ``next_offset - from``."""

    next_offset: int = msgspec.field(default=0, name="next")
    """Everything below is done."""
    rows: int = 0
    """Rows given."""
    read: int = 0
    """Messages looked at: rows and those that the filter did not want."""
    lost: int = 0
    """Messages that should be there and are not: removed by retention, or damaged."""
    dropped: int = 0
    """Transient messages that a restart dropped, as it should (D6)."""
    bytes: int = 0
    """Record bytes of what was read."""


def decode_ticket(data: bytes) -> Ticket:
    """The ticket in a Flight ticket; raises ``BulkError`` that says what is wrong with it."""
    try:
        return msgspec.json.decode(data, type=Ticket)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise BulkError("bad-request", f"this is no ticket: {problem}") from None
