"""What the client is tested against: Penstock, or with ``--real-rocketmq`` Apache RocketMQ 5.3.

Tests here take ``cluster`` (shared: use names made by ``unique``) or ``own_cluster`` (may be
killed). They know nothing of which broker it is, except through ``cluster.is_apache``.
"""

import contextlib
import itertools
import os

import pytest

from kit.rocketmq.clusters import Unavailable, apache_cluster, free_ports, penstock_cluster
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef
from penstock.testing.running import eventually as wait_for

NUMBERS = itertools.count(1)
MISSING = []
"""Why Apache's cannot be had, once that is known: nobody waits for the same answer twice."""


@contextlib.contextmanager
def running_cluster(config):
    if not config.getoption("--real-rocketmq"):
        with penstock_cluster() as cluster:
            yield cluster
        return
    if MISSING:
        pytest.skip(MISSING[0])
    with contextlib.ExitStack() as stack:
        try:
            cluster = stack.enter_context(apache_cluster())
        except Unavailable as why:
            MISSING.append(f"Apache RocketMQ cannot be had here: {why}")
            pytest.skip(MISSING[0])
        yield cluster


@pytest.fixture(scope="session")
def cluster(request):
    """A running name server and broker for all tests of this process."""
    with running_cluster(request.config) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(request):
    """The same for this test alone: it may ``kill()`` and ``start()`` it."""
    with running_cluster(request.config) as cluster:
        yield cluster


@pytest.fixture
def penstock_only(request):
    """For tests of what only Penstock can do; say in the test's docstring what that is."""
    if request.config.getoption("--real-rocketmq"):
        pytest.skip("only Penstock can do this")


@pytest.fixture
def unique():
    """Make a name that no other test uses: ``unique("orders")``."""

    def make(stem="t"):
        return f"{stem}-{os.getpid()}-{next(NUMBERS)}"

    return make


@pytest.fixture
def topic(cluster, unique):
    """A new topic with four queues."""
    name = unique("topic")
    cluster.create_topic(name, 4)
    return name


@pytest.fixture
def group(unique):
    """A group name of its own."""
    return unique("group")


@pytest.fixture
def unused_port():
    """A port on which nobody listens."""
    return free_ports(1)[0]


@pytest.fixture
def eventually():
    """Wait for a condition: ``eventually(lambda: got == 3, seconds=10, what="three came")``."""
    return wait_for


@pytest.fixture
def read_topic(cluster):
    """Wait until a topic holds so many messages: ``read_topic(topic, 3)``; queue by queue."""

    def pull(client, topic):
        found = []
        for queue in range(4):
            offset = 0
            while (answer := client.pull(topic, queue, offset)).is_ok:
                place = QueueRef(topic, "", queue)
                found += [ReceivedMessage(each, place) for each in answer.messages]
                offset = answer.number("nextBeginOffset")
        return found

    def wait(topic, count, seconds=20):
        with cluster.connect() as client:
            wait_for(lambda: len(pull(client, topic)) >= count, seconds, f"{count} in {topic}")
            found = pull(client, topic)
        assert len(found) == count
        return found

    return wait
