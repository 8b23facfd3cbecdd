"""Body bytes of what waits: counted exactly, whatever happens to messages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.batches import WIRE, BatchFacts, batch, numbered
from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.subscription.cursor import TRIM_MIN
from penstock.flow.demand import Window
from penstock.model.record import neutral_record


@pytest.fixture
def bench():
    return Workbench()


def taking(bench, subscription, window=100):
    return subscription.attach(bench.outlet, Window(window), name="c")


def test_bodies_count_and_nothing_around_them(bench):
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.publish(bench.channel(), topic, neutral_record(b"12345", properties=b"a\x01b\x02"))
    bench.turns()
    assert reader.ready_body_bytes() == 5


def test_what_is_in_flight_does_not_count_and_what_comes_back_does(bench):
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.publish(bench.channel(), topic, b"1", b"22", b"333")
    bench.turns()
    consumer = taking(bench, reader, window=2)
    bench.turns()
    assert reader.ready_body_bytes() == 3
    reader.cancel(consumer)
    reader.requeue(topic.queues[0].queue_id, [1])
    assert reader.ready_body_bytes() == 5
    reader.settle(topic.queues[0].queue_id, [0])
    assert reader.ready_body_bytes() == 5


def test_a_seek_counts_again_what_was_settled(bench):
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.publish(bench.channel(), topic, b"1", b"22")
    bench.turns()
    queue_id = topic.queues[0].queue_id
    reader.settle_upto(queue_id, 2)
    assert reader.ready_body_bytes() == 0
    reader.seek(queue_id, 1)
    assert reader.ready_body_bytes() == 2


def test_a_restart_reads_what_is_left(bench):
    topic = bench.topic()
    options = SubscriptionOptions(sees_unsynced=True)
    reader = bench.engine.create_subscription(topic.name, "s", options)
    bench.publish(bench.channel(), topic, b"1", b"22", b"333", b"4444")
    bench.settle()
    taking(bench, reader)
    bench.turns()
    reader.settle(topic.queues[0].queue_id, [0, 2])
    bench.settle()
    bench.kill()
    restored = bench.engine.topic(topic.name).subscriptions["s"]
    assert restored.ready_body_bytes() == 6


def test_what_is_settled_is_forgotten(bench):
    topic = bench.topic()
    reader = bench.reader(topic)
    channel = bench.channel()
    for _ in range(3):
        bench.publish(channel, topic, *[b"x"] * TRIM_MIN)
        bench.turns()
        reader.settle_upto(topic.queues[0].queue_id, topic.queues[0].index.next_offset - 1)
        assert reader.ready_body_bytes() == 1
    (sizes,) = reader._ready_body_bytes.values()
    assert len(sizes._sizes) <= 2 * TRIM_MIN


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "take", "back", "settle", "purge", "drop", "look"]),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_figure_is_the_sum_of_what_is_ready(steps):
    bench = Workbench()
    topic = bench.topic()
    reader = bench.reader(topic)
    queue_id = topic.queues[0].queue_id
    channel = bench.channel()
    hand = reader.attach(bench.outlet, Window(0), name="hand", is_passive=True)
    sizes: dict[int, int] = {}
    ready: set[int] = set()
    held: list[int] = []
    for verb, number in steps:
        if verb == "publish":
            offset = topic.queues[0].index.next_offset
            sizes[offset] = number
            ready.add(offset)
            bench.publish(channel, topic, b"x" * number)
            bench.turns()
        elif verb == "take":
            taken = [each.offset for each in reader.take(hand, number or 1)]
            held += taken
            ready.difference_update(taken)
        elif verb == "back" and held:
            offset = held.pop(number % len(held))
            reader.requeue(queue_id, [offset])
            ready.add(offset)
        elif verb == "settle" and held:
            reader.settle(queue_id, [held.pop(number % len(held))])
        elif verb == "purge" and number == 0:
            reader.purge(queue_id)
            ready.clear()
        elif verb == "drop":
            reader.drop_head(queue_id, 1)
            ready.discard(min(ready, default=-1))
        else:
            assert reader.ready_body_bytes() == sum(sizes[offset] for offset in ready)
    assert reader.ready_body_bytes() == sum(sizes[offset] for offset in ready)


@pytest.mark.parametrize("whole_batches", [False, True])
def test_messages_of_a_batch_have_their_share_of_its_bytes(whole_batches):
    bench = Workbench(facts={WIRE: BatchFacts()})
    topic = bench.topic()
    options = SubscriptionOptions(sees_unsynced=True, whole_batches=whole_batches)
    reader = bench.engine.create_subscription(topic.name, "s", options)
    record = batch(*numbered(3))
    size = record.shape.body_len
    bench.publish(bench.channel(), topic, record, b"behind")
    bench.turns()
    assert reader.ready_body_bytes() == size + 6
    consumer = taking(bench, reader, window=1)
    bench.turns()
    first = -(-size // 3)
    assert reader.ready_body_bytes() == (6 if whole_batches else size - first + 6)
    reader.detach(consumer)
    assert reader.ready_body_bytes() == size + 6
