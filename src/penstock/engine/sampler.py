"""The sampler: one walk over everything that counts, in slices, and the two samples kept of each.

Rates are made of it wherever they are shown: ``/api/flow`` (hops, from ``Credit.spent_total``; what
readers settle), the management API (AMQP's own counters), and whatever looks for the busiest. They
are those between an object's last two samples, ``WINDOW_MS`` apart: the same for everybody, and a
look changes nothing. Before its second sample an object has none.

Who is sampled: what *walks* name. The engine has two (connections with their channels, topics with
their queues and subscriptions), adapters add theirs. A walk is a generator that looks at objects
one after the other and yields how many; it may rest between any two of them, so it goes over a list
of its own.

A *sweep* is all walks once. It goes ``SLICE_OBJECTS`` at a time with ``PAUSE_MS`` between: that is
the budget, 4,000 objects a second. More than fit into a window take longer, and rates are means of
that time. Most objects have not moved since the last sweep: their *stamp*, a number that changes
whenever they move, is compared, and that is all (``Stamps``); of more than ``STILL_MAX`` topics not
even that in every sweep.

Invariants: memory is bounded (``OBJECTS_MAX`` of a kind) and packed, two rows of whole numbers an
object; what is gone is forgotten after ``FORGET_SWEEPS`` sweeps at the latest.
Not here: what the figures are (``statistics.py``, adapters), who calls ``due`` (``server/``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heappush, heappushpop
from itertools import count
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from penstock.engine.connection import Channel, Connection
    from penstock.engine.registry import Registry
    from penstock.engine.subscription.subscription import Subscription
    from penstock.engine.topic import Queue, Topic
    from penstock.model.ids import ConnectionId

WINDOW_MS: Final = 5_000
"""From sample to sample (RabbitMQ: ``collect_statistics_interval``)."""
SLICE_OBJECTS: Final = 100
"""Looked at in one go: a third of a millisecond, or 1 ms when all of them moved."""
PAUSE_MS: Final = 25
OBJECTS_MAX: Final = 100_000
"""Objects of one kind with a history; more of them show 0.0."""
FORGET_SWEEPS: Final = 12
"""A minute."""
STILL_MAX: Final = 5_000
"""Topics that stand still and are looked at in one sweep; of more every second, third and so on."""
BUSIEST_MAX: Final = 64
"""Of each kind that is ranked."""
GAUGE_PREFIX: Final = "messages"
"""Fields with such names go up and down; others only up, unless they are another object's."""

Walk = Callable[[], Iterator[int]]
"""Samples everything of its kind; yields objects looked at."""
IsAlive = Callable[[Hashable], bool]


class Sampler:
    """Everything once in five seconds, a slice at a time; ``due`` is called by who has a clock."""

    __slots__ = (
        "_began_ms",
        "_kept",
        "_next_ms",
        "_sweep",
        "_tables",
        "_walks",
        "now_ms",
        "sweeps",
    )

    def __init__(self, now_ms: int) -> None:
        self.now_ms = self._next_ms = self._began_ms = now_ms
        """Time of the slice: the time of all samples in it."""
        self._tables: dict[str, Samples] = {}
        self._kept: list[tuple[Samples | Stamps, IsAlive]] = []
        self._walks: list[Walk] = []
        self._sweep: Iterator[int] | None = None
        self.sweeps = 0
        """How many are over."""

    def add(self, walk: Walk) -> None:
        """One more walk, after those that are there."""
        self._walks.append(walk)

    def table(self, kind: str, fields: Sequence[str], is_alive: IsAlive) -> Samples:
        """A table for the samples of one kind of object; those not alive are forgotten."""
        table = self._tables[kind] = Samples(fields)
        self._kept.append((table, is_alive))
        return table

    def stamps(self, is_alive: IsAlive) -> Stamps:
        """The stamps of one kind of object, likewise."""
        stamps = Stamps()
        self._kept.append((stamps, is_alive))
        return stamps

    def per_second(self, kind: str, key: Hashable) -> dict[str, float] | None:
        """How fast each figure of an object grew; None before its second sample."""
        table = self._tables.get(kind)
        return None if table is None else table.per_second(key)

    def next_deadline_ms(self) -> int:
        return self._next_ms

    def due(self, now_ms: int) -> None:
        """One slice; begins a sweep when it is time for one."""
        self.now_ms = now_ms
        if self._sweep is None:
            for table in self._tables.values():
                table.window_ms = (now_ms - self._began_ms) * table.still_sweeps
            self._began_ms = now_ms
            self._sweep = self._steps()
        left = SLICE_OBJECTS
        for steps in self._sweep:
            left -= steps
            if left <= 0:
                self._next_ms = now_ms + PAUSE_MS
                return
        self._sweep = None
        self.sweeps += 1
        self._next_ms = max(self._began_ms + WINDOW_MS, now_ms + PAUSE_MS)

    def _steps(self) -> Iterator[int]:
        for walk in list(self._walks):
            yield from walk()
        if self.sweeps % FORGET_SWEEPS == FORGET_SWEEPS - 1:
            for kept, is_alive in list(self._kept):
                for key in kept.known():
                    if not is_alive(key):
                        kept.drop(key)
                    yield 1


