"""The parts of an engine, wired together once.

The order of construction is the order of dependence; the two places where it runs in a circle (a
durable frame wakes readers, a reader asks its host) go through small functions defined here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from penstock.engine.admission import Admission
from penstock.engine.answers import Answers
from penstock.engine.bulk.book import QueryBook
from penstock.engine.bulk.desk import QueryDesk
from penstock.engine.chain import Chain
from penstock.engine.collect import Collector
from penstock.engine.commit import Commits
from penstock.engine.connection import Connection
from penstock.engine.dead_letter import DeadLetters
from penstock.engine.delay import Delays
from penstock.engine.delayed_room import DelayedRoom
from penstock.engine.host import Awaiting, SubscribedQueue
from penstock.engine.housekeeping import Housekeeping
from penstock.engine.leaving import Leaving
from penstock.engine.ports import Burial
from penstock.engine.publish import Intake
from penstock.engine.pull import Pull, PullDesk
from penstock.engine.queue import Queue
from penstock.engine.registry import Registry
from penstock.engine.settling import Settling
from penstock.engine.statistics import Counters
from penstock.engine.subscription import Subscription
from penstock.engine.system_topic import FLOW_TOPIC, SystemTopic
from penstock.engine.topic import Topic
from penstock.engine.turn import TurnRunner
from penstock.engine.waiting import WaitingRoom
from penstock.flow.budgets import UnsentPool
from penstock.flow.long_poll import HeldPulls
from penstock.log.recovery import Recovered
from penstock.log.store import Store
from penstock.model.clock import Clock
from penstock.model.ids import QueueId
from penstock.model.record import Record
from penstock.model.refusal import Refusal
from penstock.model.settlement import Cause
from penstock.settings.broker import TopicSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings

NO_OFFSET = -1


class Parts:
    """Everything an engine is made of."""

    def __init__(
        self,
        store: Store,
        recovered: Recovered,
        clock: Clock,
        settings: Settings,
        burials: Mapping[int, Burial],
    ) -> None:
        self.store = store
        self.chain = Chain(clock, settings)
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
        self.collector = Collector(settings.flow.turn_bytes_max, self.commits.buffers)
        self.intake = Intake(
            self.chain,
            Admission(self.chain.clock, settings, self.chain.alarms, self._bury_refused),
            self.collector,
            delays=self.delays,
            answers=self.answers,
            counters=self.counters,
        )
        self.host = EngineHost(self, recovered)
        self.held_pulls: HeldPulls[Pull] = HeldPulls()
        self.pulls = PullDesk(self.host, self.held_pulls)
        self.chain.disconnected = self._disconnected
        self.waiting = WaitingRoom(self.chain, self.commits)
        self.housekeeping = Housekeeping(
            store, self.chain, settings.storage, self.registry, self.settling
        )
        book = QueryBook(self, settings.spark)
        self.queries = QueryDesk(self, book)
        self.housekeeping.kept = book.lowest_kept
        self.leaving = Leaving(self.commits, self._has_unsafe_letters, self.remove_topic)
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
            or self.queries.book.look_ms is not None
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
        """A message died."""
        self._parts.dead_letters.bury(cast("Queue", queue), offset, record, cause, attempts)

    def carry(self, record: Record, target: SubscribedQueue) -> None:
        """Append it in the next frame."""
        self._parts.dead_letters.carry(record, cast("Queue", target))
