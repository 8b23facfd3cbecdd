"""Retry and dead letter: a message that cannot be consumed comes back later, and at last is buried.

The consumer gives it back; the broker stores it anew for the group's retry topic, one delay level
later each time. Other messages of the queue are not held up. When its tries are used up it goes to
the dead-letter topic of the group, with the story of where it came from.
"""

import time
from typing import Final

from penstock.cli.remoting import RemotingClient
from penstock.demo.scenes.scene import Scene
from penstock.wire.rocketmq.bodies import ConsumerData, SubscriptionData
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.headers import SendBackHeader
from penstock.wire.rocketmq.stored import StoredMessage

GROUP: Final = "billing"
RETRY: Final = f"%RETRY%{GROUP}"
DEAD: Final = f"%DLQ%{GROUP}"
LEVELS: Final = (1, 2)
"""1 s, then 5 s."""
DELAYS_S: Final = (1.0, 5.0)


async def play(scene: Scene) -> None:
    client = await scene.away(scene.rocketmq)
    await scene.away(lambda: _play(scene, client))


def _play(scene: Scene, client: RemotingClient) -> None:
    client.create_topic("orders", 1)
    wanted = SubscriptionData(topic="orders", sub_version=1)
    client.heartbeat(ConsumerData(group_name=GROUP, subscription_data_set=[wanted]))
    sent = client.send("orders", b"poison", keys="order-13")
    client.send("orders", b"wholesome")
    poison, wholesome = client.pull("orders", consumer_group=GROUP).messages
    scene.check("the next message is there at once", wholesome.body == b"wholesome")
    offset = 0
    message = poison
    for number, (level, delay_s) in enumerate(zip(LEVELS, DELAYS_S, strict=True), 1):
        _give_back(client, message, level)
        scene.say(f"given back, try {number}, delay level {level}")
        began = time.monotonic()
        (message,) = client.pull(RETRY, 0, offset, consumer_group=GROUP, hold_ms=15_000).messages
        offset = message.queue_offset + 1
        waited = time.monotonic() - began
        scene.check(
            f"try {number} comes after {delay_s:.0f} s, counted",
            message.reconsume_times == number and delay_s - 0.5 < waited < delay_s + 3,
            f"{waited:.1f} s, reconsumeTimes {message.reconsume_times}",
        )
    _give_back(client, message, 0)
    (buried,) = client.pull(DEAD, consumer_group=GROUP, hold_ms=5000).messages
    properties = buried.property_map()
    scene.check("out of tries, it lies in the dead-letter topic", buried.body == b"poison")
    scene.check(
        "it says where it came from",
        properties.get("RETRY_TOPIC") == "orders"
        and properties.get("ORIGIN_MESSAGE_ID") == sent.ext["msgId"],
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
