"""Every method of the protocol is either heard or refused, in the right words."""

import pytest

from penstock.adapters.amqp.families import HANDLERS
from penstock.model.errors import NotFound
from penstock.testing.amqp_peer import AmqpBench
from penstock.wire.amqp.methods import connection
from penstock.wire.amqp.methods.basic import Ack, Publish
from penstock.wire.amqp.methods.channel import CloseOk, Flow
from penstock.wire.amqp.methods.connection import Close
from penstock.wire.amqp.methods.method import METHODS

FROM_SERVERS = """
    OpenOk FlowOk AccessRequestOk DeclareOk DeleteOk BindOk UnbindOk PurgeOk QosOk ConsumeOk
    Return Deliver GetOk GetEmpty RecoverOk ConfirmSelectOk TxSelectOk TxCommitOk TxRollbackOk
"""
ELSEWHERE = {Ack, Publish, CloseOk}
"""Acks and publishes come as runs; close-ok is heard when a close was said."""


def test_every_method_a_client_may_say_on_a_channel_has_a_handler():
    wanted = {
        method
        for method in METHODS.values()
        if method.class_id != 10 and method.__name__ not in FROM_SERVERS.split()
    }
    assert wanted - ELSEWHERE == set(HANDLERS)


@pytest.mark.parametrize(
    "method",
    [
        each
        for each in METHODS.values()
        if each.class_id != 10 and each not in HANDLERS and each not in ELSEWHERE
    ],
    ids=lambda each: f"{each.class_id}-{each.method_id}",
)
def test_what_only_servers_say_is_an_invalid_command(method):
    peer = AmqpBench().client()
    peer.send(1, method())
    close = peer.answer(0)
    assert (close.reply_code, close.failing_class, close.failing_method) == (
        503,
        method.class_id,
        method.method_id,
    )


@pytest.mark.parametrize(
    "method",
    [
        each
        for each in METHODS.values()
        if each.class_id == 10 and each not in (connection.Close, connection.UpdateSecret)
    ],
    ids=lambda each: each.__name__,
)
def test_methods_of_a_handshake_have_no_meaning_afterwards(method):
    peer = AmqpBench().client()
    close = peer.call(0, method())
    assert (close.reply_code, close.failing_class) == (504, 10)


def test_methods_of_the_connection_do_not_belong_on_a_channel():
    peer = AmqpBench().client()
    peer.send(1, connection.UpdateSecret())
    assert peer.answer(0).reply_code == 503


def test_a_mistake_of_ours_is_told_as_an_internal_error(monkeypatch):
    def wrong(channel, method):
        raise NotFound("nothing there")

    monkeypatch.setitem(HANDLERS, Flow, wrong)
    peer = AmqpBench().client()
    peer.send(1, Flow(True))
    close = peer.answer(0)
    assert isinstance(close, Close)
    assert (close.reply_code, close.reply_text) == (541, "INTERNAL_ERROR - nothing there")
