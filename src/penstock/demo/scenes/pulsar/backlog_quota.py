"""Backlog quota: what becomes of producers when a consumer does not come along (F8, F9).

A topic may have 200 kB that its slowest subscription has not acked. Its consumer stops. With
``producer_request_hold`` receipts are withheld from the very message on that is too much, and from
nobody else: another producer on the same connection goes on, and so does the consumer, once it
wants to, which is on that connection, too; when it has made room, the receipts come. If it does not
in time (5 s here, 20 s by default), the producer is closed and keeps what has no receipt; it comes
again and hears 7 until there is room. With ``producer_exception`` it hears 8 and gives up what it
has. With ``consumer_backlog_eviction`` it notices nothing, and the oldest messages go. From outside
a producer that is held looks like one that hangs: our own client says what it waits for. All others
here are raw: a client keeps from its application that it was closed, and what it hears then.
"""

import asyncio
from functools import partial
from typing import Any, Final

from penstock.client.pulsar import Client, Producer, Waits
from penstock.demo.pulsar_actors import PulsarConsumer, PulsarLink, PulsarProducer
from penstock.demo.scenes.scene import Blame, Scene
from penstock.wire.pulsar.frames import ServerError

HOLD_SECONDS: Final = 5.0
"""Long enough to be looked at meanwhile."""
SETTINGS: Final = {"flow.hold_ms_max": f"{HOLD_SECONDS * 1000:.0f}"}
QUOTA_BYTES: Final = 200_000
BODY_BYTES: Final = 1_000
FEW: Final = 250
"""More messages than the quota has room for."""
PER_SECOND: Final = 500
QUEUE: Final = 10
SECONDS_MAX: Final = 8.0
STILL_SECONDS: Final = 0.7
"""What has not come after that long does not come."""


async def play(scene: Scene) -> None:
    link = await scene.pulsar("till")
    shop = scene.cast(await _producer(link, "shop", "orders"))
    news = scene.cast(await _producer(link, "news", "headlines"))
    await _set_quota(scene, "orders", "producer_request_hold")
    billing = scene.cast(
        await PulsarConsumer.subscribe(link, "billing", "orders", "billing", queue=QUEUE)
    )
    await scene.wait(STILL_SECONDS)
    await _withheld(scene, shop, news, billing)
    await _closed(scene, shop, billing)
    shop.stop()
    news.stop()
    await scene.check_nothing_lost([shop], billing)
    scene.dismiss(shop, news, billing)
    await _failed(scene)
    await _evicted(scene)
    await _says_why(scene)


async def _producer(link: PulsarLink, name: str, topic: str, **options: Any) -> PulsarProducer:
    return await PulsarProducer.start(
        link, name, topic, per_second=PER_SECOND, body_bytes=BODY_BYTES, **options
    )


async def _set_quota(scene: Scene, topic: str, policy: str) -> None:
    """What ``pulsar-admin topicPolicies set-backlog-quota`` does."""
    quota = {"limitSize": QUOTA_BYTES, "policy": policy}
    await scene.ask("POST", f"/admin/v2/persistent/public/default/{topic}/backlogQuota", quota)
    scene.say(f"{topic} has a quota of {QUOTA_BYTES:,} bytes: {policy}")


async def _withheld(
    scene: Scene, shop: PulsarProducer, news: PulsarProducer, billing: PulsarConsumer
) -> None:
    billing.is_taking = False
    scene.say("billing takes nothing more")
    await _stands_still(scene, shop)
    stored, others = len(shop.confirmed_numbers), len(news.confirmed_numbers)
    await scene.wait(STILL_SECONDS)
    page = await scene.check_answer(
        "the broker names the quota",
        Blame("holding", "quota", "limit/quota_bytes_max/topic/orders"),
        shows=lambda page: bool(_held(page)),
    )
    held = _held(page)
    scene.check(
        "over the quota receipts are withheld, and nobody is told off",
        len(shop.confirmed_numbers) == stored and shop.outstanding > 0 and shop.closes == 0,
        f"{shop.outstanding} without a receipt",
    )
    scene.check(
        "another producer on the same connection goes on",
        len(news.confirmed_numbers) > others + PER_SECOND * STILL_SECONDS / 4,
        f"{len(news.confirmed_numbers) - others} more confirmed",
    )
    scene.check(
        "the broker names who is held, and by what",
        bool(held) and all("backlog of topic 'orders'" in each["culprit"] for each in held),
        "; ".join(f"{each['kind']} {each['name']}: {each['culprit']}" for each in held),
    )
    billing.is_taking = True
    scene.say("billing goes on, by the same connection")
    is_going_on = await scene.until(
        lambda: len(shop.confirmed_numbers) > stored + PER_SECOND, SECONDS_MAX
    )
    scene.check("there is room again: the receipts come", is_going_on and shop.closes == 0)


