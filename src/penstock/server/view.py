"""A running broker as observers see it: what HTTP shows, gathered from all parts.

Reads, never changes; called on the loop between two turns, so everything fits together.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.engine.broker import Engine
from penstock.engine.statistics import EngineStatistics
from penstock.log.store import Store
from penstock.model.clock import Clock
from penstock.server.loop_lag import LoopLag
from penstock.server.places import Places
from penstock.server.probes import Probes
from penstock.server.pumps import Pumps
from penstock.server.readiness import Readiness
from penstock.server.turns import Turns
from penstock.settings.load import Settings
from penstock.telemetry.events import FlowEvents
from penstock.telemetry.flow_api import LimitView, flow_page
from penstock.telemetry.process_statistics import ProcessStatistics

if TYPE_CHECKING:
    from penstock.telemetry.metrics import Exposition


class BrokerView:
    """Implements ``http.app.Observed`` over the parts of one broker."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        engine: Engine,
        store: Store,
        turns: Turns,
        pumps: Pumps,
        probes: Probes,
        lag: LoopLag,
        http_places: Places,
        marks: list[str],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._engine = engine
        self._store = store
        self._turns = turns
        self._pumps = pumps
        self._probes = probes
        self._lag = lag
        self._http_places = http_places
        self._marks = marks
        self._exposition: Exposition | None = None
        self.events = FlowEvents(clock)
        self.state = "starting"

    def take_events(self) -> None:
        """Log and remember the flow edges since the last call; once per look of the probes."""
        self.events.note(self._engine.take_flow_edges())

    def readiness(self) -> Readiness:
        """Whether the broker takes work."""
        statistics = self._engine.alarms
        alarms = [reason.value for reason in statistics.raised]
        return Readiness(self.state == "running", self.state, alarms, self._marks)

    def flow_page(self) -> dict[str, Any]:
        """Who is slow, who waits for whom, and why."""
        self.take_events()
        return flow_page(
            self._engine.flow_views(),
            limits=self._limits(self._engine.statistics()),
            events=self.events.recent,
            clock=self._clock,
        )

    async def metrics_page(self) -> bytes:
        """All metrics; the first call imports the library, beside the loop."""
        if self._exposition is None:
            metrics = await asyncio.to_thread(import_module, "penstock.telemetry.metrics")
            self._exposition = metrics.Exposition(self._gather)
        return self._exposition.page()
