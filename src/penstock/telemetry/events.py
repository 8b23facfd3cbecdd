"""Flow events: the edges of episodes, each told once (flow-control.md section 3).

A stage that is held a hundred times a second is one line when it begins and one when it is over,
with how long it lasted; the engine's journal has already joined the stalls to episodes. The newest
events stay in memory for ``/api/flow``; as records (``flow_record``) they go to the system topic
``penstock.flow``.
"""

import logging
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.engine.spark.query import LeaseTold
from penstock.flow.credit import stage_label
from penstock.flow.episodes import FlowEdge
from penstock.flow.reason import Reason
from penstock.model.clock import Clock
from penstock.model.record import Record, neutral_record

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

    def tell(self, events: list[FlowEvent]) -> list[FlowEvent]:
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


def lease_event(told: LeaseTold) -> FlowEvent:
    """A lease that broke or holds again (F18)."""
    return FlowEvent(told.at_ms, told.event, "query", told.query, told.cause, told.text)


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
