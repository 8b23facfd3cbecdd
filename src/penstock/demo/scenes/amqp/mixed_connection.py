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

from penstock.demo.amqp_actors import AmqpControl, AmqpLink, AmqpPublisher
from penstock.demo.scenes.scene import Blame, Scene

HOLD_S: Final = 6.0
SETTINGS: Final = {"flow.hold_ms_max": "6000"}
LENGTH_MAX: Final = 100
LONELY_MAX: Final = 10
WINDOW: Final = 50
PER_SECOND: Final = 500
MESSAGE_SECONDS: Final = 0.005
SECONDS_MAX: Final = 8.0


async def play(scene: Scene) -> None:
    link = await scene.amqp("worker")
    control = await AmqpControl.open(link, 2)
    for queue, length_max in (("work", LENGTH_MAX), ("lonely", LONELY_MAX)):
        await control.declare(queue, x_max_length=length_max, x_overflow="hold")
    await control.declare("spare")
    worker = scene.cast(
        await AmqpPublisher.start(link, "worker", "work", per_second=PER_SECOND, window=WINDOW)
    )
    is_full = await scene.until(lambda: worker.outstanding >= WINDOW, SECONDS_MAX)
    scene.check(
        "a full queue holds who publishes to it",
        is_full and len(worker.confirmed_numbers) == LENGTH_MAX,
        f"{len(worker.confirmed_numbers)} stored, {worker.outstanding} held",
    )
    await _others(scene, link)
    await _drain(scene, control, worker)
    await _bounded(scene)


async def _others(scene: Scene, link: AmqpLink) -> None:
    actors = [
        scene.cast(await AmqpPublisher.start(each, name, "spare", per_second=PER_SECOND, channel=3))
        for each, name in ((link, "third channel"), (await scene.amqp("other"), "neighbour"))
    ]
    limit = "limit/length_max/topic/work"
    named = Blame("holding", "held", limit)
    await scene.check_answer("the broker names the queue's limit", named)
    are_free = await scene.until(
        lambda: min(len(each.confirmed_numbers) for each in actors) > PER_SECOND / 2, SECONDS_MAX
    )
    scene.check(
        "a neighbour and another channel of the same connection do not wait",
        are_free,
        ", ".join(f"{each.name}: {len(each.confirmed_numbers)} confirmed" for each in actors),
    )
    for each in actors:
        each.stop()


async def _drain(scene: Scene, control: AmqpControl, worker: AmqpPublisher) -> None:
    """The worker consumes what it publishes, over the same socket."""
    await control.qos(10)
    consumer = scene.cast(await control.consume("consumer", "work"))
    consumer.message_seconds = MESSAGE_SECONDS
    scene.say("now the same connection consumes, too: its acks lie behind the held publishes")
    fullest = 0
    watcher = await AmqpControl.open(await scene.amqp("watcher"))
    while len(consumer.bodies) < 3 * LENGTH_MAX and consumer.message_seconds:
        fullest = max(fullest, await watcher.ready("work") + consumer.unacked)
        await scene.wait(0.05)
    scene.check(
        "no dead-lock: as it settles, its own publishes go on",
        len(worker.confirmed_numbers) >= 3 * LENGTH_MAX,
        f"{len(worker.confirmed_numbers)} stored, {len(consumer.bodies)} settled",
    )
    scene.check(
        "the queue stayed at its length", fullest <= LENGTH_MAX + WINDOW, f"at most {fullest}"
    )
    worker.stop()
    consumer.message_seconds = 0.0
    await scene.check_nothing_lost([worker], consumer)
    scene.check("nothing was nacked", not worker.nacked_numbers)
    scene.dismiss(worker, consumer)


async def _bounded(scene: Scene) -> None:
    """Nobody makes room: the hold ends."""
    held = scene.cast(
        await AmqpPublisher.start(
            await scene.amqp("patient"), "patient", "lonely", per_second=500, count_max=WINDOW
        )
    )
    began = time.monotonic()
    await scene.until(lambda: len(held.confirmed_numbers) == LONELY_MAX, SECONDS_MAX)
    control = await AmqpControl.open(await scene.amqp("without confirms"))
    control.publish("lonely", b"one more")
    is_answered = await scene.until(lambda: held.is_done, HOLD_S + 4)
    waited = time.monotonic() - began
    scene.check(
        "a hold ends with a nack after flow.hold_ms_max",
        is_answered and len(held.nacked_numbers) == WINDOW - LONELY_MAX and waited >= HOLD_S - 0.5,
        f"{len(held.nacked_numbers)} nacked after {waited:.1f} s",
    )
    is_closed = await scene.until(lambda: bool(control.closed_text), 4)
    scene.check(
        "who asked for no confirms loses the channel, and is told the queue",
        is_closed and "lonely" in control.closed_text,
        control.closed_text,
    )
