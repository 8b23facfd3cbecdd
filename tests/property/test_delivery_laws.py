"""The laws of delivery, on random scripts in every mode.

* An offset is at any time exactly one of settled, in flight, coming back, delayed and unread.
* Nothing is lost: once consumers behave, everything is delivered and settled.
* Nothing is handed over twice without being flagged, nor while somebody has it in flight.
* First deliveries of a queue are in order, delayed messages apart (shared: for each
  consumer; key_shared: for each key).
* After a round whoever gets nothing has a reason that is told.
* What is charged to demand and limits is what is in flight; a stuck consumer holds only itself.
"""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.queues import MemoryHost, MemoryQueue
from penstock.engine.host import FailoverRule, Mode, Start, SubscriptionOptions
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Permits, Unlimited, Window
from penstock.model.ids import SubscriptionId
from penstock.model.record import neutral_record
from penstock.model.settlement import Cause
from penstock.settings.flow import FlowSettings

QUEUES = (1, 2)
CONSUMERS_MAX = 4
UNACKED_CONSUMER_MAX = 20
UNACKED_SUBSCRIPTION_MAX = 40


class Peer:
    """A consumer's side of the wire, with a memory for everything that may not happen."""

    def __init__(self, world):
        self.world = world
        self.consumer = None
        self.held = {}
        self.active = False

    def deliver(self, consumer, deliveries):
        assert deliveries, "an empty list was handed over"
        for delivery in deliveries:
            self.world.handed(self, delivery)
            if self.world.mode is Mode.FAILOVER:
                dispatcher = self.world.subscription.cursor(delivery.queue_id).dispatcher
                assert dispatcher.active is consumer, "only the active one gets anything"
        consumer.unsent.sent_all()

    def active_changed(self, consumer, is_active):
        # Where taking over takes a while everybody is told, also who knows.
        assert self.active is not is_active or self.world.rule.takeover_ms
        self.active = is_active

    def cancelled(self, consumer, cause):
        raise AssertionError("nobody deleted the subscription")


