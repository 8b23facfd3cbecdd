"""The simulated world: one broker core on a simulated disk, and what peers know about it.

A world is one life after another: ``boot`` opens the store and the engine, ``restart`` kills them
(with or without the power) and boots again on what the disk kept. Topics and subscriptions are
known by incarnation, because a name may be deleted and made anew, and a crash may undo either.

Not here: what is done next (``steps.py``), what must hold (``laws.py``).
"""

import random
from dataclasses import dataclass, field
from typing import Final, Protocol

from kit.batches import WIRE, BatchFacts
from kit.simulation.ledger import LawBroken, Ledger, Trace
from kit.simulation.peers import Following, SimConsumer, SimPublisher, SimReader
from penstock.engine.broker import Engine
from penstock.engine.topic import Overflow, Queue, Topic, TopicPolicy
from penstock.log.commit import SyncJob
from penstock.log.store import Store
from penstock.model.ids import ConnectionId, QueueId
from penstock.model.names import TopicName, topic_name
from penstock.settings.broker import StorageSettings, TopicSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.testing.broker import MemoryCatalog
from penstock.testing.clock import ManualClock
from penstock.testing.storage import NO_CAPACITY, FaultPlan, SimulatedStorage

KIB = 1024
LONG_MS = 1 << 40
PLENTY_BYTES = 1 << 40
"""Retention settings under which nothing is ever removed, whatever the clock does."""

RETRY_MS = 200
"""Longer than the engine waits before it tries a refused write again."""

DEAD = "dead"
"""The dead-letter topic; it takes what is refused or given up elsewhere."""


KINDS: Final = ("plain", "plain", "lanes", "short", "limited", "transient", "dead")
"""Of topics, as often as they are named."""

BURST_MAX: Final = 12
"""Messages of one publish list: the "one batch" by which a hop may pass its credit (law 1)."""

BATCH_MAX: Final = 4
"""Messages of one batch record: delivered whole, however little room is left."""


@dataclass(frozen=True)
class Crowd:
    """How many of everything there are at most: small worlds are fast, large ones are mixed."""

    publishers_max: int = 3
    topics_max: int = 2
    followings_max: int = 2
    consumers_max: int = 3
    readers_max: int = 1
    burst_max: int = BURST_MAX


QUEUES: Final = {"lanes": 3, "partitioned": 3, "short partitioned": 2}
"""Of a kind of topic, where there are several."""

LARGE = Crowd(publishers_max=4, topics_max=4, followings_max=3, consumers_max=6, readers_max=2)


class SinkDriver(Protocol):
    """A sink of Spark, as far as the world knows it."""

    committed_rows: int

    def restarted(self) -> None:
        """The broker is another one."""
        ...


@dataclass
class SimTopic:
    """One incarnation of a topic."""

    label: str
    name: TopicName
    kind: str
    topic: Topic
    queue_ids: tuple[QueueId, ...]
    is_known_durable: bool = False
    """The broker said that its definition is on disk."""
    is_deleted: bool = False
    may_be_back: bool = False
    """Deleted, but the broker did not say yet that this is on disk."""
    queues_told: int = 1
    """So many queues of it are on disk, as the broker said."""
    followings: dict[str, Following] = field(default_factory=dict)
    durable_followings: set[str] = field(default_factory=set)


