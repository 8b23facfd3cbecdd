"""QUERY_ASSIGNMENT: the broker divides queues; "keep" is not "nothing for you"."""

import json

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.cluster_routes import HOLD_MS_MAX, ClusterRoutes
from penstock.adapters.rocketmq.groups import RequestModeRegistry
from penstock.adapters.rocketmq.name_server.routes import RouteRegistry
from penstock.engine.group.assignment import ConsumeMode, ModeSetting
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.bodies import QueueData, TopicConfig, TopicRouteData, encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command


def make_bench(settings=None):
    bench = RocketmqBench(settings)
    bench.broker.topics.put(TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4))
    bench.settle()
    return bench


@pytest.fixture
def bench():
    return make_bench()


def join(bench, *names, group="g"):
    for name in names:
        member = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{"topic": "orders", "subString": "*", "subVersion": 1}],
        }
        body = encode_body({"clientID": name, "consumerDataSet": [member]})
        assert bench.client().ask(RequestCode.HEART_BEAT, {}, body).code == 0


def question(client, *, topic="orders", strategy="AVG", model="CLUSTERING", group="g"):
    return encode_body(
        {
            "topic": topic,
            "consumerGroup": group,
            "clientId": client,
            "strategyName": strategy,
            "messageModel": model,
        }
    )


def query(bench, client="c0", **more):
    return assignments(
        bench.client().ask(RequestCode.QUERY_ASSIGNMENT, {}, question(client, **more))
    )


def ask_later(bench, client):
    """Ask and do not wait; the connection and the opaque."""
    connection = bench.client()
    opaque = connection.write(RequestCode.QUERY_ASSIGNMENT, {}, question(client))
    bench.settle()
    return connection, opaque


def heard(connection, opaque):
    return [each for each in connection._hear() if each.opaque == opaque]


def assignments(answer):
    assert answer.code == 0
    return json.loads(answer.body)["messageQueueAssignments"]


def numbers(found):
    return [each["messageQueue"]["queueId"] for each in found]


def set_pop(bench, share):
    setting = ModeSetting(ConsumeMode.POP, share)
    bench.broker.service(RequestModeRegistry).set("orders", "g", setting)


def test_by_default_queues_are_divided_to_be_pulled(bench):
    join(bench, "c0", "c1")
    found = query(bench)
    assert numbers(found) == [0, 1]
    assert found[0] == {
        "messageQueue": {"topic": "orders", "brokerName": "penstock", "queueId": 0},
        "mode": "PULL",
        "attachments": None,
    }
    assert numbers(query(bench, "c1")) == [2, 3]


@pytest.mark.parametrize(
    ("strategy", "expected"), [("AVG", [0, 1]), ("AVG_BY_CIRCLE", [0, 2])], ids=str
)
def test_the_strategy_is_the_one_named(bench, strategy, expected):
    join(bench, "c0", "c1")
    assert numbers(query(bench, strategy=strategy)) == expected


def test_consistent_hashing_gives_every_queue_to_exactly_one(bench):
    join(bench, "c0", "c1", "c2")
    found = [numbers(query(bench, f"c{i}", strategy="CONSISTENT_HASH")) for i in range(3)]
    assert sorted(number for each in found for number in each) == [0, 1, 2, 3]


@pytest.mark.parametrize("share", [-1, 0, 2])
def test_pop_without_a_share_or_with_all_others_is_every_queue_of_the_broker(bench, share):
    join(bench, "c0", "c1", "c2")
    set_pop(bench, share)
    (found,) = query(bench)
    assert found["messageQueue"]["queueId"] == -1
    assert found["mode"] == "POP"


def test_with_a_share_a_member_helps_those_who_follow(bench):
    join(bench, "c0", "c1", "c2", "c3")
    set_pop(bench, 1)
    assert [numbers(query(bench, f"c{i}")) for i in range(4)] == [[0, 1], [1, 2], [2, 3], [3, 0]]


def test_with_more_members_than_queues_each_has_one(bench):
    join(bench, *[f"c{i}" for i in range(8)])
    set_pop(bench, 3)
    assert [numbers(query(bench, f"c{i}")) for i in range(8)] == [
        [0], [1], [2], [3], [0], [1], [2], [3],
    ]  # fmt: skip


