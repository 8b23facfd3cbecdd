"""The way out: from a queue to a consumer. Start reading the delivery side here.

``Subscription.dispatch`` runs one round per turn. For each queue, ``DeliveryPipeline.serve``:

1. *Select*: the queue's dispatcher names the consumers that may be handed something now
   (``dispatchers.py``: one per subscription type); what is available to them bounds the rest.
2. *Pick*: the picker takes what is next in the queue, never more than that (``pick.py``).
3. *Deal*: if there are several consumers, the list is split among them (``DispatchBudget``,
   ``deal``); with ``KeyShared`` the key decides.
4. *Hand over*: each list is charged to its consumer, put in flight (``PendingEntries``) and into
   the outbox; the outlets get one list per consumer and round, when the round is over.

Then the consumer settles, requeues or rejects it (``settle.py``), more becomes available to it, and
the next round begins.

Invariant: a message is charged to demand and limits when it is handed over and returned exactly
once, when it is settled, requeued or taken out of flight; lists move, nothing is done per message
that can be done per list.
"""

from collections import Counter
from typing import Final

from penstock.engine.host import Host, SubscriptionOptions
from penstock.engine.subscription.consumer import Consumer, Delivery, PendingEntry
from penstock.engine.subscription.cursor import QueueCursor, joined_ranges
from penstock.engine.subscription.dispatchers import KeyShared
from penstock.engine.subscription.pick import Picked, Picker
from penstock.engine.subscription.settle import Settler
from penstock.flow.demand import UNLIMITED
from penstock.flow.rate import DispatchLimit, DispatchRate
from penstock.model.clock import Clock
from penstock.model.settlement import Cause

BLOCK_MIN: Final = 16
"""With at least this many for each, a consumer gets neighbours instead of every k-th message: just
as even, and what it settles together stays one range."""

Outbox = dict[Consumer, list[Delivery]]
"""What a round hands over: one list per consumer."""


class DispatchThrottle:
    """What a subscription's rounds may hand over by dispatch rates: its own and its topic's (F8).

    Everything that a round hands over waits for them, also what comes again. What is taken by hand
    or popped never waits, but counts.
    """

    __slots__ = (
        "_clock",
        "_limits",
        "_messages",
        "_size",
        "_was_served",
        "_who",
        "is_set",
        "is_spent",
        "next_ms",
        "own",
    )

    def __init__(self, clock: Clock, rate: DispatchRate | None) -> None:
        self._clock = clock
        self._who = object()
        self.own: DispatchLimit | None = None
        self._limits: list[DispatchLimit] = []
        self._messages = self._size = 0
        self._was_served = False
        self.is_set = False
        self.is_spent = False
        """True while messages wait for a rate."""
        self.next_ms = 0
        """Then: when the next round is worth while."""
        if rate is not None:
            self.resize(rate)

    def resize(self, rate: DispatchRate) -> None:
        """Another rate of its own, from now on."""
        if not rate.is_set:
            self.own = None
        elif self.own is not None:
            self.own.resize(rate, self._clock.monotonic_ms())
        else:
            self.own = DispatchLimit(rate, self._clock.monotonic_ms())

    def begin(self, of_topic: DispatchLimit | None) -> None:
        """A round begins."""
        if of_topic is None and self.own is None and not self.is_set:
            return
        for limit in self._limits:
            if limit is not self.own and limit is not of_topic:
                limit.leave_line(self._who)
        self._limits = [limit for limit in (self.own, of_topic) if limit is not None]
        self.is_set, self.is_spent = bool(self._limits), False
        self._was_served = False
        if self.is_set:
            now_ms = self._clock.monotonic_ms()
            shares = [limit.share(self._who, now_ms) for limit in self._limits]
            self._messages = min(messages for messages, _ in shares)
            self._size = min(size for _, size in shares)

    def cut(self, messages: int, size: int) -> tuple[int, int]:
        """No more than what is left for this round; somebody would take so much."""
        if not self.is_set or messages <= 0:
            return messages, size
        if self._messages <= 0 or self._size <= 0:
            self.is_spent = True
            return 0, 0
        return min(messages, self._messages), min(size, self._size)

    def spend(self, entries: int, messages: int, size: int) -> None:
        """So much was handed over."""
        now_ms = self._clock.monotonic_ms()
        self._was_served = True
        self._size -= size
        # Where one of them counts entries this is the fewer of both, and the next round has more.
        is_by_entries = all(limit.rate.counts_entries for limit in self._limits)
        self._messages -= entries if is_by_entries else messages
        for limit in self._limits:
            limit.spend(entries, messages, size, now_ms)

    def end(self) -> None:
        """The round is over."""
        if not self.is_set:
            return
        now_ms = self._clock.monotonic_ms()
        for limit in self._limits:
            if self.is_spent:
                limit.stand_in_line(self._who, was_served=self._was_served)
            else:
                limit.leave_line(self._who)
        if self.is_spent:
            wait_ms = max(limit.wait_ms(now_ms) for limit in self._limits)
            # Its part may be used up, or others be first, while there are some left.
            self.next_ms = now_ms + max(1, wait_ms)

    def close(self) -> None:
        """The subscription is gone."""
        self.own = None
        self.begin(None)


