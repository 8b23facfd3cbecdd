"""What a lite pull consumer hands out, and how far its user has come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.consumer.lite_reader import LiteCache, LiteQueue
from penstock.client.message import ReceivedMessage
from penstock.flow.thresholds import Cached
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.stored import StoredMessage

A = QueueRef("t", "b", 0)
B = QueueRef("t", "b", 1)


def messages(queue, *offsets):
    return [
        ReceivedMessage(
            StoredMessage(topic="t", body=b"12345", queue_id=queue.queue, queue_offset=offset),
            queue,
        )
        for offset in offsets
    ]


def cache_of(*refs, start=0):
    cache = LiteCache()
    for ref in refs:
        cache.add(LiteQueue(ref, start, 0))
    return cache


def put(cache, ref, *offsets, next_offset=None):
    queue = cache.queues[ref]
    after = offsets[-1] + 1 if next_offset is None else next_offset
    return cache.put(queue, queue.epoch, messages(ref, *offsets), after)


def taken(cache, count=10):
    return [(each.queue, each.offset) for each in cache.take(count)]


def test_queues_take_turns_and_each_keeps_its_order():
    cache = cache_of(A, B)
    put(cache, A, 0, 1, 2)
    put(cache, B, 0)
    assert [taken(cache, 2), taken(cache, 2), taken(cache, 2)] == [
        [(A, 0), (A, 1)],
        [(B, 0)],
        [(A, 2)],
    ]
    assert not cache.has_messages
    assert cache.count == 0


def test_the_limits_see_what_was_pulled_and_not_handed_out():
    cache = cache_of(A)
    put(cache, A, 0, 1, 9)
    assert cache.queues[A].cached == Cached(messages=3, size_bytes=15, span=9)
    taken(cache, 2)
    assert cache.queues[A].cached == Cached(messages=1, size_bytes=5, span=0)


def test_a_poll_settles_what_earlier_ones_handed_out_and_not_its_own():
    cache = cache_of(A)
    put(cache, A, 0, 1, 2)
    cache.settle()
    taken(cache, 2)
    assert cache.progress(is_user=False) == {A: 0}
    cache.settle()
    taken(cache, 2)
    assert cache.progress(is_user=False) == {A: 2}


def test_a_user_who_commits_says_that_everything_handed_out_is_done():
    cache = cache_of(A, B)
    put(cache, A, 0, 1)
    put(cache, B, 0)
    taken(cache)
    assert cache.progress(is_user=True) == {A: 2, B: 0}


def test_messages_an_iterator_still_holds_are_not_committed():
    cache = cache_of(A)
    put(cache, A, 0, 1, 2)
    taken(cache)
    assert cache.progress(is_user=True, held={A: 1}) == {A: 1}


def test_offsets_that_filters_left_out_are_passed():
    cache = cache_of(A)
    put(cache, A, 3, next_offset=50)
    taken(cache)
    assert cache.queues[A].position == 50
    cache.put(cache.queues[A], 0, [], 80)
    assert cache.queues[A].position == 80


def test_a_seek_empties_the_queue_and_makes_pulls_under_way_worthless():
    cache = cache_of(A, B)
    put(cache, A, 0, 1)
    put(cache, B, 0)
    queue, epoch = cache.queues[A], cache.queues[A].epoch
    cache.seek(A, 40)
    assert not cache.put(queue, epoch, messages(A, 2), 3)
    assert (queue.next_offset, queue.position, queue.settled) == (40, 40, 40)
    assert taken(cache) == [(B, 0)]
    assert put(cache, A, 40)
    assert taken(cache) == [(A, 40)]


def test_one_can_seek_back():
    cache = cache_of(A)
    put(cache, A, 0, 1, 2)
    taken(cache)
    cache.seek(A, 1)
    put(cache, A, 1, 2)
    assert taken(cache) == [(A, 1), (A, 2)]


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed():
    cache = cache_of(A, B)
    put(cache, A, 0)
    cache.pause([A])
    put(cache, A, 1)
    assert not cache.has_messages
    cache.resume([A])
    assert taken(cache) == [(A, 0), (A, 1)]


def test_pausing_a_queue_that_is_not_ours_changes_nothing():
    cache = cache_of(A)
    with pytest.raises(KeyError):
        cache.pause([A, B])
    assert not cache.queues[A].is_paused


def test_a_dropped_queue_is_forgotten_with_its_messages():
    cache = cache_of(A)
    queue = cache.queues[A]
    put(cache, A, 0, 1)
    assert cache.drop(A) is queue
    assert (cache.count, cache.has_messages, queue.is_dropped) == (0, False, True)
    assert not cache.put(queue, 0, messages(A, 2), 3)
    assert cache.drop(A) is None


def test_lag_is_what_the_broker_has_and_the_user_has_not():
    cache = cache_of(A)
    queue = cache.queues[A]
    assert queue.lag is None
    put(cache, A, 0, 1, 2)
    queue.max_offset = 10
    taken(cache, 1)
    assert queue.lag == 9


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "stale", "take", "settle", "seek", "pause", "resume"]),
        st.sampled_from([A, B]),
        st.integers(0, 6),
    ),
    max_size=40,
)


@given(STEPS)
def test_marks_stay_in_order_and_nothing_is_handed_out_twice_between_seeks(steps):
    cache = cache_of(A, B)
    handed = {A: -1, B: -1}
    for what, ref, number in steps:
        queue = cache.queues[ref]
        if what == "put":
            put(cache, ref, *range(queue.next_offset, queue.next_offset + number + 1))
        elif what == "stale":
            assert not cache.put(queue, queue.epoch - 1, messages(ref, 999), 1000)
        elif what == "take":
            for each in cache.take(number + 1):
                assert each.offset == handed[each.queue] + 1
                assert not cache.queues[each.queue].is_paused
                handed[each.queue] = each.offset
        elif what == "settle":
            cache.settle()
        elif what == "seek":
            cache.seek(ref, number)
            handed[ref] = number - 1
        else:
            getattr(cache, what)([ref])
        for each in cache.queues.values():
            assert each.settled <= each.position <= each.next_offset
            assert each.position == handed[each.queue] + 1
        assert cache.count == sum(each.process_queue.count for each in cache.queues.values())
