import struct
import zlib

import pytest

from penstock.model.record import tag_hash
from penstock.wire.rocketmq.bodies import (
    BatchAckBody,
    BrokerData,
    CheckClientBody,
    Cluster,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerList,
    ConsumeType,
    HeartbeatData,
    LockBatchAnswer,
    LockBatchBody,
    MessageModel,
    MessageQueue,
    ProducerData,
    QueryAssignmentAnswer,
    QueryAssignmentBody,
    QueueAssignment,
    QueueData,
    RegisterBrokerBody,
    RequestMode,
    SetRequestModeBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicRouteData,
    decode_body,
    encode_body,
    standard_json,
    unpack_registration,
)
from penstock.wire.rocketmq.command import Malformed

JAVA = b"""{"clientID":"10.0.0.1@1","heartbeatFingerprint":0,"withoutSub":false,
"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],
"consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY",
"groupName":"g","messageModel":"CLUSTERING","unitMode":false,"subscriptionDataSet":[
{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG",
"subString":"TagA || TagB","subVersion":1731700000000,"tagsSet":["TagA","TagB"],"topic":"T"}]}]}"""

CPP = b"""{"clientID":"10.0.0.1@1","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,
"groupName":"g","messageModel":1,"subscriptionDataSet":[
{"subString":"TagA || TagB","subVersion":"1731700000000","topic":"T"}]}],"producerDataSet":null}
"""


@pytest.mark.parametrize("body", [JAVA, CPP], ids=["Java", "C++"])
def test_heartbeats_mean_the_same_whoever_wrote_them(body):
    beat = decode_body(body, HeartbeatData)
    assert beat.client_id == "10.0.0.1@1"
    [consumer] = beat.consumer_data_set
    assert consumer.consume_type is ConsumeType.PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    [wanted] = consumer.subscription_data_set
    assert wanted == SubscriptionData(
        topic="T",
        sub_string="TagA || TagB",
        tags_set=["TagA", "TagB"],
        code_set=[2598919, 2598920],
        sub_version=1731700000000,
    )
    assert wanted.expression_type == "TAG"


@pytest.mark.parametrize("number", range(6))
def test_ordinals_of_where_to_begin_are_those_of_the_enumeration(number):
    body = b'{"groupName":"g","consumeFromWhere":%d}' % number
    found = decode_body(body, ConsumerData).consume_from_where
    assert found is list(ConsumeFromWhere)[number]


@pytest.mark.parametrize("value", [b"6", b"-1", b'"SIDEWAYS"', b"[]"])
def test_other_values_are_refused_and_named(value):
    with pytest.raises(Malformed, match="ConsumerData cannot be read"):
        decode_body(b'{"groupName":"g","consumeFromWhere":%b}' % value, ConsumerData)


def test_what_we_send_are_names_and_standard_json():
    beat = HeartbeatData(
        client_id="c",
        producer_data_set=[ProducerData(group_name="p")],
        consumer_data_set=[ConsumerData(group_name="g", consume_type=ConsumeType.POP)],
    )
    assert encode_body(beat) == (
        b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":['
        b'{"groupName":"g","consumeType":"CONSUME_POP","messageModel":"CLUSTERING",'
        b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[],'
        b'"unitMode":false}],"heartbeatFingerprint":0,"withoutSub":false}'
    )
    assert decode_body(encode_body(beat), HeartbeatData) == beat


@pytest.mark.parametrize(
    ("text", "tags"),
    [("*", []), ("", []), (" * ", []), ("A", ["A"]), ("A||B || A || ", ["A", "B"])],
)
def test_tags_are_rebuilt_from_the_expression(text, tags):
    subscription = SubscriptionData(topic="T", sub_string=text)
    assert subscription.tags_set == tags
    assert len(subscription.code_set) == len(tags)


def test_long_expressions_are_refused():
    with pytest.raises(Malformed, match="expression of 8193 characters, limit 8192"):
        decode_body(b'{"topic":"T","subString":"%b"}' % (b"x" * 8193), SubscriptionData)
    long = SubscriptionData(topic="T", sub_string="y" * 8192)
    assert long.code_set == [tag_hash(b"y" * 8192)]


def test_sql_expressions_have_no_tags():
    subscription = SubscriptionData(topic="T", sub_string="a || b", expression_type="SQL92")
    assert (subscription.tags_set, subscription.code_set) == ([], [])


def test_locks_are_asked_for_and_granted():
    queue = MessageQueue(topic="T", broker_name="b", queue_id=1)
    body = (
        b'{"clientId":"c","consumerGroup":"g","mqSet":'
        b'[{"brokerName":"b","queueId":1,"topic":"T"}]}\n'
    )
    assert decode_body(body, LockBatchBody) == LockBatchBody(
        consumer_group="g", client_id="c", mq_set=[queue]
    )
    assert encode_body(LockBatchAnswer(locked=[queue])) == (
        b'{"lockOKMQSet":[{"topic":"T","brokerName":"b","queueId":1}]}'
    )
    assert {queue: 1}[MessageQueue(topic="T", broker_name="b", queue_id=1)] == 1


