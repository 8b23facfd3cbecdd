"""What runs on the loop around one engine: turns, connections, probes, the loop's own clock.

Put together here, started by ``lifecycle.py`` before the first listener accepts and stopped by it
after the last connection is gone.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.flow.alarms import parse_limit
from penstock.flow.reason import Reason
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.server.banner import Figures, amber_marks
from penstock.server.commit_policy import CommitPolicy
from penstock.server.faults import Faults
from penstock.server.loop_lag import LoopLag
from penstock.server.machine import Machine, disk_bytes
from penstock.server.opening import Opened
from penstock.server.places import http_places, protocol_places
from penstock.server.probes import Probes
from penstock.server.pump import Surroundings
from penstock.server.pumps import Pumps
from penstock.server.queue_hold import QueueHold
from penstock.server.sync_pace import SyncPace
from penstock.server.turns import Turns
from penstock.server.view import BrokerView
from penstock.settings.load import Settings

logger = logging.getLogger(__name__)


class Running:
    """The moving parts of one broker."""

    def __init__(
        self,
        opened: Opened,
        settings: Settings,
        clock: Clock,
        *,
        loop: asyncio.AbstractEventLoop,
        faults: Faults | None,
        failed: Callable[[PenstockError], None],
    ) -> None:
        engine = opened.engine
        self._opened = opened
        self._settings = settings
        self._loop = loop
        self._faults = faults
        self._machine = Machine()
        self._alarms: set[Reason] = set()
        self.turns: Final = Turns(
            engine,
            loop,
            clock,
            CommitPolicy(settings.storage),
            SyncPace(settings.storage),
            failed=failed,
            before_sync=faults.before_sync if faults is not None else None,
        )
        around = Surroundings(engine, self.turns, clock, loop, settings.listeners)
        self.pumps: Final = Pumps(around, protocol_places(settings.listeners))
        self.http_places: Final = http_places(settings.listeners)
        self.lag: Final = LoopLag(loop)
        self.figures: Final = self._measure()
        self.probes: Final = self._make_probes()
        self.view: Final = BrokerView(
            settings,
            clock,
            engine=engine,
            store=opened.store,
            turns=self.turns,
            pumps=self.pumps,
            probes=self.probes,
            lag=self.lag,
            http_places=self.http_places,
            marks=amber_marks(settings),
        )
        if faults is not None:
            faults.queue_hold = QueueHold(engine, self.turns, loop)
            faults.changed = self.probes.look

    def start(self) -> None:
        """Begin to take turns and to look at the machine."""
        self.turns.start()
        self.probes.start()
        self.lag.start()

    def stop(self, seconds_max: float) -> bool:
        """End all of it; False when the commit thread still waits for the disk."""
        self.probes.stop()
        self.lag.stop()
        is_quiet = self.turns.stop(seconds_max)
        self._machine.close()
        return is_quiet

    def _measure(self) -> Figures:
        flow = self._settings.flow
        memory_total = self._machine.memory_bytes()
        disk_total, disk_free = disk_bytes(self._opened.directory)
        return Figures(
            memory_total=memory_total,
            memory_limit=parse_limit(flow.memory_limit, memory_total),
            disk_free=disk_free,
            disk_limit=parse_limit(flow.disk_free_limit, disk_total),
            is_rss_exact=self._machine.is_rss_exact,
        )

    def _make_probes(self) -> Probes:
        engine, figures = self._opened.engine, self.figures
        # Figures first: limits are judged at once, and "0 bytes free" would be an alarm.
        engine.set_alarm("memory", self._rss_bytes())
        engine.set_alarm("disk", self._free_bytes())
        engine.set_alarm_limits(
            memory_bytes=figures.memory_limit, disk_free_bytes=figures.disk_limit
        )
        return Probes(
            engine,
            self._loop,
            rss_bytes=self._rss_bytes,
            free_bytes=self._free_bytes,
            memory_limit=figures.memory_limit,
            disk_limit=figures.disk_limit,
            check_ms=self._settings.flow.alarm_check_ms,
            looked=self._looked,
        )

    def _looked(self) -> None:
        self._tell_alarms()
        self.view.take_events()
        self.turns.request()

    def _tell_alarms(self) -> None:
        """One line when an alarm is raised and one when it is over, also with nobody connected."""
        raised = self._opened.engine.alarms.raised
        for reason in raised.keys() - self._alarms:
            extra = {"alarm": reason.value, "culprit": raised[reason]}
            logger.warning("alarm raised, publishers wait", extra=extra)
        for reason in self._alarms - raised.keys():
            logger.info("alarm cleared", extra={"alarm": reason.value})
        self._alarms = set(raised)

    def _rss_bytes(self) -> int:
        faults = self._faults
        if faults is not None and faults.memory_bytes is not None:
            return faults.memory_bytes
        return self._machine.rss_bytes()

    def _free_bytes(self) -> int:
        faults = self._faults
        if faults is not None and faults.disk_bytes is not None:
            return faults.disk_bytes
        return disk_bytes(self._opened.directory)[1]
