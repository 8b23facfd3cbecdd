"""Ordered locks: a queue has one reader at a time, so its order survives a change of readers.

Two members of a group want four queues. The broker gives each queue to one of them; what the first
lets go, the second takes over, and goes on exactly where the first one stopped.
"""

from typing import Final

from penstock.cli.remoting import RemotingClient
from penstock.demo.scenes.scene import Scene
from penstock.wire.rocketmq.bodies import (
    LockBatchAnswer,
    LockBatchBody,
    MessageQueue,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode

GROUP: Final = "ledger"
TOPIC: Final = "accounts"
QUEUES: Final = (0, 1, 2, 3)
MESSAGES: Final = 60


async def play(scene: Scene) -> None:
    ann = await scene.away(scene.rocketmq)
    bob = await scene.away(scene.rocketmq)
    await scene.away(lambda: _play(scene, ann, bob))
    await scene.check_all_is_well()


def _play(scene: Scene, ann: RemotingClient, bob: RemotingClient) -> None:
    ann.create_topic(TOPIC, len(QUEUES))
    for number in range(MESSAGES):
        ann.send(TOPIC, b"%d" % number, queue_id=2)
    scene.check("ann locks three queues", _lock(ann, "ann", *QUEUES[:3]) == [0, 1, 2])
    scene.check("bob gets the one that is left", _lock(bob, "bob", *QUEUES) == [3])
    scene.check("ann renews hers", _lock(ann, "ann", *QUEUES[:3]) == [0, 1, 2])
    read, offset = _read(ann, 0, 25)
    scene.say(f"ann read {len(read)} of queue 2 and stops")
    _unlock(ann, "ann", 2)
    scene.check("what ann let go is bob's now", _lock(bob, "bob", 2) == [2])
    scene.check("and no longer ann's", _lock(ann, "ann", 2) == [])
    place = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "2"}
    stored = bob.request(RequestCode.QUERY_CONSUMER_OFFSET, place).number("offset")
    more, _ = _read(bob, stored, MESSAGES)
    scene.check(
        "bob goes on where ann stopped, in order, nothing twice, nothing left out",
        stored == offset and read + more == [b"%d" % number for number in range(MESSAGES)],
        f"ann {len(read)}, bob {len(more)} of {MESSAGES}",
    )


def _read(client: RemotingClient, offset: int, at_least: int) -> tuple[list[bytes], int]:
    """Pull from queue 2 and commit; the bodies, and where the group stands then."""
    bodies: list[bytes] = []
    while len(bodies) < at_least:
        answer = client.pull(TOPIC, 2, offset, consumer_group=GROUP, max_msg_nums=10)
        if not answer.is_ok:
            break
        bodies += [each.body for each in answer.messages]
        offset = answer.number("nextBeginOffset")
        place = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "2"}
        client.request(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": str(offset)})
    return bodies, offset


def _lock(client: RemotingClient, owner: str, *queues: int) -> list[int]:
    answer = client.request(RequestCode.LOCK_BATCH_MQ, body=_wanted(owner, queues))
    return sorted(each.queue_id for each in decode_body(answer.body, LockBatchAnswer).locked)


def _unlock(client: RemotingClient, owner: str, *queues: int) -> None:
    client.request(RequestCode.UNLOCK_BATCH_MQ, body=_wanted(owner, queues))


def _wanted(owner: str, queues: tuple[int, ...]) -> bytes:
    named = [MessageQueue(topic=TOPIC, broker_name="penstock", queue_id=each) for each in queues]
    return encode_body(LockBatchBody(consumer_group=GROUP, client_id=owner, mq_set=named))
