"""The name server: routes, lists, key-values, and brokers that come and go (sheet 1.5)."""

import zlib

import msgspec
import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.name_server import routes
from penstock.adapters.rocketmq.name_server.routes import BROKERS_MAX, GROUP_KIND, RouteRegistry
from penstock.adapters.rocketmq.name_server.server import (
    NameServerFactory,
    register_request,
    unregister_request,
)
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.bodies import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command
from penstock.wire.rocketmq.frames import decode, encode

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


class Asking:
    """A connection to the name server of a bench."""

    def __init__(self, bench, local_host="127.0.0.1"):
        self._bench = bench
        factory = NameServerFactory(lambda: bench.broker)
        peer = Peer("127.0.0.1", 4000, local_host, 9876)
        self.session = factory.make(1, peer, bench.engine, bench.clock, lambda: None)

    def ask(self, code, ext=None, body=b"", **rest):
        return self.say(Command(int(code), ext or {}, body, 7, **rest))

    def say(self, command):
        self.session.receive(encode(command))
        self._bench.settle()
        (answer,) = [decode(each) for each in self.session.outgoing()]
        return answer

    def route(self, topic):
        answer = self.ask(ROUTE, {"topic": topic})
        return msgspec.json.decode(answer.body) if answer.code == 0 else answer.code


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def asking(bench):
    return Asking(bench)


def other(name="b", **settings):
    """A broker of another process."""
    bench = RocketmqBench(Settings(rocketmq=RocketmqSettings(broker_name=name, **settings)))
    bench.client().send("orders", header={"defaultTopicQueueNums": "2"})
    return bench


def names(route):
    return [each["brokerName"] for each in route["brokerDatas"]]


