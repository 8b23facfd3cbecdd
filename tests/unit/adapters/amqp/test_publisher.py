"""Publishing: what is stored, returned, confirmed and refused, in RabbitMQ's words."""

import pytest

from kit.amqp.peer import PERSISTENT, AmqpBench, alarm, durable_topic
from penstock.adapters.amqp.publisher import Confirms
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.testing.storage import FaultKind
from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods.basic import Ack, Get, GetOk, Nack, Publish, Return
from penstock.wire.amqp.methods.channel import (
    Close,
    CloseOk,
    ConfirmSelect,
    ConfirmSelectOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
)
from penstock.wire.amqp.methods.connection import Close as CloseConnection
from penstock.wire.amqp.methods.connection import CloseOk as ConnectionCloseOk
from penstock.wire.amqp.methods.exchange import Declare as DeclareExchange
from penstock.wire.amqp.methods.queue import Bind
from penstock.wire.amqp.methods.queue import Declare as DeclareQueue
from penstock.wire.amqp.methods.queue import Delete as DeleteQueue
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties
from penstock.wire.amqp.serializer import ack_frame, nack_frame


def bodies(bench, topic):
    return bench.bodies(topic)


def answers(peer):
    """What was heard of publishes, without contents."""
    kept = [each for each in peer.methods(1) if isinstance(each, (Ack, Nack, Return, Close))]
    peer.take()
    return kept


def many(peer, count, exchange="", key="q", properties=PERSISTENT, **flags):
    publish = method_frame(1, Publish(0, exchange, key, **flags))
    peer.raw(
        b"".join([publish + content_frames(1, properties, b"%d" % n, 4096) for n in range(count)])
    )


def test_a_publish_is_stored_as_it_came(bench, peer):
    topic = durable_topic(peer)
    raw = encode_properties(Properties(content_type="a/b", headers={"h": 1}, delivery_mode=2))
    peer.publish(1, "", "q", b"body", raw)
    peer.turn()
    (record,) = bench.records(topic)
    assert (record.properties, record.body) == (raw, b"body")
    assert record.origin.startswith(b"\x00\x01q")


def test_a_run_of_publishes_is_one_list_and_one_cumulative_ack(bench, peer):
    topic = durable_topic(peer)
    peer.call(1, ConfirmSelect())
    many(peer, 100)
    peer.turn()
    assert len(bodies(bench, topic)) == 100
    assert answers(peer) == [Ack(100, is_multiple=True)]


def test_nothing_is_acked_before_its_sync(bench, peer):
    durable_topic(peer)
    peer.call(1, ConfirmSelect())
    peer.publish(1, "", "q", b"a", PERSISTENT)
    bench.turns()
    assert answers(peer) == []
    bench.sync()
    assert answers(peer) == [Ack(1)]


def test_a_transient_one_is_acked_when_it_is_stored(bench, peer):
    durable_topic(peer)
    peer.call(1, ConfirmSelect())
    peer.publish(1, "", "q", b"a")
    bench.turns()
    assert answers(peer) == [Ack(1)]


def test_numbers_begin_with_the_select_and_what_came_before_is_not_confirmed(bench, peer):
    durable_topic(peer)
    peer.publish(1, "", "q", b"before", PERSISTENT)
    peer.send(1, ConfirmSelect())
    peer.publish(1, "", "q", b"after", PERSISTENT)
    peer.turn()
    assert answers(peer) == [Ack(1)]


def test_confirm_select_may_be_said_twice_and_without_an_answer(peer):
    assert isinstance(peer.call(1, ConfirmSelect()), ConfirmSelectOk)
    peer.send(1, ConfirmSelect(is_nowait=True))
    peer.turn()
    assert peer.methods(1) == []


