"""How long messages were ready and nobody took them."""

import pytest

from penstock.flow.demand import Window
from penstock.testing.workbench import Workbench


@pytest.fixture
def bench():
    return Workbench()


def test_time_counts_while_something_is_ready_and_nobody_has_room(bench):
    topic = bench.topic()
    reader = bench.reader(topic)
    queue_id = topic.queues[0].queue_id
    reader.attach(bench.outlet, Window(1), name="c")
    bench.turns()
    bench.advance(1_000)
    assert reader.unserved_ms == 0, "nothing was ready"
    bench.publish(bench.channel(), topic, b"1", b"2")
    bench.turns()
    bench.advance(300)
    assert (reader.unserved_ms, reader.is_unserved) == (300, True), "the second one waits"
    reader.settle(queue_id, [0])
    bench.turns()
    bench.advance(500)
    assert (reader.unserved_ms, reader.is_unserved) == (300, False), "it is in flight now"


def test_a_consumer_that_is_always_full_is_never_served_in_between(bench):
    topic = bench.topic()
    reader = bench.reader(topic)
    queue_id = topic.queues[0].queue_id
    reader.attach(bench.outlet, Window(1), name="c")
    bench.publish(bench.channel(), topic, *[b"x"] * 5)
    bench.turns()
    for offset in range(3):
        bench.advance(100)
        reader.settle(queue_id, [offset])
        bench.turns()
    assert reader.unserved_ms == 300


def test_what_nobody_reads_waits_and_a_purge_ends_it(bench):
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.publish(bench.channel(), topic, b"1")
    bench.turns()
    bench.advance(200)
    reader.purge(topic.queues[0].queue_id)
    bench.turns()
    bench.advance(200)
    assert reader.unserved_ms == 200
