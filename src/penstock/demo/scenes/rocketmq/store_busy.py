"""Store busy: a disk that is silent for more than a second makes the broker refuse at once (F6).

A second into the silence, sends that still wait are sent away together, and whoever comes now is
refused on arrival, without waiting at all. The first send after the disk is back is stored: the
clock of "busy" stops with the commit, not with a time-out.
"""

from typing import Any, Final

from penstock.demo.scenes.scene import SLOW_DISK, Blame, Scene
from penstock.server.faults import FaultOrder
from penstock.wire.rocketmq.codes import RequestCode

HOLD_MS: Final = 20_000
"""Long enough for any machine; the hold is ended by hand."""
SECONDS_MAX: Final = 5.0
PER_SECOND: Final = 300


async def play(scene: Scene) -> None:
    probe = await scene.away(scene.rocketmq)
    await scene.away(lambda: probe.create_topic("orders", 1))
    sender = scene.sender("producer", "orders", per_second=PER_SECOND, body_bytes=500)
    await scene.wait(1.0)
    scene.check("nothing is refused while the disk answers", sender.stored > 0 == sender.refused)
    scene.order(FaultOrder("store-hold", ms=HOLD_MS))
    is_refused = await scene.until(lambda: sender.busy["REJECTREQUEST"] > 0, SECONDS_MAX)
    named = Blame("refusing", SLOW_DISK, "log")
    page = await scene.check_answer(
        "the broker blames the log", named, shows=lambda page: bool(_refused(page).get("busy"))
    )
    scene.check(
        "after a second, sends are refused as they come",
        is_refused,
        sender.remarks.get("REJECTREQUEST", "-"),
    )
    scene.check(
        "the flow page counts them by cause",
        _refused(page).get("busy", 0) > 0,
        f"class send, refused: {_refused(page)}",
    )
    before = sender.stored
    scene.order(FaultOrder("clear"))
    await scene.until(lambda: sender.stored > before, SECONDS_MAX)
    await scene.wait(0.5)
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


def _refused(page: dict[str, Any]) -> dict[str, int]:
    """Sends that were refused, by cause."""
    sends = next(each for each in page["requests"] if each["request_class"] == "send")
    refused: dict[str, int] = sends["refused"]
    return refused
