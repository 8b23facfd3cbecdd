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

LOCATED_ENTRIES_MAX: Final = 65536
"""Entries that are not on file yet in one ``LocateResponse``: 3 MiB."""

NO_TOPIC: Final = "no-topic"
DATA_LOSS: Final = "data-loss"
EPOCH: Final = "epoch"
UNREACHABLE: Final = "unreachable"
BAD_REQUEST: Final = "bad-request"
HELD: Final = "held"
"""A write waited as long as it may, for room or for a topic above its limit; nothing is stored."""
TOO_LARGE: Final = "too-large"
"""A row above the message limit, or a batch above what may be staged."""
NO_STAGE: Final = "no-stage"
"""A commit names rows that are not staged (any more): the batch must be written again."""
REWOUND: Final = "rewound"
"""The batch is older than what its sink has, or of another checkpoint: taking it would lose or
double rows, so somebody must decide."""
KINDS: Final = (
    NO_TOPIC,
    DATA_LOSS,
    EPOCH,
    UNREACHABLE,
    BAD_REQUEST,
    HELD,
    TOO_LARGE,
    NO_STAGE,
    REWOUND,
)
"""What the ``kind`` of a refusal can be; only "unreachable" may pass by asking again."""

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
# itself. A put that no commit names is never seen by anybody.


EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
GUARANTEES: Final = (EXACTLY_ONCE, AT_LEAST_ONCE)

STAGE_COLUMNS: Final = (
    "topic",
    "key",
    "tag",
    "properties",
    "body",
    "message_id",
    "expire",
    "delay_ms",
    "deliver_at",
)
"""What a row may have: text, but for ``properties`` (a map of text, or RocketMQ's own bytes of
it), ``body`` (binary or text, the only one that is needed) and the times: ``expire`` and
``deliver_at`` are timestamps or milliseconds since 1970, ``delay_ms`` counts from the put."""


class StageCommand(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The command of a ``do_put``, as JSON: whose rows they are, and where they go."""

    sink: str
    query: str
    batch: int
    stage: str
    """A text nobody else uses (a uuid): a batch that is tried again has the same task numbers."""
    partition: int = 0
    topic: str = ""
    """For rows without a topic of their own."""
    guarantee: str = EXACTLY_ONCE
    """"at-least-once": visible when the put ends; no commit comes, and one must not."""

    @property
    def name(self) -> str:
        return f"{self.partition}.{self.stage}"


class StageEnd(msgspec.Struct, kw_only=True):
    """The last word of a put, as metadata without a batch: these were all of its rows."""

    rows: int


class StageReceipt(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a put has made durable; comes back when it ends."""

    name: str
    rows: int
    bytes: int = 0
    crc: int = 0
    """crc32c of what was written."""
    is_committed: bool = False
    """True when the rows are visible already: at least once."""


class StagedRows(msgspec.Struct, kw_only=True, frozen=True):
    """A put that counts, as its receipt says."""

    name: str
    rows: int


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
    wait_ms: int = 0
    """How long it may wait for its topics before it is answered with ``held``."""


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
}
ACTIONS: Final = tuple(name for name in RESPONSES if name != "locate")
"""What a Flight client may ask for."""


class BatchProgress(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How a query did its last batch; times that are not known are 0."""

    rows: int = 0
    bytes: int = 0
    batch_ms: float = 0
    """From the end of the batch before to the end of this one."""
    work_ms: float = 0
    """All of the batch's tasks, reading and writing included; only Spark itself can tell."""
    read_ms: float = 0
    transform_ms: float = 0
    sink_ms: float = 0
    batch_id: int = -1
    query_id: str = ""
    """Spark's."""
    query_name: str = ""
    checkpoint: str = ""
    """As in the query's polls."""

    def over(self, before: BatchProgress) -> BatchProgress:
        """This word, with what earlier ones said and this one does not know.

        A batch is told of by its tasks (read and transform), the listener (the whole, and sink) and
        the next poll (rows and the whole), in any order. Rows of a task are not the batch's.
        """
        is_whole = self.batch_ms > 0
        return BatchProgress(
            rows=self.rows if is_whole else before.rows,
            bytes=(self.bytes if is_whole else 0) or before.bytes,
            batch_ms=self.batch_ms or before.batch_ms,
            work_ms=self.work_ms or before.work_ms,
            read_ms=self.read_ms or before.read_ms,
            transform_ms=self.transform_ms or before.transform_ms,
            sink_ms=self.sink_ms or before.sink_ms,
            batch_id=self.batch_id if self.batch_id >= 0 else before.batch_id,
            query_id=self.query_id or before.query_id,
            query_name=self.query_name or before.query_name,
            checkpoint=self.checkpoint or before.checkpoint,
        )

    @property
    def slow_part(self) -> str:
        """read, transform or sink, whichever took longest; empty when that is not known.

        A task that read all its rows at once does not see what they cost behind it; Spark's own
        figure for the tasks does.
        """
        behind_ms = max(self.transform_ms, self.work_ms - self.read_ms)
        parts = {"read": self.read_ms, "transform": behind_ms, "sink": self.sink_ms}
        name = max(parts, key=lambda each: parts[each])
        return name if parts[name] > 0 else ""
