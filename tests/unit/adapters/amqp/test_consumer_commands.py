"""basic.consume, basic.cancel and what becomes of consumers when something else ends."""

import pytest

from kit.amqp.peer import AmqpBench, AmqpPeer
from penstock.settings.load import Settings
from penstock.settings.protocols import AmqpSettings
from penstock.wire.amqp.methods import channel, connection
from penstock.wire.amqp.methods.basic import (
    Ack,
    Cancel,
    CancelOk,
    Consume,
    ConsumeOk,
    Deliver,
    Get,
    GetOk,
    Qos,
    QosOk,
)
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.methods.queue import Bind, Declare, DeclareOk, Delete


@pytest.fixture
def bench() -> AmqpBench:
    return AmqpBench()


def declared(bench: AmqpBench, name: str = "q", **arguments: object) -> AmqpPeer:
    """A client with a queue."""
    peer = bench.client()
    answer = peer.call(1, Declare(queue=name, arguments=dict(arguments)))
    assert isinstance(answer, DeclareOk)
    return peer


def publish(peer: AmqpPeer, *bodies: bytes, queue: str = "q") -> None:
    for body in bodies:
        peer.publish(1, "", queue, body)
    peer.turn()


def deliveries(peer: AmqpPeer) -> list[tuple[str, int, bool, bytes]]:
    """Consumer tag, delivery tag, redelivered, body of what came since the last look."""
    return [
        (
            heard.method.consumer_tag,
            heard.method.delivery_tag,
            heard.method.is_redelivered,
            heard.body,
        )
        for heard in peer.take()
        if isinstance(heard.method, Deliver)
    ]


def text_of(method: Method) -> str:
    assert isinstance(method, (channel.Close, connection.Close))
    return method.reply_text


def test_messages_come_in_order_with_tags_from_one(bench: AmqpBench) -> None:
    peer = declared(bench)
    assert peer.call(1, Consume(queue="q", consumer_tag="c")) == ConsumeOk("c")
    publish(peer, b"one", b"two", b"three")
    assert deliveries(peer) == [
        ("c", 1, False, b"one"),
        ("c", 2, False, b"two"),
        ("c", 3, False, b"three"),
    ]
    assert peer.session.channels[1].consumers.unacked_count == 3


def test_a_tag_is_made_when_none_is_brought(bench: AmqpBench) -> None:
    peer = declared(bench)
    answer = peer.call(1, Consume(queue="q"))
    assert isinstance(answer, ConsumeOk)
    assert answer.consumer_tag.startswith("amq.ctag-")


def test_an_empty_name_is_the_queue_declared_last(bench: AmqpBench) -> None:
    peer = declared(bench)
    peer.call(1, Consume(consumer_tag="c"))
    publish(peer, b"one")
    assert [body for *_, body in deliveries(peer)] == [b"one"]


def test_a_tag_used_twice_costs_the_connection(bench: AmqpBench) -> None:
    peer = declared(bench)
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    peer.send(1, Consume(queue="q", consumer_tag="c"))
    close = peer.answer(0)
    assert isinstance(close, connection.Close)
    assert close.reply_code == 530
    assert close.reply_text == "NOT_ALLOWED - attempt to reuse consumer tag 'c'"


def test_a_queue_that_is_not_there_is_not_found(bench: AmqpBench) -> None:
    peer = bench.client()
    close = peer.call(1, Consume(queue="nowhere"))
    assert text_of(close) == "NOT_FOUND - no queue 'nowhere' in vhost '/'"


def test_an_exclusive_queue_of_another_connection_is_locked(bench: AmqpBench) -> None:
    owner = bench.client()
    owner.call(1, Declare(queue="mine", is_exclusive=True))
    close = bench.client().call(1, Consume(queue="mine"))
    assert isinstance(close, channel.Close)
    assert close.reply_code == 405


def test_an_exclusive_consumer_wants_no_other(bench: AmqpBench) -> None:
    peer = declared(bench)
    peer.call(1, Consume(queue="q", consumer_tag="c", is_exclusive=True))
    other = bench.client()
    close = other.call(1, Consume(queue="q"))
    assert text_of(close) == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    peer.call(1, Cancel("c"))
    other.open(2)
    assert isinstance(other.call(2, Consume(queue="q")), ConsumeOk)
    peer.open(2)
    close = peer.call(2, Consume(queue="q", is_exclusive=True))
    assert text_of(close) == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"


def test_without_acks_nothing_is_unsettled(bench: AmqpBench) -> None:
    peer = declared(bench)
    peer.call(1, Qos(0, 1, False))
    peer.call(1, Consume(queue="q", consumer_tag="c", is_no_ack=True))
    publish(peer, b"one", b"two")
    assert [tag for _, tag, _, _ in deliveries(peer)] == [1, 2]
    consuming = peer.session.channels[1].consumers
    assert consuming.unacked_count == 0
    close = peer.call(1, Ack(1))
    assert text_of(close) == "PRECONDITION_FAILED - unknown delivery tag 1"


