"""Disk alarm: nothing is free any more, said before a write has failed (F3, D23)."""

from typing import Final

from penstock.cli.scenes.alarm_play import Alarm, play_alarm
from penstock.cli.scenes.house import House
from penstock.server.faults import FaultOrder

DISK: Final = Alarm(FaultOrder("disk", bytes=0), "low on disk", "disk")


async def play(house: House) -> None:
    """Run it."""
    await play_alarm(house, DISK)
