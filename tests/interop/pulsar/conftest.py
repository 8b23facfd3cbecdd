"""What the raw conversations are held with: Penstock, or with ``--real-pulsar`` Apache Pulsar 4.0.

    pytest tests/interop/pulsar
    pytest tests/interop/pulsar --real-pulsar [--real-pulsar-url 127.0.0.1:6650
                                               --real-pulsar-admin http://127.0.0.1:8080]

A case is one row of the observations of a real 4.0.8; it knows which broker it talks to only where
``docs/pulsar.md`` has a row for the difference (``pulsar.is_real``). The real server is started by
hand, with ``acknowledgmentAtBatchIndexLevelEnabled=true backlogQuotaCheckIntervalInSeconds=1``, and
once more for ``test_other_settings.py``, whose head says how. Which row is held where is in
``test_rows.py``.
"""

import itertools
import os
from contextlib import contextmanager

import pytest

from kit.pulsar_peer import PulsarPeer, PulsarRest
from penstock.testing.running import eventually, running_broker

NUMBERS = itertools.count(1)
RUN = os.urandom(4).hex()
"""Part of every name, so that runs against one real server do not meet. Always of the same length:
with the process id in its place a pattern was at times too long for a broker to watch it."""

REAL_QUIET_SECONDS = 0.3
"""The real server reads and writes in threads of its own: a PONG overtakes what they will send."""


class Server:
    """Where it listens, and whether it is Apache's."""

    def __init__(self, address, admin_url, *, is_real, pid=None):
        self.address = address
        self.pid = pid
        self.rest = PulsarRest(admin_url)
        self.is_real = is_real
        self.url = f"pulsar://{address[0]}:{address[1]}"


class Pulsar:
    """The server as one test sees it: peers that are closed at its end, names of its own."""

    def __init__(self, server):
        self.server = server
        self.rest = server.rest
        self.url = server.url
        self.is_real = server.is_real
        self.peers = []
        self.watch = None

    def raw(self, **options):
        """A connection that has said nothing yet."""
        if self.is_real:
            options.setdefault("quiet_seconds", REAL_QUIET_SECONDS)
        peer = PulsarPeer(self.server.address, **options)
        self.peers.append(peer)
        return peer

    def peer(self, **fields):
        """A connection that has said CONNECT."""
        peer = self.raw()
        peer.connect(**fields)
        return peer

    def name(self, stem="t"):
        """A name that no other test uses."""
        return f"{stem}-{RUN}-{next(NUMBERS)}"

    def topic(self, stem="t", *, namespace="public/default", partitions=0, domain="persistent"):
        """The name of a topic of its own, looked up; made first if it has partitions."""
        topic = f"{domain}://{namespace}/{self.name(stem)}"
        if partitions:
            self.rest.done("PUT", f"{self.path(topic)}/partitions", partitions)
        self.look_up(topic)
        return topic

    def look_up(self, topic):
        """Pulsar serves a topic only after somebody has asked where it is."""
        if self.watch is None:
            self.watch = self.peer()
        assert self.watch.lookup(topic).response == 1

    def path(self, topic):
        """REST's path of a topic."""
        return topic.replace("://", "/")

    def namespace(self, **policies):
        """A namespace of its own with these policies: name of the call -> body."""
        name = f"public/{self.name('ns')}"
        self.rest.done("PUT", f"namespaces/{name}", {})
        self.look_up(f"persistent://{name}/first")
        for policy, body in policies.items():
            self.policy(name, policy, body)
        return name

    def policy(self, namespace, policy, body):
        """Set one policy; ``__`` in its name is a slash."""
        method = "PUT" if policy in PUT_POLICIES else "POST"
        self.rest.done(method, f"namespaces/{namespace}/{policy.replace('__', '/')}", body)

    def stats(self, topic):
        """REST's statistics of a topic."""
        found = self.rest.get(f"{self.path(topic)}/stats")
        assert found.status == 200, found
        return found.json

    def backlog(self, topic, subscription):
        """Entries of a subscription that are not settled."""
        return self.stats(topic)["subscriptions"][subscription]["msgBacklog"]

    def eventually(self, condition, what=""):
        """Wait for what another process brings about."""
        return eventually(condition, what=what)

    def close(self):
        for peer in self.peers:
            peer.close()


PUT_POLICIES = {"schemaCompatibilityStrategy"}


@pytest.fixture(scope="session")
def serve(request):
    """A server with these flags; the real one is as it was started."""
    config = request.config

    @contextmanager
    def served(*flags):
        if config.getoption("--real-pulsar"):
            host, _, port = config.getoption("--real-pulsar-url").rpartition(":")
            admin = config.getoption("--real-pulsar-admin")
            pid = config.getoption("--real-pulsar-pid")
            yield Server((host, int(port)), admin, is_real=True, pid=pid)
        else:
            with penstock(*flags) as server:
                yield server

    return served


@pytest.fixture(scope="session")
def pulsar_server(serve):
    with serve() as server:
        yield server


@contextmanager
def penstock(*flags):
    """A Penstock of one's own."""
    with running_broker(*flags) as broker:
        http = broker.endpoints.get("pulsar_http", broker.endpoints["http"])
        yield Server(broker.address("pulsar"), f"http://{http}", is_real=False, pid=broker.pid)


@pytest.fixture
def pulsar(pulsar_server):
    """The server; use names made by it."""
    found = Pulsar(pulsar_server)
    yield found
    found.close()


@pytest.fixture
def impatient(pulsar):
    """The server as it is when what is held waits half a second, not twenty: Apache's does not."""
    if pulsar.is_real:
        yield pulsar
        return
    with penstock("--set", "flow.hold_ms_max=500") as server:
        found = Pulsar(server)
        yield found
        found.close()


@pytest.fixture
def peer(pulsar):
    """A connection that has said CONNECT."""
    return pulsar.peer()


@pytest.fixture
def topic(pulsar):
    """The name of a topic that nobody has used."""
    return pulsar.topic()
