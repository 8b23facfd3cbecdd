"""The journey out: demand, pick, hand, settle.

1. *Demand*: a lane's dispatcher names the consumers that have room now (``serve``).
2. *Pick*: the picker takes what is next, never more than they have room for.
3. *Hand*: each delivery is dealt to a consumer, held in flight for it, and goes to its outlet in
   one list per consumer and round (``_hand``).
4. *Settle*: the consumer is done with it, gives it back or refuses it (``settle.py``); its room
   grows and the round begins again.

Invariant: a message is charged to demand and limits when it is handed over and returned exactly
once, when it is settled, requeued or thrown out of flight; lists move, nothing is done per message
that can be done per list.
Not here: who is next (``dispatch/``), what is next (``pick``), where a lane stands (``lane``).
"""

from collections import Counter
from typing import Final

from penstock.engine.host import Host, SubscriptionOptions
from penstock.engine.subscription.consumer import Consumer, Delivery, Held
from penstock.engine.subscription.cursor import QueueCursor, joined_ranges
from penstock.engine.subscription.dispatchers import KeyShared
from penstock.engine.subscription.pick import Picked, Picker, overdue
from penstock.engine.subscription.settle import Settler
from penstock.flow.demand import UNLIMITED
from penstock.flow.diagnosis import BURIALS, EXPIRIES, UndoneView
from penstock.model.settlement import Cause

__all__ = ["Delivery", "DeliveryPipeline", "Outbox"]

Outbox = dict[Consumer, list[Delivery]]
"""What a round hands over: one list per consumer."""


