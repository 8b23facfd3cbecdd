"""Failover: one consumer is active, the others stand by, and partitions are spread (P3).

Two clients consume a topic of four partitions: each is active in two of them, and stands by in the
others, as its application is told. One of them stops acking, and then its process is gone: a second
later the other one is told that it is active everywhere, and gets what was not acked first, in the
order in which it was sent. Then somebody of a better priority joins: it takes over after a second,
too, and nobody is sent anything meanwhile that somebody else has. Each partition is read in its
order. Nothing here is raw: every consumer and producer is our own client.
"""

import time
from typing import Any, Final

from penstock.client.pulsar import SubscriptionType
from penstock.demo.pulsar_actors import ClientConsumer, ClientProducer, Taken
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


async def play(scene: Scene) -> None:
    await scene.ask("PUT", f"/admin/v2/persistent/public/default/{TOPIC}/partitions", PARTITIONS)
    ann, ben = [await _client(scene, name) for name in ("ann", "ben")]
    tills = [await _till(scene, number) for number in range(PARTITIONS)]
    await _spread(scene, ann, ben)
    await _one_goes(scene, ann, ben)
    cat = await _one_comes(scene, ben)
    for each in tills:
        each.stop()
    await _nothing_lost(scene, tills, [ann, ben, cat])
    await scene.check_all_is_well()


async def _client(scene: Scene, name: str, priority: int = 1) -> ClientConsumer:
    return scene.cast(
        await ClientConsumer.start(
            scene.pulsar_process(), name, TOPIC, "audit",
            kind=SubscriptionType.FAILOVER, priority=priority,
        )
    )  # fmt: skip


async def _till(scene: Scene, number: int) -> ClientProducer:
    return await ClientProducer.start(
        scene.pulsar_process(), f"till-{number}", f"{TOPIC}-partition-{number}",
        per_second=PER_SECOND,
    )  # fmt: skip


async def _spread(scene: Scene, ann: ClientConsumer, ben: ClientConsumer) -> None:
    is_spread = await scene.until(
        lambda: (
            [ann.active, ben.active] == [[0, 2], [1, 3]]
            and min(len(ann.acked), len(ben.acked)) > 50
        ),
        SECONDS_MAX,
    )
    scene.check(
        "partitions are spread: each is active in two, and told so",
        is_spread,
        f"ann in {ann.active}, ben in {ben.active}",
    )
    page = await scene.flow_when(lambda page: _idle_in(page, "ben") == [0, 2])
    blocked = [_blocked_by(page, "ben", number) for number in range(PARTITIONS)]
    scene.check(
        "the broker says where it stands by",
        _idle_in(page, "ben") == [0, 2],
        f"ben in 0 to 3: {', '.join(why[0] if why else 'is served' for why in blocked)}",
    )
    idle = [*_of(ann.taken, 1), *_of(ann.taken, 3), *_of(ben.taken, 0), *_of(ben.taken, 2)]
    scene.check("who stands by is sent nothing", not idle, f"{len(idle)} messages")


async def _one_goes(scene: Scene, ann: ClientConsumer, ben: ClientConsumer) -> None:
    await ann.stop_acking()
    await scene.until(lambda: ann.unacked >= PER_SECOND, SECONDS_MAX)
    gone_at = time.monotonic()
    scene.dismiss(ann)
    left = {number: _bodies(ann.in_hand, number) for number in (0, 2)}
    scene.say(f"ann's process is gone, with {ann.unacked} messages that it did not ack")
    is_over = await scene.until(lambda: ben.active == [0, 1, 2, 3], SECONDS_MAX)
    took = ben.notices[-1].at_s - gone_at
    scene.check(
        "a second later the other one is active everywhere",
        is_over and took > DELAY_SECONDS - 0.1,
        f"it was told after {took:.1f} s",
    )
    await scene.until(
        lambda: all(len(_of(ben.acked, each)) > len(own) for each, own in left.items()),
        SECONDS_MAX,
    )
    firsts = {each: _of(ben.taken, each)[: len(own)] for each, own in left.items()}
    is_first = all([entry.body for entry in firsts[each]] == own for each, own in left.items())
    counts = {entry.message.redelivery_count for first in firsts.values() for entry in first}
    scene.check(
        "it gets what was not acked first, in order, and nobody counts that as an attempt",
        is_first and all(left.values()) and counts == {0},
        f"{' + '.join(str(len(own)) for own in left.values())} messages",
    )


async def _one_comes(scene: Scene, ben: ClientConsumer) -> ClientConsumer:
    cat = await _client(scene, "cat", priority=FIRST)
    is_over = await scene.until(
        lambda: (cat.active, ben.active) == ([0, 1, 2, 3], []) and len(cat.acked) > 50,
        SECONDS_MAX,
    )
    await scene.wait(STEADY_SECONDS)
    scene.say(f"ben's client says: {ben.why()}")
    scene.check(
        "who joins with a better priority takes over, and the other one is told",
        is_over,
        f"cat is active in {cat.active}, ben in {ben.active}",
    )
    return cat


async def _nothing_lost(
    scene: Scene, tills: list[ClientProducer], clients: list[ClientConsumer]
) -> None:
    await scene.until(lambda: not any(each.outstanding for each in tills), SECONDS_MAX)
    stored = sum(len(each.confirmed_numbers) for each in tills)
    is_drained = await scene.until(lambda: sum(len(each.acked) for each in clients) >= stored, 5)
    acked = sum(len(each.acked) for each in clients)
    scene.check(
        "confirmed = acked, once",
        is_drained and acked == stored,
        f"{stored:,} confirmed, {acked:,} acked",
    )
    orders = [[body for each in clients for body in _bodies(each.acked, number)]
              for number in range(PARTITIONS)]  # fmt: skip
    wanted = [[b"till-%d %d" % (number, each) for each in range(1, len(order) + 1)]
              for number, order in enumerate(orders)]  # fmt: skip
    scene.check(
        "each partition was acked in the order in which it was sent, whoever did it",
        orders == wanted,
        " + ".join(str(len(order)) for order in orders),
    )


def _of(entries: list[Taken], partition: int) -> list[Taken]:
    return [each for each in entries if each.partition == partition]


def _bodies(entries: list[Taken], partition: int) -> list[bytes]:
    return [each.body for each in _of(entries, partition)]


def _idle_in(page: dict[str, Any], name: str) -> list[int]:
    """Partitions in which it stands by."""
    return [each for each in range(PARTITIONS) if "inactive" in _blocked_by(page, name, each)]


def _blocked_by(page: dict[str, Any], name: str, partition: int) -> list[str]:
    """Why that client gets nothing in that partition; empty = it does."""
    consumers = [each for stage in page["stages"] for each in stage["consumers"]]
    label = f"{name} of audit, partition {partition}, on "
    return next(each["blocked_by"] for each in consumers if each["name"].startswith(label))
