"""The flow map as ``/api/flow`` shows it: stages, findings, requests, limits, recent events.

The page is bounded however many connections there are: held stages come first, then those with work
that is spread over turns (``undone``), then the others up to ``STAGES_MAX``; what was left out is
counted, never silently dropped. Findings are made from all held stages, shown or not.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from penstock.engine.flow_map import FlowMap
from penstock.engine.spark.query import LeaseEvent
from penstock.flow.credit import stage_label
from penstock.flow.diagnosis import NOTHING, Diagnosis, StageView, UndoneView, findings_of
from penstock.flow.episodes import FlowEdge
from penstock.flow.fast_fail import RequestClassStatistics
from penstock.flow.reason import Reason
from penstock.model.clock import Clock
from penstock.model.record import Record, neutral_record

STAGES_MAX: Final = 1000
FINDINGS_MAX: Final = 20
EVENTS_SHOWN_MAX: Final = 100


class LimitView(msgspec.Struct, frozen=True):
    """A limit in force and how much of it is used."""

    name: str
    setting: str
    """Where to change it, as ``penstock settings`` calls it."""
    limit: int
    used: int
    unit: str = "bytes"
    is_reached: bool = False


def flow_page(
    stages: FlowMap,
    *,
    limits: Iterable[LimitView],
    events: Sequence[FlowEvent],
    clock: Clock,
    requests: Iterable[RequestClassStatistics] = (),
) -> dict[str, Any]:
    """Everything an operator asks about flow, ready for JSON."""
    offset_ms = clock.wall_ms() - clock.monotonic_ms()
    views = stages.views
    shown = sorted(views, key=_rank)[:STAGES_MAX]
    findings = findings_of(views)
    return {
        "at_ms": clock.wall_ms(),
        "diagnosis": _finding(findings[0] if findings else NOTHING),
        "findings": [_finding(each) for each in findings[:FINDINGS_MAX]],
        "stages": [_stage(view, offset_ms) for view in shown],
        "stages_total": stages.stages_total,
        "stages_held": stages.stages_held,
        "stages_left_out": stages.stages_total - len(shown),
        "requests": [msgspec.to_builtins(each) for each in requests],
        "limits": [msgspec.to_builtins(each) for each in limits],
        "events": [msgspec.to_builtins(each) for each in list(events)[-EVENTS_SHOWN_MAX:]],
    }


def _finding(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "kind": diagnosis.kind,
        "name": diagnosis.name,
        "side": diagnosis.side,
        "sentence": diagnosis.sentence,
        "chain": list(diagnosis.chain),
        "share": round(diagnosis.share, 3),
    }


def _rank(view: StageView) -> int:
    """Who comes first: what is held, then what is busy with what it has begun."""
    if view.is_held:
        return 0
    return 1 if view.undone is not None else 2


def _undone(undone: UndoneView | None, offset_ms: int) -> dict[str, Any] | None:
    if undone is None:
        return None
    return {
        "what": undone.what,
        "count": undone.count,
        "since_ms": undone.since_ms + offset_ms,
        "waits_for": undone.waits_for or None,
    }


def _stage(view: StageView, offset_ms: int) -> dict[str, Any]:
    return {
        "kind": view.kind,
        "name": view.name,
        "state": view.state,
        "reason": view.reason.value if view.reason is not None else None,
        "culprit": view.culprit or None,
        "since_ms": None if view.since_ms is None else view.since_ms + offset_ms,
        "share": round(view.share, 3),
        "downstream": list(view.downstream),
        "ready": view.ready,
        "undone": _undone(view.undone, offset_ms),
        "query": msgspec.to_builtins(view.query),
        "consumers": [
            {
                "name": consumer.name,
                "unacked": consumer.unacked,
                "unacked_max": consumer.unacked_max,
                "unacked_bytes": consumer.unacked_bytes,
                "is_unsent_high": consumer.is_unsent_high,
                "has_demand": consumer.has_demand,
                "blocked_by": list(consumer.blocked_by),
                "waits_for": consumer.waits_for or None,
                "last_grant_ms": None
                if consumer.last_grant_ms is None
                else consumer.last_grant_ms + offset_ms,
            }
            for consumer in view.consumers
        ],
    }


# ---- events -------------------------------------------------------------------------------------
# Flow events: the edges of episodes, each told once (flow-control.md section 3).
#
# A stage that is held a hundred times a second is one line when it begins and one when it is over,
# with how long it lasted; the engine's journal has already joined the stalls to episodes. The
# newest events stay in memory for ``/api/flow``; as records (``flow_record``) they go to the system
# topic ``penstock.flow``.


logger = logging.getLogger(__name__)

EVENTS_MAX: Final = 512
"""Events kept for whoever asks: minutes of a troubled broker, 100 KB at most."""


class FlowEvent(msgspec.Struct, frozen=True, gc=False):
    """One edge as it is shown."""

    at_ms: int
    """Wall time."""
    event: str
    """``entered`` or ``left``; of a query ``lease-broken`` or ``lease-mended``."""
    kind: str
    name: str
    reason: str
    culprit: str
    lasted_ms: int = 0
    """Of an episode that is over: from its first stall to the end of its last."""
    stalled_ms: int = 0
    """Of that, the time truly held."""
    stalls: int = 0


class FlowEvents:
    """Remembers and logs the edges."""

    __slots__ = ("_clock", "counts", "episodes", "recent", "stalled_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.recent: deque[FlowEvent] = deque(maxlen=EVENTS_MAX)
        self.counts = {"entered": 0, "left": 0}
        self.episodes: Counter[tuple[str, str]] = Counter()
        """(kind of stage, reason) -> episodes begun."""
        self.stalled_ms: Counter[tuple[str, str]] = Counter()
        """(kind of stage, reason) -> time held, of episodes that are over."""

    def note(self, edges: Iterable[FlowEdge]) -> list[FlowEvent]:
        """Tell about edges, oldest first; the events they are."""
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        events = [_event(edge, offset_ms) for edge in edges]
        self.recent.extend(events)
        for event in events:
            self.counts[event.event] += 1
            if event.event == "entered":
                self.episodes[event.kind, event.reason] += 1
            else:
                self.stalled_ms[event.kind, event.reason] += event.stalled_ms
            _log(event)
        return events

    def remember(self, events: list[FlowEvent]) -> list[FlowEvent]:
        """Remember events that are no edges; whoever made them has logged them."""
        self.recent.extend(events)
        return events

    def stalled_ms_with(
        self, unfinished: Iterable[tuple[str, Reason, int]]
    ) -> dict[tuple[str, str], int]:
        """Time held by kind and reason, the open episodes of ``Journal.unfinished`` included."""
        total = Counter(self.stalled_ms)
        for kind, reason, held_ms in unfinished:
            total[kind, reason.value] += held_ms
        return dict(total)


def lease_event(lease: LeaseEvent) -> FlowEvent:
    """A lease that broke or holds again (F18)."""
    return FlowEvent(lease.at_ms, lease.event, "query", lease.query, lease.cause, lease.text)


def flow_record(event: FlowEvent) -> Record:
    """An event as a message: its fields as JSON, keyed by the stage, tagged by what happened."""
    record = neutral_record(
        msgspec.json.encode(event),
        key=stage_label(event.kind, event.name).encode(),
        tag=event.event.encode(),
    )
    record.born_ms = event.at_ms
    return record


def _event(edge: FlowEdge, offset_ms: int) -> FlowEvent:
    episode = edge.episode
    head = (edge.at_ms + offset_ms, "entered" if episode is None else "left")
    body = (edge.kind, edge.name, edge.reason.value, edge.culprit)
    if episode is None:
        return FlowEvent(*head, *body)
    lasted_ms = episode.until_ms - episode.since_ms
    return FlowEvent(*head, *body, lasted_ms, episode.stalled_ms, episode.stalls)


def _log(event: FlowEvent) -> None:
    extra: dict[str, object] = {
        "stage": f"{event.kind} {event.name}",
        "reason": event.reason,
        "culprit": event.culprit,
    }
    if event.event == "entered":
        logger.info("a stage is held", extra=extra)
    else:
        seconds = {"lasted_s": event.lasted_ms / 1000, "stalled_s": event.stalled_ms / 1000}
        logger.info("a stage runs again", extra=extra | seconds | {"stalls": event.stalls})
