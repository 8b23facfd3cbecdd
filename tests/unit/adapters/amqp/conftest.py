"""What most tests of the AMQP adapter begin with: a broker in memory, and a client of it."""

import pytest

from kit.amqp.peer import AmqpBench


@pytest.fixture
def bench():
    return AmqpBench()


@pytest.fixture
def peer(bench):
    return bench.client()


@pytest.fixture
def client(peer):
    return peer