class World:
    """One subscription of two queues, its peers, and what the laws remember."""

    def __init__(self, mode, *, rule=None, delivery_limit=0):
        self.mode = mode
        self.rule = rule or FailoverRule()
        self.host = MemoryHost(
            flow=FlowSettings(
                unacked_consumer_max=UNACKED_CONSUMER_MAX,
                unacked_subscription_max=UNACKED_SUBSCRIPTION_MAX,
            )
        )
        self.queues = {
            queue_id: MemoryQueue(self.host, queue_id, number=queue_id) for queue_id in QUEUES
        }
        self.subscription = Subscription(
            SubscriptionId(1),
            "s",
            list(self.queues.values()),
            SubscriptionOptions(mode=mode, delivery_limit=delivery_limit),
            self.host,
        )
        self.read = list(QUEUES)
        self.peers = []
        self.seen = set()
        self.returned = set()
        self.first_seen = {}
        self.names = 0
        self.permits_left = {}

    # What may happen

    def handed(self, peer, delivery, *, is_ordered=True):
        key = (delivery.queue_id, delivery.offset)
        owners = [each for each in self.peers if key in each.held]
        assert not owners, "a message is in flight twice"
        assert delivery.is_redelivered == (key in self.seen), "seen before if and only if flagged"
        if is_ordered and key not in self.seen and not delivery.record.deliver_ms:
            group = None
            if self.mode is Mode.KEY_SHARED:
                group = delivery.record.key
            elif self.mode is Mode.SHARED:
                group = peer
            last = self.first_seen.get((delivery.queue_id, group), -1)
            assert delivery.offset > last, "first deliveries are in order"
            self.first_seen[delivery.queue_id, group] = delivery.offset
        if self.mode is Mode.KEY_SHARED:
            for other in self.peers:
                keys = {(held[0], record.key) for held, record in other.held.items()}
                mine = (delivery.queue_id, delivery.record.key)
                assert other is peer or mine not in keys, "a key has two owners"
        self.seen.add(key)
        peer.held[key] = delivery.record

    def do(self, verb, pick, count, flag):
        peer = self.peers[pick % len(self.peers)] if self.peers else None
        match verb:
            case "publish":
                self.publish(pick, count, is_delayed=flag)
            case "subscribe" | "unsubscribe":
                self.change_queues(QUEUES[pick % 2], is_read=verb == "subscribe")
            case "change type":
                self.change_type(list(Mode)[pick % len(Mode)])
            case "attach" if len(self.peers) < CONSUMERS_MAX:
                self.attach(pick, is_permits=flag)
            case "detach" if peer:
                self.leave(peer)
            case "settle" | "requeue" | "reject" if peer:
                self.answer(verb, peer, pick, count, flag)
            case "redeliver" if peer:
                self.redeliver(peer, pick, is_counted=flag)
            case "limit":
                self.limit(peer if pick % 2 else None, count if flag else 0)
            case "settle one" if peer and peer.held:
                queue_id, offset = sorted(peer.held)[pick % len(peer.held)]
                span = self.span(queue_id, offset)
                self.subscription.settle(queue_id, [span[pick % len(span)]])
                self.forget_what_is_not_in_flight()
            case "settle upto":
                queue_id = self.read[pick % len(self.read)]
                low = self.subscription.low_mark(queue_id)
                self.subscription.settle_upto(queue_id, low + count)
                self.forget_what_is_not_in_flight()
            case "purge":
                self.subscription.purge(self.read[pick % len(self.read)])
            case "drop head":
                self.subscription.drop_head(self.read[pick % len(self.read)], count)
            case "seek":
                self.seek(self.read[pick % len(self.read)], pick)
            case "take" if peer and self.mode is not Mode.KEY_SHARED:
                for delivery in self.subscription.take(peer.consumer, count):
                    self.handed(peer, delivery, is_ordered=False)
                peer.consumer.unsent.sent_all()
            case "grant" if peer and isinstance(peer.consumer.demand, Permits):
                peer.consumer.demand.add(count)
            case "wait":
                self.host.clock.advance(count * 100)
                self.subscription.due(self.host.clock.monotonic_ms())
                # Another may have taken over: what the active one had goes to it.
                self.forget_what_is_not_in_flight()
        self.host.run(7)

    def publish(self, pick, count, *, is_delayed):
        queue = self.queues[QUEUES[pick % 2]]
        records = [neutral_record(b"x", key=b"k%d" % ((pick + at) % 5)) for at in range(count)]
        for at, record in enumerate(records):
            record.reshape(messages=1 + (pick + at) % 3)
            if is_delayed and at % 2:
                record.reshape(deliver_ms=self.host.clock.wall_ms() + 100 * count)
        queue.append(records)
        self.subscription.arrived(queue.queue_id)

    def attach(self, pick, *, is_permits):
        if self.mode is Mode.EXCLUSIVE and self.peers:
            return
        peer = Peer(self)
        self.names += 1
        self.peers.append(peer)
        demand = Permits(3) if is_permits else Window(1 + pick % 9)
        peer.consumer = self.subscription.attach(
            peer,
            demand,
            name=f"c{(self.names * 7) % 10}-{self.names}",
            priority=pick % 2,
            mode=self.mode,
            failover=self.rule,
        )
        # Joining may displace the active one: what it has goes to its successor.
        self.forget_what_is_not_in_flight()

    def change_type(self, mode):
        """Everybody leaves; whoever comes next brings another type."""
        for peer in list(self.peers):
            self.leave(peer)
        self.mode = mode
        # Of what nobody had yet, a key's may wait behind what another key got.
        self.first_seen.clear()
        self.attach(1, is_permits=False)

    def change_queues(self, queue_id, *, is_read):
        """One queue more, from its beginning, or one less; never none."""
        if is_read and queue_id not in self.read:
            self.read.append(queue_id)
            self.subscription.subscribe(self.queues[queue_id], Start.EARLIEST)
        elif not is_read and self.read != [queue_id] and queue_id in self.read:
            self.read.remove(queue_id)
            self.subscription.remove_queue(queue_id, "unsubscribed")
            self.forget_queue(queue_id)

    def leave(self, peer):
        self.peers.remove(peer)
        self.subscription.detach(peer.consumer)

    def answer(self, verb, peer, pick, count, flag):
        for queue_id in self.read:
            mine = sorted(offset for held_id, offset in peer.held if held_id == queue_id)
            some = mine[pick % 3 :: 1 + pick % 2][:count]
            if not some:
                continue
            for offset in some:
                del peer.held[queue_id, offset]
            if verb == "settle":
                spans = [self.span(queue_id, offset) for offset in some]
                self.subscription.settle(queue_id, [at for span in spans for at in span])
            elif verb == "requeue":
                delay_ms = 150 if flag else 0
                self.subscription.requeue(queue_id, some, delay_ms=delay_ms, count=count > 3)
            else:
                self.subscription.reject(queue_id, some)

    def redeliver(self, peer, pick, *, is_counted):
        """It gives back one of two queues' messages, or all it has."""
        if pick % 2:
            self.subscription.redeliver(peer.consumer, count=is_counted)
        else:
            queue_id = self.read[pick % len(self.read)]
            self.subscription.redeliver(peer.consumer, queue_id, range(pick), count=is_counted)
        self.forget_what_is_not_in_flight()
        assert pick % 2 == 0 or not peer.held

    def limit(self, peer, messages_max):
        """Policies change under live consumers."""
        if peer is None:
            self.subscription.limit_unacked(messages_max)
        else:
            peer.consumer.limit_unacked(messages_max)

    def seek(self, queue_id, offset):
        """Afterwards everything is new again, and nobody has anything."""
        self.subscription.seek(queue_id, offset)
        self.forget_queue(queue_id)

    def forget_queue(self, queue_id):
        self.seen = {key for key in self.seen if key[0] != queue_id}
        self.first_seen = {k: last for k, last in self.first_seen.items() if k[0] != queue_id}
        self.forget_what_is_not_in_flight()

    def span(self, queue_id, offset):
        entry = self.queues[queue_id].index.entries(offset, 1)[0]
        return range(entry[1], entry[1] + entry[5])

    def forget_what_is_not_in_flight(self):
        for peer in self.peers:
            for queue_id, offset in list(peer.held):
                is_read = self.subscription.reads(queue_id)
                held = self.subscription.in_flight(queue_id, offset) if is_read else None
                if held is None or held.consumer_id != peer.consumer.consumer_id:
                    del peer.held[queue_id, offset]

    # What must be true

    def check(self):
        for peer in self.peers:
            assert self.subscription.withheld_from(peer.consumer), "who gets nothing has a reason"
        if self.mode is Mode.FAILOVER:
            self.check_active()
        for queue_id in self.read:
            self.check_partition(self.subscription.cursor(queue_id))
        for peer in self.peers:
            consumer = peer.consumer
            held = [self.subscription.in_flight(*key) for key in peer.held]
            assert consumer.inflight.messages == sum(each.messages for each in held)
            assert consumer.inflight.bytes == sum(each.size for each in held)
            if isinstance(consumer.demand, Window):
                assert consumer.demand.unsettled == consumer.inflight.messages
        total = sum(self.subscription.unacked(queue_id) for queue_id in self.read)
        assert total == sum(peer.consumer.inflight.messages for peer in self.peers)
        assert total == self.subscription.statistics().unacked
        unsent = sum(peer.consumer.unsent.bytes for peer in self.peers)
        assert self.host.unsent_pool.bytes == unsent, "the pool and those who draw on it differ"
        aside = [len(self.subscription.cursor(each).redelivery.delayed) for each in self.read]
        assert self.host.delayed_budget.count == sum(aside)

    def check_active(self):
        """One active consumer per queue, who knows it; nobody waits longer than the rule says."""
        now_ms = self.host.clock.monotonic_ms()
        dispatchers = [self.subscription.cursor(queue_id).dispatcher for queue_id in self.read]
        waiting = [each.takeover_at_ms - now_ms for each in dispatchers if each.takeover_at_ms]
        assert all(0 < left_ms <= self.rule.takeover_ms for left_ms in waiting)
        for dispatcher in dispatchers:
            is_waiting = dispatcher.takeover_at_ms > 0
            assert (dispatcher.active is None) is (is_waiting or not dispatcher.consumers)
        if not waiting:
            for peer in self.peers:
                count = sum(each.active is peer.consumer for each in dispatchers)
                assert peer.consumer.active_queues == count
                assert peer.active is (count > 0)

    def check_partition(self, cursor):
        """Settled, in flight, coming back (or parked), delayed, unread: each offset once."""
        where = Counter()
        waiting = list(cursor.redelivery.ready)
        if self.mode is Mode.KEY_SHARED:
            waiting += cursor.dispatcher.parked_offsets()
        for start in (*cursor.pending.spill(), *waiting, *cursor.redelivery.delayed):
            where.update(self.span(cursor.queue_id, start))
        where.update(range(cursor.next_offset, cursor.end))
        assert not where or max(where.values()) == 1, "an offset is in two places"
        settled = {at for at in range(cursor.end) if cursor.settled.is_settled(at)}
        assert settled | set(where) == set(range(cursor.end)), "an offset is nowhere"
        both = [
            at for at in cursor.pending.spill() if set(self.span(cursor.queue_id, at)) <= settled
        ]
        assert not both, "in flight though wholly settled"

    def finish(self):
        """Everybody behaves from now on: then nothing may be left."""
        for peer in list(self.peers):
            self.leave(peer)
        last = Peer(self)
        self.peers.append(last)
        last.consumer = self.subscription.attach(last, Unlimited(), name="last")
        self.host.clock.advance(60_000)
        self.subscription.due(self.host.clock.monotonic_ms())
        for _ in range(200):
            self.host.run(50)
            if not last.held:
                break
            self.answer("settle", last, 0, 1000, False)
        self.check()
        for queue_id in self.read:
            end = self.queues[queue_id].index.next_offset
            assert self.subscription.low_mark(queue_id) == end
            assert self.subscription.ready(queue_id) == 0
        statistics = self.subscription.statistics()
        assert (statistics.unacked, statistics.delayed, statistics.lost) == (0, 0, 0)
        assert statistics.unknown_settles == 0


