"""Flow events: one line per edge, wall time, and a bounded memory."""

import json
import logging

import pytest

from penstock.flow.episodes import Episode, FlowEdge
from penstock.flow.reason import Reason
from penstock.telemetry.events import EVENTS_MAX, FlowEvents, flow_record
from penstock.testing.clock import ManualClock


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


def test_leaving_is_told_with_how_long_it_lasted(events, caplog):
    caplog.set_level(logging.INFO)
    events.note([LEFT])
    assert events.recent[0].lasted_ms == 3200
    assert caplog.records[0].lasted_s == 3.2
    assert caplog.records[0].stalls == 12


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
