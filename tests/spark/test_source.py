"""``format("penstock")`` in a real Spark against a real broker."""

import json
from urllib.request import urlopen

import pytest
from py4j.java_gateway import is_instance_of
from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions.base import PySparkException

from penstock.pipelines.archive_source import ArchiveSource
from penstock.pipelines.query import prepare_session
from penstock.spark import PenstockListener
from penstock.spark.source import PenstockSource
from penstock.testing.running import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SLIM = "offset long, key string, body binary"


def bodies(rows):
    return sorted(int(bytes(each["body"])) for each in rows)


def test_a_topic_is_a_table_with_all_its_columns(bench, publish):
    publish(bench.topic, 10)
    rows = bench.table(topics=bench.topic).orderBy("key").collect()
    assert bodies(rows) == [*range(10)]
    first = rows[0]
    assert (first.topic, first.key, first.tag) == (bench.topic, "k0", "A")
    assert first.protocol == "rocketmq"
    assert first.properties["n"] == "0"
    assert {each.queue for each in rows} == {0, 1}
    assert sorted(each.offset for each in rows if each.queue == 0) == [*range(5)]
    assert 0 <= (first.timestamp - first.born_timestamp).total_seconds() < 60


def test_a_narrower_schema_is_all_that_is_read(bench, publish):
    publish(bench.topic, 4)
    frame = bench.table("key string, offset long", topics=bench.topic)
    assert frame.columns == ["key", "offset"]
    assert sorted(each.key for each in frame.collect()) == ["k0", "k1", "k2", "k3"]
    assert "properties" not in bench.table(topics="x", includeProperties="false").columns


def test_ranges_filters_and_more_tasks_than_queues(bench, publish):
    topic = bench.topic
    publish(topic, 20)
    some = {"startingOffsets": json.dumps({topic: {"0": 8}}), "endingOffsets": "latest"}
    assert bench.table(SLIM, topics=topic, **some).count() == 2 + 10
    cut = bench.table(SLIM, topics=topic, minPartitions="5", maxRecordsPerPartition="3")
    assert cut.rdd.getNumPartitions() == 8
    assert bodies(cut.collect()) == [*range(20)]
    assert bodies(bench.table(SLIM, topics=topic, filter="B").collect()) == [*range(1, 20, 2)]
    assert bodies(bench.table(SLIM, topics=topic, filter="n > 16").collect()) == [17, 18, 19]


def test_it_can_be_used_from_sql(bench, publish):
    publish(bench.topic, 6)
    bench.spark.sql(
        f"CREATE OR REPLACE TEMP VIEW v USING penstock OPTIONS (endpoint '{bench.endpoint}',"
        f" topics '{bench.topic}')"
    )
    assert bench.spark.sql("SELECT tag, count(*) AS n FROM v GROUP BY tag").count() == 2


def test_available_now_reads_what_there_is_in_batches_and_goes_on_next_time(bench, publish):
    publish(bench.topic, 25)
    options = {"topics": bench.topic, "maxRowsPerTrigger": "10"}
    assert bench.run(SLIM, **options) == [10, 10, 5]
    publish(bench.topic, 5, first=25)
    assert bench.run(SLIM, **options) == [5]
    assert bodies(bench.written()) == [*range(30)]


def test_a_batch_that_is_done_again_changes_nothing(bench, publish):
    publish(bench.topic, 20)
    options = {"topics": bench.topic, "maxRowsPerTrigger": "10", "minPartitions": "3"}
    bench.run(SLIM, **options)
    before = sorted(bench.written())
    commits = bench.directory / "checkpoint" / "commits"
    for path in (commits / "1", commits / ".1.crc"):
        path.unlink(missing_ok=True)
    publish(bench.topic, 3, first=20)
    bench.run(SLIM, **options)
    after = bench.written()
    assert bodies(after) == [*range(23)]
    assert [each for each in sorted(after) if each in before] == before


def test_a_running_query_follows_its_topic_and_its_batches_are_told(bench, publish):
    told = []
    listener = PenstockListener(told.append)
    bench.spark.streams.addListener(listener)
    name = f"live_{bench.topic.replace('-', '_')}"
    frame = bench.stream(SLIM, topics=bench.topic, subscription=name)
    query = frame.writeStream.format("memory").queryName(name).start()
    try:
        publish(bench.topic, 8)
        eventually(lambda: bench.spark.table(name).count() == 8, seconds=60)
        eventually(lambda: any(each.progress.rows for each in told), seconds=60)
    finally:
        query.stop()
        bench.spark.streams.removeListener(listener)
    assert (told[0].endpoint, told[0].subscription) == (bench.endpoint, name)


