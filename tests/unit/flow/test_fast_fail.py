"""Fast failure (F5)."""

import pytest

from penstock.flow.budgets import BufferPool
from penstock.flow.fast_fail import (
    REQUEST_CLASSES,
    BusyCause,
    FastFailQueues,
    RequestClass,
    StoreBusy,
)
from penstock.model.refusal import RefusalKind

SEND = RequestClass("send", 200, 4)
PULL = RequestClass("pull", 5000, 4)


@pytest.fixture
def queues():
    return FastFailQueues((SEND, PULL))


def test_requests_are_taken_in_order_of_arrival_within_a_key(queues):
    for name in "abc":
        assert queues.offer("send", "orders", name, 0) is None
    assert queues.take("send", 2) == ["a", "b"]
    assert queues.take("send", 9) == ["c"]
    assert queues.take("send", 9) == []


def test_a_flooding_topic_waits_behind_itself(queues):
    for name in ("flood1", "flood2", "flood3"):
        queues.offer("send", "flood", name, 0)
    queues.offer("send", "quiet", "quiet1", 1)
    assert queues.take("send", 2) == ["flood1", "quiet1"]


def test_the_round_goes_on_where_it_stopped(queues):
    for key, name in (("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2")):
        queues.offer("send", key, name, 0)
    taken = [queues.take("send", 1) for _ in range(4)]
    assert taken == [["a1"], ["b1"], ["a2"], ["b2"]]


def test_a_full_class_refuses_at_arrival_and_other_classes_do_not_care(queues):
    for name in range(4):
        queues.offer("send", "orders", name, 0)
    refusal = queues.offer("send", "other", "late", 5)
    assert (refusal.kind, refusal.cause) == (RefusalKind.BUSY, BusyCause.OVERLOAD)
    assert (refusal.request_class, refusal.waited_ms, refusal.queued) == ("send", 0, 4)
    assert queues.offer("pull", "orders", "pull", 5) is None


def test_what_waited_too_long_is_refused_with_class_age_and_size(queues):
    queues.offer("send", "a", "old", 0)
    queues.offer("send", "b", "young", 150)
    queues.offer("pull", "a", "pull", 0)
    assert queues.sweep(199) == []
    [(request, busy)] = queues.sweep(213)
    assert request == "old"
    assert (busy.cause, busy.waited_ms, busy.queued) == (BusyCause.AGE, 213, 2)
    assert "send" in busy.text
    assert "waited 213 ms, limit 200 ms" in busy.text
    assert "2 waiting" in busy.text
    assert queues.take("send", 9) == ["young"]
    assert queues.count("pull") == 1


def test_a_request_is_refused_at_its_limit_not_after_it(queues):
    queues.offer("send", "a", "x", 100)
    assert queues.next_deadline_ms == 300
    assert len(queues.sweep(300)) == 1
    assert queues.next_deadline_ms is None


def test_a_busy_store_drains_its_class_only(queues):
    queues.offer("send", "a", "x", 0)
    queues.offer("send", "b", "y", 40)
    queues.offer("pull", "a", "pull", 0)
    drained = queues.drain("send", 50)
    assert [(request, busy.waited_ms, busy.queued) for request, busy in drained] == [
        ("x", 50, 2),
        ("y", 10, 1),
    ]
    assert {busy.cause for _, busy in drained} == {BusyCause.STORE}
    assert (queues.count("send"), queues.count("pull")) == (0, 1)
    assert queues.refused("send")[BusyCause.STORE] == 2


def test_a_taken_request_is_never_refused(queues):
    queues.offer("send", "a", "x", 0)
    queues.take("send", 1)
    assert queues.sweep(10_000) == []
    assert queues.drain("send", 10_000) == []


def test_the_oldest_wait_is_known(queues):
    assert queues.age_ms("send", 70) == 0
    queues.offer("send", "a", "x", 10)
    queues.offer("send", "b", "y", 20)
    queues.take("send", 1)
    assert queues.age_ms("send", 70) == 50
    assert not queues.is_empty
    queues.take("send", 1)
    assert queues.is_empty


def test_the_arrival_order_does_not_grow_behind_an_old_request():
    queues = FastFailQueues((RequestClass("send", 10_000, 1000),))
    for name in range(500):
        queues.offer("send", "old", name, 0)
    queues.take("send", 1)
    for name in range(5000):
        queues.offer("send", f"k{name}", name, 1)
        queues.take("send", 1)
    held = queues._classes["send"]
    assert len(held._arrivals) <= 2 * held.count + 65


def test_the_shipped_classes_are_rocketmqs():
    ages = {each.name: (each.age_ms_max, each.capacity) for each in REQUEST_CLASSES}
    assert ages["send"] == (200, 10_000)
    assert ages["heartbeat"] == (31_000, 50_000)
    assert ages["pull"] == (5_000, 100_000)


# ---- store busy ---------------------------------------------------------------------------------
# Store busy (F6) and the write-buffer pool (F7).


def test_a_commit_is_busy_only_past_its_limit():
    busy = StoreBusy(1000)
    busy.commit_started(500)
    assert not busy.is_busy(1500)
    assert busy.is_busy(1501)
    assert busy.since_ms(1501) == 500
    assert busy.busy_ms(1501) == 1001
    assert busy.next_deadline_ms() == 1500
    busy.commit_ended(1600)
    assert not busy.is_busy(1601)
    assert (busy.since_ms(1601), busy.busy_ms(1601), busy.episodes) == (None, 0, 1)


def test_a_quick_commit_is_no_episode():
    busy = StoreBusy(1000)
    for at in range(0, 5000, 100):
        busy.commit_started(at)
        busy.commit_ended(at + 100)
    assert busy.episodes == 0
    assert busy.next_deadline_ms() is None


def test_starting_again_while_one_runs_keeps_the_first_start():
    busy = StoreBusy(1000)
    busy.commit_started(0)
    busy.commit_started(900)
    assert busy.is_busy(1001)


def test_a_refused_write_is_busy_for_a_while_and_then_tried_again():
    busy = StoreBusy(1000)
    busy.append_failed(100)
    assert busy.is_busy(100)
    assert busy.is_busy(1099)
    assert not busy.is_busy(1100)
    busy.append_failed(1100)
    assert busy.is_busy(1101)
    busy.append_succeeded()
    assert not busy.is_busy(1101)


def test_buffers_are_counted_in_unsynced_bytes():
    pool = BufferPool(5, 100)
    assert (pool.free_buffers, pool.free_bytes) == (5, 500)
    pool.appended(1)
    assert pool.free_buffers == 4
    pool.appended(399)
    assert (pool.free_buffers, pool.free_bytes) == (1, 100)
    pool.durable(400)
    assert pool.free_buffers == 5


@pytest.mark.parametrize(
    ("unsynced", "waiting", "size", "fits"),
    [
        (0, 0, 500, True),
        (0, 0, 100_000, True),  # an empty pool takes anything
        (1, 0, 499, True),
        (1, 0, 500, False),
        (0, 1, 500, False),
        (300, 100, 100, True),
        (300, 100, 101, False),
    ],
)
def test_an_append_fits_beside_what_is_unsynced_and_waiting(unsynced, waiting, size, fits):
    pool = BufferPool(5, 100)
    pool.appended(unsynced)
    assert pool.can_take(size, waiting) is fits


def test_a_pool_can_shrink_below_what_is_unsynced():
    pool = BufferPool(5, 100)
    pool.appended(450)
    pool.resize(2, 100)
    assert (pool.free_buffers, pool.free_bytes) == (0, 0)
    with pytest.raises(ValueError, match="0 buffers"):
        pool.resize(0, 100)
