"""What all stages of one engine share (flow-control.md, F1).

connection -credit-> channel -credit-> queue -credit-> log. This file holds the ends that belong to
nobody in particular: the journal of episodes, the pool of in-flight bytes, the alarms, the log's
stage, and the request for a turn.

Invariant: whoever changes something that a turn must look at calls ``request_turn`` (law 4).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, Protocol

from penstock.flow.alarms import AlarmBoard, disk_alarm, memory_alarm, parse_limit
from penstock.flow.budgets import BytesPool, UnsentPool
from penstock.flow.credit import Stage
from penstock.flow.episodes import Journal
from penstock.flow.progress import RunDelay, Troubles
from penstock.flow.reason import Reason
from penstock.model.clock import Clock, steady
from penstock.settings.load import Settings

UNSENT_PART: Final = 4
"""One of so many parts of the in-flight pool is for deliveries. Fixed, because each side must be
able to go on while the other has used up its own: publishers may wait for what consumers drain."""

ASSUMED_BYTES: Final = 16 << 30
"""What a limit like 0.6 is a share of until the server has looked (``set_alarm_limits``)."""


GATES_AT_ONCE: Final = 40
"""Gates looked at in one go when an alarm is raised or over: with thousands of connections each of
which is told of it that would take tens of milliseconds."""


class Gated(Protocol):
    """A connection, whose gate says what holds it (``connection.py``)."""

    def refresh(self) -> None: ...


class FlowContext:
    """Shared parts of the stages of one engine."""

    def __init__(self, clock: Clock, settings: Settings) -> None:
        flow = settings.flow
        self.clock = steady(clock)
        """Both kinds of time; nobody can set this one (T19)."""
        self.flow = flow
        self.topics = settings.topics
        self.journal = Journal(
            clock.monotonic_ms(), window_ms=flow.stall_window_ms, memory_ms=flow.stall_memory_ms
        )
        unsent_bytes_max = flow.inflight_bytes_max // UNSENT_PART
        self.pool = BytesPool(flow.inflight_bytes_max - unsent_bytes_max)
        """What publishers have in flight."""
        self.unsent_pool = UnsentPool(unsent_bytes_max)
        """Deliveries that sockets have not taken."""
        self.alarms = AlarmBoard(
            memory_alarm(parse_limit(flow.memory_limit, ASSUMED_BYTES), flow.memory_low_ratio),
            disk_alarm(parse_limit(flow.disk_free_limit, ASSUMED_BYTES), flow.disk_high_ratio),
        )
        self.alarm_spell = 0
        """Another number after each time in which an alarm was raised."""
        self.alarm_holds: Counter[Reason] = Counter()
        """Alarm -> times that it held a connection."""
        self.log = self.stage("log", "log", "log")
        self.troubles = Troubles()
        """Refusals and losses of the last moments."""
        self.run_delay = RunDelay()
        """What our threads wait for a CPU, as far as somebody tells."""
        self.is_turn_requested = True
        """True when something happened that a turn has to look at."""
        self._marked: dict[Gated, None] = {}
        self.unseen: deque[Gated] = deque()
        """Whose gates are still to be looked at for what concerns all (``mark_all``)."""

    @property
    def now_ms(self) -> int:
        return self.clock.monotonic_ms()

    def stage(self, kind: str, name: str, stage_id: str) -> Stage:
        """A new stage that reports to this engine's journal."""
        return Stage(kind, name, self.journal, stage_id=stage_id)

    def request_turn(self) -> None:
        self.is_turn_requested = True

    def mark(self, connection: Gated) -> None:
        """Something about a connection changed: look at its gate before the turn ends."""
        self._marked[connection] = None
        self.is_turn_requested = True

    def mark_all(self, connections: Iterable[Gated]) -> None:
        """Something changed that may hold or free any of them: each turn looks at some.

        Whoever does something meanwhile is looked at then. Those left over from the last time come
        first.
        """
        self.unseen = deque(dict.fromkeys([*self.unseen, *connections]))
        self.refresh_gates()
        self.is_turn_requested = True

    def refresh_gates(self) -> None:
        """Bring the gates of all marked connections in line with what holds them."""
        unseen = self.unseen
        if unseen:
            for _ in range(min(len(unseen), GATES_AT_ONCE)):
                unseen.popleft().refresh()
        while self._marked:
            marked, self._marked = self._marked, {}
            for connection in marked:
                connection.refresh()