class DeliveryPipeline:
    """Moves messages of one subscription from its queues to its consumers.

    It holds no state of its own but a counter: where a queue stands is the ``QueueCursor``'s, what
    a consumer may have is the ``Consumer``'s. It never calls an outlet: whoever runs the round
    does, when everything is in order again.
    """

    __slots__ = (
        "_consumers",
        "_host",
        "_ordering_key",
        "_picker",
        "_settler",
        "redelivered_messages",
        "throttle",
    )

    def __init__(
        self,
        host: Host,
        options: SubscriptionOptions,
        consumers: dict[int, Consumer],
        picker: Picker,
        settler: Settler,
    ) -> None:
        self._host = host
        self._ordering_key = host.ordering_key
        self._consumers = consumers
        self._picker = picker
        self._settler = settler
        self.redelivered_messages = 0
        self.throttle = DispatchThrottle(host.clock, options.dispatch_rate)
        """What dispatch rates leave to a round."""

    def serve(self, cursor: QueueCursor, messages_max: int, outbox: Outbox) -> int:
        """One queue's round, until demand, messages or the budget run out; returns what moved."""
        dispatcher = cursor.dispatcher
        if dispatcher.takeover_at_ms:
            return 0
        if isinstance(dispatcher, KeyShared):
            return self._serve_keys(cursor, dispatcher, messages_max, outbox)
        moved = 0
        end = cursor.end
        cut = self.throttle.cut
        while moved < messages_max and (cursor.next_offset < end or cursor.redelivery.ready):
            consumers = dispatcher.consumers
            # Who is alone need not be searched for: what is available to it says it all.
            is_alone = len(consumers) == 1
            receivers = consumers if is_alone else dispatcher.receivers(cursor.ready_at_most)
            if not receivers:
                break
            budget = DispatchBudget(receivers) if len(receivers) > 1 else None
            messages, size = receivers[0].available() if budget is None else budget.total()
            messages, size = cut(messages, size)
            if not messages:
                break
            picked = self._pick(cursor, min(messages, messages_max - moved), size)
            if not picked.moved:
                break
            moved += picked.moved
            if not picked.deliveries:
                continue
            if budget is None:
                self._hand_over(cursor, receivers[0], picked, outbox)
                if not is_alone:
                    dispatcher.served(receivers[0])
                continue
            shares, left_over = deal(budget, picked.deliveries, is_plain=picked.is_plain)
            for consumer, share in shares:
                self._hand_over(cursor, consumer, Picked(share, is_plain=picked.is_plain), outbox)
            if shares:
                dispatcher.served(shares[-1][0])
            if left_over:
                # Nobody had the bytes for these: never handed over, so neither counted nor flagged.
                cursor.redelivery.add_all([delivery.offset for delivery in left_over])
        return moved

    def take(
        self,
        cursor: QueueCursor,
        consumer: Consumer,
        messages_max: int,
        *,
        bytes_max: int = UNLIMITED,
        scan_max: int = UNLIMITED,
    ) -> list[Delivery]:
        """Hand over at once to a consumer that asks outside the round, whatever its demand.

        Ends when ``scan_max`` messages were passed over and none of them could be delivered.
        """
        outbox: Outbox = {}
        scanned = 0
        while cursor.has_ready and not outbox and scanned < scan_max:
            picked = self._pick(cursor, messages_max, bytes_max)
            if not picked.moved:
                break
            scanned += picked.moved
            if picked.deliveries:
                self._hand_over(cursor, consumer, picked, outbox)
        return outbox.get(consumer, [])

    def _pick(self, cursor: QueueCursor, messages_max: int, bytes_max: int) -> Picked:
        # At the subscription's own limit (F13) only what was delivered before goes out again.
        limit = self._settler.inflight
        is_reading = not limit.is_blocked
        if limit.messages_max and is_reading and not cursor.redelivery.ready:
            messages_max = min(messages_max, limit.messages_max - limit.messages)
        return self._picker.pick(cursor, messages_max, bytes_max, is_reading=is_reading)

    # Key_shared: the owner of the key gets it, or it is parked

    def _serve_keys(
        self, cursor: QueueCursor, keys: KeyShared, messages_max: int, outbox: Outbox
    ) -> int:
        moved = 0
        for consumer in keys.receivers():
            # Again while something moves: what was parked may have expired or be gone meanwhile,
            # and leave its budget to what is parked behind it (law 4).
            while keys.has_parked(consumer) and moved < messages_max:
                here = self._serve_parked(cursor, keys, consumer, messages_max - moved, outbox)
                moved += here
                if not here:
                    break
        while moved < messages_max and cursor.has_ready:
            available: dict[int, int] = {}
            room: dict[int, int] = {}
            for each in keys.receivers():
                available[each.consumer_id], room[each.consumer_id] = each.available()
            wanted = min(sum(available.values()), messages_max - moved)
            if not cursor.redelivery.ready:
                wanted = min(wanted, keys.look_ahead_left)
            wanted, size = self.throttle.cut(wanted, UNLIMITED)
            if wanted <= 0:
                break
            picked = self._pick(cursor, wanted, size)
            if not picked.moved:
                break
            moved += picked.moved
            shares: dict[int, list[Delivery]] = {}
            for delivery in picked.deliveries:
                slot = keys.slot(self._ordering_key(delivery.record), delivery.offset)
                delivery.slot = slot
                consumer_id = keys.assign(delivery.offset, slot, available)
                if consumer_id:
                    room[consumer_id] -= delivery.size
                    available[consumer_id] -= delivery.messages
                    if room[consumer_id] <= 0:
                        available[consumer_id] = 0
                    shares.setdefault(consumer_id, []).append(delivery)
            for consumer_id, share in shares.items():
                self._hand_over_keys(cursor, keys, self._consumers[consumer_id], share, outbox)
        return moved

    def _serve_parked(
        self,
        cursor: QueueCursor,
        keys: KeyShared,
        consumer: Consumer,
        messages_max: int,
        outbox: Outbox,
    ) -> int:
        messages, size = consumer.available()
        messages = min(messages, messages_max)
        messages, size = self.throttle.cut(messages, size)
        parked = keys.take_parked(consumer, messages)
        picked = self._picker.pick_at(cursor, [offset for offset, _ in parked], messages, size)
        slots = dict(parked)
        for offset in picked.left_over:
            keys.park(offset, slots[offset])
        for delivery in picked.deliveries:
            delivery.slot = slots[delivery.offset]
        self._hand_over_keys(cursor, keys, consumer, picked.deliveries, outbox)
        return picked.moved

    def _hand_over_keys(
        self,
        cursor: QueueCursor,
        keys: KeyShared,
        owner: Consumer,
        deliveries: list[Delivery],
        outbox: Outbox,
    ) -> None:
        if not deliveries:
            return
        if not owner.is_auto_settled:
            for delivery in deliveries:
                keys.handed_over(delivery.slot, owner.consumer_id)
        self._hand_over(cursor, owner, Picked(deliveries), outbox)

    # Hand over

    def _hand_over(
        self, cursor: QueueCursor, consumer: Consumer, picked: Picked, outbox: Outbox
    ) -> None:
        """Charge a list to its consumer and put it in flight; the outlet gets it afterwards."""
        deliveries = picked.deliveries
        messages = len(deliveries)
        start = deliveries[0].offset
        if (
            picked.is_plain
            and deliveries[-1].offset - start + 1 == messages
            and not consumer.visibility_ms
            and not consumer.is_auto_settled
        ):
            # The common list, and no object per message: neighbours are in flight as one run.
            sizes = picked.sizes or [delivery.size for delivery in deliveries]
            cursor.pending.add_run(consumer.consumer_id, start, sizes)
            size = sum(sizes)
        else:
            messages = sum(delivery.messages for delivery in deliveries)
            size = sum(delivery.size for delivery in deliveries)
            if consumer.is_auto_settled:
                self._settle_at_once(cursor, deliveries)
            else:
                self._add_pending(cursor, consumer, deliveries)
            again = sum(delivery.messages for delivery in deliveries if delivery.is_redelivered)
            self.redelivered_messages += again
            consumer.redelivered_messages += again
        if self.throttle.is_set:
            self.throttle.spend(len(deliveries), messages, size)
        cursor.mark_delivered(cursor.next_offset)
        consumer.taken(messages, size)
        if not consumer.is_auto_settled:
            self._settler.inflight.add(messages)
        waiting = outbox.get(consumer)
        if waiting is None:
            outbox[consumer] = deliveries
        else:
            waiting.extend(deliveries)

    def _add_pending(
        self, cursor: QueueCursor, consumer: Consumer, deliveries: list[Delivery]
    ) -> None:
        deadline_ms = 0
        if consumer.visibility_ms:
            deadline_ms = self._host.clock.monotonic_ms() + consumer.visibility_ms
        for delivery in deliveries:
            entry = PendingEntry(
                consumer.consumer_id,
                delivery.size,
                delivery.attempts,
                delivery.messages,
                delivery.record.messages,
                delivery.slot,
                deadline_ms,
            )
            cursor.pending.add(delivery.offset, entry)

    def _settle_at_once(self, cursor: QueueCursor, deliveries: list[Delivery]) -> None:
        """Nobody will say anything of these: done when they are handed over."""
        counts = cursor.redelivery.counts
        if counts:
            for delivery in deliveries:
                counts.pop(delivery.offset, None)
        ranges = [(each.offset, each.offset + each.record.messages) for each in deliveries]
        fresh = cursor.settle_runs(Cause.ACKED, joined_ranges(ranges))
        self._settler.settled_messages += fresh


