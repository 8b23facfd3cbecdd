"""A running broker as observers see it: what HTTP shows, gathered from all parts.

Reads, never changes; called on the loop between two turns, so everything fits together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final, Generic, TypeVar, cast

import msgspec

from penstock.engine.broker import Engine
from penstock.engine.statistics import TopicStatistics, topic_statistics_steps
from penstock.flow.budgets import IN_FLIGHT_POOL
from penstock.log.store import Store
from penstock.model.clock import Clock
from penstock.model.steps import COUNTER_LOOK, Steps
from penstock.server.listener import ConnectionLimit
from penstock.server.probes import LoopLag, Probes
from penstock.server.pump import Pumps
from penstock.server.turns import Turns
from penstock.settings.load import Settings
from penstock.telemetry.flow_api import (
    STAGES_MAX,
    FlowEvents,
    FlowPage,
    LimitView,
    flow_page_steps,
    flow_record,
    lease_event,
)
from penstock.telemetry.metrics import SERIES_MAX, Exposition
from penstock.telemetry.rabbitmq_metrics import rabbitmq_steps
from penstock.telemetry.statistics import ProcessStatistics


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
        self._flow = CachedPage(self._flow_steps)
        self._exposition = Exposition(engine.counter_families, engine)
        self._metrics = CachedPage(lambda: self._metrics_steps(is_all=False))
        self._whole_metrics = CachedPage(lambda: self._metrics_steps(is_all=True))
        self._rabbitmq_metrics = CachedPage(self._rabbitmq_steps)
        self.events = FlowEvents(clock)
        self.state = "starting"

    def take_events(self) -> None:
        """Log, remember and tell the flow edges since the last call."""
        edges, dropped = self._engine.take_flow_edges(), self._engine.flow_edges_dropped
        events = self.events.note(edges, dropped)
        leases = self._engine.queries.registry.take_lease_events()
        events += self.events.remember([lease_event(each) for each in leases])
        events += self.events.alarms(self._engine.alarms.alarms, self._engine.alarm_holds)
        self._engine.flow_topic.offer([flow_record(event) for event in events])

    def readiness(self) -> Readiness:
        """Whether the broker takes work."""
        alarms = [reason.value for reason in self._engine.alarms.raised]
        return Readiness(self.state == "running", self.state, alarms, self._marks)

    async def flow_page(self) -> bytes:
        """Who is slow, who waits for whom, and why, as JSON."""
        return (await self._flow.get()).body

    async def metrics_page(self, *, is_all: bool = False) -> list[bytes]:
        """All metrics, in pieces of text; of very many topics some by name, or all of them."""
        return await (self._whole_metrics if is_all else self._metrics).get()

    async def rabbitmq_metrics_page(self) -> bytes:
        """What dashboards made for RabbitMQ need."""
        return await self._rabbitmq_metrics.get()

    def _flow_steps(self) -> Steps[FlowPage]:
        self.take_events()
        stages = yield from self._engine.flow_map_steps(self._clock.monotonic_ms(), STAGES_MAX)
        return (
            yield from flow_page_steps(
                stages,
                requests=self._engine.request_queue.statistics(),
                limits=self._limits(),
                events=self.events.recent,
                events_dropped=self._engine.flow_events_dropped,
                clock=self._clock,
            )
        )

    def _metrics_steps(self, *, is_all: bool) -> Steps[list[bytes]]:
        named: Collection[str] = ()
        if not is_all and self._engine.topics_total > SERIES_MAX:
            named = (yield from self._flow_steps()).named
        process = yield from self._process_steps()
        totals = self._engine.totals((yield from self._engine.connection_counts()))
        topics = self._topic_statistics()
        return (
            yield from self._exposition.steps(totals, process, topics, named=named, is_all=is_all)
        )

    def _rabbitmq_steps(self) -> Steps[bytes]:
        process = yield from self._process_steps()
        totals = self._engine.totals((yield from self._engine.connection_counts()))
        return (yield from rabbitmq_steps(totals, process, self._topic_statistics()))

    def _topic_statistics(self) -> Iterator[TopicStatistics | float]:
        wall_ms = self._clock.wall_ms()
        for topic in self._engine.topics():
            yield (yield from topic_statistics_steps(topic, wall_ms))

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
            *self._limits_of_stages(),
            LimitView(
                "connections",
                "listeners.connections_max",
                limit.connections_max,
                limit.taken,
                unit="connections",
                is_reached=limit.taken >= limit.connections_max,
            ),
        ]

    def _limits_of_stages(self) -> list[LimitView]:
        staged, spark = self._engine.staged, self._settings.spark
        return [
            LimitView(
                "staged rows",
                "spark.stage_bytes_max",
                spark.stage_bytes_max,
                staged.size_bytes,
                is_reached=staged.size_bytes >= spark.stage_bytes_max,
            ),
            LimitView(
                "oldest staged rows",
                "spark.stage_ms_max",
                spark.stage_ms_max,
                staged.staged_ms_ago,
                unit="ms",
            ),
        ]

    def _process_steps(self) -> Steps[ProcessStatistics]:
        self.take_events()
        stalled_ms = self.events.stalled_ms_with(())
        for kind, reason, held_ms in self._engine.unfinished_episodes():
            stalled_ms[kind, reason.value] = stalled_ms.get((kind, reason.value), 0) + held_ms
            yield COUNTER_LOOK
        credit_min = yield from self._engine.least_credits()
        probes, limit, store = self._probes, self._pumps.limit, self._store
        return ProcessStatistics(
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
            stalled_ms_total=stalled_ms,
            episodes_total=self.events.episodes,
            events_appended_total=self._engine.flow_topic.appended,
            events_dropped_total=self._engine.flow_events_dropped,
            credit_min=credit_min,
            turns_paced_total=self._turns.turns_delayed,
            syncs_paced_total=self._turns.pacing.syncs_delayed,
            sync_seconds=self._turns.sync_seconds,
            commit_messages=self._turns.commit_messages,
            lag_seconds=self._lag.histogram,
        )


# ---- pages in pieces ----------------------------------------------------------------------------
# Pages that cost time are made in pieces and kept for a while: looking must not slow what is looked
# at.
#
# What makes a page is a generator of steps, each about as much work as a look at one topic; after
# ``STEPS_A_PIECE`` of them everybody else has a turn. Whoever asks meanwhile waits for the same
# page. One that took 1 ms to make is made anew after 4 ms; one that took 100 ms (10,000 queues) is
# shown for 400 ms. So all viewers together take at most ``SHARE`` of the loop, however many they
# are and however often they ask, and a small broker's pages are always fresh.


SHARE: Final = 0.2
IDLE_SECONDS: Final = 30.0
"""A page that nobody asks for any more is given back: one of 10,000 topics has 8 MB."""
STEPS_A_PIECE: Final = 30
"""Half a millisecond to two: topics with messages and readers are dearer than empty ones."""


T = TypeVar("T")


class CachedPage(Generic[T]):
    """The latest page, made again when its age allows."""

    __slots__ = ("_cost", "_forgetting", "_made_at", "_make", "_making", "_page", "_timer")

    def __init__(
        self, make: Callable[[], Steps[T]], timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._make = make
        self._timer = timer
        self._page: T | None = None
        self._made_at = 0.0
        self._cost = 0.0
        self._making: asyncio.Task[T] | None = None
        self._forgetting: asyncio.TimerHandle | None = None

    async def get(self) -> T:
        """The page, at most ``cost / SHARE`` seconds old."""
        page = self._page
        if self._making is None:
            age = self._timer() - self._made_at
            if page is not None and age < self._cost * (1 / SHARE - 1):
                return page
            self._making = asyncio.create_task(self._made())
        # Who hangs up does not take it away from the others.
        return await asyncio.shield(self._making)

    async def _made(self) -> T:
        cost = 0.0
        try:
            steps = self._make()
            while True:
                began = self._timer()
                is_done, page = _piece(steps)
                cost += self._timer() - began
                if is_done:
                    break
                await asyncio.sleep(0)
        finally:
            self._making = None
        self._page, self._cost, self._made_at = page, cost, self._timer()
        if self._forgetting is not None:
            self._forgetting.cancel()
        kept_seconds = max(IDLE_SECONDS, cost / SHARE)
        self._forgetting = asyncio.get_running_loop().call_later(kept_seconds, self._forget)
        return cast("T", page)

    def _forget(self) -> None:
        self._page = None


async def in_pieces(steps: Steps[T], steps_max: float = STEPS_A_PIECE) -> T:
    """What comes of steps; everybody else has a turn whenever so many were made."""
    while True:
        is_done, found = _piece(steps, steps_max)
        if is_done:
            return cast("T", found)
        await asyncio.sleep(0)


def _piece(steps: Steps[T], steps_max: float = STEPS_A_PIECE) -> tuple[bool, T | None]:
    """As many steps as may be made at once; whether that was all, and what came of it."""
    left = steps_max
    try:
        while left > 0:
            left -= next(steps)
    except StopIteration as end:
        return True, end.value
    return False, None


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
