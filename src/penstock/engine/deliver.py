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

from penstock.engine.consumer import Consumer
from penstock.engine.cursor import joined_ranges
from penstock.engine.dispatch.deal import Rooms, deal
from penstock.engine.dispatch.key_shared import KeyShared
from penstock.engine.expiry import overdue
from penstock.engine.host import Host
from penstock.engine.lane import Lane
from penstock.engine.pending import Delivery, Held
from penstock.engine.pick import Picked, Picker
from penstock.engine.settle import Settler
from penstock.engine.subscription_options import SubscriptionOptions
from penstock.flow.demand import UNLIMITED
from penstock.flow.diagnosis import BURIALS, EXPIRIES, UndoneView
from penstock.model.settlement import Cause

__all__ = ["Delivery", "Journey", "Outbox"]

Outbox = dict[Consumer, list[Delivery]]
"""What a round hands over: one list per consumer."""


class Journey:
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

    def undone(self, lanes: list[Lane]) -> UndoneView | None:
        """Deaths that are spread over turns, as far as they are still to come; for who looks."""
        dying = self.settler.dying
        if dying:
            return UndoneView(BURIALS, dying.count, dying.since_ms)
        late = [found for lane in lanes if (found := overdue(lane, self._host)) is not None]
        if not late:
            return None
        count = sum(each.count for each in late)
        return UndoneView(EXPIRIES, count, min(each.since_ms for each in late))

    def serve(self, lane: Lane, messages_max: int, outbox: Outbox) -> int:
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
        lane: Lane,
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

    def _pick(self, lane: Lane, messages_max: int, bytes_max: int) -> Picked:
        return self.picker.pick(
            lane, messages_max, bytes_max, is_reading=not self.settler.inflight.is_blocked
        )

    def _serve_keys(self, lane: Lane, keys: KeyShared, messages_max: int, outbox: Outbox) -> int:
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
        self, lane: Lane, keys: KeyShared, taker: Consumer, messages_max: int, outbox: Outbox
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
        lane: Lane,
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

    def _hand(self, lane: Lane, consumer: Consumer, picked: Picked, outbox: Outbox) -> None:
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

    def _hold(self, lane: Lane, consumer: Consumer, deliveries: list[Delivery]) -> None:
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

    def _settle_at_once(self, lane: Lane, deliveries: list[Delivery]) -> None:
        """Nobody will say anything of these: done when they are handed over."""
        counts = lane.redelivery.counts
        if counts:
            for delivery in deliveries:
                counts.pop(delivery.offset, None)
        ranges = [(each.offset, each.offset + each.record.messages) for each in deliveries]
        fresh = lane.settle_runs(Cause.ACKED, joined_ranges(ranges))
        self.settler.settled_messages += fresh
