"""Prometheus metrics: everything under ``penstock_``, made from statistics at the scrape (B2).

The hot path counts plain integers; nothing of this runs until somebody asks. Totals are always
there. Topics and subscriptions are at most ``SERIES_MAX`` labelled objects per scrape, unless all
are asked for: what findings speak of and those with the most bytes behind keep their names, the
rest is added up under ``other``, so a broker with 50,000 queues does not drown its monitoring.

The page is made in steps (a generator that yields how much it did), because with so many topics it
takes a tenth of a second: whoever drives it lets others have their turns in between. Written as
text by ourselves: a library would want all of it at once.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappush, heappushpop
from itertools import chain
from typing import Final, Literal
from urllib.parse import unquote

from penstock import __version__
from penstock.engine.broker import Engine
from penstock.engine.spark.staging import StageCounters
from penstock.engine.spark.views import QuerySnapshot, query_snapshots
from penstock.engine.statistics import CounterFamily, EngineStatistics, TopicStatistics
from penstock.engine.subscription.subscription import SubscriptionStatistics
from penstock.flow.fast_fail import RequestClassStatistics
from penstock.model.names import topic_of_id
from penstock.model.steps import Steps
from penstock.telemetry.statistics import Histogram, ProcessStatistics

SERIES_MAX: Final = 1000
OTHER: Final = "other"
LINES_A_STEP: Final = 10
"""Lines of text that cost as much as a look at a topic: a step."""

Kind = Literal["counter", "gauge", "histogram"]
MetricColumn = tuple[str, str, Kind, Callable[[Iterable[float]], float]]
Labels = tuple[str, ...]
Row = tuple[float, ...]


class Family:
    """One metric: its head and its lines, in the Prometheus text format."""

    __slots__ = ("_labels", "_name", "lines")

    def __init__(self, kind: Kind, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name = f"{name}_total" if kind == "counter" else name
        self._labels = tuple(labels)
        told = text.replace("\\", "\\\\").replace("\n", "\\n")
        self.lines = [f"# HELP {self._name} {told}\n", f"# TYPE {self._name} {kind}\n"]

    def add(self, values: Labels, value: float, suffix: str = "") -> None:
        labels = label_text(self._labels, values) if values else ""
        self.lines.append(f"{self._name}{suffix}{labels} {float(value)!r}\n")

    def add_prepared(self, labels: str, value: float) -> None:
        """With labels that are text already."""
        self.lines.append(f"{self._name}{labels} {float(value)!r}\n")


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """``{topic="orders"}``."""
    pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Exposition:
    """The text page of one broker: frozen statistics, queries, and what adapters count."""

    def __init__(
        self, families: Iterable[CounterFamily] = (), engine: Engine | None = None
    ) -> None:
        self._families = families
        self._engine = engine

    def steps(
        self,
        engine: EngineStatistics,
        process: ProcessStatistics,
        topics: Iterable[TopicStatistics | float],
        *,
        named: Collection[str] = (),
        is_all: bool = False,
    ) -> Steps[list[bytes]]:
        """All metrics as pieces of text; ``topics`` is looked at one by one.

        A number among them is steps that it took to look at the next one.
        ``named``: ids of what must keep its name, whatever its backlog.
        """
        series = TopicSeries(named, None if is_all else SERIES_MAX)
        count = 0
        for topic in topics:
            if isinstance(topic, float):
                yield topic
                continue
            yield from series.add(topic)
            count += 1
            yield 1
        pieces: list[bytes] = []
        for family in chain(self._fixed(engine, process), _topic_counts(count, series)):
            pieces.append("".join(family.lines).encode())
            yield 1 + len(family.lines) / LINES_A_STEP
        for families in (series.topics, series.subscriptions):
            for lines, steps in families.lines():
                pieces.append("".join(lines).encode())
                yield steps
        return pieces

    def _fixed(self, engine: EngineStatistics, process: ProcessStatistics) -> Iterator[Family]:
        """What there is however many topics there are."""
        yield from _process(process)
        yield from _flow(engine, process)
        yield from _requests(engine.requests)
        yield from _episodes(process)
        yield from _messages(engine)
        yield from adapter_counters(self._families)
        if self._engine is not None:
            yield from query_families(self._engine)
            yield from sink_families(self._engine)


def _process(process: ProcessStatistics) -> Iterator[Family]:
    info = Family("gauge", "penstock_build", "Version that runs", labels=["version"])
    info.add((__version__,), 1)
    yield info
    durability = Family(
        "gauge", "penstock_durability", "1 for the durability in force (P3)", labels=["mode"]
    )
    durability.add((process.durability,), 1)
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
    refused = Family(
        "counter",
        "penstock_connections_refused",
        "Peers turned away before their first byte",
        labels=["reason"],
    )
    for reason, count in process.refused_total.items():
        refused.add((reason,), count)
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


def _requests(columns: Iterable[RequestClassStatistics]) -> Iterator[Family]:
    waiting = Family(
        "gauge",
        "penstock_requests_waiting",
        "Requests that wait for the log (F5)",
        labels=["class"],
    )
    age = Family(
        "gauge", "penstock_request_age_seconds", "Age of the oldest of them", labels=["class"]
    )
    refused = Family(
        "counter",
        "penstock_requests_refused",
        "Requests answered busy before anything was stored (F5, F6, F7)",
        labels=["class", "cause"],
    )
    for each in columns:
        waiting.add((each.request_class,), each.waiting)
        age.add((each.request_class,), each.age_ms / 1000)
        for cause, count in each.refused.items():
            refused.add((each.request_class, cause), count)
    yield waiting
    yield age
    yield refused


def _flow(engine: EngineStatistics, process: ProcessStatistics) -> Iterator[Family]:
    budget = Family(
        "gauge", "penstock_memory_budget_bytes", "Bytes in use of a named limit", labels=["pool"]
    )
    ceiling = Family("gauge", "penstock_memory_budget_max_bytes", "That limit", labels=["pool"])
    for pool, used, limit in (
        ("resident", process.memory_used, process.memory_limit),
        ("inflight", engine.inflight_bytes, process.inflight_bytes_max),
        ("unsent", engine.unsent_bytes, process.unsent_bytes_max),
        ("unsynced", engine.unsynced_bytes, process.unsynced_bytes_max),
    ):
        budget.add((pool,), used)
        ceiling.add((pool,), limit)
    yield budget
    yield ceiling
    yield _gauge("penstock_disk_free_bytes", "Free disk", process.disk_free)
    yield _gauge("penstock_disk_free_limit_bytes", "Publishers wait below", process.disk_limit)
    yield _gauge("penstock_unsynced_bytes", "Appended, not durable", engine.unsynced_bytes)
    yield _gauge("penstock_unsynced_messages", "Appended, not durable", engine.unsynced_messages)
    yield _gauge("penstock_write_buffers_free", "Write buffers free (F7)", engine.free_buffers)
    alarm = Family("gauge", "penstock_alarm", "1 while raised (F3)", labels=["alarm"])
    alarm.add(("memory",), engine.is_memory_alarmed)
    alarm.add(("disk",), engine.is_disk_alarmed)
    yield alarm
    held = Family("gauge", "penstock_log_held", "1 while nothing is written", labels=["why"])
    held.add(("sync",), engine.is_log_held)
    held.add(("busy",), engine.is_store_busy)
    held.add(("failed",), engine.is_failed)
    yield held
    yield _gauge(
        "penstock_connections_held", "Connections whose gate is closed", engine.connections_held
    )
    credit = Family(
        "gauge",
        "penstock_flow_credit",
        "Least credit left on a hop (F1); 0 = somebody waits",
        labels=["hop"],
    )
    for hop, available in process.credit_min.items():
        credit.add((hop,), available)
    yield credit


def _episodes(process: ProcessStatistics) -> Iterator[Family]:
    labels = ["stage", "reason"]
    stalled = Family(
        "counter", "penstock_flow_stalled_seconds", "Time stages were held", labels=labels
    )
    for (stage, reason), spent_ms in sorted(process.stalled_ms_total.items()):
        stalled.add((stage, reason), spent_ms / 1000)
    yield stalled
    episodes = Family(
        "counter", "penstock_flow_episodes", "Episodes in which stages were held", labels=labels
    )
    for (stage, reason), count in sorted(process.episodes_total.items()):
        episodes.add((stage, reason), count)
    yield episodes
    events = Family(
        "counter",
        "penstock_flow_events",
        "Edges of episodes told in penstock.flow",
        labels=["outcome"],
    )
    events.add(("appended",), process.events_appended_total)
    events.add(("dropped",), process.events_dropped_total)
    yield events


def _messages(engine: EngineStatistics) -> Iterator[Family]:
    yield _counter("penstock_messages_published", "Publishes that came in", engine.published)
    yield _counter("penstock_messages_confirmed", "Publishes confirmed", engine.confirmed)
    yield _counter("penstock_messages_routed", "Copies handed to queues", engine.routed)
    unroutable = Family(
        "counter",
        "penstock_messages_unroutable",
        "Publishes that no queue was there for, each counted once",
        labels=["outcome"],
    )
    unroutable.add(("dropped",), engine.unroutable_dropped)
    unroutable.add(("returned",), engine.unroutable_returned)
    yield unroutable
    yield _counter("penstock_published_bytes", "Bytes of admitted publishes", engine.bytes_in)
    refused = Family(
        "counter", "penstock_messages_refused", "Publishes not stored", labels=["reason"]
    )
    for kind, count in engine.refused.items():
        refused.add((kind.value,), count)
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
    yield _gauge(
        "penstock_non_persistent_topics", "Topics without a log", engine.non_persistent_topics
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


# ---- topics and subscriptions -------------------------------------------------------------------


class TopicSeries:
    """Rows of topics and subscriptions: some keep their names, the rest is added up."""

    def __init__(self, named: Collection[str], series_max: int | None) -> None:
        parts = [each.split("/") for each in named]
        self._topic_names = {_topic_of(each[1]) for each in parts if each[0] in _OF_TOPICS}
        self._reader_names = {
            (_topic_of(each[1]), unquote(each[2]))
            for each in parts
            if each[0] == "sub" and len(each) == 3
        }
        self.topics: Final = Series(("topic",), _TOPIC_COLUMNS, series_max)
        self.subscriptions: Final = Series(
            ("topic", "subscription"), _SUBSCRIPTION_COLUMNS, series_max
        )
        self.ready = self.unacked = self.backlog_bytes = 0
        self.readers = self.consumers = 0
        self.oldest_age_ms = 0

    def add(self, topic: TopicStatistics) -> Iterator[float]:
        """In steps: it may have a thousand subscriptions."""
        self.ready += topic.ready
        self.unacked += topic.unacked
        self.backlog_bytes += topic.backlog_bytes
        self.oldest_age_ms = max(self.oldest_age_ms, topic.oldest_age_ms)
        is_named = topic.name in self._topic_names
        self.topics.add((topic.name,), _topic_row(topic), topic.backlog_bytes, is_named=is_named)
        for each in topic.subscriptions:
            self.readers += 1
            self.consumers += each.consumers
            labels = (topic.name, each.name)
            self.subscriptions.add(
                labels,
                _subscription_row(each),
                each.backlog_bytes,
                is_named=labels in self._reader_names,
            )
            yield A_ROW


A_ROW: Final = 0.2
"""Steps that it is to keep the series of one subscription."""


_OF_TOPICS: Final = ("topic", "queue", "sub")


def _topic_of(id_part: str) -> str:
    """What people call the topic with this id."""
    return str(topic_of_id(id_part))


class Series:
    """At most so many rows with labels, those of most weight, and one for all others.

    Packed: an object for each of very many rows would be work for the garbage collector, which does
    all of it in one piece.
    """

    def __init__(
        self, labels: Labels, columns: tuple[MetricColumn, ...], series_max: int | None
    ) -> None:
        self._labels = labels
        self._columns = columns
        self._max = series_max
        # Those that are sure to be named: their labels as text, and a column of values each.
        self._texts: list[str] = []
        self._values = [array("d") for _ in columns]
        self._heap: list[tuple[float, int, Labels, Row]] = []
        self._number = 0
        self._rest: list[float] | None = None

    def add(self, labels: Labels, row: Row, weight: float, *, is_named: bool = False) -> None:
        if is_named or self._max is None:
            self._name(labels, row)
            return
        # Equal weights are told apart by who came first.
        self._number -= 1
        entry = (weight, self._number, labels, row)
        if len(self._heap) < self._max:
            heappush(self._heap, entry)
            return
        left_out = heappushpop(self._heap, entry)[3]
        if self._rest is None:
            self._rest = list(left_out)
        else:
            both = zip(self._rest, left_out, self._columns, strict=True)
            self._rest = [column[3]((mine, its)) for mine, its, column in both]

    def _name(self, labels: Labels, row: Row) -> None:
        self._texts.append(label_text(self._labels, labels))
        for column, value in zip(self._values, row, strict=True):
            column.append(value)

    def lines(self) -> Iterator[tuple[list[str], float]]:
        """The text, some lines at a time, and how many steps that was."""
        self._heap.sort()
        while self._heap:
            _, _, labels, row = self._heap.pop()
            self._name(labels, row)
            yield [], LABELS_STEPS
        if self._rest is not None:
            self._name((OTHER,) * len(self._labels), tuple(self._rest))
        for (name, text, kind, _), column in zip(self._columns, self._values, strict=True):
            family = Family(kind, name, text)
            for at in range(0, len(self._texts), LINES_A_PIECE):
                part = slice(at, at + LINES_A_PIECE)
                for labels_text, value in zip(self._texts[part], column[part], strict=True):
                    family.add_prepared(labels_text, value)
                yield family.lines, LINES_STEPS
                family.lines = []
            yield family.lines, 1


LINES_A_PIECE: Final = 100
LINES_STEPS: Final = LINES_A_PIECE / LINES_A_STEP
LABELS_STEPS: Final = 0.4


def _topic_counts(topics: int, series: TopicSeries) -> Iterator[Family]:
    """Totals: of everything, whatever is named below."""
    for name, text, value in (
        ("penstock_topics", "Topics", topics),
        ("penstock_subscriptions", "Subscriptions of all topics", series.readers),
        ("penstock_consumers", "Consumers attached to them", series.consumers),
        (
            "penstock_messages_ready",
            "What the slowest subscription of each topic was not given, all topics",
            series.ready,
        ),
        ("penstock_messages_unacked", "Delivered, not settled, all topics", series.unacked),
        (
            "penstock_backlog_bytes",
            "Bytes that the slowest subscription of each topic has not settled, all topics",
            series.backlog_bytes,
        ),
        ("penstock_oldest_age_seconds", "Age of the oldest unsettled", series.oldest_age_ms / 1000),
    ):
        yield _gauge(name, text, value)


_TOPIC_COLUMNS: Final[tuple[MetricColumn, ...]] = (
    ("penstock_topic_messages_in", "Messages ever appended", "counter", sum),
    ("penstock_topic_messages_ready", "Not given to the slowest subscription", "gauge", sum),
    ("penstock_topic_messages_unacked", "Delivered, not settled", "gauge", sum),
    ("penstock_topic_backlog_bytes", "Bytes behind the slowest holder", "gauge", sum),
    ("penstock_topic_oldest_age_seconds", "Age of the oldest unsettled", "gauge", max),
)
"""(name, help, family, how the rest is put together) in the order of ``_topic_row``."""

_SUBSCRIPTION_COLUMNS: Final[tuple[MetricColumn, ...]] = (
    ("penstock_subscription_messages_ready", "Could be delivered now", "gauge", sum),
    ("penstock_subscription_messages_unacked", "Delivered, not settled", "gauge", sum),
    ("penstock_subscription_backlog_bytes", "Bytes from its low mark on", "gauge", sum),
    ("penstock_subscription_consumers", "Consumers attached", "gauge", sum),
    ("penstock_subscription_settled", "Messages settled", "counter", sum),
    ("penstock_subscription_redelivered", "Handed over again", "counter", sum),
    ("penstock_subscription_lost", "Records that could not be read", "counter", sum),
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


def _gauge(name: str, text: str, value: float) -> Family:
    family = Family("gauge", name, text)
    family.add((), value)
    return family


def _counter(name: str, text: str, value: float) -> Family:
    family = Family("counter", name, text)
    family.add((), value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Family:
    family = Family("histogram", name, text, ("le",))
    for bound, count in histogram.buckets():
        family.add((bound,), count, "_bucket")
    family.add((), histogram.count, "_count")
    family.add((), histogram.sum, "_sum")
    return family


# ---- query metrics ------------------------------------------------------------------------------
# Metrics of Spark queries (F18): how far behind each is, how fast, what is kept, who waits.
#
# At most ``QUERIES_MAX`` queries are named per scrape, those furthest behind first.


QUERIES_MAX: Final = 200

_QUERY_FIGURES: Final[tuple[tuple[Kind, str, str, Callable[[QuerySnapshot], float]], ...]] = (
    (
        "gauge",
        "penstock_query_lag_messages",
        "Messages not processed",
        lambda each: each.lag_messages,
    ),
    ("gauge", "penstock_query_lag_bytes", "Log bytes not processed", lambda each: each.lag_bytes),
    (
        "gauge",
        "penstock_query_lag_seconds",
        "Age of the oldest of them",
        lambda each: each.lag_seconds,
    ),
    (
        "gauge",
        "penstock_query_drain_messages",
        "Processed a second",
        lambda each: each.messages_per_s,
    ),
    (
        "gauge",
        "penstock_query_lease_bytes",
        "Log bytes its lease keeps",
        lambda each: each.lease_bytes,
    ),
    (
        "gauge",
        "penstock_query_holding",
        "1 while publishers wait for it",
        lambda each: bool(each.held),
    ),
    (
        "counter",
        "penstock_query_retried",
        "Rows of a flow tried again later",
        lambda each: each.retried,
    ),
    (
        "counter",
        "penstock_query_dead_letters",
        "Rows of a flow that are dead",
        lambda each: each.dead,
    ),
)


def query_families(engine: Engine) -> Iterator[Family]:
    """Queries of one engine, freshly looked up."""
    queries = engine.queries
    snapshots = query_snapshots(queries, engine.clock.monotonic_ms(), queries.wall_ms)
    yield _gauge("penstock_queries", "Spark queries", len(snapshots))
    yield _gauge("penstock_polls_held", "Their polls that wait", queries.polls_held)
    snapshots.sort(key=lambda each: each.lag_bytes, reverse=True)
    shown = snapshots[:QUERIES_MAX]
    for kind, name, text, value_of in _QUERY_FIGURES:
        family = Family(kind, name, text, ("query",))
        for each in shown:
            family.add((each.name,), value_of(each))
        yield family
    share = Family(
        "gauge", "penstock_query_batch_seconds", "Its last batch, by part", ("query", "part")
    )
    for each in shown:
        for part in ("batch", "read", "transform", "sink"):
            share.add((each.name, part), float(str(each.last_batch[f"{part}_ms"])) / 1000)
    yield share
    broken = Family("counter", "penstock_leases_broken", "Leases that passed a bound", ("cause",))
    for cause in ("silence", "bytes"):
        broken.add((cause,), queries.registry.leases_broken[cause])
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


def sink_families(engine: Engine) -> Iterator[Family]:
    """Sinks of one engine, looked up at the scrape."""
    staged = engine.staged
    for name, text, count_of in _SINK_COUNTERS:
        yield _counter(name, text, count_of(staged.counters))
    for name, text, value in (
        ("penstock_stage_bytes", "Rows staged and not committed", staged.size_bytes),
        ("penstock_sink_commits_waiting", "Commits under way or held", staged.commits_waiting),
        ("penstock_sink_puts_held", "Puts that wait for room", staged.puts_held),
    ):
        yield _gauge(name, text, value)


# ---- counters of adapters -----------------------------------------------------------------------
# ``penstock_<name>_total`` with one label, read at the scrape from what adapters show
# (``engine/statistics.py``).


def adapter_counters(families: Iterable[CounterFamily]) -> Iterator[Family]:
    """Everything that is shown now."""
    for each in families:
        family = Family("counter", f"penstock_{each.name}", each.text, (each.label,))
        for label, count in each.counts.items():
            family.add((label,), count)
        yield family
