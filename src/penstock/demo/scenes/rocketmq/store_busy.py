"""Store busy: a disk that is silent for more than a second makes the broker refuse at once (F6).

A second into the silence, sends that still wait are sent away together, and whoever comes now is
refused on arrival, without waiting at all. The first send after the disk is back is stored: the
clock of "busy" stops with the commit, not with a time-out.
"""

from typing import Final

from penstock.demo.scenes.scene import Scene
from penstock.server.faults import FaultOrder
from penstock.wire.rocketmq.codes import RequestCode

HOLD_MS: Final = 2500
PER_SECOND: Final = 300


async def play(scene: Scene) -> None:
    probe = await scene.away(scene.rocketmq)
    await scene.away(lambda: probe.create_topic("orders", 1))
    sender = scene.sender("producer", "orders", per_second=PER_SECOND, body_bytes=500)
    await scene.wait(1.0)
    scene.check("nothing is refused while the disk answers", sender.stored > 0 == sender.refused)
    scene.order(FaultOrder("store-hold", ms=HOLD_MS))
    await scene.wait(1.8)
    rejected = sender.busy["REJECTREQUEST"]
    page = await scene.flow()
    sends = next(each for each in page["requests"] if each["request_class"] == "send")
    scene.check(
        "after a second, sends are refused as they come",
        rejected > 0,
        sender.remarks.get("REJECTREQUEST", "-"),
    )
    scene.check_answer("the broker blames the log", page, "refusing", "slow", "log")
    scene.check(
        "the flow page counts them by cause",
        sends["refused"].get("busy", 0) > 0,
        f"class send, refused: {sends['refused']}",
    )
    await scene.wait(1.5)
    before, refused = sender.stored, sender.refused
    await scene.wait(0.5)
    scene.check(
        "with the disk the sends go on, and nobody is refused any more",
        sender.stored > before and sender.refused == refused,
    )
    await scene.away(sender.stop)
    end = await scene.away(
        lambda: probe.offset(RequestCode.GET_MAX_OFFSET, "orders").number("offset")
    )
    scene.check(
        "in the log is what was answered SEND_OK, and nothing that was called busy",
        end == sender.stored and not sender.other and not sender.outstanding,
        f"{end:,} stored, {sender.refused:,} busy: {dict(sender.busy)}",
    )
