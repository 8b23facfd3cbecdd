"""Channels: opened, failed, closed, their numbers, and the order of what they say."""

from dataclasses import replace

import pytest

from kit.amqp.peer import AmqpBench
from penstock.settings.load import Settings
from penstock.wire.amqp.codes import FRAME_HEADER, AmqpError, ReplyCode
from penstock.wire.amqp.frames import CONTENT_HEAD, encode_frame, method_frame
from penstock.wire.amqp.methods.basic import Ack, Consume, Deliver, Get, GetEmpty, Publish
from penstock.wire.amqp.methods.channel import (
    AccessRequest,
    AccessRequestOk,
    Close,
    CloseOk,
    ConfirmSelect,
    ConfirmSelectOk,
    Flow,
    FlowOk,
    Open,
    OpenOk,
)
from penstock.wire.amqp.methods.connection import Close as CloseConnection
from penstock.wire.amqp.methods.exchange import Declare as DeclareExchange
from penstock.wire.amqp.methods.exchange import DeclareOk as ExchangeDeclareOk
from penstock.wire.amqp.methods.queue import Declare, DeclareOk

PERSISTENT = b"\x10\x00\x02"


def failed(method):
    assert isinstance(method, (Close, CloseConnection)), method
    return method.reply_code, method.failing_class, method.failing_method


def missing(peer, channel=1):
    return peer.call(channel, Declare(0, "nowhere", is_passive=True))


def test_a_channel_is_opened_and_closed_and_its_number_is_free_again(peer):
    assert peer.open(5) == OpenOk()
    assert peer.call(5, Close(200, "done")) == CloseOk()
    assert peer.open(5) == OpenOk()
    assert set(peer.session.channels) == {1, 5}


def test_a_second_open_ends_the_connection(peer):
    peer.send(1, Open())
    assert failed(peer.answer(0)) == (504, 20, 10)


@pytest.mark.parametrize("method", [Get(0, "q"), Close(200, ""), CloseOk(), ConfirmSelect()])
def test_a_channel_that_was_never_opened_ends_the_connection(peer, method):
    peer.send(3, method)
    assert failed(peer.answer(0)) == (504, method.class_id, method.method_id)


def test_a_publish_or_ack_on_a_channel_that_was_never_opened_ends_it_too(bench):
    for send in (lambda each: each.publish(3, "", "q", b"x"), lambda each: each.send(3, Ack(1))):
        peer = bench.client()
        send(peer)
        assert failed(peer.answer(0))[0] == 504


def test_more_channels_than_channel_max_are_not_allowed():
    settings = Settings()
    settings = replace(settings, amqp=replace(settings.amqp, channel_max=2))
    peer = AmqpBench(settings).client()
    assert peer.open(2) == OpenOk()
    peer.send(3, Open())
    assert failed(peer.answer(0)) == (530, 20, 10)


def test_channel_65535_is_a_number_and_not_a_count(bench, peer):
    assert peer.open(65_535) == OpenOk()
    peer.call(65_535, Declare(queue="q"))
    peer.publish(65_535, "", "q", b"x")
    peer.turn()
    assert peer.call(65_535, Declare(queue="q", is_passive=True)).messages == 1


def test_flow_may_be_switched_on_and_never_off(peer):
    assert peer.call(1, Flow(True)) == FlowOk(True)
    peer.send(1, Flow(False))
    assert failed(peer.answer(0)) == (540, 20, 20)


def test_a_ticket_is_given_to_who_asks(peer):
    assert peer.call(1, AccessRequest()) == AccessRequestOk(1)


def test_a_method_that_only_servers_say_is_invalid(peer):
    peer.send(1, OpenOk())
    assert failed(peer.answer(0)) == (503, 20, 11)


def test_a_soft_error_closes_the_channel_and_names_the_command(peer):
    assert failed(missing(peer)) == (404, 50, 10)
    assert not peer.session.wants_close


def test_after_its_error_a_channel_hears_close_ok_and_then_it_is_new(bench, peer):
    missing(peer)
    peer.send(1, Declare(0, "made"), Get(0, "made"), Ack(77), Open(), ConfirmSelect())
    peer.publish(1, "nowhere", "k", b"lost")
    assert peer.take() == []
    peer.send(1, CloseOk())
    assert peer.open(1) == OpenOk()
    assert failed(peer.call(1, Get(0, "made")))[0] == 404
    assert bench.broker.vhosts["/"].queues.get("made") is None


def test_both_sides_may_close_a_channel_at_the_same_time(peer):
    missing(peer)
    assert peer.call(1, Close(200, "done")) == CloseOk()
    peer.send(1, CloseOk())
    assert peer.open(1) == OpenOk()


def test_the_rest_of_a_content_is_swallowed_when_its_channel_failed_meanwhile(bench, peer):
    peer.call(1, Declare(0, "q"))
    header = encode_frame(FRAME_HEADER, 1, CONTENT_HEAD.pack(60, 0, 4) + b"\0\0")
    peer.raw(method_frame(1, Publish(0, "", "q")) + header + encode_frame(3, 1, b"ab"))
    channel = peer.session.channels[1]
    channel.fail(_soft())
    assert failed(peer.answer(1))[0] == 406
    peer.raw(encode_frame(3, 1, b"cd"))
    peer.send(1, CloseOk())
    assert peer.open(1) == OpenOk()
    assert peer.call(1, Get(0, "q")) == GetEmpty()


