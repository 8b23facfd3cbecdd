"""Simulated peers: publishers, consumers and readers that check what they are told.

Each is the outlet of its own connection, so the engine speaks to them as it would to an adapter.
They never call back into the engine while it calls them; ``steps.py`` makes them act. What they
know of a subscription is kept in its ``Following``, because it outlives any one consumer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kit.simulation.ledger import LawBroken, Ledger, Place, Sent, State, Trace
from penstock.engine.host import Mode
from penstock.engine.ports import Publication
from penstock.engine.pull import Pull, PullResult, PullStatus
from penstock.model.ids import QueueId
from penstock.model.refusal import Refusal, RefusalKind

if TYPE_CHECKING:
    from penstock.engine.connection import Channel, Connection
    from penstock.engine.ports import Confirmation
    from penstock.engine.subscription.consumer import Consumer, Delivery
    from penstock.engine.subscription.subscription import Subscription
    from penstock.engine.topic import Queue
    from penstock.flow.demand import Permits
    from penstock.flow.reason import Reason

UNCERTAIN = frozenset((RefusalKind.SYNC_FAILED,))
"""Refusals after which the message may yet turn up (P4)."""


class Peer:
    """What every simulated connection does with the engine's calls."""

    def __init__(self, name: str, ledger: Ledger, trace: Trace) -> None:
        self.name = name
        self.ledger = ledger
        self.trace = trace
        self.reasons: dict[Reason, str] = {}

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        """Only publishers are confirmed."""
        raise LawBroken(f"{self.name} never published and got {len(confirmations)} confirms")

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        """Only publishers are refused."""
        raise LawBroken(f"{self.name} never published and got {len(refusals)} refusals")

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Only consumers get messages."""
        raise LawBroken(f"{self.name} never consumed and got {len(deliveries)} messages")

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """Noted."""
        self.trace.note(f"{self.name} cancelled {cause}")

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Noted."""
        self.trace.note(f"{self.name} active {is_active}")

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """The gate's set of reasons must be told completely (law 7)."""
        if is_open is bool(reasons):
            raise LawBroken(f"{self.name}: gate open={is_open} with {len(reasons)} reasons (law 7)")
        self.reasons = dict(reasons)
        names = ",".join(sorted(reason.value for reason in reasons))
        self.trace.note(f"{self.name} gate {names or 'open'}")

    def answered(self, pull: Pull, result: PullResult) -> None:
        """Only readers pull."""
        raise LawBroken(f"{self.name} never pulled and got an answer")


class SimPublisher(Peer):
    """One publishing connection with one channel."""

    def __init__(self, name: str, ledger: Ledger, trace: Trace, *, is_quiet: bool) -> None:
        super().__init__(name, ledger, trace)
        self.connection: Connection
        self.channel: Channel
        self.is_quiet = is_quiet
        self.is_flood = False
        self.next_number = 0
        self.pending: dict[int, Sent] = {}
        self.waiting: dict[int, tuple[Publication, Queue, int]] = {}
        """Of a quiet publisher: token -> (publish, its queue, turns it has waited); law 5."""

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        """Each is stored where it says."""
        for confirmation in confirmations:
            sent = self.pending.pop(confirmation.token, None)
            if sent is None:
                raise LawBroken(f"{self.name} got a confirm for unknown token {confirmation.token}")
            places = tuple(
                (queue.queue_id, offset)
                for queue, offset in zip(
                    confirmation.queues, confirmation.first_offsets, strict=False
                )
            )
            self.ledger.confirmed(sent, places if sent.is_ordered else ())
            self.waiting.pop(confirmation.token, None)
        tokens = ",".join(str(confirmation.token) for confirmation in confirmations)
        self.trace.note(f"{self.name} confirmed {tokens}")

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        """None is stored."""
        for token, refusal in refusals:
            sent = self.pending.pop(token, None)
            if sent is None:
                raise LawBroken(f"{self.name} got a refusal for unknown token {token}")
            self.ledger.refused(sent, is_certain=refusal.kind not in UNCERTAIN)
            self.waiting.pop(token, None)
            self.trace.note(f"{self.name} refused {token} {refusal.kind.value}")

    def gone(self) -> None:
        """The connection is over: what was not answered is unknown."""
        for sent in self.pending.values():
            sent.state = State.UNKNOWN
        self.pending.clear()
        self.waiting.clear()


