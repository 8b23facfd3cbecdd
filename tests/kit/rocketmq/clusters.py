"""A RocketMQ name server and broker for client tests: Penstock's, or Apache's, behind one face.

    with penstock_cluster() as cluster:
        cluster.create_topic("orders", queues=4)
        Producer("g", name_servers=cluster.name_server)

Both keep their ports when they are killed and started again, as real ones do. Whatever a test
needs of a broker beyond the client under test goes through ``connect``: a plain connection that
hides nothing.

Not here: how Apache's are got and started (``tests/kit/rocketmq/clusters.py``).
"""

import contextlib
import fcntl
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from penstock.cli.remoting import RemotingClient
from penstock.testing.running import BrokerProcess, eventually

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
        self.broker = BrokerProcess(data, flags=(*ports, *SHORT_TRANSACTION_CHECKS, *flags))

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


CHOSEN_PORTS: Final = range(12_000, 32_000, 4)
"""Below those that the system gives to connections, which might come before a broker does, or while
it is gone. RocketMQ's brokers take the port that is two below theirs, too."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; all different."""
    found: list[int] = []
    for port in random.SystemRandom().sample(CHOSEN_PORTS, len(CHOSEN_PORTS)):
        if len(found) == count:
            return found
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    raise RuntimeError(f"there are no {count} free ports")


# ---- apache rocketmq ----------------------------------------------------------------------------
# Apache RocketMQ for tests and benchmarks: jars by Maven in a cache, small heap, loopback.
#
# | with apache_cluster() as cluster:
# |     cluster.name_server, cluster.broker_address
#
# Nothing of it is part of this repository: Maven resolves two coordinates with its own settings and
# copies the jars into a cache. Without Java, Maven or its repository there is nothing to test with,
# and ``Unavailable`` says why.


VERSION: Final = os.environ.get("PENSTOCK_ROCKETMQ_VERSION", "5.3.3")
"""Of name server and broker; the variable is for those who wonder about another one."""
HEAP: Final = "512m"
NAME_SERVER_HEAP: Final = "64m"
START_SECONDS_MAX: Final = 60
MAVEN_SECONDS_MAX: Final = 600
MAVEN_WORDS_MAX: Final = 400
CACHE: Final = Path.home() / ".cache" / "penstock"
PORT_TRIES_MAX: Final = 100
BROKER_PORTS: Final = (12_000, 32_000)
"""Below those that connections get: one of them would take a neighbour while Java starts."""
LOCALLY: Final = "127.0.0.1"

POM: Final = """<project><modelVersion>4.0.0</modelVersion>
<groupId>penstock</groupId><artifactId>testing</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.rocketmq</groupId>
<artifactId>rocketmq-namesrv</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.apache.rocketmq</groupId>
<artifactId>rocketmq-broker</artifactId><version>{version}</version></dependency>
</dependencies></project>
"""

SETTINGS: Final[Mapping[str, str]] = {
    "brokerName": "apache",
    "brokerIP1": LOCALLY,
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    # Tests wait for a check of a transaction; half a minute would be most of the run.
    "transactionTimeOut": "500",
    "transactionCheckInterval": "500",
    # A busy machine must not be taken for a busy disk: a refusal here fails a test of the client.
    "waitTimeMillsInSendQueue": "5000",
    "osPageCacheBusyTimeOutMills": "5000",
    "diskMaxUsedSpaceRatio": "95",
    "mappedFileSizeCommitLog": "268435456",
    "maxIndexNum": "1000000",
    "maxHashSlotNum": "250000",
}


class Unavailable(Exception):
    """Apache RocketMQ cannot be had on this machine; the text says why."""


