"""Sent back: when a message comes again, how often, where it ends, and what it remembers."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.delay import LEVELS_MS
from penstock.adapters.rocketmq.group_registry import GroupRegistry
from penstock.adapters.rocketmq.send import RECONSUME_MAX_VERSION
from penstock.engine.ports import Publication
from penstock.engine.topic import FanoutRoute
from penstock.model.record import neutral_record
from penstock.model.refusal import Refusal, RefusalKind
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.testing.storage import FaultKind
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.message_id import parse_offset_message_id

RETRY, DLQ = "%RETRY%readers", "%DLQ%readers"
HOUR_MS = 3_600_000


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def client(bench):
    return bench.client()


def position_of(answer):
    return parse_offset_message_id(answer.ext["msgId"])[1]


def send_back(client, position, level=0, *, version=479, **ext):
    return client.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {"offset": str(position), "group": "readers", "delayLevel": str(level), **ext},
        version=version,
    )


def configure(bench, **settings):
    bench.broker.service(GroupRegistry).put(
        SubscriptionGroupConfig(group_name="readers", **settings)
    )


# The new message.


def test_the_first_retry_comes_after_ten_seconds(bench, client):
    position = position_of(client.send("orders", b"body"))
    assert send_back(client, position).code == 0
    bench.advance(9_999)
    assert bench.stored(RETRY) == []
    bench.advance(1)
    (message,) = bench.stored(RETRY)
    assert (message.body, message.reconsume_times) == (b"body", 1)


def test_older_brokers_waited_thirty_seconds_first_and_so_can_we():
    bench = RocketmqBench(Settings(rocketmq=RocketmqSettings(retry_first_level=4)))
    client = bench.client()
    send_back(client, position_of(client.send("orders", b"body")))
    bench.advance(29_999)
    assert bench.stored(RETRY) == []
    bench.advance(1)
    assert len(bench.stored(RETRY)) == 1


def test_every_retry_has_its_level_and_the_seventeenth_is_a_dead_letter(bench, client):
    position = position_of(client.send("orders", b"body"))
    for times in range(16):
        assert send_back(client, position).code == 0
        wait_ms = LEVELS_MS[min(18, 3 + times) - 1]
        bench.advance(wait_ms - 1)
        assert len(bench.stored(RETRY)) == times
        bench.advance(1)
        message = bench.stored(RETRY)[-1]
        assert message.reconsume_times == times + 1
        position = message.commit_log_offset
    assert wait_ms == 2 * HOUR_MS
    assert bench.stored(DLQ) == []
    assert send_back(client, position).code == 0
    (dead,) = bench.stored(DLQ)
    assert (dead.body, dead.reconsume_times) == (b"body", 17)
    bench.advance(3 * HOUR_MS)
    assert len(bench.stored(RETRY)) == 16


@pytest.mark.parametrize(("level", "wait_ms"), [(1, 1_000), (5, 60_000), (18, 7_200_000)])
def test_the_consumer_may_name_the_level(bench, client, level, wait_ms):
    send_back(client, position_of(client.send("orders", b"body")), level)
    bench.advance(wait_ms - 1)
    assert bench.stored(RETRY) == []
    bench.advance(1)
    assert len(bench.stored(RETRY)) == 1


def test_a_level_above_the_last_counts_as_the_last(bench, client):
    send_back(client, position_of(client.send("orders", b"body")), 40)
    bench.advance(2 * HOUR_MS)
    assert len(bench.stored(RETRY)) == 1


def test_a_negative_level_gives_up_at_once(bench, client):
    send_back(client, position_of(client.send("orders", b"body")), -1)
    assert [each.body for each in bench.stored(DLQ)] == [b"body"]
    assert bench.stored(RETRY) == []


def test_what_it_remembers_and_what_it_forgets(bench, client):
    answer = client.send("orders", b"body", KEYS="k", TAGS="t", DELAY="1", own="value")
    bench.advance(1_000)
    send_back(client, position_of(answer))
    bench.advance(10_000)
    (message,) = bench.stored(RETRY)
    properties = message.property_map()
    assert properties.pop("UNIQ_KEY") == answer.ext["transactionId"]
    assert properties == {
        "KEYS": "k",
        "TAGS": "t",
        "own": "value",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": answer.ext["msgId"],
        "WAIT": "false",
    }
    assert message.topic == RETRY
    assert message.offset_message_id != answer.ext["msgId"]


def test_the_first_id_and_topic_are_kept_to_the_end(bench, client):
    answer = client.send("orders", b"body")
    send_back(client, position_of(answer))
    bench.advance(10_000)
    (first,) = bench.stored(RETRY)
    send_back(client, first.commit_log_offset)
    bench.advance(30_000)
    second = bench.stored(RETRY)[-1]
    send_back(client, second.commit_log_offset, -1)
    (dead,) = bench.stored(DLQ)
    for message in (first, second, dead):
        assert message.property_map()["ORIGIN_MESSAGE_ID"] == answer.ext["msgId"]
        assert message.property_map()["RETRY_TOPIC"] == "orders"
    assert dead.property_map()["DLQ_ORIGIN_MESSAGE_ID"] == second.offset_message_id
    assert dead.property_map()["DLQ_ORIGIN_TOPIC"] == RETRY


def test_a_timer_message_waits_only_for_its_retry(bench, client):
    answer = client.send("orders", b"body", TIMER_DELAY_SEC="5")
    bench.advance(6_000)
    assert len(bench.stored("orders")) == 1
    send_back(client, position_of(answer), 1)
    bench.advance(1_000)
    (message,) = bench.stored(RETRY)
    assert not [name for name in message.property_map() if name.startswith("TIMER")]


def test_body_flags_and_birth_stay(bench, client):
    answer = client.send("orders", b"body", header={"flag": "7", "sysFlag": "1"})
    born_ms = bench.clock.wall_ms()
    send_back(client, position_of(answer), 1)
    bench.advance(1_000)
    (message,) = bench.stored(RETRY)
    assert (message.flag, message.sys_flag, message.born_ms) == (7, 1, born_ms)
    assert message.is_intact


def test_retry_and_dead_letter_topics_have_one_queue(bench, client):
    position = position_of(client.send("orders", b"body"))
    send_back(client, position)
    send_back(client, position, -1)
    for name in (RETRY, DLQ):
        config = bench.broker.topics.find(name).config
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


def test_a_retry_can_be_looked_up_by_key(bench, client):
    send_back(client, position_of(client.send("orders", b"body", KEYS="k")), 1)
    bench.advance(1_000)
    answer = client.ask(RequestCode.QUERY_MESSAGE, {"topic": RETRY, "key": "k"})
    assert answer.code == 0


def test_a_message_of_another_protocol_is_sent_back_as_one_of_this(bench, client):
    topics = [bench.topic("here"), bench.topic("there")]
    route = FanoutRoute(tuple(topic.queues[0] for topic in topics))
    bench.channel().publish([Publication(neutral_record(b"body", tag=b"t"), route=route)])
    bench.settle()
    position = bench.outlet.events[0].confirmations[0].position
    assert send_back(client, position + 1, 1).code == 0
    bench.advance(1_000)
    (message,) = bench.stored(RETRY)
    properties = message.property_map()
    assert (message.body, message.reconsume_times) == (b"body", 1)
    assert (properties["TAGS"], properties["RETRY_TOPIC"]) == ("t", "there")
    assert parse_offset_message_id(properties["ORIGIN_MESSAGE_ID"])[1] == position + 1


# How often.


def test_the_groups_maximum_counts(bench, client):
    configure(bench, retry_max_times=0)
    send_back(client, position_of(client.send("orders", b"body")))
    assert len(bench.stored(DLQ)) == 1


def test_the_requests_maximum_wins_from_version_3_4_9_on(bench, client):
    position = position_of(client.send("orders", b"body"))
    send_back(client, position, version=RECONSUME_MAX_VERSION - 1, maxReconsumeTimes="0")
    assert bench.stored(DLQ) == []
    send_back(client, position, version=RECONSUME_MAX_VERSION, maxReconsumeTimes="0")
    assert len(bench.stored(DLQ)) == 1
    assert RECONSUME_MAX_VERSION == 121


def test_a_group_may_allow_more_than_sixteen(bench, client):
    position = position_of(client.send("orders", b"body", header={"reconsumeTimes": "16"}))
    send_back(client, position, maxReconsumeTimes="17")
    bench.advance(2 * HOUR_MS)
    assert bench.stored(DLQ) == []
    assert bench.stored(RETRY)[0].reconsume_times == 17


def test_a_group_without_retry_queues_drops(bench, client):
    configure(bench, retry_queue_nums=0)
    assert send_back(client, position_of(client.send("orders", b"body"))).code == 0
    bench.advance(HOUR_MS)
    assert bench.stored(RETRY) + bench.stored(DLQ) == []


def test_a_group_may_have_several_retry_queues(bench, client):
    configure(bench, retry_queue_nums=3)
    position = position_of(client.send("orders", b"body"))
    for _ in range(40):
        send_back(client, position, 1)
    bench.advance(1_000)
    counts = [len(bench.stored(RETRY, queue)) for queue in range(3)]
    assert sum(counts) == 40
    assert all(counts)


# What can go wrong.


def test_an_unknown_offset_is_told(client):
    answer = send_back(client, 123_456)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "look message by offset failed, 123456"


def test_an_unknown_group_is_told_when_groups_are_not_made(bench, client):
    bench.broker.service(GroupRegistry).is_auto_creating = False
    answer = send_back(client, position_of(client.send("orders", b"body")))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert answer.remark.startswith("subscription group not exist, readers")


def test_a_retry_topic_that_may_not_be_written_refuses(bench, client):
    position = position_of(client.send("orders", b"body"))
    send_back(client, position, 1)
    place = bench.broker.topics.find(RETRY)
    place.config.perm = 4
    bench.broker.topics.put(place.config)
    assert send_back(client, position, 1).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    "ext", [{}, {"offset": "x", "group": "g"}, {"offset": "1"}, {"offset": "1", "group": "a b"}]
)
def test_a_bad_request_is_answered_and_the_connection_lives(client, ext):
    answer = client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    assert client.send("orders", b"still here").code == 0


def test_the_old_clients_short_request_will_do(bench, client):
    position = position_of(client.send("orders", b"body"))
    ext = {"offset": str(position), "group": "readers", "delayLevel": "1"}
    assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, version=63).code == 0
    bench.advance(1_000)
    assert len(bench.stored(RETRY)) == 1


def test_a_busy_store_refuses_it_at_arrival(bench, client, monkeypatch):
    position = position_of(client.send("orders", b"body"))
    busy = Refusal(RefusalKind.BUSY, "store", "the store is busy")
    monkeypatch.setattr(type(bench.engine), "refuse_now", lambda _engine: busy)
    answer = send_back(client, position, -1)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark.startswith("[REJECTREQUEST]")
    monkeypatch.undo()
    bench.advance(HOUR_MS)
    assert bench.stored(DLQ) == []


def test_a_disk_that_refuses_it_is_told_and_nothing_is_stored(bench, client):
    position = position_of(client.send("orders", b"body"))
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    answer = send_back(client, position, 1)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.advance(HOUR_MS)
    assert bench.stored(RETRY) == []
    assert send_back(client, position, 1).code == 0
    bench.advance(1_000)
    assert len(bench.stored(RETRY)) == 1


# Restarts.


@pytest.mark.parametrize("plug", ["kill", "cut_power", "stop"])
def test_a_retry_survives_a_restart_and_comes_once(bench, client, plug):
    position = position_of(client.send("orders", b"body"))
    send_back(client, position)
    bench.advance(5_000)
    getattr(bench, plug)()
    assert bench.stored(RETRY) == []
    bench.advance(5_000)
    assert [each.body for each in bench.stored(RETRY)] == [b"body"]
    getattr(bench, plug)()
    bench.advance(HOUR_MS)
    assert [each.body for each in bench.stored(RETRY)] == [b"body"]


def test_a_dead_letter_survives_a_restart(bench, client):
    send_back(client, position_of(client.send("orders", b"body")), -1)
    bench.cut_power()
    assert [each.body for each in bench.stored(DLQ)] == [b"body"]


def test_a_retry_that_is_due_while_the_broker_is_down_comes_at_its_start(bench, client):
    send_back(client, position_of(client.send("orders", b"body")))
    bench.clock.advance(HOUR_MS)
    bench.kill()
    bench.advance(100)
    assert len(bench.stored(RETRY)) == 1
