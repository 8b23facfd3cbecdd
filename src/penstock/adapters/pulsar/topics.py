"""Topics as Pulsar's clients see them: each partition is a topic, ours is one with several queues.

``PulsarTopics`` finds, makes, grows, ends and lists them; what is stored of them is the engine's,
beside one row for a partitioned topic (a topic of one partition looks like a plain one otherwise).
Topics with several queues that other protocols made are partitioned ones (D10).

A ``PulsarTopic`` exists while somebody uses it: its producers and consumers are its users, told
when it is closed under them. It is *fenced* while it is being deleted or unloaded, and when the log
takes nothing more: who comes then is told to come again.

Not here: who may publish, subscriptions, policies (``namespaces.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, Protocol

from penstock.adapters.pulsar.errors import (
    namespace_missing,
    namespace_unserved,
    partitions_only,
    topic_fenced,
    topic_missing,
)
from penstock.adapters.pulsar.namespaces import Namespaces
from penstock.adapters.pulsar.naming import parse_name, pulsar_name
from penstock.engine.broker import Engine
from penstock.engine.non_persistent import NonPersistentTopic
from penstock.engine.topic import Queue, Topic
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.names import NON_PERSISTENT, PERSISTENT, TopicName
from penstock.wire.pulsar.names import PulsarName, space_of

PARTITIONED_KIND: Final = "pulsar.partitioned"
"""Rows of partitioned topics: their neutral names; how many partitions is the topic's queues."""

NOT_PARTITIONED: Final = 0

PROTOCOL: Final = "pulsar"
"""Of topics that Pulsar's clients made (``Topic.protocol``)."""

Listed = Literal["persistent", "non-persistent", "all"]


class TopicUser(Protocol):
    """A producer or consumer, as far as its topic is concerned."""

    def topic_closed(self, cause: str) -> None:
        """The topic is gone, or goes for a moment: tell the client, and let go of everything."""
        ...


class PulsarTopic:
    """One topic in Pulsar's sense: a plain one, or one partition."""

    __slots__ = (
        "_engine",
        "_forget",
        "fence",
        "name",
        "number",
        "partition",
        "topic_name",
        "users",
    )

    def __init__(
        self,
        name: PulsarName,
        topic_name: TopicName,
        partition: int,
        engine: Engine,
        forget: Callable[[PulsarTopic], None],
    ) -> None:
        self.name: Final = name
        """With its partition, as clients spell it."""
        self.topic_name: Final = topic_name
        """Of the engine's topic, which all partitions share."""
        self.partition: Final = partition
        """As messages carry it; -1 for a plain topic."""
        self.number: Final = max(partition, 0)
        """Of its queue in the engine's topic."""
        self.users: Final[dict[TopicUser, None]] = {}
        """Producers and consumers; bounded by the connections' own tables."""
        self.fence = ""
        """Why nobody may come in now; empty = everybody may."""
        self._engine = engine
        self._forget = forget

    def __repr__(self) -> str:
        return f"<PulsarTopic {self.name}>"

    @property
    def is_persistent(self) -> bool:
        return self.topic_name.domain == PERSISTENT

    @property
    def is_partition(self) -> bool:
        return self.partition >= 0

    @property
    def topic(self) -> Topic:
        """The engine's topic; raises ``NotFound`` once it is deleted."""
        found = self._engine.topic(self.topic_name)
        if found is None:
            raise NotFound(f"topic '{self.topic_name}' was deleted; create it first")
        return found

    @property
    def queue(self) -> Queue:
        """Of a topic with a log; raises ``NotFound`` once it is deleted."""
        try:
            return self.topic.queues[self.number]
        except IndexError:
            raise NotFound(f"topic '{self.topic_name}' was made anew without it") from None

    @property
    def unlogged(self) -> NonPersistentTopic:
        """Of a topic without a log; made anew when it was gone for want of use."""
        found = self._engine.non_persistent.get(self.topic_name)
        return found or self._engine.non_persistent.create(self.topic_name, queues=self.number + 1)

    def join(self, user: TopicUser) -> None:
        self.users[user] = None

    def leave(self, user: TopicUser) -> None:
        """It is gone; with the last one the topic is forgotten here."""
        self.users.pop(user, None)
        if not self.users:
            self._forget(self)

    def close_users(self, cause: str) -> None:
        for user in list(self.users):
            user.topic_closed(cause)


