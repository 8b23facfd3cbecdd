"""Buffer pool: bytes that the disk does not have yet fill the write buffers, and no more (F7).

The broker of this scene has two buffers of 512 KiB and a disk that takes 400 ms for each sync. A
producer with large messages fills them in no time; from then on it is refused, although memory is
plentiful and the store is not "busy" yet. Bytes waiting never exceed the pool.
"""

from typing import Final

from penstock.demo.scenes.scene import Blame, Scene
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


async def play(scene: Scene) -> None:
    probe = await scene.away(scene.rocketmq)
    await scene.away(lambda: probe.create_topic("pictures", 1))
    sender = scene.sender("producer", "pictures", per_second=PER_SECOND, body_bytes=BODY_BYTES)
    await scene.wait(1.0)
    scene.check("nothing is refused while the disk keeps up", sender.stored > 0 == sender.refused)
    scene.order(FaultOrder("sync-delay", ms=400))
    await scene.check_answer("the broker names the log", Blame("refusing", "no-buffer", "log"))
    most = 0
    for _ in range(15):
        await scene.wait(0.1)
        most = max(most, scene.broker.engine.unsynced_bytes)
    refused = sender.refused
    scene.check(
        "a slow disk fills the buffers and the producer is told",
        refused > 0,
        f"{refused} busy: {next(iter(sender.remarks.values()), '-')}",
    )
    scene.check(
        "bytes that wait for the disk stay within the pool",
        0 < most <= POOL_BYTES + 2 * BODY_BYTES,
        f"at most {size_text(most)} of {size_text(POOL_BYTES)}",
    )
    scene.order(FaultOrder("clear"))
    await scene.wait(0.6)
    before, refused = sender.stored, sender.refused
    await scene.wait(0.5)
    scene.check(
        "with a quick disk nobody is refused any more",
        sender.stored > before and sender.refused == refused,
    )
    await scene.away(sender.stop)
    end = await scene.away(
        lambda: probe.offset(RequestCode.GET_MAX_OFFSET, "pictures").number("offset")
    )
    scene.check(
        "in the log is what was answered SEND_OK, and nothing that was called busy",
        end == sender.stored and not sender.other and not sender.outstanding,
        f"{end:,} stored, {sender.refused:,} busy: {dict(sender.busy)}",
    )
