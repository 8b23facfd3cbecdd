"""Restarts of a whole core, one behaviour each: what the simulator found, small."""

from penstock.engine.host import SubscriptionOptions
from penstock.engine.ports import Publication
from penstock.engine.topic import route_to
from penstock.flow.demand import Window
from penstock.model.names import topic_name
from penstock.model.record import neutral_record
from penstock.testing.broker import MemoryCatalog, in_memory_engine
from penstock.testing.storage import SimulatedStorage

NAME = topic_name("orders")


class Life:
    """One core after another on the same disk, with one topic and one subscription."""

    def __init__(self):
        self.storage, self.catalog, self.clock = SimulatedStorage(1), MemoryCatalog(), None
        self.start()
        self.core.engine.create_topic(NAME)
        self.core.engine.create_subscription(NAME, "s", SubscriptionOptions())
        self.core.settle()

    def start(self):
        self.core = in_memory_engine(self.storage, self.catalog, clock=self.clock)
        self.clock = self.core.clock
        self.peer = self.core.connect()

    def kill(self):
        self.storage, self.catalog = self.storage.kill(), self.catalog.kill()
        self.start()

    @property
    def topic(self):
        return self.core.engine.topic(NAME)

    @property
    def subscription(self):
        return self.topic.subscriptions["s"]

    @property
    def queue_id(self):
        return self.topic.queues[0].queue_id

    def publish(self, *bodies):
        route = route_to(self.topic)
        self.peer.channel.publish(
            [
                Publication(record=neutral_record(body), queues=(), route=route, token=number)
                for number, body in enumerate(bodies)
            ]
        )
        self.core.settle()

    def consume(self, window=100):
        self.subscription.attach(self.peer, Window(window), name="c")
        self.core.settle()

    def snapshot(self):
        """Let enough time pass for a snapshot, and something happen for it to cover."""
        self.clock.advance(2000)
        self.publish(b"beat")
        self.clock.advance(2000)
        self.core.settle()


def test_what_was_replayed_after_a_kill_is_in_the_next_snapshot():
    life = Life()
    life.publish(b"1", b"2", b"3")
    life.consume()
    life.peer.settle_all(life.subscription)
    life.core.settle()
    life.kill()
    assert life.subscription.low_mark(life.queue_id) == 3
    for _ in range(3):
        life.snapshot()
    assert life.core.store.snapshot_position > 0
    life.kill()
    assert life.subscription.low_mark(life.queue_id) == 3


def test_offsets_that_were_settled_are_not_given_to_new_messages_when_their_records_are_lost():
    life = Life()
    options = SubscriptionOptions(sees_unsynced=True)
    life.core.engine.create_subscription(NAME, "early", options)
    life.publish(b"1", b"2")
    life.subscription.attach(life.peer, Window(100), name="c")
    early = life.topic.subscriptions["early"]
    early.attach(life.peer, Window(100), name="e", is_auto_settled=True)
    life.core.settle()
    # Two frames: messages, and the settlement of what was seen before its sync. Then the power
    # goes, and only the later frame has reached the disk.
    base = life.core.store.end_position
    life.publish(b"3", b"4")
    assert early.low_mark(life.queue_id) == 4
    file = life.storage.open("log/00000000000000000000.seg", create=False)
    file._node.content[base : base + 200] = bytes(200)
    life.kill()
    life.publish(b"5")
    assert life.peer.confirmed_tokens == [0]
    early = life.topic.subscriptions["early"]
    early.attach(life.peer, Window(100), name="e")
    life.core.settle()
    assert life.peer.bodies == [b"5"]
