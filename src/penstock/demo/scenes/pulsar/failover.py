"""Failover: one consumer is active, the others stand by, and partitions are spread (P3).

Two clients have a consumer each in all four partitions of a topic: each is active in two of them,
and stands by in the others. One of them stops acking, and then its process is gone: a second later
the other one is told that it is active everywhere, and gets what was not acked first, in the order
in which it was sent. Then somebody of a better priority joins: it takes over after a second, too,
and nobody is sent anything meanwhile that somebody else has. Each partition is read in its order.
"""

import time
from typing import Any, Final

from penstock.demo.pulsar_actors import PulsarConsumer, PulsarLink, PulsarProducer
from penstock.demo.scenes.scene import Scene

TOPIC: Final = "ledger"
PARTITIONS: Final = 4
PER_SECOND: Final = 100
DELAY_SECONDS: Final = 1.0
"""As it is by default (``pulsar.active_consumer_failover_delay_ms``)."""
FIRST: Final = 0
"""A priority: the lowest number goes first."""
SECONDS_MAX: Final = 8.0
STEADY_SECONDS: Final = 0.7
"""For whoever looks on."""


class Client:
    """A process: one connection, and a consumer in each partition."""

    def __init__(self, name: str, consumers: list[PulsarConsumer]) -> None:
        self.name: Final = name
        self.consumers: Final = consumers
        self._last = 0

    @classmethod
    async def start(cls, scene: Scene, name: str, priority: int = 1) -> "Client":
        link = await scene.pulsar(name)
        return cls(
            name, [await _join(link, name, number, priority) for number in range(PARTITIONS)]
        )

    @property
    def active(self) -> list[int]:
        """The partitions in which it was told that it is the one."""
        return [number for number, each in enumerate(self.consumers) if each.is_active]

    @property
    def acked(self) -> int:
        return sum(len(each.bodies) for each in self.consumers)

    @property
    def unacked(self) -> int:
        return sum(each.unacked for each in self.consumers)

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        rate = (self.acked - self._last) / seconds
        self._last = self.acked
        where = f"active in {', '.join(map(str, self.active))}" if self.active else "stands by"
        return f"{self.name} {rate:4,.0f}/s ({self.unacked} unacked) {where}"

    def leave(self) -> None:
        """Gone, without a word."""
        for each in self.consumers:
            each.leave()


async def _join(link: PulsarLink, name: str, partition: int, priority: int) -> PulsarConsumer:
    return await PulsarConsumer.subscribe(
        link, name, f"{TOPIC}-partition-{partition}", "audit",
        kind="Failover", priority_level=priority,
    )  # fmt: skip


async def play(scene: Scene) -> None:
    await scene.ask("PUT", f"/admin/v2/persistent/public/default/{TOPIC}/partitions", PARTITIONS)
    ann = scene.cast(await Client.start(scene, "ann"))
    ben = scene.cast(await Client.start(scene, "ben"))
    link = await scene.pulsar("tills")
    producers = [await _till(link, number) for number in range(PARTITIONS)]
    await _spread(scene, ann, ben)
    await _one_goes(scene, ann, ben)
    cat = await _one_comes(scene, ben)
    for each in producers:
        each.stop()
    await _nothing_lost(scene, producers, [ann, ben, cat])


async def _till(link: PulsarLink, number: int) -> PulsarProducer:
    return await PulsarProducer.start(
        link, f"till-{number}", f"{TOPIC}-partition-{number}", per_second=PER_SECOND
    )


async def _spread(scene: Scene, ann: Client, ben: Client) -> None:
    is_spread = await scene.until(
        lambda: [ann.active, ben.active] == [[0, 2], [1, 3]] and min(ann.acked, ben.acked) > 50,
        SECONDS_MAX,
    )
    scene.check(
        "partitions are spread: each is active in two, and told so",
        is_spread,
        f"ann in {ann.active}, ben in {ben.active}",
    )
    page = await scene.flow()
    blocked = [_blocked_by(page, "ben", number) for number in range(PARTITIONS)]
    scene.check(
        "the broker says where it stands by",
        [number for number, why in enumerate(blocked) if "inactive" in why] == [0, 2],
        f"ben in 0 to 3: {', '.join(why[0] if why else 'is served' for why in blocked)}",
    )
    idle = [*ann.consumers[1::2], *ben.consumers[0::2]]
    came = sum(each.arrived_messages for each in idle)
    scene.check("who stands by is sent nothing", came == 0, f"{came} messages")