@dataclass
class Following:
    """What peers know of one subscription, across consumers and restarts."""

    topic: str
    """Incarnation of its topic."""
    name: str
    sees_offsets: bool
    sees_batches: bool = field(default=False, kw_only=True)
    """It is given batches as they were sent; others get their messages."""
    start: dict[QueueId, int]
    """Queue id -> first offset it must see; the queues it reads."""
    seen: dict[str, int] = field(default_factory=dict)
    """What it got -> in which queue."""
    in_flight: dict[Place, SimConsumer] = field(default_factory=dict)
    settled: set[Place] = field(default_factory=set)
    receipted: set[Place] = field(default_factory=set)
    """Settled, and the broker said that this is durable: no crash brings them back."""
    last_first: dict[tuple[str, int, str], float] = field(default_factory=dict)
    mode: Mode = Mode.SHARED
    modes: dict[int, Mode] = field(default_factory=dict)
    """Queues whose readers brought another type."""
    told: dict[int, bool] = field(default_factory=dict)
    """Queue id -> whether it is read, as the broker said is durable; absent while that changes."""
    changes: int = 0
    """How often queues came and went: what is told of an older one counts no more."""
    loose_queues: set[int] = field(default_factory=set)
    """Queues in which it may begin elsewhere: a crash came before its start was durable."""
    parts: dict[Place, set[int]] = field(default_factory=dict)
    """Offsets inside batches that are settled, the batch not."""
    receipted_parts: dict[Place, set[int]] = field(default_factory=dict)
    """Those of which the broker said that this is durable."""
    doubtful_parts: dict[Place, set[int]] = field(default_factory=dict)
    """Those that a crash may have forgotten."""
    messages: dict[Place, int] = field(default_factory=dict)
    """Offsets that a batch record covers, where it is more than one."""
    received_count: int = 0
    hungry: tuple[int, int] = (0, 0)
    """(turns in which it could have got something and did not, its progress before them)."""
    is_flagged: bool = False
    """The delivered mark is reserved far enough ahead that every second delivery is flagged."""
    is_dropping: bool = False
    """Its topic drops messages by itself."""
    is_loose: bool = False
    """It was moved on purpose (seek, purge): it need not see everything any more."""

    def restarted(self) -> None:
        """The broker is another one: acks may be forgotten (P2), nothing is in flight."""
        self.in_flight.clear()
        self.settled.clear()
        for place, offsets in self.parts.items():
            self.doubtful_parts.setdefault(place, set()).update(offsets)
        self.parts = {place: set(each) for place, each in self.receipted_parts.items()}
        if self.is_loose or self.is_dropping:
            # What was skipped unseen may be back: the settlement that said so was not awaited.
            self.last_first.clear()

    def mode_in(self, queue_id: int) -> Mode:
        """How this queue is read."""
        return self.modes.get(queue_id, self.mode)

    def is_loose_in(self, queue_id: int) -> bool:
        """Whether it need not see everything of this queue."""
        return self.is_loose or queue_id in self.loose_queues

    def sought(self, queue_id: int) -> None:
        """A seek: what was settled may come again, what was not may be skipped."""
        self.is_loose = True
        self.begin_anew(queue_id)

    def begin_anew(self, queue_id: int) -> None:
        """Nothing is known of this queue any more."""
        self.settled = {place for place in self.settled if place[0] != queue_id}
        self.receipted = {place for place in self.receipted if place[0] != queue_id}
        self.last_first = {lane: n for lane, n in self.last_first.items() if lane[1] != queue_id}
        for known in (self.parts, self.receipted_parts, self.doubtful_parts):
            for place in [place for place in known if place[0] == queue_id]:
                del known[place]
        for place in [place for place in self.in_flight if place[0] == queue_id]:
            self.in_flight[place].forget([place])

    def received(self, taker: SimConsumer, delivery: Delivery, now_ms: int) -> Sent:
        """Check one delivery against everything known."""
        place = (delivery.queue_id, delivery.offset)
        self.received_count += 1
        sent = taker.ledger.received(delivery.queue_id, delivery.record)
        value = self._part(delivery, sent)
        if place in self.receipted:
            raise LawBroken(f"{self.name} gave {sent.value} again after its ack was durable (P1)")
        if place in self.settled:
            raise LawBroken(f"{self.name} gave {sent.value} again after it was settled")
        holder = self.in_flight.get(place)
        if holder is not None:
            deadline_ms = holder.held[place]
            # A failover takes back what the one before had; a passed deadline gives it to others.
            is_over = bool(deadline_ms) and now_ms >= deadline_ms
            if not is_over and self.mode_in(delivery.queue_id) is not Mode.FAILOVER:
                raise LawBroken(f"{self.name} gave {sent.value} to {taker.name} and {holder.name}")
            holder.forget([place])
        if self.sees_offsets:
            taker.ledger.visible(delivery.queue_id, delivery.offset, sent)
        if not delivery.is_redelivered:
            if value not in self.seen:
                self._check_order(taker, delivery, sent)
            elif self.is_flagged and not self.is_loose_in(delivery.queue_id):
                raise LawBroken(f"{self.name} gave {sent.value} again without saying so (P2)")
        self.seen[value] = delivery.queue_id
        if delivery.record.messages > 1:
            self.messages[place] = delivery.record.messages
            if not self.is_loose_in(delivery.queue_id):
                self._check_parts(place, delivery, sent)
        return sent

    def _part(self, delivery: Delivery, sent: Sent) -> str:
        """The name of what was delivered: a message, a batch, or one message of a batch."""
        if not sent.batch or delivery.record.messages > 1:
            return sent.value
        number = sent.bodies.index(delivery.record.body)
        if self.sees_batches and delivery.queue_id not in self.loose_queues and not self.is_loose:
            raise LawBroken(f"{self.name} wants whole batches and got {number} of {sent.value}")
        return f"{sent.value}/{number}"

    def has_seen(self, sent: Sent) -> bool:
        """Whether it got all of it, whole or message by message."""
        if sent.value in self.seen:
            return True
        parts = range(sent.batch)
        return bool(parts) and all(f"{sent.value}/{number}" in self.seen for number in parts)

    def _check_parts(self, place: Place, delivery: Delivery, sent: Sent) -> None:
        """What is settled of a batch is not charged again, and nothing else is left out."""
        left = delivery.record.messages - len(self.parts.get(place, ()))
        doubtful = self.doubtful_parts.get(place, set()) - self.parts.get(place, set())
        if not left - len(doubtful) <= delivery.messages <= left:
            raise LawBroken(
                f"{self.name} gave {delivery.messages} messages of {sent.value}, of which {left} "
                "are not settled"
            )

    def _check_order(self, taker: SimConsumer, delivery: Delivery, sent: Sent) -> None:
        scope = self._order_scope(taker, delivery)
        is_dead = delivery.queue_id in taker.ledger.dead_queues
        # What expired may be back when the settlement that said so was lost: it is behind then.
        if scope is None or is_dead or sent.may_vanish or not sent.is_ordered:
            return
        lane = (sent.publisher, delivery.queue_id, scope)
        number: float = sent.number
        if sent.batch and delivery.record.messages == 1:
            number += sent.bodies.index(delivery.record.body) / sent.batch
        if number <= self.last_first.get(lane, -1):
            raise LawBroken(f"{self.name} gave {sent.value} out of order (P5)")
        self.last_first[lane] = number

    def _order_scope(self, taker: SimConsumer, delivery: Delivery) -> str | None:
        """Among whom order is promised: one consumer, one key, all, or nobody."""
        mode = self.mode_in(delivery.queue_id)
        if mode is Mode.KEY_SHARED:
            return delivery.record.key.decode() or None
        return taker.name if mode is Mode.SHARED else ""


