"""Counters of adapters as Prometheus metrics: ``penstock_<name>_total`` with one label.

Read at the scrape from what adapters show (``engine/statistics.py``). Imports ``prometheus_client``,
so it is itself imported at the first scrape only, as ``metrics.py``.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.engine.statistics import Tally


class TallyCollector(Collector):
    """Turns what adapters count into metric families."""

    def __init__(self, tallies: Iterable[Tally]) -> None:
        self._tallies = tallies

    def collect(self) -> Iterator[Metric]:
        """Everything that is shown now."""
        for tally in self._tallies:
            family = CounterMetricFamily(f"penstock_{tally.name}", tally.text, labels=[tally.label])
            for label, count in tally.counts.items():
                family.add_metric([label], count)
            yield family
