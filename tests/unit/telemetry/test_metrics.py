"""Metrics: names and values on the page, bounded labels, and what the rest adds up to."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kit.rocketmq.bench import BenchConsumer, RocketmqBench
from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.statistics import (
    CounterFamilies,
    EngineStatistics,
    TopicStatistics,
    topic_statistics,
    topic_statistics_steps,
)
from penstock.engine.subscription.subscription import SubscriptionStatistics
from penstock.engine.topic import FanoutRoute
from penstock.flow.fast_fail import RequestClassStatistics
from penstock.log.index import QueueIndex
from penstock.model.refusal import RefusalKind
from penstock.model.steps import A_RECORD, finished
from penstock.server.view import STEPS_A_PIECE
from penstock.telemetry.metrics import LINES_STEPS, SERIES_MAX, Exposition, adapter_counters
from penstock.telemetry.statistics import (
    COMMIT_MESSAGES,
    LAG_SECONDS,
    SYNC_SECONDS,
    Histogram,
    ProcessStatistics,
)


def engine(topics=(), **more):
    figures = dict.fromkeys(EngineStatistics.__struct_fields__, 0)
    figures |= {"refused": {}, "topics": tuple(topics), "requests": (), "non_persistent": ()}
    return EngineStatistics(**(figures | more))


def process(**more):
    figures = dict.fromkeys(ProcessStatistics.__struct_fields__, 0)
    figures |= {
        "durability": "fsync",
        "refused_total": {},
        "stalled_ms_total": {},
        "episodes_total": {},
        "credit_min": {"queue_log": 3},
        "sync_seconds": Histogram(SYNC_SECONDS),
        "commit_messages": Histogram(COMMIT_MESSAGES),
        "lag_seconds": Histogram(LAG_SECONDS),
    }
    return ProcessStatistics(**(figures | more))


def topic(name, backlog_bytes=0, subscriptions=()):
    return TopicStatistics(
        name=name,
        is_durable=True,
        queues=1,
        messages_in=5,
        messages_kept=5,
        ready=2,
        unacked=1,
        backlog_bytes=backlog_bytes,
        oldest_age_ms=1500,
        subscriptions=tuple(subscriptions),
    )


@pytest.fixture
def samples():
    def make(engine_now, process_now, **how):
        steps = Exposition().steps(engine_now, process_now, engine_now.topics, **how)
        page = b"".join(finished(steps)).decode()
        return {
            (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    return make


def test_counters_of_messages_are_there_with_their_reasons(samples):
    seen = samples(engine(published=7, refused={RefusalKind.BUSY: 3}), process())
    assert seen["penstock_messages_published_total", ()] == 7
    assert seen["penstock_messages_refused_total", ("busy",)] == 3


def test_what_topics_without_a_log_dropped_is_counted(samples):
    seen = samples(engine(non_persistent_published=5, non_persistent_dropped=2), process())
    assert seen["penstock_non_persistent_messages_total", ()] == 5
    assert seen["penstock_non_persistent_dropped_total", ()] == 2
    assert seen["penstock_non_persistent_topics", ()] == 0


def test_requests_that_wait_or_are_refused_are_shown_by_class(samples):
    send = RequestClassStatistics("send", 3, 150, 200, 10_000, {"age": 4, "busy": 5})
    seen = samples(engine(requests=(send,)), process())
    assert seen["penstock_requests_waiting", ("send",)] == 3
    assert seen["penstock_request_age_seconds", ("send",)] == 0.15
    assert seen["penstock_requests_refused_total", ("age", "send")] == 4
    assert seen["penstock_requests_refused_total", ("busy", "send")] == 5


def test_stalled_time_is_in_seconds_by_stage_and_reason(samples):
    seen = samples(engine(), process(stalled_ms_total={("queue", "flow"): 2500}))
    assert seen["penstock_flow_stalled_seconds_total", ("flow", "queue")] == 2.5


def test_held_pulls_and_unsent_bytes_are_shown(samples):
    seen = samples(engine(held_pulls=3, unsent_bytes=70), process(unsent_bytes_max=100))
    assert seen["penstock_pulls_held", ()] == 3
    assert seen["penstock_memory_budget_bytes", ("unsent",)] == 70
    assert seen["penstock_memory_budget_max_bytes", ("unsent",)] == 100


def test_flow_events_are_counted_by_what_became_of_them(samples):
    seen = samples(engine(), process(events_appended_total=9, events_dropped_total=4))
    assert seen["penstock_flow_events_total", ("appended",)] == 9
    assert seen["penstock_flow_events_total", ("dropped",)] == 4


def test_turns_and_syncs_that_waited_for_company_are_counted(samples):
    seen = samples(engine(), process(turns_paced_total=7, syncs_paced_total=3))
    assert seen["penstock_turns_paced_total", ()] == 7
    assert seen["penstock_syncs_paced_total", ()] == 3


def test_the_least_credit_of_a_hop_is_shown(samples):
    assert samples(engine(), process())["penstock_flow_credit", ("queue_log",)] == 3


def test_durability_and_alarms_can_be_alerted_on(samples):
    seen = samples(engine(is_disk_alarmed=True), process(durability="os"))
    assert seen["penstock_durability", ("os",)] == 1
    assert seen["penstock_alarm", ("disk",)] == 1
    assert seen["penstock_alarm", ("memory",)] == 0


def test_histograms_have_buckets_sum_and_count(samples):
    now = process()
    now.sync_seconds.observe(0.0004)
    seen = samples(engine(), now)
    assert seen["penstock_fsync_seconds_bucket", ("0.0005",)] == 1
    assert seen["penstock_fsync_seconds_count", ()] == 1


def test_topics_beyond_the_limit_are_added_up_under_other(samples):
    topics = [topic(f"t{number}", backlog_bytes=number) for number in range(SERIES_MAX + 3)]
    seen = samples(engine(topics), process())
    named = [labels for name, labels in seen if name == "penstock_topic_backlog_bytes"]
    assert len(named) == SERIES_MAX + 1
    assert seen["penstock_topic_backlog_bytes", ("other",)] == 0 + 1 + 2
    assert seen["penstock_topic_messages_in_total", ("other",)] == 15
    assert seen["penstock_topic_oldest_age_seconds", ("other",)] == 1.5


def test_all_topics_have_their_names_for_who_asks_for_all(samples):
    topics = [topic(f"t{number}") for number in range(SERIES_MAX + 3)]
    seen = samples(engine(topics), process(), is_all=True)
    named = [labels for name, labels in seen if name == "penstock_topic_backlog_bytes"]
    assert len(named) == SERIES_MAX + 3
    assert ("other",) not in named


def test_totals_are_of_all_topics_whatever_is_named(samples):
    readers = [subscription("s"), subscription("t", consumers=2)]
    topics = [topic(f"t{number}", 10, readers) for number in range(SERIES_MAX + 3)]
    for is_all in (False, True):
        seen = samples(engine(topics), process(), is_all=is_all)
        assert seen["penstock_topics", ()] == SERIES_MAX + 3
        assert seen["penstock_subscriptions", ()] == 2 * (SERIES_MAX + 3)
        assert seen["penstock_consumers", ()] == 2 * (SERIES_MAX + 3)
        assert seen["penstock_messages_ready", ()] == 2 * (SERIES_MAX + 3)
        assert seen["penstock_backlog_bytes", ()] == 10 * (SERIES_MAX + 3)
        assert seen["penstock_oldest_age_seconds", ()] == 1.5


def test_what_a_finding_speaks_of_keeps_its_name_among_very_many(samples):
    topics = [
        topic(f"t{number}", 99, [subscription("s", backlog_bytes=9)])
        for number in range(SERIES_MAX)
    ]
    topics += [topic("v/quiet one", 0, [subscription("amqp"), subscription("else")])]
    named = {"topic/quiet%20one@v", "sub/quiet%20one@v/amqp", "connection/7", "log"}
    seen = samples(engine(topics), process(), named=named)
    assert ("penstock_topic_messages_ready", ("v/quiet one",)) in seen
    shown = {labels for name, labels in seen if name == "penstock_subscription_messages_ready"}
    assert ("amqp", "v/quiet one") in shown
    assert ("else", "v/quiet one") not in shown
    assert ("penstock_topic_messages_ready", ("other",)) not in seen


def test_the_page_of_very_many_topics_is_made_in_small_steps(samples):
    looked = []

    def topics():
        for number in range(3 * SERIES_MAX):
            looked.append(number)
            yield topic(f"t{number}", number)

    before, most = 0, 0
    for steps in Exposition().steps(engine(), process(), topics(), is_all=True):
        assert 0 < steps <= LINES_STEPS
        most = max(most, len(looked) - before)
        before = len(looked)
    assert most == 1
    assert len(looked) == 3 * SERIES_MAX


def subscription(name, **more):
    figures = dict.fromkeys(SubscriptionStatistics.__struct_fields__, 0)
    return SubscriptionStatistics(**(figures | {"name": name} | more))


def test_subscriptions_carry_both_names(samples):
    each = subscription("s", unacked=3, settled=9)
    seen = samples(engine([topic("orders", subscriptions=[each])]), process())
    assert seen["penstock_subscription_messages_unacked", ("s", "orders")] == 3
    assert seen["penstock_subscription_settled_total", ("s", "orders")] == 9


def test_names_with_quotes_and_newlines_do_not_break_the_page(samples):
    seen = samples(engine([topic('a"b\nc\\')]), process())
    assert seen["penstock_topic_messages_ready", ('a"b\nc\\',)] == 2


# ---- counters of adapters -----------------------------------------------------------------------
# Counters of adapters on the page of metrics.


def page(families):
    return "".join(line for family in adapter_counters(families) for line in family.lines)


def test_what_is_counted_later_is_on_the_next_page():
    families, counts = CounterFamilies(), {}
    families.register("pulls", "Pulls so far", "status", counts)
    assert "penstock_pulls_total{" not in page(families)
    counts["FOUND"] = 3
    text = page(families)
    assert "# HELP penstock_pulls_total Pulls so far" in text
    assert 'penstock_pulls_total{status="FOUND"} 3.0' in text


def test_corrected_offsets_of_rocketmq_are_on_the_page():
    bench = RocketmqBench()
    bench.topic("orders")
    BenchConsumer.on(bench).pull("orders", 9)
    text = page(bench.engine.counter_families)
    assert 'penstock_rocketmq_offset_moves_total{status="NO_MESSAGE_IN_QUEUE"} 1.0' in text
    assert 'penstock_rocketmq_pulls_total{status="NO_MESSAGE_IN_QUEUE"} 1.0' in text
    assert 'penstock_rocketmq_group_events_total{kind="joined"} 0.0' in text


def test_waits_for_room_are_counted_without_the_name_of_a_protocol():
    bench = RocketmqBench()
    bench.engine.contents.waits["pool"] = 3
    text = page(bench.engine.counter_families)
    assert 'penstock_content_waits_total{room="pool"} 3.0' in text
    assert "penstock_amqp_content_waits" not in text


def test_a_topic_with_a_thousand_subscriptions_is_looked_at_in_pieces():
    bench = Workbench()
    topic = bench.topic("shared")
    for number in range(1_000):
        bench.engine.create_subscription(topic.name, f"s{number}", SubscriptionOptions())
    bench.publish(bench.channel(), topic, b"x")
    bench.settle()
    looked = list(topic_statistics_steps(topic, bench.clock.wall_ms()))
    (found,) = [topic_statistics(topic, bench.clock.wall_ms())]
    shown = Exposition().steps(engine(), process(), [*looked, found], is_all=True)
    assert max([*looked, *shown]) <= STEPS_A_PIECE
    assert len(looked) >= 2_000
    assert (len(found.subscriptions), found.ready) == (1_000, 1)


def test_a_topic_with_a_thousand_queues_is_looked_at_in_pieces(monkeypatch):
    bench = Workbench()
    topic = bench.topic("wide", queues=1_000)
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    for at in range(0, 1_000, 100):
        bench.publish(bench.channel(), FanoutRoute(tuple(topic.queues[at : at + 100])), b"x")
        bench.settle()
    looks, between = [], QueueIndex.bytes_between
    monkeypatch.setattr(
        QueueIndex,
        "bytes_between",
        lambda self, *given: looks.append(self) or between(self, *given),
    )
    most = before = left = 0
    steps = topic_statistics_steps(topic, bench.clock.wall_ms())
    for each in steps:
        left -= each
        if left <= 0:
            most, before, left = max(most, len(looks) - before), len(looks), STEPS_A_PIECE
    assert 0 < most <= STEPS_A_PIECE / A_RECORD + 1
    found = topic_statistics(topic, bench.clock.wall_ms())
    assert (found.ready, found.messages_in, found.messages_kept) == (1_000, 1_000, 1_000)
    assert (found.subscriptions[0].ready, found.backlog_bytes > 0) == (1_000, True)
