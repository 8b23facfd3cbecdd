"""A flow as Spark's query: the source's rows, decoded, deduplicated, transformed, on to the target.

    messages   topic, queue, offset, timestamp, born_timestamp, key, tag, properties, protocol,
               body, and ``value``: the body decoded (a struct of JSON, or text)

``sql`` sees them as the view ``messages``, ``python`` as a DataFrame, ``map`` row by row as a dict.
A retried message comes back with the topic, queue and offset of its first time.

Bad rows travel with good ones in one batch, as letters (column ``_letter``), so that a batch is one
decision. With ``sql`` and ``python`` they are a second branch of the query, and the source's range
is read twice; both reads give the same rows.

Not here: keeping it running (``runner.py``), what tasks do (``table_sink.py``, ``letters.py``).
"""

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    IntegralType,
    StringType,
    StructField,
    StructType,
)

from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import BulkError, Ticket
from penstock.model.errors import PenstockError
from penstock.model.spark_batch import AT_LEAST_ONCE, BAD_REQUEST, NO_TOPIC, STAGE_COLUMNS
from penstock.pipelines import archive_source, table_sink
from penstock.pipelines.flow_file import JSON, RAW, TEXT, Flow, hint
from penstock.pipelines.letters import (
    ATTEMPTS,
    CAUSE,
    FLOW,
    LETTER,
    LETTER_DDL,
    LETTER_FIELDS,
    NAMES,
    ORIGIN,
    Postmaster,
    RowMapper,
)
from penstock.pipelines.runner import SparkGone
from penstock.pipelines.state import FlowState, NotYet, infer
from penstock.pipelines.table import Table
from penstock.spark.causes import SLOW_START, cause_of
from penstock.spark.listener import FLOW_METRICS
from penstock.spark.options import ROCKETMQ, BadOption, SinkOptions
from penstock.spark.schema import SPARK_TYPES
from penstock.spark.session import register_source
from penstock.spark.sink import check_columns
from penstock.spark.source import LETTER_TOPICS, FlowSink, PenstockSource

VIEW: Final = "messages"
DECODED: Final = "penstock_decode"
"""As ``FLOW_METRICS``: figures that a batch brings with it (``figures.py``)."""
CORRUPT: Final = "_corrupt"
MESSAGE_ID: Final = "message_id"
EVENT_TIME: Final = "event_time"
MAP_TO_TOPIC: Final = "key string, tag string, properties map<string,string>, body binary"
"""What ``map`` returns for a topic, unless ``output`` says something else."""
LETTER_COLUMNS: Final = ("topic", "queue", "offset", "key", "tag", "properties", "body")
"""What a letter is made of."""
PLAIN_TYPES: Final = (StringType, IntegralType, DateType, BooleanType)
"""What may be the name of a directory."""
ASK_S: Final = 5.0
NO_JVM: Final = "Py4JNetworkError"
"""Of a package that comes with PySpark and is none of ours to import."""
NO_CLASSES: Final = "does not exist in the JVM"
"""It says so of whatever one asks for while the JVM goes."""
SESSION_SETTINGS: Final = {
    # Without the fields that nobody selects Spark would not notice that they are no JSON.
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
}


class FlowWaits(Exception):
    """Something is away for now; another start may find it."""


class FlowProblem(PenstockError):
    """A flow that Spark cannot run as it is written."""


def check_topics(flow: Flow) -> None:
    """Asked before Spark is: it needs a minute to say that there is no such topic."""
    source = flow.source
    if source.archive or source.endpoint.startswith(ROCKETMQ):
        return
    try:
        with BulkClient(source.endpoint, patience_s=ASK_S) as client:
            client.resolve(list(source.topics) or None, pattern=source.pattern or None)
    except BulkError as problem:
        if problem.kind == BAD_REQUEST:
            raise FlowProblem(f"flow '{flow.name}': {problem}") from None
        raise (NotYet if problem.kind == NO_TOPIC else FlowWaits)(str(problem)) from None


def check_target(flow: Flow) -> None:
    """What a start finds out with its first row only: topics that nobody makes."""
    wanted = [] if flow.target.is_table else [flow.target.place]
    wanted += reversed(flow.letter_topics)
    if not wanted:
        return
    try:
        with BulkClient(flow.writes_to, patience_s=ASK_S) as client:
            answer = client.resolve([], optional=wanted)
    except BulkError as problem:
        raise FlowWaits(str(problem)) from None
    there = {each.name for each in answer.topics}
    for name in wanted:
        if name not in there and not answer.is_auto_creating:
            raise FlowProblem(
                f"flow '{flow.name}': there is no topic '{name}' to write to, and rows make"
                f" none at {flow.writes_to} (spark.is_auto_creating); make it with `penstock"
                f" topics create {name}`"
            )


