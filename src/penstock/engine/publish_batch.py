"""A batch: consecutive publishes of one channel that travel together (lists between stages).

All publications of a batch have the same route object and the same ``BatchKind``; once routed they
have the same target queues too. A stage looks at the batch, not at its messages, so that a list of
a hundred costs little more than a list of one.

A batch is a *run* when its records are of one shape and size, too: the log then stages it by
columns, without looking for runs itself (``log/encode.py``).

Invariants: never empty; ``size`` is the sum of its origins; what the pool is charged for it is a
function of it alone, so that exactly that much is given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, Generic, TypeVar, cast

import msgspec

from penstock.engine.ports import Publication, PublishChannel, Route
from penstock.model.errors import InvariantBroken
from penstock.model.record import RecordFlag, Shape

QueueT = TypeVar("QueueT")
"""The engine's queue, which is above this module: a batch only carries it."""

PUBLICATION_BYTES: Final = 512
"""What a publish weighs beside its bytes (record, publication and list slots, measured about 450):
without it a flood of empty messages would be outside every byte limit (law 2)."""

JOINED_MAX: Final = 1000
"""Publications from which on a batch is not joined by later ones: splitting it copies the rest."""

JOINED_MS_MAX: Final = 5
"""Publications that came so soon after a batch still join it: they are held as long as its first,
which matters to nobody, for holds last for seconds."""

NO_ROUTE: Final = "a publication without a route was given to a channel"

_TRANSIENT: Final = int(RecordFlag.TRANSIENT)
_DELAYED: Final = int(RecordFlag.DELAYED)
_NOT_PLAIN: Final = _TRANSIENT | _DELAYED


class BatchKind(Enum):
    """How the messages of a batch are to be treated."""

    PLAIN = "plain"
    TRANSIENT = "transient"
    """Confirmed when appended, not when durable."""
    TIMED = "timed"
    """Each may have a time before which it is not delivered; looked at one by one."""


class PublishBatch(msgspec.Struct, Generic[QueueT], eq=False):
    """A run of publishes."""

    channel: PublishChannel[QueueT]
    publications: list[Publication]
    route: Route[QueueT]
    size: int
    """Bytes of all origins."""
    kind: BatchKind = BatchKind.PLAIN
    arrived_ms: int = 0
    queues: tuple[QueueT, ...] | None = None
    """None until it is routed."""
    extra_messages: int = 0
    """Messages beyond one a publication: what its protocol sent as one counts all it holds."""
    has_keys: bool = False
    """True when some of it can be looked up by key."""
    is_run: bool = False
    """True when all of its records share one shape object and have origins of one size."""
    is_answered: bool = False
    """True when its publisher was told already: confirmed without the sync (P1), or refused by
    another queue than those it goes to."""

    def __len__(self) -> int:
        return len(self.publications)

    @property
    def messages(self) -> int:
        """What the counters count."""
        return len(self.publications) + self.extra_messages

    @property
    def charge(self) -> int:
        """Bytes the pool pays for it (D22)."""
        return self.size + PUBLICATION_BYTES * len(self.publications)

    def join(self, later: PublishBatch[QueueT]) -> bool:
        """Take in what its channel sent right after it, if the two can travel as one."""
        if (
            later.route is not self.route
            or later.kind is not self.kind
            or later.arrived_ms - self.arrived_ms > JOINED_MS_MAX
            or self.queues is not None
            or len(self.publications) >= JOINED_MAX
        ):
            return False
        if self.is_run:
            mine, other = self.publications[0].record, later.publications[0].record
            self.is_run = (
                later.is_run and other.shape is mine.shape and len(other.origin) == len(mine.origin)
            )
        self.publications += later.publications
        self.size += later.size
        self.extra_messages += later.extra_messages
        self.has_keys |= later.has_keys
        return True

    def part(
        self, publications: list[Publication], queues: tuple[QueueT, ...] | None
    ) -> PublishBatch[QueueT]:
        """Some of its publications, routed to ``queues``."""
        return PublishBatch(
            self.channel,
            publications,
            self.route,
            size_of(publications),
            self.kind,
            arrived_ms=self.arrived_ms,
            queues=queues,
            extra_messages=extra_messages(publications) if self.extra_messages else 0,
            has_keys=self.has_keys,
            is_run=self.is_run,
        )

    def split(self, count: int) -> PublishBatch[QueueT]:
        """Cut off and return the first ``count`` publications; this one keeps the rest."""
        if not 0 < count < len(self.publications):
            raise InvariantBroken(f"a batch of {len(self)} cannot be split at {count}")
        first = self.part(self.publications[:count], self.queues)
        del self.publications[:count]
        self.size -= first.size
        self.extra_messages -= first.extra_messages
        return first


