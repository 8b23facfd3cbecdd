"""Memory alarm: the broker says that memory is short, and who publishes hears it (F3, D23)."""

from typing import Final

from penstock.demo.scenes.amqp.alarm_play import Alarm, play_alarm
from penstock.demo.scenes.scene import Scene
from penstock.server.faults import FaultOrder

MEMORY: Final = Alarm(FaultOrder("memory", bytes=1 << 44), "low on memory", "memory")


async def play(scene: Scene) -> None:
    await play_alarm(scene, MEMORY)
