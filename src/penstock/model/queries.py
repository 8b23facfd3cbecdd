"""What is asked and answered about Spark queries, and how far a batch of one has come (D18).

One set of structs for everybody: Spark's source makes a ``PollRequest``, Flight carries it as JSON
(``do`` is the type of the action), ``<data>/bulk.sock`` as msgpack (``penstock.bulk.link``), and
the engine's ``QueryService`` answers with a ``PollResponse``.

    resolve  -> ResolveResponse          poll    -> PollResponse     lease  -> LeaseResponse
    by_time  -> OffsetsByTimeResponse    release -> EmptyResponse    report -> EmptyResponse
    locate   -> LocateResponse

What Spark's sink says of staged writes (D19) is at the end: ``commit_batch``, ``abort_batch``,
``sink_state``, and the words of Flight's ``do_put``.

Topics are named as ``str(TopicName)`` does. ``queue`` is the number of a queue in its topic; in
Spark's checkpoints and in RocketMQ's clusters queues are texts, so a poll is generic in them.
An offset map is {topic: {queue: offset}}; ranges are [start, end).

Invariants: ``end`` is always durable (D7): no reader goes above it. Unknown fields are ignored, so
both ends may be of neighbouring versions. Field names are the wire's.

Not here: frames and tickets (``bulk/link.py``), what follows from progress (``engine/spark``).
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec

from penstock.model.spark_batch import BatchProgress, StagedRows

LOCATED_ENTRIES_MAX: Final = 65536
"""Entries that are not on file yet in one ``LocateResponse``: 3 MiB."""

STAGE_TOPICS_MAX: Final = 1000
"""Topics that the rows of one put may name."""

Q = TypeVar("Q", int, str)
"""How a queue is named: its number at the broker, a text in Spark."""
OffsetMap = dict[str, dict[int, int]]
"""{topic: {queue: offset}}."""


class QueryRequest(msgspec.Struct, tag_field="do", kw_only=True, omit_defaults=True):
    """What all questions have; ``id`` is the asker's, 0 in the body of an action."""

    id: int = 0


class ResolveRequest(QueryRequest, tag="resolve"):
    """Which queues are there? Names in ``topics``, else a regular expression, else all."""

    topics: list[str] | None = None
    """A name that does not exist is an error of kind "no-topic" that says the nearest one."""
    pattern: str | None = None
    """``re.fullmatch`` of the name; hidden topics never match, no match is an empty answer."""
    optional: list[str] = []
    """Names of more topics; those that do not exist (yet) are left out."""


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


class ResolveResponse(msgspec.Struct, kw_only=True):
    """Topics in the order of their names."""

    epoch: int
    """Offsets of an older epoch may name other messages now (D7)."""
    topics: list[TopicRange]
    is_auto_creating: bool = True
    """A topic that is not there is made by the first row that a sink writes to it."""


class PollRequest(QueryRequest, Generic[Q], tag="poll"):
    """How far may the next batch go? Held at the broker until there is something to read.

    ``start`` is what the query has processed durably; the broker notes it as the position of
    subscription ``spark/<subscription>``.
    """

    subscription: str
    checkpoint: str = ""
    """Which of the queries on the subscription: an id the source keeps in the query's checkpoint,
    so that it lives as long as Spark's query id, which a source is not told on the driver."""
    topics: list[str] | None = None
    pattern: str | None = None
    optional: list[str] = []
    """As that of a resolve: they are read once they exist."""
    start: dict[str, dict[Q, int]] = {}
    """A queue that is missing here begins at its earliest offset."""
    epoch: int = 0
    """The one the offsets of ``start`` come from; 0 when there is none yet."""
    rows_max: int = 0
    """In all queues together; 0 = no limit. So are the following."""
    bytes_max: int = 0
    rows_min: int = 0
    """Not answered with fewer, as long as ``wait_ms`` is not over."""
    wait_ms: int = 0
    own_rows_max: int = 0
    """What its user allows a batch (``maxRowsPerTrigger``); 0 = nothing was said. ``rows_max`` may
    be less, by what earlier batches have taught."""
    report: BatchProgress | None = None
    maker: str = ""
    """For whom a query counts that is made (``flow/reserve.py``): the Flight process says it,
    whatever the client does; empty = for an operator."""


