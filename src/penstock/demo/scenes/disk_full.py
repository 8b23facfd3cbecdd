"""Disk full: first the alarm, then the real thing (F3, D8, T8).

With too little free disk the alarm holds whoever publishes, and nobody else: consumers drain on.
When space is back, publishing resumes by itself. Then writes fail although no alarm was raised, as
on a disk that fills faster than anybody looks: these publishes are refused, none of them is stored,
and the broker goes on.
"""

from typing import Final

from penstock.demo.actors import EngineConsumer, EnginePublisher
from penstock.demo.scenes.scene import Blame, Scene
from penstock.engine.topic import Topic
from penstock.model.refusal import RefusalKind
from penstock.server.faults import FaultOrder

PER_SECOND: Final = 2000
FAILING_WRITES: Final = 1_000_000
"""More than there can be; they end by hand, when somebody has seen what they do."""


async def play(scene: Scene) -> None:
    topic = scene.topic("orders")
    publisher = scene.publisher("publisher", topic, per_second=PER_SECOND)
    await scene.wait(1.5)
    consumer = await _alarm(scene, topic, publisher)
    await _failing_writes(scene, publisher)
    publisher.stop()
    await scene.check_nothing_lost([publisher], consumer)


async def _alarm(scene: Scene, topic: Topic, publisher: EnginePublisher) -> EngineConsumer:
    scene.order(FaultOrder("disk", bytes=0))
    is_held = await scene.until(lambda: "disk" in " ".join(publisher.gates), 3)
    await scene.wait(0.5)
    before = len(publisher.confirmed_numbers)
    consumer = scene.consumer("reader", topic)
    is_drained = await scene.until(lambda: len(consumer.bodies) >= before, 5)
    named = Blame("alarm", "disk", "alarm/disk")
    await scene.check_answer("the broker named the disk", named)
    await scene.wait(0.5)
    during = len(publisher.confirmed_numbers)
    scene.order(FaultOrder("clear"))
    is_resumed = await scene.until(lambda: len(publisher.confirmed_numbers) > during + 1000, 5)
    scene.check(
        "the alarm held the publisher",
        is_held and during == before,
        f"{during - before} confirmed during the alarm",
    )
    scene.check("the consumer drained meanwhile", is_drained, f"{before:,} messages")
    scene.check("publishing resumed by itself", is_resumed)
    return consumer


async def _failing_writes(scene: Scene, publisher: EnginePublisher) -> None:
    # What was held comes all at once: that is over first.
    await scene.all_is_well()
    scene.order(FaultOrder("write-error", count=FAILING_WRITES, error="enospc"))
    has_failed = await scene.until(lambda: bool(publisher.refusals), 3)
    claim = "the broker named the log, and that it could not be written to"
    await scene.check_answer(claim, Blame("refusing", "write-failed", "log"))
    scene.order(FaultOrder("clear"))
    await scene.wait(1.0)
    after_errors = len(publisher.confirmed_numbers)
    is_going_on = await scene.until(lambda: len(publisher.confirmed_numbers) > after_errors, 3)
    scene.check(
        "failing writes were refused, in words",
        has_failed and {each.kind for each in publisher.refusals} == {RefusalKind.WRITE_FAILED},
        f"{len(publisher.refusals):,} refusals: "
        + (publisher.refusals[0].text if publisher.refusals else "-"),
    )
    scene.check("the broker went on afterwards", is_going_on)
