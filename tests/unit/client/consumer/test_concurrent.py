"""Concurrent consumption: what follows from results, without threads, network or time."""

import asyncio

import pytest

from kit.client.parts import (
    ManualExecutor,
    ManualRuntime,
    MemoryOffsetStore,
    calm,
    received_message,
)
from penstock.client.consumer.concurrent import (
    ConsumeMessageConcurrentlyService,
    failures_of,
)
from penstock.client.consumer.executor import (
    ConsumeRequest,
    ConsumeResult,
    Finished,
    Later,
    ResultKind,
    Running,
    Suspend,
    batches_of,
    direct_result,
)
from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.model.assignment import QueueRef

QUEUE = QueueRef("t", "b", 0)


class Back:
    """A broker that takes messages back, or not."""

    def __init__(self):
        self.taken, self.is_reachable = [], True

    async def give_back(self, message, delay_level=0):
        if self.is_reachable:
            self.taken.append((message.offset, delay_level))
        return self.is_reachable


class Bench:
    """A service with everything around it in the test's hands."""

    def __init__(self, *, broadcasting=False, **options):
        self.runtime = ManualRuntime()
        self.executor = ManualExecutor()
        self.offsets = OffsetTable(MemoryOffsetStore())
        self.statistics = ConsumerStatistics()
        self.back = Back()
        self.service = ConsumeMessageConcurrentlyService(
            self.runtime,
            self.executor,
            self.offsets,
            self.statistics,
            give_back=None if broadcasting else self.back,
            **options,
        )
        self.assigned = AssignedQueue(QUEUE, 0, 0)

    def pulled(self, *offsets):
        messages = [received_message(QUEUE, offset) for offset in offsets]
        self.assigned.process_queue.put(messages)
        self.service.submit(self.assigned, messages)
        return messages

    def end(self, work, *calls):
        """Calls of a work end: (offset, answer or error)."""
        finished = []
        for offset, answer in calls:
            batch = next(b for b in work.batches if b[0].offset == offset)
            work.batches.remove(batch)
            finished.append(ended(batch, answer))
        work.done(work, finished)

    @property
    def work(self):
        return self.executor.works[-1]

    @property
    def figures(self):
        return self.statistics.figures(self.runtime.monotonic_ms())["t"]

    @property
    def committed(self):
        return self.offsets.get(QUEUE)


def ended(batch, answer=None):
    error = answer if isinstance(answer, Exception) else None
    kind = ResultKind.EXCEPTION if error else ResultKind.SUCCESS
    if answer is ConsumeResult.LATER or isinstance(answer, Later):
        kind = ResultKind.LATER
    return Finished(batch, None if error else answer, error, kind, 1.0)


def test_a_pull_is_one_work_of_batches():
    messages = [received_message(QUEUE, offset) for offset in range(5)]
    assert [len(each) for each in batches_of(messages, 1)] == [1] * 5
    assert [len(each) for each in batches_of(messages, 2)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        (None, []),
        (ConsumeResult.SUCCESS, []),
        (ConsumeResult.LATER, [(0, 0), (1, 0), (2, 0)]),
        (ValueError(), [(0, 0), (1, 0), (2, 0)]),
        (Later(delay_level=4), [(0, 4), (1, 4), (2, 4)]),
        (Later(done=2), [(2, 0)]),
        (Later(done=-1), [(0, 0), (1, 0), (2, 0)]),
        (Later(done=9), []),
    ],
)
def test_which_messages_of_a_batch_failed(answer, failed):
    batch = [received_message(QUEUE, offset) for offset in range(3)]
    found = failures_of(ended(batch, answer))
    assert [(each.message.offset, each.delay_level) for each in found] == failed


def test_the_lowest_unsettled_offset_is_noted():
    bench = Bench()
    bench.pulled(0, 1, 2)
    bench.end(bench.work, (1, None))
    assert bench.committed == 0
    bench.end(bench.work, (0, None), (2, ConsumeResult.SUCCESS))
    assert bench.committed == 3
    assert bench.figures.results[ResultKind.SUCCESS] == 3


def test_a_failed_message_is_settled_when_a_broker_has_it():
    async def scene():
        bench = Bench()
        bench.pulled(0, 1)
        bench.end(bench.work, (0, ValueError("no")), (1, None))
        assert bench.committed == 0
        await calm()
        assert bench.back.taken == [(0, 0)]
        assert bench.committed == 2
        assert bench.figures.sent_back == 1

    asyncio.run(scene())


def test_what_no_broker_takes_is_tried_again_here_after_five_seconds_and_never_committed():
    async def scene():
        bench = Bench()
        bench.back.is_reachable = False
        (message,) = bench.pulled(0)
        bench.end(bench.work, (0, ConsumeResult.LATER))
        await bench.runtime.advance(4_999)
        assert len(bench.executor.works) == 1
        assert (bench.committed, message.reconsume_times) == (0, 1)
        await bench.runtime.advance(1)
        assert len(bench.executor.works) == 2
        bench.end(bench.work, (0, None))
        assert bench.committed == 1
        assert bench.figures.retried_locally == 1

    asyncio.run(scene())


def test_a_local_retry_of_a_dropped_queue_does_not_happen():
    async def scene():
        bench = Bench()
        bench.back.is_reachable = False
        bench.pulled(0)
        bench.end(bench.work, (0, ConsumeResult.LATER))
        await calm()
        bench.assigned.drop()
        await bench.runtime.advance(10_000)
        assert len(bench.executor.works) == 1

    asyncio.run(scene())


