"""``format("penstock")`` as a sink: batches appear whole and once, whatever Spark repeats."""

import json
import shutil

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as f

from penstock.spark.causes import SLOW_START

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

STARTS_MAX = 4


class SinkBench:
    """From the test's topic through Spark to another one of its own."""

    def __init__(self, bench, admin):
        self.bench = bench
        self.spark = bench.spark
        self.endpoint = bench.endpoint
        self.topic = bench.topic
        self.target = f"{bench.topic}-out"
        self.checkpoint = bench.directory / "checkpoint"
        admin.create_topic(self.target, queues=2)

    def rows(self, **options):
        """The test's topic as a stream of messages."""
        return self.bench.stream(
            "key string, tag string, properties map<string,string>, body binary",
            topics=self.topic, maxRowsPerTrigger="4", **options,
        )  # fmt: skip

    def write(self, frame, **options):
        """A query into the target, up to what there is now."""
        given = {"endpoint": self.endpoint, "topic": self.target, **options}
        writer = frame.writeStream.format("penstock").options(**given)
        return self.run(writer)

    def run(self, writer, checkpoint=None):
        place = str(checkpoint or self.checkpoint)
        for start in range(STARTS_MAX):
            query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(240)
                return query
            except StreamingQueryException as problem:
                if SLOW_START not in str(problem) or start == STARTS_MAX - 1:
                    raise
        return None

    def found(self, topic=None):
        """What is in the target, sorted by number."""
        table = self.bench.table(topics=topic or self.target)
        return sorted(table.collect(), key=lambda row: int(bytes(row.body)))

    def bodies(self, topic=None):
        return [int(bytes(row.body)) for row in self.found(topic)]

    def forget_last_commit(self):
        """Spark does not know any more that its last batch was done: it does it again."""
        commits = self.checkpoint / "commits"
        last = max(int(each.name) for each in commits.glob("[0-9]*"))
        for each in (f"{last}", f".{last}.crc"):
            (commits / each).unlink(missing_ok=True)
        return last


@pytest.fixture
def sink(bench, admin):
    return SinkBench(bench, admin)


def test_rows_become_messages_with_all_they_have_and_a_repeated_batch_changes_nothing(
    sink, publish
):
    publish(sink.topic, 10)
    batches = sink.write(sink.rows()).recentProgress
    # Spark's own figures of a batch have the source's and the sink's.
    assert sum(each["sink"]["numOutputRows"] for each in batches) == 10
    latest = json.loads(batches[-1]["sources"][0]["latestOffset"])
    assert {"endpoint", "subscription", "lag_ms", "admitted_rows"} <= latest.keys()
    found = sink.found()
    assert [int(bytes(row.body)) for row in found] == [*range(10)]
    assert [row.tag for row in found] == ["AB"[number % 2] for number in range(10)]
    assert [row.key for row in found] == [f"k{number}" for number in range(10)]
    assert found[3].properties["n"] == "3"
    # The batch is done again from the same offsets, and nothing of it is seen a second time.
    sink.forget_last_commit()
    sink.write(sink.rows())
    assert sink.bodies() == [*range(10)]
    publish(sink.topic, 5, first=10)
    sink.write(sink.rows())
    assert sink.bodies() == [*range(15)]


def test_a_batch_that_was_written_and_not_committed_is_written_again_once(sink, publish):
    """Spark dies between the puts and the commit: both runs of the batch were put, one counts."""
    publish(sink.topic, 8)

    def dies_once(rows):
        marker = sink.bench.directory / "died"

        def write(frame, number):
            options = {"endpoint": sink.endpoint, "topic": sink.target}
            options |= {"transactionalId": "job", "batch": str(number)}
            frame.write.format("penstock").mode("append").options(**options).save()
            if not marker.exists():
                marker.touch()
                raise RuntimeError("killed behind the write")

        return rows.writeStream.foreachBatch(write)

    with pytest.raises(StreamingQueryException, match="killed behind the write"):
        sink.run(dies_once(sink.rows()))
    sink.run(dies_once(sink.rows()))
    assert sink.bodies() == [*range(8)]


def test_two_writes_in_one_foreach_batch_are_two_writes(sink, publish, admin):
    publish(sink.topic, 6)
    other = f"{sink.topic}-other"
    admin.create_topic(other, queues=1)

    def write(frame, number):
        for name in (sink.target, other):
            options = {"endpoint": sink.endpoint, "topic": name}
            frame.select("body").write.format("penstock").mode("append").options(**options).save()

    sink.run(sink.rows().writeStream.foreachBatch(write))
    assert sink.bodies() == sink.bodies(other) == [*range(6)]


def test_two_queries_and_two_sinks_of_one_frame_do_not_meet(sink, publish):
    publish(sink.topic, 4)
    rows = sink.rows()
    directory = sink.bench.directory
    for name in ("one", "two"):
        options = {"endpoint": sink.endpoint, "topic": sink.target}
        writer = rows.writeStream.format("penstock").options(**options)
        sink.run(writer, directory / name)
    assert sink.bodies() == sorted([*range(4)] * 2)


def test_each_row_may_name_its_topic_and_a_key_chooses_the_queue(sink, spark, admin):
    other = f"{sink.topic}-other"
    admin.create_topic(other, queues=1)
    frame = spark.range(20).select(
        f.when(f.col("id") < 10, sink.target).otherwise(other).alias("topic"),
        f.concat(f.lit("key-"), (f.col("id") % 3).cast("string")).alias("key"),
        f.col("id").cast("string").alias("body"),
    )
    frame.write.format("penstock").mode("append").option("endpoint", sink.endpoint).save()
    assert sink.bodies() == [*range(10)]
    assert sink.bodies(other) == [*range(10, 20)]
    queues = {}
    for row in sink.found():
        queues.setdefault(row.key, set()).add(row.queue)
    assert all(len(each) == 1 for each in queues.values())


def test_a_new_checkpoint_is_a_new_query_and_a_rewound_one_is_refused(sink, publish):
    publish(sink.topic, 8)
    sink.write(sink.rows())
    kept = sink.bench.directory / "kept"
    shutil.copytree(sink.checkpoint, kept)
    publish(sink.topic, 12, first=8)
    sink.write(sink.rows())
    shutil.rmtree(sink.checkpoint)
    shutil.copytree(kept, sink.checkpoint)
    # More came meanwhile, so that its batches are not those that the sink has.
    publish(sink.topic, 8, first=20)
    with pytest.raises(StreamingQueryException, match=r"(?i)rewound|older|another checkpoint"):
        sink.write(sink.rows(maxTriggerDelay="1s"))
    assert sink.bodies() == [*range(20)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.select("key"), "no column body"),
        (lambda frame: frame.withColumn("offset", f.lit(1)), "'offset' is none of a message"),
        (lambda frame: frame.withColumn("key", f.lit(1)), "column key is int"),
    ],
)
def test_rows_that_are_no_messages_are_refused_before_anything_is_written(
    sink, spark, change, words
):
    frame = change(spark.range(3).selectExpr("'k' as key", "cast(id as string) as body"))
    writer = frame.write.format("penstock").mode("append")
    with pytest.raises(Exception, match=words):
        writer.options(endpoint=sink.endpoint, topic=sink.target).save()
    assert sink.bodies() == []


def test_a_topic_is_not_overwritten(sink, spark):
    frame = spark.range(3).selectExpr("cast(id as string) as body")
    writer = frame.write.format("penstock").mode("overwrite")
    with pytest.raises((AnalysisException, Exception), match="never overwritten"):
        writer.options(endpoint=sink.endpoint, topic=sink.target).save()
