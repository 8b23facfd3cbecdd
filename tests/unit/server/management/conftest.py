"""A broker in the test's hands, and somebody with a password who asks it."""

import pytest

from penstock.testing.amqp_peer import AmqpBench
from penstock.testing.management_tool import ManagementTool


@pytest.fixture
def bench():
    return AmqpBench()


@pytest.fixture
def tool(bench):
    return ManagementTool(bench)
