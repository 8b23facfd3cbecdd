"""Polls and commits of a lite pull consumer."""

import asyncio
import functools

import pytest

from penstock.client.consumer.lite_reader import AutoCommit, LiteReader
from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.options import LitePullOptions
from penstock.client.consumer.pulling import PullResult, PullStatus
from penstock.client.errors import StateError
from penstock.client.message import ReceivedMessage
from penstock.client.options import resolve
from penstock.model.assignment import QueueRef
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.stored import StoredMessage

A = QueueRef("t", "b", 0)
B = QueueRef("t", "b", 1)


def run(test):
    @functools.wraps(test)
    def sync():
        asyncio.run(test())

    return sync


class Store:
    """Offsets of a group."""

    def __init__(self):
        self.offsets = {}

    async def read(self, queue):
        return self.offsets.get(queue)

    async def write(self, offsets):
        self.offsets.update(offsets)
        return list(offsets)


class Bench:
    """A reader of a queue with so many messages."""

    def __init__(self, messages=0, **options):
        self.clock = ManualClock()
        self.store = Store()
        self.messages = messages
        self.more = asyncio.Event()
        self.reader = LiteReader(
            "g",
            resolve(LitePullOptions, options),
            OffsetTable(self.store),
            self.clock,
            pull=self.pull,
        )

    async def pull(self, queue, offset):
        if offset >= self.messages:
            await self.more.wait()
            self.more.clear()
        last = min(offset + 4, self.messages)
        found = [
            ReceivedMessage(StoredMessage(topic="t", queue_offset=each), queue.queue)
            for each in range(offset, last)
        ]
        return PullResult(queue.queue, PullStatus.FOUND, found, last, 0, self.messages)

    async def poll(self, count=None):
        return [message.offset for message in await self.reader.poll(1000, count)]


async def turns():
    for _ in range(10):
        await asyncio.sleep(0)


@run
async def test_a_poll_waits_for_messages():
    bench = Bench()
    bench.reader.open(A, 0)
    polled = asyncio.create_task(bench.poll())
    await turns()
    assert not polled.done()
    bench.messages = 3
    bench.more.set()
    assert await polled == [0, 1, 2]


@run
async def test_a_poll_that_may_not_wait_returns_nothing():
    assert await Bench().reader.poll(0) == []


@run
async def test_a_poll_that_waits_ends_with_the_consumer():
    bench = Bench()
    polled = asyncio.create_task(bench.reader.poll(60_000))
    await turns()
    bench.reader.end_pulls()
    assert await polled == []


@run
async def test_an_automatic_commit_is_made_by_a_poll_after_the_interval():
    bench = Bench(20)
    bench.reader.open(A, 0)
    assert await bench.poll(2) == [0, 1]
    assert await bench.poll(2) == [2, 3]
    await turns()
    assert bench.store.offsets == {}
    bench.clock.advance(5_000)
    await bench.poll(2)
    await turns()
    assert bench.store.offsets == {A: 4}


@run
async def test_nothing_is_stored_by_itself_when_that_is_switched_off():
    bench = Bench(20, is_auto_commit=False)
    bench.reader.open(A, 0)
    await bench.poll(2)
    bench.clock.advance(5_000)
    await bench.poll(2)
    await bench.reader.close(A)
    await bench.reader.stop(is_clean=True, held={})
    assert bench.store.offsets == {}


@run
async def test_a_queue_that_goes_is_stored_up_to_what_earlier_polls_gave():
    bench = Bench(20)
    bench.reader.open(A, 0)
    await bench.poll(2)
    await bench.poll(2)
    await bench.reader.close(A)
    assert bench.store.offsets == {A: 2}
    assert bench.reader.cache.queues == {}


@pytest.mark.parametrize(("is_clean", "stored"), [(True, 4), (False, 2)])
def test_the_end_stores_all_that_was_given_when_it_is_a_peaceful_one(is_clean, stored):
    async def end():
        bench = Bench(20)
        bench.reader.open(A, 0)
        await bench.poll(2)
        await bench.poll(2)
        await bench.reader.stop(is_clean=is_clean, held={})
        return bench.store.offsets[A]

    assert asyncio.run(end()) == stored


@run
async def test_a_commit_leaves_out_what_an_iterator_still_holds():
    bench = Bench(20)
    bench.reader.open(A, 0)
    await bench.poll(4)
    await bench.reader.store(is_user=True, held={A: 1})
    assert bench.store.offsets == {A: 1}


@run
async def test_a_seek_back_may_store_a_lower_offset():
    bench = Bench(20)
    bench.reader.open(A, 0)
    await bench.poll(4)
    await bench.reader.store(is_user=True)
    bench.reader.seek(A, 1)
    await bench.reader.store(is_user=True)
    assert bench.store.offsets == {A: 1}
    assert await bench.poll(2) == [1, 2]


@run
async def test_what_is_not_read_cannot_be_moved():
    reader = Bench().reader
    for call in (lambda: reader.seek(B, 0), lambda: reader.pause([B]), lambda: reader.resume([B])):
        with pytest.raises(StateError, match="not read by consumer 'g' now; it reads none"):
            call()


@run
async def test_figures_show_caches_positions_and_lag():
    bench = Bench(10)
    bench.reader.open(A, 0)
    await bench.poll(1)
    figures = bench.reader.figures()
    (queue,) = figures.queues
    assert (queue.queue, queue.position, queue.lag) == (A, 1, 9)
    assert (figures.polled, figures.cached_messages, figures.held) == (1, 9, [])


def test_an_interval_is_due_once():
    auto = AutoCommit(1_000, 0, is_on=True)
    assert [auto.is_due(at) for at in (999, 1_000, 1_001, 1_999, 2_000)] == [
        False,
        True,
        False,
        False,
        True,
    ]
    assert not AutoCommit(1_000, 0, is_on=False).is_due(99_999)
