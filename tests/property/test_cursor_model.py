"""The cursor against a plain set of offsets, and what is saved of it against what it was."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.queues import MemoryHost, MemoryQueue
from penstock.engine.host import SubscriptionOptions
from penstock.engine.subscription.cursor import SettledOffsets
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Window
from penstock.log.format import decode_cursor, decode_settlement, encode_cursor, encode_settlement
from penstock.model.ids import SubscriptionId
from penstock.model.record import Record, Shape
from penstock.settings.broker import TopicSettings

END = 60
QUEUE = 1

offsets = st.integers(0, END)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("one"), offsets, st.just(0)),
        st.tuples(st.just("range"), offsets, st.integers(0, 12)),
        st.tuples(st.just("many"), offsets, st.integers(1, 9)),
        st.tuples(st.just("upto"), offsets, st.just(0)),
        st.tuples(st.just("seek"), offsets, st.just(0)),
    ),
    max_size=60,
)


def settle(offsets, verb, offset, length):
    """Do it; returns the offsets meant and how many the cursor says were new."""
    if verb == "upto":
        return set(range(offset)), offsets.settle_upto(offset)
    if verb == "many":
        starts = range(offset, offset + 3 * length, 3)
        runs = [(start, start + 1 + start % 2) for start in starts]
        return {at for run in runs for at in range(*run)}, offsets.settle_runs(runs)
    end = offset + (1 if verb == "one" else length)
    return set(range(offset, end)), offsets.settle(offset, end)


def check_shape(offsets):
    """Ranges neither touch each other nor the low mark, and the count is kept."""
    edges = [offsets.low_mark]
    for start, end in offsets.ranges:
        edges += [start, end]
    assert edges == sorted(set(edges))
    assert offsets.settled_above == sum(end - start for start, end in offsets.ranges)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_the_cursor_settles_what_a_set_of_offsets_would(script):
    offsets = SettledOffsets()
    model = set()
    for verb, offset, length in script:
        if verb == "seek":
            offsets.seek(offset)
            model = set(range(offset))
        else:
            wanted, settled = settle(offsets, verb, offset, length)
            fresh = wanted - model
            assert settled == len(fresh)
            model |= fresh
        check_shape(offsets)
        assert [offsets.is_settled(at) for at in range(END + 20)] == [
            at in model for at in range(END + 20)
        ]
        assert offsets.settled_in(7, 41) == len(model & set(range(7, 41)))
        gaps = {at for start, end in offsets.unsettled_in(7, 41) for at in range(start, end)}
        assert gaps == set(range(7, 41)) - model
        assert offsets.next_unsettled(offset) == min(set(range(offset, END + 60)) - model)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_a_cursor_restored_from_its_state_settles_the_same(script):
    offsets = SettledOffsets()
    for verb, offset, length in script:
        if verb == "seek":
            offsets.seek(offset)
        elif verb == "upto":
            offsets.settle_upto(offset)
        else:
            offsets.settle(offset, offset + max(1, length))
    again = SettledOffsets()
    again.restore(offsets.low_mark, offsets.ranges)
    check_shape(again)
    assert (again.low_mark, again.ranges) == (offsets.low_mark, offsets.ranges)


class Outlet:
    """A peer that takes everything at once."""

    def deliver(self, consumer, deliveries):
        consumer.unsent.sent_all()


class SavedSubscription:
    """A subscription that is used while its settlements are saved; any moment may be the last.

    The law: snapshot plus replay gives the cursor, the counts and the delivered mark as they were
    at the last save.
    """

    def __init__(self, batches):
        self.host = MemoryHost(topics=TopicSettings(delivered_reserve=8))
        self.queue = MemoryQueue(self.host, QUEUE)
        self.queue.append(Record(b"x", Shape(messages=messages)) for messages in batches)
        self.subscription = Subscription(
            SubscriptionId(1), "s", [self.queue], SubscriptionOptions(), self.host
        )
        self.cursor = self.subscription.cursor(QUEUE)
        self.subscription.attach(Outlet(), Window(6), name="c")
        self.snapshot = encode_cursor(self.subscription.state(QUEUE))
        self.log = []
        self.save()

    def some_held(self, picks):
        held = sorted(self.cursor.pending.spill())
        return [held[pick % len(held)] + pick % 3 for pick in picks] if held else []

    def do(self, verb, picks, flag):
        subscription = self.subscription
        match verb:
            case "settle":
                subscription.settle(QUEUE, self.some_held(picks))
            case "requeue":
                subscription.requeue(QUEUE, self.some_held(picks), count=flag)
            case "reject":
                subscription.reject(QUEUE, self.some_held(picks))
            case "upto":
                subscription.settle_upto(QUEUE, self.cursor.settled.low_mark + picks[0] % 4)
            case "seek":
                subscription.seek(QUEUE, picks[0] % 40)
            case "purge":
                subscription.purge(QUEUE)
            case "save":
                self.save()
        self.host.run(5)
        if flag and verb == "save":
            self.save()
            self.snapshot = encode_cursor(subscription.state(QUEUE))
            self.log.clear()

    def save(self):
        self.log += [encode_settlement(each) for each in self.host.save()]
        self.as_saved = visible(self.cursor)

    def check_recovery(self):
        again = Subscription(
            SubscriptionId(1), "s", [self.queue], SubscriptionOptions(), MemoryHost(), is_new=False
        )
        again.restore(decode_cursor(self.snapshot))
        for record in self.log:
            again.apply(decode_settlement(record))
        cursor = again.cursor(QUEUE)
        assert visible(cursor) == self.as_saved
        # The mark is reserved ahead: what is stored from now on nobody has ever had.
        assert cursor.flagged_below == min(cursor.delivered_mark, self.queue.index.next_offset)


def visible(cursor):
    """What must survive: the cursor, the counts of open messages, the mark."""
    ends = {entry[1]: entry[1] + entry[5] for entry in cursor.queue.index.all}
    counts = {
        at: count
        for at, count in cursor.redelivery.counts.items()
        if count and cursor.settled.unsettled_in(at, ends[at])
    }
    return cursor.settled.low_mark, cursor.settled.ranges, counts, cursor.delivered_mark


use = st.tuples(
    st.sampled_from(["settle"] * 4 + ["requeue"] * 3 + ["save"] * 3 + ["reject", "upto", "seek"]),
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=5, max_size=25), st.lists(use, max_size=40))
def test_snapshot_and_replay_give_back_what_was_saved(batches, script):
    saved = SavedSubscription(batches)
    for step in script:
        saved.do(*step)
        saved.check_recovery()
    saved.do("purge", [0], False)
    saved.do("save", [0], False)
    saved.check_recovery()
