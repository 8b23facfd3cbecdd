"""Resetting a group: by the broker (5.x) or by its members (4.x)."""

import dataclasses

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench
from penstock.adapters.rocketmq.group_registry import GroupRegistry
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.bodies import decode_body, standard_json
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


def filled(bench):
    """Ten messages, one each 100 ms, and a group that stands at 6."""
    bench.start_ms = bench.clock.wall_ms()
    producer = bench.client()
    for _ in range(10):
        producer.send("orders")
        bench.clock.advance(100)
    bench.broker.service(GroupRegistry).find(GROUP)
    BenchConsumer.on(bench).commit("orders", 6)
    return bench


@pytest.fixture
def bench():
    return filled(RocketmqBench())


@pytest.fixture
def old():
    settings = dataclasses.replace(RocketmqSettings(), is_resetting_here=False)
    return filled(RocketmqBench(Settings(rocketmq=settings)))


def reset(bench, timestamp=-1, **others):
    ext = {"topic": "orders", "group": GROUP, "timestamp": str(timestamp), **others}
    return bench.client().ask(RESET, ext)


def stands_at(bench):
    return int(BenchConsumer.on(bench).query("orders").ext["offset"])


def offsets(answer):
    table = decode_body(standard_json(answer.body), dict)["offsetTable"]
    return {decode_body(key.encode(), dict)["queueId"]: value for key, value in table.items()}


def test_back_to_a_time(bench):
    answer = reset(bench, bench.start_ms + 250)
    assert answer.code == 0
    assert offsets(answer)[0] == 3
    assert stands_at(bench) == 3


def test_without_force_a_group_does_not_go_forward(bench):
    assert offsets(reset(bench, bench.start_ms + 850))[0] == 6
    assert stands_at(bench) == 6


def test_with_force_it_does(bench):
    assert offsets(reset(bench, bench.start_ms + 850, isForce="true"))[0] == 9
    assert stands_at(bench) == 9


def test_minus_one_is_the_end(bench):
    assert offsets(reset(bench, -1, isForce="true"))[0] == 10


def test_one_queue_to_one_offset(bench):
    answer = reset(bench, queueId="0", offset="2")
    assert offsets(answer) == {0: 2}
    assert stands_at(bench) == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group": "strangers"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "99", "offset": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "0", "offset": "11"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_cannot_be_is_refused(bench, changes, code):
    answer = reset(bench, **changes)
    assert answer.code == code
    assert answer.remark
    assert stands_at(bench) == 6


def test_a_reader_is_told_by_its_next_pull_once(bench):
    consumer = BenchConsumer.on(bench)
    reset(bench, bench.start_ms + 250)
    answer = consumer.pull("orders", 6, commit=6)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert answer.ext["nextBeginOffset"] == "3"
    assert stands_at(bench) == 3
    assert consumer.pull("orders", 3).code == 0


def test_commits_of_before_do_not_undo_a_reset(bench):
    consumer = BenchConsumer.on(bench)
    reset(bench, bench.start_ms + 250)
    answer = consumer.commit("orders", 9)
    assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
    assert stands_at(bench) == 3


def test_the_old_way_tells_every_member(old):
    consumer = BenchConsumer.on(old, "c1")
    consumer.heartbeat(orders="*")
    answer = reset(old, old.start_ms + 250, isForce="true")
    assert answer.code == 0
    (told,) = [
        each for each in consumer.told if each.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    ]
    assert told.is_oneway
    assert told.ext["timestamp"] == str(old.start_ms + 250)
    assert told.ext["isForce"] == "true"
    assert offsets(told)[0] == 3
    assert told.body.startswith(b'{"offsetTable":{{"topic":"orders"')
    assert stands_at(old) == 6


def test_cpp_members_get_a_list(old):
    consumer = BenchConsumer.on(old, "c1")
    consumer.heartbeat(orders="*")
    member = old.broker.consumers.group(GROUP).members[int(consumer.session.connection_id)]
    client = member.client
    member.client = type(client)(client.client_id, client.connection, "CPP", 63)
    reset(old, old.start_ms + 250)
    told = decode_body(consumer.told[-1].body, dict)
    assert told["offsetTable"][0]["offset"] == 3
    assert told["offsetTable"][0]["topic"] == "orders"


def test_the_old_way_needs_somebody_online(old):
    answer = reset(old)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert answer.remark.startswith("Consumer not online, so can not reset offset")
