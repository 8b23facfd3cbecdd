"""Calling listeners on threads and event loops: who is called, what is reported, how it ends."""

import asyncio
import threading

import pytest

from kit.client.parts import received_message
from penstock.client.consumer.executor import (
    ConsumeHooks,
    ConsumeRequest,
    CoroutineExecutor,
    ListenerInvoker,
    ResultKind,
    ThreadExecutor,
)
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.loop import client_loop, listener_loop, relay_to
from penstock.model.assignment import QueueRef

QUEUE = QueueRef("t", "b", 0)
SECONDS = 20
"""A deadline, never reached."""


def batches(count):
    return [[received_message(QUEUE, offset)] for offset in range(count)]


def caller(listener):
    return ListenerInvoker(listener, ConsumeHooks("g"), takes_list=False, timeout_ms=60_000)


class Results:
    """Collects what is reported, and says when enough is there."""

    def __init__(self, wanted):
        self.finished, self._wanted = [], wanted
        self.are_there = threading.Event()

    def __call__(self, work, finished):
        self.finished += finished
        if len(self.finished) >= self._wanted:
            self.are_there.set()


def threads(listener, workers=4):
    return ThreadExecutor(client_loop(), caller(listener), workers, "test")


def coroutines(listener, workers=4):
    relay = relay_to(listener_loop().loop)
    return CoroutineExecutor(client_loop(), caller(listener), workers, relay)


def consume(make, listener, count, *, workers=4):
    """Have a number of messages consumed; returns the results."""
    done = Results(count)
    executor = on_loop(lambda: make(listener, workers))
    on_loop(executor.start)
    on_loop(
        lambda: executor.submit(ConsumeRequest(AssignedQueue(QUEUE, 0, 0), batches(count), done))
    )
    assert done.are_there.wait(SECONDS)
    assert client_loop().run(executor.stop(SECONDS * 1000))
    return done.finished


def on_loop(call):
    async def run():
        return call()

    return client_loop().run(run())


@pytest.mark.parametrize("make", [threads, coroutines])
def test_every_message_is_consumed_and_reported_once(make):
    seen = []

    def listener(message):
        seen.append(message.offset)

    async def coroutine(message):
        listener(message)

    finished = consume(make, listener if make is threads else coroutine, 200)
    assert sorted(seen) == list(range(200))
    assert sorted(each.messages[0].offset for each in finished) == list(range(200))
    assert {each.kind for each in finished} == {ResultKind.SUCCESS}


@pytest.mark.parametrize("make", [threads, coroutines])
def test_a_listener_that_raises_ends_no_worker(make):
    def listener(message):
        if message.offset % 2:
            raise ValueError(message.offset)

    async def coroutine(message):
        listener(message)

    finished = consume(make, listener if make is threads else coroutine, 20, workers=1)
    kinds = {each.messages[0].offset % 2: each.kind for each in finished}
    assert kinds == {0: ResultKind.SUCCESS, 1: ResultKind.EXCEPTION}


def test_others_go_on_with_a_work_in_which_one_worker_is_stuck():
    release = threading.Event()

    def listener(message):
        if message.offset == 0:
            assert release.wait(SECONDS)

    executor = on_loop(lambda: threads(listener, workers=2))
    done = Results(9)
    assigned = AssignedQueue(QUEUE, 0, 0)
    on_loop(executor.start)
    on_loop(lambda: executor.submit(ConsumeRequest(assigned, batches(10), done)))
    assert done.are_there.wait(SECONDS), "the nine others are reported while one runs"
    (running,) = on_loop(executor.running)
    assert running.batch[0].offset == 0
    release.set()
    assert client_loop().run(executor.stop(SECONDS * 1000))
    assert len(done.finished) == 10


def test_results_before_a_long_call_are_reported_while_it_runs():
    release = threading.Event()

    def listener(message):
        if message.offset == 1:
            assert release.wait(SECONDS)

    executor = on_loop(lambda: threads(listener, workers=1))
    done = Results(1)
    on_loop(executor.start)
    on_loop(lambda: executor.submit(ConsumeRequest(AssignedQueue(QUEUE, 0, 0), batches(2), done)))
    assert done.are_there.wait(SECONDS)
    assert [each.messages[0].offset for each in done.finished] == [0]
    release.set()
    assert client_loop().run(executor.stop(SECONDS * 1000))


def test_messages_of_a_dropped_queue_are_not_consumed():
    seen = []
    executor = on_loop(lambda: threads(seen.append, workers=1))
    dropped, other = AssignedQueue(QUEUE, 0, 0), AssignedQueue(QUEUE, 0, 0)
    dropped.drop()
    done = Results(1)
    on_loop(executor.start)
    on_loop(lambda: executor.submit(ConsumeRequest(dropped, batches(3), done)))
    on_loop(lambda: executor.submit(ConsumeRequest(other, batches(1), done)))
    assert done.are_there.wait(SECONDS)
    assert len(seen) == 1
    assert client_loop().run(executor.stop(SECONDS * 1000))


@pytest.mark.parametrize("make", [threads, coroutines])
def test_stopping_waits_for_running_calls_only_as_long_as_it_may(make):
    entered, release = threading.Event(), threading.Event()

    def listener(_):
        entered.set()
        assert release.wait(SECONDS)

    async def coroutine(_):
        entered.set()
        await asyncio.get_running_loop().run_in_executor(None, release.wait, SECONDS)

    executor = on_loop(lambda: make(listener if make is threads else coroutine, 1))
    done = Results(1)
    on_loop(executor.start)
    on_loop(lambda: executor.submit(ConsumeRequest(AssignedQueue(QUEUE, 0, 0), batches(5), done)))
    assert entered.wait(SECONDS)
    assert not client_loop().run(executor.stop(10))
    release.set()


def test_a_function_that_stops_its_own_workers_is_not_waited_for():
    ended, done = [], Results(1)

    def stop(_):
        ended.append(client_loop().run(executor.stop(SECONDS * 1000)))

    executor = on_loop(lambda: threads(stop))
    on_loop(executor.start)
    on_loop(lambda: executor.submit(ConsumeRequest(AssignedQueue(QUEUE, 0, 0), batches(1), done)))
    assert done.are_there.wait(SECONDS / 2)
    assert ended == [True]
    assert on_loop(executor.current_call) is None


def test_a_coroutine_that_stops_its_own_workers_is_not_waited_for():
    ended, done = [], Results(1)

    async def stop(_):
        ended.append(await client_loop().on(executor.stop(SECONDS * 1000)))

    executor = on_loop(lambda: coroutines(stop))
    on_loop(executor.start)
    on_loop(lambda: executor.submit(ConsumeRequest(AssignedQueue(QUEUE, 0, 0), batches(1), done)))
    assert done.are_there.wait(SECONDS / 2)
    assert ended == [True]


def test_coroutines_run_on_the_loop_they_were_given():
    loops = set()

    async def listener(_):
        loops.add(asyncio.get_running_loop())

    async def main():
        relay = relay_to(asyncio.get_running_loop())
        home, done = client_loop(), Results(3)
        executor = CoroutineExecutor(home, caller(listener), 2, relay)
        executor.start()
        home.post(executor.submit, ConsumeRequest(AssignedQueue(QUEUE, 0, 0), batches(3), done))
        assert await asyncio.to_thread(done.are_there.wait, SECONDS)
        await home.on(executor.stop(SECONDS * 1000))
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(main())
