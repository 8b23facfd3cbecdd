"""A parcel: consecutive publishes of one channel that travel together (lists between stages).

All publications of a parcel have the same route object and the same ``Manner``; once routed they
have the same target queues too. A stage looks at the parcel, not at its messages, so that a list of
a hundred costs little more than a list of one.

Invariants: never empty; ``size`` is the sum of its origins; what the pool is charged for it is a
function of it alone, so that exactly that much is given back.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from penstock.engine.ports import Publication, Route
from penstock.model.errors import InvariantBroken
from penstock.model.record import Record, RecordFlag

if TYPE_CHECKING:
    from penstock.engine.connection import Channel
    from penstock.engine.queue import Queue

PUBLICATION_BYTES: Final = 512
"""What a publish weighs beside its bytes (record, publication and list slots, measured about 450):
without it a flood of empty messages would be outside every byte limit (law 2)."""

_ODD_FLAGS: Final = int(RecordFlag.TRANSIENT | RecordFlag.DELAYED)


class Manner(Enum):
    """How the messages of a parcel are to be treated."""

    PLAIN = "plain"
    TRANSIENT = "transient"
    """Confirmed when appended, not when durable."""
    TIMED = "timed"
    """Each may have a time before which it is not delivered; looked at one by one."""


class Parcel:
    """A run of publishes."""

    __slots__ = (
        "arrived_ms",
        "channel",
        "has_keys",
        "manner",
        "publications",
        "queues",
        "route",
        "size",
    )

    def __init__(
        self,
        channel: Channel,
        publications: list[Publication],
        route: Route,
        size: int,
        *,
        manner: Manner = Manner.PLAIN,
        arrived_ms: int = 0,
        queues: tuple[Queue, ...] | None = None,
    ) -> None:
        self.channel = channel
        self.publications = publications
        self.route = route
        self.size = size
        """Bytes of all origins."""
        self.manner = manner
        self.arrived_ms = arrived_ms
        self.queues = queues
        """None until it is routed."""
        self.has_keys = False
        """True when some of it can be looked up by key."""

    def __len__(self) -> int:
        return len(self.publications)

    @property
    def charge(self) -> int:
        """Bytes the pool pays for it (D22)."""
        return self.size + PUBLICATION_BYTES * len(self.publications)

    def part(self, publications: list[Publication], queues: tuple[Queue, ...] | None) -> Parcel:
        """Some of its publications, routed to ``queues``."""
        part = Parcel(
            self.channel,
            publications,
            self.route,
            size_of(publications),
            manner=self.manner,
            arrived_ms=self.arrived_ms,
            queues=queues,
        )
        part.has_keys = self.has_keys
        return part

    def split(self, count: int) -> Parcel:
        """Cut off and return the first ``count`` publications; this one keeps the rest."""
        if not 0 < count < len(self.publications):
            raise InvariantBroken(f"a parcel of {len(self)} cannot be split at {count}")
        first = self.part(self.publications[:count], self.queues)
        del self.publications[:count]
        self.size -= first.size
        return first


def parcels_of(channel: Channel, publications: list[Publication], now_ms: int) -> list[Parcel]:
    """The publications as parcels, in order; the list becomes theirs."""
    route = publications[0].route
    routes = [publication.route for publication in publications]
    records = [publication.record for publication in publications]
    if routes.count(route) != len(routes) or not _are_plain(records):
        return _mixed(channel, publications, now_ms)
    size = sum([len(record.origin) for record in records])
    parcel = Parcel(channel, publications, _checked(route), size, arrived_ms=now_ms)
    keys = [publication.keys for publication in publications]
    parcel.has_keys = any(keys)
    return [parcel]


def _are_plain(records: list[Record]) -> bool:
    """True when they may all be treated alike, as nothing special."""
    shapes = [record.shape for record in records]
    # Equal ones are usually the same object: then counting is all the comparing there is.
    if shapes.count(shapes[0]) == len(shapes):
        shapes = shapes[:1]
    return not any(shape.deliver_ms or shape.flags & _ODD_FLAGS for shape in shapes)


def size_of(publications: list[Publication]) -> int:
    """Bytes of all origins."""
    return sum([len(publication.record.origin) for publication in publications])


def _mixed(channel: Channel, publications: list[Publication], now_ms: int) -> list[Parcel]:
    parcels: list[Parcel] = []
    last: Parcel | None = None
    for publication in publications:
        manner = _manner(publication)
        if last is None or publication.route is not last.route or manner is not last.manner:
            route = _checked(publication.route)
            last = Parcel(channel, [], route, 0, manner=manner, arrived_ms=now_ms)
            parcels.append(last)
        last.publications.append(publication)
        last.has_keys |= bool(publication.keys)
        last.size += len(publication.record.origin)
    return parcels


def _manner(publication: Publication) -> Manner:
    shape = publication.record.shape
    if shape.deliver_ms or shape.flags & RecordFlag.DELAYED:
        return Manner.TIMED
    return Manner.TRANSIENT if shape.flags & RecordFlag.TRANSIENT else Manner.PLAIN


def _checked(route: Route | None) -> Route:
    if route is None:
        raise InvariantBroken("a publication without a route was given to a channel")
    return route
