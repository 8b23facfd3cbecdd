"""Threads with event loops: the doors in, the way back, forks."""

import asyncio
import logging
import os
import threading

import pytest

from penstock.client import loop as module
from penstock.client.errors import StateError
from penstock.client.loop import CallRelay, LoopThread, Tasks, client_loop, listener_loop, relay_to


@pytest.fixture
def thread():
    made = LoopThread("test-loop")
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)
    made._thread.join(5)
    made.loop.close()


async def where():
    return threading.current_thread().name


def test_a_coroutine_runs_there_and_its_result_comes_back(thread):
    assert thread.run(where()) == "test-loop"


def test_an_error_comes_back_as_it_is(thread):
    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        thread.run(fail())


def test_a_coroutine_that_takes_too_long_is_cancelled(thread):
    seen = threading.Event()

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            seen.set()

    with pytest.raises(TimeoutError):
        thread.run(wait(), timeout_s=0.01)
    assert seen.wait(5)


def test_waiting_for_oneself_is_refused(thread):
    async def inside():
        assert thread.is_current
        with pytest.raises(StateError, match="_async"):
            thread.run(where())
        return await thread.on(where())

    assert thread.run(inside()) == "test-loop"


def test_a_result_can_be_awaited_on_another_loop(thread):
    async def outside():
        return await thread.on(where())

    assert asyncio.run(outside()) == "test-loop"


def test_posts_run_in_order_and_a_failing_one_is_skipped(thread):
    seen, done = [], threading.Event()
    for number in range(1000):
        thread.post(seen.append, number)
        if number == 500:
            thread.post(lambda: 1 / 0)
    thread.post(done.set)
    assert done.wait(5)
    assert seen == list(range(1000))


def test_many_posts_of_one_turn_are_one_wake_up():
    async def run():
        loop, woken, seen = asyncio.get_running_loop(), [], []
        relay = CallRelay(loop)
        call_soon = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda call: woken.append(call) or call_soon(call)
        for number in range(100):
            relay.post(seen.append, number)
        await asyncio.sleep(0)
        assert seen == list(range(100))
        assert len(woken) == 1

    asyncio.run(run())


def test_results_of_one_turn_of_the_source_wake_the_other_loop_once(thread):
    async def run():
        loop, woken, seen, done = asyncio.get_running_loop(), [], [], asyncio.Event()
        relay = CallRelay(loop, thread)
        call_soon = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda call: woken.append(len(relay._items)) or call_soon(call)

        async def turn():
            for number in range(10):
                relay.post(seen.append, number)
            relay.post(done.set)

        asyncio.run_coroutine_threadsafe(turn(), thread.loop)
        await done.wait()
        assert seen == list(range(10))
        assert woken[0] == 11

    asyncio.run(run())


def test_posts_to_a_closed_loop_are_dropped():
    loop = asyncio.new_event_loop()
    relay = relay_to(loop)
    assert relay_to(loop) is relay
    loop.close()
    for _ in range(3):
        relay.post(print)
        assert len(relay._items) == 0


def test_threads_are_shared_and_daemons():
    assert client_loop() is client_loop()
    assert client_loop() is not listener_loop()
    assert client_loop()._thread.daemon


def test_what_was_made_before_a_fork_is_dead_in_the_child(thread):
    before = client_loop()
    before.run(where())
    child = os.fork()
    if child == 0:
        # Anything but this number fails the test; no exception may leave the child.
        code = 1
        try:
            is_new = client_loop() is not before
            is_working = client_loop().run(where(), 5) == "penstock-client"
            try:
                before.post(print)
            except StateError:
                code = 42 if is_new and is_working else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert client_loop() is before


# ---- tasks --------------------------------------------------------------------------------------
# Tasks beside: errors seen, timers go on, all end together.


def run(test):
    asyncio.run(test())


def test_an_error_is_logged_and_the_task_forgotten(caplog):
    async def test():
        async def fail():
            raise KeyError("x")

        tasks = Tasks()
        task = tasks.spawn(fail(), "failing")
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert len(tasks) == 0

    with caplog.at_level(logging.ERROR):
        run(test)
    assert [each.task for each in caplog.records] == ["failing"]


def test_a_timer_goes_on_after_an_error(caplog):
    async def test():
        tasks, calls, enough = Tasks(), [], asyncio.Event()

        async def call():
            calls.append(1)
            if len(calls) == 3:
                enough.set()
            raise KeyError("x")

        tasks.every("tick", 0, 0, call)
        await enough.wait()
        await asyncio.gather(*tasks.close(), return_exceptions=True)

    with caplog.at_level(logging.CRITICAL):
        run(test)


def test_closing_cancels_all_but_the_caller_and_lets_nobody_in():
    async def test():
        tasks = Tasks()
        other = tasks.spawn(asyncio.Event().wait(), "other")

        async def closer():
            return tasks.close()

        mine = tasks.spawn(closer(), "closer")
        assert await mine == [other]
        with pytest.raises(asyncio.CancelledError):
            await other
        with pytest.raises(StateError, match="late cannot run: the client was stopped"):
            tasks.spawn(asyncio.sleep(0), "late")

    run(test)


def test_the_number_of_tasks_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "TASKS_MAX", 1)

    async def test():
        tasks = Tasks()
        tasks.spawn(asyncio.Event().wait(), "one")
        with pytest.raises(StateError, match="1 tasks"):
            tasks.spawn(asyncio.sleep(0), "two")
        await asyncio.gather(*tasks.close(), return_exceptions=True)

    run(test)
