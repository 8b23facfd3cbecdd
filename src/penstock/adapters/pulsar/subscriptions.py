"""Subscriptions of Pulsar's topics: who is attached, where they stand, and what moves them.

A subscription belongs to one topic in Pulsar's sense, so to one partition: the engine's, of the
same name for all partitions, has a cursor and consumers for each queue. Its type is that of whoever
is attached. A durable one stays; a non-durable one (a reader's) goes with its last consumer. That
they are durable or not they have in common over all partitions, unlike Pulsar's.

A ``PulsarSubscription`` exists while it is used, like a ``PulsarTopic``. While a seek runs it is
*fenced*: its consumers were told to come again, and whoever comes waits until the new place is
durable.

Ids of messages are (incarnation of the queue, first offset of the entry). They are compared, never
looked up: those of a deleted topic's older life are before everything here.

Not here: commands of clients, permits and acks (``consumer.py``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from penstock.adapters.pulsar.compaction import CompactedIndex
from penstock.adapters.pulsar.errors import PulsarError
from penstock.adapters.pulsar.naming import SUBSCRIPTION_PREFIX, place, subscription_name
from penstock.engine.host import FailoverRule, Mode, Start, SubscriptionOptions
from penstock.engine.subscription.consumer import Consumer, ConsumerRefusal, KeyRange, RefusalReason
from penstock.model.errors import AlreadyExists, NotFound
from penstock.wire.pulsar.frames import ServerError, signed
from penstock.wire.pulsar.metadata import publish_ms
from penstock.wire.pulsar.names import PulsarName

if TYPE_CHECKING:
    from penstock.adapters.pulsar.compaction import Compaction
    from penstock.adapters.pulsar.namespaces import Namespaces
    from penstock.adapters.pulsar.ports import ClientConnection
    from penstock.adapters.pulsar.topics import PulsarTopic
    from penstock.engine.broker import Engine
    from penstock.engine.non_persistent import NonPersistentSubscription
    from penstock.engine.subscription.consumer import ConsumerOutlet
    from penstock.engine.subscription.subscription import Subscription
    from penstock.engine.topic import Queue
    from penstock.flow.demand import Permits
    from penstock.log.index import IndexEntry
    from penstock.model.names import TopicName
    from penstock.settings.protocols import PulsarSettings

MODE_NAMES: Final = {
    Mode.EXCLUSIVE: "Exclusive",
    Mode.SHARED: "Shared",
    Mode.FAILOVER: "Failover",
    Mode.KEY_SHARED: "Key_Shared",
}
"""As Pulsar calls the types."""

SOUGHT_KEPT: Final = 1_000
"""Readers that moved and have not come back yet."""
SUBSCRIBERS_KEPT: Final = 10_000
"""Consumers whose last SUBSCRIBEs are remembered for the subscribe rate."""
ENTRIES_AT_A_TIME: Final = 512
"""Entries of the index that are looked at together: some hundred microseconds."""


class Position(NamedTuple):
    """Where a message lies, as clients know it; -1 and less are before everything."""

    ledger: int
    entry: int


class Manner(msgspec.Struct, frozen=True):
    """How a consumer wants to read."""

    mode: Mode
    priority: int = 0
    """Lower is served first."""
    is_sticky: bool = False
    """Key_Shared: it names the ranges of its keys."""
    key_ranges: tuple[KeyRange, ...] = ()
    allows_disorder: bool = False
    """Key_Shared: it says that the order of a key need not be kept, which it is here."""
    is_compacted: bool = False
    """It wants the newest message of each key, as far as the topic was compacted."""


class Attendee(Protocol):
    """A consumer, as its subscription sees it."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str:
        """How operators meet it."""
        ...

    @property
    def manner(self) -> Manner: ...

    @property
    def connection(self) -> ClientConnection: ...

    @property
    def attached(self) -> Consumer | None:
        """The engine's, once it is attached."""
        ...

    def topic_closed(self, cause: str) -> None:
        """It is closed under its client, who is told and comes again."""
        ...

    def connection_lost(self) -> None:
        """Its client is gone: it gives back what it has."""
        ...

    def reached_end(self) -> None:
        """The topic is terminated, and the subscription has acked all of it."""
        ...


