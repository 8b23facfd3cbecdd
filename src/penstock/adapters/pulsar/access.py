"""Who may publish to a topic: names, access modes, topic epochs, and who waits for his turn.

    Shared                any number, each with a name of its own, while nobody is exclusive
    Exclusive             alone, or refused
    WaitForExclusive      alone, now or as soon as everybody before it is gone: first come, first in
    ExclusiveWithFencing  alone, now: whoever is there is put out, whoever waits is refused

Every change of the exclusive producer is a new *topic epoch*, 0 for the first. A producer is told
its epoch and brings it along when it comes back: with an older one than the topic's somebody else
has been in charge meanwhile, and it may not publish again. Epochs are rows of the catalog; whoever
grants access answers after they are durable.

Invariants: an exclusive producer is the only one; nobody waits in front of an empty topic; epochs
never go back while a topic lives.
Not here: what a producer does with its access (``producer.py``), and whether whoever holds a name
is still alive, which his connection is asked.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from penstock.adapters.pulsar.errors import PulsarError
from penstock.adapters.pulsar.naming import pulsar_name
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.names import PulsarName

if TYPE_CHECKING:
    from penstock.adapters.pulsar.ports import ClientConnection
    from penstock.adapters.pulsar.topics import PulsarTopic
    from penstock.engine.broker import Engine
    from penstock.engine.topic import Topic

EPOCH_KIND: Final = "pulsar.topic_epoch"
"""Rows of the epochs of topics that had an exclusive producer."""
NO_EPOCH: Final = -1
"""Of a topic that never had one."""
EPOCH_MAX: Final = 2**62
"""A client may bring any number; it must still be possible to count on from it."""
WAITING_MAX: Final = 1_000
"""Producers that wait for one topic."""


class AccessMode(IntEnum):
    """As on the wire."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Entrant(Protocol):
    """A producer, as far as its access is concerned."""

    @property
    def name(self) -> str: ...

    @property
    def mode(self) -> AccessMode: ...

    @property
    def topic_epoch(self) -> int | None:
        """What it was told the last time it had access."""
        ...

    @property
    def connection(self) -> ClientConnection: ...

    def connection_lost(self) -> None:
        """Its client is gone: it gives back what it has."""
        ...

    def topic_closed(self, cause: str) -> None:
        """It is closed under its client, who is told."""
        ...

    def promoted(self, epoch: int) -> None:
        """Its turn has come."""
        ...

    def fenced_out(self, *, was_waiting: bool) -> None:
        """Somebody took over by force."""
        ...


class Access(NamedTuple):
    """What a producer gets that is let in."""

    epoch: int | None
    """None: it shares the topic."""
    is_waiting: bool = False


class NameTaken(PulsarError):
    """Somebody else has its place; if he is gone without a word, the place is free."""

    def __init__(self, code: ServerError, text: str, holder: Entrant) -> None:
        super().__init__(code, text)
        self.holder: Final = holder


class AccessTable:
    """The producers of all topics."""

    def __init__(self, engine: Engine) -> None:
        self._epochs: Final = TopicEpochs(engine)
        self._topics: Final[dict[PulsarName, TopicAccess]] = {}
        """Those with producers."""

    def of(self, topic: PulsarTopic) -> TopicAccess:
        return self._topics.get(topic.name) or TopicAccess(topic, self._epochs)

    def enter(self, topic: PulsarTopic, who: Entrant, producers_max: int = 0) -> Access:
        """Raises ``PulsarError``. Whoever is let in, or waits, must leave."""
        access = self.of(topic)
        entered = access.enter(who, producers_max)
        self._topics[topic.name] = access
        return entered

    def leave(self, topic: PulsarTopic, who: Entrant) -> None:
        access = self._topics.get(topic.name)
        if access is not None:
            access.leave(who)
            if access.is_unused:
                del self._topics[topic.name]
                self._epochs.left(topic)


