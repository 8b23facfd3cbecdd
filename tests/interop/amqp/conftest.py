"""A real broker with an AMQP listener for RabbitMQ's clients: use queue names of your own.

``PENSTOCK_TEST_RABBITMQ=1`` runs these tests against RabbitMQ itself (Debian's package): what they
expect is what it does.
"""

import os
import uuid

import pytest

from kit.amqp.rabbitmq import rabbitmq
from penstock.testing.running import running_broker


@pytest.fixture(scope="session")
def address():
    """Host and port of one broker for all tests of a run."""
    if os.environ.get("PENSTOCK_TEST_RABBITMQ"):
        with rabbitmq() as reference:
            yield "127.0.0.1", reference.port
    else:
        with running_broker() as broker:
            yield broker.address("amqp")


@pytest.fixture(scope="session")
def url(address):
    """Where clients dial."""
    host, port = address
    return f"amqp://guest:guest@{host}:{port}//"


@pytest.fixture
def name():
    """For a queue, an exchange or a topic of this test alone."""
    return f"t-{uuid.uuid4().hex[:12]}"
