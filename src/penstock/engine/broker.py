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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import msgspec

from penstock.engine.commit import Answers, Commits, Settling
from penstock.engine.connection import Connection, ConnectionOptions
from penstock.engine.dead_letter import DeadLetters
from penstock.engine.delay import Delays
from penstock.engine.flow_context import FlowContext
from penstock.engine.flow_map import FLOW_TOPIC, SystemTopic, flow_map
from penstock.engine.host import Awaiting, DelayedRoom, SubscribedQueue, SubscriptionOptions
from penstock.engine.ports import DeadLetterFormat, FactsReader, Outlet
from penstock.engine.publish import Admission, FrameBuilder, PublishPipeline
from penstock.engine.pull import Pull, PullService
from penstock.engine.registry import SYSTEM_KINDS, Registry, TopicDeletion
from penstock.engine.restart import restore
from penstock.engine.spark.query import QueryRegistry
from penstock.engine.spark.query_service import QueryService
from penstock.engine.statistics import Counters, EngineStatistics, Tallies, engine_statistics
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import Queue, Topic, TopicPolicy
from penstock.engine.turn import Housekeeping, TurnRunner
from penstock.engine.waiting import WaitingRoom
from penstock.flow.alarms import AlarmBoard
from penstock.flow.budgets import BytesPool, UnsentPool
from penstock.flow.diagnosis import StageView
from penstock.flow.episodes import FlowEdge
from penstock.flow.long_poll import HeldPulls
from penstock.flow.reason import Reason
from penstock.log.commit import SyncJob
from penstock.log.encode import Appending
from penstock.log.format import CursorState
from penstock.log.reader import Located
from penstock.log.recovery import Recovered
from penstock.log.store import Store
from penstock.model.clock import Clock
from penstock.model.errors import AlreadyExists, InvariantBroken, NotFound, SettingsError
from penstock.model.ids import ConnectionId, QueueId
from penstock.model.names import TopicName
from penstock.model.record import Record
from penstock.model.refusal import Refusal
from penstock.model.settlement import Cause
from penstock.settings.broker import TopicSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings

if TYPE_CHECKING:
    from penstock.engine.flow_map import FlowMap
    from penstock.flow.credit import Credit


# ---- parts --------------------------------------------------------------------------------------
# The parts of an engine, wired together once.
#
# The order of construction is the order of dependence; the two places where it runs in a circle (a
# durable frame wakes readers, a reader asks its host) go through small functions defined here.


NO_OFFSET = -1


