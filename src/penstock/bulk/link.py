"""What the Flight process and the broker say to one another over ``<data>/bulk.sock`` (D18).

A frame is its length (u32, little-endian) and that many bytes of msgpack. A question is one of the
structs of ``Question`` below, flat, with ``id`` and ``do`` beside its fields:

    {"id": 7, "do": "resolve", "topics": ["orders"]}

The answer has the same ``id`` and either ``ok``, the struct named beside the question, or
``error``. Answers come in any order; at most ``IN_FLIGHT_MAX`` questions wait at a time. The same
structs, as JSON, are the bodies of Flight's actions, whose type is ``do`` (``ACTIONS``).

    resolve  -> Resolved    poll    -> Polled      by_time -> Offsets
    lease    -> Leased      release -> Done        report  -> Done       locate -> Located

Topics are named as ``str(TopicName)`` does. ``queue`` is the number of a queue in its topic.
An offset map is {topic: {queue: offset}}; ranges are [start, end).

Invariants: ``end`` is always durable (D7): no reader goes above it. Unknown fields are ignored, so
both ends may be of neighbouring versions.

Not here: who answers (``server/flight.py``), who asks (``broker.py``), tickets (``tickets.py``).
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, Protocol

import msgspec

from penstock.model.errors import PenstockError
from penstock.model.progress import BatchProgress

SOCKET_NAME: Final = "bulk.sock"
IN_FLIGHT_MAX: Final = 16
"""Questions that wait for their answer on one connection; the asker waits before it asks more."""
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest are lists of thousands of queues and index tails of ``LOCATED_ENTRIES_MAX``."""
LOCATED_ENTRIES_MAX: Final = 65536
"""Entries that are not on file yet in one ``Located``: 3 MiB."""

NO_TOPIC: Final = "no-topic"
DATA_LOSS: Final = "data-loss"
EPOCH: Final = "epoch"
UNREACHABLE: Final = "unreachable"
BAD_REQUEST: Final = "bad-request"
KINDS: Final = (NO_TOPIC, DATA_LOSS, EPOCH, UNREACHABLE, BAD_REQUEST)
"""What ``Problem.kind`` and ``tickets.BulkError.kind`` can be; only "unreachable" may pass."""

OffsetMap = dict[str, dict[int, int]]
"""{topic: {queue: offset}}."""


class Question(msgspec.Struct, tag_field="do", kw_only=True, omit_defaults=True):
    """What all questions have; ``id`` is the asker's, 0 in the body of an action."""

    id: int = 0


class Resolve(Question, tag="resolve"):
    """Which queues are there? Names in ``topics``, else a regular expression, else all."""

    topics: list[str] | None = None
    """A name that does not exist is an error of kind "no-topic" that says the nearest one."""
    pattern: str | None = None
    """``re.fullmatch`` of the name; hidden topics never match, no match is an empty answer."""


class QueueRange(msgspec.Struct, kw_only=True):
    """What can be read of a queue."""

    queue: int
    queue_id: int
    incarnation: int
    """Never used twice (D17): another one means the topic was deleted and made anew."""
    earliest: int
    end: int
    """Above the last durable message."""
    bytes: int = 0
    """Record bytes of [earliest, end)."""


class TopicRange(msgspec.Struct, kw_only=True):
    """A topic and its queues in order."""

    name: str
    queues: list[QueueRange]


class Resolved(msgspec.Struct, kw_only=True):
    """Topics in the order of their names."""

    epoch: int
    """Offsets of an older epoch may name other messages now (D7)."""
    topics: list[TopicRange]


class Poll(Question, tag="poll"):
    """How far may the next batch go? Held at the broker until there is something to read.

    ``start`` is what the query has processed durably; the broker notes it as the position of
    subscription ``spark/<subscription>``.
    """

    subscription: str
    topics: list[str] | None = None
    pattern: str | None = None
    start: OffsetMap = {}
    """A queue that is missing here begins at its earliest offset."""
    epoch: int = 0
    """The one the offsets of ``start`` come from; 0 when there is none yet."""
    rows_max: int = 0
    """In all queues together; 0 = no limit. So are the following."""
    bytes_max: int = 0
    rows_min: int = 0
    """Not answered with fewer, as long as ``wait_ms`` is not over."""
    wait_ms: int = 0
    report: BatchProgress | None = None


