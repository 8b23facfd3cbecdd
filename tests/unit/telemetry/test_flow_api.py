"""The flow page: held stages first, bounded, with the diagnosis in one sentence."""

import json
import logging

import pytest

from penstock.engine.flow_map import FlowMap
from penstock.flow.alarms import memory_alarm
from penstock.flow.demand import Withheld
from penstock.flow.episodes import Episode, FlowEdge
from penstock.flow.fast_fail import RequestClassStatistics
from penstock.flow.reason import Reason
from penstock.flow.views import ConsumerView, GroupView, MemberView, StageView, UndoneView
from penstock.model.steps import finished
from penstock.telemetry.flow_api import (
    EVENTS_MAX,
    STAGES_MAX,
    FlowEvents,
    LimitView,
    flow_page_steps,
    flow_record,
)
from penstock.testing.clock import ManualClock


@pytest.fixture
def page():
    clock = ManualClock(wall_ms=1_000_000, monotonic_ms=5000)

    def make(*views, limits=(), unseen=0):
        held = sum(view.is_held for view in views)
        stages = FlowMap(list(views), len(views) + unseen, held)
        made = finished(flow_page_steps(stages, limits=limits, events=(), clock=clock))
        return json.loads(made.body)

    return make


HELD = StageView("connection", "1", "flow", Reason.FLOW, "log", 4000, 0.5)
LOG = StageView("log", "log")


def test_a_quiet_broker_says_that_nothing_is_held_back(page):
    assert "Nothing is held back" in page(LOG)["diagnosis"]["sentence"]


def test_the_diagnosis_names_the_bottleneck(page):
    shown = page(LOG, HELD)
    assert shown["diagnosis"]["kind"] == "log"
    assert "50 %" in shown["diagnosis"]["sentence"]


def test_a_held_stage_has_state_reason_culprit_since_and_share(page):
    stage = page(LOG, HELD)["stages"][0]
    assert stage["state"] == "flow"
    assert stage["reason"] == "flow"
    assert stage["culprit"] == "log"
    assert stage["since_ms"] == 999_000
    assert stage["share"] == 0.5


def test_the_page_is_bounded_and_held_stages_come_first(page):
    many = [StageView("connection", str(number)) for number in range(STAGES_MAX + 50)]
    shown = page(*many, HELD)
    assert len(shown["stages"]) == STAGES_MAX
    assert shown["stages"][0]["state"] == "flow"
    assert shown["stages_left_out"] == 51
    assert shown["stages_held"] == 1


def test_stages_without_a_view_are_counted_as_left_out(page):
    shown = page(HELD, LOG, unseen=10_000)
    assert (shown["stages_total"], shown["stages_left_out"]) == (10_002, 10_000)


def test_consumers_of_a_subscription_are_shown(page):
    view = StageView("subscription", "s", ready=3, consumers=(ConsumerView("c", 10, 10),))
    shown = page(view)
    assert shown["stages"][0]["consumers"][0]["unacked"] == 10
    assert shown["stages"][0]["consumers"][0]["last_grant_ms"] is None
    assert "consumer c is slow" in shown["diagnosis"]["sentence"]


def test_consumers_without_a_row_are_counted(page):
    some = (ConsumerView("a", others=41), ConsumerView("b"))
    view = StageView("subscription", "s", ready=3, consumers=some, consumers_left_out=41)
    (shown,) = page(view)["stages"]
    assert [(each["name"], each["others"]) for each in shown["consumers"]] == [("a", 41), ("b", 0)]
    assert shown["consumers_total"] == 43


def test_why_a_consumer_gets_nothing_is_shown_with_its_last_grant(page):
    consumer = ConsumerView("c", blocked_by=(Withheld.DRAINING,), last_grant_ms=4000)
    view = StageView("subscription", "s", ready=3, consumers=(consumer,))
    (shown,) = page(view)["stages"][0]["consumers"]
    assert shown["blocked_by"] == ["draining"]
    assert shown["last_grant_ms"] == 999_000


