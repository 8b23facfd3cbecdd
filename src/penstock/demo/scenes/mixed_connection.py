"""Mixed connection: publishes that are held do not stop the acks behind them (D23).

A worker publishes to a full queue with ``x-overflow: hold`` and consumes from it, over one socket.
A broker that stops reading such a connection waits for acks that it does not read: nothing moves
any more. Here the publishes are kept aside, up to 16 MiB, and the socket is read on, so the worker
makes room for itself. Only publishers to the full queue wait: a neighbour does not, nor does
another channel of the same connection. And no hold is without end: after ``flow.hold_ms_max`` (6 s
in this scene) the publish is nacked, or the channel closed that asked for no confirms.
"""

import time
from typing import Final

from penstock.demo.amqp_actors import AmqpLink, AmqpPublisher, Desk
from penstock.demo.scenes.house import House

HOLD_S: Final = 6.0
SETTINGS: Final = {"flow.hold_ms_max": "6000"}
LENGTH_MAX: Final = 100
LONELY_MAX: Final = 10
WINDOW: Final = 50
PER_SECOND: Final = 500
MESSAGE_SECONDS: Final = 0.005
SECONDS_MAX: Final = 8.0


async def play(house: House) -> None:
    link = await house.amqp("worker")
    desk = await Desk.open(link, 2)
    for queue, length_max in (("work", LENGTH_MAX), ("lonely", LONELY_MAX)):
        await desk.declare(queue, x_max_length=length_max, x_overflow="hold")
    await desk.declare("spare")
    worker = house.cast(
        await AmqpPublisher.start(link, "worker", "work", per_second=PER_SECOND, window=WINDOW)
    )
    is_full = await house.until(lambda: worker.outstanding >= WINDOW, SECONDS_MAX)
    house.check(
        "a full queue holds who publishes to it",
        is_full and len(worker.confirmed_numbers) == LENGTH_MAX,
        f"{len(worker.confirmed_numbers)} stored, {worker.outstanding} held",
    )
    await _others(house, link)
    await _drain(house, desk, worker)
    await _bounded(house)


async def _others(house: House, link: AmqpLink) -> None:
    actors = [
        house.cast(await AmqpPublisher.start(each, name, "spare", per_second=PER_SECOND, channel=3))
        for each, name in ((link, "third channel"), (await house.amqp("other"), "neighbour"))
    ]
    page = await house.flow()
    house.say(f"the broker says: {page['diagnosis']['sentence']}")
    house.check(
        "the broker names the queue",
        page["diagnosis"]["kind"] == "limit" and "work" in page["diagnosis"]["name"],
        page["diagnosis"]["sentence"],
    )
    are_free = await house.until(
        lambda: min(len(each.confirmed_numbers) for each in actors) > PER_SECOND / 2, SECONDS_MAX
    )
    house.check(
        "a neighbour and another channel of the same connection do not wait",
        are_free,
        ", ".join(f"{each.name}: {len(each.confirmed_numbers)} confirmed" for each in actors),
    )
    for each in actors:
        each.stop()


async def _drain(house: House, desk: Desk, worker: AmqpPublisher) -> None:
    """The worker consumes what it publishes, over the same socket."""
    await desk.qos(10)
    consumer = house.cast(await desk.consume("consumer", "work"))
    consumer.message_seconds = MESSAGE_SECONDS
    house.say("now the same connection consumes, too: its acks lie behind the held publishes")
    fullest = 0
    watcher = await Desk.open(await house.amqp("watcher"))
    while len(consumer.bodies) < 3 * LENGTH_MAX and consumer.message_seconds:
        fullest = max(fullest, await watcher.ready("work") + consumer.unacked)
        await house.wait(0.05)
    house.check(
        "no dead-lock: as it settles, its own publishes go on",
        len(worker.confirmed_numbers) >= 3 * LENGTH_MAX,
        f"{len(worker.confirmed_numbers)} stored, {len(consumer.bodies)} settled",
    )
    house.check(
        "the queue stayed at its length", fullest <= LENGTH_MAX + WINDOW, f"at most {fullest}"
    )
    worker.stop()
    consumer.message_seconds = 0.0
    await house.check_nothing_lost([worker], consumer)
    house.check("nothing was nacked", not worker.nacked_numbers)
    house.dismiss(worker, consumer)


async def _bounded(house: House) -> None:
    """Nobody makes room: the hold ends."""
    held = house.cast(
        await AmqpPublisher.start(
            await house.amqp("patient"), "patient", "lonely", per_second=500, count_max=WINDOW
        )
    )
    began = time.monotonic()
    await house.until(lambda: len(held.confirmed_numbers) == LONELY_MAX, SECONDS_MAX)
    desk = await Desk.open(await house.amqp("without confirms"))
    desk.publish("lonely", b"one more")
    is_answered = await house.until(lambda: held.is_done, HOLD_S + 4)
    waited = time.monotonic() - began
    house.check(
        "a hold ends with a nack after flow.hold_ms_max",
        is_answered and len(held.nacked_numbers) == WINDOW - LONELY_MAX and waited >= HOLD_S - 0.5,
        f"{len(held.nacked_numbers)} nacked after {waited:.1f} s",
    )
    is_closed = await house.until(lambda: bool(desk.closed_text), 4)
    house.check(
        "who asked for no confirms loses the channel, and is told the queue",
        is_closed and "lonely" in desk.closed_text,
        desk.closed_text,
    )