class TopicAccess:
    """The producers of one topic."""

    __slots__ = ("_epochs", "_incarnation", "_waiting", "exclusive", "producers", "topic")

    def __init__(self, topic: PulsarTopic, epochs: TopicEpochs) -> None:
        self.topic: Final = topic
        # Asked now: those who leave a deleted topic are still in order.
        self._incarnation: Final = topic.queue.incarnation if topic.is_persistent else 0
        self.producers: Final[dict[str, Entrant]] = {}
        """Those that have access, by name."""
        self.exclusive: Entrant | None = None
        self._waiting: dict[Entrant, None] = {}
        self._epochs = epochs

    @property
    def is_unused(self) -> bool:
        return not (self.producers or self._waiting)

    @property
    def waiting(self) -> list[Entrant]:
        """In the order in which they are let in."""
        return list(self._waiting)

    def close(self, cause: str) -> None:
        """Everybody is told that this is over; those who wait first, or they would be let in."""
        for each in [*self._waiting, *self.producers.values()]:
            each.topic_closed(cause)

    def enter(self, who: Entrant, producers_max: int = 0) -> Access:
        """Let a producer in, or to the end of the line; raises ``PulsarError``."""
        if who.mode is AccessMode.SHARED:
            self._check_shared(who, producers_max)
            self.producers[who.name] = who
            return Access(None)
        if who.mode is AccessMode.EXCLUSIVE:
            self._check_exclusive(who)
        self._check_epoch(who)
        if who.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            self._put_out()
        elif not self.is_unused:
            if len(self._waiting) >= WAITING_MAX:
                raise PulsarError(
                    ServerError.ProducerBusy,
                    f"Topic '{self.topic.name}' has {WAITING_MAX} producers that wait already",
                )
            self._waiting[who] = None
            return Access(None, is_waiting=True)
        return Access(self._take_over(who))

    def leave(self, who: Entrant) -> None:
        """A producer is gone, or does not wait any more; the next one may come in."""
        self._waiting.pop(who, None)
        if self.producers.get(who.name) is who:
            del self.producers[who.name]
        if self.exclusive is who:
            self.exclusive = None
        if self._waiting and not self.producers:
            following = next(iter(self._waiting))
            del self._waiting[following]
            following.promoted(self._take_over(following))

    def _check_shared(self, who: Entrant, producers_max: int) -> None:
        if self.exclusive is not None or self._waiting:
            raise PulsarError(ServerError.ProducerBusy, self._exclusive_there())
        holder = self.producers.get(who.name)
        if holder is not None:
            raise NameTaken(
                ServerError.ProducerBusy,
                f"Producer with name '{who.name}' is already connected to topic "
                f"'{self.topic.name}'",
                holder,
            )
        if 0 < producers_max <= len(self.producers):
            raise PulsarError(
                ServerError.ProducerBusy, f"Topic '{self.topic.name}' reached max producers limit"
            )

    def _check_exclusive(self, who: Entrant) -> None:
        holder = self.exclusive
        if holder is not None and holder.name == who.name:
            # Most often itself, on a connection that it has lost.
            raise NameTaken(ServerError.ProducerFenced, self._exclusive_there(), holder)
        if holder is not None or self._waiting:
            raise PulsarError(ServerError.ProducerFenced, self._exclusive_there())
        if self.producers:
            raise PulsarError(ServerError.ProducerFenced, "Topic has existing shared producers")

    def _exclusive_there(self) -> str:
        # Where one only waits, Pulsar has no name to tell.
        name = "null" if self.exclusive is None else self.exclusive.name
        return f"Topic has an existing exclusive producer: {name}"

    def _check_epoch(self, who: Entrant) -> None:
        current = self._epochs.get(self.topic, self._incarnation)
        if who.topic_epoch is not None and who.topic_epoch < current:
            raise PulsarError(
                ServerError.ProducerFenced,
                f"the topic is at epoch {current}, the producer comes with {who.topic_epoch}",
            )

    def _put_out(self) -> None:
        live, waiting = list(self.producers.values()), list(self._waiting)
        # Emptied before anybody is told: otherwise who leaves would let the next one in.
        self.producers.clear()
        self._waiting.clear()
        self.exclusive = None
        for each in waiting:
            each.fenced_out(was_waiting=True)
        for each in live:
            each.fenced_out(was_waiting=False)

    def _take_over(self, who: Entrant) -> int:
        epoch = who.topic_epoch
        current = self._epochs.get(self.topic, self._incarnation)
        # A waiter's may be old by now: somebody was in front of it.
        if epoch is None or epoch < current:
            epoch = current + 1
        epoch = min(epoch, EPOCH_MAX)
        self._epochs.put(self.topic, self._incarnation, epoch)
        self.producers[who.name] = who
        self.exclusive = who
        return epoch


class TopicEpochs:
    """The epoch of every topic that had an exclusive producer: one row each at most."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._rows: Final[dict[PulsarName, _EpochRow]] = {}
        for body in engine.definitions(EPOCH_KIND).values():
            row = msgspec.json.decode(body, type=_EpochRow)
            self._rows[row.name] = row
        engine.watch_removals(self._removed)

    def get(self, topic: PulsarTopic, incarnation: int) -> int:
        row = self._rows.get(topic.name)
        return NO_EPOCH if row is None or row.incarnation != incarnation else row.epoch

    def put(self, topic: PulsarTopic, incarnation: int, epoch: int) -> None:
        row = _EpochRow(topic.name, incarnation, epoch)
        self._rows[topic.name] = row
        if topic.is_persistent:
            self._engine.define(EPOCH_KIND, str(topic.name), msgspec.json.encode(row))

    def left(self, topic: PulsarTopic) -> None:
        """Nobody publishes to it any more: of a topic without a log nothing is kept."""
        if not topic.is_persistent:
            self._rows.pop(topic.name, None)

    def _removed(self, topic: Topic) -> None:
        whole = pulsar_name(topic.name)
        if whole is None:
            return
        for name in (whole, *[whole.of_partition(each) for each in range(len(topic.queues))]):
            if self._rows.pop(name, None) is not None:
                self._engine.define(EPOCH_KIND, str(name), None)


class _EpochRow(msgspec.Struct, frozen=True):
    """A row of kind ``pulsar.topic_epoch``."""

    name: PulsarName
    incarnation: int
    """Of its queue: a row speaks of one topic, not of the next one of that name."""
    epoch: int
