"""Permits: a consumer is sent as many messages as it has asked for, and batches whole (F11).

A Pulsar client has a queue, and tells the broker how much room there is: permits, which add up and
are spent by every message, also by one that comes a second time. First permits are granted by hand.
Ten bring ten messages and five more bring five, acked or not. A batch of twenty for five permits
comes whole: fifteen are owed, and nothing comes until they are made up for. Both askers are raw, as
no client lets its application grant permits. Then our own client does it by itself, and its
application takes nothing: its queue of a hundred fills, no more is sent, and the broker, whom the
client tells why, names the application. A second client gets the rest; the first application wakes
up and empties its queue, and every message was acked once.
"""

from typing import Any, Final

from penstock.demo.pulsar_actors import ClientConsumer, ClientProducer, PulsarConsumer
from penstock.demo.scenes.scene import Blame, Scene

MESSAGES: Final = 600
BATCH: Final = 20
QUEUE: Final = 100
SECONDS_MAX: Final = 8.0
STILL_SECONDS: Final = 0.5
"""What has not come after that long does not come."""


async def play(scene: Scene) -> None:
    for topic, batch, count in (("singles", 1, 50), ("batches", BATCH, 60), ("work", 1, MESSAGES)):
        await _publish(scene, topic, batch, count)
    scene.say(f"one topic has batches of {BATCH}, two have single messages")
    await _added(scene)
    await _owed(scene)
    await _by_itself(scene)


async def _publish(scene: Scene, topic: str, batch: int, count: int) -> None:
    filler = await ClientProducer.start(
        scene.pulsar_process(), f"filler of {topic}", topic,
        per_second=3000, batch=batch, count_max=count,
    )  # fmt: skip
    await scene.until(lambda: filler.is_done, SECONDS_MAX)
    filler.leave()


async def _added(scene: Scene) -> None:
    asker = scene.cast(
        await PulsarConsumer.subscribe(
            await scene.pulsar("asker"), "asker", "singles", "by-hand", queue=0
        )
    )
    asker.is_acking = False
    await scene.wait(STILL_SECONDS)
    before = asker.arrived_messages
    asker.flow(10)
    ten = await _count(scene, asker, 10)
    asker.flow(5)
    fifteen = await _count(scene, asker, 15)
    scene.check(
        "without permits nothing is sent, and no more than they allow",
        (before, ten, fifteen) == (0, 10, 15),
        f"{before}, then {ten} for 10, then {fifteen} for 5 more, none of them acked",
    )
    asker.give_back()
    await scene.wait(STILL_SECONDS)
    none = asker.arrived_messages - fifteen
    asker.flow(15)
    again = await _count(scene, asker, 30) - fifteen
    counts = {each.redeliveries for each in asker.entries[fifteen:]}
    scene.check(
        "what comes a second time is paid for again",
        (none, again, counts) == (0, 15, {1}),
        f"{none} without permits, {again} for 15",
    )
    scene.dismiss(asker)


async def _owed(scene: Scene) -> None:
    asker = scene.cast(
        await PulsarConsumer.subscribe(
            await scene.pulsar("owing"), "owing", "batches", "by-hand", queue=0
        )
    )
    asker.flow(5)
    whole = await _count(scene, asker, BATCH)
    owed = await asker.permits()
    scene.say(f"5 permits brought a batch of {whole}; the broker counts {owed} permits now")
    scene.check(
        "a batch comes whole, and its consumer owes the rest",
        (whole, owed) == (BATCH, 5 - BATCH),
        f"{whole} messages for 5 permits leave {owed}",
    )
    asker.flow(BATCH - 5)
    still = await _count(scene, asker, BATCH + 1)
    asker.flow(1)
    after = await _count(scene, asker, 2 * BATCH)
    scene.check(
        "nothing more comes until the debt is paid, one permit later the next batch does",
        (still, after) == (BATCH, 2 * BATCH),
        f"{still} with 0 permits, {after} with 1",
    )
    scene.dismiss(asker)


async def _by_itself(scene: Scene) -> None:
    busy = scene.cast(await _worker(scene, "busy", is_taking=False))
    await _count(scene, busy, QUEUE)
    permits = await _permits(scene, "busy")
    scene.check(
        "an application that takes nothing is sent a queue full, and no more",
        (busy.arrived_messages, busy.queued, permits) == (QUEUE, QUEUE, 0),
        f"{busy.arrived_messages} of {MESSAGES} for a queue of {QUEUE}",
    )
    why = busy.why()
    scene.say(f"busy's client says: {why}")
    scene.check("its client says what it waits for", f"not received {QUEUE} messages" in why, why)
    # An application that has moved within five seconds is only slow.
    claim = "the client tells the broker, and the broker names the application"
    blame = Blame("behind", "not-received", "consumer/")
    page = await scene.check_answer(claim, blame, seconds_max=SECONDS_MAX)
    blocked = _blocked_by(page, "busy")
    scene.check("permits are what it lacks", blocked == ["demand"], f"busy: {blocked}")
    quick = scene.cast(await _worker(scene, "quick"))
    is_drained = await scene.until(lambda: len(quick.acked) == MESSAGES - QUEUE, SECONDS_MAX)
    permits = await _permits(scene, "quick")
    scene.check(
        "another one gets all the rest: it asks again whenever half of its queue is taken",
        is_drained and permits >= QUEUE // 2,
        f"{len(quick.acked)} acked, {permits} permits left",
    )
    busy.is_taking = True
    is_over = await scene.until(lambda: len(busy.acked) == QUEUE, SECONDS_MAX)
    scene.check(
        "let go, it empties its queue; every message was acked once",
        is_over and len({*busy.bodies, *quick.bodies}) == MESSAGES,
        f"{len(busy.acked)} + {len(quick.acked)} = {MESSAGES}",
    )


async def _worker(scene: Scene, name: str, *, is_taking: bool = True) -> ClientConsumer:
    return await ClientConsumer.start(
        scene.pulsar_process(), name, "work", "workers", queue=QUEUE, is_taking=is_taking
    )


async def _permits(scene: Scene, name: str) -> int:
    """What the broker counts."""
    return int((await scene.pulsar_consumer("work", "workers", name))["availablePermits"])


async def _count(scene: Scene, consumer: PulsarConsumer | ClientConsumer, expected: int) -> int:
    """Messages it has been sent, once they are so many and no more come."""
    await scene.until(lambda: consumer.arrived_messages >= expected, 2 * STILL_SECONDS)
    await scene.wait(STILL_SECONDS)
    return consumer.arrived_messages


def _blocked_by(page: dict[str, Any], name: str) -> list[str]:
    consumers = [each for stage in page["stages"] for each in stage["consumers"]]
    return next(each["blocked_by"] for each in consumers if each["name"].startswith(name))
