"""What can be seen of an engine: its state and its numbers, for the server and for observers.

Reading changes nothing, except that ``take_flow_edges`` hands its events over once.
"""

from __future__ import annotations

from penstock.engine.connection import Connection
from penstock.engine.flow_map import flow_views
from penstock.engine.parts import Parts
from penstock.engine.statistics import EngineStatistics, engine_statistics
from penstock.flow.alarm import AlarmBoard
from penstock.flow.diagnosis import StageView
from penstock.flow.journal import FlowEdge
from penstock.flow.reason import Reason


class Gauges:
    """The readable side of ``Engine``."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store
        self._chain = parts.chain
        self._commits = parts.commits

    @property
    def is_failed(self) -> bool:
        """True for good after a failed sync: nothing is stored any more (P4)."""
        return self._commits.failure is not None

    @property
    def log_is_held(self) -> bool:
        """True while nothing is written, because the disk is behind (D8)."""
        return self._commits.is_held

    @property
    def is_store_busy(self) -> bool:
        """True while the commit under way takes longer than ``flow.store_busy_ms`` (F6)."""
        return self._commits.busy.is_busy(self._chain.now_ms)

    @property
    def unsynced_messages(self) -> int:
        """Publishes appended and not durable."""
        return self._commits.unsynced_messages

    @property
    def unsynced_bytes(self) -> int:
        """Log bytes appended and not durable."""
        return self._store.unsynced_bytes

    @property
    def is_durability_awaited(self) -> bool:
        """True when somebody waits for a definition or settlement to become durable (D6)."""
        return self._commits.is_awaited

    @property
    def alarms(self) -> AlarmBoard:
        """Memory and disk (F3)."""
        return self._chain.alarms

    @property
    def inflight_bytes(self) -> int:
        """Used of the pool ``flow.inflight_bytes_max`` (D22)."""
        return self._chain.pool.used

    @property
    def free_buffers(self) -> int:
        """Write buffers with nothing unsynced in them (F7)."""
        return self._commits.buffers.free_buffers

    @property
    def connections(self) -> list[Connection]:
        """Every connection."""
        return list(self._chain.connections.values())

    def take_flow_edges(self) -> list[FlowEdge]:
        """Episodes that began or ended since the last call, for logs and events."""
        return self._chain.journal.take_edges()

    def unfinished_episodes(self) -> list[tuple[str, Reason, int]]:
        """(kind of stage, reason, time held so far) of every episode that goes on now."""
        return self._chain.journal.unfinished(self._chain.now_ms)

    def flow_views(self, now_ms: int) -> list[StageView]:
        """Every stage with state, reason, culprit, since and share."""
        return flow_views(self._parts, now_ms)

    def statistics(self) -> EngineStatistics:
        """All numbers at this moment."""
        return engine_statistics(self._parts)