class PulsarTopics:
    """Every topic that Pulsar's clients can name."""

    def __init__(self, engine: Engine, namespaces: Namespaces) -> None:
        self._engine = engine
        self._namespaces = namespaces
        self._used: dict[PulsarName, PulsarTopic] = {}
        self._growth_watchers: list[Callable[[PulsarName], None]] = []
        self._partitioned = {parse_name(key) for key in engine.definitions(PARTITIONED_KIND)}
        engine.watch_removals(self._removed)

    # Looking.

    def partitions(self, name: PulsarName) -> int | None:
        """How many partitions a topic has, 0 for a plain one; None when there is none."""
        queues = self._queues(name.topic_name)
        if queues is None:
            return None
        return queues if queues > 1 or name in self._partitioned else NOT_PARTITIONED

    def address(self, name: PulsarName) -> tuple[TopicName, int] | None:
        """The engine's topic and the partition (-1: plain) that a name means, if it is there.

        The partitioned topic's own name means none of its partitions.
        """
        if self.partitions(name) == NOT_PARTITIONED:
            return name.topic_name, -1
        whole, number = name.whole, name.partition
        if number >= 0 and number < (self.partitions(whole) or 0):
            return whole.topic_name, number
        return None

    def find(self, name: PulsarName) -> PulsarTopic | None:
        """A topic that is there, used or not; None also for a partitioned topic's own name."""
        used = self._used.get(name)
        if used is not None:
            return used
        address = self.address(name)
        if address is None:
            return None
        topic_name, partition = address
        return PulsarTopic(name, topic_name, partition, self._engine, self._forget)

    def used(self, name: PulsarName) -> list[PulsarTopic]:
        """What is in use of a topic: itself, or some of its partitions."""
        return self._used_of(name, self.partitions(name) or NOT_PARTITIONED)

    def _used_of(self, name: PulsarName, partitions: int) -> list[PulsarTopic]:
        if len(self._used) < partitions:
            return [
                each
                for each in self._used.values()
                if each.name == name or (each.is_partition and each.name.whole == name)
            ]
        names = [name, *[name.of_partition(number) for number in range(partitions)]]
        return [self._used[each] for each in names if each in self._used]

    def open(
        self, name: PulsarName, *, may_create: bool, maker: str = "", checks_fence: bool = True
    ) -> PulsarTopic:
        """A topic to be used; made if it is not there and may be. Raises ``PulsarError``.

        Whoever joins it must leave it. A topic made here is durable after ``Engine.after_durable``.
        Who has more to ask first joins at once and calls ``check_fence`` itself.
        """
        if not self._namespaces.exists(name.namespace):
            raise namespace_unserved(name)
        found = self.find(name)
        if found is None:
            if self.partitions(name):
                raise partitions_only(name)
            partitions = self._partitions_of_new(name) if may_create else None
            if partitions is None or self.partitions(name) is not None or self._is_beyond(name):
                raise topic_missing(name)
            self._make(name.topic_name, 1, maker)
            found = PulsarTopic(name, name.topic_name, -1, self._engine, self._forget)
        if checks_fence:
            self.check_fence(found)
        self._used.setdefault(name, found)
        return self._used[name]

    def check_fence(self, topic: PulsarTopic) -> None:
        """Raises ``PulsarError`` while nobody may come in."""
        if topic.fence or self._engine.is_failed or self._is_deleting(topic):
            raise topic_fenced()

    def names(self, namespace: str, listed: Listed = PERSISTENT) -> list[PulsarName]:
        """Topics of a namespace, partitions each by its own name, sorted."""
        found: list[PulsarName] = []
        for whole in self.walk(namespace, listed):
            if whole is not None:
                found += self.parts(whole)
        return sorted(found, key=str)

    def walk(self, namespace: str, listed: Listed = PERSISTENT) -> Iterator[PulsarName | None]:
        """Topics of a namespace, partitioned ones by their own names, in no order.

        None for each that is not of it: who goes in pieces counts those, too.
        """
        space = space_of(namespace)
        for name, _ in self._all():
            is_listed = name.space == space and listed in (name.domain, "all")
            yield pulsar_name(name) if is_listed else None

    def parts(self, name: PulsarName) -> Iterator[PulsarName]:
        """The names that clients use of a topic: its partitions' if it has some, else its own."""
        partitions = self.partitions(name)
        if partitions:
            for number in range(partitions):
                yield name.of_partition(number)
        elif partitions is not None:
            yield name

    # Changing. Durable once ``Engine.after_durable`` calls back.

    def create(self, name: PulsarName, partitions: int = NOT_PARTITIONED, maker: str = "") -> None:
        """Raises ``AlreadyExists``, or ``PulsarError`` for a namespace that is not there."""
        if not self._namespaces.exists(name.namespace):
            raise namespace_missing()
        if self.partitions(name) is not None or self.address(name) is not None:
            raise AlreadyExists("This topic already exists")
        self._make(name.topic_name, max(1, partitions), maker)
        if partitions:
            self._partitioned.add(name)
            if name.is_persistent:
                self._engine.define(PARTITIONED_KIND, str(name), b"")

    def grow(self, name: PulsarName, partitions: int) -> None:
        """More partitions; raises ``NotFound`` for what is not partitioned."""
        if not self.partitions(name):
            raise NotFound(f"Topic {name} not found")
        self._engine.grow_topic(name.topic_name, partitions)
        for watcher in self._growth_watchers:
            watcher(name)

    def watch_growth(self, watcher: Callable[[PulsarName], None]) -> None:
        """Call with every partitioned topic that gets more partitions."""
        self._growth_watchers.append(watcher)

    def partitions_for(self, name: PulsarName, *, may_create: bool, maker: str = "") -> int | None:
        """How many partitions a client is to use; a partitioned topic may be made by asking."""
        found = self.partitions(name)
        if found is not None:
            return found
        if self.address(name) is not None:
            return NOT_PARTITIONED
        wanted = self._partitions_of_new(name) if may_create else None
        if wanted is not None and wanted > 0 and name.partition < 0:
            self.create(name, wanted, maker)
        return wanted

    def delete(self, name: PulsarName, cause: str = "deleted") -> None:
        """A topic with all its partitions and subscriptions; users are told. ``NotFound``."""
        self.unload(name, cause)
        if name.is_persistent:
            self._engine.retire_topic(name.topic_name, cause)
        else:
            self._engine.non_persistent.delete(name.topic_name, cause)
            self._partitioned.discard(name)

    def unload(self, name: PulsarName, cause: str = "unloaded") -> None:
        """Its users are told to come again; nothing stored changes."""
        for topic in self.used(name):
            topic.fence = cause
            topic.close_users(cause)
            topic.fence = ""

    # Parts.

    def _partitions_of_new(self, name: PulsarName) -> int | None:
        """Of a topic that its first user makes, 0 = a plain one; None = nobody may."""
        rule = self._namespaces.effective_of_namespace(name.namespace).auto_topic_creation
        return rule.partitions if rule.allow_auto_topic_creation else None

    def _queues(self, name: TopicName) -> int | None:
        if name.domain == NON_PERSISTENT:
            unlogged = self._engine.non_persistent.get(name)
            return None if unlogged is None else len(unlogged.queue_ids)
        topic = self._engine.topic(name)
        return None if topic is None else len(topic.queues)

    def _all(self) -> Iterator[tuple[TopicName, int]]:
        for topic in self._engine.topics():
            if not topic.name.is_hidden:
                yield topic.name, len(topic.queues)
        for unlogged in self._engine.non_persistent:
            yield unlogged.name, len(unlogged.queue_ids)

    def _is_beyond(self, name: PulsarName) -> bool:
        """Whether it names a partition that a partitioned topic does not have."""
        return name.partition >= 0 and bool(self.partitions(name.whole))

    def _is_deleting(self, found: PulsarTopic) -> bool:
        return found.is_persistent and found.topic.is_deleting

    def _make(self, name: TopicName, queues: int, maker: str) -> None:
        if name.domain == NON_PERSISTENT:
            self._engine.non_persistent.create(name, queues=queues)
        else:
            self._engine.create_topic(name, queues=queues, maker=maker, protocol=PROTOCOL)

    def _forget(self, topic: PulsarTopic) -> None:
        if self._used.get(topic.name) is topic:
            del self._used[topic.name]

    def _removed(self, topic: Topic) -> None:
        """Deleted by anybody: its users here are told, and its row goes with it."""
        name = pulsar_name(topic.name)
        if name is None:
            return
        is_partitioned = name in self._partitioned or len(topic.queues) > 1
        for used in self._used_of(name, len(topic.queues) if is_partitioned else NOT_PARTITIONED):
            used.close_users("deleted")
        if name in self._partitioned:
            self._partitioned.discard(name)
            self._engine.define(PARTITIONED_KIND, str(name), None)
