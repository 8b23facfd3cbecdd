"""Deliveries on their way out: several queues, priorities, slow readers."""

from penstock.model.record import neutral_record
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings
from penstock.testing.amqp_peer import AmqpBench, AmqpPeer
from penstock.wire.amqp.methods.basic import Ack, Consume, Deliver
from penstock.wire.amqp.methods.channel import Close
from penstock.wire.amqp.methods.queue import Declare, DeclareOk
from penstock.wire.amqp.properties import Properties, encode_properties


def came(peer: AmqpPeer) -> list[bytes]:
    peer.turn()
    return [heard.body for heard in peer.take() if isinstance(heard.method, Deliver)]


def fill(peer: AmqpPeer, count: int, queue: str = "q") -> None:
    for number in range(count):
        peer.publish(1, "", queue, b"%d" % number)
    peer.turn()


def test_different_messages_travel_in_one_list() -> None:
    peer = AmqpBench().client(frame_max=4096)
    peer.call(1, Declare(queue="q"))
    properties = encode_properties(Properties(content_type="text/plain", headers={"a": [1, "b"]}))
    bodies = [b"", b"short", b"long" * 3000, b"short"]
    for body in bodies:
        peer.publish(1, "", "q", body, properties)
    peer.turn()
    peer.call(1, Consume(queue="q"))
    peer.turn()
    heard = [each for each in peer.take() if isinstance(each.method, Deliver)]
    assert [each.body for each in heard] == bodies
    assert {each.properties for each in heard} == {properties}


def test_the_highest_priority_comes_first_and_acks_find_their_queues() -> None:
    peer = AmqpBench().client()
    peer.call(1, Declare(queue="q", arguments={"x-max-priority": 3}))
    for number, priority in enumerate((0, 3, 1, 3, 0)):
        peer.publish(1, "", "q", b"%d" % number, encode_properties(Properties(priority=priority)))
    peer.turn()
    peer.call(1, Consume(queue="q"))
    assert came(peer) == [b"1", b"3", b"2", b"0", b"4"]
    peer.send(1, Ack(2), Ack(4), Ack(3))
    peer.turn()
    queue = peer.bench.house.vhosts["/"].queues.get("q")
    assert queue is not None
    assert (queue.ready, queue.unacked) == (0, 2)


def test_a_peer_that_does_not_read_gets_no_more() -> None:
    bench = AmqpBench()
    slow, quick = bench.client(), bench.client()
    for name in ("q", "p"):
        slow.call(1, Declare(queue=name))
    slow.unsent_bytes = 1
    slow.call(1, Consume(queue="q", is_no_ack=True))
    quick.call(1, Consume(queue="p", is_no_ack=True))
    limit = bench.settings.flow.unsent_messages_max
    fill(quick, 3 * limit)
    fill(quick, 3 * limit, "p")
    assert len(came(slow)) == limit
    assert len(came(quick)) == 3 * limit
    assert came(slow) == []
    # The socket takes it: the rest follows.
    slow.unsent_bytes = 0
    assert len(came(slow)) == 2 * limit


def test_all_consumers_of_a_connection_share_its_backlog() -> None:
    bench = AmqpBench()
    slow, quick = bench.client(), bench.client()
    slow.call(1, Declare(queue="q"))
    slow.unsent_bytes = 1
    for tag in ("a", "b", "c"):
        slow.call(1, Consume(queue="q", consumer_tag=tag))
    slow.open(2)
    slow.call(2, Consume(queue="q", consumer_tag="d"))
    limit = bench.settings.flow.unsent_messages_max
    fill(quick, 3 * limit)
    assert len(came(slow)) == limit
    slow.unsent_bytes = 0
    assert len(came(slow)) == 2 * limit


def test_deliveries_behind_an_answer_that_waits_count_as_unsent() -> None:
    bench = AmqpBench()
    peer, other = bench.client(), bench.client()
    peer.call(1, Declare(queue="q"))
    peer.call(1, Consume(queue="q", is_no_ack=True))
    peer.send(1, Declare(queue="durable", is_durable=True))
    other.publish(1, "", "q", b"one")
    bench.engine.turn()
    peer.hear()
    assert peer.received == []
    assert peer.session.unsent.messages == 1
    peer.turn()
    assert isinstance(peer.answer(1), DeclareOk)
    assert came(peer) == [b"one"]
    assert peer.session.unsent.messages == 0


def test_records_of_another_protocol_are_presented() -> None:
    bench = AmqpBench()
    topic = bench.topic("made-elsewhere", queues=3)
    peer = bench.client()
    peer.call(1, Consume(queue="made-elsewhere", consumer_tag="c"))
    bench.publish(bench.channel(), topic, b"a", b"b")
    peer.turn()
    heard = [each for each in peer.take() if isinstance(each.method, Deliver)]
    assert sorted(each.body for each in heard) == [b"a", b"b"]
    assert isinstance(heard[0].method, Deliver)
    assert (heard[0].method.exchange, heard[0].method.routing_key) == ("", "made-elsewhere")
    peer.send(1, Ack(0, is_multiple=True))
    peer.turn()
    assert peer.session.channels[1].consuming.unacked_count == 0


def test_a_batch_of_another_protocol_is_one_delivery_and_settled_as_a_whole() -> None:
    bench = AmqpBench()
    topic = bench.topic("batches")
    peer = bench.client()
    peer.call(1, Consume(queue="batches", consumer_tag="c"))
    batch = neutral_record(b"five in one")
    batch.reshape(messages=5)
    bench.publish(bench.channel(), topic, b"single", batch, b"another")
    assert came(peer) == [b"single", b"five in one", b"another"]
    queue = bench.house.vhosts["/"].queues.get("batches")
    assert queue is not None
    assert queue.unacked == 7
    peer.send(1, Ack(2))
    peer.turn()
    assert queue.unacked == 2
    peer.send(1, Ack(3, is_multiple=True))
    peer.turn()
    assert (queue.ready, queue.unacked) == (0, 0)


def test_what_the_engine_would_not_store_is_refused_by_its_header() -> None:
    peer = AmqpBench(Settings(topics=TopicSettings(message_bytes_max=1000))).client()
    peer.call(1, Declare(queue="q"))
    peer.publish(1, "", "q", b"x" * 1001)
    peer.turn()
    close = peer.answer(1)
    assert isinstance(close, Close)
    assert close.reply_text == (
        "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    )
