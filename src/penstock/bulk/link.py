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

Not here: who answers (``server/bulk.py``), who asks (``broker.py``), tickets (``tickets.py``).
"""

import struct
from typing import Final

import msgspec

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
    """A whole frame."""
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
