"""Background pulls: when they wait, and what becomes of their answers."""

import asyncio
import functools

import pytest

from kit.client.parts import MemoryOffsetStore
from penstock.client.consumer.lite_reader import LiteReader
from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.options import LitePullOptions
from penstock.client.consumer.pulling import PullResult, PullStatus
from penstock.client.errors import BrokerRefused, TimedOut
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


def found(queue, *offsets, next_offset=None, size=1):
    messages = [
        ReceivedMessage(StoredMessage(topic="t", body=b"x" * size, queue_offset=each), queue)
        for each in offsets
    ]
    after = offsets[-1] + 1 if next_offset is None else next_offset
    return PullResult(queue, PullStatus.FOUND, messages, after, 0, 1000)


class Arrivals(asyncio.Event):
    """Counts them."""

    count = 0

    def set(self):
        self.count += 1
        super().set()


class Bench:
    """Loops whose pulls a test answers."""

    def __init__(self, *, limits=(1000, 1000, 2000), messages_max=10_000):
        self.clock = ManualClock()
        self.asked = []
        options = resolve(LitePullOptions, {"pull_threshold_all": messages_max})
        names = ("pull_threshold_messages", "pull_threshold_bytes", "pull_threshold_span")
        options |= dict(zip(names, limits, strict=True))
        offsets = OffsetTable(MemoryOffsetStore())
        self.reader = LiteReader("g", options, offsets, self.clock, pull=self.pull)
        self.reader._arrival = self.arrivals = Arrivals()
        self.cache = self.reader.cache

    async def pull(self, queue, offset):
        answer = asyncio.get_running_loop().create_future()
        self.asked.append((queue.queue, offset, answer))
        return await answer

    def open(self, ref=A, offset=0):
        return self.reader.open(ref, offset)

    async def answer(self, result):
        _, _, answer = self.asked[-1]
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)
        await turns()

    def offsets_asked(self):
        return [offset for _, offset, _ in self.asked]


async def turns():
    for _ in range(10):
        await asyncio.sleep(0)


@run
async def test_each_answer_is_followed_by_the_next_pull():
    bench = Bench()
    bench.open()
    await turns()
    await bench.answer(found(A, 0, 1))
    await bench.answer(PullResult(A, PullStatus.NO_MATCHED_MESSAGE, [], 9, 0, 9))
    assert bench.offsets_asked() == [0, 2, 9]
    assert bench.arrivals.count == 1


@run
async def test_a_paused_queue_looks_again_after_a_second():
    bench = Bench()
    queue = bench.open()
    bench.cache.pause([A])
    assert bench.reader.look(queue, 5) == 1_000
    bench.cache.resume([A])
    assert bench.reader.look(queue, 5) == 0


@pytest.mark.parametrize(
    ("limits", "offsets", "held"),
    [
        ((2, 1000, 2000), (0, 1), None),
        ((2, 1000, 2000), (0, 1, 2), "messages"),
        ((1000, 20, 2000), (0, 1), None),
        ((1000, 20, 2000), (0, 1, 2), "bytes"),
        ((1000, 1000, 50), (0, 50), None),
        ((1000, 1000, 50), (0, 51), "span"),
    ],
)
def test_a_queue_above_a_limit_looks_again_after_50_ms(limits, offsets, held):
    async def look():
        bench = Bench(limits=limits)
        queue = bench.open()
        await turns()
        await bench.answer(found(A, *offsets, size=10))
        now_ms = bench.clock.monotonic_ms()
        assert bench.reader.look(queue, now_ms) == (50 if held else 0)
        assert [each.threshold.value for each in bench.reader.held(now_ms)] == (
            [held] if held else []
        )
        assert len(bench.asked) == (1 if held else 2)

    asyncio.run(look())


@run
async def test_the_limit_of_all_queues_holds_each_of_them_and_says_since_when():
    bench = Bench(messages_max=3)
    bench.open(A)
    other = bench.open(B)
    await turns()
    bench.asked[0][2].set_result(found(A, 0, 1, 2, 3))
    await turns()
    since_ms = bench.clock.monotonic_ms()
    bench.clock.advance(40)
    assert bench.reader.look(other, bench.clock.monotonic_ms()) == 50
    held = bench.reader.held(bench.clock.monotonic_ms())
    assert [(each.queue, each.limit, each.since_ms, each.held_ms) for each in held] == [
        (A, 3, since_ms, 40),
        (B, 3, since_ms, 40),
    ]


@run
async def test_a_held_queue_is_not_an_idle_one():
    bench = Bench(limits=(1, 0, 0))
    queue = bench.open()
    await turns()
    await bench.answer(found(A, 0, 1))
    bench.clock.advance(119_000)
    bench.reader.look(queue, bench.clock.monotonic_ms())
    bench.clock.advance(119_000)
    assert not queue.is_idle(bench.clock.monotonic_ms())


@run
async def test_a_poll_that_makes_room_wakes_a_held_queue():
    bench = Bench(limits=(4, 0, 0))
    bench.open()
    await turns()
    await bench.answer(found(A, 0, 1, 2, 3, 4))
    assert len(bench.asked) == 1
    bench.cache.take(2)
    bench.reader.took(A)
    await turns()
    assert len(bench.asked) == 1
    bench.cache.take(1)
    bench.reader.took(A)
    await turns()
    assert bench.offsets_asked() == [0, 5]


@pytest.mark.parametrize(
    ("problem", "wait_ms"),
    [
        (BrokerRefused(215, "slow", "b"), 20),
        (BrokerRefused(1, "no", "b"), 1_000),
        (TimedOut("b", 1), 1_000),
    ],
)
def test_flow_control_by_the_broker_is_waited_out_shortly_anything_else_longer(problem, wait_ms):
    assert Bench().reader.delay_after(problem) == wait_ms


@run
async def test_a_failed_pull_is_tried_again_at_the_same_offset():
    bench = Bench()
    queue = bench.open(offset=7)
    await turns()
    await bench.answer(TimedOut("b", 1))
    bench.reader.wake(queue)
    await turns()
    assert bench.offsets_asked() == [7, 7]


@run
async def test_a_seek_abandons_the_pull_under_way():
    bench = Bench()
    bench.open()
    await turns()
    bench.reader.seek(A, 40)
    await turns()
    assert bench.offsets_asked() == [0, 40]
    assert bench.asked[0][2].cancelled()


@run
async def test_an_offset_that_was_removed_is_passed_and_one_beyond_the_end_is_taken_back():
    bench = Bench()
    queue = bench.open(offset=5)
    await turns()
    await bench.answer(PullResult(A, PullStatus.OFFSET_MOVED, [], 30, 30, 40))
    assert queue.position == 30
    await bench.answer(PullResult(A, PullStatus.OFFSET_MOVED, [], 12, 0, 12))
    assert (queue.position, queue.settled) == (12, 12)
    assert bench.offsets_asked() == [5, 30, 12]


def test_a_reset_by_an_operator_is_followed_and_is_no_warning(caplog):
    async def reset():
        bench = Bench()
        queue = bench.open(offset=5)
        await turns()
        await bench.answer(PullResult(A, PullStatus.OFFSET_MOVED, [], 2, 0, 40))
        assert queue.position == 2

    asyncio.run(reset())
    assert not caplog.records


@run
async def test_a_stopped_queue_is_pulled_no_more():
    bench = Bench()
    bench.open()
    await turns()
    await bench.reader.close(A)
    await turns()
    assert bench.asked[0][2].cancelled()
    assert len(bench.asked) == 1