class Parts:
    """Everything an engine is made of."""

    def __init__(
        self,
        store: Store,
        recovered: Recovered,
        clock: Clock,
        settings: Settings,
        burials: Mapping[int, DeadLetterFormat],
    ) -> None:
        self.store = store
        self.chain = FlowContext(clock, settings)
        self.turns = TurnRunner(self)
        self.counters = Counters()
        self.answers = Answers(self.counters)
        self.registry = Registry(store, self.chain)
        self.settling = Settling(self.chain)
        self.dead_letters = DeadLetters(self.chain, self.registry.topics.get, burials)
        self.commits = Commits(store, self.chain, settings, self.answers, self.turns.durable)
        self.flow_topic = SystemTopic(
            FLOW_TOPIC,
            self.chain,
            self.registry,
            self.commits,
            is_on=settings.flow.events_topic,
        )
        self.delays = Delays(store, self.chain, self._queue_of)
        self.collector = FrameBuilder(settings.flow.turn_bytes_max, self.commits.buffers)
        self.intake = PublishPipeline(
            self.chain,
            Admission(self.chain.clock, settings, self.chain.alarms, self._bury_refused),
            self.collector,
            delays=self.delays,
            answers=self.answers,
            counters=self.counters,
        )
        self.host = EngineHost(self, recovered)
        self.held_pulls: HeldPulls[Pull] = HeldPulls()
        self.pulls = PullService(self.host, self.held_pulls)
        self.chain.disconnected = self._disconnected
        self.waiting = WaitingRoom(self.chain, self.commits)
        self.housekeeping = Housekeeping(
            store, self.chain, settings.storage, self.registry, self.settling
        )
        queries = QueryRegistry(self, settings.spark)
        self.queries = QueryService(self, queries)
        self.housekeeping.kept = queries.lowest_kept
        self.leaving = TopicDeletion(self.commits, self._has_unsafe_letters, self.remove_topic)
        self.removal_watchers: list[Callable[[Topic], None]] = []

    def remove_topic(self, topic: Topic, cause: str) -> None:
        """Delete a topic: consumers are told, parcels on their way to it are unroutable."""
        for subscription in list(topic.subscriptions.values()):
            self.remove_subscription(topic, subscription, cause)
        self.registry.remove_topic(topic)
        for queue in topic.queues:
            for parcel in self.collector.remove(queue):
                connection = parcel.channel.connection
                if connection.pending.done(len(parcel.publications)):
                    self.chain.mark(connection)
                self.answers.unroutable(parcel)
            for connection in self.chain.connections.values():
                connection.forget_queue(queue)
            self.pulls.deleted(queue)
        for watcher in self.removal_watchers:
            watcher(topic)
        self.chain.stir()

    def remove_subscription(self, topic: Topic, subscription: Subscription, cause: str) -> None:
        """Delete a subscription: its consumers are told, what it did not save is forgotten."""
        subscription.close(cause)
        self.registry.remove_subscription(topic, subscription)
        self.settling.forget(subscription)
        self.turns.forget(subscription)

    def expire(self, topic: Topic) -> None:
        """Nobody used the topic for as long as its policy allows."""
        self.leaving.retire(topic, "expired")

    def refuse_collected(self, refusal: Refusal) -> None:
        """Refuse what waits in queues: nothing can be stored any more."""
        for parcel in self.collector.take_all():
            connection = parcel.channel.connection
            connection.refund(parcel.charge)
            if connection.pending.done(len(parcel.publications)):
                self.chain.mark(connection)
            self.answers.refuse(parcel.channel, parcel.publications, refusal)

    @property
    def is_anybody_waiting(self) -> bool:
        """True when a request is held, or queries are to be looked after: mostly there are none."""
        return bool(
            self.waiting.is_used
            or self.held_pulls.held
            or self.queries.held.held
            or self.queries.registry.look_ms is not None
        )

    def _has_unsafe_letters(self) -> bool:
        return self.dead_letters.is_unsafe(self.store.durable_position)

    def _disconnected(self, connection: Connection) -> None:
        self.pulls.disconnected(connection.outlet)

    def _queue_of(self, queue_id: int) -> Queue | None:
        return self.registry.queues.get(QueueId(queue_id))

    def _bury_refused(self, queue: Queue, record: Record) -> None:
        self.dead_letters.bury(queue, NO_OFFSET, record, Cause.DROPPED_HEAD, 0)