def publish_batches(
    channel: PublishChannel[QueueT], publications: list[Publication], now_ms: int
) -> list[PublishBatch[QueueT]]:
    """The publications as batches, in order; the list becomes theirs."""
    first = publications[0]
    route, shape, origin_bytes = first.route, first.record.shape, len(first.record.origin)
    size = 0
    has_keys, is_run, has_batches = False, True, shape.messages > 1
    is_plain = not (shape.deliver_ms or shape.flags & _NOT_PLAIN)
    for publication in publications:
        record = publication.record
        if record.shape is not shape:
            shape, is_run = record.shape, False
            has_batches = has_batches or shape.messages > 1
            is_plain = is_plain and not (shape.deliver_ms or shape.flags & _NOT_PLAIN)
        if publication.route is not route or not is_plain:
            return _mixed(channel, publications, now_ms)
        if publication.keys:
            has_keys = True
        length = len(record.origin)
        if length != origin_bytes:
            is_run = False
        size += length
    if route is None:
        raise InvariantBroken(NO_ROUTE)
    batch = PublishBatch(
        channel, publications, cast("Route[QueueT]", route), size, arrived_ms=now_ms
    )
    batch.has_keys, batch.is_run = has_keys, is_run
    if has_batches:
        batch.extra_messages = extra_messages(publications)
    return [batch]


def size_of(publications: list[Publication]) -> int:
    return sum([len(publication.record.origin) for publication in publications])


def extra_messages(publications: list[Publication]) -> int:
    """Messages beyond one a publication."""
    return sum([publication.record.shape.messages - 1 for publication in publications])


def _mixed(
    channel: PublishChannel[QueueT], publications: list[Publication], now_ms: int
) -> list[PublishBatch[QueueT]]:
    batches: list[PublishBatch[QueueT]] = []
    last: PublishBatch[QueueT] | None = None
    for publication in publications:
        kind = _kind_of(publication.record.shape)
        if last is None or publication.route is not last.route or kind is not last.kind:
            if publication.route is None:
                raise InvariantBroken(NO_ROUTE)
            route = cast("Route[QueueT]", publication.route)
            last = PublishBatch(channel, [], route, 0, kind=kind, arrived_ms=now_ms)
            batches.append(last)
        last.publications.append(publication)
        last.has_keys |= bool(publication.keys)
        last.size += len(publication.record.origin)
        last.extra_messages += publication.record.shape.messages - 1
    return batches


def _kind_of(shape: Shape) -> BatchKind:
    if shape.deliver_ms or shape.flags & _DELAYED:
        return BatchKind.TIMED
    return BatchKind.TRANSIENT if shape.flags & _TRANSIENT else BatchKind.PLAIN


class Inbox(Generic[QueueT]):
    """Batches that wait for the log in one queue: a lane per channel, newcomers first (law 5).

    A channel that had nothing here is a newcomer: its first batch goes before those of channels
    that have more than was taken so far; then everybody in turn. So a quiet publisher is not behind
    the flood of a thousand others, however little the log takes at a time; and a flood is behind
    itself.

    A batch for several queues is the same object in a lane of each. Its channel put it there in the
    same order everywhere, so the oldest batch of a channel is always at the head of its lanes.

    Bound: the credit of each channel towards the queue, and the connections' byte shares.
    """

    __slots__ = ("_fresh", "_lanes", "_old", "messages")

    def __init__(self) -> None:
        # Mostly of one batch, and never long: a list is made faster than a deque.
        self._lanes: dict[PublishChannel[QueueT], list[PublishBatch[QueueT]]] = {}
        self._fresh: dict[PublishChannel[QueueT], None] = {}
        self._old: dict[PublishChannel[QueueT], None] = {}
        self.messages = 0
        """Publishes in all lanes."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[PublishBatch[QueueT]]:
        for lane in self._lanes.values():
            yield from lane

    def put(self, batch: PublishBatch[QueueT]) -> None:
        """A channel routed a batch here."""
        channel = batch.channel
        lane = self._lanes.get(channel)
        if lane is None:
            self._lanes[channel] = [batch]
            self._fresh[channel] = None
        else:
            lane.append(batch)
        self.messages += len(batch.publications)

    def is_head(self, batch: PublishBatch[QueueT]) -> bool:
        """True when it is here and nothing of its channel is before it."""
        lane = self._lanes.get(batch.channel)
        return lane is not None and lane[0] is batch

    def newcomers(self) -> list[PublishBatch[QueueT]]:
        """The first batches of channels that had nothing here before."""
        return [self._lanes[channel][0] for channel in self._fresh]

    def heads(self) -> list[PublishBatch[QueueT]]:
        """The first batch of every channel, in the order of service."""
        return [self._lanes[channel][0] for channel in (*self._fresh, *self._old)]

    def take(self, batch: PublishBatch[QueueT]) -> None:
        """Take out the head of a lane; its channel is last in turn then."""
        channel = batch.channel
        lane = self._lanes[channel]
        self.messages -= len(batch.publications)
        if channel in self._fresh:
            del self._fresh[channel]
        else:
            del self._old[channel]
        if len(lane) > 1:
            del lane[0]
            self._old[channel] = None
        else:
            del self._lanes[channel]

    def take_lane(self, channel: PublishChannel[QueueT]) -> list[PublishBatch[QueueT]]:
        """Take out everything of a channel."""
        lane = self._lanes.pop(channel, [])
        self._fresh.pop(channel, None)
        self._old.pop(channel, None)
        self.messages -= sum([len(batch.publications) for batch in lane])
        return lane

    def clear(self) -> None:
        self._lanes.clear()
        self._fresh.clear()
        self._old.clear()
        self.messages = 0
