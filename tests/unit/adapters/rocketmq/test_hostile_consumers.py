"""Whatever comes in the fields and bodies of consumers' requests: one answer, and life goes on."""

import random

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench
from penstock.adapters.rocketmq.factory import HANDLERS
from penstock.wire.rocketmq.bodies import encode_body
from penstock.wire.rocketmq.codes import RequestCode

CODES = sorted(int(code) for code in HANDLERS if code != RequestCode.DELETE_TOPIC_IN_BROKER)
FIELDS = (
    "consumerGroup", "producerGroup", "group", "groupName", "topic", "queueId", "queueOffset",
    "maxMsgNums", "maxMsgBytes", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subscription",
    "subVersion", "expressionType", "timestamp", "offset", "isForce", "clientId", "clientID",
    "msgId", "setZeroIfNotFound", "boundaryType", "cleanOffset",
)  # fmt: skip
VALUES = (
    "", "0", "1", "-1", "7", str(2**31 - 1), str(2**31), str(2**63 - 1), str(2**64), "1e9", "NaN",
    "true", "false", "null", "orders", GROUP, "%RETRY%" + GROUP, "%", "a b", "*", "A||B", "||",
    "SQL92", "TAG", "a > ", "\x01\x02", "x" * 300, "\u4e2d\u6587",
    "7F00000100002A9F0000000000000000",
)  # fmt: skip


def random_body(dice, depth=0):
    kind = dice.randrange(8)
    if kind < 3 and depth < 4:
        names = (
            "clientID",
            "groupName",
            "consumerDataSet",
            "subscriptionDataSet",
            "mqSet",
            "topic",
        )
        names += ("subString", "subVersion", "messageModel", "producerDataSet", "consumerGroup")
        picked = dice.sample(names, dice.randrange(1, 6))
        return {name: random_body(dice, depth + 1) for name in picked}
    if kind < 5 and depth < 4:
        return [random_body(dice, depth + 1) for _ in range(dice.randrange(4))]
    return dice.choice((None, True, -1, 0, 1, 2**62, 1.5, *VALUES))


@pytest.mark.parametrize("code", CODES)
def test_one_answer_for_everything(code):
    dice = random.Random(code)
    bench = RocketmqBench()
    bench.client().send("orders", b"x", TAGS="A")
    client = BenchConsumer.on(bench, "c1")
    client.heartbeat(orders="*")
    for _ in range(120):
        names = dice.sample(FIELDS, dice.randrange(len(FIELDS)))
        ext = {name: dice.choice(VALUES) for name in names}
        if dice.random() < 0.7:
            ext |= {"consumerGroup": GROUP, "topic": "orders", "queueId": "0", "group": GROUP}
        if dice.random() < 0.8:
            body = encode_body(random_body(dice))
        else:
            body = dice.randbytes(dice.randrange(60))
        opaque = client.write(code, ext, body)
        bench.settle()
        if client.answer_to(opaque) is None:
            # Held, or passed on to the client itself: time ends both.
            bench.advance(130_000)
            client.heartbeat(orders="*")
        assert client.answer_to(opaque) is not None
        assert not client.session.is_closed
        client._heard.clear()
        client.session.wants_close = False
    assert client.pull("orders", commitOffset=0).code in (0, 16, 20, 21)
