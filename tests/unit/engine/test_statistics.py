"""Numbers for observers."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.statistics import LABELS_MAX, NAMES_MAX, CounterFamilies
from penstock.engine.topic import Overflow, TopicPolicy
from penstock.flow.demand import Window
from penstock.model.record import Record, Shape

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


# Counters of adapters: shown as they are, and bounded.


def test_what_is_shown_is_read_as_it_is_now():
    counter_families, counts = CounterFamilies(), {"found": 1}
    counter_families.register("pulls", "Pulls", "status", counts)
    counts["found"] += 1
    (family,) = counter_families
    assert (family.name, family.label, family.counts) == ("pulls", "status", {"found": 2})
    assert family.counts is not counts


def test_a_name_is_shown_once():
    counter_families = CounterFamilies()
    counter_families.register("pulls", "Pulls", "status", {"old": 1})
    counter_families.register("pulls", "Pulls", "status", {"new": 1})
    assert [family.counts for family in counter_families] == [{"new": 1}]


def test_names_and_labels_are_bounded():
    counter_families = CounterFamilies()
    for number in range(NAMES_MAX + 10):
        counter_families.register(
            f"n{number}", "", "label", dict.fromkeys(map(str, range(LABELS_MAX + 10)), 1)
        )
    found = list(counter_families)
    assert len(found) == NAMES_MAX
    assert all(len(family.counts) == LABELS_MAX for family in found)


class Nowhere:
    """A route that leads to no queue."""

    steps = 1
    is_constant = True

    def targets(self, record):
        return ()


def test_a_batch_counts_all_its_messages():
    bench = Workbench()
    topic = bench.topic()
    channel = bench.channel()
    bench.publish(channel, topic, Record(b"x" * 2_000, Shape(messages=1_000)), b"single")
    bench.settle()
    bench.publish(channel, topic, b"single", Record(b"x" * 2_000, Shape(messages=10)))
    bench.publish(channel, Nowhere(), Record(b"x" * 2_000, Shape(messages=100)))
    bench.settle()
    found = bench.engine.statistics()
    assert (found.published, found.confirmed, found.routed) == (1_112, 1_112, 1_012)
    assert found.unroutable_dropped == 100


def test_a_refused_batch_counts_all_its_messages():
    bench = Workbench()
    topic = bench.topic(policy=TopicPolicy(length_max=5, overflow=Overflow.REJECT))
    bench.reader(topic)
    channel = bench.channel()
    bench.publish(channel, topic, Record(b"x" * 2_000, Shape(messages=10)))
    bench.settle()
    bench.publish(channel, topic, Record(b"x" * 2_000, Shape(messages=7)), b"single")
    bench.settle()
    found = bench.engine.statistics()
    assert sum(found.refused.values()) + found.confirmed == found.published == 18
    assert sum(found.refused.values()) >= 8
