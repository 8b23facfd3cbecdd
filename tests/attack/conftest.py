"""A broker to attack, and those who must be served after each attack."""

import contextlib
import socket
import urllib.request
from pathlib import Path

import pika
import pytest

from penstock.cli.remoting import RemotingClient
from penstock.testing.running import running_broker
from penstock.wire.rocketmq.codes import RequestCode

PATIENCE_S = 20.0
MEMORY_BYTES_MAX = 64 * 1024 * 1024
"""What an attack may leave behind."""


class Victim:
    """A running broker and what to look at."""

    def __init__(self, broker) -> None:
        self.broker = broker

    @property
    def log(self) -> str:
        """What the process wrote."""
        return self.broker.output

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        line = next(each for each in status.splitlines() if each.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def dial(self, listener) -> socket.socket:
        return socket.create_connection(self.broker.address(listener), PATIENCE_S)

    def serves(self) -> None:
        """An honest client of every protocol gets its answer."""
        with pika.BlockingConnection(pika.URLParameters(self.broker.amqp_url)) as connection:
            channel = connection.channel()
            channel.queue_declare("honest")
            channel.confirm_delivery()
            channel.basic_publish("", "honest", b"x")
            assert channel.basic_get("honest", auto_ack=True)[2] == b"x"
        with RemotingClient(*self.broker.address("rocketmq")) as client:
            assert client.request(int(RequestCode.GET_BROKER_CLUSTER_INFO)).is_ok
        with urllib.request.urlopen(f"{self.broker.http_url}/livez", timeout=PATIENCE_S) as answer:
            assert answer.status == 200


@pytest.fixture
def attack():
    """``with attack(*flags) as victim:`` afterwards everybody is served, and nothing broke."""

    @contextlib.contextmanager
    def begin(*flags):
        with running_broker(*flags) as broker:
            victim = Victim(broker)
            victim.serves()
            before_bytes = victim.resident_bytes
            yield victim
            victim.serves()
            assert victim.resident_bytes <= before_bytes + MEMORY_BYTES_MAX
            assert "Traceback" not in victim.log

    return begin
