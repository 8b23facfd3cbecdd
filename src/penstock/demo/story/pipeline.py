"""The Spark pipeline of the story, a process of its own: orders in, Parquet and a topic out.

    python -m penstock.demo.story.pipeline --endpoint 127.0.0.1:8815 --out DIR

``rows``: every order, parsed, with its amount. ``sums``: orders and revenue by item and window of
five seconds. Both are Parquet. ``large``: orders above an amount, to a topic, each exactly once.
All three are plain Structured Streaming; only ``format("penstock")`` is ours, as source and sink.

Says what it does on its output, one JSON object per line; ``drain`` on its input makes it process
all there is and end, the end of its input ends it at once.
"""

import argparse
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType

from penstock.demo.story import LARGE_CENTS, LARGE_TOPIC, TOPIC
from penstock.demo.story.processes import Amount
from penstock.spark.causes import SLOW_START, cause_of
from penstock.spark.listener import PenstockListener
from penstock.spark.session import local_session

TASKS: Final = 6
"""One per queue, and two that are never taken by slow ones."""
SCHEMA: Final = "id long, item string, quantity int, cents int"
WINDOW: Final = "5 seconds"
LATE: Final = "10 seconds"
TRIGGER: Final = "1 second"
"""At most one batch a second: the machine has other things to do."""
LARGE_TRIGGER: Final = "2 seconds"
"""Nobody waits for large orders, and a commit costs the same whatever is in it."""
NOT_ADAPTED: Final = {"targetBatchDuration": "off"}
"""For queries that are never slow: on a busy machine a batch takes seconds whatever it holds, and
small ones would only fall behind."""
LOOK_S: Final = 0.25
STARTS_MAX: Final = 12
END_S: Final = 10.0


def main() -> None:
    options = _arguments()
    out = Path(options.out)
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(said,), daemon=True).start()
    spark = local_session(
        "penstock-demo",
        cores=TASKS,
        directory=out / "spark",
        # Every partition of the sums has a state of its own to write, batch by batch.
        settings={"spark.sql.shuffle.partitions": "2"},
        is_brief=True,
    )
    spark.streams.addListener(PenstockListener())
    _say(state="starting queries")
    try:
        flows = make_flows(spark, options, out)
        word = _watch(flows, said)
        if word == "drain":
            for flow in flows:
                flow.query.processAllAvailable()
            _say(state="drained")
    except Exception as error:  # whatever Spark raises is told to the story, then ends this process
        _say(state="failed", text=cause_of(error))
        raise
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.stop()


class Flow:
    """A query that is started again when Spark's own time-outs ended it: same checkpoint."""

    def __init__(
        self,
        name: str,
        frame: DataFrame,
        checkpoints: Path,
        *,
        trigger: str = TRIGGER,
        to: str,
        **options: str,
    ) -> None:
        self.name: Final = name
        self.starts = 0
        self._trigger = trigger
        self._writer = (
            frame.writeStream.queryName(name)
            .format(to)
            .options(**options)
            .option("checkpointLocation", str(checkpoints / name))
            .outputMode("append")
        )
        self.query = self._start()

    def look(self) -> None:
        """Start it again, or raise what ended it."""
        error = self.query.exception()
        if error is None:
            return
        if SLOW_START not in str(error) or self.starts >= STARTS_MAX:
            raise error
        self.query = self._start()

    def _start(self) -> StreamingQuery:
        self.starts += 1
        return self._writer.trigger(processingTime=self._trigger).start()


def make_flows(spark: SparkSession, options: argparse.Namespace, out: Path) -> list[Flow]:
    slow = f.udf(Amount(str(out / "slow")), LongType())
    # A sink that is slow to compute must not be computed twice.
    amount = slow.asNondeterministic()(f.col("cents"), f.col("quantity"))
    target = f"{options.target}s"
    rows = _orders(spark, options.endpoint, "orders-rows", targetBatchDuration=target)
    sums = (
        _orders(spark, options.endpoint, "orders-sums", **NOT_ADAPTED)
        .withWatermark("timestamp", LATE)
        .groupBy(f.window("timestamp", WINDOW), "item")
        .agg(f.count("*").alias("orders"), f.sum(f.expr("cents * quantity")).alias("revenue"))
        .select(f.col("window.start").alias("start"), "item", "orders", "revenue")
    )
    large = (
        _orders(spark, options.endpoint, "orders-large", **NOT_ADAPTED)
        .withColumn("amount", f.expr("cents * quantity"))
        .where(f.col("amount") >= LARGE_CENTS)
        # They are few: one task reads and writes them all.
        .coalesce(1)
        .select(
            f.col("item").alias("key"), f.to_json(f.struct("id", "item", "amount")).alias("body")
        )
    )
    kept = out / "checkpoints"
    into = {"to": "penstock", "endpoint": options.endpoint, "topic": LARGE_TOPIC}
    return [
        Flow("rows", rows.withColumn("amount", amount), kept, to="parquet", path=str(out / "rows")),
        Flow("sums", sums, kept, to="parquet", path=str(out / "sums")),
        Flow("large", large, kept, trigger=LARGE_TRIGGER, **into),
    ]


def _orders(spark: SparkSession, endpoint: str, subscription: str, **options: str) -> DataFrame:
    messages = (
        spark.readStream.format("penstock")
        .option("endpoint", endpoint)
        .option("topics", TOPIC)
        .option("subscription", subscription)
        .option("startingOffsets", "earliest")
        .option("includeProperties", "false")
        .options(**options)
        .load()
    )
    parsed = f.from_json(f.col("body").cast("string"), SCHEMA).alias("order")
    return messages.select("timestamp", "queue", "offset", parsed).select(
        "timestamp", "queue", "offset", "order.*"
    )


def _watch(flows: list[Flow], said: "queue.SimpleQueue[str]") -> str:
    """Tell of every batch until there is a word; a query that fails is raised."""
    seen: dict[str, int] = {}
    while True:
        for flow in flows:
            flow.look()
            progress = flow.query.lastProgress
            if progress is not None and seen.get(flow.name) != progress["batchId"]:
                seen[flow.name] = progress["batchId"]
                _say(
                    state="running",
                    query=flow.name,
                    batch=progress["batchId"],
                    rows=progress["numInputRows"],
                    ms=progress["durationMs"].get("triggerExecution", 0),
                )
        try:
            return said.get(timeout=LOOK_S)
        except queue.Empty:
            continue


def _listen(said: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        said.put(line.strip())
    said.put("end")
    # Whoever started this is gone, and nobody else would end a query that does not end itself.
    time.sleep(END_S)
    os._exit(1)


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--target", type=float, default=2.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
