"""Body bytes for operators: exact for few messages and for even ones, and cheap for many."""

import pytest

from penstock.engine.body_bytes import SAMPLE_MAX
from penstock.flow.prefetch import Window
from penstock.model.record import neutral_record
from penstock.testing.workbench import Workbench


@pytest.fixture
def bench():
    return Workbench()


def filled(bench, *bodies):
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.publish(bench.channel(), topic, *bodies)
    bench.turns()
    return topic, reader


def test_bodies_count_and_nothing_around_them(bench):
    _, reader = filled(bench, neutral_record(b"12345", properties=b"a\x01b\x02"))
    assert reader.body_bytes() == (5, 0)


def test_what_is_in_flight_is_told_from_what_is_ready_and_the_settled_is_gone(bench):
    topic, reader = filled(bench, b"1", b"22", b"333", b"4444")
    reader.attach(bench.outlet, Window(2), name="c")
    bench.turns()
    assert reader.body_bytes() == (7, 3)
    reader.settle(topic.queues[0].queue_id, [1])
    bench.turns()
    assert reader.body_bytes() == (4, 4), "the window has room for the third"
    assert reader.body_bytes() == (4, 4), "a look changes nothing"


def test_many_of_one_size_are_exact_although_few_are_read(bench):
    _, reader = filled(bench, *[b"x" * 10] * (10 * SAMPLE_MAX))
    reader.attach(bench.outlet, Window(7), name="c")
    bench.turns()
    reads = []
    read = reader._host.read
    reader._host.read = lambda wanted: reads.extend(wanted) or read(wanted)
    assert reader.body_bytes() == ((10 * SAMPLE_MAX - 7) * 10, 70)
    assert len(reads) <= SAMPLE_MAX


def test_many_of_different_sizes_are_estimated(bench):
    bodies = [b"x" * (number % 7) for number in range(20 * SAMPLE_MAX)]
    _, reader = filled(bench, *bodies)
    ready, in_flight = reader.body_bytes()
    assert in_flight == 0
    assert abs(ready - sum(map(len, bodies))) < 0.3 * sum(map(len, bodies))


def test_holes_of_settled_messages_do_not_spoil_the_mean(bench):
    topic, reader = filled(bench, *[b"x" * 10] * (4 * SAMPLE_MAX))
    reader.attach(bench.outlet, Window(1000), name="c")
    bench.turns()
    reader.settle(topic.queues[0].queue_id, list(range(1, 4 * SAMPLE_MAX - 1)))
    assert reader.body_bytes() == (0, 20)


def test_a_queue_that_limits_bytes_counts_them_exactly(bench):
    bodies = [b"x" * (number % 7) for number in range(5 * SAMPLE_MAX)]
    _, reader = filled(bench, *bodies)
    reader.ready_body_bytes()
    assert reader.body_bytes() == (sum(map(len, bodies)), 0)
