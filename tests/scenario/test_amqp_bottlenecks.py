"""RabbitMQ's three rules of diagnosis, staged with AMQP and named within two seconds.

A broker of its own, floods from real sockets. The disk of the first two is memory where there is
such a thing, that of the third is made slow on purpose: so the stage that is meant is the slow one
on every machine. The clock starts when somebody is seen to wait.
"""

import contextlib
import tempfile
import time
from pathlib import Path

import pika

from kit.amqp.load import AmqpFlood
from kit.interop import private_broker
from penstock.cli.http_client import address, send

PRESSURE_S_MAX = 30.0
NAMED_S_MAX = 2.0
OK_S_MAX = 10.0
"""Five seconds are promised; what a flood left in its socket is read and stored first."""
POLL_S = 0.1
QUICK_DISK = Path("/dev/shm")
SLOW_SYNC_MS = 150
LOOKS = 10
"""After it was named, so many looks say whether it stays so."""


@contextlib.contextmanager
def broker(*, is_quick=True):
    where = QUICK_DISK if is_quick and QUICK_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(dir=where, ignore_cleanup_errors=True) as directory:
        off = ("--rocketmq", "off", "--pulsar", "off", "--flight", "off")
        flags = ("--amqp", "0", "--http", "0", *off, "--faults")
        with private_broker(Path(directory) / "data", flags) as endpoints:
            yield endpoints


@contextlib.contextmanager
def channel(endpoints):
    host, _, port = endpoints["amqp"].rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    try:
        yield connection.channel()
    finally:
        connection.close()


def flow(endpoints):
    status, page = send("GET", "/api/flow", at=address(Path(), endpoints["http"]))
    assert status == 200
    return page


def is_pressed(page):
    return any(each["kind"] == "connection" and each["reason"] == "flow" for each in page["stages"])


def watch(endpoints, kind):
    """Bottlenecks named until it is that one, at most two seconds, and in the looks after that."""
    until = time.monotonic() + PRESSURE_S_MAX
    while not is_pressed(page := flow(endpoints)):
        assert time.monotonic() < until, f"nobody ever had to wait: {page['answer']}"
        time.sleep(POLL_S)
    began = time.monotonic()
    first = [page["answer"]["kind"]]
    while kind not in first and time.monotonic() < began + NAMED_S_MAX:
        first.append(flow(endpoints)["answer"]["kind"])
        time.sleep(POLL_S)
    looks = []
    for _ in range(LOOKS):
        looks.append(flow(endpoints)["answer"])
        time.sleep(POLL_S)
    return first, looks


def check(endpoints, kind, cause):
    first, looks = watch(endpoints, kind)
    assert kind in first, (first, looks)
    # A machine that does other things, too, may have the log in between for a moment, rightly.
    found = [each for each in looks if each["kind"] == kind]
    assert len(found) > LOOKS // 2, (first, looks)
    last = found[-1]
    assert (last["severity"], last["culprit"]["kind"], last["cause"]) == ("holding", kind, cause)
    assert last["waiters_total"] == 1
    return last


def is_ok(endpoints):
    """All is well, in time, and in a look after that."""
    until = time.monotonic() + OK_S_MAX
    while (answer := flow(endpoints)["answer"])["severity"] != "ok":
        assert time.monotonic() < until, answer
        time.sleep(POLL_S)
    time.sleep(POLL_S)
    answer = flow(endpoints)["answer"]
    assert answer["severity"] == "ok", answer["sentence"]


def test_small_transient_messages_with_many_bindings_are_limited_by_the_channel():
    with broker() as endpoints, channel(endpoints) as setup:
        setup.exchange_declare("news", "fanout")
        for number in range(50):
            setup.queue_declare(f"reader-{number}")
            setup.queue_bind(f"reader-{number}", "news")
        is_ok(endpoints)
        with AmqpFlood(
            endpoints["amqp"], exchange="news", key="", body=b"x" * 20, is_persistent=False
        ):
            found = check(endpoints, "channel", "routing")
        is_ok(endpoints)
    assert "parsing and routing" in found["sentence"]
    assert found["chain"][0].startswith("connection amqp-")


def test_many_small_persistent_messages_for_one_queue_are_limited_by_the_queue():
    with broker() as endpoints, channel(endpoints) as setup:
        setup.queue_declare("hot", durable=True)
        is_ok(endpoints)
        with AmqpFlood(endpoints["amqp"], exchange="", key="hot", body=b"x" * 20):
            found = check(endpoints, "queue", "index")
        is_ok(endpoints)
    assert found["name"] == "hot"
    assert [each.split(" ")[0] for each in found["chain"]] == ["connection", "channel"]


def test_large_persistent_messages_are_limited_by_the_log():
    with broker(is_quick=False) as endpoints, channel(endpoints) as setup:
        setup.queue_declare("pictures", durable=True)
        is_ok(endpoints)
        order = {"fault": "sync-delay", "ms": SLOW_SYNC_MS}
        assert send("POST", "/api/faults", order, at=address(Path(), endpoints["http"]))[0] == 200
        with AmqpFlood(endpoints["amqp"], exchange="", key="pictures", body=b"x" * 500_000):
            found = check(endpoints, "log", "slow")
        is_ok(endpoints)
    assert "the disk" in found["sentence"]