def test_limits_show_their_use_and_where_to_change_them(page):
    limit = LimitView("pool", "flow.inflight_bytes_max", 100, 60)
    assert page(limits=[limit])["limits"][0]["setting"] == "flow.inflight_bytes_max"


def test_what_is_spread_over_turns_is_shown_before_what_runs(page):
    many = [StageView("connection", str(number)) for number in range(STAGES_MAX + 50)]
    busy = StageView("subscription", "s", undone=UndoneView("burials", 700, 4000, "log"))
    shown = page(*many, busy, HELD)
    assert shown["stages"][0]["undone"] is None
    assert shown["stages"][1]["undone"] == {
        "what": "burials",
        "count": 700,
        "since_ms": 999_000,
        "waits_for": "log",
    }


# ---- events -------------------------------------------------------------------------------------
# Flow events: one line per edge, wall time, and a bounded memory.


@pytest.fixture
def events():
    return FlowEvents(ManualClock(wall_ms=1_000_000, monotonic_ms=1000))


ENTERED = FlowEdge("connection", "7", Reason.FLOW, "queue orders", 900)
LEFT = FlowEdge(
    "connection",
    "7",
    Reason.FLOW,
    "queue orders",
    4100,
    Episode(Reason.FLOW, "queue orders", 900, 4100, 2500, 12),
)


def test_entering_is_told_with_reason_and_culprit_at_wall_time(events, caplog):
    caplog.set_level(logging.INFO)
    events.note([ENTERED])
    (event,) = events.recent
    assert (event.event, event.reason, event.culprit) == ("entered", "flow", "queue orders")
    assert event.at_ms == 1_000_000 - 100
    assert caplog.records[0].stage == "connection 7"
    assert caplog.records[0].seq == event.seq


def test_edges_that_were_lost_leave_a_gap_between_the_numbers(events):
    (first,) = events.note([ENTERED])
    (second,) = events.note([LEFT], dropped=3)
    (third,) = events.note([ENTERED], dropped=3)
    assert [each.seq - first.seq for each in (second, third)] == [4, 5]


def test_leaving_is_told_with_how_long_it_lasted(events, caplog):
    caplog.set_level(logging.INFO)
    events.note([LEFT])
    assert events.recent[0].lasted_ms == 3200
    assert caplog.records[0].lasted_s == 3.2
    assert caplog.records[0].stalls == 12
    assert caplog.records[0].ended == "released"


def test_an_event_is_a_message_that_anybody_can_read(events):
    (event,) = events.note([LEFT])
    record = flow_record(event)
    assert (record.key, record.tag) == (b"connection 7", b"left")
    assert record.born_ms == event.at_ms
    assert json.loads(record.body) == {
        "at_ms": event.at_ms,
        "event": "left",
        "kind": "connection",
        "name": "7",
        "reason": "flow",
        "culprit": "queue orders",
        "lasted_ms": 3200,
        "seq": 1,
        "id": "",
        "culprit_id": "",
        "since_ms": 999_000,
        "ended": "released",
        "stalled_ms": 2500,
        "stalls": 12,
    }


def test_only_the_newest_events_are_kept(events):
    events.note([ENTERED] * (EVENTS_MAX + 5))
    assert len(events.recent) == EVENTS_MAX
    assert events.counts["entered"] == EVENTS_MAX + 5


def test_time_held_is_counted_by_kind_and_reason_with_what_goes_on_now(events):
    events.note([ENTERED, LEFT, ENTERED])
    assert events.episodes == {("connection", "flow"): 2}
    unfinished = [("connection", Reason.FLOW, 40), ("queue", Reason.FLOW, 7)]
    assert events.stalled_ms_with(unfinished) == {
        ("connection", "flow"): 2540,
        ("queue", "flow"): 7,
    }
    assert events.stalled_ms_with([]) == {("connection", "flow"): 2500}


