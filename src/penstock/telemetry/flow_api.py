"""The flow map as ``/api/flow`` shows it: stages, findings, requests, limits, recent events.

The page is bounded however many connections there are: held stages come first, then those with work
that is spread over turns (``undone``), what findings speak of and the log, then the busiest of
every kind up to ``STAGES_MAX``; what was left out is counted, never silently dropped. Findings are
made from all held stages, shown or not. It is made in steps (``server/view.py`` drives them).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from penstock.engine.flow_map import FlowMap
from penstock.engine.spark.query import LeaseEvent
from penstock.flow.alarms import Alarm
from penstock.flow.credit import stage_label
from penstock.flow.demand import ClientSays
from penstock.flow.diagnosis import answer_of, findings_steps
from penstock.flow.episodes import FlowEdge
from penstock.flow.fast_fail import RequestClassStatistics
from penstock.flow.finding import Finding
from penstock.flow.reason import Reason, id_of
from penstock.flow.views import StageView, SyncView, UndoneView
from penstock.model.clock import Clock
from penstock.model.names import object_id
from penstock.model.record import Record, neutral_record
from penstock.model.steps import Steps

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
    is_floor: bool = False
    """``used`` is what is left, and ``limit`` how much must be."""


class FlowPage(msgspec.Struct, frozen=True):
    """The page as it is sent."""

    body: bytes
    """JSON."""
    named: frozenset[str]
    """Ids of all that findings speak of."""


def flow_page_steps(
    stages: FlowMap,
    *,
    limits: Iterable[LimitView],
    events: Sequence[FlowEvent],
    clock: Clock,
    requests: Iterable[RequestClassStatistics] = (),
    events_dropped: int = 0,
) -> Steps[FlowPage]:
    """Everything an operator asks about flow, as JSON; in steps, a stage is one."""
    offset_ms = clock.wall_ms() - clock.monotonic_ms()
    views = stages.views
    findings = yield from findings_steps(views, stages.troubles, stages.alarms, stages.host)
    answer = answer_of(findings, views)
    named = frozenset(_named([answer, *findings[:FINDINGS_MAX]]))
    blamed = {each.culprit.id for each in (answer, *findings[:FINDINGS_MAX])}
    shown = yield from _shown(views, named)
    per_s = {each.key: each.per_s for each in shown if each.key in named}
    rows: list[bytes] = []
    for view in shown:
        rows.append(_ENCODER.encode(_stage(view, offset_ms, blamed)))
        yield 1 + CONSUMER * len(view.consumers)
    page = {
        "at_ms": clock.wall_ms(),
        "answer": _finding(answer, offset_ms, per_s),
        "diagnosis": _finding(answer, offset_ms, per_s),
        "findings": [_finding(each, offset_ms, per_s) for each in findings[:FINDINGS_MAX]],
        "findings_total": len(findings),
        "readers_left_out": stages.readers_left_out,
        "troubles_dropped": stages.troubles_dropped,
        "stages": msgspec.Raw(b"[" + b",".join(rows) + b"]"),
        "stages_total": stages.stages_total,
        "stages_held": stages.stages_held,
        "stages_left_out": stages.stages_total - len(shown),
        "requests": [
            {"id": f"requests/{each.request_class}", **msgspec.to_builtins(each)}
            for each in requests
        ],
        "limits": [{"id": f"limit/{each.setting}", **msgspec.to_builtins(each)} for each in limits],
        "events_dropped": events_dropped,
        "events": [msgspec.to_builtins(each) for each in list(events)[-EVENTS_SHOWN_MAX:]],
    }
    return FlowPage(_ENCODER.encode(page), named)


_ENCODER: Final = msgspec.json.Encoder()


def _shown(views: Sequence[StageView], named: Collection[str]) -> Steps[list[StageView]]:
    """At most ``STAGES_MAX``: what matters first, and of the rest the busiest of every kind."""
    ranks: list[tuple[int, float, int]] = []
    for number, view in enumerate(views):
        ranks.append((_rank(view, named), -view.per_s, number))
        yield RANK
    ranks.sort()
    first: list[StageView] = []
    rest: dict[str, list[StageView]] = {}
    for rank, _, number in ranks:
        view = views[number]
        if rank < REST:
            first.append(view)
        else:
            rest.setdefault(view.kind, []).append(view)
    yield RANK * len(views)
    left = max(0, STAGES_MAX - len(first))
    kinds = sorted(rest.values(), key=len)
    # Each kind has its part; what it does not need is for those with more.
    for number, found in enumerate(kinds):
        part = found[: left // (len(kinds) - number)]
        left -= len(part)
        first += part
    return first[:STAGES_MAX]


def _finding(finding: Finding, offset_ms: int, per_s: Mapping[str, float]) -> dict[str, Any]:
    """The first six fields are those of the release before; they go with the next.

    ``per_s``: id -> rate of what findings speak of, as far as it has a stage that is shown.
    """
    return {
        "kind": finding.kind,
        "name": str(finding.name),
        "side": finding.side,
        "sentence": finding.sentence,
        "chain": list(finding.chain),
        "share": round(finding.share, 3),
        "id": finding.id,
        "severity": finding.severity,
        "culprit": msgspec.to_builtins(finding.culprit),
        "culprit_id": finding.culprit.id,
        "cause": finding.cause,
        "since_ms": _wall(finding.since_ms, offset_ms),
        "is_now": finding.is_now,
        "waiters": [
            {
                "id": each.id,
                "name": each.name,
                "since_ms": _wall(each.since_ms, offset_ms),
                "share": round(each.share, 3),
                "in_per_s": round(per_s[each.id], 1) if each.id in per_s else None,
            }
            for each in finding.waiters
        ],
        "waiters_total": finding.waiters_total,
        "path": list(finding.path),
        "starved": list(finding.starved),
        "headline": [msgspec.to_builtins(each) for each in finding.headline],
        "detail": finding.detail,
        "do": [msgspec.to_builtins(each) for each in finding.do],
    }


def _wall(monotonic_ms: int | None, offset_ms: int) -> int | None:
    return None if monotonic_ms is None else monotonic_ms + offset_ms


def _named(findings: Iterable[Finding]) -> set[str]:
    """Ids of all that findings speak of."""
    named: set[str] = set()
    for finding in findings:
        named.add(finding.culprit.id)
        named.update(finding.path)
        named.update([each.id for each in finding.waiters])
    return named


CONSUMER: Final = 0.1
"""Steps that a row of a consumer is."""
REST: Final = 3
RANK: Final = 0.03
"""Steps that it is to see which rank a stage has."""


def _rank(view: StageView, named: Collection[str]) -> int:
    """Who comes first: what is held, what goes on, what findings speak of and the log; the rest."""
    if view.is_held:
        return 0
    if view.undone is not None:
        return 1
    return 2 if view.key in named or view.kind == "log" else REST


def _undone(undone: UndoneView | None, offset_ms: int) -> dict[str, Any] | None:
    if undone is None:
        return None
    return {
        "what": undone.what,
        "count": undone.count,
        "since_ms": undone.since_ms + offset_ms,
        "waits_for": undone.waits_for or None,
    }


def _says(says: ClientSays | None, offset_ms: int) -> dict[str, Any] | None:
    """What a consumer's client says of why it takes no more."""
    if says is None:
        return None
    return {
        "cause": says.cause,
        "waiting": says.waiting,
        "limit": says.limit,
        "since_ms": says.since_ms + offset_ms,
    }