def test_topics_that_match_a_pattern_are_read_also_those_made_later(bench, publish, admin):
    publish(bench.topic, 4)
    bench.run(SLIM, topicsPattern=f"{bench.topic}.*")
    later = f"{bench.topic}-later"
    admin.create_topic(later, queues=1)
    publish(later, 3, first=4)
    bench.run(SLIM, topicsPattern=f"{bench.topic}.*")
    assert bodies(bench.written()) == [*range(7)]


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(bench, publish, admin):
    publish(bench.topic, 4)
    bench.run(SLIM, topics=bench.topic)
    admin.delete_topic(bench.topic)
    admin.create_topic(bench.topic, queues=2)
    publish(bench.topic, 6, first=100)
    with pytest.raises(StreamingQueryException, match="deleted and made anew") as raised:
        bench.run(SLIM, topics=bench.topic)
    assert "failOnDataLoss=false" in str(raised.value)
    bench.run(SLIM, topics=bench.topic, failOnDataLoss="false")
    assert bodies(bench.written()) == [0, 1, 2, 3, *range(100, 106)]


@pytest.mark.parametrize("source", [PenstockSource, ArchiveSource])
def test_queries_of_a_source_may_start_at_the_same_time(spark, source):
    """Each start writes into the one environment of its source; two at once must not break it."""
    prepare_session(spark)
    of_a_query = spark._jsparkSession.cloneSession().sessionState().dataSourceManager()
    environment = of_a_query.lookupDataSource(source.name()).dataSourceCls().envVars()
    gateway = spark.sparkContext._gateway
    assert is_instance_of(gateway, environment, "java.util.concurrent.ConcurrentMap")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topics": "nosuch"}, "no topic 'nosuch'"),
        ({"topics": "x", "startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"topics": "x", "maxRowsPerTrigger": "many"}, "option maxRowsPerTrigger"),
        ({}, "which topics"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(bench, options, words):
    with pytest.raises(PySparkException, match=words):
        bench.table(**options).collect()


def test_offsets_that_are_no_json_and_a_topic_that_is_nearly_right(bench, publish):
    publish(bench.topic, 1)
    with pytest.raises(PySparkException, match="neither earliest, latest nor JSON"):
        bench.table(topics=bench.topic, startingOffsets="{oops").collect()
    with pytest.raises(PySparkException, match=f"did you mean '{bench.topic}'"):
        bench.table(topics=bench.topic + "x").collect()


def test_a_broker_that_is_not_there_is_tried_again_and_then_named_once(bench):
    nobody = {"endpoint": "127.0.0.1:9", "topics": "x", "retryTimeout": "500ms"}
    with pytest.raises(PySparkException, match=r"no answer from .* 127\.0\.0\.1:9"):
        bench.table(**nobody).collect()


def test_the_broker_knows_where_a_query_is_and_what_takes_its_time(bench, publish, broker):
    """Also after the last batch, which Spark never commits to its source."""
    publish(bench.topic, 12)
    name = f"known-{bench.topic}"
    bench.run(SLIM, topics=bench.topic, subscription=name, maxRowsPerTrigger="5")
    with urlopen(f"http://{broker.endpoints['http']}/api/queries") as answer:
        queries = {each["name"]: each for each in json.load(answer)["queries"]}
    seen = queries[name]
    assert [each["position"] for each in seen["topics"][0]["queues"]] == [6, 6]
    assert (seen["lag_messages"], seen["lease"]) == (0, "held")
    assert seen["last_batch"]["rows"] == 2
    assert seen["last_batch"]["read_ms"] > 0
    assert seen["last_batch"]["transform_ms"] > 0


def test_the_same_query_reads_a_rocketmq(bench, publish, name_server, admin):
    topic = bench.topic
    publish(topic, 11)
    there = {"endpoint": f"rocketmq://{name_server}", "topics": topic}
    rows = bench.table(**there).collect()
    assert bodies(rows) == [*range(11)]
    assert rows[0].properties["n"] == bytes(rows[0].body).decode()
    assert bodies(bench.table(SLIM, **there, filter="B").collect()) == [*range(1, 11, 2)]
    options = {**there, "subscription": f"spark-{topic}", "maxRowsPerTrigger": "4"}
    assert bench.run(SLIM, **options) == [4, 4, 3]
    assert bodies(bench.written()) == [*range(11)]
    assert admin.lag(f"spark-{topic}", topic) == 0