async def _one_goes(scene: Scene, ann: Client, ben: Client) -> None:
    for each in ann.consumers:
        each.is_acking = False
    await scene.until(lambda: ann.unacked >= PER_SECOND, SECONDS_MAX)
    left = [_unacked(each) for each in ann.consumers]
    gone_at = time.monotonic()
    scene.dismiss(ann)
    scene.say(f"ann's process is gone, with {sum(map(len, left))} messages that it did not ack")
    is_over = await scene.until(lambda: ben.active == [0, 1, 2, 3], SECONDS_MAX)
    took = ben.consumers[0].notices[-1][0] - gone_at
    scene.check(
        "a second later the other one is active everywhere",
        is_over and took > DELAY_SECONDS - 0.1,
        f"it was told after {took:.1f} s",
    )
    heirs = [(ben.consumers[number], left[number]) for number in (0, 2)]
    await scene.until(lambda: all(len(heir.bodies) > len(own) for heir, own in heirs), SECONDS_MAX)
    is_first = [heir.bodies[: len(own)] == own for heir, own in heirs]
    counts = {each.redeliveries for heir, own in heirs for each in heir.entries[: len(own)]}
    scene.check(
        "it gets what was not acked first, in order, and nobody counts that as an attempt",
        is_first == [True, True] and counts == {0},
        f"{' + '.join(str(len(own)) for _, own in heirs)} messages",
    )


async def _one_comes(scene: Scene, ben: Client) -> Client:
    cat = scene.cast(await Client.start(scene, "cat", priority=FIRST))
    is_over = await scene.until(
        lambda: (cat.active, ben.active) == ([0, 1, 2, 3], []) and cat.acked > 50, SECONDS_MAX
    )
    await scene.wait(STEADY_SECONDS)
    scene.check(
        "who joins with a better priority takes over, and the other one is told",
        is_over,
        f"cat is active in {cat.active}, ben in {ben.active}",
    )
    return cat


async def _nothing_lost(
    scene: Scene, producers: list[PulsarProducer], clients: list[Client]
) -> None:
    await scene.until(lambda: not any(each.outstanding for each in producers), SECONDS_MAX)
    stored = sum(len(each.confirmed_numbers) for each in producers)
    is_drained = await scene.until(lambda: sum(each.acked for each in clients) >= stored, 5)
    acked = sum(each.acked for each in clients)
    scene.check(
        "confirmed = acked, once",
        is_drained and acked == stored,
        f"{stored:,} confirmed, {acked:,} acked",
    )
    orders = [[body for each in clients for body in each.consumers[number].bodies]
              for number in range(PARTITIONS)]  # fmt: skip
    wanted = [[b"till-%d %d" % (number, each) for each in range(1, len(order) + 1)]
              for number, order in enumerate(orders)]  # fmt: skip
    scene.check(
        "each partition was acked in the order in which it was sent, whoever did it",
        orders == wanted,
        " + ".join(str(len(order)) for order in orders),
    )


def _unacked(consumer: PulsarConsumer) -> list[bytes]:
    return [body for each in consumer.entries for body in each.bodies][len(consumer.bodies) :]


def _blocked_by(page: dict[str, Any], name: str, partition: int) -> list[str]:
    """Why that client gets nothing in that partition; empty = it does."""
    consumers = [each for stage in page["stages"] for each in stage["consumers"]]
    label = f"{name} of audit, partition {partition}, on "
    return next(each["blocked_by"] for each in consumers if each["name"].startswith(label))