def prepare_session(spark: SparkSession) -> None:
    """What a session needs before flows are made in it; once."""
    for name, value in SESSION_SETTINGS.items():
        spark.conf.set(name, value)
    for source in (PenstockSource, FlowSink, table_sink.TableSink, archive_source.ArchiveSource):
        register_source(spark, source)


class FlowQuery:
    """One flow, ready to be started in a session that ``prepare_session`` knows."""

    def __init__(
        self, spark: SparkSession, flow: Flow, state: FlowState, *, home: Path | None = None
    ) -> None:
        """``home`` is where functions are looked for first."""
        self.flow: Final = flow
        self.state: Final = state
        self._home: Final = home
        self.session: Final = spark
        self._schema = ""

    def start(self, *, is_once: bool) -> "SparkQuery":
        """Start it from its checkpoint."""
        check_topics(self.flow)
        self._plan_smaller()
        with with_spark():
            return self._started(is_once=is_once)

    def _started(self, *, is_once: bool) -> "SparkQuery":
        frame = self.outgoing()
        writer = frame.writeStream.queryName(self.flow.name).outputMode("append")
        writer = writer.option("checkpointLocation", str(self.state.checkpoint))
        if is_once or self.flow.source.archive:
            writer = writer.trigger(availableNow=True)
        elif self.flow.trigger:
            writer = writer.trigger(processingTime=self.flow.trigger)
        target = self.flow.target
        if target.is_table:
            writer = writer.format(table_sink.FORMAT).options(**self._table(frame))
        else:
            options = {"endpoint": self.flow.writes_to, "sink": self.flow.name}
            options[LETTER_TOPICS] = json.dumps(self.flow.letter_topics)
            writer = writer.format(FlowSink.name()).options(**options, guarantee=target.guarantee)
        return SparkQuery(writer.start())

    def _plan_smaller(self) -> None:
        """A batch that is larger than the file allows by now is not done as it was begun.

        Spark keeps the range of a batch that it wrote down: one that was too large for the broker
        would be so for ever. Whatever nobody has seen any of may be planned anew.
        """
        source, plan = self.flow.source, self.state.plan()
        if plan is None or not 0 < source.max_rows < plan.rows or self._may_be_seen(plan.batch):
            return
        if plan.batch == 0:
            # Nothing is left of how the broker knows it.
            self.state.forget_at_broker()
        self.state.forget(plan)

    def _may_be_seen(self, batch: int) -> bool:
        """True when the target has something of a batch, or will have."""
        target, flow = self.flow.target, self.flow.name
        if target.is_table:
            table, writer = Table(target.place), self.state.id
            return table.prepared(writer) is not None or table.last_done(writer) >= batch
        if target.guarantee == AT_LEAST_ONCE:
            return False
        try:
            with BulkClient(self.flow.writes_to, patience_s=ASK_S) as client:
                known = client.sink_state(flow, self.state.spark_id)
        except BulkError as problem:
            raise FlowWaits(str(problem)) from None
        return known.is_committing or known.batch >= batch

    def outgoing(self) -> DataFrame:
        """What goes to the target, letters among it; raises ``FlowProblem``."""
        flow = self.flow
        try:
            frame = self._transformed(self.messages())
            if flow.target.is_table:
                self._check_table(frame.schema)
                tasks = flow.target.tasks or self.session.sparkContext.defaultParallelism
                frame = frame.coalesce(tasks)
            else:
                frame = self._as_messages(frame)
                check_columns(frame.schema, SinkOptions(topic=flow.target.place))
            return self._observed(frame)
        except PySparkException as problem:
            if SLOW_START in str(problem):
                raise FlowWaits(cause_of(problem)) from None
            raise FlowProblem(f"flow '{flow.name}': {cause_of(problem)}") from None
        except BadOption as problem:
            raise FlowProblem(f"flow '{flow.name}': {problem}") from None

    # Where rows come from.

    def messages(self) -> DataFrame:
        """Decoded, with ``_bad`` (why a body could not be) where that can be."""
        flow = self.flow
        if flow.source.archive:
            frame = self._archive()
        else:
            frame = self._source()
            if flow.can_retry:
                frame = self._restored(frame)
        if flow.can_fail:
            frame = self._decoded(frame)
        return self._deduplicated(frame)

    def _source(self) -> DataFrame:
        flow, target = self.flow, self.flow.target
        options = {"pauseFile": str(self.state.pause_file)}
        if target.is_table:
            options |= {"rollRows": str(target.roll_rows)}
            options |= {"maxTriggerDelay": f"{target.roll_s:g}s"}
        if flow.can_retry:
            options["optionalTopics"] = flow.retry_topic
        options |= flow.source.spark_options()
        reader = self.session.readStream.format("penstock").options(**options)
        return reader.schema(self._columns()).load()

    def _archive(self) -> DataFrame:
        options = {
            "archive": self.flow.source.archive,
            "state": str(self.state.path),
            "pauseFile": str(self.state.pause_file),
            "rate": str(self.flow.source.rate),
            "maxRows": str(self.flow.source.max_rows),
            "tasks": str(self.flow.source.tasks),
        }
        reader = self.session.readStream.format(archive_source.FORMAT).options(**options)
        return reader.load()

    def _columns(self) -> StructType:
        flow = self.flow
        wanted = dict.fromkeys(flow.source.columns or (n for n in SPARK_TYPES if n != MESSAGE_ID))
        if flow.can_fail:
            wanted |= dict.fromkeys(LETTER_COLUMNS)
        if flow.deduplicate is not None:
            wanted |= dict.fromkeys(("topic", "queue", "offset", "timestamp"))
            if flow.deduplicate.by == MESSAGE_ID:
                wanted[MESSAGE_ID] = None
        if flow.watermark is not None and flow.watermark.column in SPARK_TYPES:
            wanted[flow.watermark.column] = None
        # A name that is not there is told by the source, with the nearest one.
        return StructType([StructField(n, SPARK_TYPES.get(n, StringType())) for n in wanted])

    def _restored(self, frame: DataFrame) -> DataFrame:
        """Retried messages as they were when they were read for the first time."""
        is_retry = f.col("topic") == self.flow.retry_topic
        origin = f.col("properties").getItem(ORIGIN)
        parts = r"^(.*)/([0-9]+)/([0-9]+)$"
        attempts = f.col("properties").getItem(ATTEMPTS).cast("int")
        kept = f.map_filter("properties", lambda name, _: ~name.isin(*NAMES))
        return frame.withColumns(
            {
                "_retry": f.when(is_retry, f.concat_ws("/", "topic", "queue", "offset")),
                "_attempts": f.coalesce(f.when(is_retry, attempts), f.lit(0)),
                "topic": f.when(is_retry, f.regexp_extract(origin, parts, 1)).otherwise(
                    f.col("topic")
                ),
                "queue": f.when(is_retry, f.regexp_extract(origin, parts, 2).cast("int")).otherwise(
                    f.col("queue")
                ),
                "offset": f.when(
                    is_retry, f.regexp_extract(origin, parts, 3).cast("long")
                ).otherwise(f.col("offset")),
                "properties": f.when(is_retry, kept).otherwise(f.col("properties")),
            }
        )

    def _decoded(self, frame: DataFrame) -> DataFrame:
        if "_attempts" not in frame.columns:
            frame = frame.withColumn("_attempts", f.lit(0))
        kind = self.flow.decode.format
        if kind == RAW:
            return frame.withColumn("_bad", f.lit(None).cast("string"))
        text = f.col("body").cast("string")
        is_text = f.coalesce(f.is_valid_utf8(text), f.lit(False))
        if kind == TEXT:
            bad = f.when(~is_text, "the body is no UTF-8 text")
            return frame.withColumns({"value": text, "_bad": bad})
        schema = self._value_schema()
        with_corrupt = StructType([*schema.fields, StructField(CORRUPT, StringType())])
        parsed = f.from_json(text, with_corrupt, {"columnNameOfCorruptRecord": CORRUPT})
        frame = frame.withColumn("_parsed", parsed)
        is_good = f.col("_parsed").isNotNull() & f.col(f"_parsed.{CORRUPT}").isNull()
        bad = f.when(~is_text, "the body is no UTF-8 text").when(
            ~is_good, "the body is no JSON of the schema"
        )
        value = f.col("_parsed").dropFields(CORRUPT)
        return frame.withColumns({"value": value, "_bad": bad}).drop("_parsed")

    def _value_schema(self) -> StructType:
        if not self._schema:
            self._schema = self.flow.decode.schema or self.state.pinned_schema()
        if not self._schema:
            try:
                self._schema = infer(self.samples())
            except BulkError as problem:
                raise FlowWaits(str(problem)) from None
            self.state.pin_schema(self._schema)
        found = self._from_ddl("decode.schema", self._schema)
        if CORRUPT in found.fieldNames():
            raise FlowProblem(f"flow '{self.flow.name}': a field cannot be called {CORRUPT}")
        return found

    def _from_ddl(self, what: str, ddl: str) -> StructType:
        try:
            found = StructType.fromDDL(ddl)
        except PySparkException as problem:
            raise FlowProblem(
                f"flow '{self.flow.name}': {what} {ddl!r}: {cause_of(problem)}"
            ) from None
        assert isinstance(found, StructType)
        return found

    def samples(self) -> list[bytes]:
        """The first bodies there are, of every queue some."""
        source, bodies = self.flow.source, list[bytes]()
        count = self.flow.decode.samples
        with BulkClient(source.endpoint) as client:
            names = list(source.topics) or None
            found = client.resolve(names, pattern=source.pattern or None)
            queues = [(topic.name, queue) for topic in found.topics for queue in topic.queues]
            for topic, queue in queues:
                end = min(queue.end, queue.earliest + -(-count // len(queues)))
                if end <= queue.earliest:
                    continue
                ticket = Ticket(
                    topic=topic, queue=queue.queue, start=queue.earliest, end=end, columns=["body"]
                )
                for batch in client.read(ticket):
                    bodies += [each or b"" for each in batch.column("body").to_pylist()]
        return bodies

    def _deduplicated(self, frame: DataFrame) -> DataFrame:
        flow = self.flow
        mark, unique = flow.watermark, flow.deduplicate
        if mark is not None:
            column = mark.column
            if column not in frame.columns:
                frame, column = frame.withColumn(EVENT_TIME, f.expr(column)), EVENT_TIME
            frame = frame.withWatermark(column, mark.delay)
        if unique is None:
            return frame.drop("_retry")
        if mark is None:
            frame = frame.withWatermark("timestamp", unique.within)
        # What has no id, and what comes again because it failed, is like nothing else.
        given = f.expr(unique.by).cast("string")
        own = f.concat_ws("/", "topic", "queue", "offset")
        if "_retry" in frame.columns:
            given = f.when(f.col("_retry").isNull(), given)
            own = f.coalesce(f.col("_retry"), own)
        seen = f.coalesce(f.concat(f.lit("id "), given), own)
        frame = frame.withColumn("_seen", seen).dropDuplicatesWithinWatermark(["_seen"])
        return frame.drop("_seen", "_retry")

    # What becomes of them.

    def _transformed(self, frame: DataFrame) -> DataFrame:
        is_inferred = self.flow.decode.format == JSON and not self.flow.decode.schema
        if self.flow.map:
            return self._mapped(self._counting_new_fields(frame) if is_inferred else frame)
        if not self.flow.can_fail:
            return self._step(frame)
        good = frame.where(f.col("_bad").isNull())
        if is_inferred:
            good = self._counting_new_fields(good)
        rows = self._step(good.drop("_bad", "_attempts"))
        if LETTER in rows.columns:
            raise FlowProblem(f"flow '{self.flow.name}': a column cannot be called {LETTER}")
        bad = frame.where(f.col("_bad").isNotNull()).select(self._dead_letter().alias(LETTER))
        rows = rows.withColumn(LETTER, f.lit(None).cast(LETTER_DDL))
        return rows.unionByName(bad, allowMissingColumns=True)

    def _step(self, frame: DataFrame) -> DataFrame:
        flow = self.flow
        if flow.sql:
            frame.createOrReplaceTempView(VIEW)
            try:
                # Resolved at once: the next flow may have the name.
                return self.session.sql(flow.sql)
            finally:
                self.session.catalog.dropTempView(VIEW)
        if flow.python:
            made = load_function(flow.python, self._home)(frame)
            if not isinstance(made, DataFrame):
                raise FlowProblem(
                    f"flow '{flow.name}': {flow.python} returned {type(made).__name__}, not a"
                    " DataFrame"
                )
            return made
        is_decoded = flow.decode.format != RAW
        return frame.drop("body") if is_decoded and flow.target.is_table else frame

    def _mapped(self, frame: DataFrame) -> DataFrame:
        flow = self.flow
        function = load_function(flow.map, self._home)
        made = self._from_ddl("output", flow.output or MAP_TO_TOPIC)
        letter = self._from_ddl("letter", f"{LETTER} {LETTER_DDL}")
        out = StructType([*made.fields, *letter.fields])
        schema: pa.Schema = to_arrow_schema(out, timezone="UTC")
        mapper = RowMapper(function, schema, self._postmaster())
        return frame.mapInArrow(mapper.__call__, out)

    def _postmaster(self) -> Postmaster:
        flow = self.flow
        return Postmaster(
            flow.name,
            flow.dead_topic,
            flow.retry_topic,
            flow.retry.max_attempts if flow.can_retry else 1,
            flow.retry.delays_ms,
        )

    def _dead_letter(self) -> Any:
        """The letter of a row whose body cannot be decoded."""
        flow = self.flow
        empty = f.create_map().cast("map<string,string>")
        kept = f.map_filter(f.coalesce("properties", empty), lambda name, _: ~name.isin(*NAMES))
        own = f.create_map(
            *(f.lit(FLOW), f.lit(flow.name)),
            *(f.lit(CAUSE), f.col("_bad")),
            *(f.lit(ATTEMPTS), (f.col("_attempts") + 1).cast("string")),
            *(f.lit(ORIGIN), f.concat_ws("/", "topic", "queue", "offset")),
        )
        fields = [
            f.lit(flow.dead_topic).alias("topic"),
            f.col("key"),
            f.col("tag"),
            f.map_concat(kept, own).alias("properties"),
            f.col("body"),
            f.lit(None).cast("bigint").alias("delay_ms"),
        ]
        return f.struct(*fields)

    def _counting_new_fields(self, frame: DataFrame) -> DataFrame:
        known = [f.lit(name) for name in self._value_schema().fieldNames()]
        names = f.json_object_keys(f.col("body").cast("string"))
        new = f.array_except(names, f.array(*known))
        # A row that is tried again was counted the first time.
        has_new = (f.size(new) > 0) & (f.col("_attempts") == 0)
        return frame.observe(
            DECODED,
            f.count(f.when(has_new, True)).alias("new_fields"),
            f.max(f.when(has_new, f.element_at(new, 1))).alias("new_field"),
        )

    # Where they go.

    def _as_messages(self, frame: DataFrame) -> DataFrame:
        """Columns of the sink; of other columns the body is made, as JSON."""
        flow, columns = self.flow, [each for each in frame.columns if each != LETTER]
        fields: dict[str, Any]
        if "body" in columns:
            fields = self._own_columns(frame, columns)
        else:
            body = f.to_json(f.struct(*[f.col(f"`{each}`") for each in columns]))
            fields = {"body": body.cast("binary")}
            if flow.target.key:
                self._check_names([flow.target.key], columns, "to.key")
                fields["key"] = f.col(flow.target.key).cast("string")
        fields["topic"] = f.coalesce(fields.get("topic", f.lit(None)), f.lit(flow.target.place))
        if LETTER in frame.columns:
            is_row = f.col(LETTER).isNull()
            for name in LETTER_FIELDS:
                mine = f.col(f"{LETTER}.{name}")
                given = fields.get(name)
                fields[name] = mine if given is None else f.when(is_row, given).otherwise(mine)
        return frame.select(*[value.alias(name) for name, value in fields.items()])

    def _own_columns(self, frame: DataFrame, columns: list[str]) -> dict[str, Any]:
        flow = self.flow
        given = list(columns)
        if not (flow.sql or flow.python or flow.map):
            # Copied as they are: where they were is no part of a message.
            given = [each for each in columns if each in ("key", "tag", "properties", "body")]
        else:
            self._check_names(given, STAGE_COLUMNS, "column")
        if flow.target.key:
            raise FlowProblem(
                f"flow '{flow.name}': to.key is for rows whose body is made of all columns; these"
                " have a body, so give them a column key"
            )
        kinds = {"body": "binary", "topic": "string", "key": "string", "tag": "string"}
        return {
            name: f.col(name).cast(kinds[name]) if name in kinds else f.col(name) for name in given
        }

    def _table(self, frame: DataFrame) -> dict[str, str]:
        """Options of the table's writer; the table is made, and what was left over removed."""
        flow, target = self.flow, self.flow.target
        table = Table(target.place)
        table.open()
        generation = table.register(
            self.state.id, flow=flow.name, state=str(self.state.path), schema=frame.schema.json()
        )
        table.clean(self.state.id)
        options = table_sink.TableOptions(
            path=target.place,
            kind=target.kind,
            writer=self.state.id,
            generation=generation,
            partition_by=target.partition_by,
            compression=target.compression,
            endpoint=self.flow.writes_to if flow.can_fail else "",
            sink=f"{flow.name}.letters",
            letter_topics=flow.letter_topics,
        )
        return options.as_option()

    def _check_table(self, schema: StructType) -> None:
        columns = {each.name: each.dataType for each in schema if each.name != LETTER}
        by = self.flow.target.partition_by
        self._check_names(by, columns, "to.partition_by")
        for name in by:
            if not isinstance(columns[name], PLAIN_TYPES):
                raise FlowProblem(
                    f"flow '{self.flow.name}': to.partition_by: {name} is"
                    f" {columns[name].simpleString()}; directories are named by text, whole"
                    " numbers, dates or booleans: make one in the SQL, like date(timestamp) AS day"
                )
        if len(columns) == len(by):
            raise FlowProblem(f"flow '{self.flow.name}': every column is in to.partition_by")

    def _check_names(self, given: Sequence[str], known: Any, what: str) -> None:
        for name in given:
            if name not in known:
                text = f"{what}: there is no {name!r}{hint(name, known)}"
                raise FlowProblem(f"flow '{self.flow.name}': {text}")

    def _observed(self, frame: DataFrame) -> DataFrame:
        flow = self.flow
        if flow.target.is_table and LETTER in frame.columns:
            topic = f.col(f"{LETTER}.topic")
            is_row = f.col(LETTER).isNull()
        elif flow.can_fail:
            topic = f.col("topic")
            is_row = ~topic.isin(flow.retry_topic, flow.dead_topic)
        else:
            return frame.observe(FLOW_METRICS, f.count(f.lit(1)).alias("rows"))
        return frame.observe(
            FLOW_METRICS,
            f.count(f.when(is_row, True)).alias("rows"),
            f.count(f.when(topic == flow.retry_topic, True)).alias("retries"),
            f.count(f.when(topic == flow.dead_topic, True)).alias("dead"),
        )


@contextlib.contextmanager
def with_spark() -> Iterator[None]:
    """Calls to the JVM; ``SparkGone`` when there is none any more."""
    try:
        yield
    except Exception as problem:
        is_gone = type(problem).__name__ == NO_JVM or NO_CLASSES in str(problem)
        if is_gone or isinstance(problem, ConnectionError):
            raise SparkGone(str(problem)) from None
        raise


class SparkQuery:
    """Spark's query as the runner sees it."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Final = query
        self._seen = -1

    def is_active(self) -> bool:
        with with_spark():
            return self._query.isActive

    def problem(self) -> str | None:
        with with_spark():
            error = self._query.exception()
        return None if error is None else cause_of(error)

    def progress(self) -> list[Any]:
        """The batches since the last look, oldest first; the last one also when it is not new."""
        with with_spark():
            last = self._query.lastProgress
            if last is None:
                return []
            before, self._seen = self._seen, int(last["batchId"])
            if self._seen <= before + 1:
                return [last]
            return [each for each in self._query.recentProgress if int(each["batchId"]) > before]

    def stop(self) -> None:
        with with_spark():
            self._query.stop()


def table_schema(frame: DataFrame) -> list[tuple[str, DataType]]:
    """Columns for people."""
    return [(each.name, each.dataType) for each in frame.schema if each.name != LETTER]


def load_function(reference: str, home: Path | None) -> Callable[..., Any]:
    """The function ``module:name``, from ``home`` or wherever Python finds modules.

    Modules of ``home`` travel to executors by value: nothing has to be installed there.
    """
    module_name, _, name = reference.partition(":")
    if home is not None and str(home) not in sys.path:
        sys.path.insert(0, str(home))
    try:
        module = importlib.import_module(module_name)
    except ImportError as problem:
        raise FlowProblem(f"{reference}: {problem}; modules are looked for in {home}") from None
    except Exception as problem:  # whatever a user's module does when it is imported
        raise FlowProblem(
            f"{reference}: module {module_name} cannot be imported: {type(problem).__name__}:"
            f" {problem}"
        ) from None
    found = getattr(module, name, None)
    if not callable(found):
        raise FlowProblem(f"{reference}: module {module_name} has no function {name}")
    by_value: Any = cloudpickle.register_pickle_by_value
    for each in list(sys.modules.values()):
        place = getattr(each, "__file__", None)
        if home is not None and place and home in Path(place).parents:
            by_value(each)
    function: Callable[..., Any] = found
    return function
