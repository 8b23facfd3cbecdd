"""A running broker as observers see it: what HTTP shows, gathered from all parts.

Reads, never changes; called on the loop between two turns, so everything fits together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from penstock.engine.broker import Engine
from penstock.engine.statistics import EngineStatistics
from penstock.flow.budgets import IN_FLIGHT_POOL
from penstock.log.store import Store
from penstock.model.clock import Clock
from penstock.server.listener import ConnectionLimit
from penstock.server.probes import LoopLag, Probes
from penstock.server.pump import Pumps
from penstock.server.turns import Turns
from penstock.settings.load import Settings
from penstock.telemetry.flow_api import (
    STAGES_MAX,
    FlowEvents,
    LimitView,
    flow_page,
    flow_record,
    lease_event,
)
from penstock.telemetry.rabbitmq_metrics import rabbitmq_page
from penstock.telemetry.statistics import ProcessStatistics

if TYPE_CHECKING:
    from penstock.telemetry.metrics import Exposition


class BrokerView:
    """What HTTP shows of one broker; ``state`` is what ``/readyz`` tells."""

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
        http_limit: ConnectionLimit,
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
        self._http_limit = http_limit
        self._marks = marks
        self._flow = CachedPage(self._make_flow_page)
        self._metrics: CachedPage[bytes] | None = None
        self._rabbitmq_metrics = CachedPage(lambda: rabbitmq_page(*self._gather()))
        self.events = FlowEvents(clock)
        self.state = "starting"

    def take_events(self) -> None:
        """Log, remember and tell the flow edges since the last call."""
        events = self.events.note(self._engine.take_flow_edges())
        leases = self._engine.queries.registry.take_lease_events()
        events += self.events.remember([lease_event(each) for each in leases])
        events += self.events.alarms(self._engine.alarms.alarms)
        self._engine.flow_topic.offer([flow_record(event) for event in events])

    def readiness(self) -> Readiness:
        """Whether the broker takes work."""
        alarms = [reason.value for reason in self._engine.alarms.raised]
        return Readiness(self.state == "running", self.state, alarms, self._marks)

    def flow_page(self) -> dict[str, Any]:
        """Who is slow, who waits for whom, and why."""
        return self._flow.get()

    async def metrics_page(self) -> bytes:
        """All metrics; the first call imports the library, beside the loop."""
        if self._metrics is None:
            metrics = await asyncio.to_thread(import_module, "penstock.telemetry.metrics")
            exposition: Exposition = metrics.Exposition(
                self._gather, self._engine.counter_families, self._engine
            )
            self._metrics = CachedPage(exposition.page)
        return self._metrics.get()

    def rabbitmq_metrics_page(self) -> bytes:
        """What dashboards made for RabbitMQ need."""
        return self._rabbitmq_metrics.get()

    def _make_flow_page(self) -> dict[str, Any]:
        self.take_events()
        return flow_page(
            self._engine.flow_map(self._clock.monotonic_ms(), STAGES_MAX),
            requests=self._engine.request_queue.statistics(),
            limits=self._limits(),
            events=self.events.recent,
            events_dropped=self._engine.flow_events_dropped,
            clock=self._clock,
        )

    def _limits(self) -> list[LimitView]:
        engine, probes = self._engine, self._probes
        alarms, limit = engine.alarms, self._pumps.limit
        storage = self._settings.storage
        free_buffers = engine.free_buffers
        return [
            LimitView(
                "resident memory",
                "flow.memory_limit",
                probes.memory_limit,
                probes.memory_used,
                is_reached=alarms.memory.is_raised,
            ),
            LimitView(
                "free disk",
                "flow.disk_free_limit",
                probes.disk_limit,
                probes.disk_free,
                is_reached=alarms.disk.is_raised,
                is_floor=True,
            ),
            LimitView(
                IN_FLIGHT_POOL,
                "flow.inflight_bytes_max",
                engine.inflight_bytes_max,
                engine.inflight_bytes,
                is_reached=engine.inflight_bytes >= engine.inflight_bytes_max,
            ),
            LimitView(
                "unsent deliveries",
                "flow.inflight_bytes_max",
                engine.unsent_pool.bytes_max,
                engine.unsent_pool.bytes,
                is_reached=engine.unsent_pool.is_short,
            ),
            LimitView(
                "write buffers",
                "storage.write_buffers_max",
                storage.write_buffers_max,
                storage.write_buffers_max - free_buffers,
                unit="buffers",
                is_reached=free_buffers == 0,
            ),
            LimitView(
                "staged rows",
                "spark.stage_bytes_max",
                self._settings.spark.stage_bytes_max,
                engine.staged.size_bytes,
                is_reached=engine.staged.size_bytes >= self._settings.spark.stage_bytes_max,
            ),
            LimitView(
                "connections",
                "listeners.connections_max",
                limit.connections_max,
                limit.taken,
                unit="connections",
                is_reached=limit.taken >= limit.connections_max,
            ),
        ]

    def _gather(self) -> tuple[EngineStatistics, ProcessStatistics]:
        self.take_events()
        probes, limit, store = self._probes, self._pumps.limit, self._store
        unfinished = self._engine.unfinished_episodes()
        return self._engine.statistics(), ProcessStatistics(
            durability=self._settings.storage.durability,
            memory_used=probes.memory_used,
            memory_limit=probes.memory_limit,
            disk_free=probes.disk_free,
            disk_limit=probes.disk_limit,
            inflight_bytes_max=self._engine.inflight_bytes_max,
            unsent_bytes_max=self._engine.unsent_pool.bytes_max,
            unsynced_bytes_max=self._settings.storage.unsynced_bytes_max,
            connections=limit.taken,
            connections_max=limit.connections_max,
            accepted_total=limit.accepted,
            refused_total=limit.refused,
            aborted_total=self._pumps.context.aborted,
            http_connections=self._http_limit.taken,
            log_bytes=store.log_bytes,
            log_bytes_appended_total=store.counters.bytes_appended,
            append_failures_total=store.counters.append_failures,
            corrupt_records_total=store.corrupt_records,
            stalled_ms_total=self.events.stalled_ms_with(unfinished),
            episodes_total=self.events.episodes,
            events_appended_total=self._engine.flow_topic.appended,
            events_dropped_total=self._engine.flow_topic.dropped,
            credit_min=self._credit_min(),
            turns_paced_total=self._turns.turns_delayed,
            syncs_paced_total=self._turns.pacing.syncs_delayed,
            sync_seconds=self._turns.sync_seconds,
            commit_messages=self._turns.commit_messages,
            lag_seconds=self._lag.histogram,
        )

    def _credit_min(self) -> dict[str, int]:
        flow = self._settings.flow
        least = {
            "reader_channel": flow.reader_channel_credit,
            "channel_queue": flow.channel_queue_credit,
            "queue_log": flow.queue_log_credit,
        }
        for connection in self._engine.connections:
            for channel in connection.channels.values():
                least["reader_channel"] = min(least["reader_channel"], channel.credit.available)
                for credit in channel.queue_credits.values():
                    least["channel_queue"] = min(least["channel_queue"], credit.available)
        for topic in self._engine.topics():
            for queue in topic.queues:
                least["queue_log"] = min(least["queue_log"], queue.log_credit.available)
        return least


# ---- rationed -----------------------------------------------------------------------------------
# Pages that cost time are kept for a while: looking must not slow what is looked at.
#
# A page that took 1 ms to make is made anew after 4 ms; one that took 100 ms (10,000 connections,
# all of them held) is shown for 400 ms. So all viewers together take at most ``SHARE`` of the loop,
# however many they are and however often they ask, and a small broker's pages are always fresh.


T = TypeVar("T")

SHARE: Final = 0.2


class CachedPage(Generic[T]):
    """The latest page, made again when its age allows."""

    __slots__ = ("_cost", "_made_at", "_make", "_page", "_timer")

    def __init__(
        self, make: Callable[[], T], timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._make = make
        self._timer = timer
        self._page: T | None = None
        self._made_at = 0.0
        self._cost = 0.0

    def get(self) -> T:
        """The page, at most ``cost / SHARE`` seconds old."""
        began = self._timer()
        page = self._page
        if page is None or began - self._made_at >= self._cost * (1 / SHARE - 1):
            page = self._page = self._make()
            self._made_at = self._timer()
            self._cost = self._made_at - began
        return page


# ---- readiness ----------------------------------------------------------------------------------
# Whether a broker takes work, in the form ``/readyz`` answers.


class Readiness(msgspec.Struct, frozen=True):
    """Whether the broker takes work, and why not."""

    is_ready: bool
    state: str
    """``starting``, ``running``, ``stopping`` or ``failed``."""
    alarms: list[str] = []
    """Raised alarms: publishers wait, all else goes on, so the broker is still ready."""
    amber: list[str] = []
    """Promises weakened by choice, as a durability other than fsync (P3)."""
