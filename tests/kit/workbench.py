"""A whole engine on a simulated disk, in a test's hands: no loop, no thread, no sleeping.

``Workbench`` opens a store, makes the engine, and offers what a test wants to say in one word: run
turns until nothing moves, sync, let time pass, pull the plug and start again.
"""

from __future__ import annotations

from penstock.engine.broker import Engine
from penstock.engine.connection import Channel, Connection, ConnectionOptions
from penstock.engine.host import SubscriptionOptions
from penstock.engine.ports import FactsReader, Publication, Route
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import Topic, TopicPolicy, route_to
from penstock.log.commit import SyncJob
from penstock.log.store import Store
from penstock.model.errors import InvariantBroken
from penstock.model.ids import ConnectionId
from penstock.model.names import topic_name
from penstock.model.record import Record, neutral_record
from penstock.model.refusal import RefusalKind
from penstock.settings.load import Settings
from penstock.testing.broker import MemoryCatalog
from penstock.testing.clock import ManualClock
from penstock.testing.outlet import RecordingOutlet
from penstock.testing.storage import SimulatedStorage

TURNS_MAX = 10_000
"""An engine that still wants turns after this many is spinning."""


class Workbench:
    """An engine and everything around it."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        seed: int = 0,
        facts: dict[int, FactsReader] | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.clock = ManualClock()
        self.storage = SimulatedStorage(seed)
        self.catalog = MemoryCatalog()
        self.outlet = RecordingOutlet()
        self.store: Store
        self.engine: Engine
        self._facts = facts
        self._connections = 0
        self._tokens = 0
        self._open()

    def _open(self) -> None:
        self.store, recovered = Store.open(
            self.storage, self.catalog, self.settings.storage, self.clock
        )
        self.engine = Engine(self.store, recovered, self.clock, self.settings, facts=self._facts)

    # Peers.

    def connect(
        self, options: ConnectionOptions | None = None, outlet: RecordingOutlet | None = None
    ) -> Connection:
        """A new connection; without an outlet of its own it speaks to ``self.outlet``."""
        self._connections += 1
        number = self._connections
        return self.engine.connect(
            ConnectionId(number), outlet or self.outlet, f"c{number}", options
        )

    def channel(
        self, options: ConnectionOptions | None = None, outlet: RecordingOutlet | None = None
    ) -> Channel:
        """A channel of a new connection."""
        return self.connect(options, outlet).open_channel()

    def topic(
        self,
        name: str = "orders",
        policy: TopicPolicy | None = None,
        *,
        queues: int = 1,
        is_durable: bool = True,
    ) -> Topic:
        """A new topic."""
        return self.engine.create_topic(
            topic_name(name), queues=queues, policy=policy, is_durable=is_durable
        )

    def publish(
        self, channel: Channel, target: Topic | Route[object], *records: Record | bytes
    ) -> list[int]:
        """Publish records, or bodies; the tokens they got."""
        route = route_to(target) if isinstance(target, Topic) else target
        first = self._tokens
        publications = []
        for each in records:
            record = each if isinstance(each, Record) else neutral_record(each)
            publications.append(Publication(record, route=route, token=self._tokens))
            self._tokens += 1
        channel.publish(publications)
        return list(range(first, self._tokens))

    def reader(self, topic: Topic, name: str = "reader") -> Subscription:
        """A subscription without consumers that sees everything appended."""
        return self.engine.create_subscription(
            topic.name, name, SubscriptionOptions(sees_unsynced=True)
        )

    def records(self, topic: Topic, queue: int = 0) -> list[Record]:
        """Everything one queue of a topic has."""
        entries = topic.queues[queue].index.entries(0, 1 << 30)
        found = self.store.read([(entry[0], entry[4]) for entry in entries])
        return [record for record in found if record is not None]

    def bodies(self, topic: Topic, queue: int = 0) -> list[bytes]:
        """The bodies of everything one queue of a topic has."""
        return [record.body for record in self.records(topic, queue)]

    @property
    def refusal_kinds(self) -> list[RefusalKind]:
        """Why publishes of the common outlet were refused, in order."""
        return [refusal.kind for _, refusal in self.outlet.refusals]

    # Time and disk.

    def turns(self) -> int:
        """Run turns until nothing moves; how many."""
        for count in range(TURNS_MAX):
            if not self.engine.needs_turn:
                return count
            self.engine.turn()
        raise InvariantBroken(f"the engine still wants turns after {TURNS_MAX}")

    def sync(self) -> bool:
        """One commit, if there is anything to commit."""
        job = self.engine.take_sync_job()
        if job is not None:
            self.finish(job)
        return job is not None

    def finish(self, job: SyncJob) -> None:
        """Run a commit that was taken, and tell the engine what became of it."""
        error: Exception | None = None
        try:
            job.run()
        except Exception as problem:
            error = problem
        self.engine.synced(job, error)

    def settle(self) -> None:
        """Turns and commits until nothing moves and everything is durable."""
        for _ in range(TURNS_MAX):
            moved = self.turns() > 0
            if not self.sync() and not moved:
                return
        raise InvariantBroken(f"the engine is not at rest after {TURNS_MAX} rounds")

    def advance(self, ms: int) -> None:
        """Let time pass, taking every turn that is wanted or falls due on the way."""
        self.turns()
        end_ms = self.clock.monotonic_ms() + ms
        for _ in range(TURNS_MAX):
            due_ms = self.engine.next_deadline_ms()
            if due_ms is None or due_ms > end_ms:
                self.clock.advance(end_ms - self.clock.monotonic_ms())
                self.turns()
                return
            self.clock.advance(max(0, due_ms - self.clock.monotonic_ms()))
            self.engine.turn()
            self.turns()
        raise InvariantBroken(f"more than {TURNS_MAX} deadlines within {ms} ms")

    # Ends.

    def stop(self) -> None:
        """A clean stop and a new start."""
        self.settle()
        self.store.close(self.engine.final_cursors())
        self.storage, self.catalog = self.storage.kill(), self.catalog.kill()
        self._open()

    def kill(self) -> None:
        """``kill -9`` and a new start: the kernel still has what was written."""
        self.storage, self.catalog = self.storage.kill(), self.catalog.kill()
        self._open()

    def cut_power(self) -> None:
        """A power cut and a new start: only what was synced is sure."""
        self.storage, self.catalog = self.storage.crash(), self.catalog.crash()
        self._open()