class PlaceTaken(PulsarError):
    """Somebody else is where it wants to be; if he is gone without a word, the place is free."""

    def __init__(self, code: ServerError, text: str, holder: Attendee) -> None:
        super().__init__(code, text)
        self.holder: Final = holder


# ---- one subscription ---------------------------------------------------------------------------


class PulsarSubscription:
    """One subscription of one topic or partition."""

    __slots__ = ("_shared", "_waiting", "engine_name", "is_seeking", "name", "topic", "users")

    def __init__(self, topic: PulsarTopic, name: str, shared: PulsarSubscriptions) -> None:
        self.topic: Final = topic
        self.name: Final = name
        self.engine_name: Final = subscription_name(name)
        self.users: Final[dict[Attendee, None]] = {}
        """Its consumers; bounded by the connections' own tables."""
        self.is_seeking = False
        self._shared = shared
        # Whoever came during a seek; bounded likewise.
        self._waiting: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<PulsarSubscription {self.name} of {self.topic.name}>"

    @property
    def stored(self) -> Subscription | None:
        """The engine's, of a topic with a log; None while there is none."""
        topic = self._shared.engine.topic(self.topic.topic_name)
        if topic is None or self.topic.number >= len(topic.queues):
            return None
        found = topic.subscriptions.get(self.engine_name)
        queue_id = topic.queues[self.topic.number].queue_id
        return found if found is not None and found.reads(queue_id) else None

    @property
    def unlogged(self) -> NonPersistentSubscription | None:
        """The engine's, of a topic without a log."""
        topic = self._shared.engine.non_persistent.get(self.topic.topic_name)
        return None if topic is None else topic.subscriptions.get(self.engine_name)

    @property
    def exists(self) -> bool:
        return (self.stored if self.topic.is_persistent else self.unlogged) is not None

    @property
    def queue(self) -> Queue:
        return self.topic.queue

    @property
    def mode(self) -> Mode | None:
        """Of those who are attached; None = nobody is."""
        return next((each.manner.mode for each in self.users), None)

    # Consumers.

    def attach(
        self,
        user: Attendee,
        outlet: ConsumerOutlet,
        demand: Permits,
        unacked: tuple[int, int | None],
    ) -> Consumer:
        """Take a consumer in; raises ``PulsarError``, of it ``PlaceTaken``.

        ``unacked``: the messages and bytes that it may have so.
        """
        manner = user.manner
        self._check(manner)
        shared, topic = self._shared, self.topic
        engine_side = self.stored if topic.is_persistent else self.unlogged
        if engine_side is None:
            raise PulsarError(ServerError.SubscriptionNotFound, "Subscription does not exist")
        if topic.is_persistent and not self.users:
            self._read_by(shared.compaction.index_of(topic) if manner.is_compacted else None)
        queue_id = (
            topic.queue.queue_id if topic.is_persistent else topic.unlogged.queue_ids[topic.number]
        )
        attached = engine_side.attach(
            outlet,
            demand,
            unsent=user.connection.unsent,
            name=user.name,
            label=user.label,
            mode=manner.mode,
            failover=shared.failover_rule(topic) if manner.mode is Mode.FAILOVER else None,
            priority=-manner.priority,
            key_ranges=manner.key_ranges,
            halves_keys=not shared.settings.key_shared_use_consistent_hashing,
            queue_ids=(queue_id,),
            unacked_max=unacked[0],
            unacked_bytes_max=unacked[1],
        )
        if isinstance(attached, ConsumerRefusal):
            raise self._taken(manner) or _refused(attached)
        if not self.users and (stored := self.stored) is not None:
            # Counts end with the last consumer; also when that went with a broker before this one.
            stored.forget_attempts(queue_id)
        self.users[user] = None
        attached.connection_id = user.connection.engine_connection.connection_id
        return attached

    def detach(self, user: Attendee) -> None:
        """A consumer is gone; what it had goes to the others, its counts are kept for them."""
        if user not in self.users:
            return
        del self.users[user]
        attached = user.attached
        stored = self.stored
        if attached is not None and attached.is_attached:
            if stored is not None:
                stored.detach(attached)
            elif self.unlogged is not None:
                self.unlogged.detach(attached)
        if self.users:
            return
        if stored is not None and stored.options.is_durable:
            self._read_by(None)
        elif stored is not None:
            self._remove("its last consumer is gone")
        self._shared.forget(self)

    def close_users(self, cause: str) -> None:
        """Everybody is told to come again."""
        for user in list(self.users):
            user.topic_closed(cause)

    def _check(self, manner: Manner) -> None:
        """Whether it fits to those who are there."""
        other = next(iter(self.users), None)
        _check_ranges(manner)
        if other is None:
            return
        there = other.manner
        if there.mode is not manner.mode:
            raise _other_type("type", MODE_NAMES[there.mode], MODE_NAMES[manner.mode])
        if manner.mode is Mode.EXCLUSIVE:
            raise PlaceTaken(
                ServerError.ConsumerBusy, "Exclusive consumer is already connected", other
            )
        if manner.mode is not Mode.KEY_SHARED:
            return
        if there.is_sticky is not manner.is_sticky:
            raise _other_type("key_shared mode", _split(there), _split(manner))
        if there.allows_disorder is not manner.allows_disorder:
            does, wants = ("allows", "does not allow") if there.allows_disorder else (
                "does not allow", "allows"
            )  # fmt: skip
            raise PulsarError(
                ServerError.ConsumerBusy,
                f"Subscription is of different type. Active subscription {does} out of order "
                f"delivery while the connecting consumer {wants} it.",
            )

    def _taken(self, manner: Manner) -> PlaceTaken | None:
        """Who has some of the ranges that it wants, if the engine refused it for that."""
        wanted = sorted(manner.key_ranges)
        for user in self.users:
            for first, last in user.manner.key_ranges:
                # Of ranges without an overlap the last that begins in time ends last.
                at = bisect_right(wanted, last, key=lambda each: each[0]) - 1
                if at >= 0 and wanted[at][1] >= first:
                    return PlaceTaken(
                        ServerError.ConsumerAssignError,
                        f"Range conflict with consumer {user.label}",
                        user,
                    )
        return None

    # Reading the compacted topic.

    def _read_by(self, index: CompactedIndex | None) -> None:
        """Whoever comes first reads the compacted topic, or not; the others read with him."""
        stored = self.stored
        if stored is not None:
            stored.read_by(self.queue.queue_id, index)

    @property
    def view(self) -> CompactedIndex | None:
        """By which its consumers read; None = they read the topic as it is."""
        stored = self.stored
        index = None if stored is None else stored.cursor(self.queue.queue_id).index
        return index if isinstance(index, CompactedIndex) else None

    def leave_view(self, horizon: int) -> None:
        """The view is about to be replaced: who has passed it reads on, the others come again."""
        stored = self.stored
        if stored is None or self.view is None:
            return
        if stored.low_mark(self.queue.queue_id) >= horizon:
            self._read_by(None)
        else:
            self.close_users("its topic was compacted")

    # Places.

    @property
    def mark_delete(self) -> Position:
        """The last entry before which, and with which, everything is acked."""
        stored, queue = self.stored, self.queue
        low = 0 if stored is None else stored.low_mark(queue.queue_id)
        found = queue.index.entries(low - 1, 1) if low > queue.index.min_offset else []
        if found and found[0][1] + found[0][5] > low:
            # Some messages of a batch: it is not acked itself.
            low = found[0][1]
            found = queue.index.entries(low - 1, 1) if low > queue.index.min_offset else []
        return Position(queue.incarnation, found[0][1] if found else low - 1)

    @property
    def is_at_end(self) -> bool:
        """It has acked everything there is."""
        stored = self.stored
        if stored is None:
            return False
        return stored.low_mark(self.queue.queue_id) >= self.queue.index.next_offset

    def look_for_end(self, *, has_acked: bool = False) -> None:
        """After an ack, a FLOW, or the end of the topic: consumers hear when there is no more.

        Readers hear it after an ack only.
        """
        stored = self.stored
        if stored is None or not (has_acked or stored.options.is_durable):
            return
        if self.topic.topic.is_terminated and self.is_at_end:
            for user in list(self.users):
                user.reached_end()

    def seek(
        self,
        offset: int,
        done: Callable[[], None] = lambda: None,
        unacked: list[int] | None = None,
    ) -> None:
        """Go on at an offset, once all consumers are gone; ``done`` when that is durable.

        ``unacked``: an ack set of the entry there. Raises ``PulsarError``.
        """
        if self.is_seeking:
            raise PulsarError(
                ServerError.UnknownError,
                "Error when resetting subscription: Failed to fence subscription",
            )
        self.is_seeking = True
        self._shared.keep(self)
        before = self.stored
        if before is not None and not before.options.is_durable:
            self._shared.remember_place(self, offset)
        self.close_users("it was moved")
        stored = self.stored
        if stored is not None:
            acked: list[tuple[int, int]] = []
            if unacked and (entry := self.queue.index.entries(offset, 1)):
                acked = acked_ranges(offset, entry[0][5], unacked)
            stored.seek(self.queue.queue_id, offset, acked)
        self._shared.engine.after_durable(lambda: self._sought(done))

    def _sought(self, done: Callable[[], None]) -> None:
        self.is_seeking = False
        done()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()
        self._shared.forget(self)

    def after_seek(self, go_on: Callable[[], None]) -> None:
        """Call when the seek that runs is done."""
        self._waiting.append(go_on)

    # Its end.

    def unsubscribe(self, cause: str = "unsubscribed") -> None:
        """It is gone, its consumers are told; durable after ``Engine.after_durable``."""
        self.close_users(cause)
        self._remove(cause)

    def _remove(self, cause: str) -> None:
        engine = self._shared.engine
        if self.topic.is_persistent:
            if self.stored is not None:
                engine.unsubscribe_queue(
                    self.topic.topic_name, self.engine_name, self.queue.queue_id, cause
                )
        elif self.unlogged is not None:
            self.topic.unlogged.unsubscribe(self.engine_name, cause)