verbs = ["publish"] * 5 + ["settle"] * 5 + ["attach", "requeue", "wait", "settle one"] * 2
rare = ["detach", "reject", "grant", "settle upto", "purge", "drop head", "seek", "take"]
rare += ["change type", "unsubscribe", "subscribe", "redeliver", "limit"]
steps = st.lists(
    st.tuples(
        st.sampled_from([*verbs, *rare]),
        st.integers(0, 30),
        st.integers(1, 8),
        st.booleans(),
    ),
    min_size=5,
    max_size=60,
)


RULES = [
    FailoverRule(),
    FailoverRule(is_by_partition=True),
    FailoverRule(takeover_ms=250, is_by_partition=True),
    FailoverRule(takeover_ms=250, ring_name="t"),
]


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(list(Mode)), st.sampled_from(RULES), steps)
def test_every_offset_is_in_one_place_and_none_is_lost(mode, rule, script):
    world = World(mode, rule=rule)
    for step in script:
        world.do(*step)
        world.check()
    world.finish()


@settings(max_examples=30, deadline=None)
@given(steps)
def test_with_a_delivery_limit_every_message_ends_settled_or_as_a_dead_letter(script):
    world = World(Mode.SHARED, delivery_limit=1)
    for step in script:
        world.do(*step)
        world.check()
    world.finish()
    causes = {burial.cause for burial in world.host.burials}
    assert causes <= {Cause.DELIVERY_LIMIT, Cause.REJECTED, Cause.DROPPED_HEAD}
    for burial in world.host.burials:
        assert burial.cause is not Cause.DELIVERY_LIMIT or burial.attempts == 2
    if not any(step[0] == "seek" for step in script):
        keys = [(burial.queue_id, burial.offset) for burial in world.host.burials]
        assert len(keys) == len(set(keys)), "one dead letter per message"


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([Mode.SHARED, Mode.KEY_SHARED]), st.integers(1, 12), st.integers(2, 60))
def test_one_stuck_consumer_holds_only_what_it_has_and_its_own_subscription(mode, window, count):
    host = MemoryHost()
    queue = MemoryQueue(host)
    options = SubscriptionOptions(mode=mode)
    first = Subscription(SubscriptionId(1), "first", [queue], options, host)
    second = Subscription(SubscriptionId(2), "second", [queue], options, host)
    got = {"stuck": [], "well": [], "other": []}

    class Taker:
        def __init__(self, name, subscription, *, settles):
            self.name, self.subscription, self.settles = name, subscription, settles

        def deliver(self, consumer, deliveries):
            consumer.unsent.sent_all()
            got[self.name] += [delivery.offset for delivery in deliveries]
            if self.settles:
                self.subscription.settle(1, [delivery.offset for delivery in deliveries])

    first.attach(Taker("stuck", first, settles=False), Window(window), name="stuck")
    first.attach(Taker("well", first, settles=True), Window(3), name="well")
    second.attach(Taker("other", second, settles=True), Window(2), name="other")
    queue.append(neutral_record(b"x", key=b"%d" % at) for at in range(count))
    for subscription in (first, second):
        subscription.arrived(1)
    host.run(5)
    assert got["other"] == list(range(count))
    assert len(got["stuck"]) <= window
    if mode is Mode.SHARED:
        assert sorted(got["stuck"] + got["well"]) == list(range(count))
    else:
        keys = first.cursor(1).dispatcher
        parked = set(keys.parked_offsets())
        owners = {keys.owners.owner(keys.slot(b"%d" % at, at)).name for at in parked}
        assert owners <= {"stuck"}
        assert sorted([*got["stuck"], *got["well"], *parked]) == list(range(count))
