"""Transactions: what brokers are told, and who answers their questions."""

import asyncio
import threading

import pytest

from penstock.client.message import Message, SendResult, SendStatus
from penstock.client.producer.hooks import SendHook, TransactionState
from penstock.client.producer.transaction import Transactions, state_of
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.headers import CheckTransactionHeader
from penstock.wire.rocketmq.message_id import encode_host, offset_message_id
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import StoredMessage

HOST = encode_host("127.0.0.1", 10911)
RESULT = SendResult(
    SendStatus.SEND_OK, "KEY", offset_message_id(HOST, 77), QueueRef("t", "a", 0), 5, "TX"
)
HEADER = CheckTransactionHeader(
    tran_state_table_offset=5, commit_log_offset=77, transaction_id="TX", offset_msg_id="OFF"
)


class Calls:
    """Writes down what brokers are told."""

    def __init__(self):
        self.told = []
        self.came = threading.Event()

    def end_transaction(self, address, header):
        self.told.append((address, header))
        self.came.set()


class Routes:
    """One broker."""

    def address(self, broker):
        return "a:1" if broker == "a" else None

    def broker_at(self, address):
        return "a"


class Here:
    """Stands for the client's thread: posts are calls."""

    def post(self, call, *args):
        call(*args)


class Watching(SendHook):
    """Keeps contexts."""

    def __init__(self):
        self.seen = []

    def transaction_ended(self, context):
        self.seen.append(context)


def transactions(check=None, waiting_max=10, hooks=()):
    made = Transactions(
        "g", Calls(), Routes(), Here(), check=check, hooks=hooks, threads=1, waiting_max=waiting_max
    )
    return made, made._requests


def stored():
    return StoredMessage(
        topic="t", body=b"x", queue_id=0, flag=0, queue_offset=5, commit_log_offset=77, sys_flag=0,
        born_ms=1, born_host=HOST, store_ms=2, store_host=HOST, reconsume_times=0,
        prepared_offset=0, properties=format_properties({"UNIQ_KEY": "KEY", "TAGS": "tag"}),
        body_crc=0,
    )  # fmt: skip


@pytest.mark.parametrize("state", TransactionState)
def test_the_broker_is_told_where_the_half_message_is_and_what_becomes_of_it(state):
    made, calls = transactions()
    made.end(Message("t", b"x"), RESULT, state)
    ((address, header),) = calls.told
    assert address == "a:1"
    assert header.commit_or_rollback == state.value
    assert (header.commit_log_offset, header.tran_state_table_offset) == (77, 5)
    assert (header.producer_group, header.msg_id, header.transaction_id) == ("g", "KEY", "TX")
    assert not header.from_transaction_check


def test_a_broker_that_is_gone_will_ask_by_itself(caplog):
    made, calls = transactions()
    gone = SendResult(RESULT.status, "KEY", RESULT.offset_message_id, QueueRef("t", "b", 0), 5)
    made.end(Message("t", b"x"), gone, TransactionState.COMMIT)
    assert not calls.told
    assert "cannot be ended" in caplog.text


def test_a_question_is_answered_by_a_function_on_a_worker_thread():
    asked = []

    def check(message):
        asked.append((message.message_id, message.tag, threading.current_thread().name))
        return TransactionState.COMMIT

    hook = Watching()
    made, calls = transactions(check, hooks=(hook,))
    made.check("a:1", HEADER, stored())
    assert calls.came.wait(5)
    made.stop()
    ((address, header),) = calls.told
    assert (address, header.commit_or_rollback, header.from_transaction_check) == ("a:1", 8, True)
    assert (header.commit_log_offset, header.tran_state_table_offset) == (77, 5)
    assert asked[0][:2] == ("KEY", "tag")
    assert "penstock-checks-g" in asked[0][2]
    made._pool.shutdown(wait=True)
    assert (hook.seen[0].is_from_check, hook.seen[0].tag) == (True, "tag")


def test_a_question_is_answered_by_a_coroutine_on_the_loop_of_the_starter():
    async def check(message):
        await asyncio.sleep(0)
        return TransactionState.ROLLBACK

    async def look():
        made, calls = transactions(check)
        made.listener_loop = asyncio.get_running_loop()
        made.check("a:1", HEADER, stored())
        while not calls.told:
            await asyncio.sleep(0)
        return calls.told[0][1].commit_or_rollback

    assert asyncio.run(look()) == 12


@pytest.mark.parametrize("wrong", [lambda message: 1 / 0, lambda message: "commit"])
def test_a_check_that_fails_leaves_the_transaction_open(wrong, caplog):
    made, calls = transactions(wrong)
    made.check("a:1", HEADER, stored())
    assert calls.came.wait(5)
    made.stop()
    assert calls.told[0][1].commit_or_rollback == 0
    assert "transaction_check failed" in caplog.text


def test_without_a_check_function_the_question_is_logged(caplog):
    made, calls = transactions()
    made.check("a:1", HEADER, stored())
    assert not calls.told
    assert "no transaction_check" in caplog.text


def test_too_many_questions_are_left_to_the_next_round(caplog):
    going_on = threading.Event()
    made, calls = transactions(lambda message: going_on.wait(5) and None, waiting_max=1)
    made.check("a:1", HEADER, stored())
    made.check("a:1", HEADER, stored())
    assert "transaction check dropped" in caplog.text
    going_on.set()
    assert calls.came.wait(5)
    made.stop()


def test_none_is_unknown_and_anything_else_is_a_mistake():
    assert state_of(None) is TransactionState.UNKNOWN
    assert state_of(TransactionState.COMMIT) is TransactionState.COMMIT
    with pytest.raises(TypeError, match="TransactionState"):
        state_of(True)


def test_a_stopped_producer_is_silent():
    made, calls = transactions(lambda message: TransactionState.COMMIT)
    made.stop()
    made.check("a:1", HEADER, stored())
    assert (calls.told, made._pool) == ([], None)


def test_a_coroutine_whose_loop_is_gone_runs_on_the_loop_for_listeners():
    async def check(message):
        return TransactionState.COMMIT

    made, calls = transactions(check)
    made.listener_loop = asyncio.new_event_loop()
    made.listener_loop.close()
    made.check("a:1", HEADER, stored())
    assert calls.came.wait(5)