class PollResponse(msgspec.Struct, Generic[Q], kw_only=True, omit_defaults=True):
    """Where the next batch ends, within the limits that were asked for."""

    epoch: int
    ends: dict[str, dict[Q, int]]
    """Equal to ``start`` (or earliest) where there is nothing to read."""
    latest: dict[str, dict[Q, int]]
    """Durable ends without limits."""
    starts: dict[str, dict[Q, int]] = {}
    """Earliest offsets of queues that were missing in ``start``, or whose start is gone."""
    incarnations: dict[str, dict[Q, int]] = {}
    """{topic: {queue: incarnation}}."""
    rows: int = 0
    """Messages of [start, ends)."""
    bytes: int = 0
    """Record bytes of [start, ends)."""
    lag_rows: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    """How long ago the oldest of them was stored."""
    lost: str | None = None
    """Why messages behind ``start`` are gone, if they are: whether a lease was broken, and why."""
    held: str | None = None
    """Why the producers are held at the moment, if they are because of this query."""


class OffsetsByTimeRequest(QueryRequest, tag="by_time"):
    """First offset stored at or after a time, for each queue; the end where there is none."""

    topic: str
    at_ms: int


class OffsetsByTimeResponse(msgspec.Struct, kw_only=True):
    """Answer to ``OffsetsByTimeRequest``."""

    epoch: int
    offsets: OffsetMap


class LeaseRequest(QueryRequest, tag="lease"):
    """Keep what ``subscription`` has not processed, until ``ttl_ms`` pass without a poll (F18)."""

    subscription: str
    checkpoint: str = ""
    topics: list[str] | None = None
    pattern: str | None = None
    optional: list[str] = []
    ttl_ms: int = 0
    """0 = the broker's default."""
    start: OffsetMap = {}
    """Positions to begin with when the broker does not know the subscription yet."""
    maker: str = ""
    """As that of a poll."""


class LeaseResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The lease as it is now."""

    ttl_ms: int
    is_broken: bool = False
    """It held more than its bound of bytes and was given up: expect data loss."""
    text: str = ""


class ReleaseRequest(QueryRequest, tag="release"):
    """All queries of a subscription are gone for good, or for now: nothing need be kept."""

    subscription: str
    checkpoint: str = ""
    """Only the query with this one, as in a poll."""
    is_final: bool = False
    """Also forget the subscription."""


class ReportRequest(QueryRequest, tag="report"):
    """What the listener saw of a batch, between two polls."""

    subscription: str
    progress: BatchProgress
    state: str = "running"
    """running, idle, stopped or failed; failed with ``text``."""
    text: str = ""


class EmptyResponse(msgspec.Struct):
    """Nothing to say but that it was done."""


class LocateRequest(
    QueryRequest, tag="locate", kw_only=True, rename={"start": "from", "end": "to"}
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


class LocateResponse(msgspec.Struct, kw_only=True, omit_defaults=True, rename={"end": "to"}):
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


# ---- staged writes ------------------------------------------------------------------------------
# What Spark's sink says (D19). A task puts its rows beside the log, under a name of its own, with
# Flight's ``do_put``; the driver names the puts that count, and they appear all together.
#
# A batch is known by (sink, query, batch): ``sink`` tells two sinks of one query apart, ``query``
# is Spark's id of a streaming query, a ``transactionalId``, or an id that a plain write makes for
# itself. A put that no commit names is never seen by anybody. ``spark_query`` is Spark's id of the
# streaming query that writes, whatever name it writes under: what the broker knows of that query
# (its lease, its brake) is known by it. Empty = ``query``. ``passing`` names topics whose limits
# hold nothing of it: those of a flow's retries and dead letters.


class CommitBatchRequest(QueryRequest, tag="commit_batch"):
    """These puts, and no others of the batch, become visible together. May be asked again."""

    sink: str
    query: str
    batch: int
    stages: list[StagedRows] = []
    """Those without rows may be left out; without any the batch is committed all the same."""
    is_streaming: bool = True
    """True: ``query`` is a streaming query, which repeats its last batch and never an older one.
    False: whoever writes counts the batches (``transactionalId``), older ones are done already."""
    checkpoint: str = ""
    """Which checkpoint the batch numbers are of (Spark's id of the query); empty = unknown."""
    is_single: bool = False
    """True: a plain write, whose key nobody uses later than to ask for this answer again."""
    maker: str = ""
    """As that of a poll."""
    wait_ms: int = 0
    """How long it may wait for its topics before it is answered with ``held``."""
    put_ms: float = 0
    """What the longest of its puts took, without the time in which the rows were made."""
    spark_query: str = ""
    passing: list[str] = []


class CommitBatchResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The rows are durable and visible, or wait."""

    rows: int = 0
    is_replay: bool = False
    """They were before: the puts that were named now are dropped."""
    held: str = ""
    """Not done yet, and why; ask again."""
    offsets: dict[str, dict[int, tuple[int, int]]] = {}
    """{topic: {queue: (first, end)}} of the rows; nothing of delayed ones, or of a replay."""


class AbortBatchRequest(QueryRequest, tag="abort_batch"):
    """These puts count no more. A batch that is committed, or about to be, stays so."""

    sink: str
    query: str
    batch: int
    stages: list[str] = []
    """Names; those that nobody knows are gone already."""


class AbortBatchResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How many puts are gone now."""

    dropped: int = 0
    is_committed: bool = False
    """True when the batch is visible: an abort changes nothing of that."""


class SinkStateRequest(QueryRequest, tag="sink_state"):
    """Which batch of a query was the last one in a sink."""

    sink: str
    query: str


class SinkStateResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The last batch that is visible."""

    batch: int = -1
    """-1: none is known."""
    rows: int = 0
    at_ms: int = 0
    """Wall time of its commit."""
    checkpoint: str = ""
    is_committing: bool = False
    """The next one is on its way: it may be visible in a moment, whoever asked for it."""


class StageRoomRequest(QueryRequest, tag="stage_room"):
    """May a put write so much more, and where to? Asked by the Flight process only.

    Held until there is room for it, or its time is up.
    """

    sink: str
    query: str
    batch: int
    name: str
    """Of the put."""
    topics: list[str] = []
    """Those that its rows name, as far as they are new to it."""
    bytes: int = 0
    wait_ms: int = 0
    maker: str = ""
    """As that of a poll; topics that are made count for it."""
    spark_query: str = ""
    passing: list[str] = []


class StagedTopic(msgspec.Struct, kw_only=True):
    """Where rows of a topic go."""

    name: str
    queues: list[int]
    """Ids, by number."""
    message_bytes_max: int


class StageRoomResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Yes, unless it is ``held``."""

    topics: list[StagedTopic] = []
    held: str = ""
    """Not now, and why; ask again."""
    wall_ms: int = 0
    """By the broker's clock."""


class StageDoneRequest(QueryRequest, tag="stage_done"):
    """A put has ended. Said by the Flight process only."""

    sink: str
    query: str
    batch: int
    name: str
    bytes: int = 0
    """What it has left; 0: nothing, it broke."""


AnyRequest = (
    ResolveRequest
    | PollRequest[int]
    | OffsetsByTimeRequest
    | LeaseRequest
    | ReleaseRequest
    | ReportRequest
    | LocateRequest
    | CommitBatchRequest
    | AbortBatchRequest
    | SinkStateRequest
    | StageRoomRequest
    | StageDoneRequest
)
AnyResponse = (
    ResolveResponse
    | PollResponse[int]
    | OffsetsByTimeResponse
    | LeaseResponse
    | EmptyResponse
    | LocateResponse
    | CommitBatchResponse
    | AbortBatchResponse
    | SinkStateResponse
    | StageRoomResponse
)
RESPONSES: Final[dict[str, type[AnyResponse]]] = {
    "resolve": ResolveResponse,
    "poll": PollResponse[int],
    "by_time": OffsetsByTimeResponse,
    "lease": LeaseResponse,
    "release": EmptyResponse,
    "report": EmptyResponse,
    "locate": LocateResponse,
    "commit_batch": CommitBatchResponse,
    "abort_batch": AbortBatchResponse,
    "sink_state": SinkStateResponse,
    "stage_room": StageRoomResponse,
    "stage_done": EmptyResponse,
}
INTERNAL: Final = ("locate", "stage_room", "stage_done")
"""What the Flight process asks for itself."""
ACTIONS: Final = tuple(name for name in RESPONSES if name not in INTERNAL)
"""What a Flight client may ask for."""