def test_an_error_requeues_what_the_channel_had_at_once(bench, peer):
    peer.call(1, Declare(0, "q"))
    peer.publish(1, "", "q", b"work")
    peer.turn()
    assert peer.call(1, Get(0, "q")).delivery_tag == 1
    missing(peer)
    other = bench.client()
    answer = other.call(1, Get(0, "q"))
    assert answer.is_redelivered


def test_an_error_of_one_channel_harms_no_other(peer):
    peer.open(2)
    peer.call(2, Declare(0, "q"))
    peer.call(2, Consume(0, "q", "c", is_no_ack=True))
    missing(peer, 1)
    peer.publish(2, "", "q", b"alive")
    peer.turn()
    assert peer.bodies() == [b"alive"]


def test_an_error_in_a_run_of_publishes_spares_the_other_channel(peer):
    peer.open(2)
    peer.call(2, Declare(0, "q"))
    assert peer.call(2, ConfirmSelect()) == ConfirmSelectOk()
    for _ in range(3):
        peer.publish(1, "nowhere", "k", b"x")
        peer.publish(2, "", "q", b"y")
    peer.turn()
    assert failed(peer.answer(1)) == (404, 60, 40)
    assert peer.methods(1) == []
    acks = [each for each in peer.methods(2) if isinstance(each, Ack)]
    assert max(each.delivery_tag for each in acks) == 3


def test_an_unknown_delivery_tag_names_ack_as_the_command(peer):
    peer.send(1, Ack(7))
    close = peer.answer(1)
    assert failed(close) == (406, 60, 80)
    assert close.reply_text == "PRECONDITION_FAILED - unknown delivery tag 7"


def test_a_hard_error_on_a_channel_ends_the_connection_and_names_the_command(peer):
    peer.send(1, Publish(0, "", "q", False, True))
    peer.raw(encode_frame(FRAME_HEADER, 1, CONTENT_HEAD.pack(60, 0, 0) + b"\0\0"))
    assert failed(peer.answer(0)) == (540, 60, 40)


# The order of answers.


def test_an_answer_that_waits_for_the_disk_holds_back_what_its_channel_says_later(bench, peer):
    peer.send(1, Declare(0, "kept", is_durable=True), Declare(0, "lost"), Flow(True))
    bench.turns()
    assert peer.take() == []
    peer.turn()
    answers = [heard.method for heard in peer.take()]
    assert answers == [DeclareOk("kept", 0, 0), DeclareOk("lost", 0, 0), FlowOk(True)]


def test_deliveries_stay_behind_an_answer_that_waits(bench, peer):
    peer.call(1, Declare(0, "q"))
    peer.call(1, Consume(0, "q", "c", is_no_ack=True))
    other = bench.client()
    peer.send(1, DeclareExchange(0, "e", "direct", is_durable=True))
    other.publish(1, "", "q", b"x")
    bench.turns()
    assert peer.take() == []
    peer.turn()
    assert [type(heard.method) for heard in peer.take()] == [ExchangeDeclareOk, Deliver]


def test_another_channel_does_not_wait(bench, peer):
    peer.open(2)
    peer.send(1, Declare(0, "kept", is_durable=True))
    peer.send(2, Flow(True))
    bench.turns()
    assert [heard.channel for heard in peer.take()] == [2]


def test_close_ok_stays_behind_answers_that_wait_and_then_the_number_is_free(bench, peer):
    peer.send(1, Declare(0, "kept", is_durable=True), Close(200, "done"))
    bench.turns()
    assert peer.take() == []
    assert 1 in peer.session.channels
    peer.turn()
    assert [heard.method for heard in peer.take()] == [DeclareOk("kept", 0, 0), CloseOk()]
    assert peer.session.channels == {}
    assert peer.open(1) == OpenOk()


def test_an_error_behind_an_answer_that_waits_is_told_behind_it(peer):
    peer.send(1, Declare(0, "kept", is_durable=True), Declare(0, "none", is_passive=True))
    peer.turn()
    first, second = [heard.method for heard in peer.take()]
    assert first == DeclareOk("kept", 0, 0)
    assert failed(second) == (404, 50, 10)
    peer.send(1, CloseOk())
    assert peer.open(1) == OpenOk()


def test_nobody_waits_for_the_disk_after_the_connection_is_gone(bench, peer):
    peer.send(1, Declare(0, "kept", is_durable=True))
    peer.leave()
    bench.settle()
    assert peer.take() == []
    assert peer.session.waiting == {}


def test_an_answer_that_comes_later_keeps_its_place_or_leaves_it_empty(peer):
    channel = peer.session.channels[1]
    first, second = channel.answer_later(), channel.answer_later()
    channel.answer(FlowOk(True))
    second(None)
    assert peer.take() == []
    first(OpenOk())
    assert [heard.method for heard in peer.take()] == [OpenOk(), FlowOk(True)]


def test_a_channel_that_failed_says_nothing_more(peer):
    channel = peer.session.channels[1]
    channel.fail(_soft())
    channel.answer(FlowOk(True))
    channel.answer_later()(FlowOk(True))
    channel.fail(_soft())
    assert [type(heard.method) for heard in peer.take()] == [Close]


def test_a_channel_of_the_engine_is_made_for_who_publishes(peer):
    channel = peer.session.channels[1]
    assert channel.engine_channel is None
    peer.call(1, Declare(0, "q"))
    peer.publish(1, "", "q", b"x", PERSISTENT)
    assert channel.engine_channel is channel.open_engine_channel()
    assert peer.session.engine_channels == {channel.engine_channel: channel}
    peer.call(1, Close(200, "done"))
    assert peer.session.engine_channels == {}


def _soft():
    return AmqpError(ReplyCode.PRECONDITION_FAILED, "for a test")
