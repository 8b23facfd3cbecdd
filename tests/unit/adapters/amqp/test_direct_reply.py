"""Direct reply-to: from channel to channel, bounded, never in the log."""

import pytest

from kit.amqp.peer import AmqpBench
from penstock.adapters.amqp.topology.router import DIRECT_REPLY_PREFIX, DIRECT_REPLY_QUEUE
from penstock.model.names import TopicName
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.wire.amqp.methods.basic import (
    Ack,
    Cancel,
    CancelOk,
    Consume,
    ConsumeOk,
    Deliver,
    Return,
)
from penstock.wire.amqp.methods.channel import Close, ConfirmSelect
from penstock.wire.amqp.methods.queue import Declare as DeclareQueue
from penstock.wire.amqp.methods.queue import DeclareOk
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties

ASKING = encode_properties(Properties(reply_to=DIRECT_REPLY_QUEUE, correlation_id="1"))


@pytest.fixture
def asker(bench):
    return bench.client()


@pytest.fixture
def server(bench):
    server = bench.client()
    server.call(1, DeclareQueue(queue="requests"))
    return server


def wait_for_replies(peer):
    answer = peer.call(1, Consume(queue=DIRECT_REPLY_QUEUE, consumer_tag="r", is_no_ack=True))
    assert isinstance(answer, ConsumeOk)


def address(bench, asker):
    """Where replies to a request go."""
    asker.publish(1, "", "requests", b"?", ASKING)
    asker.turn()
    (record,) = bench.records(bench.engine.topic(TopicName("", "requests")))[-1:]
    properties = decode_properties(record.properties)
    assert properties.correlation_id == "1"
    return properties.reply_to


def test_a_reply_comes_to_the_one_who_asked_without_touching_the_log(bench, asker, server):
    wait_for_replies(asker)
    key = address(bench, asker)
    assert key.startswith(DIRECT_REPLY_PREFIX)
    end = bench.store.end_position
    raw = encode_properties(Properties(correlation_id="1"))
    server.publish(1, "", key, b"!", raw)
    (reply,) = asker.take()
    assert reply.method == Deliver("r", 1, False, "", key)
    assert (reply.properties, reply.body) == (raw, b"!")
    assert bench.store.end_position == end


def test_replies_share_the_delivery_tags_of_their_channel(bench, asker, server):
    wait_for_replies(asker)
    key = address(bench, asker)
    for _ in range(3):
        server.publish(1, "", key, b"!")
    asker.hear()
    assert [each.delivery_tag for each in asker.methods(1)] == [1, 2, 3]
    assert asker.session.channels[1].consumers.unacked.count == 0


def test_the_consumer_must_not_want_acks(asker):
    closed = asker.call(1, Consume(queue=DIRECT_REPLY_QUEUE))
    assert closed.reply_text == "PRECONDITION_FAILED - reply consumer cannot acknowledge"


def test_there_is_one_per_channel(asker):
    wait_for_replies(asker)
    closed = asker.call(1, Consume(queue=DIRECT_REPLY_QUEUE, is_no_ack=True))
    assert closed.reply_text == "PRECONDITION_FAILED - reply consumer already set"


def test_asking_without_waiting_closes_the_channel(asker, server):
    asker.publish(1, "", "requests", b"?", ASKING)
    asker.turn()
    (closed,) = asker.methods(1)
    assert closed.reply_text == "PRECONDITION_FAILED - fast reply consumer does not exist"


def test_declaring_the_pseudo_queue_is_a_look_whether_it_is_there(bench, asker, server):
    answer = asker.call(1, DeclareQueue(queue=DIRECT_REPLY_QUEUE))
    assert isinstance(answer, DeclareOk)
    wait_for_replies(asker)
    key = address(bench, asker)
    assert isinstance(server.call(1, DeclareQueue(queue=key)), DeclareOk)
    assert server.call(1, DeclareQueue(queue=DIRECT_REPLY_PREFIX + "x")).reply_code == 404


def gone(asker, how):
    if how == "cancel":
        assert isinstance(asker.call(1, Cancel("r")), CancelOk)
    elif how == "close":
        asker.call(1, Close(200, "bye"))
    else:
        asker.leave()


@pytest.mark.parametrize("how", ["cancel", "close", "leave"])
def test_a_reply_to_nobody_is_unroutable(bench, asker, server, how):
    wait_for_replies(asker)
    key = address(bench, asker)
    gone(asker, how)
    assert len(bench.broker.direct_replies) == 0
    server.call(1, ConfirmSelect())
    server.publish(1, "", key, b"1")
    server.publish(1, "", key, b"2", is_mandatory=True)
    heard = server.take()
    assert [type(each.method) for each in heard] == [Return, Ack]
    assert heard[1].method == Ack(2, is_multiple=True)


def test_replies_are_confirmed_at_once(bench, asker, server):
    wait_for_replies(asker)
    key = address(bench, asker)
    server.call(1, ConfirmSelect())
    server.publish(1, "", key, b"1")
    assert server.methods(1) == [Ack(1)]


def test_another_vhost_cannot_reply(bench, asker, server):
    wait_for_replies(asker)
    key = address(bench, asker)
    bench.broker.make_vhost("other")
    stranger = bench.client(vhost="other")
    stranger.publish(1, "", key, b"!", is_mandatory=True)
    assert [type(each) for each in stranger.methods(1)] == [Return]
    assert asker.bodies() == []


def test_replies_for_one_who_does_not_read_are_dropped_not_kept():
    bench = AmqpBench(Settings(flow=FlowSettings(unsent_messages_max=5)))
    asker, server = bench.client(), bench.client()
    server.call(1, DeclareQueue(queue="requests"))
    wait_for_replies(asker)
    key = address(bench, asker)
    asker.unsent_bytes = 1
    for number in range(20):
        server.publish(1, "", key, b"%d" % number, is_mandatory=True)
    assert len(asker.bodies()) == 5
    assert len([each for each in server.methods(1) if isinstance(each, Return)]) == 15
    asker.unsent_bytes = 0
    asker.hear()
    server.publish(1, "", key, b"later")
    assert asker.bodies()[-1] == b"later"
