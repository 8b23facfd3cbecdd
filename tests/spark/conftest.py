"""One Spark session and one broker for all tests of this folder; every test has its own topic.

These tests run first of all (``tests/conftest.py``), so that they stay with one process of the
suite and only one JVM starts.
"""

import itertools

import pytest
from pyspark.errors import StreamingQueryException

from kit import brief_spark
from penstock.client import Admin, Message, Producer
from penstock.spark.causes import SLOW_START
from penstock.spark.readers import drop_upstreams
from penstock.spark.session import local_session
from penstock.testing.running import BrokerProcess

NUMBERS = itertools.count(1)
STARTS_MAX = 4
"""Spark gives a Python process ten seconds to start (``spark/causes.py``): on a machine that
is drowned in other work a query is started again, as its user would."""


@pytest.fixture(scope="package")
def spark(tmp_path_factory):
    """The session; tests must leave no query running."""
    directory = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", brief_spark.JVM)
        session = local_session(
            "tests", cores=2, directory=directory, is_brief=True, settings=brief_spark.SETTINGS
        )
    yield session
    session.stop()


@pytest.fixture(scope="package")
def broker(tmp_path_factory):
    """A broker with its Flight process."""
    place = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(place, flags=("--flight", "0")) as running:
        yield running
    drop_upstreams()


@pytest.fixture(scope="package")
def endpoint(broker):
    """The broker's Flight port."""
    return broker.endpoints["flight"]


@pytest.fixture(scope="package")
def name_server(broker):
    """The broker's RocketMQ port."""
    return broker.endpoints["rocketmq"]


@pytest.fixture(scope="package")
def admin(name_server):
    """Makes and deletes topics."""
    with Admin(name_server) as running:
        yield running


@pytest.fixture(scope="package")
def producer(name_server):
    """Publishes."""
    with Producer(name_server, "tests") as running:
        yield running


@pytest.fixture
def topic(admin):
    """A topic of two queues for this test."""
    name = f"orders-{next(NUMBERS)}"
    admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def publish(producer):
    """``publish(topic, 10)``: messages 0 to 9, every second one with tag B."""

    def publish(topic, count, *, first=0):
        for number in range(first, first + count):
            message = Message(
                topic,
                b"%d" % number,
                tag="AB"[number % 2],
                keys=f"k{number}",
                properties={"n": str(number)},
            )
            producer.send(message)

    return publish


class Bench:
    """What one test works with: a topic of its own, reads of it, and a place for files."""

    def __init__(self, spark, broker, topic, directory):
        self.spark = spark
        self.endpoint = broker.endpoints["flight"]
        self.topic = topic
        self.directory = directory

    def table(self, schema=None, **options):
        """A batch read."""
        given = {"endpoint": self.endpoint, **options}
        reader = self.spark.read.format("penstock").options(**given)
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, schema=None, **options):
        """The same as a stream, from the earliest offset on."""
        given = {"endpoint": self.endpoint, "startingOffsets": "earliest", **options}
        reader = self.spark.readStream.format("penstock").options(**given)
        return (reader.schema(schema) if schema else reader).load()

    def run(self, schema=None, **options):
        """A stream into files, up to what there is now; how many rows each batch had."""
        writer = self.stream(schema, **options).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        counts, starts, is_done = [], 0, False
        while not is_done:
            starts += 1
            query = writer.trigger(availableNow=True).start(str(self.directory / "out"))
            try:
                is_done = query.awaitTermination(240)
                assert is_done
            except StreamingQueryException as problem:
                if SLOW_START not in str(problem) or starts == STARTS_MAX:
                    raise
            counts += [each["numInputRows"] for each in query.recentProgress]
        return [each for each in counts if each]

    def written(self):
        """The rows of the files."""
        return self.spark.read.parquet(str(self.directory / "out")).collect()


@pytest.fixture
def bench(spark, broker, topic, tmp_path):
    """A bench of the test's own."""
    return Bench(spark, broker, topic, tmp_path)