class Samples:
    """The last two samples of every object of one kind, packed."""

    __slots__ = (
        "_at",
        "_before",
        "_before_at",
        "_fields",
        "_free",
        "_is_still",
        "_now",
        "_objects_max",
        "_pack",
        "_rows",
        "_size",
        "_totals",
        "_unpack",
        "still_sweeps",
        "window_ms",
    )

    def __init__(self, fields: Sequence[str], objects_max: int = OBJECTS_MAX) -> None:
        self._fields = tuple(fields)
        self._objects_max = objects_max
        form = Struct(f"{len(self._fields)}q")
        self._pack, self._unpack, self._size = form.pack, form.unpack_from, form.size
        self._rows: dict[Hashable, int] = {}
        self._free: list[int] = []
        # A row each: both samples, their times (-1 = there is no earlier one), whether they are
        # alike, and the sum it is a part of.
        self._now, self._before = bytearray(), bytearray()
        self._at, self._before_at = array("q"), array("q")
        self._is_still = bytearray()
        self._totals: list[list[int] | None] = []
        self.window_ms = 1 << 62
        """What was passed over meanwhile stood still until so long ago."""
        self.still_sweeps = 1
        """Sweeps from look to look at what stands still."""

    def __len__(self) -> int:
        return len(self._rows)

    def known(self) -> list[Hashable]:
        return list(self._rows)

    @property
    def size_bytes(self) -> int:
        """Of the samples themselves."""
        return len(self._now) + len(self._before)

    def note(
        self, key: Hashable, figures: tuple[int, ...], now_ms: int, total: list[int] | None = None
    ) -> None:
        """The figures of an object at this moment.

        ``total`` has a figure for each field: the sum of all objects that were noted with it.
        """
        row = self._rows.get(key)
        packed = self._pack(*figures)
        if row is None:
            self._first(key, figures, packed, now_ms, total)
            return
        at_ms = self._at[row]
        if now_ms <= at_ms:
            return
        self._at[row] = now_ms
        self._before_at[row] = max(at_ms, now_ms - self.window_ms)
        here = row * self._size
        behind = here + self._size
        known = self._now[here:behind]
        self._before[here:behind] = known
        self._is_still[row] = known == packed
        if known != packed:
            self._now[here:behind] = packed
            if total is not None:
                _add(total, figures, self._unpack(known))

    def drop(self, key: Hashable) -> None:
        """An object is gone: it is no part of its sum any more."""
        row = self._rows.pop(key, None)
        if row is None:
            return
        total, self._totals[row] = self._totals[row], None
        if total is not None:
            figures = self._unpack(self._now, row * self._size)
            _add(total, (0,) * len(figures), figures)
        self._free.append(row)

    def last(self, key: Hashable) -> dict[str, int] | None:
        """Its figures in its last sample."""
        row = self._rows.get(key)
        if row is None:
            return None
        figures = self._unpack(self._now, row * self._size)
        return dict(zip(self._fields, figures, strict=True))

    def per_second(self, key: Hashable) -> dict[str, float] | None:
        """How fast each figure of an object grew; None before its second sample."""
        row = self._rows.get(key)
        if row is None or self._before_at[row] < 0:
            return None
        if self._is_still[row]:
            return dict.fromkeys(self._fields, 0.0)
        here = row * self._size
        seconds = (self._at[row] - self._before_at[row]) / 1000
        found: dict[str, float] = {}
        both = zip(
            self._fields,
            self._unpack(self._now, here),
            self._unpack(self._before, here),
            strict=True,
        )
        for name, now, before in both:
            grown = now - before
            # A counter that went back is another object's of the same name.
            is_other = grown < 0 and not name.startswith(GAUGE_PREFIX)
            found[name] = 0.0 if is_other else grown / seconds
        return found

    def rate(self, key: Hashable) -> float:
        """How fast its first figure grew; 0.0 where that is not known."""
        row = self._rows.get(key)
        if row is None or self._before_at[row] < 0 or self._is_still[row]:
            return 0.0
        here = row * self._size
        grown: int = self._unpack(self._now, here)[0] - self._unpack(self._before, here)[0]
        return max(0.0, grown * 1000 / (self._at[row] - self._before_at[row]))

    def _first(
        self,
        key: Hashable,
        figures: tuple[int, ...],
        packed: bytes,
        now_ms: int,
        total: list[int] | None,
    ) -> None:
        if len(self._rows) >= self._objects_max:
            return
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._at)
            self._now += packed
            self._before += packed
            self._is_still.append(0)
            self._at.append(0)
            self._before_at.append(0)
            self._totals.append(None)
        self._rows[key] = row
        here = row * self._size
        self._now[here : here + self._size] = self._before[here : here + self._size] = packed
        self._at[row], self._before_at[row] = now_ms, -1
        self._is_still[row] = 1
        self._totals[row] = total
        if total is not None:
            _add(total, figures, (0,) * len(figures))


