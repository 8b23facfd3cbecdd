"""Numbers for observers."""

import pytest

from penstock.engine.subscription_options import SubscriptionOptions
from penstock.flow.demand import Window
from penstock.testing.workbench import Workbench

KIB = 1024


@pytest.fixture
def bench():
    return Workbench()


def test_statistics_count_what_happened(bench):
    topic, channel = bench.topic(), bench.channel()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    subscription.attach(bench.outlet, Window(2), name="c")
    bench.publish(channel, topic, b"a", b"b", b"c")
    bench.settle()
    stats = bench.engine.statistics()
    (numbers,) = stats.topics
    assert (stats.published, stats.confirmed, stats.routed) == (3, 3, 3)
    assert (numbers.messages_in, numbers.ready, numbers.unacked) == (3, 1, 2)
    assert numbers.backlog_bytes > 0
    bench.advance(1_000)
    assert bench.engine.statistics().topics[0].oldest_age_ms == 1_000
