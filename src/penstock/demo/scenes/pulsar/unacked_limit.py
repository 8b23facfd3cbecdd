"""Unacked limit: who takes and does not ack is sent no more, whatever it asks for (F13).

Two clients share a subscription; fifty messages may be unacked by each (Pulsar's own figure is
50,000). One of them acks nothing: at fifty it is sent no more, with its permits unspent, and what
its client grants meanwhile is kept aside. It stops only itself, the other one takes what there is.
When that one leaves, messages pile up, and the broker names the one that does not ack. It acks
some: at half of its limit, not before, it goes on. Then it gives everything back instead
(REDELIVER), which frees it, too. On a second topic, a limit for all consumers of a subscription
together. Nothing here is raw: what the broker counts is read from its statistics.
"""

from typing import Final

from penstock.demo.pulsar_actors import ClientConsumer, ClientProducer
from penstock.demo.scenes.scene import SOON_BEHIND, Blame, Scene

UNACKED_MAX: Final = 50
TOGETHER_MAX: Final = 120
SETTINGS: Final = {
    "pulsar.max_unacked_messages_per_consumer": f"{UNACKED_MAX}",
    "pulsar.max_unacked_messages_per_subscription": f"{TOGETHER_MAX}",
    **SOON_BEHIND,
}
MESSAGES: Final = 600
QUEUE: Final = 80
"""More than the limit, and half of it is less: who is held has permits, and grants more."""
SECONDS_MAX: Final = 8.0
STILL_SECONDS: Final = 0.5
"""What has not come after that long does not come."""


async def play(scene: Scene) -> None:
    await _publish(scene, "work", "first")
    hoarder = scene.cast(await _worker(scene, "hoarder", "work", is_taking=False))
    hoarder.is_acking = False
    await _alone(scene, hoarder)
    await _publish(scene, "work", "second")
    await _is_named(scene, hoarder)
    await _at_half(scene, hoarder)
    await _given_back(scene, hoarder)
    hoarder.is_acking = True
    await scene.until(lambda: hoarder.unacked == 0 and len(hoarder.acked) > MESSAGES, SECONDS_MAX)
    scene.dismiss(hoarder)
    await _together(scene)


async def _publish(scene: Scene, topic: str, name: str) -> None:
    filler = await ClientProducer.start(
        scene.pulsar_process(), name, topic, per_second=3000, count_max=MESSAGES
    )
    await scene.until(lambda: filler.is_done, SECONDS_MAX)
    filler.leave()


async def _worker(scene: Scene, name: str, topic: str, *, is_taking: bool = True) -> ClientConsumer:
    return await ClientConsumer.start(
        scene.pulsar_process(), name, topic, "workers", queue=QUEUE, is_taking=is_taking
    )


async def _counted(scene: Scene, name: str) -> tuple[int, int, bool]:
    """Unacked, permits, and whether it is held, as the broker counts."""
    found = await scene.pulsar_consumer("work", "workers", name)
    return (
        found["unackedMessages"],
        found["availablePermits"],
        found["blockedConsumerOnUnackedMsgs"],
    )


async def _alone(scene: Scene, hoarder: ClientConsumer) -> None:
    await scene.until(lambda: hoarder.queued >= UNACKED_MAX, STILL_SECONDS)
    quick = scene.cast(await _worker(scene, "quick", "work"))
    is_drained = await scene.until(lambda: len(quick.acked) == MESSAGES - UNACKED_MAX, SECONDS_MAX)
    # Acks are gathered by its client: for a moment the quick one is at its limit, too.
    await scene.wait(STILL_SECONDS)
    unacked, permits, is_held = counted = await _counted(scene, "hoarder")
    scene.check(
        "who acks nothing is sent up to its limit, with permits left",
        counted == (UNACKED_MAX, QUEUE - UNACKED_MAX, True)
        and hoarder.arrived_messages == UNACKED_MAX,
        f"{unacked} unacked, {permits} permits left",
    )
    _, _, is_quick_held = await _counted(scene, "quick")
    scene.check(
        "it stops only itself: the other one gets all the rest",
        is_drained and is_held and not is_quick_held,
        f"{len(quick.acked)} of {MESSAGES} acked",
    )
    scene.dismiss(quick)


