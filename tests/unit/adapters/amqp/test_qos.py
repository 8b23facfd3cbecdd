"""basic.qos: windows of consumers made later, and one for the whole channel at once."""

from penstock.testing.amqp_peer import AmqpBench, AmqpPeer
from penstock.wire.amqp.methods import connection
from penstock.wire.amqp.methods.basic import Ack, Consume, Deliver, Get, GetOk, Qos, QosOk
from penstock.wire.amqp.methods.queue import Declare


def peer_with(messages: int, *, is_quorum: bool = False) -> AmqpPeer:
    peer = AmqpBench().client()
    arguments = {"x-queue-type": "quorum"} if is_quorum else {}
    peer.call(1, Declare(queue="q", is_durable=is_quorum, arguments=arguments))
    for number in range(messages):
        peer.publish(1, "", "q", b"%d" % number)
    peer.turn()
    return peer


def came(peer: AmqpPeer) -> dict[str, int]:
    """How many messages each consumer got since the last look."""
    peer.turn()
    found: dict[str, int] = {}
    for heard in peer.take():
        if isinstance(heard.method, Deliver):
            found[heard.method.consumer_tag] = found.get(heard.method.consumer_tag, 0) + 1
    return found


def limit(peer: AmqpPeer, count: int, *, is_global: bool = False) -> None:
    assert peer.call(1, Qos(0, count, is_global)) == QosOk()


def consume(peer: AmqpPeer, tag: str, *, is_no_ack: bool = False) -> None:
    peer.call(1, Consume(queue="q", consumer_tag=tag, is_no_ack=is_no_ack))


def test_each_consumer_made_later_has_the_window() -> None:
    peer = peer_with(10)
    limit(peer, 2)
    consume(peer, "a")
    limit(peer, 3)
    consume(peer, "b")
    assert came(peer) == {"a": 2, "b": 3}
    consuming = peer.session.channels[1].consuming
    assert [entry.prefetch_count for entry in consuming.consumers.values()] == [2, 3]
    assert (consuming.prefetch_count, consuming.unacked_count) == (3, 5)


def test_a_settled_message_makes_room_for_the_next() -> None:
    peer = peer_with(10)
    limit(peer, 2)
    consume(peer, "a")
    assert came(peer) == {"a": 2}
    peer.send(1, Ack(1))
    assert came(peer) == {"a": 1}
    peer.send(1, Ack(3, is_multiple=True))
    assert came(peer) == {"a": 2}


def test_consumers_that_live_keep_their_window() -> None:
    peer = peer_with(10)
    limit(peer, 1)
    consume(peer, "a")
    limit(peer, 5)
    assert came(peer) == {"a": 1}


def test_the_channel_window_holds_for_all_at_once() -> None:
    peer = peer_with(0)
    consume(peer, "a")
    consume(peer, "b")
    limit(peer, 3, is_global=True)
    for number in range(10):
        peer.publish(1, "", "q", b"%d" % number)
    assert sum(came(peer).values()) == 3
    peer.send(1, Ack(2, is_multiple=True))
    assert sum(came(peer).values()) == 2


def test_the_channel_window_counts_what_is_out_already() -> None:
    peer = peer_with(4)
    consume(peer, "a")
    assert came(peer) == {"a": 4}
    limit(peer, 3, is_global=True)
    peer.publish(1, "", "q", b"more")
    assert came(peer) == {}
    peer.send(1, Ack(1))
    assert came(peer) == {}
    peer.send(1, Ack(2))
    assert came(peer) == {"a": 1}


def test_both_windows_hold_together() -> None:
    peer = peer_with(10)
    limit(peer, 5, is_global=True)
    limit(peer, 3)
    # The second qos, without global, lifted the first.
    consume(peer, "a")
    assert came(peer) == {"a": 3}
    limit(peer, 4, is_global=True)
    consume(peer, "b")
    assert came(peer) == {"b": 1}


def test_zero_lifts_the_channel_window() -> None:
    peer = peer_with(10)
    limit(peer, 2, is_global=True)
    consume(peer, "a")
    assert came(peer) == {"a": 2}
    assert peer.session.channels[1].consuming.global_prefetch_count == 2
    limit(peer, 0, is_global=True)
    assert came(peer) == {"a": 8}


def test_a_later_qos_without_global_lifts_it_too() -> None:
    peer = peer_with(10)
    limit(peer, 2, is_global=True)
    consume(peer, "a")
    assert came(peer) == {"a": 2}
    limit(peer, 1)
    assert came(peer) == {"a": 8}


def test_consumers_without_acks_and_get_know_no_window() -> None:
    peer = peer_with(10)
    limit(peer, 1, is_global=True)
    consume(peer, "held")
    assert came(peer) == {"held": 1}
    assert isinstance(peer.call(1, Get(queue="q")), GetOk)
    consume(peer, "free", is_no_ack=True)
    assert came(peer) == {"free": 8}


def test_what_is_taken_by_hand_does_not_fill_the_window() -> None:
    peer = peer_with(3)
    limit(peer, 1, is_global=True)
    for _ in range(2):
        assert isinstance(peer.call(1, Get(queue="q")), GetOk)
    consume(peer, "a")
    assert came(peer) == {"a": 1}


def test_a_quorum_queue_has_a_window_of_its_own() -> None:
    peer = peer_with(2100, is_quorum=True)
    consume(peer, "a")
    assert came(peer) == {"a": 2000}


def test_bytes_cannot_be_limited() -> None:
    peer = peer_with(0)
    peer.send(1, Qos(1, 0, False))
    close = peer.answer(0)
    assert isinstance(close, connection.Close)
    assert (close.reply_code, close.reply_text) == (540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)")
