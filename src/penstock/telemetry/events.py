"""Flow events: the edges of episodes, each told once (flow-control.md section 3).

A stage that is held a hundred times a second is one line when it begins and one when it is over,
with how long it lasted; the engine's journal has already joined the stalls to episodes. The newest
events stay in memory for ``/api/flow``; the system topic ``penstock.flow`` will get them, too.
"""

import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.flow.journal import FlowEdge
from penstock.model.clock import Clock

logger = logging.getLogger(__name__)

EVENTS_MAX: Final = 512
"""Events kept for whoever asks: minutes of a troubled broker, 100 KB at most."""


class FlowEvent(msgspec.Struct, frozen=True, gc=False):
    """One edge as it is shown."""

    at_ms: int
    """Wall time."""
    event: str
    """``entered`` or ``left``."""
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

    __slots__ = ("_clock", "counts", "recent")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.recent: deque[FlowEvent] = deque(maxlen=EVENTS_MAX)
        self.counts = {"entered": 0, "left": 0}

    def note(self, edges: Iterable[FlowEdge]) -> None:
        """Tell about edges, oldest first."""
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        for edge in edges:
            event = _event(edge, offset_ms)
            self.recent.append(event)
            self.counts[event.event] += 1
            _log(event)


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