async def _is_named(scene: Scene, hoarder: ClientConsumer) -> None:
    hoarder.is_taking = True
    await _unacked(scene, hoarder, UNACKED_MAX)
    why = hoarder.why()
    scene.say(f"hoarder's client says: {why}")
    holds = f"its application holds {UNACKED_MAX} messages"
    page = await scene.check_answer(
        "left alone, it is named as the reason why messages wait",
        Blame("behind", "slow-consumer", "consumer/"),
        shows=lambda page: holds in page["answer"]["sentence"],
        seconds_max=SECONDS_MAX,
    )
    found = page["answer"]
    unacked, _, is_held = await _counted(scene, "hoarder")
    scene.check(
        "at its limit, and by its client's word all are in its application's hands",
        (hoarder.unacked, unacked, is_held) == (UNACKED_MAX, UNACKED_MAX, True)
        and found["culprit"]["name"].startswith("hoarder of workers")
        and holds in found["sentence"],
        found["culprit"]["name"],
    )


async def _at_half(scene: Scene, hoarder: ClientConsumer) -> None:
    # Its application took all fifty, so its client has granted at least half of its queue anew.
    _, kept, is_held = await _counted(scene, "hoarder")
    granted = hoarder.permits
    await hoarder.ack(UNACKED_MAX // 2 - 1)
    before = await _unacked(scene, hoarder, UNACKED_MAX)
    await hoarder.ack(1)
    after = await _unacked(scene, hoarder, UNACKED_MAX)
    scene.check(
        "it goes on at half of its limit, not before",
        (before, after) == (UNACKED_MAX // 2 + 1, UNACKED_MAX),
        f"{before} unacked were too many, {before - 1} were not",
    )
    _, permits, _ = await _counted(scene, "hoarder")
    scene.check(
        "permits that came while it was held count again from then on",
        is_held
        and kept == QUEUE - UNACKED_MAX
        and granted >= kept + QUEUE // 2
        and permits == hoarder.permits,
        f"{kept} counted of {granted} that its client had granted, then {permits}"
        f" of {hoarder.permits}",
    )


async def _given_back(scene: Scene, hoarder: ClientConsumer) -> None:
    came = len(hoarder.taken)
    await hoarder.give_back()
    await scene.until(lambda: len(hoarder.taken) == came + UNACKED_MAX, SECONDS_MAX)
    again = [each.message.redelivery_count for each in hoarder.taken[came:]]
    scene.check(
        "what it gives back unacked comes again, counted",
        again == [1] * UNACKED_MAX,
        f"{len(again)} came a second time",
    )


async def _together(scene: Scene) -> None:
    await _publish(scene, "shared", "third")
    three = []
    for name in ("ann", "ben", "cem"):
        three.append(scene.cast(await _worker(scene, name, "shared")))
        three[-1].is_acking = False
    await scene.until(lambda: sum(each.unacked for each in three) >= TOGETHER_MAX, SECONDS_MAX)
    await scene.wait(STILL_SECONDS)
    in_hand = [each.unacked for each in three]
    scene.check(
        "all consumers of a subscription together have a limit, too",
        sum(in_hand) == TOGETHER_MAX,
        f"{' + '.join(map(str, in_hand))} unacked, limit {TOGETHER_MAX}",
    )
    await scene.check_answer(
        "that is told from a consumer's own limit",
        Blame("behind", "subscription-unsettled", "sub/shared/"),
        shows=lambda page: "cem of workers" in page["answer"]["sentence"],
        seconds_max=SECONDS_MAX,
    )
    for each in three:
        each.is_acking = True
    is_drained = await scene.until(
        lambda: len({body for each in three for body in each.bodies}) == MESSAGES, SECONDS_MAX
    )
    scene.check("as they ack they get on, and nothing is lost", is_drained)


async def _unacked(scene: Scene, consumer: ClientConsumer, expected: int) -> int:
    """Messages it has and did not ack, once they are so many or no more come."""
    await scene.until(lambda: consumer.unacked >= expected, STILL_SECONDS)
    await scene.wait(STILL_SECONDS / 2)
    return consumer.unacked
