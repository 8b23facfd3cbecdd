"""What most tests of the Pulsar adapter begin with: a broker in memory, and a client of it."""

import pytest

from kit.pulsar.bench import PulsarBench


@pytest.fixture
def bench():
    return PulsarBench()


@pytest.fixture
def client(bench):
    return bench.client()
