"""A broker core in memory: store, engine and clock, ready to be driven by hand.

    core = in_memory_engine()
    topic = core.engine.create_topic(topic_name("orders"))
    core.settle()                       # turns and syncs until nothing is left to do

``MemoryLog`` is the store alone. Both take a storage of your own, such as a ``SimulatedStorage``,
and can be killed and started again on what it kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.engine.broker import Engine
from penstock.log.catalog import Catalog, Op, RowKey
from penstock.log.recovery import Recovered
from penstock.log.storage import Storage
from penstock.log.store import Store
from penstock.model.errors import AppendFailed
from penstock.model.ids import ConnectionId
from penstock.settings.load import Settings
from penstock.testing.clock import ManualClock
from penstock.testing.outlet import RecordingOutlet
from penstock.testing.storage import MemoryStorage

TURNS_MAX = 10_000
"""An engine that still wants turns after this many is spinning, not working."""


class MemoryLog:
    """A store on memory; ``recovered`` says what it found when it was opened."""

    def __init__(
        self,
        storage: Storage | None = None,
        catalog: Catalog | None = None,
        *,
        settings: Settings | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.storage: Storage = storage if storage is not None else MemoryStorage()
        self.catalog: Catalog = catalog if catalog is not None else MemoryCatalog()
        self.settings = settings if settings is not None else Settings()
        self.clock = clock if clock is not None else ManualClock()
        self.store: Store
        self.recovered: Recovered
        self.store, self.recovered = Store.open(
            self.storage, self.catalog, self.settings.storage, self.clock
        )

    def sync(self) -> None:
        """One commit, start to end, if there is anything to commit."""
        job = self.store.take_sync_job()
        if job is not None:
            job.run()
            self.store.synced(job, None)


@dataclass
class Core:
    """An engine and everything under it."""

    log: MemoryLog
    engine: Engine
    connections: int = 0

    @property
    def clock(self) -> ManualClock:
        """The clock everything reads."""
        return self.log.clock

    @property
    def store(self) -> Store:
        """The store under the engine."""
        return self.log.store

    def connect(self, name: str = "") -> RecordingOutlet:
        """A new connection with one channel, spoken to through the outlet that comes back."""
        self.connections += 1
        outlet = RecordingOutlet()
        connection_id = ConnectionId(self.connections)
        outlet.connection = self.engine.connect(
            connection_id, outlet, name or f"test-{self.connections}"
        )
        outlet.channel = outlet.connection.open_channel()
        return outlet

    def sync(self) -> None:
        """One commit, start to end, if anything waits for it; a failure is told, not raised."""
        job = self.engine.take_sync_job()
        if job is None:
            return
        error: Exception | None = None
        try:
            job.run()
        except Exception as problem:  # any failure means "not durable"; the engine decides
            error = problem
        self.engine.synced(job, error)

    def settle(self) -> None:
        """Turns and commits until there is nothing left to do now."""
        for _ in range(TURNS_MAX):
            self.engine.turn()
            self.sync()
            if not self.engine.needs_turn:
                return
        raise AssertionError(f"the engine still wants a turn after {TURNS_MAX} of them")


def in_memory_engine(
    storage: Storage | None = None,
    catalog: Catalog | None = None,
    *,
    settings: Settings | None = None,
    clock: ManualClock | None = None,
) -> Core:
    """A whole broker core without files, threads, sockets or real time."""
    log = MemoryLog(storage, catalog, settings=settings, clock=clock)
    return Core(log, Engine(log.store, log.recovered, log.clock, log.settings))


# ---- catalog ------------------------------------------------------------------------------------
# A catalog in memory: rows that outlive the process, as SQLite's do.
#
# ``apply`` is atomic and durable when it returns, so after ``kill()`` or ``crash()`` the heir has
# exactly what was last applied. It fails on request, before anything is changed, like a transaction
# that was rolled back; or *after* it was applied, like a commit whose answer was lost.


class MemoryCatalog:
    """Satisfies ``log.catalog.Catalog``."""

    def __init__(self, rows: dict[RowKey, bytes] | None = None) -> None:
        self.rows: dict[RowKey, bytes] = dict(rows or {})
        self.calls = 0
        """Transactions asked for so far, in all lives."""
        self.fail_at = 0
        """The number of the one transaction that fails, counted from 1; 0 = none."""
        self.failures = 0
        """How many of the next transactions fail."""
        self.is_answer_lost = False
        """Whether a failing transaction is nevertheless applied."""
        self.is_full = False
        """Whether the disk has no room for a transaction; that is not final (P4)."""
        self._is_dead = False

    def load(self) -> dict[RowKey, bytes]:
        return dict(self.rows)

    def apply(self, ops: Sequence[Op]) -> None:
        if self._is_dead:
            raise OSError("this catalog died with its process")
        self.calls += 1
        if self.is_full:
            raise AppendFailed("the catalog's disk is full (planned)")
        if self.failures or self.calls == self.fail_at:
            self.failures = max(0, self.failures - 1)
            if self.is_answer_lost:
                self._write(ops)
            raise OSError("catalog transaction failed (planned)")
        self._write(ops)

    def close(self) -> None: ...

    def kill(self) -> MemoryCatalog:
        """The catalog as the next process finds it."""
        self._is_dead = True
        heir = MemoryCatalog(self.rows)
        heir.calls, heir.fail_at = self.calls, self.fail_at
        heir.is_answer_lost = self.is_answer_lost
        return heir

    def crash(self) -> MemoryCatalog:
        """The same after a power cut: what was applied is on disk."""
        return self.kill()

    def _write(self, ops: Sequence[Op]) -> None:
        for kind, key, body in ops:
            if body is None:
                self.rows.pop((kind, key), None)
            else:
                self.rows[kind, key] = body
