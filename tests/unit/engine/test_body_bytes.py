"""Body bytes for operators: exact for few messages and for even ones, and cheap for many."""

import pytest

from penstock.engine.body_bytes import ALL_MESSAGES_MAX, EDGE_MESSAGES, RECORD_BYTES_MAX
from penstock.flow.demand import Window
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


MANY = 10 * ALL_MESSAGES_MAX


@pytest.fixture
def reads(bench, monkeypatch):
    """Everything that is read of the log."""
    found = []
    read = bench.store.read
    monkeypatch.setattr(bench.store, "read", lambda wanted: found.extend(wanted) or read(wanted))
    return found


def test_many_of_one_size_are_exact_although_few_are_read(bench, reads):
    _, reader = filled(bench, *[b"x" * 10] * MANY)
    reader.attach(bench.outlet, Window(7), name="c")
    bench.turns()
    reads.clear()
    assert reader.body_bytes() == ((MANY - 7) * 10, 70)
    assert 0 < len(reads) <= 2 * EDGE_MESSAGES


def test_a_look_reads_nothing_when_nothing_came_or_went(bench, reads):
    topic, reader = filled(bench, *[b"x" * 10] * MANY)
    first = reader.body_bytes()
    reads.clear()
    assert reader.body_bytes() == first
    assert reads == []
    bench.publish(bench.channel(), topic, b"x" * 10)
    bench.turns()
    assert reader.body_bytes() == (first[0] + 10, 0)


def test_many_of_different_sizes_are_estimated(bench):
    bodies = [b"x" * (number % 5) for number in range(MANY)]
    _, reader = filled(bench, *bodies)
    ready, in_flight = reader.body_bytes()
    assert in_flight == 0
    assert abs(ready - sum(map(len, bodies))) < 0.5 * sum(map(len, bodies))


def test_large_records_are_not_read(bench, reads):
    size = 2 * RECORD_BYTES_MAX
    _, reader = filled(bench, *[b"x" * size] * 3)
    reads.clear()
    ready, _ = reader.body_bytes()
    assert reads == []
    assert 3 * size <= ready < 3 * size * 1.01


def test_holes_of_settled_messages_do_not_spoil_the_mean(bench):
    topic, reader = filled(bench, *[b"x" * 10] * MANY)
    reader.attach(bench.outlet, Window(1000), name="c")
    bench.turns()
    reader.settle(topic.queues[0].queue_id, list(range(1, MANY - 1)))
    assert reader.body_bytes() == (0, 20)


def test_a_queue_that_limits_bytes_counts_them_exactly(bench):
    bodies = [b"x" * (number % 7) for number in range(MANY)]
    _, reader = filled(bench, *bodies)
    reader.ready_body_bytes()
    assert reader.body_bytes() == (sum(map(len, bodies)), 0)
