"""What publishers sent and were told, against what readers saw: P1, P5, D7 and law 6.

The ledger outlives crashes; the broker does not. It raises ``LawBroken`` the moment something is
seen that cannot be: a message nobody sent, a wrong payload, a refused one that is stored, two
messages on one visible offset, one publisher's messages in the wrong order.

A place is (queue id, offset): queue ids are never used again (D17), so a place once shown to a peer
must mean the same message for ever.
"""

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from hashlib import sha256
from typing import Final

import msgspec

from kit.batches import WIRE, BatchFacts
from penstock.model.ids import TRANSIENT_ID_MIN
from penstock.model.record import Record

Place = tuple[int, int]


class LawBroken(AssertionError):
    """Something happened that the design rules out."""


class State(IntEnum):
    """What a publisher knows of a message."""

    SENT = 0
    CONFIRMED = 1
    REFUSED = 2
    UNKNOWN = 3
    """Never answered, or answered "perhaps" (a failed sync)."""


class Sent(msgspec.Struct, gc=False):
    """One message as its publisher remembers it."""

    publisher: str
    number: int
    body: bytes
    topic: str
    state: int = 0
    may_vanish: bool = False
    """It may be gone without a breach: transient, expiring, or in a topic that drops."""
    is_ordered: bool = True
    """False for a delayed message: it is not where it was sent."""
    is_transient: bool = False
    """Confirmed before its sync: its offset is nobody's to rely on (D7)."""
    places: tuple[Place, ...] = ()
    batch: int = 0
    """Messages of the batch that it is, which others may open; 0 = it is one message."""

    @property
    def bodies(self) -> list[bytes]:
        """What its messages carry."""
        if not self.batch:
            return [self.body]
        return [b"%s/%d" % (self.body, number) for number in range(self.batch)]

    @property
    def value(self) -> str:
        """Its name, ``publisher:number``."""
        return f"{self.publisher}:{self.number}"


