"""A batch of a Spark query in plain values: how it went, what of it is staged, why it is refused.

Tasks on executors make and read these, so they are dataclasses of Python's own: what an executor
needs of Penstock has no compiled part (``penstock spark package``). Questions to the broker carry
them as they are (``queries.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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


TRANSFORM_OR_SINK: Final = "transform or sink"
"""The slow part of a batch where its tasks do both, and only their sum is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchProgress:
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
    """Outside its tasks."""
    put_ms: float = 0
    """Of the writer in its tasks, the longest; only Penstock's own says so."""
    batch_id: int = -1
    query_id: str = ""
    """Spark's."""
    query_name: str = ""
    checkpoint: str = ""
    """As in the query's polls."""
    retries: int = 0
    """Rows of a flow that are tried again later."""
    dead: int = 0
    """Rows of a flow that became dead letters."""

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
            put_ms=self.put_ms or before.put_ms,
            batch_id=self.batch_id if self.batch_id >= 0 else before.batch_id,
            query_id=self.query_id or before.query_id,
            query_name=self.query_name or before.query_name,
            checkpoint=self.checkpoint or before.checkpoint,
            retries=self.retries if is_whole else before.retries,
            dead=self.dead if is_whole else before.dead,
        )

    @property
    def slow_part(self) -> str:
        """read, transform or sink, whichever took longest; empty when that is not known.

        A task that read all its rows at once does not see what they cost behind it; Spark's own
        figure for the tasks does. Transforming and writing are done in the same tasks: they can be
        told apart when Penstock's writer has timed itself.
        """
        behind_ms = max(self.transform_ms, self.work_ms - self.read_ms)
        if self.put_ms:
            transform_ms = max(0.0, behind_ms - self.put_ms)
            sink_ms = self.sink_ms + self.put_ms
            parts = {"read": self.read_ms, "transform": transform_ms, "sink": sink_ms}
        else:
            parts = {"read": self.read_ms, TRANSFORM_OR_SINK: behind_ms, "sink": self.sink_ms}
        name = max(parts, key=lambda each: parts[each])
        return name if parts[name] > 0 else ""


# ---- staged writes ------------------------------------------------------------------------------
# The words of Flight's ``do_put`` (D19): a task puts its rows beside the log, under a name of its
# own. What the driver says then is ``CommitBatchRequest``.


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
NO_BODY: Final = (
    "there is no column body: every message has one; to_json(struct(*)) as body makes one of all"
    " columns"
)
TWO_TIMES: Final = "delay_ms and deliver_at say the same thing twice; give one of them"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCommand:
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
    spark_query: str = ""
    """Spark's id of the streaming query that writes them, where ``query`` is another name: its
    lease and its brake are known by it. Empty = ``query``."""
    passing: tuple[str, ...] = ()
    """Topics of the rows whose limits are not for them: what a flow could not process must not stop
    it. Only flows say so, of the topics of their own letters."""

    @property
    def name(self) -> str:
        return f"{self.partition}.{self.stage}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageEnd:
    """The last word of a put, as metadata without a batch: these were all of its rows."""

    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StageReceipt:
    """What a put has made durable; comes back when it ends."""

    name: str
    rows: int
    bytes: int = 0
    crc: int = 0
    """crc32c of what was written."""
    is_committed: bool = False
    """True when the rows are visible already: at least once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedRows:
    """A put that counts, as its receipt says."""

    name: str
    rows: int
