"""The exchange family as clients hear it: answers, codes and RabbitMQ's texts."""

import pytest

from kit.amqp.peer import AmqpBench, AmqpPeer
from penstock.wire.amqp.methods.channel import Close
from penstock.wire.amqp.methods.exchange import (
    Bind,
    BindOk,
    Declare,
    DeclareOk,
    Delete,
    DeleteOk,
    Unbind,
    UnbindOk,
)
from penstock.wire.amqp.methods.method import Method


@pytest.fixture
def bench() -> AmqpBench:
    return AmqpBench()


@pytest.fixture
def peer(bench: AmqpBench) -> AmqpPeer:
    return bench.client()


def refused(peer: AmqpPeer, method: Method) -> tuple[int, str]:
    answer = peer.call(1, method)
    assert isinstance(answer, Close), answer
    assert (answer.failing_class, answer.failing_method) == (
        method.class_id,
        method.method_id,
    )
    return answer.reply_code, answer.reply_text


def test_declare_delete_bind_and_unbind_are_answered(peer: AmqpPeer) -> None:
    assert peer.call(1, Declare(0, "a", "topic")) == DeclareOk()
    assert peer.call(1, Declare(0, "b", "fanout", is_durable=True)) == DeclareOk()
    assert peer.call(1, Declare(0, "b", "", is_passive=True)) == DeclareOk()
    assert peer.call(1, Bind(0, "b", "a", "k.#")) == BindOk()
    assert peer.call(1, Unbind(0, "b", "a", "k.#")) == UnbindOk()
    assert peer.call(1, Unbind(0, "none", "nowhere", "k")) == UnbindOk()
    assert peer.call(1, Delete(0, "a")) == DeleteOk()
    assert peer.call(1, Delete(0, "a")) == DeleteOk()
    assert set(peer.session.vhost.exchanges) >= {"b", "amq.topic", ""}


def test_nowait_is_not_answered(peer: AmqpPeer) -> None:
    peer.send(
        1,
        Declare(0, "a", "fanout", is_nowait=True),
        Bind(0, "a", "amq.direct", "k", is_nowait=True),
        Unbind(0, "a", "amq.direct", "k", is_nowait=True),
        Delete(0, "a", is_nowait=True),
    )
    peer.turn()
    assert peer.methods(1) == []
    assert "a" not in peer.session.vhost.exchanges


def test_a_durable_declare_is_answered_after_the_commit(bench: AmqpBench, peer: AmqpPeer) -> None:
    peer.send(1, Declare(0, "d", "direct", is_durable=True))
    bench.turns()
    assert peer.methods(1) == []
    peer.turn()
    assert peer.methods(1) == [DeclareOk()]
    bench.cut_power()
    assert bench.broker.vhosts["/"].exchanges["d"].is_durable


def test_line_ends_are_no_part_of_a_name(peer: AmqpPeer) -> None:
    assert peer.call(1, Declare(0, "a\r\nb", "fanout")) == DeclareOk()
    assert "ab" in peer.session.vhost.exchanges
    assert peer.call(1, Delete(0, "a\nb")) == DeleteOk()
    assert "ab" not in peer.session.vhost.exchanges


def test_the_same_declare_again_is_fine_even_of_reserved_names(peer: AmqpPeer) -> None:
    again = Declare(0, "amq.topic", "topic", is_durable=True)
    assert peer.call(1, again) == DeclareOk()
    for _ in range(2):
        wanted = Declare(0, "e", "direct", arguments={"alternate-exchange": "x", "more": 1})
        assert peer.call(1, wanted) == DeclareOk()


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (Declare(0, "none", is_passive=True), 404, "NOT_FOUND - no exchange 'none' in vhost '/'"),
        (
            Declare(0, "x", "x-none"),
            406,
            "PRECONDITION_FAILED - unknown exchange type 'x-none'",
        ),
        (
            Declare(0, "amq.mine", "direct"),
            403,
            "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
        (
            Declare(0, "a\x1b]0;x\x07", "direct"),
            406,
            "PRECONDITION_FAILED - exchange 'a\\x1b]0;x\\x07' has a control character; remove it",
        ),
        (
            Declare(0, "", "direct"),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (Delete(0, ""), 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (
            Delete(0, "amq.topic"),
            403,
            "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed",
        ),
        (
            Bind(0, "", "amq.topic"),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (
            Unbind(0, "amq.topic", ""),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (Bind(0, "none", "amq.topic"), 404, "NOT_FOUND - no exchange 'none' in vhost '/'"),
        (Bind(0, "amq.topic", "none"), 404, "NOT_FOUND - no exchange 'none' in vhost '/'"),
        (
            Declare(0, "amq.topic", "direct", is_durable=True),
            406,
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.topic' in vhost '/': "
            "received 'direct' but current is 'topic'",
        ),
        (
            Declare(0, "amq.topic", "topic"),
            406,
            "PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'amq.topic' in vhost "
            "'/': received 'false' but current is 'true'",
        ),
        (
            Declare(0, "new", "topic", arguments={"alternate-exchange": 7}),
            406,
            "PRECONDITION_FAILED - invalid type 'int' for arg 'alternate-exchange' in "
            "exchange 'new' in vhost '/'",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_rabbitmqs_words(
    peer: AmqpPeer, method: Method, code: int, text: str
) -> None:
    assert refused(peer, method) == (code, text)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (Declare(0, "e", "direct", is_auto_delete=True), "'auto_delete'"),
        (Declare(0, "e", "direct", is_internal=True), "'internal'"),
        (
            Declare(0, "e", "direct", arguments={"alternate-exchange": "rest"}),
            "received the value 'rest' of type 'longstr' but current is none",
        ),
    ],
)
def test_a_declare_that_differs_says_in_what(peer: AmqpPeer, other: Declare, text: str) -> None:
    peer.call(1, Declare(0, "e", "direct"))
    code, told = refused(peer, other)
    assert code == 406
    assert text in told


def test_an_exchange_in_use_is_not_deleted_if_it_must_be_unused(peer: AmqpPeer) -> None:
    peer.call(1, Declare(0, "e", "fanout"))
    peer.call(1, Bind(0, "amq.fanout", "e"))
    assert refused(peer, Delete(0, "e", if_unused=True)) == (
        406,
        "PRECONDITION_FAILED - exchange 'e' in vhost '/' in use",
    )
