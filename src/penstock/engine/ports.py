"""What the engine asks of the world around it, and the objects that cross that line.

* ``Route``: where a publish goes; made by the adapter, asked by the pipeline (``topic.py``
  has the plain ones).
* ``DeadLetterFormat``: how a dead letter is rewritten in its protocol's words (``dead_letter.py``
  has the neutral one).
* ``DeadLetterRouter``: where the dead letters of one topic go, when its protocol routes them.
* ``PoolHolder``: who has the room that publishes which are still arriving wait for.
* ``Undone``: what an adapter puts off until the next turns, for operators.
* ``FactsReader``: reads what a protocol's bytes say; ``OrderingKeyReader`` and ``BatchCodec`` are
  what one of them may do beside that.
* ``Publication``: one publish from arrival to confirm. The same object is the log's ``Appending``
  and the ``Confirmation``: a message is handed over by lists and never copied on its way in.
* ``PublishChannel``: the channel it came on, as far as a publish needs it later.

Nothing of the engine is imported here. Not here: the way back to a peer (``connection.Outlet``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from penstock.flow.reason import Culprit
from penstock.flow.views import UndoneView
from penstock.log.encode import Appending
from penstock.model.ids import UNASSIGNED_OFFSET, LogPosition, QueueId, QueueOffset
from penstock.model.record import Record
from penstock.model.refusal import Refusal

QueueT_co = TypeVar("QueueT_co", covariant=True)
QueueT_contra = TypeVar("QueueT_contra", contravariant=True)
"""The engine's queue (``topic.Queue``): it is above this module, which only names it."""


class Route(Protocol[QueueT_co]):
    """Where one publish goes."""

    @property
    def steps(self) -> int:
        """What asking costs, counted against the channel's share of a turn (1 = one look-up)."""
        ...

    @property
    def is_constant(self) -> bool:
        """True when every record gets the same targets: a whole run is then routed by one call."""
        ...

    def targets(self, record: Record, /) -> tuple[QueueT_co, ...]:
        """The queues that get a copy, each once; empty = unroutable."""
        ...


class Publication(Appending, gc=False):
    """One publish on its way in; after ``Outlet.confirmed`` it says where it was stored."""

    route: Route[object] | None = None
    """Always given by the adapter; optional only for the sake of the fields before it."""
    token: int = 0
    """The adapter's own number for it, unique on its channel; the engine only gives it back."""
    is_mandatory: bool = False
    """Unroutable is refused with NO_ROUTE instead of being confirmed."""
    keys: tuple[bytes, ...] = ()
    """Under which it can be looked up later (``Engine.positions_of``)."""

    @property
    def queue_id(self) -> QueueId:
        """The (first) queue it went to; 0 when it was unroutable."""
        return QueueId(self.queues[0].queue_id) if self.queues else QueueId(0)

    @property
    def offset(self) -> QueueOffset:
        """Its (first) offset there; -1 when it has none (unroutable, or delayed)."""
        offset = self.first_offset
        return QueueOffset(-1 if offset == UNASSIGNED_OFFSET else offset)

    @property
    def position(self) -> LogPosition:
        """Where its record is in the log; -1 when it was not stored."""
        return self.record.position

    @property
    def store_ms(self) -> int:
        """When it was stored, wall time."""
        return self.record.store_ms


Confirmation = Publication
"""What ``Outlet.confirmed`` gets: token, queue_id, offset, position and store_ms are filled in."""


class PublishChannel(Protocol[QueueT_contra]):
    """The channel that a publish came on, as far as the publish needs it later."""

    is_closed: bool
    """Nobody is there to be told what became of it."""

    @property
    def publisher(self) -> Culprit:
        """Whom people know as the publisher."""
        ...

    def note_unroutable(self, messages: int, now_ms: int) -> None:
        """No queue wants these."""
        ...

    def queue_processed(self, queue: QueueT_contra, messages: int) -> None:
        """The queue has passed on so many: the credit towards it comes back."""
        ...

    def finished(self, messages: int, charge: int) -> None:
        """So many are durable, refused or dropped: their bytes are paid back."""
        ...

    def confirm(self, confirmations: list[Confirmation]) -> None:
        """Tell the peer that these are stored."""
        ...

    def stop(self, refusal: Refusal) -> None:
        """What it sent is not stored although it was taken in: what is behind it may not be."""
        ...

    def refuse(self, refusals: list[tuple[int, Refusal]]) -> None:
        """Tell the peer that these (token, why) are not stored."""
        ...


class PoolHolder(Protocol):
    """Room in the in-flight pool for publishes that are still arriving, shared by an adapter."""

    @property
    def culprit(self) -> str:
        """Label of the connection whose arriving publishes fill the pool; empty = none does.

        Asked when somebody looks, not when somebody has to wait.
        """
        ...


class Undone(Protocol):
    """What a connection's adapter has begun and goes on with in the next turns."""

    def view(self) -> UndoneView:
        """How much of it is left, since when; asked when somebody looks."""
        ...


class FactsReader(Protocol):
    """Reads neutral facts out of the bytes a protocol sent (D15); one per wire, a port."""

    def keys(self, record: Record) -> Sequence[bytes]:
        """The keys under which the record can be looked up."""
        ...


@runtime_checkable
class OrderingKeyReader(Protocol):
    """A ``FactsReader`` whose protocol keeps the key of key_shared elsewhere than in the record."""

    def ordering_key(self, record: Record) -> bytes:
        """Messages with the same one stay in order; empty = no order to keep."""
        ...


@runtime_checkable
class BatchCodec(Protocol):
    """A ``FactsReader`` whose protocol sends several messages as one record (``batch.py``).

    A batch of one is not among them: it is a record of one message, read as any other.
    """

    def open_batch(self, record: Record, bytes_max: int) -> list[Record] | str:
        """Its messages, each a record of one message that the wire's readers can read.

        Of the outer record they need not have position, times and flags. A text says why it cannot
        be opened: encrypted, a compression that is not known, corrupt, more than ``bytes_max``
        bytes when inflated (never inflate more). It raises nothing: peers made these bytes.
        """
        ...


class Death(msgspec.Struct, frozen=True, gc=False):
    """Why and where a message died; what may be written into the dead letter."""

    cause: int
    """A ``Cause`` with ``is_dead_letter``."""
    space: str
    topic: str
    queue: int
    """Number of the queue inside its topic."""
    offset: int
    attempts: int
    time_ms: int
    """Wall time of the death."""
    target_space: str = ""
    target_topic: str = ""
    """Name of the dead-letter topic."""


class DeadLetterFormat(Protocol):
    """Turns a dead message into the record that the dead-letter topic stores."""

    def rewrite(self, record: Record, death: Death) -> Record | None:
        """A new record, or None when the message is to vanish; the original is only read."""
        ...


class DeadLetterRouter(Protocol[QueueT_co]):
    """Where the dead letters of a topic go, instead of to the one topic that its policy names."""

    def route(self, record: Record, death: Death) -> Iterable[tuple[Record, tuple[QueueT_co, ...]]]:
        """New records, each with the queues that get it; none when the message is to vanish.

        Asked at the moment of death; the original is only read.
        """
        ...
