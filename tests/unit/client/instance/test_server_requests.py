"""What brokers ask of a client, and what they are answered."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from penstock.client import instance as module
from penstock.client.instance import ServerRequests
from penstock.client.requests import encode_tables
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import decode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command
from penstock.wire.rocketmq.stored import StoredMessage, encode_stored

QUEUE = QueueRef("t", "a", 0)
MESSAGE = StoredMessage(topic="t", body=b"half", properties=b"PGROUP\x01p\x02")


class Instance:
    client_id = "me"

    def __init__(self):
        self.rebalances, self.tasks, self.checks = 0, [], []
        self.member = Consumer()
        self.routes = SimpleNamespace(broker_at=lambda _: "a")

    def consumer(self, group):
        return self.member if group == "g" else None

    def producer(self, group):
        return self if group == "p" else None

    def check_transaction(self, *check):
        self.checks.append(check)

    def rebalance_now(self):
        self.rebalances += 1

    def spawn(self, coroutine, name):
        self.tasks.append(asyncio.ensure_future(coroutine))


class Consumer:
    group = "g"

    def __init__(self):
        self.resets, self.consumed = [], []

    async def reset_offsets(self, topic, offsets):
        self.resets.append((topic, offsets))

    def consume_status(self, topic):
        return {QUEUE: 5}

    def running_info(self, with_stacks):
        return {"properties": {"stacks": str(with_stacks)}, "mqTable": {QUEUE: {"locked": True}}}

    async def consume_directly(self, message, broker):
        self.consumed.append((message.body, broker))
        return {"consumeResult": "CR_SUCCESS"}


def ask(code, ext=None, body=b"", *, flag=0, instance=None):
    """(what the client answered, the instance)."""
    instance = instance or Instance()

    async def run():
        answers = []
        connection = SimpleNamespace(address="a:1", answer=answers.append)
        ServerRequests(instance).handle(
            connection, Command(int(code), ext or {}, body, opaque=9, flag=flag)
        )
        await asyncio.gather(*instance.tasks)
        return answers

    return asyncio.run(run()), instance


def test_a_changed_group_asks_for_a_rebalance_when_a_member_is_here():
    notice = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    answers, instance = ask(notice, {"consumerGroup": "g"}, flag=FLAG_ONEWAY)
    assert (answers, instance.rebalances) == ([], 1)
    assert ask(notice, {"consumerGroup": "x"}, flag=FLAG_ONEWAY)[1].rebalances == 0


def test_a_transaction_check_reaches_the_producer_of_its_group():
    ext = {"tranStateTableOffset": "3", "commitLogOffset": "4"}
    check = RequestCode.CHECK_TRANSACTION_STATE
    _, instance = ask(check, ext, encode_stored(MESSAGE), flag=FLAG_ONEWAY)
    address, header, message = instance.checks[0]
    assert (address, header.commit_log_offset, message.body) == ("a:1", 4, b"half")


def test_a_reset_of_offsets_reaches_the_consumer():
    body = encode_tables({"offsetTable": {QUEUE: 7}})
    ext = {"topic": "t", "group": "g", "timestamp": "0"}
    answers, instance = ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body, flag=FLAG_ONEWAY)
    assert answers == []
    assert instance.member.resets == [("t", {QUEUE: 7})]


def test_consume_status_is_told_by_queue():
    answers, _ = ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "t", "group": "g"})
    assert answers[0].opaque == 9
    assert b'"queueId":0}:5' in answers[0].body


def test_running_info_is_told_as_json():
    ext = {"consumerGroup": "g", "clientId": "me", "jstackEnable": "true"}
    answers, _ = ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    assert answers[0].code == ResponseCode.SUCCESS
    assert decode_body(answers[0].body, dict[str, object])["properties"] == {"stacks": "True"}


def test_a_message_is_consumed_directly_and_the_outcome_told():
    ext = {"consumerGroup": "g", "clientId": "me", "msgId": "x"}
    answers, instance = ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext, encode_stored(MESSAGE))
    assert instance.member.consumed == [(b"half", "a")]
    assert decode_body(answers[0].body, dict[str, str]) == {"consumeResult": "CR_SUCCESS"}


def test_a_group_that_is_not_here_is_an_answer_not_an_error():
    ext = {"consumerGroup": "x", "clientId": "me"}
    answers, _ = ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    assert answers[0].code == ResponseCode.SYSTEM_ERROR
    assert "no consumer of group 'x'" in answers[0].remark


def test_an_error_of_a_member_is_told_and_logged(caplog):
    instance = Instance()
    instance.member.running_info = lambda _: 1 / 0
    ext = {"consumerGroup": "g", "clientId": "me"}
    with caplog.at_level(logging.CRITICAL):
        answers, _ = ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext, instance=instance)
    assert "ZeroDivisionError" in answers[0].remark


def test_a_code_nobody_knows_is_not_supported_unless_oneway():
    answers, _ = ask(4711)
    assert answers[0].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert ask(4711, flag=FLAG_ONEWAY)[0] == []


def test_past_the_bound_questions_are_refused_as_busy(monkeypatch):
    monkeypatch.setattr(module, "SERVER_REQUESTS_MAX", 0)
    answers, _ = ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": ""})
    assert answers[0].code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("body", [b"", b"nonsense"])
def test_a_check_without_a_message_is_an_error_of_the_broker(body):
    ext = {"tranStateTableOffset": "3", "commitLogOffset": "4"}
    with pytest.raises(ValueError, match="message"):
        ask(RequestCode.CHECK_TRANSACTION_STATE, ext, body)
