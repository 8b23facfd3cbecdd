"""Store busy: a disk that is silent for more than a second makes the broker refuse at once (F6).

A second into the silence, sends that still wait are sent away together, and whoever comes now is
refused on arrival, without waiting at all. The first send after the disk is back is stored: the
clock of "busy" stops with the commit, not with a time-out.
"""

from typing import Final

from penstock.demo.scenes.house import House
from penstock.server.faults import FaultOrder
from penstock.wire.rocketmq.codes import RequestCode

HOLD_MS: Final = 2500
PER_SECOND: Final = 300


async def play(house: House) -> None:
    probe = await house.away(house.rocketmq)
    await house.away(lambda: probe.create_topic("orders", 1))
    sender = house.sender("producer", "orders", per_second=PER_SECOND, body_bytes=500)
    await house.wait(1.0)
    house.check("nothing is refused while the disk answers", sender.stored > 0 == sender.refused)
    house.order(FaultOrder("store-hold", ms=HOLD_MS))
    await house.wait(1.8)
    rejected = sender.busy["REJECTREQUEST"]
    page = await house.flow()
    sends = next(each for each in page["requests"] if each["request_class"] == "send")
    house.check(
        "after a second, sends are refused as they come",
        rejected > 0,
        sender.remarks.get("REJECTREQUEST", "-"),
    )
    blamed = page["diagnosis"]
    house.check("the broker blames the log", blamed["kind"] == "log", blamed["sentence"])
    house.check(
        "the flow page counts them by cause",
        sends["refused"].get("busy", 0) > 0,
        f"class send, refused: {sends['refused']}",
    )
    await house.wait(1.5)
    before, refused = sender.stored, sender.refused
    await house.wait(0.5)
    house.check(
        "with the disk the sends go on, and nobody is refused any more",
        sender.stored > before and sender.refused == refused,
    )
    await house.away(sender.stop)
    end = await house.away(
        lambda: probe.offset(RequestCode.GET_MAX_OFFSET, "orders").number("offset")
    )
    house.check(
        "in the log is what was answered SEND_OK, and nothing that was called busy",
        end == sender.stored and not sender.other and not sender.outstanding,
        f"{end:,} stored, {sender.refused:,} busy: {dict(sender.busy)}",
    )