def small_settings(rng: random.Random) -> Settings:
    """Limits so small that a run of a few thousand messages meets all of them."""
    credit = rng.choice((4, 8, 16))
    return Settings(
        storage=StorageSettings(
            segment_bytes_max=64 * KIB,
            write_buffers_max=rng.choice((1, 3)),
            write_buffer_bytes=64 * KIB,
            hot_tail_bytes_max=rng.choice((4, 64)) * KIB,
            hot_tail_records_max=rng.choice((8, 256)),
            index_tail_bytes_max=rng.choice((1, 16)) * KIB,
            index_file_entries_max=64,
            snapshot_interval_ms=200,
            snapshot_bytes_min=0,
            idle_mark_ms=500,
            settled_keep_ms=rng.choice((500, LONG_MS)),
            settled_keep_bytes_max=rng.choice((30 * KIB, PLENTY_BYTES)),
            retention_sweep_ms=500,
        ),
        flow=FlowSettings(
            reader_channel_credit=credit,
            reader_channel_more=credit // 2,
            channel_queue_credit=credit,
            channel_queue_more=max(1, credit // 4),
            queue_log_credit=4 * credit,
            queue_log_more=credit,
            connection_bytes_max=8 * KIB,
            inflight_bytes_max=rng.choice((24, 200)) * KIB,
            hold_ms_max=400,
            pending_publishes_max=rng.choice((0, 12, 60)),
            unacked_consumer_max=rng.choice((6, 50)),
            unacked_subscription_max=rng.choice((10, 100)),
            unacked_consumer_bytes_max=16 * KIB,
            unsent_messages_max=16,
            unsent_bytes_max=8 * KIB,
            turn_messages_max=rng.choice((4, 16, 64)),
            turn_channel_messages_max=rng.choice((2, 8)),
            turn_bytes_max=rng.choice((300, 2 * KIB, 16 * KIB)),
        ),
        topics=TopicSettings(
            message_bytes_max=4 * KIB, delivered_reserve=rng.choice((1, 20, 1000))
        ),
    )


class World:
    """Everything that exists in one simulation."""

    def __init__(
        self,
        seed: int,
        plan: FaultPlan | None = None,
        *,
        kinds: tuple[str, ...] = KINDS,
        has_batches: bool = False,
    ) -> None:
        self.seed = seed
        self.kinds = kinds
        self.has_batches = has_batches
        """Some publishers send batches that the broker can open."""
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.settings = small_settings(self.rng)
        self.crowd = LARGE if self.rng.random() < 0.2 else Crowd()
        self.storage = SimulatedStorage(random.Random(self.rng.random()), plan=plan)
        self.catalog = MemoryCatalog()
        self.trace = Trace()
        self.ledger = Ledger()
        self.is_disk_short = False
        """The disk alarm is raised: settled data may go."""
        self.short_floors: dict[int, int] = {}
        """Queue id -> the first offset that no shortage of the disk can have taken."""
        self.topics: dict[str, SimTopic] = {}
        """By label, the deleted ones included: a crash may bring one back."""
        self.live_topics: list[SimTopic] = []
        """Topics that exist now, in order of creation."""
        self.names = 0
        self.lives = 0
        self.turns = 0
        self.direct_messages = 0
        """Handed out by topics without a log, in all lives."""
        self.is_spilling = False
        """Hardly any delay fits into memory (``delaying.py``)."""
        self.sinks: list[SinkDriver] = []
        """Who writes from Spark (``staging.py``); they outlive the broker."""
        self.spilled_max = 0
        """Notes in the files of delays, at most."""
        self.chain_checked: tuple[int, ...] = ()
        """Turns, durable position, messages and lives when the chain was last looked at."""
        self._refused_ms = -RETRY_MS
        self._struck = 0
        self._was_unwell = False
        self._forget_peers()

    # Lives of the broker.

    def boot(self) -> None:
        """Open store and engine on what the disk has."""
        self.lives += 1
        self.store, recovered = Store.open(
            self.storage, self.catalog, self.settings.storage, self.clock
        )
        facts = {WIRE: BatchFacts()} if self.has_batches else None
        self.engine = Engine(self.store, recovered, self.clock, self.settings, facts=facts)
        self._forget_peers()
        self.trace.note(f"boot {self.lives} end {self.store.end_position}")
        self._find_topics()

    def _forget_peers(self) -> None:
        self.publishers: list[SimPublisher] = []
        self.consumers: list[SimConsumer] = []
        self.readers: list[SimReader] = []
        self.direct: object = None
        """Who uses the topic without a log (``direct.py``)."""
        self.job: SyncJob | None = None
        self.job_error: Exception | None = None
        self.is_job_run = False

    def restart(self, *, is_power_cut: bool) -> None:
        """The process dies, perhaps with the power, and another one starts."""
        self.trace.note("power cut" if is_power_cut else "kill -9")
        for publisher in self.publishers:
            publisher.gone()
        for sim_topic in self.topics.values():
            for following in sim_topic.followings.values():
                following.restarted()
                if self._was_unwell:
                    # Deliveries went on while the disk refused to remember them.
                    following.is_flagged = False
        self._was_unwell = False
        # The next process finds that out by itself.
        self.is_disk_short = False
        self.ledger.forget_transient()
        self.storage.capacity_bytes = NO_CAPACITY
        self.storage = self.storage.crash() if is_power_cut else self.storage.kill()
        self.catalog = self.catalog.crash() if is_power_cut else self.catalog.kill()
        self.clock.advance(self.rng.randrange(2000))
        for sink in self.sinks:
            sink.restarted()
        self.boot()

    def _find_topics(self) -> None:
        """Match what recovery found with what must be there."""
        found: dict[str, Topic] = {}
        for topic in self.engine.topics():
            label = self.ledger.topics.get(topic.queues[0].queue_id)
            if label is not None:
                found[label] = topic
            elif not topic.name.is_hidden:
                raise LawBroken(f"recovery invented topic {topic.name}")
        for label, sim_topic in self.topics.items():
            topic_found = found.get(label)
            if topic_found is not None:
                self._found_again(sim_topic, topic_found)
                continue
            must_exist = sim_topic.is_known_durable or self.ledger.is_owed(sim_topic.queue_ids)
            if must_exist and not sim_topic.is_deleted and sim_topic.kind != "transient":
                raise LawBroken(f"topic {label} was durable and is gone (D6)")
            sim_topic.is_deleted = True
            sim_topic.may_be_back = False
        self.note_topics()

    def _found_again(self, sim_topic: SimTopic, topic: Topic) -> None:
        if sim_topic.is_deleted and not sim_topic.may_be_back:
            raise LawBroken(f"topic {sim_topic.label} was deleted for good and is back")
        if sim_topic.is_deleted:
            # Its messages may or may not have gone with it: nothing is promised about them.
            sim_topic.is_deleted = sim_topic.may_be_back = False
            self.ledger.excuse(sim_topic.queue_ids)
        sim_topic.topic = topic
        sim_topic.is_known_durable = True
        self._found_queues(sim_topic, topic)
        for name, following in list(sim_topic.followings.items()):
            if name in topic.subscriptions:
                if name not in sim_topic.durable_followings:
                    # Its row survived, its start perhaps not: nobody was told that it is durable.
                    following.is_loose = True
                    following.last_first.clear()
                sim_topic.durable_followings.add(name)
                self._found_reading(sim_topic, following)
            elif name in sim_topic.durable_followings:
                raise LawBroken(f"subscription {name} of {sim_topic.label} was durable and is gone")
            else:
                del sim_topic.followings[following.name]

    def _found_queues(self, sim_topic: SimTopic, topic: Topic) -> None:
        """It has the queues it was told to have; a growth that was not durable may be undone."""
        found = tuple(queue.queue_id for queue in topic.queues)
        lost = sim_topic.queue_ids[len(found) :]
        if found != sim_topic.queue_ids[: len(found)] or len(found) < sim_topic.queues_told:
            raise LawBroken(f"{sim_topic.label} has queues {found}, not {sim_topic.queue_ids}")
        if self.ledger.is_owed(lost):
            raise LawBroken(f"queues {lost} of {sim_topic.label} had messages and are gone (P1)")
        sim_topic.queue_ids = found
        sim_topic.queues_told = len(found)
        for following in sim_topic.followings.values():
            for queue_id in lost:
                following.start.pop(queue_id, None)
                following.told.pop(queue_id, None)

    def _found_reading(self, sim_topic: SimTopic, following: Following) -> None:
        """It reads the queues it was told to read; what was not durable is one way or the other."""
        subscription = sim_topic.topic.subscriptions[following.name]
        for queue_id in sim_topic.queue_ids:
            is_read, was_read = subscription.reads(queue_id), queue_id in following.start
            is_told = queue_id in following.told or not following.changes
            if is_read is not was_read and is_told:
                raise LawBroken(
                    f"{following.name} reads queue {queue_id}: {is_read}, and was told {was_read}"
                )
            if not is_told:
                following.begin_anew(queue_id)
                following.loose_queues.add(queue_id)
            if is_read is not was_read and is_read:
                following.start[queue_id] = subscription.low_mark(queue_id)
            elif is_read is not was_read:
                del following.start[queue_id]
            following.told[queue_id] = is_read

    # Things.

    def fresh(self, prefix: str) -> str:
        """A name nobody had before."""
        self.names += 1
        return f"{prefix}{self.names}"

    @property
    def is_disk_well(self) -> bool:
        """False while the disk refuses writes, and until what it refused was tried again."""
        now_ms = self.clock.monotonic_ms()
        if self.storage.capacity_bytes != NO_CAPACITY or self.storage.plan.struck != self._struck:
            self._struck = self.storage.plan.struck
            self._refused_ms = now_ms
            self._was_unwell = True
        return now_ms - self._refused_ms > RETRY_MS

    def note_shortage(self) -> None:
        """While the disk is short: whatever nobody needs now may be gone for good."""
        if self.is_disk_short:
            for sim_topic in self.live_topics:
                for queue in sim_topic.topic.queues:
                    floor = self.short_floors.get(queue.queue_id, 0)
                    self.short_floors[queue.queue_id] = max(floor, needed_from(sim_topic, queue))

    def note_topics(self) -> None:
        """Topics came or went."""
        self.live_topics = [each for each in self.topics.values() if not each.is_deleted]

    def create_topic(self, kind: str) -> SimTopic:
        """A new topic of a kind; its definition becomes durable with a later sync."""
        name = topic_name(DEAD if kind == "dead" else self.fresh("t"))
        topic = self.engine.create_topic(
            name,
            queues=QUEUES.get(kind, 1),
            policy=self._policy(kind),
            is_durable=kind != "transient",
        )
        queue_ids = tuple(queue.queue_id for queue in topic.queues)
        label = f"{name}#{queue_ids[0]}"
        sim_topic = SimTopic(label, name, kind, topic, queue_ids, queues_told=len(queue_ids))
        self.topics[label] = sim_topic
        self.note_topics()
        for queue_id in queue_ids:
            self.ledger.topics[queue_id] = label
        if kind == "dead":
            self.ledger.dead_queues.update(queue_ids)
        if kind != "transient":
            self.engine.after_durable(lambda: setattr(sim_topic, "is_known_durable", True))
        self.trace.note(f"create {label} {kind}")
        return sim_topic

    def connect(self, peer: SimPublisher | SimConsumer | SimReader) -> ConnectionId:
        """An id for a new connection."""
        self.names += 1
        return ConnectionId(self.names)

    def _policy(self, kind: str) -> TopicPolicy:
        dead_letter = DEAD if self.rng.random() < 0.7 else ""
        if kind == "short partitioned":
            overflow = self.rng.choice((Overflow.DROP_HEAD, Overflow.DROP_HEAD, Overflow.REJECT))
            return TopicPolicy(length_max=self.rng.choice((5, 20)), overflow=overflow)
        if kind == "short":
            return TopicPolicy(
                length_max=self.rng.choice((5, 20)),
                overflow=self.rng.choice(tuple(Overflow)),
                dead_letter_topic=dead_letter,
            )
        if kind == "limited":
            return TopicPolicy(delivery_limit=3, dead_letter_topic=dead_letter)
        return TopicPolicy()


def kept_from(world: World, sim_topic: SimTopic, queue: Queue) -> int:
    """The first offset that retention may not have taken (D11)."""
    storage = world.settings.storage
    if storage.settled_keep_ms >= LONG_MS and storage.settled_keep_bytes_max >= PLENTY_BYTES:
        # Kept if there is room: what was settled while the disk was short of it may be gone, what
        # came or was settled after that may not.
        return world.short_floors.get(queue.queue_id, 0)
    return needed_from(sim_topic, queue)


def needed_from(sim_topic: SimTopic, queue: Queue) -> int:
    """The first offset that a subscription needs now."""
    # A subscription needs what it has not settled, from where it could begin when it was made;
    # one that a crash brought back after it was deleted has no claim.
    needed = [
        max(following.start[queue.queue_id], subscription.low_mark(queue.queue_id))
        for name, following in sim_topic.followings.items()
        if (subscription := sim_topic.topic.subscriptions.get(name)) is not None
        and queue.queue_id in following.start
        and subscription.reads(queue.queue_id)
        and subscription.options.holds_data
    ]
    return min(needed, default=queue.index.next_offset)