def acked_ranges(first: int, messages: int, words: list[int]) -> list[tuple[int, int]]:
    """What an ack set says is acked of an entry: bits that are not set, as ranges of offsets."""
    bits = 0
    for number, word in enumerate(words):
        bits |= (word & 0xFFFFFFFFFFFFFFFF) << (64 * number)
        if 64 * number >= messages:
            break
    acked = ~bits & ((1 << messages) - 1)
    found: list[tuple[int, int]] = []
    at = first
    while acked:
        skipped = (acked & -acked).bit_length() - 1
        acked >>= skipped
        at += skipped
        run = (~acked & (acked + 1)).bit_length() - 1
        found.append((at, at + run))
        acked >>= run
        at += run
    return found


def ack_set(first: int, unsettled: list[tuple[int, int]]) -> list[int]:
    """The other way round: a bit for each message of an entry that is not acked."""
    bits = 0
    for start, end in unsettled:
        bits |= ((1 << (end - start)) - 1) << (start - first)
    words = []
    while bits:
        word = bits & 0xFFFFFFFFFFFFFFFF
        words.append(signed(word))
        bits >>= 64
    return words


def _split(manner: Manner) -> str:
    return "STICKY" if manner.is_sticky else "AUTO_SPLIT"


def _other_type(what: str, there: str, wanted: str) -> PulsarError:
    return PulsarError(
        ServerError.ConsumerBusy,
        f"Subscription is of different type. Active subscription {what} of '{there}' is different "
        f"than the connecting consumer's {what} '{wanted}'.",
    )