async def _closed(scene: Scene, shop: PulsarProducer, billing: PulsarConsumer) -> None:
    billing.is_taking = False
    scene.say(f"billing takes nothing, for longer than {HOLD_SECONDS:.0f} s")
    await scene.until(lambda: bool(shop.refusals), SECONDS_MAX)
    codes = {each.code for each in shop.refusals}
    scene.check(
        "held for too long it is closed, keeps what it has, comes again and hears 7",
        shop.closes == 1
        and codes == {ServerError.ProducerBlockedQuotaExceededError}
        and not shop.failed_numbers,
        f"{shop.refusals[0]}" if shop.refusals else "",
    )
    billing.is_taking = True
    is_open = await scene.until(lambda: shop.is_open, SECONDS_MAX)
    scene.check("there is room again: it is let in", is_open, f"after {len(shop.refusals)} tries")


async def _failed(scene: Scene) -> None:
    shop, keeper = await _overfill(scene, "invoices", "producer_exception")
    await scene.until(lambda: shop.is_done, SECONDS_MAX)
    codes = {each.code for each in shop.refusals}
    scene.check(
        "producer_exception: it hears 8, and its application that the rest is not stored",
        codes == {ServerError.ProducerBlockedQuotaExceededException}
        and len(shop.confirmed_numbers) + len(shop.failed_numbers) == shop.sent,
        f"{len(shop.confirmed_numbers)} confirmed, {len(shop.failed_numbers)} failed",
    )
    scene.dismiss(shop, keeper)


async def _evicted(scene: Scene) -> None:
    shop, keeper = await _overfill(scene, "prices", "consumer_backlog_eviction")
    await scene.until(lambda: shop.is_done, SECONDS_MAX)
    keeper.flow(FEW)
    await scene.until(lambda: len(keeper.bodies) >= 100, SECONDS_MAX)
    await scene.wait(STILL_SECONDS)
    wanted = [b"shop %d" % number for number in range(1, FEW + 1)]
    scene.check(
        "consumer_backlog_eviction: it notices nothing, and the oldest messages are gone",
        shop.is_done
        and shop.closes == 0
        and keeper.bodies == wanted[-len(keeper.bodies) :]
        and len(keeper.bodies) < FEW,
        f"{len(shop.confirmed_numbers)} confirmed, the last {len(keeper.bodies)} are there",
    )


async def _says_why(scene: Scene) -> None:
    topic = "letters"
    keeper = scene.cast(
        await PulsarConsumer.subscribe(await scene.pulsar("keeper"), "keeper", topic, "s", queue=0)
    )
    await _set_quota(scene, topic, "producer_request_hold")
    async with Client(f"pulsar://{scene.broker.endpoints['pulsar']}") as client:
        producer = await client.create_producer_async(topic, batching_enabled=False)
        sends = [producer.send_async(bytes(BODY_BYTES)) for _ in range(FEW)]
        sentences = []
        for reason in (Waits.RECEIPTS, Waits.QUOTA):
            if await scene.until(partial(_waits_for, producer, reason), SECONDS_MAX):
                sentences.append(str(producer.why()))
                scene.say(f"our client says: {sentences[-1]}")
        await scene.ask("DELETE", f"/admin/v2/persistent/public/default/{topic}/backlogQuota")
        stored = await asyncio.gather(*sends)
    scene.check(
        "our own client says what it waits for: receipts first, then the quota",
        len(sentences) == 2,
        "; ".join(sentences),
    )
    scene.check("and everything it sent is stored once", len(set(stored)) == FEW)
    scene.dismiss(keeper)


def _waits_for(producer: Producer, reason: Waits) -> bool:
    """For so long that it is no accident."""
    why = producer.why()
    return why.reason is reason and (why.lasted_ms > 300 or reason is Waits.QUOTA)


async def _overfill(scene: Scene, topic: str, policy: str) -> tuple[PulsarProducer, PulsarConsumer]:
    """A topic with a quota, somebody who asks for nothing, and a producer of too much."""
    keeper = scene.cast(
        await PulsarConsumer.subscribe(await scene.pulsar("keeper"), "keeper", topic, "s", queue=0)
    )
    await _set_quota(scene, topic, policy)
    return scene.cast(
        await _producer(await scene.pulsar("shop"), "shop", topic, count_max=FEW)
    ), keeper


def _held(page: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in page["stages"] if each["reason"] == "quota"]


async def _stands_still(scene: Scene, producer: PulsarProducer) -> None:
    """Wait until it has not had a receipt for a while."""
    before = -1
    while before != len(producer.confirmed_numbers):
        before = len(producer.confirmed_numbers)
        await scene.wait(STILL_SECONDS / 3)
