"""Pending publishes: so many may be unconfirmed per connection, then its socket rests (F9).

Pulsar's limit, for AMQP publishers here: 200 (by default AMQP has none, credit and bytes decide).
The disk stops answering, so nothing is confirmed. Who sends without waiting for confirms is read
until 200 of its publishes are unconfirmed; the rest stays in its own socket. Who keeps fewer than
that under way is not touched. The broker names the limit. When the disk answers, the publisher
goes on by itself, and everything is confirmed that was sent.
"""

from typing import Any, Final

from penstock.demo.amqp_actors import AmqpControl, AmqpPublisher
from penstock.demo.scenes.scene import SLOW_DISK, Blame, Scene
from penstock.server.faults import FaultOrder

PENDING_MAX: Final = 200
SETTINGS: Final = {"amqp.pending_publishes_max": f"{PENDING_MAX}"}
PER_SECOND: Final = 1000
WINDOW: Final = 50
HOLD_MS: Final = 20_000
"""Long enough for any machine; the hold is ended by hand."""
SECONDS_MAX: Final = 8.0
STILL_SECONDS: Final = 0.7
"""What has not come after that long does not come."""


async def play(scene: Scene) -> None:
    control = await AmqpControl.open(await scene.amqp("reader"))
    await control.declare("orders")
    reader = scene.cast(await control.consume("reader", "orders"))
    eager, careful = [
        scene.cast(
            await AmqpPublisher.start(
                await scene.amqp(name), name, "orders", per_second=PER_SECOND, window=window
            )
        )
        for name, window in (("eager", 1 << 30), ("careful", WINDOW))
    ]
    await scene.wait(0.5)
    await _stands_still(scene, eager, careful)
    await _goes_on(scene, eager)
    eager.stop()
    careful.stop()
    await scene.check_nothing_lost([eager, careful], reader)


async def _stands_still(scene: Scene, eager: AmqpPublisher, careful: AmqpPublisher) -> None:
    scene.order(FaultOrder("store-hold", ms=HOLD_MS))
    await scene.until(lambda: _pending(scene) >= PENDING_MAX, SECONDS_MAX)
    await scene.wait(STILL_SECONDS)
    before = _pending(scene)
    await scene.wait(STILL_SECONDS)
    page = await scene.check_answer(
        "the broker blames the disk for it",
        Blame("holding", SLOW_DISK, "log"),
        shows=lambda page: bool(_held(page)),
    )
    held = _held(page)
    scene.check(
        "its socket rests at 200 unconfirmed publishes",
        _pending(scene) == before < 2 * PENDING_MAX and eager.outstanding > before,
        f"{before} were taken in, {eager.outstanding - before} more wait in its socket",
    )
    scene.check(
        "the broker shows who is held, by what and since when",
        [_words(each) for each in held] == ["connection flow 200 unconfirmed publishes"]
        and held[0]["since_ms"] < page["at_ms"],
        f"{[_words(each) for each in held]}",
    )
    waiting = {each["name"] for each in page["answer"]["waiters"]}
    scene.check(
        "who is held by the limit is among those who wait for it",
        {each["name"] for each in held} <= waiting,
        ", ".join(waiting),
    )
    scene.check(
        "who keeps fewer under way is not held by it",
        careful.outstanding == WINDOW,
        f"{careful.outstanding} under way",
    )


async def _goes_on(scene: Scene, eager: AmqpPublisher) -> None:
    before = len(eager.confirmed_numbers)
    scene.order(FaultOrder("clear"))
    is_going_on = await scene.until(
        lambda: len(eager.confirmed_numbers) > before + PER_SECOND, SECONDS_MAX
    )
    scene.check(
        "when the disk answers it is read on, and confirmed",
        is_going_on and not eager.nacked_numbers,
        f"{len(eager.confirmed_numbers) - before:,} more confirmed",
    )


def _held(page: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in page["stages"] if each["reason"] == "pending"]


def _pending(scene: Scene) -> int:
    """Unconfirmed publishes of the connection that has most of them."""
    return max(each.pending.count for each in scene.broker.engine.connections)


def _words(stage: dict[str, Any]) -> str:
    return f"{stage['kind']} {stage['state']} {stage['culprit']}"