def _check_ranges(manner: Manner) -> None:
    """Ranges that are none, whoever else is there."""
    if not manner.is_sticky:
        return
    if not manner.key_ranges:
        raise PulsarError(
            ServerError.ConsumerAssignError, "Ranges for KeyShared policy must not be empty."
        )
    for start, end in manner.key_ranges:
        if start > end:
            raise PulsarError(
                ServerError.ConsumerAssignError,
                f"Fixed hash range start > end for range: [{start},{end}]",
            )
    ranges = sorted(manner.key_ranges)
    for (start, end), (other_start, other_end) in pairwise(ranges):
        if other_start <= end:
            raise PulsarError(
                ServerError.ConsumerAssignError,
                f"Consumer's own ranges conflict: [{start},{end}] overlaps with "
                f"[{other_start},{other_end}]",
            )


def _refused(refusal: ConsumerRefusal) -> PulsarError:
    """What the engine itself minds: mostly it has been asked before."""
    if refusal.reason is RefusalReason.KEY_RANGE:
        return PulsarError(ServerError.ConsumerAssignError, refusal.text)
    return PulsarError(ServerError.ConsumerBusy, refusal.text)


# ---- all of them --------------------------------------------------------------------------------


class PulsarSubscriptions:
    """Every subscription of Pulsar's topics."""

    def __init__(
        self,
        engine: Engine,
        namespaces: Namespaces,
        settings: PulsarSettings,
        compaction: Compaction,
    ) -> None:
        self.engine: Final = engine
        self.settings: Final = settings
        self.compaction: Final = compaction
        self.rates: Final = SubscribeRates()
        self._namespaces: Final = namespaces
        self._used: Final[dict[tuple[PulsarName, str], PulsarSubscription]] = {}
        """Those with consumers, and those that are being moved."""
        self._sought: Final[dict[tuple[PulsarName, str], Position]] = {}
        namespaces.watch(self._policies_changed)

    # Looking.

    def of(self, topic: PulsarTopic, name: str) -> PulsarSubscription:
        """That subscription, whether it is there or not."""
        return self._used.get((topic.name, name)) or PulsarSubscription(topic, name, self)

    def find(self, topic: PulsarTopic, name: str) -> PulsarSubscription | None:
        """A subscription that is there."""
        found = self.of(topic, name)
        return found if found.exists else None

    def get(self, topic: PulsarTopic, name: str) -> PulsarSubscription:
        """The same; raises ``NotFound``."""
        found = self.find(topic, name)
        if found is None:
            raise NotFound(f"Subscription {name} not found for topic {topic.name}")
        return found

    def names(self, topic: PulsarTopic) -> list[str]:
        """The subscriptions of a topic or partition, sorted."""
        if topic.is_persistent:
            queue_id = topic.queue.queue_id
            found = [
                name for name, each in topic.topic.subscriptions.items() if each.reads(queue_id)
            ]
        else:
            unlogged = self.engine.non_persistent.get(topic.topic_name)
            found = [] if unlogged is None else list(unlogged.subscriptions)
        size = len(SUBSCRIPTION_PREFIX)
        return sorted([name[size:] for name in found if name.startswith(SUBSCRIPTION_PREFIX)])

    # Changing. Durable once ``Engine.after_durable`` calls back.

    def open(
        self, topic: PulsarTopic, name: str, start: Start | int, *, is_durable: bool = True
    ) -> PulsarSubscription:
        """A subscription to be used; made if it is not there. Raises ``PulsarError``.

        One that is there stays where it is. Whoever opens a non-durable one attaches to it.
        """
        found = self.of(topic, name)
        if not topic.is_persistent:
            topic.unlogged.subscribe(found.engine_name)
        else:
            same_name = topic.topic.subscriptions.get(found.engine_name)
            if same_name is not None and same_name.options.is_durable is not is_durable:
                there = "Durable" if same_name.options.is_durable else "NonDurable"
                raise PulsarError(
                    ServerError.NotAllowedError,
                    f"{there} subscription with the same name already exists.",
                )
            sought = self._sought.pop((topic.name, name), None)
            if sought is not None and not is_durable:
                start = self.offset_of(topic, sought)
            options = SubscriptionOptions(
                start=start, is_durable=is_durable, holds_data=is_durable, whole_batches=True
            )
            self.engine.subscribe_queue(
                topic.topic_name, found.engine_name, topic.queue.queue_id, options
            )
        self.keep(found)
        return found

    def create(self, topic: PulsarTopic, name: str, start: Start | int = Start.LATEST) -> None:
        """A durable one that nobody uses yet; raises ``AlreadyExists``."""
        if self.find(topic, name) is not None:
            raise AlreadyExists("Subscription already exists for topic")
        self.forget(self.open(topic, name, start))

    def delete(self, topic: PulsarTopic, name: str, *, force: bool = False) -> None:
        """Raises ``NotFound``, and ``PulsarError`` while it has consumers and is not forced."""
        found = self.get(topic, name)
        if found.users and not force:
            raise PulsarError(
                ServerError.ConsumerBusy, "Subscription has active connected consumers"
            )
        found.unsubscribe("deleted")
        self.forget(found)

    def unacked_entries(
        self, topic: PulsarTopic, name: str, start: int = 0
    ) -> tuple[list[IndexEntry], int]:
        """Entries from an offset on that are not wholly acked, and where to ask for more.

        A piece of them: it may be empty although there are more behind it, which there are not when
        it ends where it began. Raises ``NotFound``.
        """
        stored, queue = self.get(topic, name).stored, topic.queue
        if stored is None:
            return [], start
        settled = stored.cursor(queue.queue_id).settled
        start = max(start, settled.low_mark)
        found = [
            each
            for each in queue.index.entries(start, ENTRIES_AT_A_TIME)
            if each[1] < queue.durable_end
        ]
        if not found:
            return [], start
        unacked = [
            each for each in found if settled.settled_in(each[1], each[1] + each[5]) < each[5]
        ]
        return unacked, found[-1][1] + found[-1][5]

    def skip(self, topic: PulsarTopic, name: str, entries_max: int) -> int:
        """Up to so many entries at the head count as acked, and nobody is told; how many did.

        It ends early, at the end or because it goes in pieces: with 0 there was nothing to skip.
        Raises ``NotFound``.
        """
        stored, queue = self.get(topic, name).stored, topic.queue
        if stored is None or entries_max <= 0:
            return 0
        found: list[IndexEntry] = []
        at, end = -1, 0
        while not found and end != at:
            at = end
            found, end = self.unacked_entries(topic, name, at)
        skipped = found[:entries_max]
        if skipped:
            stored.settle_upto(queue.queue_id, skipped[-1][1] + skipped[-1][5])
        return len(skipped)

    def skip_all(self, topic: PulsarTopic, name: str) -> None:
        """Everything there is counts as acked; raises ``NotFound``."""
        stored = self.get(topic, name).stored
        if stored is not None:
            stored.settle_upto(topic.queue.queue_id, topic.queue.durable_end)

    def expire(self, topic: PulsarTopic, name: str, older_than_s: int, now_ms: int) -> None:
        """What was published longer ago counts as acked; raises ``NotFound``."""
        stored = self.get(topic, name).stored
        if stored is not None:
            queue = topic.queue
            upto = self.offset_at(topic, now_ms - older_than_s * 1000)
            stored.settle_upto(queue.queue_id, upto)

    def topic_ended(self, topic: PulsarTopic) -> None:
        """It was terminated: whoever has acked all of it is told."""
        for name in self.names(topic):
            subscription = self._used.get((topic.name, name))
            if subscription is not None:
                subscription.look_for_end()

    def offset_of(self, topic: PulsarTopic, where: Position, *, is_compacted: bool = False) -> int:
        """The place of an id: its entry, the first one there is, or the end.

        Always the begin of an entry. Clients count entries one by one: what is to them the entry
        before a batch may be a message inside the one before. Where a topic was compacted, its
        copies may be the first ones there are; whose entries count is for the reader to say.
        """
        queue, view = topic.queue, self.compaction.index_of(topic)
        index = queue.index if view is None or not is_compacted else view
        lowest = index.min_offset if view is None else view.min_offset
        at = max(place(queue, where.ledger, where.entry, index.next_offset), lowest)
        found = index.entries(at, 1) if at < index.next_offset else []
        return min(at, found[0][1]) if found else at

    def offset_at(
        self, topic: PulsarTopic, published_ms: int, *, is_compacted: bool = False
    ) -> int:
        """The first message that was published then or later, by its client's clock; or the end."""
        search = self.engine.pulls.search_published
        view = self.compaction.view_of(topic) if is_compacted else None
        if view is None:
            return search(topic.queue, published_ms, publish_ms)
        found = search(view.queue, published_ms, publish_ms)
        if found < view.queue.durable_end:
            return found
        return max(view.horizon, search(topic.queue, published_ms, publish_ms))

    # For subscriptions and consumers.

    def leave_view(self, name: PulsarName, horizon: int) -> None:
        """A topic was compacted anew, and what its readers read until now is about to go."""
        for (topic, _), subscription in list(self._used.items()):
            if topic == name:
                subscription.leave_view(horizon)

    def keep(self, subscription: PulsarSubscription) -> None:
        """It is used from now on."""
        self._used[subscription.topic.name, subscription.name] = subscription

    def forget(self, subscription: PulsarSubscription) -> None:
        """It is used no more, if nobody is there."""
        key = (subscription.topic.name, subscription.name)
        if subscription.users or subscription.is_seeking:
            return
        if self._used.get(key) is subscription:
            del self._used[key]

    def remember_place(self, subscription: PulsarSubscription, offset: int) -> None:
        """A reader seeks: it is gone, and goes on there when it comes again, whatever it says.

        A client that sought by time knows no id of that place to begin at.
        """
        if len(self._sought) >= SOUGHT_KEPT:
            del self._sought[next(iter(self._sought))]
        sought = Position(subscription.queue.incarnation, offset)
        self._sought[subscription.topic.name, subscription.name] = sought

    def failover_rule(self, topic: PulsarTopic) -> FailoverRule:
        return FailoverRule(
            takeover_ms=self.settings.active_consumer_failover_delay_ms,
            is_by_partition=topic.is_partition,
            ring_name="" if topic.is_partition else str(topic.name),
        )

    def limit(self, subscription: PulsarSubscription) -> None:
        """Its limits follow the policies of its topic and the type of who is attached."""
        stored = subscription.stored
        if stored is not None:
            self._namespaces.limit(subscription.topic.topic_name, stored)

    def unacked_max(self, topic: PulsarTopic, manner: Manner, *, is_durable: bool) -> int:
        """What one consumer may have unacked; 0 = no limit, as for who reads alone."""
        if not is_durable or manner.mode not in (Mode.SHARED, Mode.KEY_SHARED):
            return 0
        return self._namespaces.effective(topic.topic_name).max_unacked_messages_per_consumer

    def _policies_changed(self, namespace: str, topic_name: TopicName | None) -> None:
        for (name, _), subscription in list(self._used.items()):
            if name.namespace != namespace or topic_name not in (
                None,
                subscription.topic.topic_name,
            ):
                continue
            stored = subscription.stored
            if stored is None:
                continue
            for user in subscription.users:
                if user.attached is not None:
                    user.attached.limit_unacked(
                        self.unacked_max(
                            subscription.topic, user.manner, is_durable=stored.options.is_durable
                        ),
                        user.attached.inflight.bytes_max,
                    )


class SubscribeRates:
    """How often each consumer subscribed in its period: those that come back again and again.

    A consumer is known by its address, name and id, of one topic.
    """

    __slots__ = ("_periods",)

    def __init__(self) -> None:
        # (begin of the period, SUBSCRIBEs in it), the oldest first.
        self._periods: dict[tuple[object, ...], tuple[int, int]] = {}

    def may_subscribe(
        self, key: tuple[object, ...], count_max: int, period_ms: int, now_ms: int
    ) -> bool:
        """Count one more, if there may be one."""
        begin_ms, count = self._periods.pop(key, (now_ms, 0))
        if now_ms - begin_ms >= period_ms:
            begin_ms, count = now_ms, 0
        is_allowed = count < count_max
        self._periods[key] = (begin_ms, count + is_allowed)
        if len(self._periods) > SUBSCRIBERS_KEPT:
            del self._periods[next(iter(self._periods))]
        return is_allowed
