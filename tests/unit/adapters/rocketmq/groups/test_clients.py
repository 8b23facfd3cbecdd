"""Heartbeats, good-byes, silence, and who is told of them."""

import dataclasses

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench
from penstock.adapters.rocketmq.group_registry import GroupRegistry
from penstock.adapters.rocketmq.groups import RETRY_QUEUES_MAX, ClientRegistry, GroupChangeNotifier
from penstock.engine.group.membership import MEMBER_MS_MAX, SCAN_MS
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig, encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode

NOTIFY = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def consumer(bench):
    return BenchConsumer.on(bench, "c1")


def members(bench, group=GROUP):
    return bench.broker.consumers.client_ids(group)


def beat(client, body):
    return client.ask(RequestCode.HEART_BEAT, body=body)


# Heartbeats.


def test_a_heartbeat_registers_the_group_its_topics_and_its_retry_topic(bench, consumer):
    answer = consumer.heartbeat(orders="A || B", version=7)
    assert answer.code == 0
    assert members(bench) == ["c1"]
    wanted = bench.broker.consumers.wanted(GROUP, "orders")
    assert (wanted.expression, wanted.language, wanted.version) == ("A || B", "tag", 7)
    assert GROUP in bench.broker.service(GroupRegistry)
    retry = bench.broker.topics.find(f"%RETRY%{GROUP}")
    assert (retry.config.read_queue_nums, retry.config.perm) == (1, 6)


def test_the_answer_keeps_clients_with_the_first_kind_of_heartbeat(consumer):
    assert "IS_SUPPORT_HEART_BEAT_V2" not in consumer.heartbeat(orders="*").ext


def test_a_cpp_heartbeat_with_ordinals_and_missing_parts_is_understood(bench, consumer):
    body = (
        b'{"clientID":"cpp","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"readers","messageModel":0,"subscriptionDataSet":[{"classFilterMode":false,'
        b'"subString":"A||B","subVersion":"12","topic":"orders"}],"unitMode":false}],'
        b'"producerDataSet":[{"groupName":"senders"}]}\n'
    )
    assert beat(consumer, body).code == 0
    group = bench.broker.consumers.group("readers")
    assert group.traits.is_broadcast
    assert group.traits.manner == "CONSUME_PASSIVELY"
    assert group.traits.start == "CONSUME_FROM_LAST_OFFSET"
    assert (group.wanted["orders"].version, group.wanted["orders"].language) == (12, "tag")
    assert bench.broker.producers.client_ids("senders") == ["cpp"]


def test_a_second_kind_of_heartbeat_without_topics_changes_no_subscription(bench, consumer):
    consumer.heartbeat(orders="A")
    body = {
        "clientID": "c1",
        "heartbeatFingerprint": 99,
        "withoutSub": True,
        "consumerDataSet": [{"groupName": GROUP}],
    }
    assert beat(consumer, encode_body(body)).code == 0
    assert bench.broker.consumers.wanted(GROUP, "orders").expression == "A"


def test_a_retry_topic_has_as_many_queues_as_its_group_says(bench, consumer):
    config = SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=3)
    bench.broker.service(GroupRegistry).put(config)
    consumer.heartbeat(orders="*")
    assert bench.broker.topics.find(f"%RETRY%{GROUP}").queues == 3
    config = SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=10**6)
    bench.broker.service(GroupRegistry).put(config)
    consumer.heartbeat(orders="*")
    assert bench.broker.topics.find(f"%RETRY%{GROUP}").queues == RETRY_QUEUES_MAX


def test_a_group_without_retries_gets_no_retry_topic(bench, consumer):
    config = SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=0)
    bench.broker.service(GroupRegistry).put(config)
    consumer.heartbeat(orders="*")
    assert bench.broker.topics.find(f"%RETRY%{GROUP}") is None


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"{" * 1000, b'{"clientID":5}x'])
def test_a_heartbeat_that_cannot_be_read_is_1_and_the_connection_lives(bench, consumer, body):
    answer = beat(consumer, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert not consumer.session.wants_close
    assert members(bench) is None


def test_a_registration_beyond_the_bounds_is_refused_with_words(bench, consumer):
    answer = consumer.heartbeat(**{f"t{number}": "*" for number in range(1001)})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "1001 topics, limit 1000" in answer.remark


# Lists.


def test_the_members_of_a_group_are_listed_sorted(bench):
    for name in ("b", "a"):
        BenchConsumer.on(bench, name).heartbeat(orders="*")
    client = bench.client()
    answer = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})
    assert (answer.code, answer.body) == (0, b'{"consumerIdList":["a","b"]}')


def test_a_group_without_members_is_1(bench):
    answer = bench.client().ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "none"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "no consumer for this group, none"


# Notices.


def test_every_member_is_told_when_one_comes_the_newcomer_too(bench, consumer):
    consumer.heartbeat(orders="*")
    assert consumer.told_codes() == [NOTIFY]
    other = BenchConsumer.on(bench, "c2")
    other.heartbeat(orders="*")
    assert consumer.told_codes() == [NOTIFY, NOTIFY]
    assert other.told_codes() == [NOTIFY]
    (notice,) = other.told
    assert notice.is_oneway
    assert notice.ext == {"consumerGroup": GROUP}


