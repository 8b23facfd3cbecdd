"""basic.get: one message now, beside all windows."""

from kit.amqp.peer import AmqpBench, AmqpPeer
from penstock.adapters.amqp.consumer import GETTERS_MAX
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.wire.amqp.methods import channel as channel_methods
from penstock.wire.amqp.methods.basic import Ack, Consume, Deliver, Get, GetEmpty, GetOk, Nack
from penstock.wire.amqp.methods.queue import Declare, Delete


def client(*bodies: bytes) -> AmqpPeer:
    peer = AmqpBench().client()
    peer.call(1, Declare(queue="q"))
    for body in bodies:
        peer.publish(1, "", "q", body)
    peer.turn()
    return peer


def got(peer: AmqpPeer, *, is_no_ack: bool = False, channel: int = 1) -> tuple[GetOk, bytes]:
    peer.send(channel, Get(queue="q", is_no_ack=is_no_ack))
    peer.turn()
    method, _, body = peer.answer_with_content(channel)
    assert isinstance(method, GetOk)
    return method, body


def counts(peer: AmqpPeer) -> tuple[int, int]:
    queue = peer.bench.broker.vhosts["/"].queues.get("q")
    assert queue is not None
    return queue.ready, queue.unacked


def test_it_says_what_is_left() -> None:
    peer = client(b"one", b"two")
    method, body = got(peer)
    assert (method.delivery_tag, method.is_redelivered, method.messages, body) == (
        1,
        False,
        1,
        b"one",
    )
    assert (method.exchange, method.routing_key) == ("", "q")
    assert got(peer)[0].messages == 0
    assert peer.call(1, Get(queue="q")) == GetEmpty()
    assert counts(peer) == (0, 2)


def test_tags_are_shared_with_deliveries() -> None:
    peer = client(b"one")
    assert got(peer)[0].delivery_tag == 1
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    peer.publish(1, "", "q", b"two")
    peer.turn()
    delivered = [heard.method for heard in peer.take()]
    assert delivered == [Deliver("c", 2, False, "", "q")]
    peer.send(1, Ack(2, is_multiple=True))
    peer.turn()
    assert counts(peer) == (0, 0)


def test_without_ack_it_is_gone_at_once() -> None:
    peer = client(b"one")
    got(peer, is_no_ack=True)
    assert counts(peer) == (0, 0)
    close = peer.call(1, Ack(1))
    assert isinstance(close, channel_methods.Close)


def test_what_was_published_just_before_is_there() -> None:
    peer = client()
    peer.publish(1, "", "q", b"one")
    method, body = got(peer)
    assert body == b"one"
    peer.publish(1, "", "q", b"two")
    peer.open(2)
    peer.publish(1, "", "q", b"three")
    assert got(peer, channel=2)[1] == b"two"
    assert method.delivery_tag == 1


def test_answers_stay_in_order() -> None:
    peer = client()
    peer.publish(1, "", "q", b"one")
    peer.send(1, Get(queue="q"), Get(queue="q"))
    peer.turn()
    assert isinstance(peer.answer(1), GetOk)
    assert peer.answer(1) == GetEmpty()


def test_a_queue_that_is_not_there_is_not_found() -> None:
    peer = client()
    peer.publish(1, "", "q", b"one")
    close = peer.call(1, Get(queue="nowhere"))
    assert isinstance(close, channel_methods.Close)
    assert close.reply_code == 404


def test_a_closed_channel_puts_it_back() -> None:
    peer = client(b"one")
    peer.open(2)
    got(peer, channel=2)
    peer.call(2, channel_methods.Close(200, "", 0, 0))
    method, body = got(peer)
    assert (method.is_redelivered, body) == (True, b"one")


def test_a_nack_puts_it_back() -> None:
    peer = client(b"one")
    got(peer)
    peer.send(1, Nack(1, is_requeue=True))
    assert got(peer)[0].is_redelivered


def test_a_channel_forgets_queues_it_got_from_long_ago() -> None:
    peer = client()
    for number in range(GETTERS_MAX + 10):
        peer.call(1, Declare(queue=f"q{number}"))
        peer.call(1, Get(queue=f"q{number}"))
    assert len(peer.session.channels[1].consumers.getters) <= GETTERS_MAX


def test_a_deleted_queue_is_forgotten() -> None:
    peer = client(b"one")
    got(peer)
    peer.call(1, Delete(queue="q"))
    assert peer.session.channels[1].consumers.getters == {}
    peer.call(1, Declare(queue="q"))
    peer.publish(1, "", "q", b"two")
    assert got(peer)[1] == b"two"


def test_whoever_never_settles_gets_so_many_and_no_more() -> None:
    settings = Settings(flow=FlowSettings(unacked_consumer_max=3))
    peer = AmqpBench(settings).client()
    peer.call(1, Declare(queue="q"))
    for _ in range(5):
        peer.publish(1, "", "q", b"x")
    for _ in range(3):
        got(peer)
    close = peer.call(1, Get(queue="q"))
    assert isinstance(close, channel_methods.Close)
    assert close.reply_text.startswith("PRECONDITION_FAILED - 3 messages of queue 'q' in vhost '/'")
    assert counts(peer) == (5, 0)
