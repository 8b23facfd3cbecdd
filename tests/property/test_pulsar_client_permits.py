"""The Pulsar client's permits against a broker that spends them, over random lives.

Whatever an application and a network do: no more is granted than the queue holds (B28, B31), none
while paused or away (B32, B33), a broker that has messages can always send to an application that
takes (never starved), and what was granted, gathered and is unreceived adds up to the queue. First
the arithmetic by itself, then a whole consumer with everything that gives permits back.
"""

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.client.pulsar_consumer import TYPES, scene, until
from kit.pulsar_payload import single_tail
from penstock.client.pulsar import SubscriptionType
from penstock.client.pulsar.consumer.receiver_queue import ReceiverPermits
from penstock.wire.pulsar.frames import NO_ID

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 30)),
        st.tuples(st.just("receive"), st.integers(1, 20)),
        st.tuples(st.just("skip"), st.integers(1, 10)),
        st.tuples(st.just("pause"), st.just(0)),
        st.tuples(st.just("resume"), st.just(0)),
        st.tuples(st.just("cut"), st.just(0)),
        st.tuples(st.just("connect"), st.booleans()),
        st.tuples(st.just("start"), st.just(0)),
        st.tuples(st.just("redeliver"), st.just(0)),
    ),
    max_size=60,
)


class Life:
    """A consumer, and the broker's account of it."""

    def __init__(self, size):
        self.permits = ReceiverPermits(size)
        self.size = size
        self.broker = 0
        self.queue = 0
        self.is_connected = False
        self.is_started = False

    def flow(self, messages):
        assert messages >= 0
        if messages:
            assert self.is_connected, "FLOW without a connection"
            assert not self.permits.is_paused, "FLOW while paused"
        self.broker += messages
        self.check()

    def check(self):
        permits = self.permits
        if self.is_connected:
            assert permits.outstanding == self.broker
            assert permits.outstanding <= self.size
        if self.is_connected and self.is_started:
            assert permits.outstanding + permits.gathered + self.queue == self.size
            if not permits.is_paused:
                assert permits.gathered < permits.refill_at

    def send(self, batch):
        """A broker sends a whole entry when it has a permit, however many messages it has."""
        if self.is_connected and self.broker > 0:
            self.broker -= batch
            self.queue += batch
            self.permits.arrived(batch)

    def receive(self, count):
        taken = min(count, self.queue)
        self.queue -= taken
        if self.is_connected:
            self.flow(self.permits.taken(taken))

    def skip(self, count):
        """An entry that is not handed out: acked already, before the start, unreadable."""
        if self.is_connected and self.broker > 0:
            self.broker -= count
            self.permits.arrived(count)
            self.flow(self.permits.taken(count))

    def pause(self, _):
        self.permits.pause()

    def resume(self, _):
        self.flow(self.permits.resume())

    def cut(self, _):
        self.is_connected = False
        self.broker = 0
        self.permits.disconnected()

    def connect(self, may_start):
        if self.is_connected:
            return
        self.is_connected, self.is_started = True, may_start
        self.queue = 0
        self.flow(self.permits.connected(may_start=may_start))

    def start(self, _):
        if self.is_connected:
            self.is_started = True
        self.flow(self.permits.start())

    def redeliver(self, _):
        """All that is queued is thrown away and comes again."""
        thrown, self.queue = self.queue, 0
        if self.is_connected:
            self.flow(self.permits.taken(thrown))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 50), STEPS)
def test_granted_less_delivered_never_exceeds_the_queue(size, steps):
    life = Life(size)
    life.connect(True)
    for name, number in steps:
        getattr(life, name)(number)
        life.check()


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 50), STEPS, st.lists(st.integers(1, 30), min_size=1, max_size=30))
def test_an_application_that_receives_is_never_starved(size, steps, batches):
    life = Life(size)
    for name, number in steps:
        getattr(life, name)(number)
    life.connect(True)
    life.start(0)
    life.resume(0)
    for batch in batches:
        life.receive(life.queue)
        assert life.broker > 0, "the broker has a message and may not send it"
        life.send(batch)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), max_size=40))
def test_a_queue_of_0_is_granted_as_many_as_wait_and_never_starves_them(rounds):
    permits = ReceiverPermits(0)
    assert permits.connected() == 0
    broker = queue = 0
    for receivers, batch in rounds:
        wanting = max(0, receivers - queue)
        queue -= min(queue, receivers)
        broker += permits.wanted(wanting)
        assert broker == permits.outstanding
        if wanting:
            assert broker >= 1
            broker -= batch
            permits.arrived(batch)
            queue += max(0, batch - wanting)
        else:
            assert broker <= 5


# ---- a whole consumer ---------------------------------------------------------------------------