def _sync(sync: SyncView | None, offset_ms: int) -> dict[str, Any] | None:
    if sync is None:
        return None
    return {
        "since_ms": _wall(sync.since_ms, offset_ms),
        "p50_ms": sync.p50_ms,
        "p99_ms": sync.p99_ms,
        "unsynced_bytes": sync.unsynced_bytes,
    }


def _stage(view: StageView, offset_ms: int, blamed: Collection[str]) -> dict[str, Any]:
    # Whoever others wait for is slow, whatever it says of itself.
    is_blamed = view.kind == "log" and view.key in blamed and view.state == "running"
    progress = view.progress
    return {
        "id": view.id,
        "waits_for": view.waits_for or None,
        "culprit_id": view.waits_for or None,
        "belongs_to": view.belongs_to or None,
        "sync": _sync(view.sync, offset_ms),
        "oldest_ms": None if progress is None else progress.age_ms,
        "members": [{"id": object_id("client", each), "name": each} for each in view.members],
        "kind": view.kind,
        "name": view.name,
        "state": "slow" if is_blamed else view.state,
        "reason": view.reason.value if view.reason is not None else None,
        "culprit": str(view.culprit) or None,
        "since_ms": _wall(view.since_ms, offset_ms),
        "share": round(view.share, 3),
        "per_s": round(view.per_s, 1),
        "hops": [{"to": to, "per_s": round(per_s, 1)} for to, per_s in view.hops],
        "others": view.others,
        "downstream": list(view.downstream),
        "ready": view.ready,
        "undone": _undone(view.undone, offset_ms),
        "query": msgspec.to_builtins(view.query),
        "consumers": [
            {
                "id": consumer.id,
                "name": consumer.name,
                "connection": consumer.connection or None,
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
                "says": _says(consumer.says, offset_ms),
                "others": consumer.others,
            }
            for consumer in view.consumers
        ],
        "consumers_total": len(view.consumers) + view.consumers_left_out,
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
    seq: int = 0
    """One more than the event before: a gap is what was lost."""
    id: str = ""
    culprit_id: str = ""
    since_ms: int = 0
    """When the episode began."""
    ended: str = ""
    """How it ended (``Episode.ended``); empty while it lasts."""
    peak: int | UnsetType = UNSET
    """Of an alarm: the worst figure of the episode so far, in bytes."""
    limit: int | UnsetType = UNSET
    """Of an alarm: the mark that raises it, in bytes."""
    held_connections: int | UnsetType = UNSET
    """Of an alarm: connections that it has held in this episode so far."""


class FlowEvents:
    """Remembers and logs the edges."""

    __slots__ = (
        "_alarms",
        "_clock",
        "_dropped",
        "_held",
        "counts",
        "episodes",
        "recent",
        "seq",
        "stalled_ms",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.recent: deque[FlowEvent] = deque(maxlen=EVENTS_MAX)
        self.counts = {"entered": 0, "left": 0}
        self.seq = 0
        """Of the newest event."""
        self._dropped = 0
        # Alarm -> (episodes told, when the one that lasts began).
        self._alarms: dict[str, tuple[int, int | None]] = {}
        # Alarm -> connections that its episodes held which are over.
        self._held: Counter[Reason] = Counter()
        self.episodes: Counter[tuple[str, str]] = Counter()
        """(kind of stage, reason) -> episodes begun."""
        self.stalled_ms: Counter[tuple[str, str]] = Counter()
        """(kind of stage, reason) -> time held, of episodes that are over."""

    def note(self, edges: Iterable[FlowEdge], dropped: int = 0) -> list[FlowEvent]:
        """Tell about edges, oldest first; the events they are.

        ``dropped``: edges that were lost since the broker started, each older than any of these.
        """
        self.seq += dropped - self._dropped
        self._dropped = dropped
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        events = self._numbered([_event(edge, offset_ms) for edge in edges])
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
        events = self._numbered(events)
        self.recent.extend(events)
        return events

    def alarms(
        self, alarms: Iterable[Alarm], held: Mapping[Reason, int] = MappingProxyType({})
    ) -> list[FlowEvent]:
        """Alarms that were raised or cleared since the last call, each an event of its own.

        ``held``: how many connections each has held since the broker started.
        """
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        now_ms = self._clock.wall_ms()
        found: list[FlowEvent] = []
        for alarm in alarms:
            told, since_ms = self._alarms.get(alarm.name, (0, None))
            head = ("alarm", alarm.name, alarm.reason.value, alarm.culprit)
            alarm_id = f"alarm/{alarm.name}"
            total = held.get(alarm.reason, 0)
            figures = {
                "peak": alarm.peak,
                "limit": alarm.limit,
                "held_connections": total - self._held[alarm.reason],
            }
            if since_ms is not None and (not alarm.is_raised or alarm.episodes > told):
                event = FlowEvent(
                    now_ms,
                    "left",
                    *head,
                    now_ms - since_ms,
                    now_ms - since_ms,
                    1,
                    id=alarm_id,
                    culprit_id=alarm_id,
                    since_ms=since_ms,
                    ended="released",
                )
                found.append(replace(event, **figures))
                since_ms = None
                self._held[alarm.reason] = total
                figures["held_connections"] = 0
            if alarm.since_ms is not None and since_ms is None:
                since_ms = alarm.since_ms + offset_ms
                event = FlowEvent(
                    since_ms,
                    "entered",
                    *head,
                    id=alarm_id,
                    culprit_id=alarm_id,
                    since_ms=since_ms,
                )
                found.append(replace(event, **figures))
            self._alarms[alarm.name] = (alarm.episodes, since_ms)
        return self.remember(found)

    def _numbered(self, events: list[FlowEvent]) -> list[FlowEvent]:
        first = self.seq + 1
        self.seq += len(events)
        return [replace(each, seq=first + at) for at, each in enumerate(events)]

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
    query_id = object_id("query", lease.query)
    return FlowEvent(
        lease.at_ms,
        lease.event,
        "query",
        lease.query,
        lease.cause,
        lease.text,
        id=query_id,
        culprit_id=query_id,
        since_ms=lease.at_ms,
    )


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
    body = (edge.kind, edge.name, edge.reason.value, str(edge.culprit))
    reason = edge.reason
    culprit_id = f"alarm/{reason.value}" if reason.is_resource else id_of(edge.culprit)
    since_ms = edge.since_ms + offset_ms
    if episode is None:
        return FlowEvent(*head, *body, id=edge.stage_id, culprit_id=culprit_id, since_ms=since_ms)
    lasted_ms = episode.until_ms - episode.since_ms
    return FlowEvent(
        *head,
        *body,
        lasted_ms,
        episode.stalled_ms,
        episode.stalls,
        id=edge.stage_id,
        culprit_id=culprit_id,
        since_ms=since_ms,
        ended=episode.ended,
    )


def _log(event: FlowEvent) -> None:
    extra: dict[str, object] = {
        "seq": event.seq,
        "id": event.id,
        "stage": f"{event.kind} {event.name}",
        "reason": event.reason,
        "culprit": event.culprit,
        "culprit_id": event.culprit_id,
    }
    if event.event == "entered":
        logger.info("a stage is held", extra=extra)
    else:
        extra |= {"lasted_s": event.lasted_ms / 1000, "stalled_s": event.stalled_ms / 1000}
        extra |= {"stalls": event.stalls, "ended": event.ended}
        logger.info("a stage runs again", extra=extra)