def test_assignments_are_asked_for_and_given():
    body = b'{"topic":"T","consumerGroup":"g","clientId":"c","strategyName":"AVG","messageModel":1}'
    asked = decode_body(body, QueryAssignmentBody)
    assert asked.message_model is MessageModel.CLUSTERING
    queue = MessageQueue(topic="T", broker_name="b", queue_id=-1)
    answer = QueryAssignmentAnswer(
        message_queue_assignments=[QueueAssignment(message_queue=queue, mode=RequestMode.POP)]
    )
    assert encode_body(answer) == (
        b'{"messageQueueAssignments":[{"messageQueue":{"topic":"T","brokerName":"b","queueId":-1},'
        b'"mode":"POP","attachments":null}]}'
    )
    assert decode_body(encode_body(answer), QueryAssignmentAnswer) == answer
    mode = decode_body(b'{"topic":"T","consumerGroup":"g","mode":"POP"}', SetRequestModeBody)
    assert (mode.mode, mode.pop_share_queue_num) == (RequestMode.POP, -1)


def test_a_batch_of_acknowledgements_is_a_bit_set():
    body = (
        b'{"brokerName":"b","acks":[{"c":"g","t":"T","r":"0","so":100,"q":2,"rq":3,'
        b'"pt":1700,"it":60000,"b":"BQE="}]}'
    )
    [ack] = decode_body(body, BatchAckBody).acks
    assert ack.offsets() == [100, 102, 108]
    assert (ack.consumer_group, ack.topic, ack.queue_id) == ("g", "T", 2)


def test_other_bodies_read_back():
    for body in (
        ConsumerList(consumer_id_list=["a", "b"]),
        CheckClientBody(
            client_id="c", group="g", subscription_data=SubscriptionData(topic="T", sub_string="A")
        ),
        SubscriptionGroupConfig(group_name="g", retry_max_times=3),
    ):
        assert decode_body(encode_body(body), type(body)) == body


# ---- lenient json -------------------------------------------------------------------------------


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


# ---- packed registration ------------------------------------------------------------------------
# Compressed registrations as RocketMQ's brokers write them.


VERSION = b'{"counter":3,"stateVersion":0,"timestamp":1700000000000}'
BYTES_MAX = 10_000


def piece(data):
    return struct.pack(">i", len(data)) + data


def packed(*topics, version=VERSION, count=None, rest=b""):
    count = len(topics) if count is None else count
    plain = piece(version) + struct.pack(">i", count) + b"".join(map(piece, topics))
    return zlib.compress(plain + piece(b"[]") + rest)


def test_topics_and_version_are_read():
    body = unpack_registration(
        packed(b"orders 4 8 6 SINGLE_TAG", b"TBW102 8 8 7 SINGLE_TAG"), BYTES_MAX
    )
    table = body.topics.topic_config_table
    orders = table["orders"]
    assert list(table) == ["orders", "TBW102"]
    assert (orders.read_queue_nums, orders.write_queue_nums, orders.perm) == (4, 8, 6)
    assert orders.topic_filter_type == "SINGLE_TAG"
    assert (body.topics.data_version.counter, body.topics.data_version.timestamp) == (
        3,
        1700000000000,
    )


def test_attributes_and_what_follows_since_5_0_are_passed_over():
    topic = b'orders 4 4 6 SINGLE_TAG {"+message.type":"NORMAL OR NOT"}'
    body = unpack_registration(packed(topic, rest=struct.pack(">i", 0)), BYTES_MAX)
    assert body.topics.topic_config_table["orders"].read_queue_nums == 4


def test_json_that_was_deflated_as_a_whole_is_read():
    body = unpack_registration(
        zlib.compress(
            b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"topicName":"t"}}}}'
        ),
        BYTES_MAX,
    )
    assert list(body.topics.topic_config_table) == ["t"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no deflate",
        zlib.compress(b""),
        zlib.compress(b"\x00\x00"),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(struct.pack(">i", 1 << 30)),
        packed(version=b"[]"),
        packed(count=1 << 30),
        packed(b"orders 4 4 6"),
        packed(b"orders four 4 6 SINGLE_TAG"),
        packed(b"orders 4 4 6 SINGLE_TAG")[:-12],
    ],
    ids=str,
)
def test_what_cannot_be_read_is_malformed(data):
    with pytest.raises(Malformed):
        unpack_registration(data, BYTES_MAX)


def test_what_inflates_beyond_the_limit_is_not_read():
    with pytest.raises(Malformed, match="more than 10000 bytes"):
        unpack_registration(zlib.compress(bytes(BYTES_MAX + 1)), BYTES_MAX)
