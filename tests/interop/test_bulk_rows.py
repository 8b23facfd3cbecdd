"""Rows of a real broker: through its Flight process, and from its files when it has stopped."""

import json
import os
import signal

import pika
import pytest

from penstock.bulk.client import BulkClient
from penstock.bulk.offline import OfflineBulk
from penstock.bulk.tickets import BulkError, RowFilter, Ticket
from penstock.cli.remoting import RemotingClient
from penstock.model.queries import PollRequest
from penstock.testing.running import BrokerProcess

COUNT = 800


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    data = tmp_path_factory.mktemp("rows") / "data"
    with BrokerProcess(data, flags=("--flight", "0")) as process:
        client = RemotingClient(*process.address("rocketmq_broker"))
        client.create_topic("orders", 1)
        for number in range(COUNT):
            client.send("orders", b"%d" % number)
        client.close()
        yield process


@pytest.fixture
def bulk(running):
    host, port = running.address("flight")
    with BulkClient(f"{host}:{port}", patience_s=30) as client:
        yield client


def bodies(bulk, **fields):
    wanted = {"topic": "orders", "queue": 0, "start": 0, "end": COUNT} | fields
    return [b for batch in bulk.read(Ticket(**wanted)) for b in batch.column("body").to_pylist()]


def test_every_message_is_a_row(bulk):
    [queue] = bulk.resolve(["orders"]).topics[0].queues
    assert (queue.earliest, queue.end) == (0, COUNT)
    assert bodies(bulk, check=True) == [b"%d" % number for number in range(COUNT)]
    assert bodies(bulk, start=COUNT - 3) == [b"%d" % n for n in range(COUNT - 3, COUNT)]
    assert bodies(bulk, filter=RowFilter("tag", "nobody")) == []


def test_a_poll_says_what_can_be_read_and_nothing_above_is(bulk):
    polled = bulk.poll(PollRequest(subscription="rows", topics=["orders"], rows_max=100))
    assert polled.ends == {"orders": {0: 100}}
    with pytest.raises(BulkError, match="ends at") as caught:
        bodies(bulk, end=COUNT + 1)
    assert caught.value.kind == "bad-request"


def test_a_reader_waits_for_the_next_flight_process_when_one_dies(running, bulk):
    assert len(bodies(bulk)) == COUNT
    [first] = children(running.pid)
    os.kill(first, signal.SIGKILL)
    assert bodies(bulk) == [b"%d" % number for number in range(COUNT)]
    assert children(running.pid) != [first]


def test_an_amqp_retry_is_a_new_row_that_x_death_tells_apart_and_a_requeue_is_none(running, bulk):
    with pika.BlockingConnection(pika.URLParameters(running.amqp_url)) as connection:
        channel = connection.channel()
        again = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}
        channel.queue_declare("work", durable=True, arguments=again)
        later = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
        channel.queue_declare("wait", durable=True, arguments={"x-message-ttl": 1, **later})
        channel.basic_publish("", "work", b"job", pika.BasicProperties(message_id="m-1"))
        taken = channel.consume("work")
        channel.basic_reject(next(taken)[0].delivery_tag, requeue=True)
        channel.basic_reject(next(taken)[0].delivery_tag, requeue=False)
        channel.basic_ack(next(taken)[0].delivery_tag)
        channel.cancel()
        channel.confirm_delivery()
        keep = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
        channel.queue_declare("after", durable=True)
        channel.basic_publish("", "after", b"all before it is durable now", keep)
    [queue] = bulk.resolve(["work"]).topics[0].queues
    wanted = Ticket(topic="work", queue=0, start=0, end=queue.end, columns=["properties", "body"])
    rows = [row for batch in bulk.read(wanted) for row in batch.to_pylist()]
    first, retried = [dict(row["properties"]) for row in rows]
    assert [row["body"] for row in rows] == [b"job", b"job"]
    assert first["message_id"] == retried["message_id"] == "m-1"
    assert "x-death" not in first
    deaths = json.loads(retried["x-death"])
    assert [(each["queue"], each["reason"], each["count"]) for each in deaths] == [
        ("wait", "expired", 1),
        ("work", "rejected", 1),
    ]


def test_a_killed_brokers_directory_gives_the_same_rows(tmp_path):
    with BrokerProcess(tmp_path / "data") as process:
        client = RemotingClient(*process.address("rocketmq_broker"))
        client.create_topic("orders", 1)
        for number in range(50):
            client.send("orders", b"%d" % number)
        client.close()
        with OfflineBulk(process.data) as living, pytest.raises(BulkError, match="in use by"):
            living.resolve()
        process.kill()
        with OfflineBulk(process.data) as stopped:
            assert bodies(stopped, end=50) == [b"%d" % number for number in range(50)]
