"""Batches and partial acks, through requeues and crashes.

Two subscriptions read the same batches: one takes them whole, one gets their messages.

* A message is delivered until it is settled, never in two hands at once, with the bytes that were
  sent, and each counted once against its consumer.
* What was settled of a batch and is durable stays settled over a kill and a power cut; what was
  not, is settled or not, and nothing else is.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.batches import WIRE, BatchFacts, batch, numbered
from kit.queues import consume
from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.flow.demand import Unlimited, Window
from penstock.model.record import neutral_record

KINDS = ("plain", "zlib", "encrypted", "single")


class Reader:
    """One subscription, its consumer, and what is known of both."""

    def __init__(self, world, name, options):
        self.world = world
        self.name = name
        world.bench.engine.create_subscription(world.topic.name, name, options)
        self.acked = set()
        self.durable_acked = set()
        self.taker = None
        self.held = {}

    @property
    def subscription(self):
        return self.world.topic.subscriptions[self.name]

    @property
    def cursor(self):
        return self.subscription.cursor(self.world.queue_id)

    def join(self, demand):
        self.taker = consume(self.subscription, demand, name="c")
        self.taker.seen = 0

    def leave(self):
        if self.taker is not None:
            self.subscription.detach(self.taker.consumer)
            self.taker = None
        self.held.clear()

    def look(self):
        """What came since the last look is in its hands now."""
        if self.taker is None:
            return
        deliveries = self.taker.deliveries
        for delivery in deliveries[self.taker.seen :]:
            span = range(delivery.offset, delivery.offset + delivery.record.messages)
            assert not any(at in self.held for at in span), "in two hands at once"
            assert delivery.messages == len(set(span) - self.acked) > 0
            assert delivery.record.body == self.world.body(span)
            if self.name == "single" and self.world.can_open[span.start]:
                assert len(span) == 1
            self.held.update(dict.fromkeys(span, delivery))
        self.taker.seen = len(deliveries)

    def some(self, pick, count):
        """A range of what it holds; None when it holds nothing."""
        offsets = sorted(set(self.held) - self.acked)
        if not offsets:
            return None
        start = offsets[pick % len(offsets)]
        end = start
        while end - start < count and end in self.held:
            end += 1
        return start, end

    def entries_in(self, start, end):
        """All offsets of the deliveries that have a part in the range."""
        parts = {id(self.held[at]): self.held[at] for at in range(start, end)}.values()
        return {
            at for each in parts for at in range(each.offset, each.offset + each.record.messages)
        }

    def ack(self, start, end):
        self.subscription.settle_ranges(self.world.queue_id, [(start, end)])
        self.acked.update(range(start, end))
        for at in self.entries_in(start, end):
            delivery = self.held[at]
            span = range(delivery.offset, delivery.offset + delivery.record.messages)
            if self.acked.issuperset(span):
                del self.held[at]

    def requeue(self, start, end):
        self.subscription.requeue_ranges(self.world.queue_id, [(start, end)])
        for at in self.entries_in(start, end):
            del self.held[at]

    def reject(self, start):
        gone = self.entries_in(start, start + 1)
        self.subscription.reject(self.world.queue_id, [start])
        self.acked |= gone
        for at in gone:
            del self.held[at]

    def crashed(self, end):
        self.taker = None
        self.held.clear()
        found = {at for at in range(end) if self.cursor.settled.is_settled(at)}
        assert {at for at in self.durable_acked if at < end} <= found <= self.acked
        self.acked = found

    def check(self):
        self.look()
        cursor = self.cursor
        end = self.world.end
        assert {at for at in range(end) if cursor.settled.is_settled(at)} == self.acked
        in_flight = len(set(self.held) - self.acked)
        assert cursor.pending.messages == in_flight
        if self.taker is not None:
            assert self.taker.consumer.inflight.messages == in_flight


class World:
    """A topic with batches of all kinds in it."""

    def __init__(self):
        self.bench = Workbench(facts={WIRE: BatchFacts()})
        self.topic_name = self.bench.topic().name
        self.bodies = []
        self.can_open = []
        self.whole = []
        """(first offset, bytes) of the record that each offset is in."""
        self.readers = [
            Reader(self, "single", SubscriptionOptions()),
            Reader(self, "whole", SubscriptionOptions(whole_batches=True)),
        ]
        self.durable()

    @property
    def topic(self):
        return self.bench.engine.topic(self.topic_name)

    @property
    def queue_id(self):
        return self.topic.queues[0].queue_id

    @property
    def end(self):
        return self.topic.queues[0].index.next_offset

    def body(self, span):
        first, record = self.whole[span.start]
        if len(span) > 1 or record.messages == 1:
            assert (span.start, len(span)) == (first, record.messages)
            return record.body
        return self.bodies[span.start]

    def publish(self, kind, count):
        start = len(self.bodies)
        if kind == "single":
            count, record = 1, neutral_record(b"%d" % start)
        else:
            record = batch(
                *numbered(count, start),
                compression="zlib" if kind == "zlib" and count > 1 else "",
                is_encrypted=kind == "encrypted",
            )
        self.bodies += [b"%d" % number for number in range(start, start + count)]
        self.can_open += [kind != "encrypted"] * count
        self.whole += [(start, record)] * count
        self.bench.publish(self.channel, self.topic, record)
        self.bench.turns()

    def durable(self):
        self.bench.settle()
        self.channel = self.bench.channel()
        for reader in self.readers:
            reader.look()
            reader.durable_acked = set(reader.acked)

    def crash(self, verb):
        if verb == "stop":
            self.durable()
        getattr(self.bench, verb)()
        del self.bodies[self.end :], self.can_open[self.end :], self.whole[self.end :]
        for reader in self.readers:
            reader.crashed(self.end)
        self.durable()

    def do(self, verb, pick, count):
        reader = self.readers[pick % 2]
        held = reader.some(pick // 2, count)
        match verb:
            case "publish":
                self.publish(KINDS[pick % len(KINDS)], count)
            case "join" if reader.taker is None:
                reader.join(Window(count))
            case "leave":
                reader.leave()
            case "ack" if held is not None:
                reader.ack(*held)
            case "requeue" if held is not None:
                reader.requeue(*held)
            case "reject" if held is not None:
                reader.reject(held[0])
            case "turn":
                self.bench.turns()
            case "sync":
                self.bench.sync()
                self.bench.turns()
            case "durable":
                self.durable()
            case "snapshot":
                self.bench.advance(self.bench.settings.storage.snapshot_interval_ms)
            case "kill" | "cut_power" | "stop":
                self.crash(verb)
        for each in self.readers:
            each.check()


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["publish", "ack", "requeue", "join", "sync"] * 3
            + ["durable", "turn", "reject", "leave", "kill", "cut_power", "stop", "snapshot"]
        ),
        st.integers(0, 40),
        st.integers(1, 9),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_what_is_settled_of_a_batch_stays_settled_and_the_rest_is_delivered(script):
    world = World()
    for step in script:
        world.do(*step)
    for reader in world.readers:
        reader.leave()
        reader.join(Unlimited())
    world.durable()
    for reader in world.readers:
        reader.check()
        assert set(reader.held) | reader.acked == set(range(world.end))
