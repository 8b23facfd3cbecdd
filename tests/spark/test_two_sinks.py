"""Two sinks of one DataFrame are two queries on one subscription: the slower one's data is kept."""

import json
import os
from urllib.request import urlopen

import pytest
from pyspark.errors import StreamingQueryException

from penstock.client import Admin, Message, Producer
from penstock.spark.causes import SLOW_START
from penstock.testing.running import BrokerProcess, eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

STARTS_MAX = 4
BREAKS = "the sink is broken"
NOTHING_KEPT = (
    "--set", "rocketmq.retention_ms=1",
    "--set", "storage.segment_bytes_max=65536",
    "--set", "storage.settled_keep_ms=1",
    "--set", "storage.settled_keep_bytes_max=0",
    "--set", "storage.retention_sweep_ms=500",
    "--set", "storage.snapshot_bytes_min=0",
)  # fmt: skip
"""What nobody needs is removed at once."""


class Sink:
    """Remembers the offsets it was given; a broken one takes a single batch."""

    def __init__(self, frame, place):
        self.place = str(place)
        self.offsets = []
        self.is_broken = False
        self.writer = frame.writeStream.foreachBatch(self.take)

    def take(self, frame, number):
        if self.is_broken and number:
            raise RuntimeError(BREAKS)
        self.offsets += sorted(each.offset for each in frame.collect())

    def run(self):
        """What there is now."""
        for start in range(STARTS_MAX):
            query = self.writer.option("checkpointLocation", self.place).trigger(availableNow=True)
            try:
                assert query.start().awaitTermination(240)
                return
            except StreamingQueryException as problem:
                if SLOW_START not in str(problem) or start == STARTS_MAX - 1:
                    raise


def test_of_two_sinks_of_a_frame_the_slower_finds_all_it_has_not_read(spark, tmp_path):
    with BrokerProcess(tmp_path / "data", flags=("--flight", "0", *NOTHING_KEPT)) as broker:
        server = broker.endpoints["rocketmq"]
        with Admin(server) as admin, Producer(server, "tests") as producer:
            admin.create_topic("orders", queues=1)
            options = {"topics": "orders", "subscription": "etl", "maxRowsPerTrigger": "10"}
            options |= {"endpoint": broker.endpoints["flight"], "startingOffsets": "earliest"}
            reader = spark.readStream.format("penstock").options(**options)
            frame = reader.schema("offset long").load()
            slow, fast = Sink(frame, tmp_path / "slow"), Sink(frame, tmp_path / "fast")
            publish(producer, 15, 2_000)  # less than a segment: there when the queries begin
            slow.is_broken = True
            with pytest.raises(StreamingQueryException, match=BREAKS):
                slow.run()
            fast.run()
            publish(producer, 30, 6_000)
            fast.run()
            shown = queries_of(broker)
            assert [each["lag_messages"] for each in shown] == [35, 0]
            assert {each["subscription"] for each in shown} == {"etl"}
            assert len({each["last_batch"]["query_id"] for each in shown} - {""}) == 2
            slow.is_broken = False
            slow.run()
            assert slow.offsets == fast.offsets == [*range(45)]
            publish(producer, 30, 6_000)
            # Nobody is left who needs the first messages, no former run either.
            eventually(lambda: earliest(broker) > 0, seconds=60)
            assert [each["lag_messages"] for each in queries_of(broker)] == [30, 30]


def publish(producer, count, size):
    for _ in range(count):
        producer.send(Message("orders", os.urandom(size)))  # the client cannot make it smaller


def queries_of(broker):
    with urlopen(f"http://{broker.endpoints['http']}/api/queries") as answer:
        return json.load(answer)["queries"]


def earliest(broker):
    return queries_of(broker)[0]["topics"][0]["queues"][0]["earliest"]