def test_confirms_and_transactions_exclude_each_other(peer):
    peer.call(1, ConfirmSelect())
    closed = peer.call(1, TxSelect())
    assert closed.reply_text == ("PRECONDITION_FAILED - cannot switch from confirm to tx mode")
    peer.open(2)
    peer.call(2, TxSelect())
    closed = peer.call(2, ConfirmSelect())
    assert (closed.reply_code, closed.failing_class, closed.failing_method) == (406, 85, 10)


def test_a_missing_exchange_closes_the_channel_and_not_the_connection(peer):
    peer.publish(1, "nowhere", "k", b"")
    peer.turn()
    (closed,) = answers(peer)
    assert closed == Close(404, "NOT_FOUND - no exchange 'nowhere' in vhost '/'", 60, 40)
    peer.open(2)


def test_an_internal_exchange_is_not_for_publishers(peer):
    peer.call(1, DeclareExchange(exchange="inner", kind="fanout", is_internal=True))
    peer.publish(1, "inner", "k", b"")
    peer.turn()
    (closed,) = answers(peer)
    assert closed.reply_code == 403
    assert "internal exchange 'inner'" in closed.reply_text


def test_immediate_is_not_implemented_and_ends_the_connection(peer):
    durable_topic(peer)
    many(peer, 1, is_immediate=True)
    peer.turn()
    (closed,) = [each for each in peer.methods(0) if isinstance(each, CloseConnection)]
    assert (closed.reply_code, closed.reply_text) == (540, "NOT_IMPLEMENTED - immediate=true")


def test_the_user_id_must_be_the_login(bench, peer):
    topic = durable_topic(peer)
    peer.publish(1, "", "q", b"mine", encode_properties(Properties(user_id="guest")))
    peer.publish(1, "", "q", b"not", encode_properties(Properties(user_id="root")))
    peer.turn()
    (closed,) = answers(peer)
    assert closed.reply_text == (
        "PRECONDITION_FAILED - user_id property set to 'root' but authenticated user was 'guest'"
    )
    assert bodies(bench, topic) == [b"mine"]


@pytest.mark.parametrize("expiration", ["", "-1", "1.5", "soon", "99999999999"])
def test_an_expiration_that_is_no_number_of_milliseconds_closes_the_channel(
    bench, peer, expiration
):
    topic = durable_topic(peer)
    peer.publish(1, "", "q", b"", encode_properties(Properties(expiration=expiration)))
    peer.turn()
    (closed,) = answers(peer)
    assert closed.reply_code == 406
    assert f"invalid expiration '{expiration}'" in closed.reply_text
    assert bodies(bench, topic) == []


def test_a_message_above_the_limit_closes_the_channel(bench, peer):
    topic = durable_topic(peer)
    size = bench.broker.settings.message_bytes_max + 1
    head = (60).to_bytes(2, "big") + bytes(2) + size.to_bytes(8, "big") + PERSISTENT
    frame = b"\x02\x00\x01" + len(head).to_bytes(4, "big") + head + b"\xce"
    peer.raw(method_frame(1, Publish(0, "", "q")) + frame)
    peer.turn()
    (closed,) = answers(peer)
    assert closed.reply_code == 406
    assert f"message size {size} is larger than configured max size" in closed.reply_text
    assert bodies(bench, topic) == []


def test_an_unroutable_one_is_dropped_and_confirmed_at_once(bench, peer):
    peer.call(1, ConfirmSelect())
    peer.publish(1, "", "nowhere", b"a", PERSISTENT)
    assert answers(peer) == [Ack(1)]


def test_a_mandatory_unroutable_one_comes_back_before_its_ack(bench, peer):
    peer.call(1, ConfirmSelect())
    raw = encode_properties(Properties(message_id="m"))
    peer.publish(1, "", "nowhere", b"a", raw, is_mandatory=True)
    back, ack = peer.take()
    assert back.method == Return(312, "NO_ROUTE", "", "nowhere")
    assert (back.properties, back.body) == (raw, b"a")
    assert ack.method == Ack(1)


