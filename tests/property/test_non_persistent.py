"""Topics without a log, whatever peers do.

* Every message is, for every subscription, handed to exactly one consumer or dropped and counted.
* Nobody gets more than its permits and its socket allow, but for the rest of one batch.
* Nothing is dropped while somebody who may have it has demand.
* Everybody gets what it gets in the order of publishing; one key goes to one consumer.
* Each publish is confirmed once, in its turn; nothing of it stays, in memory or in the log.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.workbench import Workbench
from penstock.engine.host import Mode
from penstock.engine.subscription.consumer import Consumer
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import Permits
from penstock.model.names import NON_PERSISTENT, topic_name
from penstock.model.record import neutral_record
from penstock.testing.outlet import RecordingOutlet

NAME = topic_name("t", "", NON_PERSISTENT)
BATCH_MAX = 4
UNSENT_MAX = 6
MODES = (Mode.EXCLUSIVE, Mode.FAILOVER, Mode.SHARED, Mode.KEY_SHARED)


class Reader:
    """One consumer and its socket."""

    def __init__(self, subscription, name, permits):
        self.outlet = RecordingOutlet()
        self.unsent = UnsentLimit(UNSENT_MAX, 0)
        self.consumer = subscription.attach(
            self.outlet, Permits(permits), unsent=self.unsent, name=name
        )
        self.seen = 0

    @property
    def is_in(self):
        return isinstance(self.consumer, Consumer)

    def take(self):
        """What it was handed since the last time."""
        fresh = self.outlet.deliveries[self.seen :]
        self.seen += len(fresh)
        return fresh

    def read(self):
        self.consumer.sent(self.unsent.messages, self.unsent.bytes)


class World:
    """One topic with a subscription of each type, another with a log, and one publisher."""

    def __init__(self):
        self.bench = Workbench()
        self.topics = self.bench.engine.non_persistent
        self.topic = self.topics.create(NAME)
        self.stored = self.bench.topic("t")
        self.bench.settle()
        self.channel = self.bench.channel()
        self.route = self.topics.route(NAME)
        self.readers = {mode: [] for mode in MODES}
        for mode in MODES:
            self.topic.subscribe(mode.value, mode)
        self.published = self.kept = self.names = 0

    def subscription(self, mode):
        return self.topic.subscriptions[mode.value]

    def do(self, verb, pick, count):
        mode = MODES[pick % len(MODES)]
        readers = self.readers[mode]
        match verb:
            case "attach":
                self.names += 1
                reader = Reader(self.subscription(mode), f"c{self.names}", count)
                assert reader.is_in or (mode is Mode.EXCLUSIVE and readers)
                if reader.is_in:
                    readers.append(reader)
            case "detach" if readers:
                reader = readers.pop(count % len(readers))
                self.subscription(mode).detach(reader.consumer)
            case "grant" if readers:
                readers[count % len(readers)].consumer.grant(count + 1)
            case "read" if readers:
                readers[count % len(readers)].read()
            case "store":
                self.bench.publish(self.channel, self.stored, b"kept")
                self.kept += 1
            case "publish":
                self.publish(pick, count)

    def publish(self, pick, count):
        records = []
        for number in range(count + 1):
            record = neutral_record(b"%d" % (self.published + number), key=b"k%d" % (number % 3))
            record.reshape(messages=1 + (pick + number) % BATCH_MAX)
            records.append(record)
        before = {mode: self.subscription(mode).dropped_messages for mode in MODES}
        confirmed = len(self.bench.outlet.confirmed_tokens)
        end = self.bench.engine.log_end if not self.kept else None
        tokens = self.bench.publish(self.channel, self.route, *records)
        self.bench.engine.turn()
        assert set(tokens) <= set(self.bench.outlet.confirmed_tokens[confirmed:])
        assert end is None or self.bench.engine.log_end == end
        assert not self.topics.outbox
        messages = sum(record.messages for record in records)
        for mode in MODES:
            dropped = self.subscription(mode).dropped_messages - before[mode]
            self.check(mode, messages, dropped)
        self.published += count + 1

    def check(self, mode, messages, dropped):
        taken = [(reader, reader.take()) for reader in self.readers[mode]]
        delivered = [each for _, fresh in taken for each in fresh]
        assert sum(each.messages for each in delivered) + dropped == messages
        bodies = [each.record.body for each in delivered]
        assert len(set(bodies)) == len(bodies)
        for reader, fresh in taken:
            numbers = [int(each.record.body) for each in fresh]
            assert numbers == sorted(numbers)
            assert reader.consumer.demand.permits > -BATCH_MAX
            assert reader.unsent.messages < UNSENT_MAX + BATCH_MAX
            assert reader.consumer.inflight.messages == 0
        if mode is Mode.KEY_SHARED:
            owners = {(each.record.key, id(reader)) for reader, fresh in taken for each in fresh}
            assert len(owners) == len({key for key, _ in owners})
        elif mode is not Mode.SHARED:
            assert sum(bool(fresh) for _, fresh in taken) <= 1
        if dropped and mode in (Mode.SHARED, Mode.EXCLUSIVE):
            assert not any(each.consumer.available_messages() for each in self.readers[mode])

    def finish(self):
        self.bench.settle()
        assert self.channel.connection.bytes_held == 0
        assert len(self.bench.bodies(self.stored)) == self.kept
        told = self.topic.statistics()
        assert told.dropped == sum(each.dropped for each in told.subscriptions)
        assert self.topics.dropped_messages == told.dropped
        assert self.topics.published_messages == told.published
        self.bench.kill()
        assert len(self.bench.engine.non_persistent) == 0
        assert [topic.name for topic in self.bench.engine.topics()] == [self.stored.name]


STEP = st.tuples(
    st.sampled_from(["attach", "detach", "grant", "grant", "read", "publish", "publish", "store"]),
    st.integers(0, 11),
    st.integers(0, 9),
)


@settings(deadline=None)
@given(st.lists(STEP, max_size=60))
def test_every_message_is_handed_out_once_or_dropped_and_counted(steps):
    world = World()
    for verb, pick, count in steps:
        world.do(verb, pick, count)
    world.finish()