class SimConsumer(Peer):
    """One consumer of one subscription."""

    def __init__(self, name: str, ledger: Ledger, trace: Trace, following: Following) -> None:
        super().__init__(name, ledger, trace)
        self.following = following
        self.subscription: Subscription
        self.consumer: Consumer | None = None
        self.permits: Permits | None = None
        self.queue_ids: tuple[QueueId, ...] = ()
        """What it reads; empty = all that its subscription does."""
        self.mode: Mode | None = None
        """The type it brought; None = it reads as its subscription was made."""
        self.unacked_max: int | None = None
        """The largest limit that it ever had; 0 = it had none, None = that of the settings."""
        self.visibility_ms = 0
        self.is_stuck = False
        self.is_slow = False
        """Its socket takes deliveries only when ``flush`` is called (F14)."""
        self._unsent = (0, 0)
        self.now_ms = 0
        self.held: dict[Place, int] = {}
        """What it has and did not settle -> when it goes back by itself (0 = never)."""

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Take and check."""
        following = self.following
        for delivery in deliveries:
            following.received(self, delivery, self.now_ms)
            place = (delivery.queue_id, delivery.offset)
            if consumer.is_auto_settled:
                following.settled.add(place)
            else:
                following.in_flight[place] = self
                self.held[place] = self.now_ms + self.visibility_ms if self.visibility_ms else 0
        places = ",".join(f"{d.queue_id}@{d.offset}" for d in deliveries)
        self.trace.note(f"{self.name} got {places}")
        messages, size = self._unsent
        self._unsent = (
            messages + sum(delivery.messages for delivery in deliveries),
            size + sum(delivery.size for delivery in deliveries),
        )
        if not self.is_slow:
            self.flush()

    @property
    def reads(self) -> list[QueueId]:
        """The queues it takes from."""
        return [
            each for each in self.following.start if not self.queue_ids or each in self.queue_ids
        ]

    def flush(self) -> None:
        """The socket takes what was handed over."""
        (messages, size), self._unsent = self._unsent, (0, 0)
        if messages and self.consumer is not None:
            self.consumer.sent(messages, size)

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Another one took over, and got back what this one had."""
        super().active_changed(consumer, is_active)
        if not is_active:
            self.forget_all()

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """It takes no more, and what it held is no longer its own."""
        super().cancelled(consumer, cause)
        self.forget_all()
        self.consumer = None

    def give_up_overdue(self) -> None:
        """What was invisible for too long is no longer its to settle."""
        overdue = [place for place, at_ms in self.held.items() if 0 < at_ms <= self.now_ms]
        self.forget(overdue)

    def choose(self, rng: random.Random, count_max: int) -> list[Place]:
        """Some of what it holds, oldest first mostly."""
        self.give_up_overdue()
        places = list(self.held)
        if not places:
            return []
        count = min(len(places), rng.randint(1, count_max))
        at = 0 if rng.random() < 0.8 else rng.randrange(len(places) - count + 1)
        return places[at : at + count]

    def forget(self, places: list[Place]) -> None:
        """They are settled or given back."""
        for place in places:
            del self.held[place]
            if self.following.in_flight.get(place) is self:
                del self.following.in_flight[place]

    def forget_all(self) -> None:
        """The consumer is gone."""
        self.forget(list(self.held))