def test_the_route_of_a_topic_names_this_broker(bench, asking):
    bench.client().send("orders")
    assert asking.route("orders") == {
        "orderTopicConf": None,
        "queueDatas": [
            {
                "brokerName": "penstock",
                "readQueueNums": 4,
                "writeQueueNums": 4,
                "perm": 6,
                "topicSysFlag": 0,
            }
        ],
        "brokerDatas": [
            {
                "cluster": "DefaultCluster",
                "brokerName": "penstock",
                "brokerAddrs": {"0": "127.0.0.1:10911"},
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
    }


def test_an_unknown_topic_is_17_in_rocketmqs_words(asking):
    answer = asking.ask(ROUTE, {"topic": "orders"})
    assert answer.code == 17
    assert answer.remark == "No topic route info in name server for the topic: orders"


def test_the_route_of_tbw102_invites_to_send(asking):
    (queues,) = asking.route("TBW102")["queueDatas"]
    assert (queues["perm"], queues["writeQueueNums"]) == (7, 8)


@pytest.mark.parametrize(
    ("topic", "queues", "perm"),
    [("DefaultCluster", 16, 7), ("penstock", 1, 7), ("DefaultCluster_REPLY_TOPIC", 1, 6)],
)
def test_topics_named_after_cluster_and_broker_exist(bench, asking, topic, queues, perm):
    assert bench.engine.topics() == []
    assert topic in bench.broker.topics.configs()
    (found,) = asking.route(topic)["queueDatas"]
    assert (found["writeQueueNums"], found["perm"]) == (queues, perm)
    assert bench.client().send(topic, b"here").code == 0
    assert [each.body for each in bench.stored(topic)] == [b"here"]


def test_without_auto_creation_tbw102_cannot_be_inherited():
    bench = RocketmqBench(Settings(rocketmq=RocketmqSettings(is_auto_creating=False)))
    (queues,) = Asking(bench).route("TBW102")["queueDatas"]
    assert queues["perm"] == 6


def test_looking_for_a_route_makes_no_topic_unless_that_is_wanted(bench, asking):
    assert asking.route("orders") == 17
    assert bench.engine.topics() == []
    wanting = RocketmqBench(Settings(rocketmq=RocketmqSettings(is_creating_on_lookup=True)))
    (queues,) = Asking(wanting).route("orders")["queueDatas"]
    assert queues["writeQueueNums"] == 8
    assert Asking(wanting).route("a.b") == 17


def test_a_retry_topic_is_made_on_lookup_for_a_group_that_is_known(bench, asking):
    assert asking.route("%RETRY%never-seen") == 17
    bench.engine.define(GROUP_KIND, "readers", b"{}")
    (queues,) = asking.route("%RETRY%readers")["queueDatas"]
    assert (queues["readQueueNums"], queues["perm"]) == (1, 6)


@pytest.mark.parametrize(
    ("dialled", "address"),
    [
        ("10.0.0.5", "10.0.0.5:10911"),
        ("::1", "127.0.0.1:10911"),
        ("::ffff:10.0.0.5", "10.0.0.5:10911"),
        ("fe80::2", "[fe80::2]:10911"),
    ],
)
def test_a_client_is_sent_to_the_address_it_came_by(bench, dialled, address):
    bench.client().send("orders")
    (broker,) = Asking(bench, dialled).route("orders")["brokerDatas"]
    assert broker["brokerAddrs"] == {"0": address}


def test_an_advertised_address_goes_before_it():
    bench = RocketmqBench(Settings(rocketmq=RocketmqSettings(advertise="10.1.1.1")))
    bench.client().send("orders")
    (broker,) = Asking(bench).route("orders")["brokerDatas"]
    assert broker["brokerAddrs"] == {"0": "10.1.1.1:10911"}


def test_registered_brokers_share_the_route(bench, asking):
    bench.client().send("orders")
    for name in ("c", "b"):
        answer = asking.say(register_request(other(name).broker))
        assert answer.code == 0
        assert answer.ext == {"haServerAddr": "", "masterAddr": ""}
        assert msgspec.json.decode(answer.body) == {"table": {}}
    route = asking.route("orders")
    assert names(route) == ["penstock", "b", "c"]
    assert [each["writeQueueNums"] for each in route["queueDatas"]] == [4, 2, 2]
    assert asking.route("orders") == route


def test_a_broker_is_forgotten_after_120_s_of_silence(bench, asking):
    joined = other()
    asking.say(register_request(joined.broker))
    bench.advance(119_000)
    assert names(asking.route("orders")) == ["b"]
    asking.say(register_request(joined.broker))
    bench.advance(119_999)
    assert names(asking.route("orders")) == ["b"]
    bench.advance(1)
    assert asking.route("orders") == 17


def test_a_heartbeat_keeps_a_broker_in_the_routes(bench, asking):
    asking.say(register_request(other().broker))
    for _ in range(5):
        bench.advance(60_000)
        assert asking.ask(RequestCode.BROKER_HEARTBEAT, {"brokerName": "b"}).code == 0
    assert names(asking.route("orders")) == ["b"]


def test_a_broker_leaves_when_it_says_so_or_its_connection_ends(bench, asking):
    joined = other()
    asking.say(register_request(joined.broker))
    assert asking.say(unregister_request(joined.broker)).code == 0
    assert asking.route("orders") == 17
    leaving = Asking(bench)
    leaving.say(register_request(joined.broker))
    leaving.session.closed("test")
    assert asking.route("orders") == 17


def test_an_old_connection_that_ends_takes_nothing_from_the_new_one(bench, asking):
    joined = other()
    old, new = Asking(bench), Asking(bench)
    old.say(register_request(joined.broker))
    new.say(register_request(joined.broker))
    old.session.closed("test")
    assert names(asking.route("orders")) == ["b"]


def test_a_broker_with_our_own_name_is_refused(bench, asking):
    answer = asking.say(register_request(other("penstock").broker))
    assert answer.code == 1
    assert "--broker-name" in answer.remark


def test_brokers_are_bounded(bench, asking):
    routes = bench.broker.service(RouteRegistry)
    for number in range(BROKERS_MAX):
        routes.register(f"b{number}", "c", "0", "127.0.0.1:1")
    assert asking.say(register_request(other("late").broker)).code == 1


@pytest.mark.parametrize("said", ["true", "false"])
def test_a_compressed_registration_is_read_and_a_bomb_is_not(asking, said):
    command = register_request(other().broker)
    plain = command.body
    command.ext |= {"compressed": said, "bodyCrc32": "0"}
    command.body = zlib.compress(plain)
    assert asking.say(command).code == 0
    assert names(asking.route("orders")) == ["b"]
    command.body = zlib.compress(b" " * (9 << 20))
    assert asking.say(command).code == 1
    command.body = b"no zlib"
    assert asking.say(command).code == 1


def test_a_registration_with_a_wrong_checksum_is_refused(asking):
    command = register_request(other().broker)
    command.ext["bodyCrc32"] = "1"
    assert asking.say(command).remark == "crc32 not match"
    assert asking.route("orders") == 17


def test_a_broker_asks_whether_its_topics_are_known(asking):
    joined = other()
    ext = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0"}
    body = msgspec.json.encode(joined.broker.topics.version)
    assert asking.ask(RequestCode.QUERY_DATA_VERSION, ext, body).ext["changed"] == "true"
    asking.say(register_request(joined.broker))
    assert asking.ask(RequestCode.QUERY_DATA_VERSION, ext, body).ext["changed"] == "false"


def test_write_permission_of_a_broker_is_taken_and_given_back(bench, asking):
    bench.client().send("orders")
    asking.say(register_request(other().broker))
    for name in ("penstock", "b"):
        wiped = asking.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": name})
        assert wiped.ext == {"wipeTopicCount": "5"}
    assert [each["perm"] for each in asking.route("orders")["queueDatas"]] == [4, 4]
    asking.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b"})
    assert [each["perm"] for each in asking.route("orders")["queueDatas"]] == [4, 6]


def test_clusters_and_topics_are_listed(bench, asking):
    bench.client().send("orders")
    asking.say(register_request(other(cluster="second").broker))
    cluster = msgspec.json.decode(asking.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    assert cluster["clusterAddrTable"] == {"DefaultCluster": ["penstock"], "second": ["b"]}
    assert list(cluster["brokerAddrTable"]) == ["penstock", "b"]
    topics = msgspec.json.decode(asking.ask(206).body)
    listed = [
        "TBW102",
        "DefaultCluster",
        "penstock",
        "DefaultCluster_REPLY_TOPIC",
        "orders",
        "second",
        "b",
        "second_REPLY_TOPIC",
    ]
    assert topics == {"topicList": listed, "brokerAddr": None}
    answer = asking.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "nowhere"})
    assert msgspec.json.decode(answer.body)["topicList"] == []
    system = msgspec.json.decode(asking.ask(304).body)
    assert "SELF_TEST_TOPIC" in system["topicList"]
    assert system["brokerAddr"] == "127.0.0.1:10911"


def test_a_deleted_route_of_another_broker_is_gone_until_it_registers(bench, asking):
    joined = other()
    asking.say(register_request(joined.broker))
    asking.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    assert asking.route("orders") == 17
    asking.say(register_request(joined.broker))
    assert names(asking.route("orders")) == ["b"]


def test_key_values_are_kept_over_a_kill(bench, asking):
    key = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    assert asking.ask(RequestCode.GET_KV_CONFIG, key).code == 22
    assert asking.ask(RequestCode.PUT_KV_CONFIG, key | {"value": "penstock:4"}).code == 0
    bench.kill()
    asking = Asking(bench)
    assert asking.ask(RequestCode.GET_KV_CONFIG, key).ext == {"value": "penstock:4"}
    table = asking.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, key)
    assert msgspec.json.decode(table.body) == {"table": {"orders": "penstock:4"}}
    bench.client().send("orders")
    assert asking.route("orders")["orderTopicConf"] == "penstock:4"
    asking.ask(RequestCode.DELETE_KV_CONFIG, key)
    assert asking.ask(RequestCode.GET_KV_CONFIG, key).code == 22
    assert asking.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, key).code == 22


