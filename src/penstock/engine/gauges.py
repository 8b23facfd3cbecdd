"""What can be seen of an engine: its state and its numbers, for the server and for observers.

Reading changes nothing, except that ``take_flow_edges`` hands its events over once.
"""

from __future__ import annotations

from penstock.engine.connection import Connection
from penstock.engine.flow_map import FlowMap, flow_map
from penstock.engine.parts import Parts
from penstock.engine.queue import Queue
from penstock.engine.statistics import Counters, EngineStatistics, engine_statistics
from penstock.engine.system_topic import SystemTopic
from penstock.flow.alarms import AlarmBoard
from penstock.flow.budgets import BytesPool, UnsentPool
from penstock.flow.diagnosis import StageView
from penstock.flow.episodes import FlowEdge
from penstock.flow.reason import Reason
from penstock.log.reader import Located
from penstock.model.clock import Clock
from penstock.model.ids import QueueId


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
    def appended_messages(self) -> int:
        """Publishes appended since the start."""
        return self._commits.appended_messages

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
    def counters(self) -> Counters:
        """What happened since the start; to be read only."""
        return self._parts.counters

    @property
    def alarms(self) -> AlarmBoard:
        """Memory and disk (F3)."""
        return self._chain.alarms

    @property
    def inflight_bytes(self) -> int:
        """Used by publishers of their part of ``flow.inflight_bytes_max`` (D22)."""
        return self._chain.pool.used

    @property
    def inflight_bytes_max(self) -> int:
        """That part."""
        return self._chain.pool.bytes_max

    @property
    def inflight_pool(self) -> BytesPool:
        """The pool that pays for what is in flight (D22): adapters draw read-ahead from it."""
        return self._chain.pool

    @property
    def unsent_pool(self) -> UnsentPool:
        """The part that pays for deliveries; for the ``UnsentLimit`` of a whole connection."""
        return self._chain.unsent_pool

    @property
    def free_buffers(self) -> int:
        """Write buffers with nothing unsynced in them (F7)."""
        return self._commits.buffers.free_buffers

    @property
    def log_end(self) -> int:
        """Position at which the log ends: how far behind it a record lies tells how cold it is."""
        return self._store.end_position

    @property
    def clock(self) -> Clock:
        """The time by which the engine decides what is due and what is old.

        Adapters turn times to live into moments by this clock, or a jump would part the two.
        """
        return self._chain.clock

    @property
    def connections(self) -> list[Connection]:
        """Every connection."""
        return list(self._chain.connections.values())

    def locate(self, position: int) -> Located | None:
        """The durable record around a position (D4, D7); None when there is none, or it is gone."""
        return (
            self._store.locate(position) if 0 <= position < self._store.durable_position else None
        )

    def undecided(self) -> list[int]:
        """Positions of records that wait for ``release`` or ``cancel_delayed``, oldest first."""
        return self._parts.delays.undecided

    def is_undecided(self, position: int) -> bool:
        """True while the record at a position waits for a decision (D14)."""
        return self._parts.delays.is_undecided(position)

    def queue(self, queue_id: int) -> Queue | None:
        """The queue of that id, if it still exists."""
        return self._parts.registry.queues.get(QueueId(queue_id))

    @property
    def flow_topic(self) -> SystemTopic:
        """Where those edges are told to whoever consumes ``penstock.flow``."""
        return self._parts.flow_topic

    def take_flow_edges(self) -> list[FlowEdge]:
        """Episodes that began or ended since the last call, for logs and events."""
        return self._chain.journal.take_edges()

    def unfinished_episodes(self) -> list[tuple[str, Reason, int]]:
        """(kind of stage, reason, time held so far) of every episode that goes on now."""
        return self._chain.journal.unfinished(self._chain.now_ms)

    def flow_views(self, now_ms: int) -> list[StageView]:
        """Every stage with state, reason, culprit, since and share."""
        return flow_map(self._parts, now_ms).views

    def flow_map(self, now_ms: int, running_max: int) -> FlowMap:
        """The same of all held stages and of some others; all are counted."""
        return flow_map(self._parts, now_ms, running_max)

    def statistics(self) -> EngineStatistics:
        """All numbers at this moment."""
        return engine_statistics(self._parts)
