"""Store busy (F6) and the write-buffer pool (F7)."""

import pytest

from penstock.flow.buffer_pool import BufferPool
from penstock.flow.store_busy import StoreBusy


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
