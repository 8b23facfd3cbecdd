"""A real broker process with RocketMQ's listeners, and clients that close by themselves."""

import pytest

from penstock.cli.remoting import RemotingClient
from penstock.testing.running import running_broker


@pytest.fixture(scope="session")
def rocketmq_broker():
    """A broker on free ports for all tests of a run: use topics and groups of your own."""
    with running_broker() as broker:
        yield broker


@pytest.fixture
def connect(rocketmq_broker):
    """Make clients of the broker port, or of another listener: ``connect("rocketmq")``."""
    clients = []

    def make(listener="rocketmq_broker", **options):
        client = RemotingClient(*rocketmq_broker.address(listener), **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect):
    """One client of the broker port."""
    return connect()
