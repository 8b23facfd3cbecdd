"""A real file system that runs full: settled data kept "if there is room" makes room by itself."""

import subprocess
import threading
import time
import urllib.request

import pika
import pytest

from penstock.testing.running import BrokerProcess

DISK = "40m"
DISK_FREE_LIMIT = "10MiB"
BODY = bytes(100_000)
MESSAGES = 600
"""Half as much again as fits on the disk."""
PATIENCE_S = 60.0
QUEUE = "orders"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, 40 MB large."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "penstock-test", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if made.returncode:
        pytest.skip(f"mounting a tmpfs is not allowed here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


class Publisher(threading.Thread):
    """Publishes with confirms, one by one, for as long as it takes."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.confirmed = 0

    def run(self):
        channel = self.connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        for _ in range(MESSAGES):
            channel.basic_publish("", QUEUE, BODY, persistent)
            self.confirmed += 1
        self.connection.close()


def wait_for_alarm(broker):
    """Until ``/metrics`` says that the disk alarm is raised."""
    until = time.monotonic() + PATIENCE_S
    while 'penstock_alarm{alarm="disk"} 1' not in metrics(broker):
        assert time.monotonic() < until, "the disk alarm was never raised"
        time.sleep(0.05)


def metrics(broker):
    with urllib.request.urlopen(f"{broker.http_url}/metrics") as answer:
        return answer.read().decode()


def drain(url):
    """Consume and acknowledge until all were there; how many that is."""
    taken, until = 0, time.monotonic() + PATIENCE_S
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=50)
    for method, _, _ in channel.consume(QUEUE, inactivity_timeout=0.1):
        if method is not None:
            channel.basic_ack(method.delivery_tag)
            taken += 1
        if taken == MESSAGES or time.monotonic() > until:
            break
    connection.close()
    return taken


def test_publishers_go_on_by_themselves_when_a_full_disk_is_drained(small_disk):
    with BrokerProcess(small_disk / "data", flags=("--disk-free-limit", DISK_FREE_LIMIT)) as broker:
        publisher = Publisher(broker.amqp_url)
        publisher.start()
        wait_for_alarm(broker)
        assert publisher.confirmed < MESSAGES
        assert drain(broker.amqp_url) == MESSAGES
        publisher.join(PATIENCE_S)
        assert publisher.confirmed == MESSAGES
