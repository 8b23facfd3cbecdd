"""Subscriptions of some queues, through crashes.

* What is durable comes back: which queues are read, where each stands, of which type it is.
* What is not durable yet comes back as it was at some moment since, never as anything else.
* A queue nobody reads keeps its messages, and whoever subscribes it again begins where it asks.
* A new queue joins who reads all of them, and nobody else.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.workbench import Workbench
from penstock.engine.host import Mode, Start, SubscriptionOptions
from penstock.engine.topic import DirectRoute
from penstock.flow.demand import Unlimited

QUEUES = 3
QUEUES_MAX = 5
UNREAD = None


class World:
    """One topic, one subscription of some of its queues, and what is known of it."""

    def __init__(self):
        self.bench = Workbench()
        self.topic_name = self.bench.topic("t", queues=QUEUES).name
        self.lows = [UNREAD] * QUEUES
        """Where the subscription stands in each queue."""
        self.durable()

    @property
    def topic(self):
        return self.bench.engine.topic(self.topic_name)

    @property
    def subscription(self):
        return self.topic.subscriptions.get("s")

    def durable(self):
        self.bench.settle()
        self.channel = self.bench.channel()
        self.possible = [{low} for low in self.lows]
        self.queues_possible = {len(self.lows)}

    def note(self):
        """This moment may be what a crash leaves behind."""
        self.possible += [{UNREAD} for _ in range(len(self.lows) - len(self.possible))]
        for known, low in zip(self.possible, self.lows, strict=True):
            known.add(low)
        self.queues_possible.add(len(self.lows))

    def do(self, verb, pick, count, flag):
        number = pick % len(self.lows)
        queue = self.topic.queues[number]
        match verb:
            case "publish":
                self.bench.publish(self.channel, DirectRoute(queue), *[b"x"] * count)
                self.bench.turns()
            case "subscribe":
                self.subscribe(number, Start.LATEST if flag else Start.EARLIEST)
            case "unsubscribe" if self.lows[number] is not UNREAD:
                self.bench.engine.unsubscribe_queue(self.topic_name, "s", queue.queue_id)
                self.lows[number] = UNREAD
            case "settle" if self.lows[number] is not UNREAD:
                upto = min(self.lows[number] + count, queue.index.next_offset)
                self.subscription.settle_upto(queue.queue_id, upto)
                self.lows[number] = upto
            case "type" if self.subscription:
                self.bring(list(Mode)[pick % len(Mode)])
            case "grow" if len(self.lows) < QUEUES_MAX:
                self.bench.engine.grow_topic(self.topic_name, len(self.lows) + 1)
                self.lows.append(UNREAD if UNREAD in self.lows else 0)
            case "turn":
                self.bench.turns()
            case "snapshot":
                self.bench.advance(self.bench.settings.storage.snapshot_interval_ms)
            case "durable":
                self.durable()
            case "kill" | "cut_power" | "stop":
                self.crash(verb)
        self.note()

    def subscribe(self, number, start):
        queue = self.topic.queues[number]
        options = SubscriptionOptions(start=start)
        self.bench.engine.subscribe_queue(self.topic_name, "s", queue.queue_id, options)
        if self.lows[number] is UNREAD:
            # The row may be there before the log knows where it begins.
            self.possible[number].add(0)
            self.lows[number] = queue.index.next_offset if start is Start.LATEST else 0

    def bring(self, mode):
        consumer = self.subscription.attach(self.bench.outlet, Unlimited(), name="c", mode=mode)
        self.subscription.detach(consumer)

    def crash(self, verb):
        getattr(self.bench, verb)()
        if verb == "stop":
            self.possible = [{low} for low in self.lows]
            self.queues_possible = {len(self.lows)}
        found = self.found()
        assert len(found) in self.queues_possible
        for number, low in enumerate(found):
            # Messages that were not durable may be gone, and with them what was settled of them.
            assert low in self.possible[number], (number, low, self.possible)
        self.lows = found
        self.durable()

    def found(self):
        subscription = self.subscription
        ids = [queue.queue_id for queue in self.topic.queues]
        return [
            subscription.low_mark(each) if subscription and subscription.reads(each) else UNREAD
            for each in ids
        ]

    def check(self):
        assert self.found() == self.lows
        assert (self.subscription is None) is (set(self.lows) == {UNREAD})
        assert all(queue.index.min_offset == 0 for queue in self.topic.queues)


verbs = ["publish", "subscribe", "settle"] * 3 + ["unsubscribe", "durable", "turn"] * 2
rare = ["kill", "cut_power", "stop", "type", "grow", "snapshot"]
steps = st.lists(
    st.tuples(
        st.sampled_from([*verbs, *rare]), st.integers(0, 30), st.integers(1, 5), st.booleans()
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(steps)
def test_which_queues_are_read_and_how_far_survives_every_crash(script):
    world = World()
    for step in script:
        world.do(*step)
        world.check()
    world.durable()
    before, mode = world.found(), world.subscription and world.subscription.options.mode
    world.bench.kill()
    assert world.found() == before
    assert (world.subscription and world.subscription.options.mode) is mode
