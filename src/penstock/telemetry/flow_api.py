"""The flow map as ``/api/flow`` shows it: stages, findings, requests, limits, recent events.

The page is bounded however many connections there are: held stages come first, then those with work
that is spread over turns (``undone``), then the others up to ``STAGES_MAX``; what was left out is
counted, never silently dropped. Findings are made from all held stages, shown or not.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from penstock.engine.flow_map import FlowMap
from penstock.flow.diagnosis import NOTHING, Diagnosis, StageView, UndoneView, findings_of
from penstock.flow.fast_fail import RequestFigures
from penstock.model.clock import Clock
from penstock.telemetry.events import FlowEvent

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
    requests: Iterable[RequestFigures] = (),
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
                "is_unsent_high": consumer.is_unsent_high,
                "has_demand": consumer.has_demand,
            }
            for consumer in view.consumers
        ],
    }