def jars(cache: Path = CACHE) -> Path:
    """The directory with the jars, filled on first use."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed")
    target = cache / f"rocketmq-{VERSION}"
    target.mkdir(parents=True, exist_ok=True)
    # Test processes start at once; one of them fetches, the others find the jars there.
    with (target / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            _fetch(target)
            (target / "complete").touch()
    return target


def _fetch(target: Path) -> None:
    (target / "pom.xml").write_text(POM.format(version=VERSION))
    command = [
        "mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime",
        f"-DoutputDirectory={target}",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=target, capture_output=True, text=True, timeout=MAVEN_SECONDS_MAX,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven took longer than {MAVEN_SECONDS_MAX} s") from None
    if done.returncode:
        said = (done.stdout + done.stderr).splitlines()
        # What failed is in its first complaint; the others say how to ask for more of them.
        first = next((line for line in said if "ERROR" in line), "it did not say why")
        raise Unavailable(f"Maven failed: {first[:MAVEN_WORDS_MAX]}")


class JavaProcess:
    """One of Apache's programs; killed and started again with the same files and port."""

    def __init__(self, home: Path, port: int, arguments: Sequence[str]) -> None:
        self._home = home
        self._port = port
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        # 4.x does not start without these, whatever is in them.
        (home / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker"):
            (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>")

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        if self._process is None:
            raise RuntimeError("it does not run; call start() first")
        return self._process.pid

    def start(self) -> None:
        """Start, and return once its port answers."""
        command = ["java", f"-Duser.home={self._home}", *self._arguments]
        with (self._home / "output").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=self._home,
                env={**os.environ, "ROCKETMQ_HOME": str(self._home)},
            )  # fmt: skip
        until = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection((LOCALLY, self._port), timeout=1).close()
                return
            time.sleep(0.05)
        self.kill()
        said = (self._home / "output").read_text(errors="replace")[-500:]
        raise Unavailable(f"{self._arguments[-3]} did not start: {said}")

    def kill(self) -> None:
        """SIGKILL; without a process nothing happens."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class ApacheCluster(ClusterFace):
    """A name server and a broker with an empty store."""

    is_apache = True

    def __init__(self, classes: Path, home: Path, settings: Mapping[str, str]) -> None:
        (name_port,) = free_ports(1)
        port = _broker_port()
        self.name_server = f"{LOCALLY}:{name_port}"
        self.broker_address = f"{LOCALLY}:{port}"
        self._names = JavaProcess(
            home / "names",
            name_port,
            _java(
                classes,
                NAME_SERVER_HEAP,
                "namesrv.NamesrvStartup",
                _written(home / "names.conf", {"listenPort": str(name_port)}),
            ),
        )
        store = home / "store"
        told = {
            "listenPort": str(port),
            "namesrvAddr": self.name_server,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            **settings,
        }
        self._broker = JavaProcess(
            home / "broker",
            port,
            _java(classes, HEAP, "broker.BrokerStartup", _written(home / "broker.conf", told)),
        )

    @property
    def pid(self) -> int:
        """Of the broker."""
        return self._broker.pid

    def start(self) -> None:
        """Start the broker, or start it again; return once it is in the routes."""
        self._broker.start()
        with self.connect(to_name_server=True) as names:
            eventually(lambda: names.route("TBW102"), START_SECONDS_MAX, "the broker registers")

    def kill(self) -> None:
        """SIGKILL the broker; the name server stays."""
        self._broker.kill()

    def start_name_server(self) -> None:
        """Start the name server."""
        self._names.start()

    def kill_name_server(self) -> None:
        """SIGKILL the name server."""
        self._names.kill()


@contextlib.contextmanager
def apache_cluster(
    cache: Path = CACHE, directory: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[ApacheCluster]:
    """A cluster that runs, its files in a directory of its own; ``settings`` go to the broker."""
    classes = jars(cache)
    with tempfile.TemporaryDirectory(prefix="apache-rocketmq-", dir=directory) as home:
        cluster = ApacheCluster(classes, Path(home), {**SETTINGS, **(settings or {})})
        try:
            cluster.start_name_server()
            cluster.start()
            yield cluster
        finally:
            cluster.kill()
            cluster.kill_name_server()


def _java(classes: Path, heap: str, program: str, conf: Path) -> list[str]:
    return [
        f"-Xms{heap}", f"-Xmx{heap}", "-cp", f"{classes}/*",
        f"org.apache.rocketmq.{program}", "-c", str(conf),
    ]  # fmt: skip


def _written(path: Path, settings: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def _broker_port() -> int:
    """A port with free neighbours: the broker also takes the one two below and the one above."""
    for _ in range(PORT_TRIES_MAX):
        port = random.randrange(*BROKER_PORTS)
        with contextlib.suppress(OSError):
            for each in (port - 2, port, port + 1):
                with socket.socket() as probe:
                    probe.bind((LOCALLY, each))
            return port
    raise Unavailable("no three free ports in a row")