class DeliveryPipeline:
    """Moves messages of one subscription from its lanes to its consumers and back."""

    __slots__ = (
        "_consumers",
        "_host",
        "_options",
        "picker",
        "redelivered_messages",
        "settler",
    )

    def __init__(
        self, host: Host, options: SubscriptionOptions, consumers: dict[int, Consumer]
    ) -> None:
        self._host = host
        self._options = options
        self._consumers = consumers
        self.picker = Picker(host, options)
        self.settler = Settler(host, options, consumers, self.picker)
        self.redelivered_messages = 0

    def undone(self, lanes: list[QueueCursor]) -> UndoneView | None:
        """Deaths that are spread over turns, as far as they are still to come; for who looks."""
        dying = self.settler.dying
        if dying:
            return UndoneView(BURIALS, dying.count, dying.since_ms)
        late = [found for lane in lanes if (found := overdue(lane, self._host)) is not None]
        if not late:
            return None
        count = sum(each.count for each in late)
        return UndoneView(EXPIRIES, count, min(each.since_ms for each in late))

    def serve(self, lane: QueueCursor, messages_max: int, outbox: Outbox) -> int:
        """One lane's round, until demand, messages or the budget run out; returns what moved."""
        dispatcher = lane.dispatcher
        if isinstance(dispatcher, KeyShared):
            return self._serve_keys(lane, dispatcher, messages_max, outbox)
        moved = 0
        end = lane.end
        while moved < messages_max and (lane.next_offset < end or lane.redelivery.again):
            consumers = dispatcher.consumers
            # Whoever is alone needs no round: its room says whether it takes anything.
            is_alone = len(consumers) == 1
            takers = consumers if is_alone else dispatcher.takers(lane.ready_at_most)
            if not takers:
                break
            rooms = Rooms(takers) if len(takers) > 1 else None
            room, room_bytes = takers[0].rooms() if rooms is None else rooms.total()
            if not room:
                break
            picked = self._pick(lane, min(room, messages_max - moved), room_bytes)
            if not picked.moved:
                break
            moved += picked.moved
            if not picked.deliveries:
                continue
            if rooms is None:
                self._hand(lane, takers[0], picked, outbox)
                if not is_alone:
                    dispatcher.served(takers[0])
                continue
            shares, left_over = deal(rooms, picked.deliveries, is_plain=picked.is_plain)
            for taker, share in shares:
                self._hand(lane, taker, Picked(share, is_plain=picked.is_plain), outbox)
            if shares:
                dispatcher.served(shares[-1][0])
            # Nobody had the bytes for these: never handed over, so neither counted nor flagged.
            lane.redelivery.put_back([delivery.offset for delivery in left_over])
        return moved

    def take(
        self,
        lane: QueueCursor,
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
        while lane.has_ready and not outbox and scanned < scan_max:
            picked = self._pick(lane, messages_max, bytes_max)
            if not picked.moved:
                break
            scanned += picked.moved
            if picked.deliveries:
                self._hand(lane, consumer, picked, outbox)
        return outbox.get(consumer, [])

    def _pick(self, lane: QueueCursor, messages_max: int, bytes_max: int) -> Picked:
        return self.picker.pick(
            lane, messages_max, bytes_max, is_reading=not self.settler.inflight.is_blocked
        )

    def _serve_keys(
        self, lane: QueueCursor, keys: KeyShared, messages_max: int, outbox: Outbox
    ) -> int:
        moved = 0
        key_of = self._options.ordering_key
        for taker in keys.takers():
            # Again while something moves: what was parked may have expired or be gone meanwhile,
            # and leave the room for what is parked behind it (law 4).
            while keys.has_parked(taker) and moved < messages_max:
                here = self._serve_parked(lane, keys, taker, messages_max - moved, outbox)
                moved += here
                if not here:
                    break
        while moved < messages_max and lane.has_ready:
            rooms: dict[int, int] = {each.consumer_id: each.room() for each in keys.takers()}
            room = min(sum(rooms.values()), messages_max - moved)
            if not lane.redelivery.again:
                room = min(room, keys.look_ahead_left)
            if room <= 0:
                break
            picked = self._pick(lane, room, UNLIMITED)
            if not picked.moved:
                break
            moved += picked.moved
            shares: dict[int, list[Delivery]] = {}
            for delivery in picked.deliveries:
                slot = keys.slot(key_of(delivery.record), delivery.offset)
                delivery.slot = slot
                consumer_id = keys.place(delivery.offset, slot, rooms)
                if consumer_id:
                    rooms[consumer_id] -= delivery.messages
                    shares.setdefault(consumer_id, []).append(delivery)
            for consumer_id, share in shares.items():
                self._hand_owner(lane, keys, self._consumers[consumer_id], share, outbox)
        return moved

    def _serve_parked(
        self, lane: QueueCursor, keys: KeyShared, taker: Consumer, messages_max: int, outbox: Outbox
    ) -> int:
        room, room_bytes = taker.rooms()
        room = min(room, messages_max)
        parked = keys.take_parked(taker, room)
        picked = self.picker.again(lane, [offset for offset, _ in parked], room, room_bytes)
        slots = dict(parked)
        for offset in picked.left_over:
            keys.park(offset, slots[offset])
        for delivery in picked.deliveries:
            delivery.slot = slots[delivery.offset]
        self._hand_owner(lane, keys, taker, picked.deliveries, outbox)
        return picked.moved

    def _hand_owner(
        self,
        lane: QueueCursor,
        keys: KeyShared,
        owner: Consumer,
        deliveries: list[Delivery],
        outbox: Outbox,
    ) -> None:
        """Hand over messages whose keys belong to this consumer."""
        if not deliveries:
            return
        if not owner.is_auto_settled:
            for delivery in deliveries:
                keys.handed(delivery.slot, owner.consumer_id)
        self._hand(lane, owner, Picked(deliveries), outbox)

    def _hand(self, lane: QueueCursor, consumer: Consumer, picked: Picked, outbox: Outbox) -> None:
        """Charge a list to its consumer and hold it in flight; the outlet gets it afterwards."""
        deliveries = picked.deliveries
        messages = len(deliveries)
        start = deliveries[0].offset
        if (
            picked.is_plain
            and deliveries[-1].offset - start + 1 == messages
            and not consumer.visibility_ms
            and not consumer.is_auto_settled
        ):
            sizes = picked.sizes or [delivery.size for delivery in deliveries]
            lane.pending.add_run(consumer.consumer_id, start, sizes)
            size = sum(sizes)
        else:
            messages = sum(delivery.messages for delivery in deliveries)
            size = sum(delivery.size for delivery in deliveries)
            if consumer.is_auto_settled:
                self._settle_at_once(lane, deliveries)
            else:
                self._hold(lane, consumer, deliveries)
            again = sum(delivery.messages for delivery in deliveries if delivery.is_redelivered)
            self.redelivered_messages += again
            consumer.redelivered_messages += again
        lane.mark_delivered(lane.next_offset)
        consumer.taken(messages, size)
        if not consumer.is_auto_settled:
            self.settler.inflight.add(messages)
        waiting = outbox.get(consumer)
        if waiting is None:
            outbox[consumer] = deliveries
        else:
            waiting.extend(deliveries)

    def _hold(self, lane: QueueCursor, consumer: Consumer, deliveries: list[Delivery]) -> None:
        deadline_ms = 0
        if consumer.visibility_ms:
            deadline_ms = self._host.clock.monotonic_ms() + consumer.visibility_ms
        for delivery in deliveries:
            held = Held(
                consumer.consumer_id,
                delivery.size,
                delivery.attempts,
                delivery.messages,
                delivery.record.messages,
                delivery.slot,
                deadline_ms,
            )
            lane.pending.add(delivery.offset, held)

    def _settle_at_once(self, lane: QueueCursor, deliveries: list[Delivery]) -> None:
        """Nobody will say anything of these: done when they are handed over."""
        counts = lane.redelivery.counts
        if counts:
            for delivery in deliveries:
                counts.pop(delivery.offset, None)
        ranges = [(each.offset, each.offset + each.record.messages) for each in deliveries]
        fresh = lane.settle_runs(Cause.ACKED, joined_ranges(ranges))
        self.settler.settled_messages += fresh


# ---- deal ---------------------------------------------------------------------------------------
# Dealing a list out to several consumers, evenly and without asking for each message.
#
# Invariant: what consumers have a limit for together (the window of their channel, the backlog of
# their connection's socket) is counted once, however many of them are in the round.


BLOCK_MIN: Final = 16
"""With at least this many for each, a consumer gets neighbours instead of every k-th message: just
as even, and what it settles together stays one range."""

Shares = list[tuple[Consumer, list[Delivery]]]


class Rooms:
    """What several consumers may be handed, and what is left of it while a list is dealt out."""

    __slots__ = ("_own", "_shared", "_sharing", "takers")

    def __init__(self, takers: list[Consumer]) -> None:
        self.takers = takers
        self._own = [taker.rooms() for taker in takers]
        limits = [taker.shared_limits() for taker in takers]
        # What only one of them has is a part of its own room already.
        users = Counter([limit for each in limits for limit, _, _ in each])
        self._shared: dict[object, tuple[int, int]] = {
            limit: (room, size) for each in limits for limit, room, size in each if users[limit] > 1
        }
        self._sharing: list[list[object]] = [
            [limit for limit, _, _ in each if limit in self._shared] for each in limits
        ]

    def total(self) -> tuple[int, int]:
        """Messages and bytes that all of them together may be handed now."""
        own, shared = self._own, self._shared
        if not shared:
            return sum([room for room, _ in own]), sum([size for _, size in own])
        self._own, self._shared = own.copy(), shared.copy()
        messages = size_bytes = 0
        for at in range(len(own)):
            room, size = self.left(at)
            self.take(at, room, size)
            messages += room
            size_bytes += size
        self._own, self._shared = own, shared
        return messages, size_bytes

    def has_for_each(self, messages: int, size_bytes: int) -> bool:
        """Whether everybody may have that many messages, and anybody all of the bytes."""
        if messages > min([room for room, _ in self._own]):
            return False
        if size_bytes > min([size for _, size in self._own]):
            return False
        users = Counter([limit for each in self._sharing for limit in each])
        return all(users[limit] * messages <= room for limit, (room, _) in self._shared.items())

    def left(self, at: int) -> tuple[int, int]:
        """Messages and bytes for this one."""
        room, size = self._own[at]
        for limit in self._sharing[at]:
            shared_room, shared_size = self._shared[limit]
            room, size = min(room, shared_room), min(size, shared_size)
        return max(room, 0), max(size, 0)

    def take(self, at: int, messages: int, size: int) -> None:
        room, room_size = self._own[at]
        self._own[at] = (room - messages, room_size - size)
        for limit in self._sharing[at]:
            room, room_size = self._shared[limit]
            self._shared[limit] = (room - messages, room_size - size)


def deal(
    rooms: Rooms, deliveries: list[Delivery], *, is_plain: bool
) -> tuple[Shares, list[Delivery]]:
    """Shares in the order of the round (the last one got the last message), and what is left."""
    each = -(-len(deliveries) // len(rooms.takers))
    if is_plain and rooms.has_for_each(each, sum([delivery.size for delivery in deliveries])):
        return _deal_evenly(rooms.takers, deliveries), []
    return _deal_one_by_one(rooms, deliveries)


def _deal_evenly(takers: list[Consumer], deliveries: list[Delivery]) -> Shares:
    count, many = len(deliveries), len(takers)
    if count >= BLOCK_MIN * many:
        base, extra = divmod(count, many)
        shares: Shares = []
        at = 0
        for number, taker in enumerate(takers):
            end = at + base + (number < extra)
            shares.append((taker, deliveries[at:end]))
            at = end
        # The first ``extra`` got one more: the next round begins behind them.
        return shares[extra:] + shares[:extra]
    served = takers[:count]
    shares = [(taker, deliveries[number::many]) for number, taker in enumerate(served)]
    behind = count % len(served)
    return shares[behind:] + shares[:behind]


def _deal_one_by_one(rooms: Rooms, deliveries: list[Delivery]) -> tuple[Shares, list[Delivery]]:
    """Where rooms, sizes or batches differ: to the next in the round that still has room."""
    takers = rooms.takers
    shares: list[list[Delivery]] = [[] for _ in takers]
    turn = last = 0
    for number, delivery in enumerate(deliveries):
        for step in range(len(takers)):
            at = (turn + step) % len(takers)
            messages, size = rooms.left(at)
            if messages > 0 and size > 0:
                break
        else:
            return _ending_with(takers, shares, last), deliveries[number:]
        shares[at].append(delivery)
        rooms.take(at, delivery.messages, delivery.size)
        turn, last = at + 1, at
    return _ending_with(takers, shares, last), []


def _ending_with(takers: list[Consumer], shares: list[list[Delivery]], last: int) -> Shares:
    order = [*range(last + 1, len(takers)), *range(last + 1)]
    return [(takers[at], shares[at]) for at in order if shares[at]]