WHOLE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 7)),
        st.tuples(st.just("send_in_part"), st.integers(2, 7)),
        st.tuples(st.just("send_damaged"), st.just(0)),
        st.tuples(st.just("send_stale"), st.integers(1, 3)),
        st.tuples(st.just("receive"), st.integers(1, 12)),
        st.tuples(st.just("give_up"), st.integers(0, 6)),
        st.tuples(st.just("ack"), st.integers(1, 5)),
        st.tuples(st.just("redeliver"), st.just(0)),
        st.tuples(st.just("pause"), st.just(0)),
        st.tuples(st.just("resume"), st.just(0)),
        st.tuples(st.just("cut"), st.just(0)),
        st.tuples(st.just("be_closed"), st.integers(0, 3)),
    ),
    max_size=30,
)


class WholeLife:
    """A consumer, and a broker that counts permits as Pulsar does."""

    def __init__(self, bench, consumer, size):
        self.bench, self.consumer, self.size = bench, consumer, size
        self.sent = 0
        self.redeliveries = 0
        self.held = []

    @property
    def granted(self):
        """On this connection."""
        commands = self.bench.broker.commands
        kinds = [each.type for each in commands]
        begin = len(kinds) - kinds[::-1].index(TYPES.SUBSCRIBE)
        return sum(c.flow.messagePermits for c in commands[begin:] if c.type == TYPES.FLOW)

    @property
    def has_permits(self):
        return self.granted > self.sent

    def check(self):
        assert 0 not in self.bench.broker.flows
        part, inbox = self.bench.part(self.consumer), self.consumer.inboxes[0]
        permits = part.permits
        assert permits.outstanding == self.granted - self.sent <= self.size
        unreceived = len(inbox) + part.taken + part._back
        assert permits.outstanding + permits.gathered + unreceived == self.size

    def deliver(self, *bodies, charged, **fields):
        if self.has_permits:
            self.bench.broker.deliver(*bodies, **fields)
            self.sent += charged

    async def send(self, count):
        self.deliver(*[b"x"] * count, charged=count)

    async def send_in_part(self, count):
        """The first of a batch was acked before."""
        words = [(1 << count) - 2]
        self.deliver(*[b"x"] * count, charged=count - 1, ack_set=words)

    async def send_damaged(self, _):
        self.deliver(b"", charged=1, tail=single_tail(b"x")[:-1] + b"y")

    async def send_stale(self, count):
        """Sent before the broker heard that all is wanted again."""
        if self.redeliveries:
            self.deliver(*[b"x"] * count, charged=count, consumer_epoch=self.redeliveries - 1)

    async def receive(self, count):
        for _ in range(count):
            message = self.consumer.inboxes[0].take()
            if message is not None:
                self.held.append(message)

    async def give_up(self, turns):
        """A receiver that goes away, perhaps just when its message comes."""
        waiting = asyncio.ensure_future(self.consumer.receive_async())
        await self.send(1)
        await self.bench.settle(turns)
        waiting.cancel()
        (found,) = await asyncio.gather(waiting, return_exceptions=True)
        if not isinstance(found, asyncio.CancelledError):
            self.held.append(found)

    async def ack(self, count):
        self.consumer.acknowledge(self.held[:count])
        del self.held[:count]

    async def redeliver(self, _):
        await self.consumer.redeliver_unacknowledged_async()
        self.redeliveries += self.consumer._subscription.kind is SubscriptionType.EXCLUSIVE

    async def pause(self, _):
        await self.consumer.pause_async()

    async def resume(self, _):
        await self.consumer.resume_async()

    async def cut(self, _):
        before = len(self.bench.broker.subscribes)
        self.bench.broker.cut()
        await self.come_back(before)

    async def be_closed(self, damaged):
        """CLOSE_CONSUMER, in one read with entries nobody can read."""
        broker = self.bench.broker
        before = len(broker.subscribes)
        with broker.one_read():
            for _ in range(damaged):
                await self.send_damaged(0)
            number = broker.subscribes[-1].consumer_id
            broker.say(TYPES.CLOSE_CONSUMER, consumer_id=number, request_id=NO_ID)
        await self.come_back(before)

    async def come_back(self, before):
        await until(lambda: len(self.bench.broker.subscribes) > before)
        await until(lambda: self.consumer.is_connected)
        self.sent = 0


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 20),
    st.sampled_from([SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED]),
    WHOLE_STEPS,
)
@example(1, SubscriptionType.EXCLUSIVE, [("give_up", 2), ("redeliver", 0)])
@example(10, SubscriptionType.SHARED, [("be_closed", 3), ("send", 6), ("receive", 6)])
def test_whatever_gives_permits_back_a_consumer_neither_loses_nor_makes_any(size, kind, steps):
    @scene
    async def play(bench):
        consumer = await bench.subscribe(
            receiver_queue_size=size, subscription_type=kind, ack_group_ms=0
        )
        await bench.settle()
        life = WholeLife(bench, consumer, size)
        for name, number in steps:
            await getattr(life, name)(number)
            await bench.settle()
            life.check()
        await life.resume(0)
        await life.receive(len(consumer.inboxes[0]))
        await bench.settle()
        life.check()
        assert life.has_permits, "the broker has a message and may not send it"

    play()