def test_of_very_many_stages_every_kind_has_its_part_and_the_busiest_are_in_it(page):
    queues = [StageView("queue", f"q{number}", per_s=float(number)) for number in range(3_000)]
    few = [StageView("connection", f"c{number}") for number in range(5)]
    readers = [StageView("subscription", f"s{number}") for number in range(3_000)]
    shown = page(*queues, *readers, *few, LOG)["stages"]
    kinds = [each["kind"] for each in shown]
    assert len(shown) == STAGES_MAX
    assert sorted(kinds[:2]) == ["log", "queue"], "the log, and the busiest, which is named"
    assert kinds.count("connection") == 5
    assert abs(kinds.count("queue") - kinds.count("subscription")) <= 1
    busiest = [each["per_s"] for each in shown if each["kind"] == "queue"]
    assert busiest[0] == 2_999.0
    assert busiest == sorted(busiest, reverse=True)


def test_what_was_not_judged_and_what_was_not_noted_is_counted():
    found = FlowMap([LOG], 1, 0, readers_left_out=70, troubles_dropped=9)
    made = finished(flow_page_steps(found, limits=(), events=(), clock=ManualClock()))
    shown = json.loads(made.body)
    assert (shown["readers_left_out"], shown["troubles_dropped"]) == (70, 9)


def test_an_alarm_tells_its_peak_its_limit_and_how_many_it_held():
    events, alarm = FlowEvents(ManualClock()), memory_alarm(100, 0.5)
    for value in (120, 180, 110):
        alarm.update(value, 0)
    (raised,) = events.alarms([alarm], {Reason.MEMORY: 3})
    assert (raised.event, raised.peak, raised.limit, raised.held_connections) == (
        "entered", 180, 100, 3,
    )  # fmt: skip
    alarm.update(10, 0)
    (over,) = events.alarms([alarm], {Reason.MEMORY: 5})
    assert (over.event, over.peak, over.held_connections) == ("left", 180, 5)
    alarm.update(101, 0)
    (again,) = events.alarms([alarm], {Reason.MEMORY: 6})
    assert (again.event, again.peak, again.held_connections) == ("entered", 101, 1)


def test_members_and_classes_of_requests_have_ids_and_who_waits_has_a_rate(page):
    group = GroupView((MemberView("10.0.0.1@a"),))
    reader = StageView("subscription", "s", id="sub/t/s", group=group)
    waiting = StageView("connection", "c", "flow", Reason.FLOW, "log", id="connection/1", per_s=2.5)
    shown = page(LOG, reader, waiting)
    (row,) = [each for each in shown["stages"] if each["id"] == "sub/t/s"]
    assert row["members"] == [{"id": "client/10.0.0.1%40a", "name": "10.0.0.1@a"}]
    (waiter,) = shown["answer"]["waiters"]
    assert (waiter["id"], waiter["in_per_s"]) == ("connection/1", 2.5)
    send = RequestClassStatistics("send", 1, 2, 3, 4, {})
    steps = flow_page_steps(
        FlowMap([LOG], 1, 0), limits=(), events=(), clock=ManualClock(), requests=[send]
    )
    (request,) = json.loads(finished(steps).body)["requests"]
    assert request["id"] == "requests/send"


def test_a_stage_says_how_much_goes_where(page):
    view = StageView("channel", "c/1", per_s=12.34, hops=(("queue/q/0", 12.34),), others=2)
    (stage,) = [each for each in page(LOG, view)["stages"] if each["kind"] == "channel"]
    assert stage["per_s"] == 12.3
    assert stage["hops"] == [{"to": "queue/q/0", "per_s": 12.3}]
    assert stage["others"] == 2


def test_a_page_of_many_stages_is_made_in_steps():
    clock = ManualClock(wall_ms=1_000_000, monotonic_ms=5000)
    views = [StageView("queue", f"q{number}") for number in range(500)]
    steps = list(flow_page_steps(FlowMap(views, 500), limits=(), events=(), clock=clock))
    assert len(steps) >= 500
    assert max(steps) <= 50
