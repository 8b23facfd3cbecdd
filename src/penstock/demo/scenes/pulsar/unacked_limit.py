"""Unacked limit: who takes and does not ack is sent no more, whatever it asks for (F13).

Two consumers share a subscription; fifty messages may be unacked by each (Pulsar's own figure is
50,000). One of them acks nothing: at fifty it is sent no more, with its permits unspent, and what
it grants meanwhile is kept aside. It stops only itself, the other one takes what there is. When
that one leaves, messages pile up, and the broker names the one that does not ack. It acks some:
at half of its limit, not before, it goes on. Then it gives everything back instead (REDELIVER),
which frees it, too. On a second topic, a limit for all consumers of a subscription together.
"""

from typing import Any, Final

from penstock.demo.pulsar_actors import PulsarConsumer, PulsarProducer
from penstock.demo.scenes.scene import Scene

UNACKED_MAX: Final = 50
TOGETHER_MAX: Final = 120
SETTINGS: Final = {
    "pulsar.max_unacked_messages_per_consumer": f"{UNACKED_MAX}",
    "pulsar.max_unacked_messages_per_subscription": f"{TOGETHER_MAX}",
}
MESSAGES: Final = 600
QUEUE: Final = 500
SECONDS_MAX: Final = 8.0
STILL_SECONDS: Final = 0.5
"""What has not come after that long does not come."""


async def play(scene: Scene) -> None:
    filler = await scene.pulsar("filler")
    await _publish(scene, filler, "work", "first", MESSAGES)
    hoarder = scene.cast(await _worker(scene, "hoarder", "work"))
    hoarder.is_acking = False
    await _alone(scene, hoarder)
    await _publish(scene, filler, "work", "second", MESSAGES)
    await _is_named(scene, hoarder)
    await _at_half(scene, hoarder)
    await _given_back(scene, hoarder)
    hoarder.is_acking = True
    await scene.until(lambda: hoarder.unacked == 0 and len(hoarder.bodies) > MESSAGES, SECONDS_MAX)
    scene.dismiss(hoarder)
    await _together(scene, filler)


async def _publish(scene: Scene, link: Any, topic: str, name: str, count: int) -> None:
    producer = await PulsarProducer.start(link, name, topic, per_second=3000, count_max=count)
    await scene.until(lambda: producer.is_done, SECONDS_MAX)


async def _worker(scene: Scene, name: str, topic: str) -> PulsarConsumer:
    link = await scene.pulsar(name)
    return await PulsarConsumer.subscribe(link, name, topic, "workers", queue=QUEUE)


async def _alone(scene: Scene, hoarder: PulsarConsumer) -> None:
    await _unacked(scene, hoarder, UNACKED_MAX)
    quick = scene.cast(await _worker(scene, "quick", "work"))
    is_drained = await scene.until(lambda: len(quick.bodies) == MESSAGES - UNACKED_MAX, SECONDS_MAX)
    left = await hoarder.permits()
    scene.check(
        "who acks nothing is sent up to its limit, with permits left",
        hoarder.unacked == UNACKED_MAX
        and left == QUEUE - UNACKED_MAX
        and await hoarder.is_blocked(),
        f"{hoarder.unacked} unacked, {left} permits left",
    )
    scene.check(
        "it stops only itself: the other one gets all the rest",
        is_drained and not await quick.is_blocked(),
        f"{len(quick.bodies)} of {MESSAGES} acked",
    )
    scene.dismiss(quick)


async def _is_named(scene: Scene, hoarder: PulsarConsumer) -> None:
    await scene.wait(STILL_SECONDS)
    page = await scene.flow()
    found = page["diagnosis"]
    scene.say(f"the broker says: {found['sentence']}")
    scene.check(
        "left alone, it is named as the reason why messages wait",
        hoarder.unacked == UNACKED_MAX
        and found["kind"] == "consumer"
        and found["name"].startswith("hoarder of workers")
        and f"its limit is {UNACKED_MAX}" in found["sentence"],
        found["sentence"],
    )


async def _at_half(scene: Scene, hoarder: PulsarConsumer) -> None:
    hoarder.flow(7)
    kept_aside = await hoarder.permits() == QUEUE - UNACKED_MAX
    hoarder.ack(UNACKED_MAX // 2 - 1)
    before = await _unacked(scene, hoarder, UNACKED_MAX)
    hoarder.ack(1)
    after = await _unacked(scene, hoarder, UNACKED_MAX)
    scene.check(
        "it goes on at half of its limit, not before",
        (before, after) == (UNACKED_MAX // 2 + 1, UNACKED_MAX),
        f"{before} unacked were too many, {before - 1} were not",
    )
    # What went out since, and the permits of half a queue that its client has not granted yet.
    permits = await hoarder.permits()
    scene.check(
        "permits that came while it was held count again from then on",
        kept_aside and permits == QUEUE - hoarder.arrived_messages + 7,
        f"{QUEUE} + 7 - {hoarder.arrived_messages} = {permits}",
    )


async def _given_back(scene: Scene, hoarder: PulsarConsumer) -> None:
    came = hoarder.arrived_messages
    hoarder.give_back()
    await scene.until(lambda: hoarder.arrived_messages == came + UNACKED_MAX, SECONDS_MAX)
    again = hoarder.entries[came:]
    scene.check(
        "what it gives back unacked comes again, counted",
        len(again) == UNACKED_MAX and {each.redeliveries for each in again} == {1},
        f"{len(again)} came a second time",
    )


async def _together(scene: Scene, filler: Any) -> None:
    await _publish(scene, filler, "shared", "third", MESSAGES)
    three = []
    for name in ("ann", "ben", "cem"):
        three.append(scene.cast(await _worker(scene, name, "shared")))
        three[-1].is_acking = False
    await scene.until(lambda: sum(each.unacked for each in three) >= TOGETHER_MAX, SECONDS_MAX)
    await scene.wait(STILL_SECONDS)
    in_hand = [each.unacked for each in three]
    found = [each for each in (await scene.flow())["findings"] if "shared/" in each["name"]]
    scene.say(f"the broker says: {found[0]['sentence']}")
    scene.check(
        "all consumers of a subscription together have a limit, too",
        sum(in_hand) == TOGETHER_MAX,
        f"{' + '.join(map(str, in_hand))} unacked, limit {TOGETHER_MAX}",
    )
    scene.check(
        "that is told from a consumer's own limit",
        found[0]["kind"] == "subscription-unsettled" and "cem of workers" in found[0]["sentence"],
        found[0]["sentence"],
    )
    for each in three:
        each.is_acking = True
    is_drained = await scene.until(
        lambda: len({body for each in three for body in each.bodies}) == MESSAGES, SECONDS_MAX
    )
    scene.check("as they ack they get on, and nothing is lost", is_drained)


async def _unacked(scene: Scene, consumer: PulsarConsumer, expected: int) -> int:
    """Messages it has and did not ack, once they are so many or no more come."""
    await scene.until(lambda: consumer.unacked >= expected, STILL_SECONDS)
    await scene.wait(STILL_SECONDS / 2)
    return consumer.unacked