# ---- dealing a list out to several consumers ----------------------------------------------------


Shares = list[tuple[Consumer, list[Delivery]]]
"""In the order of the round: the last one got the last message."""


class DispatchBudget:
    """What several consumers may be handed, and what is left of it while a list is dealt out.

    What consumers have a limit for together (the window of their channel, the backlog of their
    connection's socket) is counted once, however many of them are in the round.
    """

    __slots__ = ("_own", "_shared", "_sharing", "receivers")

    def __init__(self, receivers: list[Consumer]) -> None:
        self.receivers = receivers
        self._own = [consumer.available() for consumer in receivers]
        limits = [consumer.shared_limits() for consumer in receivers]
        # What only one of them has is a part of its own budget already.
        users = Counter([limit for each in limits for limit, _, _ in each])
        self._shared: dict[object, tuple[int, int]] = {
            limit: (messages, size)
            for each in limits
            for limit, messages, size in each
            if users[limit] > 1
        }
        self._sharing: list[list[object]] = [
            [limit for limit, _, _ in each if limit in self._shared] for each in limits
        ]

    def total(self) -> tuple[int, int]:
        """Messages and bytes that all of them together may be handed now."""
        own, shared = self._own, self._shared
        if not shared:
            return sum([messages for messages, _ in own]), sum([size for _, size in own])
        # Shared limits overlap: spend a copy, one consumer after the other.
        self._own, self._shared = own.copy(), shared.copy()
        total = total_bytes = 0
        for at in range(len(own)):
            messages, size = self.left(at)
            self.spend(at, messages, size)
            total += messages
            total_bytes += size
        self._own, self._shared = own, shared
        return total, total_bytes

    def has_for_each(self, messages: int, size_bytes: int) -> bool:
        """Whether everybody may have that many messages, and anybody all of the bytes."""
        if messages > min([own for own, _ in self._own]):
            return False
        if size_bytes > min([size for _, size in self._own]):
            return False
        users = Counter([limit for each in self._sharing for limit in each])
        return all(users[limit] * messages <= left for limit, (left, _) in self._shared.items())

    def left(self, at: int) -> tuple[int, int]:
        """Messages and bytes for this one."""
        messages, size = self._own[at]
        for limit in self._sharing[at]:
            shared_messages, shared_size = self._shared[limit]
            messages, size = min(messages, shared_messages), min(size, shared_size)
        return max(messages, 0), max(size, 0)

    def spend(self, at: int, messages: int, size: int) -> None:
        own_messages, own_size = self._own[at]
        self._own[at] = (own_messages - messages, own_size - size)
        for limit in self._sharing[at]:
            own_messages, own_size = self._shared[limit]
            self._shared[limit] = (own_messages - messages, own_size - size)


