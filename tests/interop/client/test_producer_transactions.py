"""Transactions: half messages, local work, the broker's questions."""

import asyncio
import threading

import pytest

from penstock.client import (
    EndContext,
    InvalidMessage,
    Message,
    Producer,
    SendHook,
    TransactionState,
)

CHECK_SOON = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
"""Apache's broker looks every few seconds in these tests; the default is 30 s after 6."""


@pytest.fixture
def checked():
    """A check function that commits, and what it was asked."""
    asked = []

    def check(message):
        asked.append(message)
        return TransactionState.COMMIT

    check.asked = asked
    return check


def test_a_committed_message_is_delivered_and_a_rolled_back_one_is_not(
    cluster, group, topic, read_topic
):
    with Producer(cluster.name_server, group) as producer:
        states = {}
        for state in (TransactionState.ROLLBACK, TransactionState.COMMIT):
            body = state.name.encode()
            ended = producer.send_in_transaction(
                Message(topic, body, tag="t"), lambda message, state=state: state
            )
            states[ended.state] = ended.result
        (found,) = read_topic(topic, 1)
    assert found.body == b"COMMIT"
    assert found.message_id == states[TransactionState.COMMIT].message_id
    assert found.tag == "t"


def test_a_half_message_is_invisible_while_the_work_runs(cluster, group, topic, read_topic):
    def work(message):
        read_topic(topic, 0)
        return TransactionState.COMMIT

    with Producer(cluster.name_server, group) as producer:
        producer.send_in_transaction(Message(topic, b"x"), work)
        read_topic(topic, 1)


def test_an_open_transaction_is_asked_about_and_the_answer_counts(
    cluster, group, topic, read_topic, checked
):
    with Producer(cluster.name_server, group, transaction_check=checked) as producer:
        ended = producer.send_in_transaction(
            Message(topic, b"open", properties=CHECK_SOON), lambda message: None
        )
        assert ended.state is TransactionState.UNKNOWN
        (found,) = read_topic(topic, 1, seconds=60)
    assert found.body == b"open"
    assert (checked.asked[0].body, checked.asked[0].topic) == (b"open", topic)
    assert checked.asked[0].message_id == ended.result.message_id


def test_work_that_raises_leaves_the_transaction_open_and_the_error_is_raised(
    cluster, group, topic, read_topic, checked
):
    def work(message):
        raise KeyError("local")

    with Producer(cluster.name_server, group, transaction_check=checked) as producer:
        with pytest.raises(KeyError, match="local"):
            producer.send_in_transaction(Message(topic, b"x", properties=CHECK_SOON), work)
        read_topic(topic, 1, seconds=60)
    assert len(checked.asked) == 1


def test_coroutines_do_the_work_and_answer_on_the_loop_of_the_starter(
    cluster, group, topic, read_topic
):
    threads = []

    async def check(message):
        threads.append(threading.current_thread())
        await asyncio.sleep(0)
        return TransactionState.COMMIT

    async def work(message):
        await asyncio.sleep(0)

    async def run():
        async with Producer(cluster.name_server, group, transaction_check=check) as producer:
            message = Message(topic, b"x", properties=CHECK_SOON)
            await producer.send_in_transaction_async(message, work)
            await asyncio.to_thread(read_topic, topic, 1, 60)

    asyncio.run(run())
    assert threads == [threading.current_thread()]


def test_a_coroutine_answers_although_the_producer_was_started_without_a_loop(
    cluster, group, topic, read_topic
):
    async def check(message):
        return TransactionState.COMMIT

    with Producer(cluster.name_server, group, transaction_check=check) as producer:
        message = Message(topic, b"x", properties=CHECK_SOON)
        producer.send_in_transaction(message, lambda message: None)
        read_topic(topic, 1, seconds=60)


class Watching(SendHook):
    """Keeps the ends of transactions."""

    def __init__(self):
        self.ends: list[EndContext] = []

    def transaction_ended(self, context):
        self.ends.append(context)


def test_hooks_hear_how_a_transaction_ended(cluster, group, topic, eventually):
    hook = Watching()
    with Producer(cluster.name_server, group, hooks=[hook]) as producer:
        ended = producer.send_in_transaction(
            Message(topic, b"x", tag="t", keys="k"), lambda message: TransactionState.ROLLBACK
        )
        (end,) = eventually(lambda: hook.ends, what="the hook heard")
    assert (end.state, end.message_id) == (TransactionState.ROLLBACK, ended.result.message_id)
    assert (end.topic, end.tag, end.keys, end.is_from_check) == (topic, "t", "k", False)


def test_a_message_of_a_transaction_cannot_be_delayed(cluster, group, topic):
    with (
        Producer(cluster.name_server, group) as producer,
        pytest.raises(InvalidMessage, match="delayed"),
    ):
        producer.send_in_transaction(Message(topic, b"x", delay_level=1), lambda message: None)
