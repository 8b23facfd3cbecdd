"""Requests and their replies, and recall, over real sockets."""

from penstock.wire.rocketmq.bodies import HeartbeatData, ProducerData, encode_body
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.properties import parse_properties

REPLIES = "DefaultCluster_REPLY_TOPIC"


def test_a_request_is_answered_by_whoever_consumes_it(connect):
    requester, worker, names = connect(), connect(), connect("rocketmq")
    data = HeartbeatData(client_id="asker", producer_data_set=[ProducerData(group_name="askers")])
    assert requester.request(RequestCode.HEART_BEAT, body=encode_body(data)).is_ok
    asked = {"CORRELATION_ID": "7", "REPLY_TO_CLIENT": "asker", "TTL": "3000"}
    assert requester.send("questions", b"6 * 7?", properties=asked).is_ok
    (message,) = worker.pull("questions").messages
    found = message.property_map()
    assert names.route(REPLIES) is not None
    reply = {name: found[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")}
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    opaque = worker.start_send(
        found["CLUSTER"] + "_REPLY_TOPIC", b"42", code=code, properties=reply
    )
    push = requester.wait_push(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    assert push.body == b"42"
    assert parse_properties(push.ext["properties"].encode())["CORRELATION_ID"] == "7"
    assert not worker.has_answer(opaque)
    requester.reply(push)
    assert worker.wait(opaque).is_ok
    assert [each.body for each in worker.pull(REPLIES).messages] == [b"42"]
    requester.close()
    late = worker.wait(worker.start_send(REPLIES, b"43", code=code, properties=reply))
    assert (late.code, late.remark[:18]) == (1, "push reply message")


def test_a_timer_message_is_recalled(connect):
    client = connect()
    sent = client.send("recalled", b"never", properties={"TIMER_DELAY_SEC": "3600"})
    ext = {"topic": "recalled", "recallHandle": sent.ext["recallHandle"]}
    answer = client.request(RequestCode.RECALL_MESSAGE, ext)
    assert (answer.is_ok, answer.ext["msgId"]) == (True, sent.ext["transactionId"])
    assert "nothing waits" in client.request(RequestCode.RECALL_MESSAGE, ext).remark
