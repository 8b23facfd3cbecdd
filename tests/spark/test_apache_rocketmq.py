"""The same source over Apache's own RocketMQ, got by Maven: ``--long``."""

import pytest

from kit.rocketmq.clusters import Unavailable, apache_cluster
from penstock.client import Admin, Message, Producer
from penstock.spark.readers import drop_upstreams

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

SLIM = "offset long, key string, body binary"
MESSAGES = 500


@pytest.fixture(scope="module")
def apache():
    """A name server and a broker of Apache's."""
    try:
        with apache_cluster() as cluster:
            yield cluster
            drop_upstreams()
    except Unavailable as problem:
        pytest.skip(f"no Apache RocketMQ here: {problem}")


def bodies(rows):
    return sorted(int(bytes(each["body"])) for each in rows)


def test_a_topic_of_apaches_rocketmq_is_a_table_and_a_stream(bench, apache):
    apache.create_topic("orders", queues=4)
    with Producer(apache.name_server, "tests") as producer:
        for number in range(MESSAGES):
            message = Message(
                "orders",
                b"%d" % number,
                tag="AB"[number % 2],
                keys=f"k{number} other",
                properties={"n": str(number)},
            )
            producer.send(message)
    there = {"endpoint": f"rocketmq://{apache.name_server}", "topics": "orders"}
    rows = bench.table(**there).collect()
    assert bodies(rows) == [*range(MESSAGES)]
    for row in rows:
        number = bytes(row.body).decode()
        assert (row.key, row.properties["n"]) == (f"k{number}", number)
        assert (row.tag, row.protocol) == ("AB"[int(number) % 2], "rocketmq")
    assert {row.queue for row in rows} == {0, 1, 2, 3}
    odd = bench.table(SLIM, **there, filter="B")
    assert bodies(odd.collect()) == [*range(1, MESSAGES, 2)]
    assert bodies(bench.table(SLIM, **there, filter="n > 496").collect()) == [497, 498, 499]
    options = {"subscription": "spark-orders", "maxRowsPerTrigger": "200"}
    assert bench.run(SLIM, **there, **options, targetBatchDuration="off") == [200, 200, 100]
    assert bodies(bench.written()) == [*range(MESSAGES)]
    with Admin(apache.name_server) as admin:
        assert admin.lag("spark-orders", "orders") == 0
