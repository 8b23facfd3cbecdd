import pytest

from penstock.model.record import tag_hash
from penstock.wire.rocketmq.bodies import (
    BatchAckBody,
    CheckClientBody,
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
    RequestMode,
    SetRequestModeBody,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.lenient_json import decode_body, encode_body

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