def test_consumers_take_turns(bench: AmqpBench) -> None:
    peer = declared(bench)
    for tag in ("a", "b"):
        peer.call(1, Consume(queue="q", consumer_tag=tag))
    for body in (b"1", b"2", b"3", b"4"):
        publish(peer, body)
    came = deliveries(peer)
    assert sorted({tag for tag, *_ in came}) == ["a", "b"]
    assert len([1 for tag, *_ in came if tag == "a"]) == 2


def test_the_highest_priority_gets_everything_until_its_window_is_full(bench: AmqpBench) -> None:
    peer = declared(bench)
    peer.call(1, Consume(queue="q", consumer_tag="low"))
    peer.call(1, Qos(0, 2, False))
    peer.call(1, Consume(queue="q", consumer_tag="high", arguments={"x-priority": 10}))
    publish(peer, b"1", b"2", b"3")
    assert [tag for tag, *_ in deliveries(peer)] == ["high", "high", "low"]


def test_a_priority_that_is_no_number_is_refused(bench: AmqpBench) -> None:
    peer = declared(bench)
    close = peer.call(1, Consume(queue="q", arguments={"x-priority": "high"}))
    assert "invalid arg 'x-priority'" in text_of(close)


def test_a_cancelled_consumer_keeps_what_it_has(bench: AmqpBench) -> None:
    peer = declared(bench)
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    publish(peer, b"one", b"two")
    peer.take()
    assert peer.call(1, Cancel("c")) == CancelOk("c")
    publish(peer, b"three")
    assert deliveries(peer) == []
    queue = bench.broker.vhosts["/"].queues.get("q")
    assert queue is not None
    assert (queue.ready, queue.unacked, queue.consumers) == (1, 2, 0)
    peer.send(1, Ack(2, is_multiple=True))
    peer.turn()
    assert (queue.ready, queue.unacked) == (1, 0)
    assert len(queue.subscription.consumer_set) == 0


def test_cancelling_what_nobody_knows_is_fine(bench: AmqpBench) -> None:
    peer = declared(bench)
    assert peer.call(1, Cancel("nobody")) == CancelOk("nobody")


def test_nowait_is_not_answered(bench: AmqpBench) -> None:
    peer = declared(bench)
    peer.send(1, Consume(queue="q", consumer_tag="c", is_nowait=True))
    peer.send(1, Cancel("c", is_nowait=True))
    peer.turn()
    assert peer.take() == []


def test_a_deleted_queue_cancels_its_consumers(bench: AmqpBench) -> None:
    peer = declared(bench)
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    publish(peer, b"one")
    peer.take()
    other = bench.client()
    other.call(1, Delete(queue="q"))
    peer.turn()
    assert [heard.method for heard in peer.take()] == [Cancel("c", is_nowait=True)]
    assert peer.session.channels[1].consumers.by_tag == {}
    # What it had is gone with the queue; settling it hurts nobody.
    peer.send(1, Ack(1))
    assert peer.call(1, Qos()) is not None
    assert peer.session.channels[1].consumers.unacked_count == 0


def test_a_client_that_does_not_ask_is_not_told(bench: AmqpBench) -> None:
    peer = bench.peer()
    peer.handshake(capabilities=())
    peer.open(1)
    peer.call(1, Declare(queue="q"))
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    bench.client().call(1, Delete(queue="q"))
    peer.turn()
    assert peer.take() == []


def test_an_auto_delete_queue_goes_with_its_last_consumer(bench: AmqpBench) -> None:
    peer = bench.client()
    peer.call(1, Declare(queue="q", is_auto_delete=True))
    peer.call(1, Consume(queue="q", consumer_tag="a"))
    peer.call(1, Consume(queue="q", consumer_tag="b"))
    peer.call(1, Cancel("a"))
    assert bench.broker.vhosts["/"].queues.get("q") is not None
    peer.call(1, Cancel("b"))
    assert bench.broker.vhosts["/"].queues.get("q") is None
    assert [type(heard.method) for heard in peer.take()] == []


def test_a_channel_that_ends_gives_everything_back(bench: AmqpBench) -> None:
    peer = declared(bench)
    peer.open(2)
    peer.call(2, Consume(queue="q", consumer_tag="c"))
    publish(peer, b"one", b"two", b"three")
    peer.take()
    peer.send(2, Ack(2))
    peer.call(2, channel.Close(200, "", 0, 0))
    peer.call(1, Consume(queue="q", consumer_tag="d"))
    peer.turn()
    assert deliveries(peer) == [("d", 1, True, b"one"), ("d", 2, True, b"three")]


