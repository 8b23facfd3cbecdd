import pickle

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.offsets import Position
from penstock.spark.options import read_options
from penstock.spark.partitions import partitions

COLUMNS = ("offset", "body")


def ranges(start, end, **given):
    options = read_options({"topics": "orders", **given})
    return [each.wanted for each in partitions(start, end, options, COLUMNS)]


def at(*offsets, begins=None):
    queues = {str(number): offset for number, offset in enumerate(offsets)}
    return Position(epoch=4, offsets={"orders": queues}, begins=begins or {})


def test_one_task_for_each_queue_with_rows():
    found = ranges(at(0, 5, 5), at(10, 5, 7))
    assert [(each.queue, each.start, each.end) for each in found] == [("0", 0, 10), ("2", 5, 7)]
    assert {each.epoch for each in found} == {4}


def test_a_queue_that_is_new_in_the_batch_begins_where_the_batch_says():
    found = ranges(at(0), at(0, 9, begins={"orders": {"1": 4}}))
    assert [(each.queue, each.start, each.end) for each in found] == [("1", 4, 9)]


def test_ranges_are_cut_to_the_longest_that_is_allowed():
    found = ranges(at(0), at(10), maxRecordsPerPartition="4")
    assert [(each.start, each.end) for each in found] == [(0, 3), (3, 6), (6, 10)]


def test_partitions_survive_pickling():
    options = read_options({"topics": "orders"})
    made = partitions(at(0), at(10), options, COLUMNS)
    again = pickle.loads(pickle.dumps(made))
    assert [each.wanted for each in again] == [each.wanted for each in made]
    assert repr(again[0]) == "RangePartition(orders/0 [0, 10))"


@given(
    queues=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=5),
    least=st.integers(1, 40),
    most=st.integers(1, 300),
)
def test_ranges_cover_a_batch_exactly_and_are_the_same_every_time(queues, least, most):
    start = at(*[first for first, _ in queues])
    end = at(*[first + rows for first, rows in queues])
    limits = {"minPartitions": str(least), "maxRecordsPerPartition": str(most)}
    found = ranges(start, end, **limits)
    assert found == ranges(start, end, **limits)
    covered = {}
    for each in found:
        assert 0 < each.end - each.start <= most
        assert covered.get(each.queue, start.offsets["orders"][each.queue]) == each.start
        covered[each.queue] = each.end
    rows = sum(each for _, each in queues)
    assert sum(each.end - each.start for each in found) == rows
    assert len(found) >= min(least, rows)