def test_unroutable_ones_of_a_turn_are_one_answer_also_with_different_keys(peer):
    peer.call(1, ConfirmSelect())
    for number in range(9):
        peer.publish(1, "amq.topic", f"k{number}", b"a")
    assert answers(peer) == [Ack(9, is_multiple=True)]


def test_unroutable_ones_wait_under_an_alarm_like_others(bench, peer):
    peer.call(1, ConfirmSelect())
    alarm(bench, True)
    many(peer, 2, key="nowhere")
    many(peer, 2, key="nowhere", is_mandatory=True)
    peer.turn()
    assert answers(peer) == []
    assert peer.session.engine_connection.bytes_held
    alarm(bench, False)
    peer.turn()
    assert answers(peer) == [Return(312, "NO_ROUTE", "", "nowhere")] * 2 + [Ack(4, True)]
    assert not peer.session.engine_connection.bytes_held
    many(peer, 1, key="nowhere")
    assert answers(peer) == [Ack(5)]


def test_without_confirms_what_must_come_back_comes_back_after_the_alarm(bench, peer):
    alarm(bench, True)
    many(peer, 2, key="nowhere", is_mandatory=True)
    peer.turn()
    assert peer.bodies() == []
    assert answers(peer) == []
    alarm(bench, False)
    peer.turn()
    assert [heard.body for heard in peer.take() if heard.channel] == [b"0", b"1"]
    assert peer.session.channels[1].publisher.returned == 2


def test_what_a_commit_returns_leaves_before_commit_ok_also_under_an_alarm(bench, peer):
    peer.call(1, TxSelect())
    alarm(bench, True)
    many(peer, 2, key="nowhere", is_mandatory=True)
    peer.send(1, TxCommit())
    peer.turn()
    assert [type(method) for method in peer.methods(1)] == [Return, Return, TxCommitOk]


def test_an_unroutable_one_that_an_alarm_holds_too_long_is_a_nack():
    settings = Settings(flow=FlowSettings(alarm_hold_ms_max=1000))
    bench = AmqpBench(settings)
    peer = bench.client()
    peer.call(1, ConfirmSelect())
    alarm(bench, True)
    many(peer, 1, key="nowhere", is_mandatory=True)
    peer.turn()
    bench.advance(1001)
    peer.turn()
    assert answers(peer) == [Nack(1)]


def test_in_plain_mode_an_unroutable_one_is_only_counted(peer):
    peer.publish(1, "", "nowhere", b"a")
    peer.turn()
    assert peer.methods() == []
    assert peer.session.channels[1].publisher.dropped == 1


def test_what_goes_to_no_queue_is_counted_for_operators_also_when_its_channel_is_gone(bench, peer):
    many(peer, 3, key="nowhere")
    many(peer, 2, key="nowhere", is_mandatory=True)
    peer.leave()
    seen = bench.engine.statistics()
    assert (seen.unroutable_dropped, seen.unroutable_returned) == (3, 2)
    assert (seen.published, seen.refused) == (5, {})


def test_what_goes_to_no_queue_is_counted_once_also_under_an_alarm(bench, peer):
    alarm(bench, True)
    many(peer, 3, key="nowhere")
    many(peer, 2, key="nowhere", is_mandatory=True)
    peer.turn()
    assert bench.engine.statistics().unroutable_dropped == 0, "nothing became of it yet"
    alarm(bench, False)
    peer.turn()
    seen = bench.engine.statistics()
    assert (seen.unroutable_dropped, seen.unroutable_returned) == (3, 2)
    assert (seen.published, seen.refused) == (5, {})
    publisher = peer.session.channels[1].publisher
    assert (publisher.dropped, publisher.returned) == (3, 2)


def test_what_must_come_back_to_a_closed_channel_is_dropped_and_counted_as_such(bench, peer):
    alarm(bench, True)
    many(peer, 2, key="nowhere", is_mandatory=True)
    peer.turn()
    peer.call(1, Close(200, "bye", 0, 0))
    alarm(bench, False)
    peer.turn()
    seen = bench.engine.statistics()
    assert (seen.unroutable_dropped, seen.unroutable_returned) == (2, 0)