class Ledger:
    """Every message of a simulation."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.topics: dict[int, str] = {}
        """Queue id -> the topic incarnation it belongs to."""
        self.dead_queues: set[int] = set()
        """Queues of dead-letter topics: what was refused elsewhere may end here."""
        self._at: dict[Place, str] = {}
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        self.confirmed_count = 0
        self.refused_count = 0
        self.received_count = 0

    def send(self, publisher: str, number: int, topic: str, size: int) -> Sent:
        """A message is about to be published."""
        name = f"{publisher}:{number}"
        # The filler depends on the name, so that bytes of another message never pass for these.
        filler = (f"{name}." * (size // (len(name) + 1) + 1))[:size]
        sent = Sent(publisher, number, f"{name}|{filler}".encode(), topic)
        self.sent[name] = sent
        return sent

    def confirmed(self, sent: Sent, places: tuple[Place, ...]) -> None:
        """The broker says it is stored there."""
        if sent.state in (State.CONFIRMED, State.REFUSED):
            raise LawBroken(f"{sent.value} was answered before and is now confirmed")
        sent.state = State.CONFIRMED
        sent.places = places
        self.confirmed_count += 1
        for queue_id, offset in places:
            if not sent.is_transient:
                self.visible(queue_id, offset, sent)
            if sent.is_ordered:
                self._check_order(sent, queue_id, offset)

    def _check_order(self, sent: Sent, queue_id: int, offset: int) -> None:
        """Offsets of one publisher in one queue rise with its numbers (P5).

        Confirms may overtake each other: a transient message does not wait for the sync.
        """
        lane = (sent.publisher, queue_id)
        number, last = self._last.get(lane, (-1, -1))
        if (sent.number > number) is not (offset > last):
            raise LawBroken(
                f"{sent.value} got offset {offset} of queue {queue_id}, "
                f"{sent.publisher}:{number} got {last} (P5)"
            )
        if offset > last:
            self._last[lane] = (sent.number, offset)

    def refused(self, sent: Sent, *, is_certain: bool) -> None:
        """The broker says it is not stored; uncertain after a failed sync."""
        if sent.state in (State.CONFIRMED, State.REFUSED):
            raise LawBroken(f"{sent.value} was answered before and is now refused")
        sent.state = State.REFUSED if is_certain else State.UNKNOWN
        self.refused_count += 1

    def received(self, queue_id: int, record: Record) -> Sent:
        """A reader got this from this queue: a message, a batch, or one message of a batch."""
        self.received_count += 1
        bodies = bodies_of(record)
        name = bodies[0].partition(b"|")[0].decode("ascii", "replace")
        sent = self.sent.get(name)
        if sent is None:
            raise LawBroken(f"queue {queue_id} gave {name!r}, which nobody sent")
        is_one = len(bodies) == 1 and bodies[0] in sent.bodies
        if not is_one and bodies != sent.bodies:
            raise LawBroken(f"queue {queue_id} gave {name} with a wrong payload: {bodies!r}")
        if sent.state == State.REFUSED and queue_id not in self.dead_queues:
            raise LawBroken(f"queue {queue_id} gave {name}, which was refused (law 6)")
        return sent

    def visible(self, queue_id: int, offset: int, sent: Sent) -> None:
        """A peer that sees offsets was shown this message at this place (D7)."""
        known = self._at.setdefault((queue_id, offset), sent.value)
        if known != sent.value:
            raise LawBroken(
                f"offset {offset} of queue {queue_id} was {known} and is now {sent.value} (D7)"
            )

    def confirmed_by_queue(self) -> dict[int, list[tuple[int, Sent]]]:
        """Queue id -> (offset, message) of everything confirmed there."""
        found: dict[int, list[tuple[int, Sent]]] = {}
        for sent in self.sent.values():
            if sent.state == State.CONFIRMED:
                for queue_id, offset in sent.places:
                    found.setdefault(queue_id, []).append((offset, sent))
        return found

    def delayed_by_topic(self) -> dict[str, list[Sent]]:
        """Topic -> the delayed messages that were confirmed and may not be lost."""
        found: dict[str, list[Sent]] = {}
        for sent in self.sent.values():
            if sent.state == State.CONFIRMED and not sent.is_ordered and not sent.may_vanish:
                found.setdefault(sent.topic, []).append(sent)
        return found

    def is_owed(self, queue_ids: Sequence[int]) -> bool:
        """True when something confirmed in these queues may not be lost."""
        wanted = set(queue_ids)
        return any(
            sent.state == State.CONFIRMED
            and not sent.may_vanish
            and any(queue_id in wanted for queue_id, _ in sent.places)
            for sent in self.sent.values()
        )

    def excuse(self, queue_ids: Sequence[int]) -> None:
        """Nothing is promised any more about messages of these queues (their topic is deleted)."""
        wanted = set(queue_ids)
        for sent in self.sent.values():
            if any(queue_id in wanted for queue_id, _ in sent.places):
                sent.may_vanish = True

    def excuse_topic(self, label: str) -> None:
        """The same for what is on its way to a deleted topic."""
        for sent in self.sent.values():
            if sent.topic == label:
                sent.may_vanish = True

    def forget_transient(self) -> None:
        """A restart: queues that are not durable are gone, and their ids start over (D6)."""
        for place in [place for place in self._at if place[0] >= TRANSIENT_ID_MIN]:
            del self._at[place]
        for lane in [lane for lane in self._last if lane[1] >= TRANSIENT_ID_MIN]:
            del self._last[lane]
        for queue_id in [q for q in self.topics if q >= TRANSIENT_ID_MIN]:
            del self.topics[queue_id]


def bodies_of(record: Record) -> list[bytes]:
    """What a record carries: more than one body when it is a batch that was not opened."""
    if record.shape.wire != WIRE or record.messages == 1:
        return [record.body]
    opened = BatchFacts().open_batch(record, len(record.origin))
    return [record.body] if isinstance(opened, str) else [each.body for each in opened]


# ---- trace --------------------------------------------------------------------------------------
# The trace of a simulation: every event as one line of text, hashed as it comes.
#
# Same seed, same hash: a line holds names and numbers only, never an address, a hash of an object
# or the order of a set. The last lines are kept for the report of a failure.


SHOWN_MAX: Final = 30
"""Events shown when a law is broken."""


class Trace:
    """What happened, in order."""

    __slots__ = ("_hash", "count", "last", "step")

    def __init__(self) -> None:
        self.last: deque[str] = deque(maxlen=SHOWN_MAX)
        self.count = 0
        self.step = 0
        self._hash = sha256()

    def note(self, line: str) -> None:
        """One event."""
        self.count += 1
        self.last.append(f"{self.step:5} {line}")
        self._hash.update(line.encode())

    @property
    def digest(self) -> str:
        """Hash of every event so far."""
        return self._hash.hexdigest()
