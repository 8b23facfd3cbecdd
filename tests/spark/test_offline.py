"""``path = DIR``: Spark reads the data directory of a broker that is gone (D18)."""

import shutil

import pytest
from pyspark.errors.exceptions.base import PySparkException

from penstock.client import Admin, Message, Producer
from penstock.testing.running import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SLIM = "offset long, body binary"
MESSAGES = 60


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A broker that was asked to stop, and the copy of what it had when it was killed before."""
    place = tmp_path_factory.mktemp("offline")
    with BrokerProcess(place / "data") as broker:
        with Admin(broker.endpoints["rocketmq"]) as admin:
            admin.create_topic("orders", queues=2)
        with Producer(broker.endpoints["rocketmq"], "tests") as producer:
            for number in range(MESSAGES):
                properties = {"n": str(number)}
                producer.send(
                    Message("orders", b"%d" % number, tag="AB"[number % 2], properties=properties)
                )
        broker.kill()
        shutil.copytree(place / "data", place / "killed", ignore=shutil.ignore_patterns("*.sock"))
        broker.start()
        assert broker.stop() == 0
    return place


@pytest.mark.parametrize("name", ["data", "killed"])
def test_a_directory_without_a_broker_is_a_table(spark, stopped, name):
    place = str(stopped / name)
    rows = spark.read.format("penstock").option("topics", "orders").load(place).collect()
    assert sorted(int(bytes(each.body)) for each in rows) == [*range(MESSAGES)]
    assert all(each.properties["n"] == bytes(each.body).decode() for each in rows)
    assert {(each.queue, each.protocol) for each in rows} == {(0, "rocketmq"), (1, "rocketmq")}
    options = {"path": place, "topicsPattern": "ord.*", "filter": "n >= 50", "minPartitions": "4"}
    assert spark.read.format("penstock").schema(SLIM).options(**options).load().count() == 10


def test_a_directory_is_a_stream_that_ends(spark, stopped, tmp_path):
    source = spark.readStream.format("penstock").schema(SLIM).option("path", str(stopped / "data"))
    source = source.option("topics", "orders").option("startingOffsets", "earliest")
    # A busy machine makes batches slow, and slow batches smaller: not what is looked at here.
    source = source.option("maxRowsPerTrigger", "25").option("targetBatchDuration", "off")
    writer = source.load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    assert query.awaitTermination(240)
    counts = [each["numInputRows"] for each in query.recentProgress]
    assert [each for each in counts if each] == [25, 25, 10]
    assert spark.read.parquet(str(tmp_path / "out")).count() == MESSAGES


def test_the_directory_of_a_living_broker_and_one_that_is_none_are_refused(spark, broker, tmp_path):
    source = spark.read.format("penstock").option("topics", "orders")
    with pytest.raises(PySparkException, match="broker"):
        source.option("path", str(broker.data)).load().collect()
    with pytest.raises(PySparkException, match=str(tmp_path)):
        source.option("path", str(tmp_path)).load().collect()
