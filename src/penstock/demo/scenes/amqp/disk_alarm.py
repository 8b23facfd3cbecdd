"""Disk alarm: nothing is free any more, said before a write has failed (F3, D23)."""

from typing import Final

from penstock.demo.scenes.amqp.alarm_play import Alarm, play_alarm
from penstock.demo.scenes.scene import Scene
from penstock.server.faults import FaultOrder

DISK: Final = Alarm(FaultOrder("disk", bytes=0), "low on disk", "disk")


async def play(scene: Scene) -> None:
    await play_alarm(scene, DISK)
