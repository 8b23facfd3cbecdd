"""Fast failure: the disk stops for 0.9 s at a time; nobody waits longer than 200 ms (F5, D24).

Sends wait between decoding and the log while the log takes nothing. One that has waited for 200 ms
is answered "busy" with how long and how many, before anything of it is stored. Other classes of
requests have limits of their own: heartbeats go on as if nothing had happened.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

from penstock.cli.remoting import RemotingClient
from penstock.demo.scenes.scene import Blame, Scene
from penstock.server.faults import FaultOrder
from penstock.wire.rocketmq.codes import RequestCode

HOLD_MS: Final = 900
PER_SECOND: Final = 400
AGE_MS_MAX: Final = 200
SLACK_MS: Final = 400
"""For a busy machine between the sweep and the ears of the producer."""


async def play(scene: Scene) -> None:
    probe = await scene.away(scene.rocketmq)
    await scene.away(lambda: probe.create_topic("orders", 1))
    sender = scene.sender("producer", "orders", per_second=PER_SECOND, body_bytes=500)
    await scene.wait(1.0)
    scene.check("sends are stored while the disk answers", sender.stored > 0 == sender.refused)
    async with _stopping(scene):
        slowest_ms = await scene.away(lambda: _beat(probe, HOLD_MS / 1000))
        await scene.check_answer("the broker names the log", Blame("refusing", "busy", "log"))
    await scene.wait(1.0)
    before = sender.stored
    await scene.wait(0.5)
    scene.check("sends are stored again when it does", sender.stored > before)
    await scene.away(sender.stop)
    end = await scene.away(
        lambda: probe.offset(RequestCode.GET_MAX_OFFSET, "orders").number("offset")
    )
    word = "TIMEOUT_CLEAN_QUEUE"
    scene.check(
        "sends that waited too long were told so in RocketMQ's words",
        sender.busy[word] > 0,
        sender.remarks.get(word, "-"),
    )
    scene.check(
        f"nobody waited much longer than {AGE_MS_MAX} ms for it",
        0 < sender.slowest_busy_ms < AGE_MS_MAX + SLACK_MS,
        f"slowest busy answer {sender.slowest_busy_ms:.0f} ms",
    )
    scene.check("heartbeats did not notice", slowest_ms < 300, f"slowest {slowest_ms:.0f} ms")
    scene.check(
        "in the log is what was answered SEND_OK, and nothing that was called busy",
        end == sender.stored and not sender.other and not sender.outstanding,
        f"{end:,} stored, {sender.stored:,} answered SEND_OK, {sender.refused:,} busy",
    )


@contextlib.asynccontextmanager
async def _stopping(scene: Scene) -> AsyncIterator[None]:
    """The disk stops, and again after a while: what is told of it lasts as long as somebody looks.

    Each time for less than a second: from then on it would be "store busy", another mechanism.
    """

    async def stop() -> None:
        while True:
            scene.order(FaultOrder("store-hold", ms=HOLD_MS))
            await scene.wait(2 * HOLD_MS / 1000)

    stops = asyncio.create_task(stop())
    try:
        yield
    finally:
        stops.cancel()
        scene.order(FaultOrder("clear"))


def _beat(client: RemotingClient, seconds: float) -> float:
    """Heartbeats for a while; how long the slowest took, in milliseconds."""
    slowest, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        client.heartbeat(producers=("producers",))
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.02)
    return slowest * 1000
