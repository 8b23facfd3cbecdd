"""Our Pulsar client against Penstock, or with ``--real-pulsar`` against Apache Pulsar 4.0.

    pytest tests/interop/pulsar_client
    pytest tests/interop/pulsar_client --real-pulsar [--real-pulsar-url 127.0.0.1:6650
                                                      --real-pulsar-admin http://127.0.0.1:8080]

One broker for each module; the real one is started by hand, as ``tests/interop/pulsar`` says. A
test takes the fixture ``pulsar`` and makes clients, ours and the C++ one, by it.
"""

import itertools
import json
import os
import time
from contextlib import contextmanager

import pytest

from kit.pulsar_peer import PulsarRest
from penstock.client.loop import client_loop
from penstock.client.pulsar import Client
from penstock.testing.running import eventually, running_broker

NUMBERS = itertools.count(1)


class Server:
    """Where it listens, and whether it is Apache's."""

    def __init__(self, address, admin_url, *, broker=None):
        self.url = f"pulsar://{address[0]}:{address[1]}"
        self.rest = PulsarRest(admin_url)
        self.broker = broker
        self.is_real = broker is None


class Scene:
    """The server as one test sees it: clients that are closed at its end, names of its own."""

    def __init__(self, server):
        self.server = server
        self.url = server.url
        self.rest = server.rest
        self.is_real = server.is_real
        self._clients = []

    def client(self, **options):
        """Ours."""
        found = Client(self.url, **options)
        self._clients.append(found)
        return found

    def cpp(self, **options):
        """The official one."""
        pulsar = pytest.importorskip("pulsar")
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        found = pulsar.Client(self.url, logger=logger, **options)
        self._clients.append(found)
        return found

    def name(self, stem="t"):
        """A name that no other test uses."""
        return f"{stem}-{os.getpid()}-{int(time.time())}-{next(NUMBERS)}"

    def topic(self, stem="t", *, namespace="public/default", partitions=0):
        topic = f"persistent://{namespace}/{self.name(stem)}"
        if partitions:
            self.rest.done("PUT", f"{topic.replace('://', '/')}/partitions", partitions)
        return topic

    def namespace(self, **policies):
        """A namespace of its own with these policies: name of the call -> body."""
        name = f"public/{self.name('ns')}"
        self.rest.done("PUT", f"namespaces/{name}", {})
        for policy, body in policies.items():
            self.rest.done("POST", f"namespaces/{name}/{policy}", body)
        return name

    @property
    def keeps_batch_index_acks(self):
        """Whether the broker keeps acks of single messages of a batch: Apache's must be told to."""
        if not self.is_real:
            return True
        said = json.loads(self.rest.get("brokers/configuration/runtime").text)
        return said["acknowledgmentAtBatchIndexLevelEnabled"] == "true"

    def cut(self, client):
        """Every connection of one of our clients breaks, without a word."""

        def abort():
            for connection in client._cluster.pool.connected():
                connection._transport.abort()

        client_loop().post(abort)

    def deafen(self, client):
        """One of our clients reads no more on the connections it has: its answers are lost."""

        def pause():
            for connection in client._cluster.pool.connected():
                connection._transport.pause_reading()

        client_loop().post(pause)

    def comes_back(self, producer, times):
        """Wait for it, so that the next cut is one: what is cut already cannot be cut."""
        (partition,) = producer._partitions
        handler = partition.handler
        eventually(lambda: handler.epoch == times and handler.ready_connection, what="it is back")

    def eventually(self, condition, what=""):
        return eventually(condition, what=what)

    def close(self):
        for client in self._clients:
            client.close()


@contextmanager
def penstock(*flags):
    """A Penstock of one's own."""
    with running_broker(*flags) as broker:
        http = broker.endpoints.get("pulsar_http", broker.endpoints["http"])
        yield Server(broker.address("pulsar"), f"http://{http}", broker=broker)


@pytest.fixture(scope="module")
def pulsar_server(request):
    config = request.config
    if config.getoption("--real-pulsar"):
        host, _, port = config.getoption("--real-pulsar-url").rpartition(":")
        yield Server((host, int(port)), config.getoption("--real-pulsar-admin"))
    else:
        with penstock() as server:
            yield server


@pytest.fixture
def pulsar(pulsar_server):
    found = Scene(pulsar_server)
    yield found
    found.close()


@pytest.fixture
def penstock_only(pulsar):
    """For what only Penstock has, or a test cannot do to a server that others use."""
    if pulsar.is_real:
        pytest.skip("a broker of its own is needed, and Apache's is shared by the tests")