class SimReader(Peer):
    """A pull-based reader with visible offsets over one queue."""

    def __init__(self, name: str, ledger: Ledger, trace: Trace) -> None:
        super().__init__(name, ledger, trace)
        self.queue: Queue
        self.offset = 0
        self.is_waiting = False

    def answered(self, pull: Pull, result: PullResult) -> None:
        """A held pull came back."""
        self.is_waiting = False
        self.take(result)

    def take(self, result: PullResult) -> None:
        """Check offsets and payloads, move on."""
        if result.status is PullStatus.OFFSET_TOO_LARGE and self.offset > result.max_offset:
            raise LawBroken(
                f"{self.name} read up to {self.offset}, and queue {self.queue.queue_id} now ends "
                f"at {result.max_offset} (D7)"
            )
        before = self.offset - 1
        for entry, record in zip(result.entries, result.records, strict=True):
            if entry[1] + entry[5] <= before:
                raise LawBroken(f"{self.name} asked for {self.offset} and got {entry[1]}")
            sent = self.ledger.received(self.queue.queue_id, record)
            self.ledger.visible(self.queue.queue_id, entry[1], sent)
            before = entry[1]
        if result.next_offset < self.offset and result.status is PullStatus.FOUND:
            raise LawBroken(f"{self.name} was sent back from {self.offset} to {result.next_offset}")
        self.trace.note(
            f"{self.name} read {self.queue.queue_id}@{self.offset} {result.status.value} "
            f"{len(result.records)} next {result.next_offset}"
        )
        self.offset = max(result.next_offset, result.min_offset)