def deal(
    budget: DispatchBudget, deliveries: list[Delivery], *, is_plain: bool
) -> tuple[Shares, list[Delivery]]:
    """The consumers' shares, and what is left over."""
    each = -(-len(deliveries) // len(budget.receivers))
    if is_plain and budget.has_for_each(each, sum([delivery.size for delivery in deliveries])):
        return _deal_evenly(budget.receivers, deliveries), []
    return _deal_one_by_one(budget, deliveries)


def _deal_evenly(receivers: list[Consumer], deliveries: list[Delivery]) -> Shares:
    count, many = len(deliveries), len(receivers)
    if count >= BLOCK_MIN * many:
        base, extra = divmod(count, many)
        shares: Shares = []
        at = 0
        for number, consumer in enumerate(receivers):
            end = at + base + (number < extra)
            shares.append((consumer, deliveries[at:end]))
            at = end
        # The first ``extra`` got one more: the next round begins behind them.
        return shares[extra:] + shares[:extra]
    served = receivers[:count]
    shares = [(consumer, deliveries[number::many]) for number, consumer in enumerate(served)]
    behind = count % len(served)
    return shares[behind:] + shares[:behind]


def _deal_one_by_one(
    budget: DispatchBudget, deliveries: list[Delivery]
) -> tuple[Shares, list[Delivery]]:
    """Where budgets, sizes or batches differ: to the next in the round that has something left."""
    receivers = budget.receivers
    shares: list[list[Delivery]] = [[] for _ in receivers]
    turn = last = 0
    for number, delivery in enumerate(deliveries):
        for step in range(len(receivers)):
            at = (turn + step) % len(receivers)
            messages, size = budget.left(at)
            if messages > 0 and size > 0:
                break
        else:
            return _ending_with(receivers, shares, last), deliveries[number:]
        shares[at].append(delivery)
        budget.spend(at, delivery.messages, delivery.size)
        turn, last = at + 1, at
    return _ending_with(receivers, shares, last), []


def _ending_with(receivers: list[Consumer], shares: list[list[Delivery]], last: int) -> Shares:
    order = [*range(last + 1, len(receivers)), *range(last + 1)]
    return [(receivers[at], shares[at]) for at in order if shares[at]]
