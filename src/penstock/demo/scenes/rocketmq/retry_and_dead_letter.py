"""Retry and dead letter: a message that cannot be consumed comes back later, and at last is buried.

The consumer gives it back; the broker stores it anew for the group's retry topic, one delay level
later each time. Other messages of the queue are not held up. When its tries are used up it goes to
the dead-letter topic of the group, with the story of where it came from. To wait for a next try is
no fault of anybody's; a letter that nobody takes is, and the broker says where it lies.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from penstock.cli.remoting import RemotingClient
from penstock.demo.scenes.scene import Blame, Scene
from penstock.model.names import object_id
from penstock.wire.rocketmq.bodies import ConsumerData, SubscriptionData
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.headers import SendBackHeader
from penstock.wire.rocketmq.stored import StoredMessage

GROUP: Final = "billing"
RETRY: Final = f"%RETRY%{GROUP}"
DEAD: Final = f"%DLQ%{GROUP}"
DEAD_ID: Final = object_id("topic", DEAD)
LEVELS: Final = (1, 2)
"""1 s, then 5 s."""
DELAYS_S: Final = (1.0, 5.0)
BURIED_EVERY_S: Final = 1.0
"""Dead letters are told of while they come."""


async def play(scene: Scene) -> None:
    client = await scene.away(scene.rocketmq)
    message, sent_id = await scene.away(lambda: _first(scene, client))
    offset = 0
    for number, (level, delay_s) in enumerate(zip(LEVELS, DELAYS_S, strict=True), 1):
        await scene.away(partial(_give_back, client, message, level))
        scene.say(f"given back, try {number}, delay level {level}")
        message = await scene.away(partial(_next_try, scene, client, offset, number, delay_s))
        offset = message.queue_offset + 1
    answer = (await scene.flow())["answer"]
    scene.check("it waits, and all is well", answer["severity"] == "ok", answer["sentence"])
    claim = "the broker names the topic of letters that nobody takes"
    async with _burying(scene, client, message):
        page = await scene.check_answer(claim, Blame("dead", "dead-letters", DEAD_ID))
    named = [each["id"] for each in page["answer"]["waiters"]]
    scene.check("and where they come from", named == ["topic/orders"], ", ".join(named))
    await scene.away(lambda: _is_buried(scene, client, sent_id))


@contextlib.asynccontextmanager
async def _burying(
    scene: Scene, client: RemotingClient, message: StoredMessage
) -> AsyncIterator[None]:
    """It is given back for good, again and again, as long as somebody looks."""
    is_seen = asyncio.Event()

    async def bury() -> None:
        while not is_seen.is_set():
            await scene.away(partial(_give_back, client, message, 0))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_seen.wait(), BURIED_EVERY_S)

    burials = asyncio.create_task(bury())
    try:
        yield
    finally:
        is_seen.set()
        await burials


def _first(scene: Scene, client: RemotingClient) -> tuple[StoredMessage, str]:
    """A message that cannot be consumed, and what its sender knows it by."""
    client.create_topic("orders", 1)
    wanted = SubscriptionData(topic="orders", sub_version=1)
    client.heartbeat(ConsumerData(group_name=GROUP, subscription_data_set=[wanted]))
    sent = client.send("orders", b"poison", keys="order-13")
    client.send("orders", b"wholesome")
    poison, wholesome = client.pull("orders", consumer_group=GROUP).messages
    scene.check("the next message is there at once", wholesome.body == b"wholesome")
    return poison, sent.ext["msgId"]


def _next_try(
    scene: Scene, client: RemotingClient, offset: int, number: int, delay_s: float
) -> StoredMessage:
    began = time.monotonic()
    (message,) = client.pull(RETRY, 0, offset, consumer_group=GROUP, hold_ms=15_000).messages
    waited = time.monotonic() - began
    scene.check(
        f"try {number} comes after {delay_s:.0f} s, counted",
        message.reconsume_times == number and delay_s - 0.5 < waited < delay_s + 3,
        f"{waited:.1f} s, reconsumeTimes {message.reconsume_times}",
    )
    return message


def _is_buried(scene: Scene, client: RemotingClient, sent_id: str) -> None:
    buried, *_ = client.pull(DEAD, consumer_group=GROUP, hold_ms=5000).messages
    properties = buried.property_map()
    scene.check("out of tries, it lies in the dead-letter topic", buried.body == b"poison")
    scene.check(
        "it says where it came from",
        properties.get("RETRY_TOPIC") == "orders"
        and properties.get("ORIGIN_MESSAGE_ID") == sent_id,
        f"RETRY_TOPIC {properties.get('RETRY_TOPIC')}, "
        f"ORIGIN_MESSAGE_ID {properties.get('ORIGIN_MESSAGE_ID')}",
    )


def _give_back(client: RemotingClient, message: StoredMessage, level: int) -> None:
    header = SendBackHeader(
        offset=message.commit_log_offset,
        group=GROUP,
        delay_level=level,
        origin_topic="orders",
        origin_msg_id=message.offset_message_id,
        max_reconsume_times=len(LEVELS),
    )
    client.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
