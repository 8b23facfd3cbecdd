import pytest

from penstock.wire.rocketmq.bodies import ConsumerList, MessageQueue
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.lenient_json import decode_body, encode_body, standard_json
from penstock.wire.rocketmq.route_bodies import (
    BrokerData,
    Cluster,
    QueueData,
    RegisterBrokerBody,
    TopicRouteData,
)

STANDARD = (
    b'{"orderTopicConf":null,"queueDatas":[{"brokerName":"b","readQueueNums":4,'
    b'"writeQueueNums":4,"perm":6,"topicSysFlag":0}],"brokerDatas":[{"cluster":"c",'
    b'"brokerName":"b","brokerAddrs":{"0":"10.0.0.1:10911"},"enableActingMaster":false}],'
    b'"filterServerTable":{}}'
)
FASTJSON = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b","cluster":"c"}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,'
    b'"topicSynFlag":0,"writeQueueNums":4}]}'
)
ROUTE = TopicRouteData(
    queue_datas=[QueueData(broker_name="b", read_queue_nums=4, write_queue_nums=4)],
    broker_datas=[BrokerData(cluster="c", broker_name="b", broker_addrs={"0": "10.0.0.1:10911"})],
)


@pytest.mark.parametrize("body", [STANDARD, FASTJSON], ids=["standard", "old fastjson"])
def test_routes_are_read_with_quoted_and_with_bare_keys(body):
    assert decode_body(body, TopicRouteData) == ROUTE


def test_routes_are_written_as_standard_json_in_a_fixed_order():
    assert encode_body(ROUTE) == STANDARD


def test_a_cluster_is_read_with_bare_keys():
    body = (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"b"}},'
        b'"clusterAddrTable":{"c":["b"]}}'
    )
    cluster = decode_body(body, Cluster)
    assert cluster.broker_addr_table["b"].broker_addrs == {"0": "h:1", "1": "h:2"}


@pytest.mark.parametrize(
    ("odd", "standard"),
    [
        (b'{0:"a",1:"b"}', b'{"0":"a","1":"b"}'),
        (b'{"a":{-1:[{2:3}]}}', b'{"a":{"-1":[{"2":3}]}}'),
        (b'{{"q":1,"t":"T"}:5}', b'{"{\\"q\\":1,\\"t\\":\\"T\\"}":5}'),
        (b'{{"q":{1:2}}:5,"x":6}', b'{"{\\"q\\":{\\"1\\":2}}":5,"x":6}'),
        (b'{"a{0:":"{1:\\"}"}', b'{"a{0:":"{1:\\"}"}'),
        (b'[1,{"a":true},null]', b'[1,{"a":true},null]'),
        (b"{}", b"{}"),
    ],
)
def test_keys_become_strings_and_the_rest_stays(odd, standard):
    assert standard_json(odd) == standard


def test_a_key_in_a_key_is_refused_before_its_backslashes_double():
    with pytest.raises(Malformed, match="as key inside a key"):
        standard_json(b"{" * 30 + b'"a":1' + b"}:1" * 30)


def test_unended_strings_cost_linear_time():
    assert len(standard_json(b'{"a":1}' + b'\\"' * 300_000)) > 500_000


def test_only_a_fourth_of_the_limit_may_need_its_keys_rewritten():
    odd = b'{0:"' + b"x" * 996 + b'"}'
    assert decode_body(odd, dict[str, str], bytes_max=4 * len(odd)) == {"0": "x" * 996}
    with pytest.raises(Malformed, match="malformed"):
        decode_body(odd, dict[str, str], bytes_max=4 * len(odd) - 1)


def test_an_object_as_key_can_be_read_as_a_queue():
    table = decode_body(b'{{"topic":"T","brokerName":"b","queueId":1}:5}', dict[str, int])
    [key] = table
    queue = decode_body(key.encode(), MessageQueue)
    assert queue == MessageQueue(topic="T", broker_name="b", queue_id=1)


@pytest.mark.parametrize("tail", [b"", b"\n", b"\0", b" \r\n\0"])
def test_what_cpp_appends_does_not_matter(tail):
    body = b'{"consumerIdList":["a",null],"x":1}' + tail
    assert decode_body(body, ConsumerList).consumer_id_list == ["a"]


def test_a_registration_is_read():
    body = (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T","perm":6,'
        b'"readQueueNums":4,"writeQueueNums":4,"order":false,"attributes":null}},'
        b'"dataVersion":{"counter":1,"timestamp":2}},"filterServerList":[]}'
    )
    found = decode_body(body, RegisterBrokerBody).topics
    assert found.topic_config_table["T"].read_queue_nums == 4
    assert found.data_version.counter == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{", b"}", b"{]", b'{"consumerIdList":5}', b"[" * 100_000, b"{0:" * 70],
)
def test_nonsense_is_malformed(body):
    with pytest.raises(Malformed, match="ConsumerList cannot be read"):
        decode_body(body, ConsumerList)


def test_a_body_above_its_limit_is_not_looked_at():
    with pytest.raises(Malformed, match="ConsumerList of 262145 bytes, limit 262144"):
        decode_body(b" " * (256 * 1024 + 1), ConsumerList)
    assert decode_body(b" " * 2_000_000 + b"{}", ConsumerList, bytes_max=1 << 22) == ConsumerList()