def test_an_entry_that_is_too_large_is_refused(asking):
    ext = {"namespace": "n", "key": "k", "value": "v" * 16_000}
    assert asking.ask(RequestCode.PUT_KV_CONFIG, ext).code == 0
    assert asking.ask(RequestCode.PUT_KV_CONFIG, ext | {"key": "k" * 500}).code == 1


def test_codes_of_the_broker_are_not_served_here(asking):
    for code in (10, 217, 4711):
        answer = asking.ask(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_missing_fields_are_named_and_the_connection_lives(asking):
    answer = asking.ask(ROUTE)
    assert answer.code == 1
    assert "topic" in answer.remark
    assert asking.route("TBW102")


def test_binary_headers_are_answered_in_kind(asking):
    answer = asking.ask(ROUTE, {"topic": "TBW102"}, serialization=1)
    assert (answer.code, answer.serialization) == (0, 1)


def test_a_oneway_question_is_not_answered_and_garbage_ends_the_connection(asking):
    asking.session.receive(encode(Command(int(ROUTE), {"topic": "x"}, flag=FLAG_ONEWAY)))
    assert asking.session.outgoing() == []
    asking.session.receive(b"\xff\xff\xff\xff")
    assert asking.session.wants_close


def test_a_registration_of_some_topics_takes_none_of_the_others_away(asking):
    joined = other()
    asking.say(register_request(joined.broker))
    some = register_request(joined.broker)
    del some.ext["isComplete"]
    some.body = encode_body(
        RegisterBrokerBody(
            topics=TopicConfigTable(topic_config_table={"new": TopicConfig(topic_name="new")})
        )
    )
    some.ext["bodyCrc32"] = "0"
    assert asking.say(some).code == 0
    assert names(asking.route("new")) == names(asking.route("orders")) == ["b"]


def test_a_complete_registration_takes_away_what_was_deleted(asking):
    joined = other()
    asking.say(register_request(joined.broker))
    joined.broker.topics.delete("orders")
    joined.settle()
    asking.say(register_request(joined.broker))
    assert asking.route("orders") == 17


def test_the_topics_of_one_broker_are_bounded(asking, monkeypatch):
    monkeypatch.setattr(routes, "TOPICS_MAX", 1)
    answer = asking.say(register_request(other().broker))
    assert answer.code == 1
    assert "limit 1" in answer.remark


def test_its_settings_are_read_and_not_changed(asking):
    answer = asking.ask(RequestCode.GET_NAMESRV_CONFIG)
    config = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert config["rocketmq.broker_silence_ms_max"] == "120000"
    assert int(config["listenPort"]) > 0
    refused = asking.ask(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"a=b\n")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "set a on the command line" in refused.remark
