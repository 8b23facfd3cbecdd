"""Giving messages back: to the broker, as a copy, or not at all."""

import asyncio

import pytest

from penstock.client.consumer.send_back import SendBack, back_header, copy_for_retry
from penstock.client.errors import BrokerRefused, Unreachable
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.message_id import encode_host
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import StoredMessage

QUEUE = QueueRef("orders", "b", 1)


def message(reconsume_times=0, topic="orders", **properties):
    stored = StoredMessage(
        topic=topic,
        body=b"body",
        flag=7,
        queue_offset=3,
        commit_log_offset=4711,
        store_host=encode_host("10.0.0.1", 10911),
        reconsume_times=reconsume_times,
        properties=format_properties(properties),
    )
    return ReceivedMessage(stored, QUEUE)


class Broker:
    """Takes back what it is told to."""

    def __init__(self, problem=None):
        self.problem, self.headers = problem, []

    async def master_of(self, queue):
        return f"master of {queue.broker}"

    async def send_back(self, address, header, *, timeout_ms=None):
        self.headers.append((address, header))
        if self.problem is not None:
            raise self.problem


class Copies:
    """Takes copies."""

    def __init__(self, problem=None):
        self.problem, self.sent = problem, []

    async def send(self, message):
        if self.problem is not None:
            raise self.problem
        self.sent.append(message)


def test_a_message_is_named_by_its_place_and_its_first_topic():
    header = back_header(message(), "g", 0, 16)
    assert (header.offset, header.group, header.delay_level) == (4711, "g", 0)
    assert (header.origin_topic, header.max_reconsume_times) == ("orders", 16)
    assert header.origin_msg_id == message().offset_message_id


@pytest.mark.parametrize(("given", "meant"), [(-1, 16), (0, 0), (3, 3)])
def test_minus_one_retry_means_sixteen(given, meant):
    assert SendBack("g", given, Broker(), Copies()).retries_max == meant


def test_it_goes_to_the_master_of_its_broker():
    broker, copies = Broker(), Copies()
    assert asyncio.run(SendBack("g", -1, broker, copies).give_back(message(), 5))
    ((address, header),) = broker.headers
    assert (address, header.delay_level) == ("master of b", 5)
    assert copies.sent == []


@pytest.mark.parametrize("problem", [Unreachable("x", "gone"), BrokerRefused(1, "no", "x")])
def test_a_copy_goes_to_the_retry_topic_when_the_broker_does_not_take_it(problem):
    broker, copies = Broker(problem), Copies()
    assert asyncio.run(SendBack("g", 5, broker, copies).give_back(message(2)))
    (copy,) = copies.sent
    assert (copy.topic, copy.body, copy.flag) == ("%RETRY%g", b"body", 7)
    assert copy.properties["MAX_RECONSUME_TIMES"] == "5"


def test_it_stays_here_when_nobody_takes_it():
    back = SendBack("g", -1, Broker(Unreachable("x", "gone")), Copies(Unreachable("y", "gone")))
    assert not asyncio.run(back.give_back(message()))


@pytest.mark.parametrize(("times", "level"), [(0, 3), (1, 4), (15, 18)])
def test_the_delay_of_a_copy_grows_with_each_try(times, level):
    copy = copy_for_retry(message(times), "g", 16)
    assert copy.delay_level == level
    assert copy.properties["RECONSUME_TIME"] == str(times + 1)


def test_a_copy_keeps_tag_keys_and_ids_and_forgets_what_is_over():
    original = message(
        1,
        topic="%RETRY%g",
        RETRY_TOPIC="orders",
        ORIGIN_MESSAGE_ID="FIRST",
        UNIQ_KEY="KEY",
        TAGS="a",
        KEYS="k1 k2",
        DELAY="4",
        TRAN_MSG="true",
        user="u",
    )
    copy = copy_for_retry(original, "g", 16)
    assert (copy.tag, copy.keys) == ("a", ("k1", "k2"))
    assert copy.properties == {
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "FIRST",
        "UNIQ_KEY": "KEY",
        "RECONSUME_TIME": "2",
        "MAX_RECONSUME_TIMES": "16",
        "user": "u",
    }


def test_the_first_copy_remembers_the_broker_s_id():
    copy = copy_for_retry(message(), "g", 16)
    assert copy.properties["ORIGIN_MESSAGE_ID"] == message().offset_message_id