def test_an_alternate_exchange_counts_as_a_route(bench, peer):
    topic = durable_topic(peer)
    peer.call(1, DeclareExchange(exchange="spare", kind="fanout"))
    peer.call(1, Bind(queue="q", exchange="spare"))
    arguments = {"alternate-exchange": "spare"}
    peer.call(1, DeclareExchange(exchange="e", kind="direct", arguments=arguments))
    peer.publish(1, "e", "unknown", b"a", is_mandatory=True)
    peer.turn()
    assert answers(peer) == []
    assert bodies(bench, topic) == [b"a"]


def test_mandatory_ones_on_a_headers_exchange_are_asked_for_one_by_one(bench, peer):
    topic = durable_topic(peer)
    peer.call(1, Bind(queue="q", exchange="amq.headers", arguments={"colour": "red"}))
    peer.call(1, ConfirmSelect())
    for colour in ("red", "blue", "red"):
        raw = encode_properties(Properties(headers={"colour": colour}, delivery_mode=2))
        peer.publish(1, "amq.headers", "", colour.encode(), raw, is_mandatory=True)
    peer.turn()
    assert bodies(bench, topic) == [b"red", b"red"]
    heard = peer.take()
    assert [each.body for each in heard if isinstance(each.method, Return)] == [b"blue"]
    acked = [each.method for each in heard if isinstance(each.method, Ack)]
    assert max(each.delivery_tag for each in acked) == 3


def test_a_route_is_found_again_after_the_topology_changed(bench, peer):
    first, second = durable_topic(peer, "q"), durable_topic(peer, "r")
    peer.call(1, Bind(queue="q", exchange="amq.fanout"))
    peer.publish(1, "amq.fanout", "", b"one")
    peer.call(1, Bind(queue="r", exchange="amq.fanout"))
    peer.publish(1, "amq.fanout", "", b"both")
    peer.call(1, DeleteQueue(queue="q"))
    peer.publish(1, "amq.fanout", "", b"other")
    peer.turn()
    assert first.is_deleted
    assert bodies(bench, second) == [b"both", b"other"]


def test_a_topic_that_another_protocol_makes_is_found_without_a_change_of_topology(bench, peer):
    peer.publish(1, "", "orders", b"lost")
    topic = bench.topic("orders")
    peer.publish(1, "", "orders", b"found")
    peer.turn()
    assert bodies(bench, topic) == [b"found"]


def test_cc_and_bcc_reach_further_queues_and_bcc_is_not_told(bench, peer):
    topics = [durable_topic(peer, name) for name in ("q", "r", "s")]
    raw = encode_properties(Properties(headers={"CC": ["r"], "BCC": ["s"]}))
    peer.publish(1, "", "q", b"a", raw)
    peer.turn()
    for topic in topics:
        (record,) = bench.records(topic)
        assert decode_properties(record.properties).headers == {"CC": ["r"]}


def test_each_message_of_a_run_has_its_own_copies(bench, peer):
    topics = {name: durable_topic(peer, name) for name in ("q", "r", "s")}
    for name in ("r", "s", "r"):
        raw = encode_properties(Properties(headers={"CC": [name]}))
        peer.publish(1, "", "q", name.encode(), raw)
    peer.turn()
    assert bodies(bench, topics["q"]) == [b"r", b"s", b"r"]
    assert bodies(bench, topics["r"]) == [b"r", b"r"]
    assert bodies(bench, topics["s"]) == [b"s"]


