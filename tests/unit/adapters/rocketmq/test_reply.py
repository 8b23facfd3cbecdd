"""Replies: pushed to the client that asked, stored beside it, answered once."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq import reply as reply_room
from penstock.adapters.rocketmq.reply import ReplyService
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command, response_to
from penstock.wire.rocketmq.frames import encode
from penstock.wire.rocketmq.properties import format_properties, parse_properties

TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def requester(bench):
    client = bench.client()
    client.join_producers()
    return client


def name_of(client):
    return f"client-{client.session.connection_id}"


def header(properties, topic=TOPIC):
    return {
        "producerGroup": "repliers",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "7",
        "flag": "0",
        "properties": format_properties(properties).decode(),
    }


def start(replier, requester_id, body=b"pong", code=RequestCode.SEND_REPLY_MESSAGE):
    properties = {"CORRELATION_ID": "c1", "MSG_TYPE": "reply"}
    if requester_id:
        properties["REPLY_TO_CLIENT"] = requester_id
    ext = header(properties)
    if code == RequestCode.SEND_REPLY_MESSAGE_V2:
        names = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId",
                 "sysFlag", "bornTimestamp", "flag", "properties")  # fmt: skip
        ext = dict(zip("abcdefghi", [ext[name] for name in names], strict=True))
    return replier.write(code, ext, body)


def answer_to(client, opaque):
    found = [each for each in client._hear() if each.is_response and each.opaque == opaque]
    assert len(found) < 2
    return found[0] if found else None


def pushes(client):
    return [each for each in client.told if each.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT]


def respond(client, pushed: Command, code=0):
    client.session.receive(encode(response_to(pushed, code)))


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]
)
def test_a_reply_reaches_the_client_that_asked(bench, requester, code):
    replier = bench.client()
    opaque = start(replier, name_of(requester), code=code)
    bench.settle()
    (pushed,) = pushes(requester)
    assert (pushed.body, pushed.is_oneway) == (b"pong", False)
    properties = parse_properties(pushed.ext["properties"].encode())
    assert properties["CORRELATION_ID"] == "c1"
    assert properties["PUSH_REPLY_TIME"] == pushed.ext["storeTimestamp"]
    assert pushed.ext["bornHost"] == str(replier.session.peer)
    assert (pushed.ext["topic"], pushed.ext["bornTimestamp"]) == (TOPIC, "7")
    assert answer_to(replier, opaque) is None, "nobody has said that it arrived"
    respond(requester, pushed)
    answer = answer_to(replier, opaque)
    assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
    (stored,) = bench.stored(TOPIC)
    assert (stored.body, stored.property_map()["CORRELATION_ID"]) == (b"pong", "c1")
    assert len(answer.ext["msgId"]) == 32


def test_a_reply_is_not_stored_where_that_is_off():
    settings = Settings(rocketmq=RocketmqSettings(is_storing_replies=False))
    bench = RocketmqBench(settings)
    requester, replier = bench.client(), bench.client()
    requester.join_producers()
    opaque = start(replier, name_of(requester))
    bench.settle()
    respond(requester, pushes(requester)[0])
    answer = answer_to(replier, opaque)
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
    assert bench.stored(TOPIC) == []


@pytest.mark.parametrize(
    ("client_id", "remark"),
    [
        ("", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("gone", "push reply message fail, channel of <gone> not found."),
    ],
)
def test_a_reply_to_nobody_is_stored_and_its_sender_told(bench, client_id, remark):
    replier = bench.client()
    opaque = start(replier, client_id)
    bench.settle()
    answer = answer_to(replier, opaque)
    assert (answer.code, answer.remark) == (1, remark)
    assert len(bench.stored(TOPIC)) == 1


@pytest.mark.parametrize("how", ["refuses", "closes", "is silent", "says good-bye"])
def test_a_requester_that_does_not_take_it(bench, requester, how):
    replier = bench.client()
    if how == "says good-bye":
        ext = {"clientID": name_of(requester), "producerGroup": "producers"}
        requester.ask(RequestCode.UNREGISTER_CLIENT, ext)
    opaque = start(replier, name_of(requester))
    bench.settle()
    if how == "refuses":
        respond(requester, pushes(requester)[0], 1)
    elif how == "closes":
        requester.close()
    elif how == "is silent":
        bench.advance(10_000)
    answer = answer_to(replier, opaque)
    assert answer.code == 1
    assert answer.remark.startswith("push reply message")
    assert bench.broker.service(ReplyService).pushed_bytes == 0


def test_replies_that_nobody_takes_have_a_bound(bench, requester, monkeypatch):
    monkeypatch.setattr(reply_room, "PUSHED_BYTES_MAX", 6)
    replier = bench.client()
    first, second = (start(replier, name_of(requester)) for _ in range(2))
    bench.settle()
    assert answer_to(replier, first) is None
    busy = answer_to(replier, second)
    assert (busy.code, busy.remark.partition("]")[0]) == (2, "[FLOW_CONTROL")
    assert len(bench.stored(TOPIC)) == 1


def test_a_requester_that_reads_nothing_gets_no_more(bench, requester):
    requester.session.flushed(1 << 40)
    replier = bench.client()
    opaque = start(replier, name_of(requester))
    bench.settle()
    assert "does not read" in answer_to(replier, opaque).remark


def test_the_newest_connection_of_a_client_id_gets_the_reply(bench, requester):
    body = b'{"clientID":"%b","producerDataSet":[{"groupName":"producers"}]}'
    newer = bench.client()
    newer.ask(RequestCode.HEART_BEAT, body=body % name_of(requester).encode())
    start(bench.client(), name_of(requester))
    bench.settle()
    assert (len(pushes(requester)), len(pushes(newer))) == (0, 1)
    requester.close()
    start(bench.client(), name_of(requester))
    bench.settle()
    assert len(pushes(newer)) == 2


def test_a_reply_to_a_topic_that_is_not_there_is_refused(bench, requester):
    ext = header({"REPLY_TO_CLIENT": name_of(requester)}, topic="nowhere")
    answer = bench.client().ask(
        RequestCode.SEND_REPLY_MESSAGE, {**ext, "defaultTopic": "none"}, b"x"
    )
    assert answer.code == 17
    assert pushes(requester) == []
