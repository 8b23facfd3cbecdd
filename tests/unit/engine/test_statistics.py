"""Numbers for observers."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.statistics import LABELS_MAX, NAMES_MAX, Tallies
from penstock.flow.demand import Window

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


# ---- tallies ------------------------------------------------------------------------------------
# Counters of adapters: shown as they are, and bounded.


def test_what_is_shown_is_read_as_it_is_now():
    tallies, counts = Tallies(), {"found": 1}
    tallies.show("pulls", "Pulls", "status", counts)
    counts["found"] += 1
    (tally,) = tallies
    assert (tally.name, tally.label, tally.counts) == ("pulls", "status", {"found": 2})
    assert tally.counts is not counts


def test_a_name_is_shown_once():
    tallies = Tallies()
    tallies.show("pulls", "Pulls", "status", {"old": 1})
    tallies.show("pulls", "Pulls", "status", {"new": 1})
    assert [tally.counts for tally in tallies] == [{"new": 1}]


def test_names_and_labels_are_bounded():
    tallies = Tallies()
    for number in range(NAMES_MAX + 10):
        tallies.show(f"n{number}", "", "label", dict.fromkeys(map(str, range(LABELS_MAX + 10)), 1))
    found = list(tallies)
    assert len(found) == NAMES_MAX
    assert all(len(tally.counts) == LABELS_MAX for tally in found)
