"""A broker core in memory: store, engine and clock, ready to be driven by hand.

    core = in_memory_engine()
    topic = core.engine.create_topic(topic_name("orders"))
    core.settle()                       # turns and syncs until nothing is left to do

``MemoryLog`` is the store alone. Both take a storage of your own, such as a ``SimulatedStorage``,
and can be killed and started again on what it kept.
"""

from dataclasses import dataclass

from penstock.engine.broker import Engine
from penstock.log.catalog import Catalog
from penstock.log.recovery import Recovered
from penstock.log.storage import Storage
from penstock.log.store import Store
from penstock.model.ids import ConnectionId
from penstock.settings.load import Settings
from penstock.testing.catalog import MemoryCatalog
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