def test_a_heartbeat_that_changes_nothing_tells_nobody(consumer):
    consumer.heartbeat(orders="*")
    consumer.heartbeat(orders="*", version=2)
    assert consumer.told_codes() == [NOTIFY]


def test_another_topic_is_a_change(consumer):
    consumer.heartbeat(orders="*")
    consumer.heartbeat(orders="*", more="*")
    assert consumer.told_codes() == [NOTIFY, NOTIFY]


def test_broadcasting_groups_are_never_told(bench, consumer):
    consumer.heartbeat(model="BROADCASTING", orders="*")
    BenchConsumer.on(bench, "c2").heartbeat(model="BROADCASTING", orders="*")
    assert consumer.told == []


def test_a_group_may_be_set_not_to_be_told(bench, consumer):
    config = SubscriptionGroupConfig(group_name=GROUP, notify_consumer_ids_changed_enable=False)
    bench.broker.service(GroupRegistry).put(config)
    consumer.heartbeat(orders="*")
    assert consumer.told == []


def test_a_broker_may_be_set_not_to_tell():
    settings = dataclasses.replace(RocketmqSettings(), is_notifying_members=False)
    bench = RocketmqBench(Settings(rocketmq=settings))
    consumer = BenchConsumer.on(bench)
    consumer.heartbeat(orders="*")
    assert consumer.told == []


def test_one_client_id_on_two_connections_is_logged(bench, consumer, caplog):
    consumer.heartbeat(orders="*")
    BenchConsumer.on(bench, "c1").heartbeat(orders="*")
    assert bench.broker.service(GroupChangeNotifier).counts["duplicate"] == 1
    assert "'c1' is used by more than one connection" in caplog.text
    assert members(bench) == ["c1", "c1"]


# Going.


def test_unregister_leaves_the_named_groups(bench, consumer):
    consumer.heartbeat(orders="*")
    consumer.join_producers("senders")
    ext = {"clientID": "c1", "producerGroup": "", "consumerGroup": GROUP}
    assert consumer.ask(RequestCode.UNREGISTER_CLIENT, ext).code == 0
    assert members(bench) is None
    assert bench.broker.producers.client_ids("senders") is not None
    ext = {"clientID": "c1", "producerGroup": "senders"}
    assert consumer.ask(RequestCode.UNREGISTER_CLIENT, ext).code == 0
    assert bench.broker.producers.client_ids("senders") is None


def test_the_others_are_told_when_one_leaves(bench, consumer):
    consumer.heartbeat(orders="*")
    other = BenchConsumer.on(bench, "c2")
    other.heartbeat(orders="*")
    before = len(consumer.told)
    other.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": GROUP})
    assert len(consumer.told) == before + 1


def test_a_closed_connection_leaves_at_once_and_the_others_are_told(bench, consumer):
    consumer.heartbeat(orders="*")
    other = BenchConsumer.on(bench, "c2")
    other.heartbeat(orders="*")
    before = len(consumer.told)
    other.close()
    assert members(bench) == ["c1"]
    assert len(consumer.told) == before + 1


def test_120_s_of_silence_end_a_membership_looked_at_every_10_s(bench, consumer):
    assert (MEMBER_MS_MAX, SCAN_MS) == (120_000, 10_000)
    consumer.heartbeat(orders="*")
    bench.advance(120_000)
    assert members(bench) == ["c1"]
    bench.advance(10_000)
    assert members(bench) is None
    assert consumer.session.wants_close
    assert bench.broker.service(GroupChangeNotifier).counts["expired"] == 1


def test_heartbeats_keep_a_membership(bench, consumer):
    for _ in range(10):
        consumer.heartbeat(orders="*")
        bench.advance(30_000)
    assert members(bench) == ["c1"]


def test_silent_producers_go_too(bench, consumer):
    beat(consumer, b'{"clientID":"p","producerDataSet":[{"groupName":"senders"}]}')
    assert bench.broker.producers.client_ids("senders") == ["p"]
    bench.advance(130_000)
    assert bench.broker.producers.client_ids("senders") is None


def test_without_clients_nothing_is_due(bench):
    assert bench.broker.service(ClientRegistry).next_deadline_ms() is None


# Asking before subscribing.


def check(client, expression, language):
    body = {
        "clientId": "c1",
        "group": GROUP,
        "subscriptionData": {
            "topic": "orders",
            "subString": expression,
            "expressionType": language,
        },
    }
    return client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body))


def test_a_good_selector_is_0_and_a_bad_one_23(consumer):
    assert check(consumer, "a > 5", "SQL92").code == 0
    assert check(consumer, "A || B", "TAG").code == 0
    answer = check(consumer, "a >", "SQL92")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark


def test_a_selector_is_1_where_they_are_turned_off():
    settings = dataclasses.replace(RocketmqSettings(), is_sql_allowed=False)
    bench = RocketmqBench(Settings(rocketmq=settings))
    answer = check(BenchConsumer.on(bench), "a > 5", "SQL92")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The broker does not support consumer to filter message by SQL92"