def test_a_full_queue_that_rejects_is_a_nack(bench, peer):
    topic = durable_topic(peer, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    peer.call(1, ConfirmSelect())
    many(peer, 4)
    peer.turn()
    assert bodies(bench, topic) == [b"0", b"1"]
    told = answers(peer)
    assert [each for each in told if isinstance(each, Ack)] == [Ack(2, is_multiple=True)]
    nacks = [each for each in told if isinstance(each, Nack)]
    assert nacks == [Nack(3), Nack(4)], "singly: those before them were not durable yet"


def test_without_confirms_a_full_queue_that_rejects_drops_silently(bench, peer):
    topic = durable_topic(peer, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    many(peer, 4)
    peer.turn()
    assert bodies(bench, topic) == [b"0", b"1"]
    assert answers(peer) == []


def test_what_is_held_too_long_is_a_nack_and_without_confirms_the_end_of_the_channel(bench):
    held = FlowSettings().hold_ms_max
    arguments = {"x-max-length": 1, "x-overflow": "hold"}
    confirming, plain = bench.client(), bench.client()
    durable_topic(confirming, "full", **arguments)
    confirming.call(1, ConfirmSelect())
    many(confirming, 2, key="full")
    many(plain, 1, key="full")
    confirming.turn()
    assert answers(confirming) == [Ack(1)]
    bench.advance(held + 1)
    confirming.turn()
    assert answers(confirming) == [Nack(2)]
    (closed,) = answers(plain)
    assert (closed.reply_code, closed.failing_class, closed.failing_method) == (406, 60, 40)
    assert closed.reply_text.count("full") == 1, "the queue is named, and once"


def test_a_terminated_queue_is_a_nack_and_without_confirms_the_end_of_the_channel(bench):
    confirming, plain = bench.client(), bench.client()
    topic = durable_topic(confirming, "ended")
    confirming.call(1, ConfirmSelect())
    bench.engine.terminate_topic(topic.name)
    many(confirming, 1, key="ended")
    many(plain, 1, key="ended")
    confirming.turn()
    assert answers(confirming) == [Nack(1)]
    (closed,) = answers(plain)
    assert closed.reply_code == 406
    assert "terminated" in closed.reply_text
    assert bodies(bench, topic) == []


def test_a_refused_write_is_a_nack_and_nothing_of_it_is_stored(bench, peer):
    topic = durable_topic(peer)
    peer.call(1, ConfirmSelect())
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    many(peer, 2)
    peer.turn()
    assert answers(peer) == [Nack(2, is_multiple=True)]
    assert bodies(bench, topic) == []


def test_after_a_failed_sync_a_publisher_without_confirms_loses_its_connection(bench, peer):
    durable_topic(peer)
    bench.storage.plan.fail_next("sync", FaultKind.EIO)
    many(peer, 1)
    peer.turn()
    (closed,) = [each for each in peer.methods(0) if isinstance(each, CloseConnection)]
    assert closed.reply_code == 541


def test_a_queue_deleted_while_its_publish_is_on_the_way_means_dropped_and_confirmed(bench, peer):
    durable_topic(peer)
    peer.call(1, ConfirmSelect())
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.call(1, DeleteQueue(queue="q"))
    assert answers(peer) == [Ack(1)]


def test_a_publisher_is_known_as_one_by_its_first_publish_under_an_alarm(bench, peer):
    peer.publish(1, "", "nowhere", b"")
    assert not peer.session.engine_connection.is_publisher
    alarm(bench, True)
    assert not peer.session.engine_connection.is_publisher
    peer.publish(1, "", "nowhere", b"")
    assert peer.session.engine_connection.is_publisher, "also by an unroutable one"


def test_the_end_of_a_channel_leaves_what_it_published_to_the_engine(bench, peer):
    topic = durable_topic(peer)
    many(peer, 3)
    peer.send(1, Close(200, "bye"))
    peer.turn()
    assert bodies(bench, topic) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("is_channel", [True, False], ids=["channel", "connection"])
def test_a_polite_close_is_answered_at_once_and_what_an_alarm_holds_is_stored_later(
    bench, peer, is_channel
):
    topic = durable_topic(peer)
    alarm(bench, True)
    many(peer, 11)
    peer.turn()
    if is_channel:
        assert isinstance(peer.call(1, Close(200, "bye")), CloseOk)
    else:
        assert isinstance(peer.call(0, CloseConnection(200, "bye")), ConnectionCloseOk)
    assert bodies(bench, topic) == []
    alarm(bench, False)
    assert len(bodies(bench, topic)) == 11


def test_what_a_full_queue_holds_is_stored_after_a_polite_close_when_there_is_room(bench, peer):
    topic = durable_topic(peer, **{"x-max-length": 1, "x-overflow": "hold"})
    many(peer, 2)
    peer.turn()
    peer.send(0, CloseConnection(200, "bye"))
    peer.turn()
    assert bodies(bench, topic) == [b"0"]
    other = bench.client()
    assert isinstance(other.call(1, Get(0, "q", is_no_ack=True)), GetOk)
    other.turn()
    assert isinstance(other.call(1, Get(0, "q", is_no_ack=True)), GetOk)
    assert bench.engine.statistics().inflight_bytes == 0


@pytest.mark.parametrize("end", ["channel error", "connection error", "vanished"])
def test_what_is_held_goes_with_a_channel_that_did_not_take_its_leave(bench, peer, end):
    topic = durable_topic(peer)
    alarm(bench, True)
    many(peer, 3)
    peer.turn()
    if end == "channel error":
        peer.send(1, DeclareQueue(queue="nowhere", is_passive=True))
    elif end == "connection error":
        peer.raw(b"nonsense")
    else:
        peer.session.closed("reset by peer")
    bench.settle()
    alarm(bench, False)
    assert bodies(bench, topic) == []
    assert bench.engine.statistics().inflight_bytes == 0


def test_large_messages_are_held_within_the_connections_share(bench):
    settings = Settings(flow=FlowSettings(connection_bytes_max=100_000))
    bench = AmqpBench(settings)
    peer = bench.client()
    topic = durable_topic(peer)
    for _ in range(5):
        peer.publish(1, "", "q", bytes(50_000), PERSISTENT)
    assert not peer.session.is_reading
    peer.turn()
    assert peer.session.is_reading
    assert len(bodies(bench, topic)) == 5


# ---- confirm ------------------------------------------------------------------------------------
# Confirms of a channel: numbers in, as few frames as can say it out.


def test_what_is_complete_is_one_cumulative_ack():
    confirms = Confirms(3)
    assert confirms.expect(5) == 1
    confirms.acked([1, 2, 3])
    confirms.acked([4])
    assert confirms.take() == ack_frame(3, 4, is_multiple=True)
    assert confirms.outstanding == 1


def test_what_lies_behind_an_open_one_is_said_singly():
    confirms = Confirms(1)
    confirms.expect(4)
    confirms.acked([3, 4])
    assert confirms.take() == ack_frame(1, 3) + ack_frame(1, 4)


def test_refused_ones_are_nacks_after_the_acks():
    confirms = Confirms(1)
    confirms.expect(4)
    confirms.nacked([2])
    confirms.acked([1, 3, 4])
    assert confirms.take() == b"".join(
        [ack_frame(1, 1), ack_frame(1, 3), ack_frame(1, 4), nack_frame(1, 2)]
    )


def test_what_was_published_before_the_select_is_nobodys_business():
    confirms = Confirms(1)
    confirms.expect(1)
    confirms.acked([0, 0, 1])
    confirms.nacked([0])
    assert confirms.take() == ack_frame(1, 1)


def test_nothing_to_say_is_no_bytes():
    assert Confirms(1).take() == b""


def test_an_answer_out_of_order_is_the_same_in_any_order():
    confirms = Confirms(1)
    confirms.expect(4)
    confirms.acked([2, 1, 4])
    assert confirms.take() == ack_frame(1, 2, is_multiple=True) + ack_frame(1, 4)
    confirms.acked([3])
    assert confirms.take() == ack_frame(1, 3)
    assert confirms.outstanding == 0
