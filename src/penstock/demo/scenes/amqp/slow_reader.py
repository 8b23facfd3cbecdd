"""Slow reader: deliveries that a socket does not take stop their own connection, nobody else (F14).

Two consumers share a queue, without prefetch. One of them hangs: its process lives, its connection
stands, but it reads nothing any more. Once the buffers between are full, the broker keeps a MiB for
it and deals everything else to the other one. As long as that one takes what there is, nothing is
wrong but for a mark at the consumer in ``/api/flow``. When it leaves, messages pile up, and the
broker says why: the slow one, by name, does not read what it was sent. It wakes up, reads on where
it stopped, and nothing is lost.
"""

from typing import Any, Final

from penstock.demo.amqp_actors import AmqpConsumer, AmqpControl, AmqpPublisher
from penstock.demo.scenes.scene import Blame, Scene

UNSENT_BYTES_MAX: Final = 1 << 20
"""As it is by default."""
BODY_BYTES: Final = 16_384
MESSAGES: Final = 1500
"""Half of them are more than a socket and its buffers hold."""
MORE: Final = 300
PER_SECOND: Final = 1500
SECONDS_MAX: Final = 8.0


async def play(scene: Scene) -> None:
    controls = [
        await AmqpControl.open(await scene.amqp(name)) for name in ("slow", "quick", "publisher")
    ]
    await controls[0].declare("work")
    slow = scene.cast(await controls[0].consume("slow", "work"))
    quick = scene.cast(await controls[1].consume("quick", "work"))
    slow.link.rest()
    scene.say("one of the two consumers hangs: it reads nothing of what it is sent")
    first = await _publish(scene, controls[2], 2, MESSAGES)
    await _goes_on(scene, slow, quick)
    scene.dismiss(quick)
    second = await _publish(scene, controls[2], 3, MORE)
    await _is_named(scene, controls[2])
    slow.link.read_on()
    scene.say("it reads again")
    is_drained = await scene.until(
        lambda: len({*slow.bodies, *quick.bodies}) == MESSAGES + MORE, SECONDS_MAX
    )
    scene.check(
        "it goes on where it stopped, and nothing is lost",
        is_drained and first.is_done and second.is_done,
        f"{len(slow.bodies):,} + {len(quick.bodies):,} settled of {MESSAGES + MORE:,}",
    )


async def _publish(scene: Scene, control: AmqpControl, channel: int, count: int) -> AmqpPublisher:
    """So many messages, until they are confirmed."""
    publisher = await AmqpPublisher.start(
        control.link,
        f"publisher {channel}",
        "work",
        per_second=PER_SECOND,
        channel=channel,
        body_bytes=BODY_BYTES,
        count_max=count,
    )
    await scene.until(lambda: publisher.is_done, SECONDS_MAX)
    return publisher


async def _goes_on(scene: Scene, slow: AmqpConsumer, quick: AmqpConsumer) -> None:
    page = await scene.flow_when(_is_marked, SECONDS_MAX)
    kept = MESSAGES - _consumer(page, "slow")["unacked"]
    is_dealt = await scene.until(lambda: len(slow.bodies) + len(quick.bodies) == kept, SECONDS_MAX)
    page = await scene.flow_when(lambda page: not _queue(page)["ready"])
    stuck, other = _consumer(page, "slow"), _consumer(page, "quick")
    unsent = next(each for each in page["limits"] if each["name"] == "unsent deliveries")
    scene.check(
        "the one that does not read is marked, the other one is not",
        stuck["is_unsent_high"] and not other["is_unsent_high"],
        f"{stuck['unacked']} messages are on their way to {stuck['name']}",
    )
    scene.check(
        "the other one gets all the rest",
        is_dealt and len(quick.bodies) > len(slow.bodies),
        f"{len(quick.bodies):,} of {MESSAGES:,} settled",
    )
    scene.check(
        "the broker keeps about flow.unsent_bytes_max for it",
        UNSENT_BYTES_MAX / 2 < unsent["used"] < UNSENT_BYTES_MAX * 2,
        f"{unsent['used']:,} bytes",
    )
    queue = _queue(page)
    scene.check(
        "the queue is drained, as if nothing was wrong",
        queue["state"] == "running" and not queue["ready"],
        f"{queue['name']} is {queue['state']}, {queue['ready']} messages wait",
    )


async def _is_named(scene: Scene, control: AmqpControl) -> None:
    # Messages that wait are behind after five seconds (flow.behind_ms).
    claim = "left alone, it is named as the reason why messages wait"
    blame = Blame("behind", "not-reading", "consumer/")
    page = await scene.check_answer(claim, blame, shows=_is_marked, seconds_max=2 * SECONDS_MAX)
    named = page["answer"]["culprit"]["name"]
    scene.check("it is the slow one that is named", "slow" in named, named)
    scene.check("they wait in the queue", (ready := await control.ready("work")) > 0, f"{ready:,}")


def _is_marked(page: dict[str, Any]) -> bool:
    return bool(_consumer(page, "slow")["is_unsent_high"])


def _queue(page: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in page["stages"] if each["kind"] == "subscription")
    return found


def _consumer(page: dict[str, Any], name: str) -> dict[str, Any]:
    consumers = [each for stage in page["stages"] for each in stage["consumers"]]
    return next(each for each in consumers if name in each["name"])
