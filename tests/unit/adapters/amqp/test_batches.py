"""A batch of another protocol as AMQP's clients get it: message by message (D16's golden table)."""

import pytest

from kit.amqp.peer import AmqpBench, declared, put, ready
from kit.batches import WIRE, BatchFacts, BatchMessage, batch, numbered
from penstock.model.names import topic_name
from penstock.wire.amqp.methods.basic import (
    Ack,
    Consume,
    Deliver,
    Get,
    GetEmpty,
    GetOk,
    Nack,
    Qos,
    Reject,
)  # fmt: skip
from penstock.wire.amqp.properties import decode_properties


@pytest.fixture
def bench():
    return AmqpBench(facts={WIRE: BatchFacts()})


@pytest.fixture
def peer(bench):
    return bench.client()


def store(bench, *records, queue="q"):
    bench.publish(bench.channel(), bench.engine.topic(topic_name(queue)), *records)
    bench.settle()


def delivered(peer):
    return [heard for heard in peer.take() if isinstance(heard.method, Deliver)]


def texts(start, end):
    return [b"%d" % number for number in range(start, end)]


@pytest.mark.parametrize("count", [1, 3, 1_000])
def test_a_prefetch_of_one_gets_one_message_of_a_batch_at_a_time(bench, peer, count):
    declared(peer)
    store(bench, batch(*numbered(count)))
    assert ready(peer) == count
    peer.call(1, Qos(prefetch_count=1))
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    bodies = []
    for tag in range(1, count + 1):
        peer.turn()
        (heard,) = delivered(peer)
        assert heard.method.delivery_tag == tag
        bodies.append(heard.body)
        peer.send(1, Ack(tag))
    peer.turn()
    assert bodies == texts(0, count)
    assert ready(peer) == 0


@pytest.mark.parametrize("count", [1, 3, 1_000])
def test_basic_get_takes_one_message_of_a_batch_and_says_what_is_left(bench, peer, count):
    declared(peer)
    store(bench, batch(*numbered(count), compression="zlib" if count > 1 else ""))
    for number in range(count):
        peer.send(1, Get(queue="q", is_no_ack=True))
        peer.turn()
        method, _, body = peer.answer_with_content(1)
        assert isinstance(method, GetOk)
        assert (body, method.messages) == (b"%d" % number, count - number - 1)
    assert peer.call(1, Get(queue="q")) == GetEmpty()


def test_key_tag_and_properties_are_those_of_the_message(bench, peer):
    declared(peer)
    store(bench, batch(BatchMessage(b"a"), BatchMessage(b"b", b"k", b"t", {"color": "red"})))
    for _ in range(2):
        peer.send(1, Get(queue="q", is_no_ack=True))
        peer.turn()
        _, header, body = peer.answer_with_content(1)
    properties = decode_properties(header)
    assert (body, properties.type) == (b"b", "t")
    assert properties.headers == {"color": "red", "key": "k"}


def test_a_nack_brings_one_message_of_a_batch_back(bench, peer):
    declared(peer)
    store(bench, batch(*numbered(3)))
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    peer.turn()
    assert [each.body for each in delivered(peer)] == texts(0, 3)
    peer.send(1, Nack(2, is_requeue=True))
    peer.turn()
    (again,) = delivered(peer)
    assert (again.body, again.method.is_redelivered) == (b"1", True)
    peer.send(1, Ack(4, is_multiple=True))
    peer.turn()
    assert ready(peer) == 0


def test_a_reject_makes_one_dead_letter_of_a_batch(bench, peer):
    declared(peer, "dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    declared(peer, arguments=arguments)
    store(bench, batch(*numbered(3)))
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    peer.turn()
    assert len(delivered(peer)) == 3
    peer.send(1, Reject(2, is_requeue=False))
    peer.turn()
    assert ready(peer, "dead") == 1
    peer.send(1, Get(queue="dead", is_no_ack=True))
    peer.turn()
    _, header, body = peer.answer_with_content(1)
    headers = decode_properties(header).headers
    assert body == b"1"
    assert (headers["number"], headers["x-first-death-reason"]) == ("1", "rejected")


def test_a_batch_that_cannot_be_opened_is_one_message_that_says_why(bench, peer):
    declared(peer)
    record = batch(*numbered(3), is_encrypted=True)
    store(bench, record)
    put(peer, "q", b"behind")
    peer.send(1, Get(queue="q"))
    peer.turn()
    _, header, body = peer.answer_with_content(1)
    assert body == record.body
    assert decode_properties(header).headers == {"penstock.unopened": "encrypted"}
    peer.send(1, Ack(1))
    peer.send(1, Get(queue="q"))
    peer.turn()
    assert peer.answer_with_content(1)[2] == b"behind"
    assert ready(peer) == 0
