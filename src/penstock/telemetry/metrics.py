"""Prometheus metrics: everything under ``penstock_``, made from statistics at the scrape (B2).

The hot path counts plain integers; nothing of this runs until somebody asks. Topics and
subscriptions are at most ``SERIES_MAX`` labelled objects per scrape: those with the most bytes
behind keep their names, the rest is added up under ``other``, so a broker with 50,000 queues does
not drown its monitoring.

Imports ``prometheus_client`` (0.1 s), so it is itself imported at the first scrape only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.engine.broker import Engine
from penstock.engine.spark.staging import StageCounters
from penstock.engine.spark.views import QuerySnapshot, query_snapshots
from penstock.engine.statistics import CounterFamily, EngineStatistics, TopicStatistics
from penstock.engine.subscription.subscription import SubscriptionStatistics
from penstock.flow.fast_fail import RequestClassStatistics
from penstock.telemetry.statistics import Histogram, ProcessStatistics

SERIES_MAX: Final = 1000
OTHER: Final = "other"

Family = type[CounterMetricFamily] | type[GaugeMetricFamily]
MetricColumn = tuple[str, str, Family, Callable[[Iterable[float]], float]]
Gather = Callable[[], tuple[EngineStatistics, ProcessStatistics]]


class Exposition:
    """The text page of one broker: frozen statistics, queries, and what adapters count."""

    def __init__(
        self, gather: Gather, families: Iterable[CounterFamily] = (), engine: Engine | None = None
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BrokerCollector(gather))
        self._registry.register(AdapterCounterCollector(families))
        if engine is not None:
            self._registry.register(QueryCollector(engine))
            self._registry.register(SinkCollector(engine))

    def page(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class BrokerCollector(Collector):
    """Turns statistics into metric families."""

    def __init__(self, gather: Gather) -> None:
        self._gather = gather

    def collect(self) -> Iterator[Metric]:
        """Everything, freshly looked up."""
        engine, process = self._gather()
        yield from _process(process)
        yield from _flow(engine, process)
        yield from _requests(engine.requests)
        yield from _episodes(process)
        yield from _messages(engine)
        yield from _topics(engine.topics)
        yield from _subscriptions(engine.topics)


def _process(process: ProcessStatistics) -> Iterator[Metric]:
    info = GaugeMetricFamily("penstock_build", "Version that runs", labels=["version"])
    info.add_metric([__version__], 1)
    yield info
    durability = GaugeMetricFamily(
        "penstock_durability", "1 for the durability in force (P3)", labels=["mode"]
    )
    durability.add_metric([process.durability], 1)
    yield durability
    yield _gauge("penstock_connections", "Protocol connections", process.connections)
    yield _gauge("penstock_connections_max", "Places for them", process.connections_max)
    yield _gauge("penstock_http_connections", "HTTP connections", process.http_connections)
    yield _counter("penstock_connections_accepted", "Connections accepted", process.accepted_total)
    yield _counter(
        "penstock_connections_aborted",
        "Connections cut off in their handshake or by a mistake of ours",
        process.aborted_total,
    )
    refused = CounterMetricFamily(
        "penstock_connections_refused",
        "Peers turned away before their first byte",
        labels=["reason"],
    )
    for reason, count in process.refused_total.items():
        refused.add_metric([reason], count)
    yield refused
    yield _gauge("penstock_log_bytes", "Size of all segments", process.log_bytes)
    yield _counter(
        "penstock_log_appended_bytes", "Bytes appended", process.log_bytes_appended_total
    )
    yield _counter(
        "penstock_log_append_failures",
        "Frames the disk did not take; nothing of them is stored",
        process.append_failures_total,
    )
    yield _counter(
        "penstock_log_corrupt_records", "Damaged records found", process.corrupt_records_total
    )
    yield _counter(
        "penstock_turns_paced",
        "Turns that waited for company, up to 0.8 ms (2 ms when none came), at middling rates",
        process.turns_paced_total,
    )
    yield _counter(
        "penstock_syncs_paced",
        "Syncs that waited for company, at most storage.commit_distance_us after the last one",
        process.syncs_paced_total,
    )
    yield _histogram("penstock_fsync_seconds", "Time of one commit", process.sync_seconds)
    yield _histogram(
        "penstock_group_commit_messages", "Messages that shared one commit", process.commit_messages
    )
    yield _histogram(
        "penstock_loop_lag_seconds", "How late the event loop ran a timer", process.lag_seconds
    )


def _requests(columns: Iterable[RequestClassStatistics]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "penstock_requests_waiting", "Requests that wait for the log (F5)", labels=["class"]
    )
    age = GaugeMetricFamily(
        "penstock_request_age_seconds", "Age of the oldest of them", labels=["class"]
    )
    refused = CounterMetricFamily(
        "penstock_requests_refused",
        "Requests answered busy before anything was stored (F5, F6, F7)",
        labels=["class", "cause"],
    )
    for each in columns:
        waiting.add_metric([each.request_class], each.waiting)
        age.add_metric([each.request_class], each.age_ms / 1000)
        for cause, count in each.refused.items():
            refused.add_metric([each.request_class, cause], count)
    yield waiting
    yield age
    yield refused


def _flow(engine: EngineStatistics, process: ProcessStatistics) -> Iterator[Metric]:
    budget = GaugeMetricFamily(
        "penstock_memory_budget_bytes", "Bytes in use of a named limit", labels=["pool"]
    )
    ceiling = GaugeMetricFamily("penstock_memory_budget_max_bytes", "That limit", labels=["pool"])
    for pool, used, limit in (
        ("resident", process.memory_used, process.memory_limit),
        ("inflight", engine.inflight_bytes, process.inflight_bytes_max),
        ("unsent", engine.unsent_bytes, process.unsent_bytes_max),
        ("unsynced", engine.unsynced_bytes, process.unsynced_bytes_max),
    ):
        budget.add_metric([pool], used)
        ceiling.add_metric([pool], limit)
    yield budget
    yield ceiling
    yield _gauge("penstock_disk_free_bytes", "Free disk", process.disk_free)
    yield _gauge("penstock_disk_free_limit_bytes", "Publishers wait below", process.disk_limit)
    yield _gauge("penstock_unsynced_bytes", "Appended, not durable", engine.unsynced_bytes)
    yield _gauge("penstock_unsynced_messages", "Appended, not durable", engine.unsynced_messages)
    yield _gauge("penstock_write_buffers_free", "Write buffers free (F7)", engine.free_buffers)
    alarm = GaugeMetricFamily("penstock_alarm", "1 while raised (F3)", labels=["alarm"])
    alarm.add_metric(["memory"], engine.is_memory_alarmed)
    alarm.add_metric(["disk"], engine.is_disk_alarmed)
    yield alarm
    held = GaugeMetricFamily("penstock_log_held", "1 while nothing is written", labels=["why"])
    held.add_metric(["sync"], engine.is_log_held)
    held.add_metric(["busy"], engine.is_store_busy)
    held.add_metric(["failed"], engine.is_failed)
    yield held
    yield _gauge(
        "penstock_connections_held", "Connections whose gate is closed", engine.connections_held
    )
    credit = GaugeMetricFamily(
        "penstock_flow_credit",
        "Least credit left on a hop (F1); 0 = somebody waits",
        labels=["hop"],
    )
    for hop, available in process.credit_min.items():
        credit.add_metric([hop], available)
    yield credit


def _episodes(process: ProcessStatistics) -> Iterator[Metric]:
    labels = ["stage", "reason"]
    stalled = CounterMetricFamily(
        "penstock_flow_stalled_seconds", "Time stages were held", labels=labels
    )
    for (stage, reason), spent_ms in sorted(process.stalled_ms_total.items()):
        stalled.add_metric([stage, reason], spent_ms / 1000)
    yield stalled
    episodes = CounterMetricFamily(
        "penstock_flow_episodes", "Episodes in which stages were held", labels=labels
    )
    for (stage, reason), count in sorted(process.episodes_total.items()):
        episodes.add_metric([stage, reason], count)
    yield episodes
    events = CounterMetricFamily(
        "penstock_flow_events", "Edges of episodes told in penstock.flow", labels=["outcome"]
    )
    events.add_metric(["appended"], process.events_appended_total)
    events.add_metric(["dropped"], process.events_dropped_total)
    yield events


def _messages(engine: EngineStatistics) -> Iterator[Metric]:
    yield _counter("penstock_messages_published", "Publishes that came in", engine.published)
    yield _counter("penstock_messages_confirmed", "Publishes confirmed", engine.confirmed)
    yield _counter("penstock_messages_routed", "Copies handed to queues", engine.routed)
    unroutable = CounterMetricFamily(
        "penstock_messages_unroutable",
        "Publishes that no queue was there for, each counted once",
        labels=["outcome"],
    )
    unroutable.add_metric(["dropped"], engine.unroutable_dropped)
    unroutable.add_metric(["returned"], engine.unroutable_returned)
    yield unroutable
    yield _counter("penstock_published_bytes", "Bytes of admitted publishes", engine.bytes_in)
    refused = CounterMetricFamily(
        "penstock_messages_refused", "Publishes not stored", labels=["reason"]
    )
    for kind, count in engine.refused.items():
        refused.add_metric([kind.value], count)
    yield refused
    yield _gauge(
        "penstock_messages_draining", "Held publishes of closed channels (D23)", engine.draining
    )
    yield _counter(
        "penstock_messages_dropped_after_close",
        "Held publishes of closed channels that were dropped in the end",
        engine.dropped_after_close,
    )
    yield _counter("penstock_settlements", "Settlements saved", engine.settlements)
    yield _counter("penstock_messages_dead_lettered", "Dead letters", engine.dead_letters)
    yield _counter(
        "penstock_messages_died", "Deaths without a dead-letter target", engine.deaths_dropped
    )
    yield _counter("penstock_messages_released", "Delayed ones released", engine.released)
    yield _gauge("penstock_messages_delayed", "Delayed ones held in memory", engine.delayed)
    yield _gauge("penstock_pulls_held", "Pulls that wait for a message (F12)", engine.held_pulls)
    yield _gauge("penstock_channels", "Open channels", engine.channels)
    yield _counter("penstock_turns", "Turns of the engine", engine.turns)
    yield _gauge("penstock_topics", "Topics", len(engine.topics))
    yield _gauge(
        "penstock_non_persistent_topics", "Topics without a log", len(engine.non_persistent)
    )
    yield _counter(
        "penstock_non_persistent_messages",
        "Messages published to topics without a log",
        engine.non_persistent_published,
    )
    yield _counter(
        "penstock_non_persistent_dropped",
        "Of those, how many nobody took, once for each subscription",
        engine.non_persistent_dropped,
    )


def _topics(topics: Sequence[TopicStatistics]) -> Iterator[Metric]:
    shown = sorted(topics, key=lambda topic: topic.backlog_bytes, reverse=True)
    named, rest = shown[:SERIES_MAX], shown[SERIES_MAX:]
    yield from _labelled(
        ("topic",),
        [((topic.name,), _topic_row(topic)) for topic in named],
        [_topic_row(topic) for topic in rest],
        _TOPIC_COLUMNS,
    )


def _subscriptions(topics: Sequence[TopicStatistics]) -> Iterator[Metric]:
    pairs = [(topic.name, each) for topic in topics for each in topic.subscriptions]
    pairs.sort(key=lambda pair: pair[1].backlog_bytes, reverse=True)
    named, rest = pairs[:SERIES_MAX], pairs[SERIES_MAX:]
    yield from _labelled(
        ("topic", "subscription"),
        [((topic, each.name), _subscription_row(each)) for topic, each in named],
        [_subscription_row(each) for _, each in rest],
        _SUBSCRIPTION_COLUMNS,
    )


_TOPIC_COLUMNS: Final[tuple[MetricColumn, ...]] = (
    ("penstock_topic_messages_in", "Messages ever appended", CounterMetricFamily, sum),
    ("penstock_topic_messages_ready", "Not given to the slowest holder", GaugeMetricFamily, sum),
    ("penstock_topic_messages_unacked", "Delivered, not settled", GaugeMetricFamily, sum),
    ("penstock_topic_backlog_bytes", "Bytes behind the slowest holder", GaugeMetricFamily, sum),
    ("penstock_topic_oldest_age_seconds", "Age of the oldest unsettled", GaugeMetricFamily, max),
)
"""(name, help, family, how the rest is put together) in the order of ``_topic_row``."""

_SUBSCRIPTION_COLUMNS: Final[tuple[MetricColumn, ...]] = (
    ("penstock_subscription_messages_ready", "Could be delivered now", GaugeMetricFamily, sum),
    ("penstock_subscription_messages_unacked", "Delivered, not settled", GaugeMetricFamily, sum),
    ("penstock_subscription_backlog_bytes", "Bytes from its low mark on", GaugeMetricFamily, sum),
    ("penstock_subscription_consumers", "Consumers attached", GaugeMetricFamily, sum),
    ("penstock_subscription_settled", "Messages settled", CounterMetricFamily, sum),
    ("penstock_subscription_redelivered", "Handed over again", CounterMetricFamily, sum),
    ("penstock_subscription_lost", "Records that could not be read", CounterMetricFamily, sum),
)


def _topic_row(topic: TopicStatistics) -> tuple[float, ...]:
    age = topic.oldest_age_ms / 1000
    return (topic.messages_in, topic.ready, topic.unacked, topic.backlog_bytes, age)


def _subscription_row(each: SubscriptionStatistics) -> tuple[float, ...]:
    return (
        each.ready,
        each.unacked,
        each.backlog_bytes,
        each.consumers,
        each.settled,
        each.redelivered,
        each.lost,
    )


def _labelled(
    labels: Sequence[str],
    named: Sequence[tuple[tuple[str, ...], tuple[float, ...]]],
    rest: Sequence[tuple[float, ...]],
    columns: Iterable[MetricColumn],
) -> Iterator[Metric]:
    for column, (name, text, kind, combine) in enumerate(columns):
        family = kind(name, text, labels=list(labels))
        for values, row in named:
            family.add_metric(list(values), row[column])
        if rest:
            family.add_metric([OTHER] * len(labels), combine(row[column] for row in rest))
        yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text)
    family.add_metric([], histogram.buckets(), histogram.sum)
    return family


# ---- query metrics ------------------------------------------------------------------------------
# Metrics of Spark queries (F18): how far behind each is, how fast, what is kept, who waits.
#
# At most ``QUERIES_MAX`` queries are named per scrape, those furthest behind first.


QUERIES_MAX: Final = 200

_GAUGES: Final[tuple[tuple[str, str, Callable[[QuerySnapshot], float]], ...]] = (
    ("penstock_query_lag_messages", "Messages not processed", lambda each: each.lag_messages),
    ("penstock_query_lag_bytes", "Log bytes not processed", lambda each: each.lag_bytes),
    ("penstock_query_lag_seconds", "Age of the oldest of them", lambda each: each.lag_seconds),
    ("penstock_query_drain_messages", "Processed a second", lambda each: each.messages_per_s),
    ("penstock_query_lease_bytes", "Log bytes its lease keeps", lambda each: each.lease_bytes),
    ("penstock_query_holding", "1 while publishers wait for it", lambda each: bool(each.held)),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[QuerySnapshot], float]], ...]] = (
    ("penstock_query_retried", "Rows of a flow tried again later", lambda each: each.retried),
    ("penstock_query_dead_letters", "Rows of a flow that are dead", lambda each: each.dead),
)


class QueryCollector(Collector):
    """Queries of one engine, looked up at the scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Everything, freshly looked up."""
        queries = self._engine.queries
        snapshots = query_snapshots(queries, self._engine.clock.monotonic_ms(), queries.wall_ms)
        yield GaugeMetricFamily("penstock_queries", "Spark queries", value=len(snapshots))
        yield GaugeMetricFamily(
            "penstock_polls_held", "Their polls that wait", value=queries.polls_held
        )
        snapshots.sort(key=lambda each: each.lag_bytes, reverse=True)
        for name, text, value_of in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["query"])
            for each in snapshots[:QUERIES_MAX]:
                gauge.add_metric([each.name], value_of(each))
            yield gauge
        for name, text, value_of in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["query"])
            for each in snapshots[:QUERIES_MAX]:
                counter.add_metric([each.name], value_of(each))
            yield counter
        share = GaugeMetricFamily(
            "penstock_query_batch_seconds", "Its last batch, by part", labels=["query", "part"]
        )
        for each in snapshots[:QUERIES_MAX]:
            for part in ("batch", "read", "transform", "sink"):
                share.add_metric(
                    [each.name, part], float(str(each.last_batch[f"{part}_ms"])) / 1000
                )
        yield share
        broken = CounterMetricFamily(
            "penstock_leases_broken", "Leases that passed a bound", labels=["cause"]
        )
        for cause in ("silence", "bytes"):
            broken.add_metric([cause], queries.registry.leases_broken[cause])
        yield broken


# ---- sink metrics -------------------------------------------------------------------------------
# What Spark's sinks write (D19): staged, committed, repeated, waiting.


_SINK_COUNTERS: Final[tuple[tuple[str, str, Callable[[StageCounters], int]], ...]] = (
    ("penstock_sink_commits", "Batches that became visible", lambda each: each.commits),
    ("penstock_sink_rows", "Their rows", lambda each: each.rows),
    ("penstock_sink_bytes", "Their bytes in the log", lambda each: each.bytes),
    ("penstock_sink_replays", "Batches that came again, dropped", lambda each: each.replays),
    (
        "penstock_sink_replays_changed",
        "Those of them with another number of rows than before",
        lambda each: each.replays_changed,
    ),
    (
        "penstock_sink_rewound",
        "Batches refused because of their checkpoint",
        lambda each: each.rewound,
    ),
    ("penstock_sink_aborted", "Puts that an abort dropped", lambda each: each.aborted),
    ("penstock_sink_expired", "Batches that nobody committed in time", lambda each: each.expired),
    ("penstock_sink_holds", "Puts that had to wait", lambda each: each.holds),
)


class SinkCollector(Collector):
    """Sinks of one engine, looked up at the scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Everything, freshly looked up."""
        staged = self._engine.staged
        for name, text, count_of in _SINK_COUNTERS:
            yield CounterMetricFamily(name, text, value=count_of(staged.counters))
        for name, text, value in (
            ("penstock_stage_bytes", "Rows staged and not committed", staged.size_bytes),
            ("penstock_sink_commits_waiting", "Commits under way or held", staged.commits_waiting),
            ("penstock_sink_puts_held", "Puts that wait for room", staged.puts_held),
        ):
            yield GaugeMetricFamily(name, text, value=value)


# ---- counters of adapters -----------------------------------------------------------------------
# ``penstock_<name>_total`` with one label, read at the scrape from what adapters show
# (``engine/statistics.py``).


class AdapterCounterCollector(Collector):
    """Turns what adapters count into metric families."""

    def __init__(self, families: Iterable[CounterFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Everything that is shown now."""
        for each in self._families:
            family = CounterMetricFamily(f"penstock_{each.name}", each.text, labels=[each.label])
            for label, count in each.counts.items():
                family.add_metric([label], count)
            yield family
