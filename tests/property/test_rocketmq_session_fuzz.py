"""Hostile peers (T11, T12): whatever a session hears, the broker answers or hangs up, and lives.

Requests are well framed and wrong inside: known codes with fields of other types, other lengths and
other requests, bodies that are nearly JSON. ``--long`` runs a hundred times as many.
"""

import random
import struct
import tracemalloc
import zlib

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.factory import HANDLERS
from penstock.adapters.rocketmq.name_server.server import HANDLERS as NAME_HANDLERS
from penstock.adapters.rocketmq.name_server.server import NameServerConnection
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command, Serialization
from penstock.wire.rocketmq.frames import RemotingFrames, encode

SEEDS = 6
REQUESTS = 400
GROWTH_BYTES_MAX = 20 << 20

_NAMES = """
    topic consumerGroup producerGroup group groupName clientID queueId queueOffset offset
    commitOffset maxMsgNums sysFlag suspendTimeoutMillis subscription subVersion
    expressionType timestamp delayLevel originMsgId originTopic maxReconsumeTimes
    commitLogOffset msgId key maxNum tranStateTableOffset commitOrRollback transactionId
    beginTimestamp endTimestamp invisibleTime pollTime bornTime initMode expType exp order
    attemptId extraInfo readQueueNums writeQueueNums perm topicFilterType topicSysFlag
    attributes defaultTopic isForce clientId brokerName properties bornTimestamp batch a b c d
    e f g h i j k l m
"""
NAMES = _NAMES.split()
VALUES = (
    "", "0", "1", "-1", "2147483647", "2147483648", "-9223372036854775808", "1e3", "0x10", "nine",
    "true", "null", "there", "gone", "%RETRY%g", "%DLQ%", "%", "g", "TBW102", "*", "A || B",
    "a > ", "a > 1", "SQL92", "TAG", "\x00", "\u00fc\U0001f4a9", "x" * 300, "y" * 3_000,
    "0 1 1000 0 0 penstock 0 0", "0 0 0 0 0 penstock 99 9", "TAGS\x01x\x02DELAY\x0199\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01p\x02", "DELAY\x01-5\x02", "TIMER_DELIVER_MS\x01nope\x02",
    "+message.type=FIFO,-x", "7F00000100002A9F0000000000000030",
)  # fmt: skip
BODIES = (
    b"", b"{}", b"[]", b"null", b"{", b"\xff\xfe", b"{" * 2000, b"[" * 2000, b'{"a":1e999}', b"5",
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"there",'
    b'"subString":"a >","expressionType":"SQL92"}]}]}',
    b'{"clientID":7,"consumerDataSet":{}}',
    b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","brokerName":"b","queueId":-5}]}',
    b'{"brokerName":"penstock","acks":[{"c":"g","t":"there","so":-1,"q":99,"b":"////"}]}',
    b'{"topic":"there","consumerGroup":"g","clientId":"c","strategyName":"NONE"}',
    b'{"topic":"there","consumerGroup":"g","mode":"POP","popShareQueueNum":-99}',
    b'{"groupName":"","retryQueueNums":-4}',
    struct.pack(">iiiii", 1 << 30, 0, 0, 0, 1 << 30),
    b"z" * 5000,
)  # fmt: skip


REGISTERED = (
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"topicName":"t","perm":99,'
    b'"readQueueNums":-1}},"dataVersion":{"counter":"x"}},"filterServerList":[]}'
)
DEFLATED_BOMB = zlib.compress(bytes(8 << 20))


def hostile(rng, opaque, handlers=HANDLERS):
    """A request that no client would send."""
    code = rng.choice([*handlers, rng.randrange(-5, 400), rng.randrange(1 << 31)])
    names = rng.sample(NAMES, rng.randint(0, 16))
    ext = {name: rng.choice(VALUES) for name in names}
    if rng.random() < 0.6:
        ext |= {"topic": "there", "consumerGroup": "g", "queueId": "0", "a": "p", "b": "there"}
    flag = FLAG_ONEWAY if rng.random() < 0.1 else 0
    kind = Serialization.BINARY if code <= 32767 and rng.random() < 0.3 else Serialization.JSON
    return Command(code, ext, rng.choice(BODIES), opaque, flag, serialization=kind)


