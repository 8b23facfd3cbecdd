"""The Pulsar client's permits against a broker that spends them, over random lives.

Whatever an application and a network do: no more is granted than the queue holds (B28, B31), none
while paused or away (B32, B33), a broker that has messages can always send to an application that
takes (never starved), and what was granted, gathered and is unreceived adds up to the queue.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.pulsar.consumer.receiver_queue import ReceiverPermits

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
