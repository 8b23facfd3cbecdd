"""Questions that go through the broker to a client."""

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench
from penstock.adapters.rocketmq.admin import CALL_MS, CALLS_MAX, ClientCalls
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import response_to
from penstock.wire.rocketmq.frames import encode
from penstock.wire.rocketmq.stored import decode_stored

INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def consumer(bench):
    consumer = BenchConsumer.on(bench, "c1")
    consumer.heartbeat(orders="*")
    return consumer


@pytest.fixture
def operator(bench):
    return BenchConsumer.on(bench, "operator")


def names(**others):
    return {"consumerGroup": GROUP, "clientId": "c1", **others}


def asked(consumer, code):
    (found,) = [each for each in consumer.told if each.code == code]
    return found


def reply(consumer, question, **answer):
    consumer.session.receive(encode(response_to(question, 0, **answer)))


def test_running_info_goes_there_and_the_answer_back(consumer, operator):
    opaque = operator.write(INFO, names(jstackEnable="true"))
    question = asked(consumer, INFO)
    assert not question.is_oneway
    assert question.ext == names(jstackEnable="true")
    assert operator.answer_to(opaque) is None
    reply(consumer, question, body=b'{"properties":{}}', remark="fine", ext={"x": "1"})
    answer = operator.answer_to(opaque)
    assert (answer.code, answer.body) == (0, b'{"properties":{}}')
    assert (answer.remark, answer.ext) == ("fine", {"x": "1"})


def test_consume_directly_carries_the_message(bench, consumer, operator):
    sent = bench.client().send("orders", b"this one")
    operator.write(DIRECTLY, names(msgId=sent.ext["msgId"], topic="orders"))
    question = asked(consumer, DIRECTLY)
    assert decode_stored(question.body)[0].body == b"this one"
    assert question.ext["brokerName"] == bench.broker.broker_name


@pytest.mark.parametrize("msg_id", ["", "xyz", "00" * 15])
def test_a_message_id_that_is_none_is_1(consumer, operator, msg_id):
    answer = operator.ask(DIRECTLY, names(msgId=msg_id))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert consumer.told_codes() == [40]


def test_a_message_that_is_not_there_is_1(consumer, operator):
    answer = operator.ask(DIRECTLY, names(msgId="7F00000100002A9F" + "00000000FFFFFFFF"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"look message by offset failed, {0xFFFFFFFF}"


@pytest.mark.parametrize("ext", [names(clientId="nobody"), names(consumerGroup="none")])
def test_a_client_that_is_not_online_is_1(consumer, operator, ext):
    answer = operator.ask(INFO, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    who = f"<{ext['consumerGroup']}> <{ext['clientId']}>"
    assert answer.remark == f"The Consumer {who} not online"


def test_a_client_that_does_not_answer_within_10_s_is_207(bench, consumer, operator):
    assert CALL_MS == 10_000
    opaque = operator.write(INFO, names())
    question = asked(consumer, INFO)
    bench.advance(9_999)
    assert operator.answer_to(opaque) is None
    bench.advance(1)
    assert operator.answer_to(opaque).code == ResponseCode.CONSUME_MSG_TIMEOUT
    reply(consumer, question)  # too late, and heard by nobody
    assert operator.answer_to(opaque).code == ResponseCode.CONSUME_MSG_TIMEOUT


def test_a_client_that_goes_ends_the_question(bench, consumer, operator):
    opaque = operator.write(INFO, names())
    consumer.close()
    assert operator.answer_to(opaque).code == ResponseCode.SYSTEM_ERROR
    bench.advance(CALL_MS)
    assert len(bench.broker.service(ClientCalls)) == 0


def test_an_operator_that_goes_is_not_answered(bench, consumer, operator):
    operator.write(INFO, names())
    operator.close()
    reply(consumer, asked(consumer, INFO))
    bench.advance(CALL_MS)


def test_questions_that_wait_are_bounded(bench, consumer, operator):
    for _ in range(CALLS_MAX):
        operator.write(INFO, names())
    answer = operator.ask(INFO, names())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(CALLS_MAX) in answer.remark
