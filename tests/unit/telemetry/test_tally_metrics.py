"""Counters of adapters on the page of metrics."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from penstock.engine.statistics import Tallies
from penstock.telemetry.tally_metrics import TallyCollector
from penstock.testing.rocketmq_bench import RocketmqBench
from penstock.testing.rocketmq_consumer import BenchConsumer


def page(tallies):
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TallyCollector(tallies))
    return generate_latest(registry).decode()


def test_what_is_counted_later_is_on_the_next_page():
    tallies, counts = Tallies(), {}
    tallies.show("pulls", "Pulls so far", "status", counts)
    assert "penstock_pulls_total{" not in page(tallies)
    counts["FOUND"] = 3
    text = page(tallies)
    assert "# HELP penstock_pulls_total Pulls so far" in text
    assert 'penstock_pulls_total{status="FOUND"} 3.0' in text


def test_corrected_offsets_of_rocketmq_are_on_the_page():
    bench = RocketmqBench()
    bench.topic("orders")
    BenchConsumer.on(bench).pull("orders", 9)
    text = page(bench.engine.tallies)
    assert 'penstock_rocketmq_offset_moves_total{status="NO_MESSAGE_IN_QUEUE"} 1.0' in text
    assert 'penstock_rocketmq_pulls_total{status="NO_MESSAGE_IN_QUEUE"} 1.0' in text
    assert 'penstock_rocketmq_group_events_total{kind="joined"} 0.0' in text