class Polled(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where the next batch ends, within the limits that were asked for."""

    epoch: int
    ends: OffsetMap
    """Equal to ``start`` (or earliest) where there is nothing to read."""
    latest: OffsetMap
    """Durable ends without limits."""
    starts: OffsetMap = {}
    """Earliest offsets of queues that were missing in ``start``, or whose start is gone."""
    incarnations: OffsetMap = {}
    """{topic: {queue: incarnation}}."""
    rows: int = 0
    """Messages of [start, ends)."""
    bytes: int = 0
    """Record bytes of [start, ends)."""
    lag_rows: int = 0
    lag_bytes: int = 0
    lost: str | None = None
    """Why messages behind ``start`` are gone, if they are: whether a lease was broken, and why."""
    held: str | None = None
    """Why the producers are held at the moment, if they are because of this query."""


class ByTime(Question, tag="by_time"):
    """First offset stored at or after a time, for each queue; the end where there is none."""

    topic: str
    at_ms: int


class Offsets(msgspec.Struct, kw_only=True):
    """Answer to ``ByTime``."""

    epoch: int
    offsets: OffsetMap


class Lease(Question, tag="lease"):
    """Keep what ``subscription`` has not processed, until ``ttl_ms`` pass without a poll (F18)."""

    subscription: str
    topics: list[str] | None = None
    pattern: str | None = None
    ttl_ms: int = 0
    """0 = the broker's default."""
    start: OffsetMap = {}
    """Positions to begin with when the broker does not know the subscription yet."""


class Leased(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The lease as it is now."""

    ttl_ms: int
    is_broken: bool = False
    """It held more than its bound of bytes and was given up: expect data loss."""
    text: str = ""


class Release(Question, tag="release"):
    """The query is gone for good, or for now: its data need not be kept."""

    subscription: str
    is_final: bool = False
    """Also forget the subscription."""


class Report(Question, tag="report"):
    """What the listener saw of a batch, between two polls."""

    subscription: str
    progress: BatchProgress
    state: str = "running"
    """running, idle, stopped or failed; failed with ``text``."""
    text: str = ""


class Done(msgspec.Struct):
    """Nothing to say but that it was done."""


class Locate(
    Question, tag="locate", kw_only=True, rename={"start": "from", "end": "to"}
):  # fmt: skip
    """Where are the index entries of a range? Asked by the Flight process only."""

    topic: str
    queue: int
    start: int
    end: int


class IndexFile(msgspec.Struct, array_like=True, gc=False):
    """A file of packed index entries, as far as it may be read."""

    path: str
    """Relative to the data directory."""
    first_offset: int
    entries: int


class Located(msgspec.Struct, kw_only=True, omit_defaults=True, rename={"end": "to"}):
    """Where to find the entries of [from, ``end``); ``end`` may be below what was asked for.

    It is when ``end`` asked for lies above the durable one, or more than ``LOCATED_ENTRIES_MAX``
    entries are not on file: the asker goes on from there.
    """

    epoch: int
    queue_id: int
    incarnation: int
    earliest: int
    end: int
    files: list[IndexFile] = []
    """In the order of offsets; those that hold none of the range may be left out."""
    tail: bytes = b""
    """Packed entries (``log/index.py``) behind the last one on file, up to ``end``; the first
    may begin below the range and the last may end above it (batches)."""
    run_start: int = 0
    """``Recovered.start_position``: transient records below it did not survive the restart (D6)."""


class Problem(msgspec.Struct, kw_only=True):
    """Why there is no answer; ``kind`` is one of ``KINDS``."""

    kind: str
    text: str


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An answer on the socket: ``ok`` or ``error``."""

    id: int
    ok: msgspec.Raw = msgspec.Raw()
    error: Problem | None = None


AnyQuestion = Resolve | Poll | ByTime | Lease | Release | Report | Locate
Answer = Resolved | Polled | Offsets | Leased | Done | Located
ANSWERS: Final[dict[str, type[Answer]]] = {
    "resolve": Resolved,
    "poll": Polled,
    "by_time": Offsets,
    "lease": Leased,
    "release": Done,
    "report": Done,
    "locate": Located,
}
ACTIONS: Final = tuple(name for name in ANSWERS if name != "locate")
"""What a Flight client may ask for."""

_LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = _LENGTH.size
_ENCODER: Final = msgspec.msgpack.Encoder()
_QUESTIONS: Final[msgspec.msgpack.Decoder[AnyQuestion]] = msgspec.msgpack.Decoder(AnyQuestion)
_REPLIES: Final = msgspec.msgpack.Decoder(Reply)


def encode_question(question: AnyQuestion) -> bytes:
    return _framed(_ENCODER.encode(question))


def decode_question(payload: bytes) -> AnyQuestion:
    """The question in a frame's payload; raises ``msgspec.MsgspecError``."""
    return _QUESTIONS.decode(payload)


def encode_answer(identifier: int, answer: Answer) -> bytes:
    """A whole frame with an answer."""
    return _framed(_ENCODER.encode(Reply(id=identifier, ok=msgspec.Raw(_ENCODER.encode(answer)))))


def encode_problem(identifier: int, kind: str, text: str) -> bytes:
    """A whole frame with an error."""
    return _framed(_ENCODER.encode(Reply(id=identifier, error=Problem(kind=kind, text=text))))


def decode_reply(payload: bytes) -> Reply:
    """The reply in a frame's payload; ``ok`` is still packed, for ``decode_answer``."""
    return _REPLIES.decode(payload)


def decode_answer(name: str, ok: msgspec.Raw) -> Answer:
    """The struct that answers question ``name``."""
    return msgspec.msgpack.decode(ok, type=ANSWERS[name])


def frame_length(head: bytes) -> int:
    """Bytes of payload behind these four; raises ``ValueError`` for more than a frame may have."""
    size = int(_LENGTH.unpack(head)[0])
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes on {SOCKET_NAME}, limit {FRAME_BYTES_MAX}")
    return size


def _framed(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


# ---- tickets ------------------------------------------------------------------------------------
# Tickets: what to read, as JSON; and the errors of the bulk lane.
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
#
# Not here: Arrow (``schema.py``), who reads (``flight.py``, ``offline.py``), questions
# (``link.py``).


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
    """Why rows or an answer cannot be had; ``kind`` is one of ``link.KINDS``."""

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
        if self.queue < 0 or not 0 <= self.start <= self.end:
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


class Bulk(Protocol):
    """Where rows come from: ``client.BulkClient`` or ``offline.OfflineBulk`` (``path = DIR``)."""

    def resolve(self, topics: list[str] | None = None, *, pattern: str | None = None) -> Resolved:
        """Topics, their queues and what can be read of each."""
        ...

    def by_time(self, topic: str, at_ms: int) -> OffsetMap:
        """First offsets stored at or after a time."""
        ...

    def read(self, ticket: Ticket) -> Iterator[Any]:
        """The rows of a ticket as ``pyarrow.RecordBatch`` es, without the empty last one."""
        ...

    def close(self) -> None: ...
