"""The bulk lane's part of a start: the port, and what is said without Arrow."""

import asyncio
import sys
from pathlib import Path

import pytest

from penstock.model.errors import StartRefused
from penstock.server import flight
from penstock.server.flight import FlightProcess, command_of
from penstock.server.lifecycle import ResourceLimits, banner_lines
from penstock.server.listener import open_sockets
from penstock.settings.broker import ListenerSettings
from penstock.settings.load import Settings


def lane(port, monkeypatch, *, is_arrow_there=True):
    monkeypatch.setattr(flight, "is_arrow_there", lambda: is_arrow_there)
    made = flight.BulkLane(Settings(listeners=ListenerSettings(flight=port)))
    try:
        made.reserve()
    finally:
        made.close()
    return made


def test_a_free_port_is_known_before_the_process_runs(monkeypatch):
    assert int(lane("0", monkeypatch).endpoint.removeprefix("127.0.0.1:")) > 0


def test_off_means_no_process(monkeypatch):
    made = lane("off", monkeypatch)
    assert (made.endpoint, made.is_missing) == ("", False)


def test_a_taken_port_is_told_at_the_start(monkeypatch):
    with open_sockets("other", ["127.0.0.1"], 0)[0] as taken:
        taken.listen()
        with pytest.raises(StartRefused, match="flight"):
            lane(str(taken.getsockname()[1]), monkeypatch)


def test_without_arrow_one_line_says_how_to_get_it(monkeypatch, caplog, tmp_path):
    made = lane("0", monkeypatch, is_arrow_there=False)
    assert (made.endpoint, made.is_missing) == ("", True)
    assert "pip install 'penstock-broker[spark]'" in caplog.text
    lines = banner_lines(
        Settings(),
        tmp_path,
        {},
        ResourceLimits(1, 1, 1, 1),
        start_seconds=0.1,
        is_arrow_missing=True,
    )
    assert "flight" in lines[1]
    assert "pip install" in lines[1]


# ---- flight -------------------------------------------------------------------------------------
# Keeping the Flight process: what is run, and when it is tried again.


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
    command = command_of(Path("/d"), ["127.0.0.1", "::1"], 1, idle_ms_max=1, stage_hold_ms_max=2)
    assert command[-4:] == ["--host", "127.0.0.1", "--host", "::1"]