def _add(total: list[int], now: Iterable[int], before: Iterable[int]) -> None:
    total[:] = [sum_ + new - old for sum_, new, old in zip(total, now, before, strict=True)]


class Stamps:
    """Which objects moved since they were last looked at, by a number that changes when they do."""

    __slots__ = ("_moving", "_stamps")

    def __init__(self) -> None:
        self._stamps: dict[Hashable, int] = {}
        self._moving: set[Hashable] = set()

    def known(self) -> list[Hashable]:
        return list(self._stamps)

    def is_moved(self, key: Hashable, stamp: int) -> bool:
        """Also once after it has stopped, so that its rates are seen to fall."""
        if self._stamps.get(key) == stamp:
            if key not in self._moving:
                return False
            self._moving.discard(key)
            return True
        if key not in self._stamps and len(self._stamps) >= OBJECTS_MAX:
            return False
        self._stamps[key] = stamp
        self._moving.add(key)
        return True

    def is_moving(self, key: Hashable) -> bool:
        """True while its next look will find it moved, or stopped."""
        return key in self._moving

    def drop(self, key: Hashable) -> None:
        self._stamps.pop(key, None)
        self._moving.discard(key)


class Ranking:
    """The busiest of a kind: offered one by one in a sweep, shown when it is over."""

    __slots__ = ("_count", "_heap", "_numbers", "shown")

    def __init__(self, count_max: int = BUSIEST_MAX) -> None:
        self._count = count_max
        self._heap: list[tuple[float, int, Hashable]] = []
        # Equal rates are told apart by who came first.
        self._numbers = count()
        self.shown: dict[Hashable, float] = {}
        """Key -> messages a second, the busiest first; of the last sweep that is over."""

    def offer(self, key: Hashable, per_s: float) -> None:
        if per_s <= 0:
            return
        entry = (per_s, -next(self._numbers), key)
        if len(self._heap) < self._count:
            heappush(self._heap, entry)
        else:
            heappushpop(self._heap, entry)

    def close(self) -> None:
        """All were offered."""
        self.shown = {each[2]: each[0] for each in sorted(self._heap, reverse=True)}
        self._heap = []


# ---- hops ---------------------------------------------------------------------------------------


MESSAGES: Final = ("total",)
SKIPPED_STEP: Final = 10
"""So many that are passed over cost as much as a look."""
LOG: Final = "log"


class TopicLook(Protocol):
    """What an adapter samples of topics, beside what the engine does."""

    def stamp(self, topic: Topic) -> int:
        """Changes when something moved of which the engine does not know."""
        ...

    def look(self, topic: Topic) -> None:
        """Sample it: it moved, or stopped a moment ago."""
        ...


