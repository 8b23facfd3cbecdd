"""The engine: everything between adapters and the log, behind one door.

Adapters and the server use this class, connections, channels, subscriptions and pulls; nothing
else. It is deterministic: what it does depends on the verbs called, the clock and the store.

Who drives it (``server/turns.py`` or a test)::

    while engine.needs_turn or a deadline is due: engine.turn()
    job = engine.take_sync_job(); job.run() anywhere; engine.synced(job, error)

Not here: one turn (``turn.py``), the way in (``publish.py``) and out
(``subscription/dispatch.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

import msgspec

from penstock.engine.batch import Batches
from penstock.engine.commit import Commits, PublisherReplies, SettlementBuffer
from penstock.engine.connection import Connection, ConnectionOptions, Outlet
from penstock.engine.content_budget import ContentBudget
from penstock.engine.dead_letter import DeadLetters
from penstock.engine.delay import Delays
from penstock.engine.flow_context import FlowContext
from penstock.engine.flow_map import (
    EVERY_STAGE,
    FLOW_TOPIC,
    FlowEventsTopic,
    FlowMap,
    FlowMapper,
    MembersOf,
    StagesBeside,
)
from penstock.engine.host import (
    DelayedBudget,
    HostedSubscription,
    SubscribedQueue,
    SubscriptionOptions,
)
from penstock.engine.non_persistent import NonPersistentTopics
from penstock.engine.ports import DeadLetterFormat, FactsReader, OrderingKeyReader
from penstock.engine.publish import Admission, FrameBuilder, PublishPipeline
from penstock.engine.pull import Pull, PullService
from penstock.engine.registry import SYSTEM_KINDS, Registry, TopicDeletion
from penstock.engine.request_queue import RequestQueue
from penstock.engine.restart import restore
from penstock.engine.sampler import HopRates, Sampler
from penstock.engine.spark.query import QueryRegistry
from penstock.engine.spark.query_service import QueryService
from penstock.engine.spark.staging import StagedWrites
from penstock.engine.statistics import (
    CounterFamilies,
    EngineCounters,
    EngineStatistics,
    topic_statistics,
)
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import (
    Hold,
    PolicyOverlay,
    Queue,
    Topic,
    TopicPolicy,
    terminated,
)
from penstock.engine.turn import Arrivals, DispatchQueue, Housekeeping, TurnRunner
from penstock.flow.alarms import AlarmBoard
from penstock.flow.budgets import BytesPool, UnsentPool
from penstock.flow.credit import Credit
from penstock.flow.episodes import FlowEdge
from penstock.flow.long_poll import HeldPulls
from penstock.flow.reason import Reason
from penstock.flow.reserve import Reserve
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
from penstock.model.steps import COUNTER_LOOK, Steps, finished
from penstock.settings.broker import TopicSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings

NO_OFFSET: Final = -1
"""Of a publish that was refused before it was stored."""

EDGES_AT_ONCE: Final = 50
"""Edges of episodes that are told in one go: a millisecond of lines and events."""


class Engine:
    """The broker without its sockets: what adapters and the server may ask for.

    It puts the parts together and owns the connections; it decides nothing by itself. Everything
    happens in ``turn`` and ``synced``, on one thread, and what a verb changes takes effect in the
    next of them.
    """

    def __init__(
        self,
        store: Store,
        recovered: Recovered,
        clock: Clock,
        settings: Settings,
        *,
        facts: Mapping[int, FactsReader] | None = None,
        dead_letter_formats: Mapping[int, DeadLetterFormat] | None = None,
    ) -> None:
        self.facts: Mapping[int, FactsReader] = facts or {}
        """Readers of origin bytes by wire (D15), for filters and observers."""
        self.counter_families = CounterFamilies()
        self.members_of, self.stages_beside = list[MembersOf](), list[StagesBeside]()
        self.counters = EngineCounters()
        """What happened since the start; to be read only."""
        self._store = store
        self._chain = chain = FlowContext(clock, settings)
        self.contents: Final = ContentBudget(chain.pool)
        """Connections of all protocols in the midst of a publish, when room is short (D22)."""
        self._count_content_waits()
        self._connections: dict[ConnectionId, Connection] = {}
        self._creation_watchers: list[Callable[[Topic], None]] = []
        self._removal_watchers: list[Callable[[Topic], None]] = []
        # From here on everything is made of what is above it.
        self._replies = PublisherReplies(self.counters, chain)
        self._registry = Registry(store, chain)
        self._settlements = SettlementBuffer(chain)
        self._dead_letters = DeadLetters(
            chain, self._registry.topics.get, dead_letter_formats or {}
        )
        self._delays = Delays(store, chain, self.queue)
        self._dispatch_queue = DispatchQueue(chain)
        self._host = self._engine_host(int(recovered.start_position))
        self.non_persistent = NonPersistentTopics(self._host, store.definitions.new_transient_id)
        """Topics without a log, which ``topics`` does not list."""
        held_pulls: HeldPulls[Pull] = HeldPulls()
        self.pulls = PullService(self._host, held_pulls)
        """Readers that name their offsets (``pull.py``)."""
        self.queries = self._query_service(settings)
        """Spark queries: readers of the bulk lane (``spark/query_service.py``)."""
        self._arrivals = arrivals = Arrivals(chain, held_pulls, self.pulls, self.queries)
        self._commits = Commits(store, chain, settings, self._replies, arrivals.durable)
        self.flow_topic = FlowEventsTopic(
            FLOW_TOPIC, chain, self._registry, self._commits, is_on=settings.flow.events_topic
        )
        """Where flow edges are told to whoever consumes ``penstock.flow``."""
        self._frame_builder = FrameBuilder(settings.flow.turn_bytes_max, self._commits.buffers)
        self._pipeline = self._publish_pipeline(settings)
        self.request_queue = RequestQueue(chain, self._commits)
        """Where requests of protocols that fail fast wait (F5)."""
        self._housekeeping = self._make_housekeeping(settings)
        self.sampler, self.hop_rates = self._sampled()
        self.staged = self.queries.staged = self._staged_writes(settings)
        """What Spark's sinks write (``spark/staging.py``)."""
        self._deletion = TopicDeletion(
            self._commits, self._has_unsafe_dead_letters, self._remove_topic
        )
        self._turns = self._turn_runner(arrivals, held_pulls)
        self._restore(recovered)

    def _sampled(self) -> tuple[Sampler, HopRates]:
        """What rates are made of, of all protocols, to be called when it is due; rates of hops."""
        sampler = Sampler(self._chain.now_ms)
        commits = self._commits
        rates = HopRates(
            sampler, self._registry, self._connections, lambda: commits.appended_messages
        )
        self._removal_watchers.append(rates.removed)
        return sampler, rates

    def _count_content_waits(self) -> None:
        self.counter_families.register(
            "content_waits",
            "Times a connection of any protocol stopped in the midst of a publish for lack of room",
            "room",
            self.contents.waits,
        )

    def _engine_host(self, transient_floor: int) -> EngineHost:
        return EngineHost(
            self._chain,
            self._store,
            self._settlements,
            self._dead_letters,
            cast("Callable[[HostedSubscription], None]", self._dispatch_queue.wake),
            facts=self.facts,
            save_definition=self._registry.save_subscription,
            transient_floor=transient_floor,
        )

    def _query_service(self, settings: Settings) -> QueryService:
        registry = QueryRegistry(
            settings.spark,
            self._chain,
            definitions=self._store.definitions,
            registry=self._registry,
            host=self._host,
            remove_subscription=self._remove_subscription,
        )
        return QueryService(
            registry,
            self._chain,
            store=self._store,
            topics=self._registry.topics,
            transient_floor=self._host.transient_floor,
        )

    def _publish_pipeline(self, settings: Settings) -> PublishPipeline:
        return PublishPipeline(
            self._chain,
            Admission(self._chain.clock, settings, self.alarms, self._dead_letter_refused),
            self._frame_builder,
            delays=self._delays,
            replies=self._replies,
            counters=self.counters,
        )

    def _make_housekeeping(self, settings: Settings) -> Housekeeping:
        return Housekeeping(
            self._store,
            self._chain,
            settings.storage,
            self._registry,
            self._settlements,
            lowest_kept=self.queries.registry.lowest_kept,
        )

    def _staged_writes(self, settings: Settings) -> StagedWrites:
        return StagedWrites(
            settings,
            self._chain,
            store=self._store,
            registry=self._registry,
            commits=self._commits,
            delays=self._delays,
            queries=self.queries.registry,
            create_topic=lambda name, queues, policy, maker: self.create_topic(
                name, queues=queues, policy=policy, maker=maker
            ),
            committed=self._staged_committed,
            appended=self._housekeeping.appended,
        )

    def _staged_committed(self, queues: Iterable[Queue]) -> None:
        """A commit of staged rows is there: everybody may see it at once (D19)."""
        self._arrivals.appended(queues)
        self._arrivals.durable(queues)
        for queue in queues:
            if queue.topic.limits is not None and queue.topic.limits.evicts:
                self._turns.watch(queue.topic)

    def _turn_runner(self, arrivals: Arrivals, held_pulls: HeldPulls[Pull]) -> TurnRunner:
        return TurnRunner(
            self._chain,
            registry=self._registry,
            pipeline=self._pipeline,
            frame_builder=self._frame_builder,
            delays=self._delays,
            settlements=self._settlements,
            dead_letters=self._dead_letters,
            flow_topic=self.flow_topic,
            commits=self._commits,
            replies=self._replies,
            arrivals=arrivals,
            dispatch_queue=self._dispatch_queue,
            held_pulls=held_pulls,
            pulls=self.pulls,
            queries=self.queries,
            request_queue=self.request_queue,
            housekeeping=self._housekeeping,
            deletion=self._deletion,
            non_persistent=self.non_persistent,
            staged=self.staged,
        )

    def _restore(self, recovered: Recovered) -> None:
        restore(
            self._registry,
            self._store,
            recovered,
            delays=self._delays,
            settlements=self._settlements,
            host=self._host,
        )
        self.queries.registry.restore()
        for topic in self._registry.topics.values():
            topic.touch(self._chain.now_ms)
            self._turns.watch(topic)

    # Topics and subscriptions.

    def topic(self, name: TopicName) -> Topic | None:
        """The topic of that name, if there is one."""
        return self._registry.topics.get(name)

    @property
    def topics_total(self) -> int:
        return len(self._registry.topics)

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
        maker: str = "",
        protocol: str = "",
    ) -> Topic:
        """A new topic; raises ``AlreadyExists``. Durable once ``after_durable`` calls back.

        ``maker`` is whom its queues are counted for (``flow/reserve.py``), ``protocol`` whose
        clients it is for in the first place.
        """
        topic = self._registry.create_topic(
            name,
            queues=queues,
            policy=policy or TopicPolicy(),
            is_durable=is_durable,
            maker=maker,
            protocol=protocol,
        )
        for watcher in self._creation_watchers:
            watcher(topic)
        return topic

    def new_reserve(self) -> Reserve:
        """Who made how many, for a table of a protocol's own."""
        return Reserve(self._chain.topics.reserve_percent)

    def grow_topic(self, name: TopicName, queues: int) -> Topic:
        return self._registry.grow_topic(name, queues)

    def set_policy(self, name: TopicName, policy: TopicPolicy) -> Topic:
        topic = self._registry.set_policy(name, policy)
        self.queries.registry.look_now(topic)
        self._turns.watch(topic)
        self._chain.request_turn()
        return topic

    def apply_policies(self, changes: Iterable[tuple[Topic, TopicPolicy]]) -> None:
        """Other rules for living topics, not stored: who makes them brings them after a restart."""
        for topic, policy in changes:
            ttl_ms = topic.policy.message_ttl_ms
            self._registry.apply_policy(topic, policy)
            self._policy_changed(topic, ttl_ms)
        self._chain.request_turn()

    def overlay_policies(self, changes: Iterable[tuple[Topic, PolicyOverlay | None]]) -> None:
        """Rules over those of the owners of living topics, not stored either; None = no more.

        They stay in effect when an owner changes his. A topic has one overlay: the last one given.
        """
        for topic, overlay in changes:
            ttl_ms = topic.policy.message_ttl_ms
            self._registry.overlay_policy(topic, overlay)
            self._policy_changed(topic, ttl_ms)
        self._chain.request_turn()

    def _policy_changed(self, topic: Topic, ttl_ms_before: int) -> None:
        if topic.limits is not None:
            self._turns.watch(topic)
        if topic.policy.message_ttl_ms != ttl_ms_before:
            for subscription in topic.subscriptions.values():
                subscription.ttl_changed()
        self.queries.registry.look_now(topic)

    def terminate_topic(self, name: TopicName) -> tuple[int, ...]:
        """A topic takes no more messages, of any protocol, for good; raises ``NotFound``.

        Returns the last offset of each queue, -1 where there is none. What is stored stays and is
        read; what was published and has no offset yet is refused, except what is delayed: it was
        confirmed. Once more changes nothing. Durable once ``after_durable`` calls back.
        """
        topic = self._registry.topic(name)
        if not topic.is_terminated:
            self._registry.terminate(topic)
            for queue in topic.queues:
                self._pipeline.turn_away(queue, terminated(topic))
            self.queries.registry.look_now(topic)
        return tuple([queue.index.next_offset - 1 for queue in topic.queues])

    def verdict(self, topic: Topic) -> Refusal | Hold | None:
        """What a producer that begins now would be told of every publish; None = come in.

        A terminated topic refuses, a backlog quota holds or refuses (F8); alarms are ``alarms``.
        """
        limits = topic.limits
        return None if limits is None else limits.verdict(self._chain.clock.wall_ms())

    def delete_topic(self, name: TopicName, cause: str = "deleted") -> None:
        """A topic goes with its messages and subscriptions, at once; raises ``NotFound``."""
        self._remove_topic(self._registry.topic(name), cause)

    def retire_topic(self, name: TopicName, cause: str = "deleted") -> None:
        """The same once its dead letters are durable (``TopicDeletion``): mostly at once."""
        self._deletion.retire(self._registry.topic(name), cause)

    def create_subscription(
        self, topic: TopicName, name: str, options: SubscriptionOptions
    ) -> Subscription:
        """A new subscription; raises ``NotFound`` or ``AlreadyExists``.

        A durable one needs a topic that is durable itself.
        """
        found = self._registry.topic(topic)
        found.touch(self._chain.now_ms)
        return self._registry.create_subscription(found, name, options, self._host)

    def subscribe_queue(
        self, topic: TopicName, name: str, queue_id: QueueId, options: SubscriptionOptions
    ) -> Subscription:
        """A subscription reads this queue, too; one that is not there is made, of this queue only.

        Of one that is there the options say only where it begins in the queue. Raises ``NotFound``
        or ``AlreadyExists``; durable once ``after_durable`` calls back.
        """
        found = self._registry.topic(topic)
        queue = self._registry.queues.get(queue_id)
        if queue is None or queue.topic is not found:
            raise NotFound(f"topic '{topic}' has no queue with id {queue_id}; it has other queues")
        found.touch(self._chain.now_ms)
        return self._registry.subscribe_queue(found, name, queue, options, host=self._host)

    def unsubscribe_queue(
        self, topic: TopicName, name: str, queue_id: QueueId, cause: str = "unsubscribed"
    ) -> None:
        """A subscription reads this queue no more, and goes with its last; raises ``NotFound``.

        What nobody else needs of the queue may go, the queue itself stays.
        """
        found = self._registry.topic(topic)
        subscription = self._subscription(found, name)
        if subscription.queue_ids == [queue_id]:
            self._remove_subscription(found, subscription, cause)
            return
        subscription.remove_queue(queue_id, cause)
        self._registry.unsubscribed(subscription, queue_id)

    def delete_subscription(self, topic: TopicName, name: str, cause: str = "deleted") -> None:
        """A subscription goes; raises ``NotFound``."""
        found = self._registry.topic(topic)
        self._remove_subscription(found, self._subscription(found, name), cause)

    def _subscription(self, topic: Topic, name: str) -> Subscription:
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise NotFound(f"topic '{topic.name}' has no subscription '{name}'")
        return subscription

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
        self._chain.request_turn()

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

    def watch_creations(self, watcher: Callable[[Topic], None]) -> None:
        """Call with every new topic over the log, whoever makes it, before anything is in it."""
        self._creation_watchers.append(watcher)

    def watch_removals(self, watcher: Callable[[Topic], None]) -> None:
        """Call with every topic that is gone: deleted by anybody, or expired.

        Its consumers were told before; its rows leave the catalog in the same transaction as
        whatever the watcher deletes.
        """
        self._removal_watchers.append(watcher)

    # Peers.

    def connect(
        self,
        connection_id: ConnectionId,
        outlet: Outlet,
        name: str,
        options: ConnectionOptions | None = None,
    ) -> Connection:
        """A new connection; ``name`` is what people see."""
        if connection_id in self._connections:
            raise InvariantBroken(f"connection id {connection_id} is used twice")
        connection = self._connections[connection_id] = Connection(
            connection_id,
            outlet,
            name,
            options or ConnectionOptions(),
            pipeline=self._pipeline,
            on_close=self._disconnected,
        )
        return connection

    def refuse_now(self) -> Refusal | None:
        """Why a protocol that fails fast refuses a send that comes now (F6, F7), if it does."""
        return self._commits.refuse_now()

    def release(self, position: int, to: Topic | None = None) -> bool:
        """Give a delayed record its offsets now; False when it waits no more (D14).

        With ``to`` it goes to the first queue of that topic, whatever it was stored for.
        """
        return self._delays.release(position, None if to is None else to.queues[:1])

    def cancel_delayed(self, position: int) -> bool:
        """Drop a delayed record; False when it waits no more."""
        return self._delays.cancel(position)

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
        return self._chain.is_turn_requested

    @property
    def is_making_room(self) -> bool:
        """True while some topic may have more than its limit, or dead letters are on their way."""
        return self._turns.is_making_room

    def turn(self) -> None:
        self._turns.run()

    def next_deadline_ms(self) -> int | None:
        """Monotonic time at which a turn is wanted even if nothing happens."""
        return self._turns.next_deadline_ms()

    def take_sync_job(self) -> SyncJob | None:
        """What the commit thread has to do now; None when nothing, or while one is out."""
        return self._commits.take_sync_job()

    def next_sync_ms(self) -> int | None:
        """From when on there is a commit to make; None = nothing waits, or one is out."""
        return self._store.next_sync_ms()

    def synced(self, job: SyncJob, error: Exception | None) -> None:
        """The commit returned: confirms leave, credit comes back, readers see more (D7)."""
        chain = self._chain
        chain.journal.tick(chain.clock.monotonic_ms())
        self._commits.synced(job, error)
        self._replies.flush()
        chain.refresh_gates()
        self._turns.look_after_sync()

    def set_alarm(self, name: str, value: int) -> None:
        """A probe looked: bytes of ``memory`` used, or of ``disk`` free (F3)."""
        alarm = self.alarms.memory if name == "memory" else self.alarms.disk
        if alarm.update(value, self._chain.now_ms) is not None:
            self._look_at_gates()
        self._housekeeping.disk_looked()

    def note_run_delay(self, waited_ms: dict[int, float]) -> None:
        """A probe looked: how long each thread has waited for a CPU since it began."""
        self._chain.run_delay.note(waited_ms, self._chain.now_ms)

    def set_alarm_limits(self, *, memory_bytes: int, disk_free_bytes: int) -> None:
        """The marks that raise the alarms, once it is known what shares are shares of."""
        flow, now_ms = self._chain.flow, self._chain.now_ms
        memory, disk = self.alarms.alarms
        edges = (
            memory.resize(memory_bytes, int(memory_bytes * flow.memory_low_ratio), now_ms),
            disk.resize(int(disk_free_bytes * flow.disk_high_ratio), disk_free_bytes, now_ms),
        )
        if any(edge is not None for edge in edges):
            self._look_at_gates()

    def credits(self) -> dict[str, HopCredit]:
        """Credit of every hop, as it is given from now on (F1)."""
        flow = self._chain.flow
        return {
            hop: HopCredit(getattr(flow, f"{hop}_credit"), getattr(flow, f"{hop}_more"))
            for hop in HOPS
        }

    def set_credit(self, hop: str, credit: int, more: int) -> None:
        """Change a hop's credit, also where messages are under way; ``SettingsError`` says why not.

        What is in flight stays counted: lowering may hold a sender at once, raising frees one.
        Not written anywhere: the next start takes the settings again.
        """
        if hop not in HOPS:
            raise SettingsError(f"there is no hop {hop!r}; use one of {', '.join(HOPS)}")
        chain = self._chain
        chain.flow = with_hop_credit(chain.flow, hop, HopCredit(credit, more))
        for each in list(self._credits(hop)):
            each.resize(initial=credit, more=more)
        self._look_at_gates()

    def final_cursors(self) -> list[CursorState]:
        """Cursors for ``Store.close``, after the last turn of a clean stop."""
        return self._housekeeping.final_cursors()

    # What can be seen of it. Reading changes nothing, but ``take_flow_edges`` hands over once.

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
        return list(self._connections.values())

    def locate(self, position: int) -> Located | None:
        """The durable record around a position (D4, D7); None when there is none, or it is gone."""
        return (
            self._store.locate(position) if 0 <= position < self._store.durable_position else None
        )

    def undecided(self) -> list[int]:
        """Positions of records that wait for ``release`` or ``cancel_delayed``, oldest first."""
        return self._delays.undecided

    def is_undecided(self, position: int) -> bool:
        """True while the record at a position waits for a decision (D14)."""
        return self._delays.is_undecided(position)

    @property
    def delayed_records(self) -> int:
        """Delayed records in memory, for whole topics and for single subscriptions."""
        return self._delays.waiting + self._host.delayed_budget.count

    @property
    def durable_position(self) -> int:
        """Everything below it is on the disk."""
        return int(self._store.durable_position)

    @property
    def batches(self) -> Batches:
        """Where batches are opened for readers of single messages (D16)."""
        return self._host.batches

    def queue(self, queue_id: int) -> Queue | None:
        """The queue of that id, if it still exists."""
        return self._registry.queues.get(QueueId(queue_id))

    def take_flow_edges(self) -> list[FlowEdge]:
        """Episodes that began or ended since the last call, for logs and events.

        Some of very many, the first: each is told by a line, and an alarm makes thousands.
        """
        return self._chain.journal.take_edges(EDGES_AT_ONCE)

    @property
    def flow_edges_dropped(self) -> int:
        """Edges that were lost before anybody took them."""
        return self._chain.journal.edges_dropped

    @property
    def alarm_holds(self) -> Mapping[Reason, int]:
        """Alarm -> how often it held a connection since the broker started."""
        return self._chain.alarm_holds

    @property
    def flow_events_dropped(self) -> int:
        """Events that nobody heard of, because there were too many or the log was held."""
        return self._chain.journal.edges_dropped + self.flow_topic.dropped

    def unfinished_episodes(self) -> Iterator[tuple[str, Reason, int]]:
        """(kind of stage, reason, time held so far) of every episode that goes on now."""
        return self._chain.journal.unfinished(self._chain.now_ms)

    def flow_map(self, now_ms: int, running_max: int = EVERY_STAGE) -> FlowMap:
        """Stages with state, reason, culprit, since and share: all held ones and some others."""
        return self._flow_mapper(now_ms, running_max).made()

    def flow_map_steps(self, now_ms: int, running_max: int) -> Steps[FlowMap]:
        """The same in steps, for a broker with very many stages."""
        return self._flow_mapper(now_ms, running_max).steps()

    def _flow_mapper(self, now_ms: int, running_max: int) -> FlowMapper:
        return FlowMapper(
            self._chain,
            connections=self._connections.values(),
            draining=self._pipeline.draining_channels,
            registry=self._registry,
            commits=self._commits,
            queries=self.queries,
            non_persistent=self.non_persistent,
            rates=self.hop_rates,
            members_of=self.members_of,
            stages_beside=self.stages_beside,
            now_ms=now_ms,
            running_max=running_max,
        )

    def statistics(self) -> EngineStatistics:
        """All numbers at this moment."""
        wall_ms = self._chain.clock.wall_ms()
        return msgspec.structs.replace(
            self.totals(),
            topics=tuple([topic_statistics(each, wall_ms) for each in self.topics()]),
            non_persistent=tuple([each.statistics() for each in self.non_persistent]),
        )

    def connection_counts(self) -> Steps[tuple[int, int]]:
        """Channels that are open, and connections whose gate is closed; in steps."""
        channels = held = 0
        for connection in list(self._connections.values()):
            channels += len(connection.channels)
            held += bool(connection.gate.reasons)
            yield COUNTER_LOOK
        return channels, held

    def totals(self, counts: tuple[int, int] | None = None) -> EngineStatistics:
        """The same without topics; with ``connection_counts`` as quick however many there are."""
        channels, held = counts or finished(self.connection_counts())
        chain, commits, counters = self._chain, self._commits, self.counters
        return EngineStatistics(
            published=counters.published,
            confirmed=counters.confirmed,
            refused=dict(counters.refused),
            routed=counters.routed,
            unroutable_dropped=counters.unroutable_dropped,
            unroutable_returned=counters.unroutable_returned,
            bytes_in=counters.bytes_in,
            turns=self._turns.turns,
            settlements=self._settlements.settlements,
            released=self._delays.released,
            delayed=self.delayed_records,
            dead_letters=self._dead_letters.dead_lettered,
            deaths_dropped=self._dead_letters.dropped,
            held_pulls=len(self.pulls),
            connections=len(self._connections),
            channels=channels,
            connections_held=held,
            inflight_bytes=chain.pool.used,
            unsent_bytes=chain.unsent_pool.bytes,
            unsynced_messages=commits.unsynced_messages,
            unsynced_bytes=self._store.unsynced_bytes,
            free_buffers=commits.buffers.free_buffers,
            is_memory_alarmed=chain.alarms.memory.is_raised,
            is_disk_alarmed=chain.alarms.disk.is_raised,
            is_log_held=commits.is_held,
            is_store_busy=commits.busy.is_busy(chain.now_ms),
            is_failed=commits.failure is not None,
            requests=self.request_queue.statistics(),
            draining=self._pipeline.draining,
            dropped_after_close=counters.dropped_after_close,
            non_persistent_topics=len(self.non_persistent),
            non_persistent_published=self.non_persistent.published_messages,
            non_persistent_dropped=self.non_persistent.dropped_messages,
        )

    # Parts.

    def _look_at_gates(self) -> None:
        """Something changed that may hold or free any connection."""
        if not self.alarms.is_raised:
            self._chain.alarm_spell += 1
        self._chain.mark_all(self._connections.values())

    def least_credits(self) -> Steps[dict[str, int]]:
        """Hop -> the least credit anybody on it has left; in steps."""
        flow = self._chain.flow
        to_channel, to_queue = flow.reader_channel_credit, flow.channel_queue_credit
        to_log = flow.queue_log_credit
        for connection in list(self._connections.values()):
            for channel in list(connection.channels.values()):
                to_channel = min(to_channel, channel.credit.available)
                for credit in list(channel.queue_credits.values()):
                    to_queue = min(to_queue, credit.available)
                    yield COUNTER_LOOK
            yield COUNTER_LOOK
        for queue in list(self._registry.queues.values()):
            to_log = min(to_log, queue.log_credit.available)
            yield COUNTER_LOOK
        return {"reader_channel": to_channel, "channel_queue": to_queue, "queue_log": to_log}

    def _credits(self, hop: str) -> Iterator[Credit]:
        if hop == "queue_log":
            for queue in self._registry.queues.values():
                yield queue.log_credit
            return
        for connection in self._connections.values():
            for channel in connection.channels.values():
                if hop == "reader_channel":
                    yield channel.credit
                else:
                    yield from channel.queue_credits.values()

    def _disconnected(self, connection: Connection) -> None:
        self._connections.pop(connection.connection_id, None)
        self.pulls.disconnected(connection.outlet)

    def _remove_topic(self, topic: Topic, cause: str) -> None:
        """Consumers are told, batches on their way to it are unroutable."""
        for subscription in list(topic.subscriptions.values()):
            self._remove_subscription(topic, subscription, cause)
        self._registry.remove_topic(topic)
        for queue in topic.queues:
            self._pipeline.remove(queue)
            for connection in self._connections.values():
                connection.forget_queue(queue)
            self.pulls.deleted(queue)
        for watcher in self._removal_watchers:
            watcher(topic)
        self._chain.request_turn()

    def _remove_subscription(self, topic: Topic, subscription: Subscription, cause: str) -> None:
        """Its consumers are told, what it did not save is forgotten."""
        subscription.close(cause)
        self._registry.remove_subscription(topic, subscription)
        self._settlements.forget(subscription)
        self._dispatch_queue.forget(subscription)

    def note_dead_letter(self, target: TopicName, source: TopicName) -> None:
        """A message of ``source`` was given up by a protocol's own rules: ``target`` has it."""
        self._dead_letters.note(target, source)

    def _has_unsafe_dead_letters(self) -> bool:
        return self._dead_letters.is_unsafe(self._store.durable_position)

    def _dead_letter_refused(self, queue: Queue, record: Record) -> None:
        self._dead_letters.add(queue, NO_OFFSET, record, Cause.DROPPED_HEAD, 0)