def test_broadcasting_drops_what_failed(caplog):
    bench = Bench(broadcasting=True)
    bench.pulled(0, 1)
    bench.end(bench.work, (0, ValueError()), (1, None))
    assert bench.committed == 2
    assert "dropped" in caplog.text


def test_results_of_a_dropped_queue_change_nothing():
    async def scene():
        bench = Bench()
        bench.pulled(0, 1)
        bench.end(bench.work, (0, None))
        bench.assigned.drop()
        bench.end(bench.work, (1, ValueError()))
        await calm()
        assert bench.committed == 1
        assert bench.back.taken == []
        assert await bench.service.dropped(bench.assigned)

    asyncio.run(scene())


def test_a_queue_dropped_while_its_messages_are_given_back_gives_back_no_more():
    async def scene():
        bench = Bench()
        bench.pulled(0, 1)
        real = bench.back.give_back

        async def drop_then_take(message, delay_level=0):
            bench.assigned.drop()
            return await real(message, delay_level)

        bench.back.give_back = drop_then_take
        bench.end(bench.work, (0, ConsumeResult.LATER), (1, ConsumeResult.LATER))
        await calm()
        assert bench.back.taken == [(0, 0)]
        assert bench.committed == 0

    asyncio.run(scene())


def test_part_of_a_batch_may_be_done():
    async def scene():
        bench = Bench(consume_batch=3)
        bench.pulled(0, 1, 2)
        bench.end(bench.work, (0, Later(delay_level=2, done=2)))
        assert bench.committed == 2
        await calm()
        assert bench.back.taken == [(2, 2)]
        assert bench.committed == 3

    asyncio.run(scene())


def test_a_call_that_takes_too_long_loses_its_messages_to_the_broker():
    async def scene():
        bench = Bench(consume_timeout_ms=1_000)
        bench.pulled(0, 1)
        slow, fast = bench.work.batches
        bench.executor.running = lambda: [
            Running(bench.work, slow, 10.0),
            Running(bench.work, fast, 10.9),
        ]
        assert bench.service.sweep(11.0) == 1
        await calm()
        assert bench.back.taken == [(0, 3)]
        assert bench.committed == 1
        # Its answer in the end changes nothing, and it is not given back twice.
        bench.end(bench.work, (0, ValueError()))
        await calm()
        assert bench.back.taken == [(0, 3)]

    asyncio.run(scene())


def test_a_timed_out_message_that_cannot_be_given_back_stays_until_the_next_sweep():
    async def scene():
        bench = Bench(consume_timeout_ms=1_000)
        bench.back.is_reachable = False
        bench.pulled(0)
        (slow,) = bench.work.batches
        bench.executor.running = lambda: [Running(bench.work, slow, 0.0)]
        assert bench.service.sweep(5.0) == 1
        await calm()
        assert bench.assigned.process_queue.count == 1
        assert len(bench.executor.works) == 1
        assert bench.service.sweep(6.0) == 1
        await bench.runtime.close()

    asyncio.run(scene())


def test_settling_wakes_a_pull_loop_that_waits_for_room():
    bench = Bench()
    woken = []
    bench.assigned.wake = lambda: woken.append(bench.assigned.process_queue.count)
    bench.pulled(0, 1)
    bench.end(bench.work, (0, None))
    assert woken == [1]


def test_a_direct_call_settles_nothing_and_says_what_came_of_it():
    async def scene():
        bench = Bench()
        asked = asyncio.create_task(bench.service.consume_directly(received_message(QUEUE, 9)))
        await calm()
        bench.executor.answer(None, ValueError("bad"))
        outcome = await asked
        assert (outcome["consumeResult"], outcome["order"]) == ("CR_THROW_EXCEPTION", False)
        assert bench.committed is None

    asyncio.run(scene())


def test_after_stop_nothing_is_consumed():
    async def scene():
        bench = Bench()
        bench.service.start()
        await bench.service.stop(100)
        bench.pulled(0)
        assert bench.executor.is_stopped
        assert bench.executor.works == []

    asyncio.run(scene())


def test_a_work_knows_its_queue():
    work = ConsumeRequest(
        AssignedQueue(QUEUE, 0, 0), [[received_message(QUEUE, 0)]], lambda *_: None
    )
    assert work.assigned.queue == QUEUE


# ---- direct consume -----------------------------------------------------------------------------
# Outcomes of a message consumed on an operator's order.


def finished(answer=None, error=None):
    return Finished([], answer, error, ResultKind.SUCCESS, 12.7)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "CR_SUCCESS"),
        (ConsumeResult.SUCCESS, "CR_SUCCESS"),
        (ConsumeResult.LATER, "CR_LATER"),
        (Later(2), "CR_LATER"),
        (ConsumeResult.SUSPEND, "CR_LATER"),
        (Suspend(20), "CR_LATER"),
        (ConsumeResult.COMMIT, "CR_COMMIT"),
        (ConsumeResult.ROLLBACK, "CR_ROLLBACK"),
    ],
)
def test_answers_have_rocketmqs_names(answer, expected):
    assert direct_result(finished(answer), is_ordered=True)["consumeResult"] == expected


def test_an_exception_is_told_with_its_text():
    outcome = direct_result(finished(error=KeyError("no such order")), is_ordered=False)
    assert outcome == {
        "order": False,
        "autoCommit": True,
        "consumeResult": "CR_THROW_EXCEPTION",
        "remark": "KeyError: 'no such order'",
        "spentTimeMills": 12,
    }


def test_a_long_text_is_cut():
    outcome = direct_result(finished(error=ValueError("x" * 5_000)), is_ordered=False)
    assert len(outcome["remark"]) == 1_000
