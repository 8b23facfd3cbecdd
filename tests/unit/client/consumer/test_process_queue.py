"""The cache of one queue: what is unsettled, and how far may be committed."""

from hypothesis import given
from hypothesis import strategies as st

from kit.client.parts import received_message
from penstock.client.consumer.process_queue import ProcessQueue
from penstock.model.assignment import QueueRef

QUEUE = QueueRef("t", "b", 0)


def messages(*offsets):
    return [received_message(QUEUE, offset) for offset in offsets]


def test_nothing_can_be_committed_before_the_first_pull():
    assert ProcessQueue().commit_offset == -1


def test_the_lowest_unsettled_offset_is_committed_whatever_is_settled_behind_it():
    cache = ProcessQueue()
    first, second, third = messages(5, 6, 7)
    cache.put([first, second, third])
    assert cache.commit_offset == 5
    cache.settle([third])
    assert cache.commit_offset == 5
    cache.settle([first])
    assert cache.commit_offset == 6
    cache.settle([second])
    assert cache.commit_offset == 8


def test_settling_twice_counts_once():
    cache = ProcessQueue()
    (message,) = messages(1)
    cache.put([message])
    assert cache.settle([message]) == 1
    assert cache.settle([message]) == 0
    assert (cache.count, cache.size_bytes) == (0, 0)


def test_count_bytes_and_span_are_those_of_unsettled_messages():
    cache = ProcessQueue()
    put = messages(10, 11, 20)
    cache.put(put)
    assert (cache.count, cache.size_bytes, cache.span) == (3, 15, 10)
    cache.settle(put[:1])
    assert (cache.count, cache.size_bytes, cache.span) == (2, 10, 9)
    cache.settle(put[2:])
    assert (cache.count, cache.size_bytes, cache.span) == (1, 5, 0)


def test_one_stuck_message_alone_has_no_span():
    cache = ProcessQueue()
    put = messages(0, *range(100, 200))
    cache.put(put)
    cache.settle(put[1:])
    assert cache.span == 0
    assert cache.commit_offset == 0


def test_messages_that_were_filtered_out_are_behind_what_may_be_committed():
    cache = ProcessQueue()
    put = messages(3)
    cache.put(put)
    cache.reached(40)
    assert cache.commit_offset == 3
    cache.settle(put)
    assert cache.commit_offset == 40


def test_only_this_very_message_is_unsettled_not_another_with_its_offset():
    cache = ProcessQueue()
    ours, other = messages(1), messages(1)
    cache.put(ours)
    assert cache.unsettled(ours) == ours
    assert cache.unsettled(other) == []


def test_taken_messages_stay_unsettled_until_they_are_committed():
    cache = ProcessQueue()
    cache.put(messages(1, 2, 3))
    assert [each.offset for each in cache.take(2)] == [1, 2]
    assert (cache.count, len(cache.taken_offsets()), cache.commit_offset) == (3, 2, 1)
    assert cache.commit_taken() == 3
    assert (cache.count, cache.size_bytes) == (1, 5)


def test_messages_put_back_are_taken_again_in_order():
    cache = ProcessQueue()
    cache.put(messages(1, 2, 3))
    cache.put_back(cache.take(2))
    assert [each.offset for each in cache.take(9)] == [1, 2, 3]
    cache.roll_back()
    assert [each.offset for each in cache.take(1)] == [1]


@given(st.data())
def test_no_order_of_settling_commits_past_an_unsettled_message(data):
    cache = ProcessQueue()
    unsettled, next_offset, committed = {}, 0, -1
    for _ in range(data.draw(st.integers(1, 40))):
        if unsettled and data.draw(st.booleans()):
            offset = data.draw(st.sampled_from(sorted(unsettled)))
            cache.settle([unsettled.pop(offset)])
        else:
            gap = data.draw(st.integers(0, 3))
            put = messages(*range(next_offset + gap, next_offset + gap + 3))
            cache.put(put)
            unsettled.update((each.offset, each) for each in put)
            next_offset = put[-1].offset + 1
        assert cache.count == len(unsettled)
        assert cache.size_bytes == 5 * len(unsettled)
        assert cache.commit_offset <= min(unsettled, default=next_offset)
        assert cache.commit_offset >= committed
        committed = cache.commit_offset
    cache.settle(list(unsettled.values()))
    assert cache.commit_offset == next_offset