class HopRates:
    """Messages a second from stage to stage, exactly: of what each hop's credit has counted.

    Connection -> channel -> queue -> log, and what each subscription settles. The busiest of each
    kind are ranked, so that whoever shows only some shows those.
    """

    __slots__ = (
        "_appended",
        "_channels",
        "_connections",
        "_hops",
        "_live",
        "_log",
        "_moved_connections",
        "_moved_topics",
        "_queues",
        "_registry",
        "_sampler",
        "_subscriptions",
        "busy_connections",
        "busy_queues",
        "busy_subscriptions",
        "looks",
    )

    def __init__(
        self,
        sampler: Sampler,
        registry: Registry,
        connections: Mapping[ConnectionId, Connection],
        appended: Callable[[], int],
    ) -> None:
        """``appended``: messages that the log ever took."""
        self._sampler = sampler
        self._registry = registry
        self._live = live = connections
        self._appended = appended
        queues = registry.queues
        self._moved_connections = sampler.stamps(lambda key: key in live)
        # What is gone is dropped by ``removed``.
        self._moved_topics = sampler.stamps(lambda _: True)
        self._connections = sampler.table("connection", MESSAGES, lambda key: key in live)
        self._channels = sampler.table("channel", MESSAGES, self._has_channel)
        self._hops = sampler.table("channel to queue", MESSAGES, self._has_hop)
        self._queues = sampler.table("queue", MESSAGES, lambda key: key in queues)
        readers = registry.subscriptions
        self._subscriptions = sampler.table("subscription", MESSAGES, lambda key: key in readers)
        self._log = sampler.table(LOG, MESSAGES, lambda _: True)
        self.busy_connections: Final = Ranking()
        self.busy_queues: Final = Ranking()
        self.busy_subscriptions: Final = Ranking()
        self.looks: Final[list[TopicLook]] = []
        """What adapters want to see of every topic that moved."""
        sampler.add(self._walk_connections)
        sampler.add(self._walk_topics)

    @property
    def log(self) -> float:
        """Into the log, all queues together."""
        return self._log.rate(LOG)

    def connection(self, connection: Connection) -> float:
        return self._connections.rate(connection.connection_id)

    def channel(self, channel: Channel) -> float:
        """What its connection hands to it."""
        return self._channels.rate(_channel_key(channel))

    def hop(self, channel: Channel, queue: Queue) -> float:
        return self._hops.rate((*_channel_key(channel), queue.queue_id))

    def queue(self, queue: Queue) -> float:
        """What it hands to the log."""
        return self._queues.rate(queue.queue_id)

    def subscription(self, subscription: Subscription) -> float:
        """What its readers settle."""
        return self._subscriptions.rate(subscription.subscription_id)

    @property
    def still_sweeps(self) -> int:
        """Sweeps from look to look at topics that stand still."""
        return self._queues.still_sweeps

    def removed(self, topic: Topic) -> None:
        """A topic is gone."""
        self._moved_topics.drop(topic.topic_id)

    def _walk_connections(self) -> Iterator[int]:
        sampler = self._sampler
        for connection in list(self._live.values()):
            total = 0
            for channel in connection.channels.values():
                total += channel.credit.spent_total
            if self._moved_connections.is_moved(connection.connection_id, total):
                self._connections.note(connection.connection_id, (total,), sampler.now_ms)
                self.busy_connections.offer(connection.connection_id, self.connection(connection))
                yield from self._look_at_channels(connection)
            yield 1
        self.busy_connections.close()

    def _look_at_channels(self, connection: Connection) -> Iterator[int]:
        sampler = self._sampler
        for channel in list(connection.channels.values()):
            key = _channel_key(channel)
            self._channels.note(key, (channel.credit.spent_total,), sampler.now_ms)
            yield 1
            for queue, credit in list(channel.queue_credits.items()):
                self._hops.note((*key, queue.queue_id), (credit.spent_total,), sampler.now_ms)
                yield 1

    def _walk_topics(self) -> Iterator[int]:
        sampler, moved = self._sampler, self._moved_topics
        topics = list(self._registry.topics.values())
        every = 1 + len(topics) // STILL_MAX
        self._queues.still_sweeps = self._subscriptions.still_sweeps = every
        turn = sampler.sweeps % every
        for number, topic in enumerate(topics):
            if number % every != turn and not moved.is_moving(topic.topic_id):
                if number % SKIPPED_STEP == 0:
                    yield 1
                continue
            stamp = 0
            for queue in topic.queues:
                stamp += queue.log_credit.spent_total
            steps = 0
            for subscription in list(topic.subscriptions.values()):
                stamp ^= subscription.stamp(sampler.now_ms)
                steps += len(topic.queues)
                if steps >= SLICE_OBJECTS:
                    yield steps
                    steps = 0
            for look in self.looks:
                stamp ^= look.stamp(topic)
            if moved.is_moved(topic.topic_id, stamp):
                yield from self._look_at(topic)
            yield max(1, steps)
        self.busy_queues.close()
        self.busy_subscriptions.close()
        self._log.note(LOG, (self._appended(),), sampler.now_ms)

    def _look_at(self, topic: Topic) -> Iterator[int]:
        sampler = self._sampler
        for queue in list(topic.queues):
            self._queues.note(queue.queue_id, (queue.log_credit.spent_total,), sampler.now_ms)
            self.busy_queues.offer(queue.queue_id, self.queue(queue))
            yield 1
        for subscription in list(topic.subscriptions.values()):
            key = subscription.subscription_id
            self._subscriptions.note(key, (subscription.settled_messages,), sampler.now_ms)
            self.busy_subscriptions.offer(key, self.subscription(subscription))
            yield 1
        for look in self.looks:
            look.look(topic)
            yield len(topic.queues)

    def _has_channel(self, key: Hashable) -> bool:
        return self._channel(key) is not None

    def _has_hop(self, key: Hashable) -> bool:
        channel = self._channel(key)
        queue = self._registry.queues.get(key[2]) if isinstance(key, tuple) else None
        return channel is not None and queue in channel.queue_credits

    def _channel(self, key: Hashable) -> Channel | None:
        assert isinstance(key, tuple)
        connection = self._live.get(key[0])
        return None if connection is None else connection.channels.get(key[1])


def _channel_key(channel: Channel) -> tuple[int, int]:
    return channel.connection.connection_id, channel.channel_id
