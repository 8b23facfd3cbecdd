"""The engine: everything between adapters and the log, behind one door.

Adapters and the server use this class, connections, channels, subscriptions and pulls; nothing
else. It is deterministic: what it does depends on the verbs called, the clock and the store.

Who drives it (``server/turns.py`` or a test)::

    while engine.needs_turn or a deadline is due: engine.turn()
    job = engine.take_sync_job(); job.run() anywhere; engine.synced(job, error)

Not here: what can be seen of it (``gauges.py``), one turn (``turn.py``), the journey in
(``publish.py``) and out (``deliver.py``), how the parts are put together (``parts.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.engine.bulk.desk import QueryDesk
from penstock.engine.connection import Connection, ConnectionOptions
from penstock.engine.credits import HopCredit, hop_credits, set_hop_credit
from penstock.engine.gauges import Gauges
from penstock.engine.parts import Parts
from penstock.engine.ports import Burial, FactsReader, Outlet
from penstock.engine.pull import PullDesk
from penstock.engine.registry import SYSTEM_KINDS
from penstock.engine.restart import restore
from penstock.engine.subscription import Subscription
from penstock.engine.subscription_options import SubscriptionOptions
from penstock.engine.tallies import Tallies
from penstock.engine.topic import Topic, TopicPolicy
from penstock.engine.waiting import WaitingRoom
from penstock.log.commit import SyncJob
from penstock.log.encode import Appending
from penstock.log.format import CursorState
from penstock.log.recovery import Recovered
from penstock.log.store import Store
from penstock.model.clock import Clock
from penstock.model.errors import AlreadyExists, InvariantBroken, NotFound
from penstock.model.ids import ConnectionId
from penstock.model.names import TopicName
from penstock.model.refusal import Refusal
from penstock.settings.load import Settings


class Engine(Gauges):
    """The broker without its sockets."""

    def __init__(
        self,
        store: Store,
        recovered: Recovered,
        clock: Clock,
        settings: Settings,
        *,
        facts: Mapping[int, FactsReader] | None = None,
        burials: Mapping[int, Burial] | None = None,
    ) -> None:
        super().__init__(Parts(store, recovered, clock, settings, burials or {}))
        self._registry = self._parts.registry
        # Asked for in every turn, so the doors to these stand open.
        self.turn: Callable[[], None] = self._parts.turns.run
        """One turn."""
        self.next_deadline_ms: Callable[[], int | None] = self._parts.turns.next_deadline_ms
        """Monotonic time at which a turn is wanted even if nothing happens."""
        self.take_sync_job: Callable[[], SyncJob | None] = self._commits.take_sync_job
        """What the commit thread has to do now; None when nothing, or while one is out."""
        self.next_sync_ms: Callable[[], int | None] = store.next_sync_ms
        """From when on there is a commit to make; None = nothing waits, or one is out."""
        self.facts: Mapping[int, FactsReader] = facts or {}
        """Readers of origin bytes by wire (D15), for filters and observers."""
        self.tallies = Tallies()
        """Counters of adapters, for observers."""
        restore(
            self._registry,
            store,
            recovered,
            delays=self._parts.delays,
            settling=self._parts.settling,
            host=self._parts.host,
        )
        self._parts.queries.book.restore()
        for topic in self._registry.topics.values():
            topic.touch(self._chain.now_ms)
            self._parts.turns.watch(topic)

    # Topics and subscriptions.

    def topic(self, name: TopicName) -> Topic | None:
        """The topic of that name, if there is one."""
        return self._registry.topics.get(name)

    def topics(self) -> list[Topic]:
        """Every topic, in order of creation."""
        return list(self._registry.topics.values())

    def create_topic(
        self,
        name: TopicName,
        *,
        queues: int = 1,
        policy: TopicPolicy | None = None,
        is_durable: bool = True,
    ) -> Topic:
        """A new topic; raises ``AlreadyExists``. Durable once ``after_durable`` calls back."""
        return self._registry.create_topic(
            name, queues=queues, policy=policy or TopicPolicy(), is_durable=is_durable
        )

    def grow_topic(self, name: TopicName, queues: int) -> Topic:
        """More queues for a topic."""
        return self._registry.grow_topic(name, queues)

    def set_policy(self, name: TopicName, policy: TopicPolicy) -> Topic:
        """Other rules for a topic."""
        topic = self._registry.set_policy(name, policy)
        self._parts.queries.book.look_now()
        self._parts.turns.watch(topic)
        self._chain.stir()
        return topic

    def delete_topic(self, name: TopicName, cause: str = "deleted") -> None:
        """A topic goes with its messages and subscriptions, at once; raises ``NotFound``."""
        self._parts.remove_topic(self._registry.topic(name), cause)

    def retire_topic(self, name: TopicName, cause: str = "deleted") -> None:
        """The same as soon as its dead are buried for good (``leaving.py``): mostly at once."""
        self._parts.leaving.retire(self._registry.topic(name), cause)

    def create_subscription(
        self, topic: TopicName, name: str, options: SubscriptionOptions
    ) -> Subscription:
        """A new subscription; raises ``NotFound`` or ``AlreadyExists``.

        A durable one needs a topic that is durable itself.
        """
        found = self._registry.topic(topic)
        found.touch(self._chain.now_ms)
        return self._registry.create_subscription(found, name, options, self._parts.host)

    def delete_subscription(self, topic: TopicName, name: str, cause: str = "deleted") -> None:
        """A subscription goes; raises ``NotFound``."""
        found = self._registry.topic(topic)
        subscription = found.subscriptions.get(name)
        if subscription is None:
            raise NotFound(f"topic '{topic}' has no subscription '{name}'")
        self._parts.remove_subscription(found, subscription, cause)

    # Other definitions.

    def define(self, kind: str, key: str, body: bytes | None) -> None:
        """Store a row of an adapter's own kind, or delete it (``body`` None)."""
        if kind in SYSTEM_KINDS:
            raise AlreadyExists(f"rows of kind '{kind}' belong to the engine; use another kind")
        definitions = self._store.definitions
        if body is None:
            definitions.delete(kind, key)
        else:
            definitions.put(kind, key, body)
        self._chain.stir()

    def definitions(self, kind: str) -> dict[str, bytes]:
        """All rows of a kind, by key."""
        return self._store.definitions.all(kind)

    def after_durable(self, callback: Callable[[], None]) -> None:
        """Call back once every definition and settlement so far is durable.

        Never called after a failed sync.
        """
        self._commits.after_durable(callback)

    def watch_appends(self, watcher: Callable[[Sequence[Appending]], None]) -> None:
        """Call with everything that is appended, in log order, before anybody can read it.

        It runs inside the turn, once per frame: what it costs, every publisher waits for.
        """
        self._commits.append_watchers.append(watcher)

    def watch_removals(self, watcher: Callable[[Topic], None]) -> None:
        """Call with every topic that is gone: deleted by anybody, or expired.

        Its consumers were told before; its rows leave the catalog in the same transaction as
        whatever the watcher deletes.
        """
        self._parts.removal_watchers.append(watcher)

    # Peers.

    def connect(
        self,
        connection_id: ConnectionId,
        outlet: Outlet,
        name: str,
        options: ConnectionOptions | None = None,
    ) -> Connection:
        """A new connection; ``name`` is what people see."""
        if connection_id in self._chain.connections:
            raise InvariantBroken(f"connection id {connection_id} is used twice")
        connection = Connection(
            connection_id, outlet, name, options or ConnectionOptions(), self._parts.intake
        )
        self._chain.connections[connection_id] = connection
        return connection

    @property
    def pulls(self) -> PullDesk:
        """Readers that name their offsets (``pull.py``)."""
        return self._parts.pulls

    @property
    def queries(self) -> QueryDesk:
        """Spark queries: readers of the bulk lane (``bulk/desk.py``)."""
        return self._parts.queries

    @property
    def waiting(self) -> WaitingRoom:
        """Where requests of protocols that fail fast wait (F5)."""
        return self._parts.waiting

    def refuse_now(self) -> Refusal | None:
        """Why a protocol that fails fast refuses a send that comes now (F6, F7), if it does."""
        return self._commits.refuse_now()

    def release(self, position: int, to: Topic | None = None) -> bool:
        """Give a delayed record its offsets now; False when it waits no more (D14).

        With ``to`` it goes to the first queue of that topic, whatever it was stored for.
        """
        return self._parts.delays.release(position, None if to is None else to.queues[:1])

    def cancel_delayed(self, position: int) -> bool:
        """Drop a delayed record; False when it waits no more."""
        return self._parts.delays.cancel(position)

    def note_keys(self, topic: Topic, keys: Iterable[bytes], position: int) -> None:
        """Let a stored message be found by keys that it was published without."""
        self._store.keys.add(topic.topic_id, keys, position, self._chain.clock.wall_ms())

    def positions_of(
        self, topic: Topic, key: bytes, *, begin_ms: int, end_ms: int, count_max: int
    ) -> list[int]:
        """Where messages stored in that time may lie that were published with the key.

        Newest first; hashes may collide, so whoever reads compares the real key.
        """
        return self._store.keys.lookup(
            topic.topic_id, key, begin_ms=begin_ms, end_ms=end_ms, count_max=count_max
        )

    # Driving it.

    @property
    def needs_turn(self) -> bool:
        """True when a turn would move something now."""
        return self._chain.is_stirred

    def synced(self, job: SyncJob, error: Exception | None) -> None:
        """The commit returned: confirms leave, credit comes back, readers see more (D7)."""
        chain, parts = self._chain, self._parts
        chain.journal.tick(chain.clock.monotonic_ms())
        self._commits.synced(job, error)
        parts.answers.say()
        chain.refresh_gates()
        parts.turns.look_after_sync()

    def set_alarm(self, name: str, value: int) -> None:
        """A probe looked: bytes of ``memory`` used, or of ``disk`` free (F3)."""
        self._chain.set_alarm(name, value)

    def set_alarm_limits(self, *, memory_bytes: int, disk_free_bytes: int) -> None:
        """The marks that raise the alarms, once it is known what shares are shares of."""
        self._chain.set_alarm_limits(memory_bytes, disk_free_bytes)

    def credits(self) -> dict[str, HopCredit]:
        """Credit of every hop, as it is given from now on (F1)."""
        return hop_credits(self._chain)

    def set_credit(self, hop: str, credit: int, more: int) -> None:
        """Change a hop's credit, also where messages are under way; ``SettingsError`` says why not.

        Not written anywhere: the next start takes the settings again.
        """
        set_hop_credit(self._chain, self._registry, hop, HopCredit(credit, more))

    def final_cursors(self) -> list[CursorState]:
        """Cursors for ``Store.close``, after the last turn of a clean stop."""
        return self._parts.housekeeping.final_cursors()
