"""Tasks beside: errors seen, timers go on, all end together."""

import asyncio
import logging

import pytest

from penstock.client import tasks as module
from penstock.client.errors import StateError
from penstock.client.tasks import Tasks


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
