"""A broker in the test's hands, and somebody with a password who asks it."""

import pytest

from kit.amqp.management_tool import ManagementTool
from kit.amqp.peer import AmqpBench


@pytest.fixture
def bench():
    return AmqpBench()


@pytest.fixture
def tool(bench):
    return ManagementTool(bench)