class EngineHost:
    """The engine as its subscriptions see it (``host.Host``)."""

    def __init__(
        self,
        chain: FlowContext,
        store: Store,
        settlements: SettlementBuffer,
        dead_letters: DeadLetters,
        wake: Callable[[HostedSubscription], None],
        *,
        facts: Mapping[int, FactsReader],
        save_definition: Callable[[HostedSubscription], None],
        transient_floor: int,
    ) -> None:
        self.clock: Clock = chain.clock
        self.flow: FlowSettings = chain.flow
        self.topics: TopicSettings = chain.topics
        self.unsent_pool: UnsentPool = chain.unsent_pool
        store.spill.notes_max = self.topics.delayed_on_disk_max
        # The other half is for what is delayed for whole topics (``delay.py``).
        self.delayed_budget = DelayedBudget(
            -(-self.topics.delayed_in_memory_max // 2),
            wake,
            spill=store.spill if self.topics.delayed_on_disk_max else None,
            now_ms=chain.clock.monotonic_ms,
            horizon_ms=self.topics.delay_horizon_ms,
        )
        self.transient_floor = transient_floor
        self._ordering_keys = {
            wire: reader for wire, reader in facts.items() if isinstance(reader, OrderingKeyReader)
        }
        self.batches = Batches(facts, self.topics.message_bytes_max)
        self._store = store
        self._dead_letters = dead_letters
        # Called for every list of deliveries: the owner's method itself, not one around it.
        self.wake = wake
        self.recent = store.recent
        self.note_settlement: Callable[[HostedSubscription], None] = settlements.note
        self.save_definition = save_definition

    def read(self, wanted: Sequence[tuple[int, int]]) -> list[Record | None]:
        return self._store.read(wanted)

    def ordering_key(self, record: Record) -> bytes:
        reader = self._ordering_keys.get(record.wire)
        return record.key if reader is None else reader.ordering_key(record)

    def dead_letter(
        self, queue: SubscribedQueue, offset: int, record: Record, cause: Cause, attempts: int
    ) -> None:
        self._dead_letters.add(cast("Queue", queue), offset, record, cause, attempts)

    def carry(self, record: Record, target: SubscribedQueue) -> None:
        self._dead_letters.carry(record, cast("Queue", target))


HOPS: Final = ("reader_channel", "channel_queue", "queue_log")
"""How far a connection may be ahead of each of its channels, a channel of each queue it publishes
to, a queue of the log's sync (F1)."""


class HopCredit(msgspec.Struct, frozen=True):
    """How far a sender may be ahead, and how much is given back at a time."""

    credit: int
    more: int


def with_hop_credit(flow: FlowSettings, hop: str, wanted: HopCredit) -> FlowSettings:
    """The settings with another credit; they check themselves that its two figures fit."""
    credit, more = wanted.credit, wanted.more
    if hop == "reader_channel":
        return replace(flow, reader_channel_credit=credit, reader_channel_more=more)
    if hop == "channel_queue":
        return replace(flow, channel_queue_credit=credit, channel_queue_more=more)
    return replace(flow, queue_log_credit=credit, queue_log_more=more)
