"""Credit flow: a slow stage holds the one before it, and that one the next, up to the socket (F1).

RabbitMQ's chain: connection, channel, queue, log. First one queue stands still: the channel that
publishes to it runs out of credit, then its connection, and both are in state ``flow``; who
publishes to another queue feels nothing. Then the disk stands still: all queues wait for the log,
and so does everybody before them. Each stage names the next one, the diagnosis names the last. At
the end the credit of a hop is changed while messages wait: more of them fit, at once.
"""

from typing import Any, Final

from penstock.demo.amqp_actors import AmqpControl, AmqpPublisher
from penstock.demo.scenes.scene import SLOW_DISK, Blame, Scene
from penstock.model.names import topic_name
from penstock.server.faults import FaultOrder

PER_SECOND: Final = 1500
SMALL: Final[dict[str, Any]] = {"hop": "channel_queue", "credit": 100, "more": 50}
LARGE: Final[dict[str, Any]] = {"hop": "channel_queue", "credit": 1000, "more": 500}
SECONDS_MAX: Final = 5.0
HOLD_MS: Final = 20_000
"""Long enough for any machine; each hold is ended by hand."""


async def play(scene: Scene) -> None:
    control = await AmqpControl.open(await scene.amqp("reader"))
    await control.declare("orders")
    await control.declare("others")
    await control.qos(500)
    reader = await control.consume("reader", "orders")
    orders, others = [
        scene.cast(
            await AmqpPublisher.start(
                await scene.amqp(name), name, name, per_second=PER_SECOND, window=4 * PER_SECOND
            )
        )
        for name in ("orders", "others")
    ]
    scene.cast(reader)
    await scene.wait(1.0)
    await _slow_queue(scene, others)
    await _slow_disk(scene, orders)
    await _credit(scene)
    orders.stop()
    others.stop()
    await scene.check_nothing_lost([orders], reader)


async def _slow_queue(scene: Scene, others: AmqpPublisher) -> None:
    scene.order(FaultOrder("queue-delay", ms=HOLD_MS, topic="orders"))
    claim = "the broker names what holds the queue"
    named = Blame("holding", "external", "fault/queue-delay")
    page = await scene.check_answer(claim, named, shows=_is_held, seconds_max=SECONDS_MAX)
    before = len(others.confirmed_numbers)
    waits = _waits(page)
    scene.say(f"who waits for whom: {waits}")
    held = set(_waits(page))
    scene.check(
        "a queue that stands still holds its channel and its connection",
        held >= {"connection", "channel", "queue"},
        f"in state flow: {', '.join(sorted(held))}",
    )
    scene.check(
        "each of them names the next one",
        "channel" in waits.get("connection", "") and waits.get("channel") == "queue orders",
        f"{waits}",
    )
    is_free = await scene.until(
        lambda: len(others.confirmed_numbers) > before + PER_SECOND / 2, SECONDS_MAX
    )
    scene.check("publishers to another queue do not wait", is_free)
    scene.order(FaultOrder("clear"))
    await scene.wait(1.5)


async def _slow_disk(scene: Scene, orders: AmqpPublisher) -> None:
    scene.order(FaultOrder("store-hold", ms=HOLD_MS))
    named = Blame("holding", SLOW_DISK, "log")
    page = await scene.check_answer("the broker names the log", named, shows=_is_held)
    held = [stage["name"] for stage in page["stages"] if stage["kind"] == "queue"]
    scene.check(
        "a disk that stands still holds everybody",
        set(held) >= {"orders", "others"},
        f"queues held: {', '.join(held)}",
    )
    before = len(orders.confirmed_numbers)
    scene.order(FaultOrder("clear"))
    is_going_on = await scene.until(
        lambda: len(orders.confirmed_numbers) > before + PER_SECOND, SECONDS_MAX
    )
    scene.check("all of them go on by themselves", is_going_on)
    await scene.wait(1.5)


async def _credit(scene: Scene) -> None:
    topic = scene.broker.engine.topic(topic_name("orders"))
    assert topic is not None
    inbox = topic.queues[0].inbox
    await scene.ask("PUT", "/api/flow/credit", SMALL)
    scene.order(FaultOrder("queue-delay", ms=HOLD_MS, topic="orders"))
    await scene.flow_when(_is_held, SECONDS_MAX)
    await scene.wait(0.5)
    small = inbox.messages
    await scene.ask("PUT", "/api/flow/credit", LARGE)
    # Up to one step of what was processed before is not given back yet.
    is_more = await scene.until(
        lambda: inbox.messages > LARGE["credit"] - LARGE["more"], SECONDS_MAX
    )
    scene.say(f"credit 100: {small} messages wait in the queue; credit 1000: {inbox.messages}")
    scene.check(
        "credit bounds what waits in the queue, and is changed while they wait",
        is_more and SMALL["credit"] - SMALL["more"] < small <= 2 * SMALL["credit"],
        f"credit 100: {small} messages; credit 1000: {inbox.messages}",
    )
    scene.order(FaultOrder("clear"))


def _is_held(page: dict[str, Any]) -> bool:
    """True once it has come as far as a socket."""
    return "connection" in _waits(page)


def _waits(page: dict[str, Any]) -> dict[str, str]:
    """Kind of stage -> whom the first one of it that is held waits for."""
    waits: dict[str, str] = {}
    for stage in page["stages"]:
        if stage["state"] == "flow":
            waits.setdefault(stage["kind"], stage["culprit"])
    return waits
