"""The exam with real clients of what a user seldom meets: locks, delays, Spark, the host.

Cases of the table in ``docs/diagnosis.md`` that need a clean-up gone wrong, a bad neighbour or a
setting of an owner; all with ``--long``. Of Spark its client (``penstock.bulk.client``), with which
polls, leases and puts come when a test wants them; slow parts of a real query are in
``tests/spark/test_exam.py``. On the manual clock: ``tests/scenario/test_exam*.py``.
Only there: a channel that waits for its queue because of the host.
"""

import contextlib
import datetime
import os
import subprocess
import sys
import threading

import pulsar
import pyarrow as pa
import pytest

from kit.amqp.load import FRAME_BYTES, TRANSIENT, AmqpFlood
from kit.real_exam import exam_broker, examined, publish, queue
from penstock.bulk.client import BulkClient
from penstock.cli.remoting import RemotingClient
from penstock.model.queries import CommitBatchRequest, LeaseRequest, PollRequest
from penstock.model.spark_batch import BatchProgress, StageCommand, StagedRows
from penstock.testing.running import eventually
from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods.basic import Publish
from penstock.wire.rocketmq.bodies import (
    ConsumerData,
    LockBatchBody,
    MessageQueue,
    SubscriptionData,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

HOST_S = 12
"""A window of five seconds must be over in which a CPU was lacking, and somebody wait."""
SILENT_S = 8
"""``spark.alive_ms_max`` and ``spark.lease_ms_max`` of these brokers, and a moment."""
SPINNERS = 6
DRAINED_S = 60


@pytest.fixture
def exam(request):
    """A broker with settings of its own, and a queue that nobody reads on purpose."""
    settings = getattr(request, "param", ())
    flags = [flag for each in settings for flag in ("--set", each)]
    with (
        exam_broker("--faults", "--flight", "0", *flags) as started,
        examined(started) as found,
    ):
        yield found


# RocketMQ.


def member(exam, client_id, topic):
    """A client of a group that consumes in order, as the broker sees it."""
    client = RemotingClient(*exam.broker.address("rocketmq_broker"))
    wanted = SubscriptionData(topic=topic, sub_string="*")

    def lives():
        client.heartbeat(
            ConsumerData(group_name="ordered", subscription_data_set=[wanted]), client_id=client_id
        )

    def lock():
        mine = MessageQueue(topic=topic, broker_name="penstock", queue_id=0)
        body = LockBatchBody(consumer_group="ordered", client_id=client_id, mq_set=[mine])
        client.request(RequestCode.LOCK_BATCH_MQ, body=encode_body(body))

    lives()
    return client, lives, lock


def commit(client, topic, offset):
    place = {"consumerGroup": "ordered", "topic": topic, "queueId": "0"}
    client.request(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": str(offset)})


def test_a_queue_whose_lock_has_an_owner_that_is_gone(exam):
    """Of two members one has the lock and ends without a word; the lock ends a minute later."""
    stays, lives, takes = member(exam, "stays", "locked")
    goes, _, locks = member(exam, "goes", "locked")
    stays.create_topic("locked", 1)
    stays.create_group("ordered")
    stays.send("locked", b"x")
    commit(stays, "locked", 1)
    locks()
    goes.close()
    for _ in range(20):
        stays.send("locked", b"x")
    exam.found("behind", "lock-owner-gone", "client/goes", meanwhile=lives)
    takes()
    stays.pull("locked", 1, consumer_group="ordered")
    commit(stays, "locked", 21)
    exam.ok(lives)
    stays.close()


# AMQP.


def half_sent(exam, size):
    """A publisher in the midst of a message; what is to be called to send the rest."""
    flood = AmqpFlood(exam.broker.endpoints["amqp"], exchange="", key="noisy", body=b"")
    frames = method_frame(1, Publish(0, "", "noisy")) + content_frames(
        1, TRANSIENT, b"x" * size, FRAME_BYTES
    )
    flood._socket.sendall(frames[: 9 * size // 10])
    return flood._socket, lambda: flood._socket.sendall(frames[9 * size // 10 :])


POOL = ("flow.connection_bytes_max=8MiB", "flow.inflight_bytes_max=8MiB")


@pytest.mark.parametrize("exam", [POOL], indirect=True)
def test_a_noisy_publisher_has_the_room_that_another_lacks(exam):
    quiet = exam.channel()
    queue(quiet, "noisy")
    noisy, sends_the_rest = half_sent(exam, 7 << 20)
    place = "{}:{}".format(*noisy.getsockname())
    eventually(lambda: pool_used(exam) > 4 << 20)
    sender = threading.Thread(target=publish, args=(quiet, "noisy"), kwargs={"size": 3 << 20})
    sender.start()
    exam.found("holding", "room", "connection/", name=place, waiting=[quiet])
    sends_the_rest()
    exam.ok()
    sender.join()
    noisy.close()
    quiet.queue_delete("noisy")


def pool_used(exam):
    limits = {each["name"]: each for each in exam.page()["limits"]}
    return limits["in-flight pool"]["used"]


BURIED_S = 8
"""Dead letters that are not written after five seconds, and a moment."""
REJECTED = 6_000
"""More than may wait for the disk at once."""


def test_dead_letters_whose_target_is_slow_and_the_disk_that_makes_it_so(exam):
    """A target is slow because the disk is: that is the answer, and what waits is told with it."""
    with many_taken(exam) as (take, give_up):
        exam.run("penstock fault store-hold --ms 5min")
        # A sync is under way that does not return: from now on nothing is written, letters wait.
        publish(exam.channel(), "audit")
        exam.found("refusing", "slow", "log", meanwhile=take)
        give_up()
        eventually(lambda: slow_letters(exam, take) == SLOW_LETTERS, BURIED_S)
        exam.found("refusing", "hung", "log", meanwhile=take)
        assert slow_letters(exam, take) == SLOW_LETTERS, "in the middle"


def test_dead_letters_that_the_disk_refuses(exam):
    with many_taken(exam) as (take, give_up):
        exam.run("penstock fault write-error --count 1000000")
        give_up()
        exam.found("refusing", "write-failed", "log", meanwhile=take)
        eventually(lambda: slow_letters(exam, take) == SLOW_LETTERS, BURIED_S)


SLOW_LETTERS = [("dead", "sub/work/amqp")]


@contextlib.contextmanager
def many_taken(exam):
    """What takes letters, and what gives up very many messages at once; faults end with it."""
    channel, reader, undertaker = exam.channel(), exam.channel(), exam.channel()
    dead = queue(channel, "dead")
    name = queue(channel, "work", dead_letter_exchange="", dead_letter_routing_key=dead)
    undertaker.basic_consume(dead, lambda *_: None, auto_ack=True)
    last = [0]
    reader.basic_consume(name, lambda _c, method, *_: last.append(method.delivery_tag))
    publish(channel, name, REJECTED)

    def take():
        for each in (reader, undertaker):
            each.connection.process_data_events(0)

    eventually(lambda: (take(), last[-1] == REJECTED)[1], DRAINED_S)
    exam.ok()
    yield take, lambda: reader.basic_nack(0, multiple=True, requeue=False)
    exam.run("penstock fault clear")
    exam.ok(take)
    assert slow_letters(exam, take) == []
    for each in (name, dead):
        channel.queue_delete(each)


def slow_letters(exam, take):
    take()
    found = [each for each in exam.page()["findings"] if each["cause"] == "letters-slow"]
    return [(each["severity"], each["culprit_id"]) for each in found]


@contextlib.contextmanager
def one_cpu_for_many(pid):
    """The broker shares a CPU with programs that do nothing but compute."""
    cpu = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(pid)
    threads = [int(each) for each in os.listdir(f"/proc/{pid}/task")]
    for each in threads:
        os.sched_setaffinity(each, {cpu})
    with contextlib.ExitStack() as stack:
        for _ in range(SPINNERS):
            spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(spinner.wait)
            stack.callback(spinner.kill)
            os.sched_setaffinity(spinner.pid, {cpu})
        yield
    for each in threads:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(each, before)


def test_a_busy_host_is_to_blame_when_somebody_waits_and_else_no_answer(exam):
    channel = exam.channel()
    channel.exchange_declare("news", "fanout")
    names = [queue(channel, f"reader-{number}", max_length=10) for number in range(50)]
    for name in names:
        channel.queue_bind(name, "news")

    def remarked():
        page = exam.page()
        assert page["answer"]["severity"] == "ok", page["answer"]["sentence"]
        return [each for each in page["findings"] if each["culprit_id"] == "host"]

    with one_cpu_for_many(exam.broker.pid):
        # Somebody looks all the time: what does nothing waits for no CPU.
        eventually(remarked, HOST_S + 20)
        flood = AmqpFlood(
            exam.broker.endpoints["amqp"],
            exchange="news",
            key="",
            body=b"x" * 4_000,
            is_persistent=False,
        )
        with flood:
            exam.found("holding", "busy-host", "host", waiting=1, within_s=HOST_S)
    # What its socket still has is read and routed first: it ends when that does.
    eventually(lambda: exam.answer()["severity"] == "ok", DRAINED_S)
    for name in names:
        channel.queue_delete(name)


# Pulsar.


@contextlib.contextmanager
def pulsar_client(exam):
    host, port = exam.broker.address("pulsar")
    silent = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(f"pulsar://{host}:{port}", logger=silent)
    try:
        yield client
    finally:
        client.close()


TAKES_OVER = ("pulsar.active_consumer_failover_delay_ms=15000",)


@pytest.mark.parametrize("exam", [TAKES_OVER], indirect=True)
def test_a_consumer_that_is_to_take_over_first(exam):
    with pulsar_client(exam) as client:
        kind = pulsar.ConsumerType.Failover
        readers = [client.subscribe("turns", "s", consumer_type=kind) for _ in range(2)]
        producer = client.create_producer("turns")
        for _ in range(5):
            producer.send(b"x")
        exam.found("behind", "inactive", "sub/turns/pulsar%2Fs")

        def reads():
            for reader in readers:
                with contextlib.suppress(pulsar.Timeout):
                    while True:
                        reader.acknowledge(reader.receive(50))

        eventually(lambda: (reads(), exam.answer()["severity"] == "ok")[1], 30)
        exam.ok(reads)
        for reader in readers:
            reader.close()


LATER = ("topics.delayed_in_memory_max=20", "topics.delayed_on_disk_max=0")


@pytest.mark.parametrize("exam", [LATER], indirect=True)
def test_no_room_to_put_delayed_messages_aside(exam):
    with pulsar_client(exam) as client:
        kind = pulsar.ConsumerType.Shared
        reader = client.subscribe("later", "s", consumer_type=kind)
        producer = client.create_producer("later")
        for _ in range(60):
            producer.send(b"x", deliver_after=datetime.timedelta(seconds=20))
        producer.send(b"now")

        def reads():
            with contextlib.suppress(pulsar.Timeout):
                while True:
                    reader.acknowledge(reader.receive(50))

        exam.found("behind", "delayed-room", "sub/later/pulsar%2Fs", meanwhile=reads)
        # Those it has no room for come at their time.
        eventually(lambda: (reads(), exam.answer()["severity"] == "ok")[1], 30)
        reader.unsubscribe()


# Spark.


@pytest.fixture
def bulk(exam):
    with BulkClient(exam.broker.endpoints["flight"], patience_s=30) as client:
        yield client


SHORT = ("spark.alive_ms_max=4000", "spark.lease_ms_max=4000")
ALIVE = ("spark.alive_ms_max=4000",)


def filled(exam, count=20):
    channel = exam.channel()
    queue(channel, "orders")
    publish(channel, "orders", count)
    return channel


def poll(bulk, *, start=0, **changes):
    order = PollRequest(
        subscription="etl", topics=["orders"], start={"orders": {0: start}}, **changes
    )
    return bulk.poll(order).ends["orders"][0]


def drained(bulk, exam):
    """It reads all there is, and says so."""
    end = poll(bulk)
    exam.ok(lambda: poll(bulk, start=end))
    bulk.release("etl", is_final=True)
    exam.ok()


@pytest.mark.parametrize("exam", [ALIVE], indirect=True)
def test_a_query_that_does_not_poll(exam, bulk):
    filled(exam)
    poll(bulk, start=20)
    publish(exam.channel(), "orders", 20)
    exam.found("behind", "silent", "query/etl", name="etl")
    exam.helps(exam.found("behind", "silent", "query/etl", name="etl"))
    drained(bulk, exam)


@pytest.mark.parametrize("exam", [ALIVE], indirect=True)
def test_a_query_with_a_lease_that_did_not_begin(exam, bulk):
    filled(exam)
    bulk.lease(LeaseRequest(subscription="etl", topics=["orders"], start={"orders": {0: 0}}))
    exam.found("behind", "not-started", "query/etl", name="etl")
    drained(bulk, exam)


@pytest.mark.parametrize("exam", [SHORT], indirect=True)
def test_a_query_whose_lease_is_broken(exam, bulk):
    filled(exam)
    poll(bulk, start=1)
    exam.found("behind", "lease-broken", "query/etl", name="etl", within_s=SILENT_S)
    drained(bulk, exam)


def test_a_query_that_takes_what_its_user_allows_is_at_its_own_limit(exam, bulk):
    channel, place = filled(exam), [0]
    report = BatchProgress(rows=10, batch_ms=1_000, read_ms=800, work_ms=900, query_id="of-spark")

    def runs():
        publish(channel, "orders", 50)
        place[0] = poll(bulk, start=place[0], rows_max=10, own_rows_max=10, report=report)

    found = exam.found("behind", "own-limit", "query/etl", name="etl", meanwhile=runs)
    assert "maxRowsPerTrigger 10" in found["sentence"]
    drained(bulk, exam)


STAGE = ("spark.stage_bytes_max=64KiB", "spark.stage_batch_bytes_max=60KiB")


def rows(size):
    return pa.record_batch({"body": [b"x" * size]})


def put(bulk, query, receipts):
    key = {"sink": "out", "query": query, "batch": 0, "stage": "a", "topic": "orders"}
    receipt = bulk.put_stage(StageCommand(**key), [rows(40_000)])
    receipts[query] = [StagedRows(name=receipt.name, rows=receipt.rows)]


@pytest.mark.parametrize("exam", [STAGE], indirect=True)
def test_a_put_that_waits_for_room_among_staged_rows(exam, bulk):
    receipts = {}
    filled(exam)
    put(bulk, "one", receipts)
    second = threading.Thread(target=put, args=(bulk, "two", receipts), daemon=True)
    second.start()
    waiting = ["sink/two/out"]
    exam.found("holding", "stage", "limit/spark.stage_bytes_max", waiting=waiting)
    # What is committed is no longer staged, so there is room for the other.
    for query in ("one", "two"):
        stages = eventually(lambda query=query: receipts.get(query))
        bulk.commit_batch(CommitBatchRequest(sink="out", query=query, batch=0, stages=stages))
    second.join(20)
    exam.ok()
