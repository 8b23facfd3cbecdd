"""F17: does a slow transformation keep its batches near the target?

    python benchmarks/macro/spark_admission.py [--target 2] [--batches 14] [--runs 3] [--row-ms 1]

A topic with a backlog, a streaming query with a Python UDF that sleeps so long for each row, on two
cores, and no limit but ``targetBatchDuration``. Prints rows and seconds of every batch, and how
many of those from the third on lie within 0.65 to 1.35 of the target; the median run counts.
"""

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql.functions import udf

from penstock.client import Admin, Message, Producer
from penstock.spark.session import local_session
from penstock.testing.running import BrokerProcess

TOPIC = "slow"
BATCH = 100


def fill(name_server, rows):
    with Admin(name_server) as admin:
        admin.create_topic(TOPIC, queues=4)
    with Producer(name_server, "bench", send_timeout_ms=30_000) as producer:

        def send(_):
            producer.send_batch([Message(TOPIC, b"x" * 128) for _ in range(BATCH)])

        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(send, range(0, rows, BATCH)):
                pass


def one_run(spark, endpoint, given, place):
    row_s = given.row_ms / 1000

    @udf("int")
    def slow(body):
        time.sleep(row_s)
        return len(body)

    frame = (
        spark.readStream.format("penstock")
        .schema("body binary")
        .options(endpoint=endpoint, topics=TOPIC, startingOffsets="earliest")
        .option("targetBatchDuration", f"{given.target}s")
        .load()
    )
    query = (
        frame.select(slow("body").alias("size"))
        .writeStream.format("noop")
        .option("checkpointLocation", str(place))
        .start()
    )
    try:
        while len([each for each in query.recentProgress if each["numInputRows"]]) < given.batches:
            time.sleep(0.5)
            if query.exception() is not None:
                raise query.exception()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
    finally:
        query.stop()
    return [
        (each["numInputRows"], each["durationMs"]["triggerExecution"] / 1000) for each in progress
    ][: given.batches]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=float, default=2.0)
    parser.add_argument("--batches", type=int, default=14)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--row-ms", type=float, default=1.0)
    given = parser.parse_args()
    shares = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        place = Path(directory)
        with BrokerProcess(place / "data", flags=("--flight", "0")) as broker:
            rows = int(given.batches * given.target * 2 * 1000 / given.row_ms) * 2
            fill(broker.endpoints["rocketmq"], rows)
            spark = local_session(cores=2, directory=place / "spark")
            for run in range(given.runs):
                batches = one_run(spark, broker.endpoints["flight"], given, place / f"run-{run}")
                low, high = 0.65 * given.target, 1.35 * given.target
                counted = [took for _, took in batches[2:]]
                good = sum(low <= took <= high for took in counted)
                shares.append(good / len(counted))
                print(f"run {run + 1}: " + " ".join(f"{n}/{took:.2f}s" for n, took in batches))
                print(f"  {good} of {len(counted)} within {low:.2f} to {high:.2f} s")
            spark.stop()
    print(f"median run: {statistics.median(shares):.0%} of batches 3 and on near the target")


if __name__ == "__main__":
    main()
