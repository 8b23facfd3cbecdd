"""Groups over real sockets: members, notices, retries, dead letters, locks, transactions."""

import time

import pytest

from penstock.wire.rocketmq.bodies import (
    ConsumerData,
    ConsumerList,
    LockBatchAnswer,
    LockBatchBody,
    MessageQueue,
    SubscriptionData,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.headers import EndTransactionHeader, SendBackHeader


def consumer(group, topic, expression="*"):
    wanted = SubscriptionData(topic=topic, sub_string=expression, sub_version=1)
    return ConsumerData(group_name=group, subscription_data_set=[wanted])


def member_ids(client, group):
    answer = client.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return decode_body(answer.body, ConsumerList).consumer_id_list if answer.is_ok else []


def test_members_hear_of_each_other_and_leave_with_their_connection(connect):
    first, second = connect(), connect()
    first.create_topic("members", 1)
    first.heartbeat(consumer("members-g", "members"), client_id="a")
    second.heartbeat(consumer("members-g", "members"), client_id="b")
    push = first.wait_push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert push.ext["consumerGroup"] == "members-g"
    assert sorted(member_ids(first, "members-g")) == ["a", "b"]
    first.pushes.clear()
    second.close()
    first.wait_push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert member_ids(first, "members-g") == ["a"]


def test_a_message_sent_back_comes_again_from_the_retry_topic_and_then_dies(client):
    client.create_topic("retry", 1)
    client.heartbeat(consumer("retry-g", "retry"))
    sent = client.send("retry", b"try me")
    (message,) = client.pull("retry", consumer_group="retry-g").messages
    back = {"group": "retry-g", "origin_msg_id": message.offset_message_id,
            "origin_topic": "retry", "max_reconsume_times": 1}  # fmt: skip
    answer = client.request(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        SendBackHeader(offset=message.commit_log_offset, delay_level=1, **back),
    )
    assert answer.is_ok
    began = time.monotonic()
    again = client.pull("%RETRY%retry-g", consumer_group="retry-g", hold_ms=10_000)
    (message,) = again.messages
    assert 0.5 < time.monotonic() - began < 5
    assert (message.body, message.reconsume_times) == (b"try me", 1)
    properties = message.property_map()
    assert properties["RETRY_TOPIC"] == "retry"
    assert properties["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]
    dead = client.request(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        SendBackHeader(offset=message.commit_log_offset, delay_level=0, **back),
    )
    assert dead.is_ok
    (message,) = client.pull("%DLQ%retry-g", consumer_group="retry-g", hold_ms=10_000).messages
    assert message.body == b"try me"


def test_a_delayed_message_comes_at_its_time(client):
    client.create_topic("later", 1)
    began = time.monotonic()
    assert client.send("later", b"x", properties={"DELAY": "1"}).is_ok
    assert client.pull("later").code == ResponseCode.PULL_NOT_FOUND
    (message,) = client.pull("later", hold_ms=10_000).messages
    assert (message.body, message.topic) == (b"x", "later")
    assert 0.8 < time.monotonic() - began < 5


def lock(client, owner, *queues, code=RequestCode.LOCK_BATCH_MQ):
    body = LockBatchBody(
        consumer_group="locks-g",
        client_id=owner,
        mq_set=[MessageQueue(topic="locks", broker_name="penstock", queue_id=n) for n in queues],
    )
    answer = client.request(code, body=encode_body(body))
    assert answer.is_ok
    if code == RequestCode.UNLOCK_BATCH_MQ:
        return []
    return sorted(each.queue_id for each in decode_body(answer.body, LockBatchAnswer).locked)


def test_a_queue_is_locked_by_one_client_at_a_time(connect):
    first, second = connect(), connect()
    first.create_topic("locks", 4)
    assert lock(first, "a", 0, 1, 2) == [0, 1, 2]
    assert lock(second, "b", 2, 3) == [3]
    lock(first, "a", 2, code=RequestCode.UNLOCK_BATCH_MQ)
    assert lock(second, "b", 2, 3) == [2, 3]


@pytest.mark.parametrize(("decision", "is_seen"), [(8, True), (12, False)])
def test_a_half_message_is_seen_only_when_it_is_committed(client, decision, is_seen):
    topic = f"transaction-{decision}"
    client.create_topic(topic, 1)
    properties = {"TRAN_MSG": "true", "PGROUP": "half-producers"}
    sent = client.send(
        topic, b"half", properties=properties, sys_flag=4, producer_group="half-producers"
    )
    assert sent.is_ok
    assert client.pull(topic).code == ResponseCode.PULL_NOT_FOUND
    position = int(sent.ext["msgId"][16:], 16)
    client.oneway(
        RequestCode.END_TRANSACTION,
        EndTransactionHeader(
            producer_group="half-producers",
            tran_state_table_offset=sent.number("queueOffset"),
            commit_log_offset=position,
            commit_or_rollback=decision,
            msg_id=sent.ext["transactionId"],
            transaction_id=sent.ext["transactionId"],
        ),
    )
    answer = client.pull(topic, hold_ms=10_000 if is_seen else 300)
    assert [each.body for each in answer.messages] == ([b"half"] if is_seen else [])


def test_a_message_is_found_by_id_and_by_key(client):
    client.create_topic("lookup", 1)
    sent = client.send("lookup", b"find me", keys="needle")
    position = int(sent.ext["msgId"][16:], 16)
    viewed = client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)})
    assert [each.body for each in viewed.messages] == [b"find me"]
    query = {"topic": "lookup", "key": "needle", "maxNum": "32", "beginTimestamp": "0",
             "endTimestamp": str(1 << 53)}  # fmt: skip
    assert [each.body for each in client.request(RequestCode.QUERY_MESSAGE, query).messages] == [
        b"find me"
    ]
    missing = client.request(RequestCode.QUERY_MESSAGE, {**query, "key": "hay"})
    assert missing.code == ResponseCode.QUERY_NOT_FOUND
