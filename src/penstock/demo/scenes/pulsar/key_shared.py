"""Key_Shared: each key has one consumer, also while consumers come and go (P3).

Orders of forty customers, and the customer is the key. Two consumers share them: each customer's
orders go to one of the two. One of them stops acking, and a third consumer joins, to whom some
customers of both fall. Those of the one that acks come to it at once; those of the other one wait
until what their former owner holds is acked, while everybody else's orders flow on; the broker says
for whom they wait. It acks, and they come. Then its process is gone, and its customers fall to the
others. Whatever happened, the applications got each customer's orders in the order in which they
were placed. Nothing here is raw: every consumer and producer is our own client.
"""

from typing import Any, Final

from penstock.client.pulsar import SubscriptionType
from penstock.demo.pulsar_actors import ClientConsumer, ClientProducer
from penstock.demo.scenes.scene import SOON_BEHIND, Blame, Scene

SETTINGS: Final = SOON_BEHIND
TOPIC: Final = "orders"
CUSTOMERS: Final = 40
PER_SECOND: Final = 400
SECONDS_MAX: Final = 8.0
STILL_SECONDS: Final = 0.7
"""What has not come after that long does not come."""


async def play(scene: Scene) -> None:
    ann, ben = [await _clerk(scene, name) for name in ("ann", "ben")]
    shop = scene.cast(
        await ClientProducer.start(
            scene.pulsar_process(), "shop", TOPIC, per_second=PER_SECOND, key_of=_customer
        )
    )
    await scene.wait(STILL_SECONDS)
    await _shared_out(scene, ann, ben)
    cem = await _one_joins(scene, ann, ben)
    await _drained(scene, ann, cem)
    await _one_goes(scene, ann)
    shop.stop()
    await scene.check_nothing_lost([shop], _Together([ann, ben, cem]))
    _in_order(scene, [ann, ben, cem])


async def _clerk(scene: Scene, name: str) -> ClientConsumer:
    return scene.cast(
        await ClientConsumer.start(
            scene.pulsar_process(), name, TOPIC, "clerks", kind=SubscriptionType.KEY_SHARED
        )
    )


def _customer(number: int) -> str:
    return f"customer {number % CUSTOMERS}"


async def _shared_out(scene: Scene, ann: ClientConsumer, ben: ClientConsumer) -> None:
    await scene.until(lambda: len(_customers(ann) | _customers(ben)) == CUSTOMERS, SECONDS_MAX)
    scene.check(
        "each customer's orders go to one of the two",
        not _customers(ann) & _customers(ben)
        and len(_customers(ann) | _customers(ben)) == CUSTOMERS,
        f"{len(_customers(ann))} customers are ann's, {len(_customers(ben))} ben's",
    )


async def _one_joins(scene: Scene, ann: ClientConsumer, ben: ClientConsumer) -> ClientConsumer:
    of_ann, of_ben = _customers(ann), _customers(ben)
    await ann.stop_acking()
    await scene.until(lambda: _held(ann) == of_ann, SECONDS_MAX)
    scene.say("ann has orders of all its customers, and acks none; cem joins")
    cem = await _clerk(scene, "cem")
    await scene.until(lambda: bool(_customers(cem)), SECONDS_MAX)
    before = len(ben.acked)
    await scene.wait(STILL_SECONDS)
    taken = _customers(cem)
    scene.check(
        "a customer who moves to another consumer waits while the former one has orders of his",
        bool(taken) and taken < of_ben,
        f"cem has {len(taken)} customers who were ben's, and none of ann's yet",
    )
    scene.check(
        "everybody else's orders flow meanwhile",
        len(ben.acked) > before,
        f"{len(ben.acked) - before} acked by ben",
    )
    claim = "the broker says why they wait"
    blame = Blame("behind", "draining", "sub/orders/pulsar%2F")
    page = await scene.check_answer(claim, blame, seconds_max=SECONDS_MAX)
    blocked = _blocked_by(page, "cem")
    scene.check("and whom they would go to", "draining" in blocked, f"cem: {blocked}")
    return cem


async def _drained(scene: Scene, ann: ClientConsumer, cem: ClientConsumer) -> None:
    before = _customers(cem)
    ann.is_acking = True
    is_moved = await scene.until(lambda: bool(_customers(cem) - before), SECONDS_MAX)
    moved = _customers(cem) - before
    scene.check(
        "once they are acked, the new owner gets what waited",
        is_moved and moved <= _customers(ann),
        f"{len(moved)} customers moved from ann to cem",
    )


async def _one_goes(scene: Scene, ann: ClientConsumer) -> None:
    await ann.stop_acking()
    held = _customers(ann)
    await scene.until(lambda: ann.unacked > PER_SECOND // 10, SECONDS_MAX)
    scene.say(f"ann's process is gone, with {ann.unacked} orders that it did not ack")
    scene.check("somebody goes who has orders in hand", ann.unacked > 0 and bool(held))
    scene.dismiss(ann)
    await scene.wait(STILL_SECONDS)


def _in_order(scene: Scene, clerks: list[ClientConsumer]) -> None:
    """By the time of arrival; what comes again counts where it came first."""
    arrivals = sorted(
        (each.at_s, each.key, int(each.body.split()[1])) for clerk in clerks for each in clerk.taken
    )
    last: dict[str, int] = {}
    torn = 0
    for _, key, number in arrivals:
        torn += number > last.get(key, number - CUSTOMERS) + CUSTOMERS
        last[key] = max(number, last.get(key, 0))
    scene.check(
        "each customer's orders came one after the other, whoever had them",
        torn == 0 and len(last) == CUSTOMERS,
        f"{len(arrivals):,} deliveries for {len(last)} customers, {torn} out of order",
    )


class _Together:
    """Several consumers as one, for what they acked."""

    def __init__(self, consumers: list[ClientConsumer]) -> None:
        self._consumers = consumers

    @property
    def bodies(self) -> list[bytes]:
        return [body for each in self._consumers for body in each.bodies]


def _customers(consumer: ClientConsumer) -> set[str]:
    return {each.key for each in consumer.taken}


def _held(consumer: ClientConsumer) -> set[str]:
    """Customers of whom it has orders that it did not ack."""
    return {each.key for each in consumer.in_hand}


def _blocked_by(page: dict[str, Any], name: str) -> list[str]:
    consumers = [each for stage in page["stages"] for each in stage["consumers"]]
    return next(each["blocked_by"] for each in consumers if each["name"].startswith(name))
