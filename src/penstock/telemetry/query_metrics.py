"""Metrics of Spark queries (F18): how far behind each is, how fast, what is kept, who waits.

At most ``QUERIES_MAX`` queries are named per scrape, those furthest behind first.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.engine.broker import Engine
from penstock.engine.spark.views import QueryPage, query_pages

QUERIES_MAX: Final = 200

_GAUGES: Final[tuple[tuple[str, str, Callable[[QueryPage], float]], ...]] = (
    ("penstock_query_lag_messages", "Messages not processed", lambda each: each.lag_messages),
    ("penstock_query_lag_bytes", "Log bytes not processed", lambda each: each.lag_bytes),
    ("penstock_query_lag_seconds", "Age of the oldest of them", lambda each: each.lag_seconds),
    ("penstock_query_drain_messages", "Processed a second", lambda each: each.messages_per_s),
    ("penstock_query_lease_bytes", "Log bytes its lease keeps", lambda each: each.lease_bytes),
    ("penstock_query_holding", "1 while publishers wait for it", lambda each: bool(each.held)),
)


class QueryCollector(Collector):
    """Queries of one engine, looked up at the scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Everything, freshly looked up."""
        desk = self._engine.queries
        pages = query_pages(desk, self._engine.clock.monotonic_ms(), desk.wall_ms)
        yield GaugeMetricFamily("penstock_queries", "Spark queries", value=len(pages))
        yield GaugeMetricFamily(
            "penstock_polls_held", "Their polls that wait", value=desk.polls_held
        )
        pages.sort(key=lambda each: each.lag_bytes, reverse=True)
        for name, text, figure in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["query"])
            for each in pages[:QUERIES_MAX]:
                gauge.add_metric([each.name], figure(each))
            yield gauge
        share = GaugeMetricFamily(
            "penstock_query_batch_seconds", "Its last batch, by part", labels=["query", "part"]
        )
        for each in pages[:QUERIES_MAX]:
            for part in ("batch", "read", "transform", "sink"):
                share.add_metric(
                    [each.name, part], float(str(each.last_batch[f"{part}_ms"])) / 1000
                )
        yield share
        broken = CounterMetricFamily(
            "penstock_leases_broken", "Leases that passed a bound", labels=["cause"]
        )
        for cause in ("silence", "bytes"):
            broken.add_metric([cause], desk.book.leases_broken[cause])
        yield broken
