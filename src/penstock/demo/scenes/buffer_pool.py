"""Buffer pool: bytes that the disk does not have yet fill the write buffers, and no more (F7).

The broker of this scene has two buffers of 512 KiB and a disk that takes 400 ms for each sync. A
producer with large messages fills them in no time; from then on it is refused, although memory is
plentiful and the store is not "busy" yet. Bytes waiting never exceed the pool.
"""

from typing import Final

from penstock.demo.scenes.house import House
from penstock.model.ids import size_text
from penstock.server.faults import FaultOrder
from penstock.wire.rocketmq.codes import RequestCode

SETTINGS: Final = {
    "storage.write_buffers_max": "2",
    "storage.write_buffer_bytes": "512KiB",
}
POOL_BYTES: Final = 2 * 512 * 1024
PER_SECOND: Final = 200
BODY_BYTES: Final = 20_000


async def play(house: House) -> None:
    probe = await house.away(house.rocketmq)
    await house.away(lambda: probe.create_topic("pictures", 1))
    sender = house.sender("producer", "pictures", per_second=PER_SECOND, body_bytes=BODY_BYTES)
    await house.wait(1.0)
    house.check("nothing is refused while the disk keeps up", sender.stored > 0 == sender.refused)
    house.order(FaultOrder("sync-delay", ms=400))
    most = 0
    for _ in range(20):
        await house.wait(0.1)
        most = max(most, house.broker.engine.unsynced_bytes)
    refused = sender.refused
    house.check(
        "a slow disk fills the buffers and the producer is told",
        refused > 0,
        f"{refused} busy: {next(iter(sender.remarks.values()), '-')}",
    )
    house.check(
        "bytes that wait for the disk stay within the pool",
        0 < most <= POOL_BYTES + 2 * BODY_BYTES,
        f"at most {size_text(most)} of {size_text(POOL_BYTES)}",
    )
    house.order(FaultOrder("clear"))
    await house.wait(0.6)
    before, refused = sender.stored, sender.refused
    await house.wait(0.5)
    house.check(
        "with a quick disk nobody is refused any more",
        sender.stored > before and sender.refused == refused,
    )
    await house.away(sender.stop)
    end = await house.away(
        lambda: probe.offset(RequestCode.GET_MAX_OFFSET, "pictures").number("offset")
    )
    house.check(
        "in the log is what was answered SEND_OK, and nothing that was called busy",
        end == sender.stored and not sender.other and not sender.outstanding,
        f"{end:,} stored, {sender.refused:,} busy: {dict(sender.busy)}",
    )