def test_a_connection_that_is_lost_gives_everything_back(bench: AmqpBench) -> None:
    peer, other = declared(bench), bench.client()
    other.call(1, Consume(queue="q", consumer_tag="c"))
    publish(peer, b"one")
    other.leave()
    peer.call(1, Consume(queue="q", consumer_tag="d"))
    peer.turn()
    assert deliveries(peer) == [("d", 1, True, b"one")]


def test_a_single_active_consumer_is_followed_by_the_next_in_line(bench: AmqpBench) -> None:
    peer = declared(bench, **{"x-single-active-consumer": True})
    for tag in ("z", "m", "a"):
        arguments = {"x-priority": 5} if tag == "a" else {}
        peer.call(1, Consume(queue="q", consumer_tag=tag, arguments=arguments))
    consumers = peer.session.channels[1].consumers.by_tag
    assert [entry.is_active for entry in consumers.values()] == [True, False, False]
    publish(peer, b"one", b"two")
    assert [tag for tag, *_ in deliveries(peer)] == ["z", "z"]
    peer.call(1, Cancel("z"))
    publish(peer, b"three")
    assert [tag for tag, *_ in deliveries(peer)] == ["m"]
    assert [entry.is_active for entry in consumers.values()] == [True, False]


def test_a_channel_has_so_many_consumers_and_no_more(bench: AmqpBench) -> None:
    peer = declared(bench)
    limit = bench.settings.amqp.consumers_per_channel_max
    for number in range(limit):
        peer.send(1, Consume(queue="q", consumer_tag=str(number), is_nowait=True))
    peer.send(1, Consume(queue="q", consumer_tag="one more"))
    assert f"reached maximum ({limit}) of consumers per channel" in text_of(peer.answer(0))


def test_consumers_that_left_with_something_unsettled_count_until_it_is_settled() -> None:
    bench = AmqpBench(Settings(amqp=AmqpSettings(consumers_per_channel_max=3)))
    peer = declared(bench)
    peer.call(1, Qos(0, 1))
    publish(peer, *[b"x"] * 9)
    for number in range(3):
        peer.call(1, Consume(queue="q", consumer_tag=str(number)))
        peer.call(1, Cancel(str(number)))
    assert len(deliveries(peer)) == 3
    peer.send(1, Ack(2))
    assert isinstance(peer.call(1, Consume(queue="q", consumer_tag="3")), ConsumeOk)
    peer.send(1, Consume(queue="q", consumer_tag="4"))
    assert "consumers_per_channel_max" in text_of(peer.answer(0))


# ---- qos ----------------------------------------------------------------------------------------
# basic.qos: windows of consumers made later, and one for the whole channel at once.


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
    consuming = peer.session.channels[1].consumers
    assert [entry.prefetch_count for entry in consuming.by_tag.values()] == [2, 3]
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
    assert peer.session.channels[1].consumers.global_prefetch_count == 2
    limit(peer, 0, is_global=True)
    assert came(peer) == {"a": 8}


def test_a_later_qos_without_global_lifts_it_too() -> None:
    peer = peer_with(10)
    limit(peer, 2, is_global=True)
    consume(peer, "a")
    assert came(peer) == {"a": 2}
    limit(peer, 1)
    assert came(peer) == {"a": 8}


def test_get_knows_no_window() -> None:
    peer = peer_with(10)
    limit(peer, 1, is_global=True)
    consume(peer, "held")
    assert came(peer) == {"held": 1}
    assert isinstance(peer.call(1, Get(queue="q")), GetOk)


def test_the_channel_window_holds_consumers_without_acks_while_others_fill_it() -> None:
    peer = peer_with(10)
    limit(peer, 1, is_global=True)
    consume(peer, "held")
    assert came(peer) == {"held": 1}
    consume(peer, "free", is_no_ack=True)
    assert came(peer) == {}
    peer.call(1, Cancel("held"))
    peer.send(1, Ack(1))
    assert came(peer) == {"free": 9}


def test_consumers_without_acks_do_not_fill_the_channel_window() -> None:
    peer = peer_with(3)
    limit(peer, 1, is_global=True)
    consume(peer, "free", is_no_ack=True)
    assert came(peer) == {"free": 3}
    consume(peer, "held")
    for number in range(2):
        peer.publish(1, "", "q", b"%d" % number)
    assert sum(came(peer).values()) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_the_channel_window_is_fair_over_queues(count: int) -> None:
    peer = peer_with(0)
    limit(peer, count, is_global=True)
    for name in ("a", "b", "c"):
        peer.call(1, Declare(queue=name))
        peer.call(1, Bind(queue=name, exchange="amq.fanout"))
        peer.call(1, Consume(queue=name, consumer_tag=name))
    for _ in range(100):
        peer.publish(1, "amq.fanout", "", b"x")
    total = came(peer)
    for tag in range(1, 91):
        peer.send(1, Ack(tag))
        for name, more in came(peer).items():
            total[name] = total.get(name, 0) + more
    assert sum(total.values()) == 90 + count
    assert all(total.get(name, 0) >= 29 for name in "abc"), total


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