def test_who_is_not_a_member_gets_nothing_which_is_an_empty_list(bench):
    join(bench, "c0")
    assert query(bench, "stranger") == []


def test_an_unknown_topic_group_or_strategy_means_keep(bench):
    join(bench, "c0")
    assert query(bench, topic="nowhere") is None
    assert query(bench, group="nobody") is None
    assert query(bench, strategy="COIN") is None


def test_a_broadcasting_member_reads_everything(bench):
    join(bench, "c0", "c1")
    assert numbers(query(bench, model="BROADCASTING")) == [0, 1, 2, 3]


def test_without_balancing_everybody_reads_everything():
    bench = make_bench(Settings(rocketmq=RocketmqSettings(is_balancing=False)))
    join(bench, "c0", "c1")
    assert numbers(query(bench)) == [0, 1, 2, 3]


@pytest.fixture
def joined():
    """A broker called b of a cluster, whose name server nobody asks unless a test does."""
    return make_bench(Settings(rocketmq=RocketmqSettings(join="10.0.0.5:9876", broker_name="b")))


def tell_route(bench, **queues):
    datas = [
        QueueData(broker_name=name, read_queue_nums=count, write_queue_nums=count)
        for name, count in queues.items()
    ]
    body = encode_body(TopicRouteData(queue_datas=datas))
    routes = bench.broker.service(ClusterRoutes)
    assert routes.next_stale() == "orders"
    routes.on_response("orders", Command(0, body=body))


def places(found):
    return [(e["messageQueue"]["brokerName"], e["messageQueue"]["queueId"]) for e in found]


def test_a_joined_broker_divides_the_queues_of_all_brokers_once_it_was_told_them(joined):
    join(joined, "c0", "c1")
    client, opaque = ask_later(joined, "c0")
    assert heard(client, opaque) == []
    tell_route(joined, b=2, a=2)
    (answer,) = heard(client, opaque)
    assert places(assignments(answer)) == [("a", 0), ("a", 1)]
    assert places(query(joined, "c1")) == [("b", 0), ("b", 1)]


def test_a_joined_broker_gives_every_broker_to_a_member_that_pops(joined):
    join(joined, "c0")
    set_pop(joined, -1)
    client, opaque = ask_later(joined, "c0")
    tell_route(joined, b=2, a=2)
    (answer,) = heard(client, opaque)
    assert places(assignments(answer)) == [("a", -1), ("b", -1)]


def test_a_joined_broker_says_keep_when_its_name_server_does_not_answer_in_time(joined):
    join(joined, "c0")
    client, opaque = ask_later(joined, "c0")
    joined.advance(HOLD_MS_MAX - 1)
    assert heard(client, opaque) == []
    joined.advance(1)
    (answer,) = heard(client, opaque)
    assert assignments(answer) is None


def test_a_joined_broker_tells_a_stranger_nothing_which_is_not_keep(joined):
    join(joined, "c0")
    client, opaque = ask_later(joined, "stranger")
    tell_route(joined, b=2, a=2)
    (answer,) = heard(client, opaque)
    assert assignments(answer) == []


def test_a_client_that_left_meanwhile_is_not_answered(joined):
    join(joined, "c0")
    client, opaque = ask_later(joined, "c0")
    client.close()
    tell_route(joined, b=2)
    assert heard(client, opaque) == []


def test_more_queues_than_a_cluster_can_have_are_not_believed(joined):
    join(joined, "c0")
    client, opaque = ask_later(joined, "c0")
    tell_route(joined, b=2, a=1 << 30)
    (answer,) = heard(client, opaque)
    assert assignments(answer) is None


def test_queues_that_only_other_brokers_have_are_divided_too(bench):
    book = bench.broker.service(RouteRegistry)
    other = book.register("other", "DefaultCluster", "0", "10.0.0.7:10911")
    other.topics = {"far": TopicConfig(topic_name="far", read_queue_nums=2)}
    join(bench, "c0")
    assert places(query(bench, topic="far")) == [("other", 0), ("other", 1)]


def test_a_body_that_cannot_be_read_is_an_error(bench):
    answer = bench.client().ask(RequestCode.QUERY_ASSIGNMENT, {}, b"[]")
    assert answer.code == ResponseCode.SYSTEM_ERROR