class EngineHost:
    """The engine as its subscriptions see it (``host.Host``)."""

    def __init__(self, parts: Parts, recovered: Recovered) -> None:
        self._parts = parts
        self._chain = parts.chain
        self.clock: Clock = parts.chain.clock
        self.flow: FlowSettings = parts.chain.flow
        self.topics: TopicSettings = parts.chain.topics
        self.unsent_pool: UnsentPool = parts.chain.unsent_pool
        self.wake = cast("Callable[[Awaiting], None]", parts.turns.wake)
        """Dispatch it in this turn or the next."""
        # The other half is for what is delayed for whole topics (``delay.py``).
        self.delayed_room = DelayedRoom(-(-self.topics.delayed_in_memory_max // 2), self.wake)
        self.transient_floor = int(recovered.start_position)
        self.recent: Callable[[list[int]], list[Record] | None] = parts.store.recent
        """The records at these positions if they are at hand and were stored in a row."""
        self.note_settlement: Callable[[Awaiting], None] = parts.settling.note
        """Ask it for its settlements before the next append."""

    def read(self, wanted: Sequence[tuple[int, int]]) -> list[Record | None]:
        """The records at (position, length)."""
        return self._parts.store.read(wanted)

    def dead_letter(
        self, queue: SubscribedQueue, offset: int, record: Record, cause: Cause, attempts: int
    ) -> None:
        self._parts.dead_letters.bury(cast("Queue", queue), offset, record, cause, attempts)

    def carry(self, record: Record, target: SubscribedQueue) -> None:
        """Append it in the next frame."""
        self._parts.dead_letters.carry(record, cast("Queue", target))


# ---- gauges -------------------------------------------------------------------------------------
# What can be seen of an engine: its state and its numbers, for the server and for observers.
#
# Reading changes nothing, except that ``take_flow_edges`` hands its events over once.


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
        return self._chain.alarms

    @property
    def inflight_bytes(self) -> int:
        """Used by publishers of their part of ``flow.inflight_bytes_max`` (D22)."""
        return self._chain.pool.used

    @property
    def inflight_bytes_max(self) -> int:
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


# ---- broker -------------------------------------------------------------------------------------


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
        burials: Mapping[int, DeadLetterFormat] | None = None,
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
        self._parts.queries.registry.restore()
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
        return self._registry.grow_topic(name, queues)

    def set_policy(self, name: TopicName, policy: TopicPolicy) -> Topic:
        topic = self._registry.set_policy(name, policy)
        self._parts.queries.registry.look_now()
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
    def pulls(self) -> PullService:
        """Readers that name their offsets (``pull.py``)."""
        return self._parts.pulls

    @property
    def queries(self) -> QueryService:
        """Spark queries: readers of the bulk lane."""
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


# ---- credits ------------------------------------------------------------------------------------
# The credit of each hop, changed while messages are under way (F1).
#
# | reader_channel   a connection may be ahead of each of its channels
# | channel_queue    a channel may be ahead of each queue it publishes to
# | queue_log        a queue may be ahead of the log's sync
#
# A change holds for every credit there is and for all that are made later; what is in flight stays
# counted. Lowering it may hold a sender at once, raising it frees one at once.


HOPS: Final = ("reader_channel", "channel_queue", "queue_log")


class HopCredit(msgspec.Struct, frozen=True):
    """How far a sender may be ahead, and how much is given back at a time."""

    credit: int
    more: int


def hop_credits(chain: FlowContext) -> dict[str, HopCredit]:
    flow = chain.flow
    return {
        hop: HopCredit(getattr(flow, f"{hop}_credit"), getattr(flow, f"{hop}_more")) for hop in HOPS
    }


def set_hop_credit(chain: FlowContext, registry: Registry, hop: str, wanted: HopCredit) -> None:
    """Put another credit in force; raises ``SettingsError`` when it makes no sense."""
    if hop not in HOPS:
        raise SettingsError(f"there is no hop {hop!r}; use one of {', '.join(HOPS)}")
    chain.flow = _changed(chain.flow, hop, wanted)
    for credit in list(_credits(chain, registry, hop)):
        credit.resize(initial=wanted.credit, more=wanted.more)
    for connection in chain.connections.values():
        chain.mark(connection)
    chain.refresh_gates()
    chain.stir()


def _changed(flow: FlowSettings, hop: str, wanted: HopCredit) -> FlowSettings:
    """The settings with another credit; they check themselves that its two figures fit."""
    credit, more = wanted.credit, wanted.more
    if hop == "reader_channel":
        return replace(flow, reader_channel_credit=credit, reader_channel_more=more)
    if hop == "channel_queue":
        return replace(flow, channel_queue_credit=credit, channel_queue_more=more)
    return replace(flow, queue_log_credit=credit, queue_log_more=more)


def _credits(chain: FlowContext, registry: Registry, hop: str) -> Iterator[Credit]:
    if hop == "queue_log":
        for queue in registry.queues.values():
            yield queue.log_credit
        return
    for connection in chain.connections.values():
        for channel in connection.channels.values():
            if hop == "reader_channel":
                yield channel.credit
            else:
                yield from channel.queue_credits.values()
