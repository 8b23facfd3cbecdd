"""What both alarm scenes play: one connection publishes and consumes while an alarm is raised (F3).

The connection that publishes hears ``connection.blocked`` once, with the reason, and none of its
publishes is stored meanwhile. But it is read on: its consumer gets and settles everything with a
prefetch of ten, which it could not without its acks, and its declares are answered (D23). Whoever
only consumes hears nothing. When the alarm is over, all that was held is stored, by itself.
"""

from typing import Any, Final, NamedTuple

from penstock.demo.amqp_actors import AmqpConsumer, AmqpControl, AmqpLink, AmqpPublisher
from penstock.demo.scenes.scene import Blame, Scene
from penstock.server.faults import FaultOrder

PER_SECOND: Final = 1000
RETURNS: Final = 300
"""Messages that the same connection consumes during the alarm."""
PREFETCH: Final = 10


class Alarm(NamedTuple):
    """What makes it, what a client hears, what an operator reads."""

    order: FaultOrder
    words: str
    kind: str


class Cast(NamedTuple):
    """Who plays."""

    shop: AmqpLink
    publisher: AmqpPublisher
    reader: AmqpConsumer


async def play_alarm(scene: Scene, alarm: Alarm) -> None:
    cast = await _set_up(scene)
    await scene.wait(1.0)
    await _raise(scene, alarm, cast)
    await _clear(scene, cast)
    cast.publisher.stop()
    await scene.check_nothing_lost([cast.publisher], cast.reader)


async def _set_up(scene: Scene) -> Cast:
    control = await AmqpControl.open(await scene.amqp("reader"))
    await control.declare("orders")
    await control.declare("returns")
    await control.qos(100)
    reader = await control.consume("reader", "orders")
    shop = await scene.amqp("shop")
    filler = await AmqpPublisher.start(
        shop, "filler", "returns", per_second=3000, channel=3, count_max=RETURNS
    )
    await scene.until(lambda: filler.is_done, 5)
    publisher = await AmqpPublisher.start(shop, "shop", "orders", per_second=PER_SECOND)
    return Cast(shop, scene.cast(publisher), scene.cast(reader))


async def _raise(scene: Scene, alarm: Alarm, cast: Cast) -> None:
    shop, publisher = cast.shop, cast.publisher
    scene.order(alarm.order)
    is_told = await scene.until(lambda: shop.is_blocked, 3)
    scene.check(
        "the client hears connection.blocked with the reason",
        is_told and [each.reason for each in shop.notices] == [alarm.words],
        f"{[each.reason for each in shop.notices]}",
    )
    scene.say(f"the client hears connection.blocked: {shop.notices[0].reason if is_told else '-'}")
    await scene.wait(0.3)
    before = len(publisher.confirmed_numbers)
    control = await AmqpControl.open(shop, 2)
    await control.qos(PREFETCH)
    returns = scene.cast(await control.consume("returns", "returns"))
    is_drained = await scene.until(lambda: len(returns.bodies) >= RETURNS, 6)
    left = await control.ready("returns")
    await AmqpControl.open(await scene.amqp("newcomer"))
    await _check_page(scene, alarm)
    after = len(publisher.confirmed_numbers)
    scene.check("no publish is stored during the alarm", after == before, f"{after:,} confirmed")
    scene.check(
        "the same connection consumes and settles on, ten at a time",
        is_drained and returns.unacked_peak <= PREFETCH,
        f"{len(returns.bodies)} settled, at most {returns.unacked_peak} unacked",
    )
    scene.check(
        "its declares are answered, and others can connect",
        left == 0,
        f"queue.declare says {left} ready",
    )
    scene.check("who only consumes hears nothing", not cast.reader.link.notices)


async def _check_page(scene: Scene, alarm: Alarm) -> None:
    named = Blame("alarm", alarm.kind, f"alarm/{alarm.kind}")
    await scene.check_answer("the broker names the alarm", named)
    wanted = ["blocked", "blocking", "blocking"]
    page = await scene.flow_when(lambda page: _states(page) == wanted)
    states = _states(page)
    scene.check(
        "who publishes is blocked, the others are blocking",
        states == wanted,
        f"connections: {', '.join(states)}",
    )


def _states(page: dict[str, Any]) -> list[str]:
    return sorted(each["state"] for each in page["stages"] if each["kind"] == "connection")


async def _clear(scene: Scene, cast: Cast) -> None:
    shop, publisher = cast.shop, cast.publisher
    before = len(publisher.confirmed_numbers)
    scene.order(FaultOrder("clear"))
    is_told = await scene.until(lambda: not shop.is_blocked, 3)
    is_resumed = await scene.until(
        lambda: len(publisher.confirmed_numbers) > before + PER_SECOND, 5
    )
    scene.check(
        "it hears connection.unblocked, once",
        is_told and len(shop.notices) == 2,
        f"blocked for {shop.notices[-1].at_s - shop.notices[0].at_s:.1f} s" if is_told else "",
    )
    scene.check("what was held is stored, and publishing goes on by itself", is_resumed)
