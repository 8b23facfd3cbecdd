"""Keeping the Flight process: what is run, and when it is tried again."""

import asyncio
import sys
from pathlib import Path

from penstock.server.flight import FlightProcess, command_of


class Pauses:
    """Notes pauses instead of making them; the process is stopped after so many."""

    def __init__(self, count):
        self.seconds = []
        self.is_enough = asyncio.Event()
        self._count = count

    async def __call__(self, seconds):
        self.seconds.append(seconds)
        if len(self.seconds) >= self._count:
            self.is_enough.set()
            await asyncio.Event().wait()


async def deaths(command, count, restart_ms_max=1000):
    pauses = Pauses(count)
    process = FlightProcess(command, restart_ms_max=restart_ms_max, sleep=pauses)
    process.start()
    await asyncio.wait_for(pauses.is_enough.wait(), 20)
    await process.stop()
    return process, pauses.seconds


def test_a_process_that_dies_at_once_is_tried_again_ever_later():
    process, pauses = asyncio.run(deaths([sys.executable, "-S", "-c", "exit(3)"], 5))
    assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert process.deaths == process.starts == 5


def test_a_command_that_cannot_be_run_is_tried_again():
    process, pauses = asyncio.run(deaths(["/no/such/program"], 2))
    assert pauses == [0.2, 0.4]
    assert process.starts == 0


def test_a_process_that_runs_ends_when_it_is_stopped():
    async def run():
        process = FlightProcess(["sleep", "60"], restart_ms_max=1000)
        process.start()
        while process.pid is None:
            await asyncio.sleep(0.001)
        await process.stop()
        return process

    assert asyncio.run(run()).pid is None


def test_a_process_that_is_stopped_while_it_is_being_started_ends_too(monkeypatch):
    born = []
    create = asyncio.create_subprocess_exec

    async def slowly(*command, **streams):
        born.append(await create(*command, **streams))
        await asyncio.sleep(0)
        return born[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)

    async def run():
        process = FlightProcess(["sleep", "60"], restart_ms_max=1000)
        process.start()
        while not born:
            await asyncio.sleep(0)
        await process.stop()
        return process

    assert asyncio.run(run()).pid is None
    assert born[0].returncode is not None


def test_every_address_that_the_broker_has_is_one_of_the_process():
    command = command_of(Path("/d"), ["127.0.0.1", "::1"], 1)
    assert command[-4:] == ["--host", "127.0.0.1", "--host", "::1"]