@pytest.fixture
def bench():
    bench = RocketmqBench()
    bench.client().send("there")
    return bench


@pytest.mark.parametrize("number", range(SEEDS))
def test_no_request_breaks_the_broker_and_each_is_answered_once(bench, number, is_long):
    rng = random.Random(number)
    client, good = bench.client(), bench.client()
    waiting = {}
    answered = set()
    frames = RemotingFrames()
    for opaque in range(1, REQUESTS * (100 if is_long else 1)):
        command = hostile(rng, opaque)
        if not command.is_oneway:
            waiting[opaque] = command.code
        client.session.receive(encode(command))
        bench.settle()
        for data in client.session.outgoing():
            frames.feed(data)
        for answer in frames.commands():
            if answer.is_response:
                assert answer.opaque in waiting, f"seed {number}: answered twice or unasked"
                answered.add(waiting.pop(answer.opaque))
        assert not client.session.wants_close, f"seed {number}: hung up on {command}"
    bench.advance(130_000)
    for data in client.session.outgoing():
        frames.feed(data)
    for answer in frames.commands():
        waiting.pop(answer.opaque, None)
    assert not waiting, f"seed {number}: {len(waiting)} requests were never answered"
    assert len(answered) > len(HANDLERS) // 2
    assert good.send("elsewhere", b"still here").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("number", range(SEEDS))
def test_no_request_breaks_the_name_server_either(bench, number, is_long):
    rng = random.Random(number)
    session = NameServerConnection(
        Peer("127.0.0.1", 1, "127.0.0.1", 9876), bench.broker, NAME_HANDLERS, lambda: None
    )
    frames = RemotingFrames()
    for opaque in range(1, REQUESTS * (100 if is_long else 1)):
        command = hostile(rng, opaque, NAME_HANDLERS)
        names = rng.sample(("brokerName", "brokerAddr", "clusterName", "brokerId"), 3)
        command.ext |= {name: rng.choice(VALUES) for name in names}
        command.ext["compressed"] = rng.choice(("true", "false", "maybe"))
        command.body = rng.choice((*BODIES, REGISTERED, zlib.compress(REGISTERED), DEFLATED_BOMB))
        session.receive(encode(command))
        for data in session.outgoing():
            frames.feed(data)
        answers = [answer.opaque for answer in frames.commands()]
        assert answers == ([] if command.is_oneway else [opaque]), f"seed {number}: {command}"
        assert not session.wants_close, f"seed {number}: hung up on {command}"
    bench.settle()
    assert bench.client().send("elsewhere").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("length", [0, 1, 3, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize("mark", [0, 4, 0x00FFFFFF, 0x02000000, 0xFFFFFFFF])
def test_lengths_that_cannot_be_end_the_connection_before_anything_is_allocated(
    bench, length, mark
):
    client, other = bench.client(), bench.client()
    tracemalloc.start()
    try:
        client.session.receive(struct.pack(">II", length, mark) + b"x" * 64)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10
    if 4 <= length <= 1 << 24 and mark & 0xFFFFFF <= length:
        assert not client.session.wants_close  # the rest may still come
    else:
        assert client.session.wants_close
    assert other.send("there").code == ResponseCode.SUCCESS


def test_garbage_costs_its_connection_and_no_memory(bench, is_long):
    rng = random.Random(1)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(300 * (100 if is_long else 1)):
            client = bench.client()
            frame = bytearray(encode(hostile(rng, 1)))
            for _ in range(rng.randint(1, 8)):
                frame[rng.randrange(len(frame))] = rng.randrange(256)
            client.session.receive(bytes(frame))
            bench.settle()
            client.close()
        bench.settle()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < GROWTH_BYTES_MAX
    assert bench.client().send("there").code == ResponseCode.SUCCESS
