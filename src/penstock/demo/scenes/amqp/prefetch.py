"""Prefetch: how much a consumer has in hand, alone, with others, and without any limit (F10, F13).

Three queues, each full. Two consumers with a prefetch of ten share the first: the one that settles
nothing gets ten messages and no more, the other one gets all the rest. On the second, one limit of
25 holds for three consumers of a channel together. The third has a consumer without prefetch that
settles nothing: RabbitMQ would send it everything, here F13 stops it (at 500 in this scene), until
it has settled half of them.
"""

from typing import Final

from penstock.demo.amqp_actors import AmqpControl, AmqpPublisher
from penstock.demo.scenes.scene import Blame, Scene

SETTINGS: Final = {"flow.unacked_consumer_max": "500"}
UNACKED_MAX: Final = 500
MESSAGES: Final = 1500
PREFETCH: Final = 10
GLOBAL: Final = 25
SECONDS_MAX: Final = 8.0
STILL_SECONDS: Final = 0.7
"""What has not come after that long does not come."""


async def play(scene: Scene) -> None:
    await _fill(scene, ("alone", "together", "unlimited"))
    await _alone(scene)
    await _together(scene)
    await _unlimited(scene)


async def _fill(scene: Scene, queues: tuple[str, ...]) -> None:
    link = await scene.amqp("filler")
    control = await AmqpControl.open(link, 9)
    fillers = []
    for channel, queue in enumerate(queues, 1):
        await control.declare(queue)
        fillers.append(
            await AmqpPublisher.start(
                link, queue, queue, per_second=3000, channel=channel, count_max=MESSAGES
            )
        )
    await scene.until(lambda: all(each.is_done for each in fillers), SECONDS_MAX)
    scene.say(f"three queues have {MESSAGES:,} messages each")


async def _alone(scene: Scene) -> None:
    control = await AmqpControl.open(await scene.amqp("two consumers"))
    await control.qos(PREFETCH)
    stuck = scene.cast(await control.consume("stuck", "alone", is_acking=False))
    quick = scene.cast(await control.consume("quick", "alone"))
    is_drained = await scene.until(lambda: len(quick.bodies) >= MESSAGES - PREFETCH, SECONDS_MAX)
    scene.check(
        "per consumer: the one that settles nothing has its ten, and no more",
        stuck.unacked == PREFETCH == stuck.unacked_peak,
        f"{stuck.unacked} unacked",
    )
    scene.check(
        "per consumer: it stops only itself, the other one gets all the rest",
        is_drained and quick.unacked_peak <= PREFETCH,
        f"{len(quick.bodies):,} settled, at most {quick.unacked_peak} in hand",
    )
    stuck.is_acking = True
    is_over = await scene.until(
        lambda: len(stuck.bodies) + len(quick.bodies) == MESSAGES, SECONDS_MAX
    )
    scene.check("per consumer: let go, it settles them", is_over)
    scene.dismiss(stuck, quick)


async def _together(scene: Scene) -> None:
    control = await AmqpControl.open(await scene.amqp("one channel"))
    await control.qos(GLOBAL, is_global=True)
    three = [
        scene.cast(await control.consume(name, "together", is_acking=False))
        for name in ("one", "two", "three")
    ]
    await scene.until(lambda: sum(each.unacked for each in three) >= GLOBAL, SECONDS_MAX)
    await scene.wait(STILL_SECONDS)
    in_hand = [each.unacked for each in three]
    scene.check("global: 25 for the channel, however many consume", sum(in_hand) == GLOBAL,
                f"in hand: {' + '.join(map(str, in_hand))}")  # fmt: skip
    for each in three:
        each.is_acking = True
    is_drained = await scene.until(
        lambda: sum(len(each.bodies) for each in three) == MESSAGES, SECONDS_MAX
    )
    scene.check(
        "global: as they settle, they get on",
        is_drained,
        f"{sum(len(each.bodies) for each in three):,} settled",
    )
    scene.dismiss(*three)


async def _unlimited(scene: Scene) -> None:
    control = await AmqpControl.open(await scene.amqp("no limit"))
    greedy = scene.cast(await control.consume("greedy", "unlimited", is_acking=False))
    await scene.until(lambda: greedy.unacked >= UNACKED_MAX, SECONDS_MAX)
    await scene.wait(STILL_SECONDS)
    scene.check(
        "without prefetch: F13 stops it all the same",
        greedy.unacked == UNACKED_MAX,
        f"{greedy.unacked} of {MESSAGES:,} in hand",
    )
    claim = "without prefetch: the broker names the consumer"
    blame = Blame("behind", "slow-consumer", "consumer/")
    page = await scene.check_answer(claim, blame, seconds_max=SECONDS_MAX)
    named = page["answer"]["culprit"]["name"]
    scene.check("without prefetch: by the name it gave itself", "greedy" in named, named)
    await greedy.ack(UNACKED_MAX // 2 - 1)
    await scene.wait(STILL_SECONDS)
    before = greedy.unacked
    await greedy.ack(1)
    is_going_on = await scene.until(lambda: greedy.unacked > before, SECONDS_MAX)
    scene.check(
        "without prefetch: it goes on when half is settled, not before",
        before == UNACKED_MAX - UNACKED_MAX // 2 + 1 and is_going_on,
        f"{before} in hand were too many, {before - 1} were not",
    )
    greedy.is_acking = True
    is_drained = await scene.until(lambda: len(greedy.bodies) == MESSAGES, SECONDS_MAX)
    scene.check("nothing is lost", is_drained, f"{len(greedy.bodies):,} settled")
