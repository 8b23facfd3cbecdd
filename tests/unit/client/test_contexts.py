"""``with`` and ``async with``: started on the way in, stopped on the way out."""

import asyncio

import pytest

from penstock.client.contexts import Contexts


class Thing(Contexts):
    def __init__(self):
        self.happened = []

    def start(self):
        self.happened.append("start")

    def stop(self):
        self.happened.append("stop")

    async def start_async(self):
        self.start()

    async def stop_async(self):
        self.stop()


def test_a_thing_runs_inside_of_its_with_statement():
    with Thing() as thing:
        assert thing.happened == ["start"]
    assert thing.happened == ["start", "stop"]


def test_it_is_stopped_after_an_error_which_goes_on():
    thing = Thing()
    with pytest.raises(KeyError), thing:
        raise KeyError
    assert thing.happened == ["start", "stop"]


def test_event_loops_have_the_same():
    async def run():
        async with Thing() as thing:
            assert thing.happened == ["start"]
        assert thing.happened == ["start", "stop"]

    asyncio.run(run())
