"""A RocketMQ name server and broker for client tests: Penstock's, or Apache's, behind one face.

    with penstock_cluster() as cluster:
        cluster.create_topic("orders", queues=4)
        Producer("g", name_servers=cluster.name_server)

Both keep their ports when they are killed and started again, as real ones do. Whatever a test
needs of a broker beyond the client under test goes through ``connect``: a plain connection that
hides nothing.

Not here: how Apache's are got and started (``testing/apache_rocketmq.py``).
"""

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from penstock.cli.remoting import RemotingClient
from penstock.testing.running import UP, BrokerProcess
from penstock.testing.waiting import eventually

SHORT_TRANSACTION_CHECKS: Final = (
    "--set", "rocketmq.transaction_check_ms=500",
    "--set", "rocketmq.transaction_immunity_ms=500",
)  # fmt: skip
"""Tests wait for a check instead of for half a minute."""


class Cluster(Protocol):
    """What tests know of the broker they run against."""

    name_server: str
    """``host:port`` of the name server."""
    broker_address: str
    is_apache: bool

    @property
    def pid(self) -> int:
        """The process of the broker."""

    def create_topic(self, topic: str, queues: int = 4, perm: int = 6) -> None:
        """Make a topic; it is in the name server's routes on return."""

    def create_group(self, group: str, **switches: object) -> None:
        """Make a consumer group, for example ``retry_max_times=2``."""

    def connect(self, *, to_name_server: bool = False) -> RemotingClient:
        """A plain connection to the broker or the name server; close it."""

    def kill(self) -> None:
        """SIGKILL the broker."""

    def start(self) -> None:
        """Start the broker again on the same store and ports."""


class ClusterFace:
    """What is the same for every kind of cluster."""

    name_server: str
    broker_address: str

    def create_topic(self, topic: str, queues: int = 4, perm: int = 6) -> None:
        """Make a topic; it is in the name server's routes on return."""
        with self.connect() as client:
            answer = client.create_topic(topic, queues, perm)
            if not answer.is_ok:
                raise RuntimeError(f"no topic {topic!r}: {answer}")
        with self.connect(to_name_server=True) as client:
            eventually(lambda: client.route(topic), what=f"route of {topic}")

    def create_group(self, group: str, **switches: object) -> None:
        """Make a consumer group."""
        with self.connect() as client:
            answer = client.create_group(group, **switches)
            if not answer.is_ok:
                raise RuntimeError(f"no group {group!r}: {answer}")

    def connect(self, *, to_name_server: bool = False) -> RemotingClient:
        """A plain connection to the broker or the name server."""
        address = self.name_server if to_name_server else self.broker_address
        host, _, port = address.rpartition(":")
        return RemotingClient(host, int(port))


class PenstockCluster(ClusterFace):
    """One Penstock process: name server and broker."""

    is_apache = False

    def __init__(self, data: Path, *flags: str) -> None:
        name_port, broker_port = free_ports(2)
        self.name_server = f"127.0.0.1:{name_port}"
        self.broker_address = f"127.0.0.1:{broker_port}"
        ports = ("--rocketmq", str(name_port), "--rocketmq-broker", str(broker_port))
        self.broker = BrokerProcess(
            data, command=UP, flags=(*ports, *SHORT_TRANSACTION_CHECKS, *flags)
        )

    @property
    def pid(self) -> int:
        """The process whose CPU and memory count."""
        return self.broker.pid

    def kill(self) -> None:
        """SIGKILL."""
        self.broker.kill()

    def start(self) -> None:
        """Start, or start again."""
        self.broker.start()


@contextlib.contextmanager
def penstock_cluster(*flags: str) -> Iterator[PenstockCluster]:
    """A Penstock that runs, in a directory of its own; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as place:
        cluster = PenstockCluster(Path(place, "data"), *flags)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.kill()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; all different."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
