"""Slow reader: deliveries that a socket does not take stop their own connection, nobody else (F14).

Two consumers share a queue, without prefetch. One of them hangs: its process lives, its connection
stands, but it reads nothing any more. Once the buffers between are full, the broker keeps a MiB for
it and deals everything else to the other one. As long as that one takes what there is, nothing is
wrong but for a mark at the consumer in ``/api/flow``. When it leaves, messages pile up, and the
broker says why: the slow one, by name, does not read what it was sent. It wakes up, reads on where
it stopped, and nothing is lost.
"""

from typing import Any, Final

from penstock.demo.amqp_actors import AmqpConsumer, AmqpPublisher, Desk
from penstock.demo.scenes.house import House

UNSENT_BYTES_MAX: Final = 1 << 20
"""As it is by default."""
BODY_BYTES: Final = 16_384
MESSAGES: Final = 1500
"""Half of them are more than a socket and its buffers hold."""
MORE: Final = 300
PER_SECOND: Final = 1500
SECONDS_MAX: Final = 8.0


async def play(house: House) -> None:
    desks = [await Desk.open(await house.amqp(name)) for name in ("slow", "quick", "publisher")]
    await desks[0].declare("work")
    slow = house.cast(await desks[0].consume("slow", "work"))
    quick = house.cast(await desks[1].consume("quick", "work"))
    slow.link.rest()
    house.say("one of the two consumers hangs: it reads nothing of what it is sent")
    first = await _publish(house, desks[2], 2, MESSAGES)
    await _goes_on(house, slow, quick)
    house.dismiss(quick)
    second = await _publish(house, desks[2], 3, MORE)
    await _is_named(house, desks[2])
    slow.link.read_on()
    house.say("it reads again")
    is_drained = await house.until(
        lambda: len({*slow.bodies, *quick.bodies}) == MESSAGES + MORE, SECONDS_MAX
    )
    house.check(
        "it goes on where it stopped, and nothing is lost",
        is_drained and first.is_done and second.is_done,
        f"{len(slow.bodies):,} + {len(quick.bodies):,} settled of {MESSAGES + MORE:,}",
    )


async def _publish(house: House, desk: Desk, channel: int, count: int) -> AmqpPublisher:
    """So many messages, until they are confirmed."""
    publisher = await AmqpPublisher.start(
        desk.link,
        f"publisher {channel}",
        "work",
        per_second=PER_SECOND,
        channel=channel,
        body_bytes=BODY_BYTES,
        count_max=count,
    )
    await house.until(lambda: publisher.is_done, SECONDS_MAX)
    return publisher


async def _goes_on(house: House, slow: AmqpConsumer, quick: AmqpConsumer) -> None:
    page = await _page_with_mark(house)
    kept = MESSAGES - _consumer(page, "slow")["unacked"]
    is_dealt = await house.until(lambda: len(slow.bodies) + len(quick.bodies) == kept, SECONDS_MAX)
    page = await house.flow()
    stuck, other = _consumer(page, "slow"), _consumer(page, "quick")
    unsent = next(each for each in page["limits"] if each["name"] == "unsent deliveries")
    house.check(
        "the one that does not read is marked, the other one is not",
        stuck["is_unsent_high"] and not other["is_unsent_high"],
        f"{stuck['unacked']} messages are on their way to {stuck['name']}",
    )
    house.check(
        "the other one gets all the rest",
        is_dealt and len(quick.bodies) > len(slow.bodies),
        f"{len(quick.bodies):,} of {MESSAGES:,} settled",
    )
    house.check(
        "the broker keeps about flow.unsent_bytes_max for it",
        UNSENT_BYTES_MAX / 2 < unsent["used"] < UNSENT_BYTES_MAX * 2,
        f"{unsent['used']:,} bytes",
    )
    queue = next(each for each in page["stages"] if each["kind"] == "subscription")
    house.check(
        "the queue is drained, as if nothing was wrong",
        queue["state"] == "running" and not queue["ready"],
        f"{queue['name']} is {queue['state']}, {queue['ready']} messages wait",
    )


async def _is_named(house: House, desk: Desk) -> None:
    page = await _page_with_mark(house)
    found = page["diagnosis"]
    house.say(f"the broker says: {found['sentence']}")
    house.check(
        "left alone, it is named as the reason why messages wait",
        found["kind"] == "network" and "slow" in found["name"],
        found["sentence"],
    )
    house.check("they wait in the queue", (ready := await desk.ready("work")) > 0, f"{ready:,}")


async def _page_with_mark(house: House) -> dict[str, Any]:
    """The first page on which the slow one is marked."""
    page = await house.flow()
    for _ in range(round(SECONDS_MAX / 0.1)):
        if _consumer(page, "slow")["is_unsent_high"]:
            break
        await house.wait(0.1)
        page = await house.flow()
    return page


def _consumer(page: dict[str, Any], name: str) -> dict[str, Any]:
    consumers = [each for stage in page["stages"] for each in stage["consumers"]]
    return next(each for each in consumers if name in each["name"])
