"""What a client says of itself, and what is made of it."""

import pytest

from penstock.testing.amqp_peer import AmqpBench
from penstock.wire.amqp.methods.connection import StartOk, Tune


@pytest.fixture
def peer():
    made = AmqpBench().peer()
    made.greet()
    return made


def introduce(peer, properties):
    answer = peer.call(0, StartOk(properties, "PLAIN", b"\0guest\0guest"))
    assert isinstance(answer, Tune)
    return peer.session


def test_capabilities_are_those_that_are_true(peer):
    session = introduce(peer, {"capabilities": {"a": True, "b": False, "c": "yes", "d": 1}})
    assert session.client_capabilities == {"a"}


@pytest.mark.parametrize("capabilities", [None, 5, "all", [True], {}])
def test_capabilities_of_another_kind_are_none(peer, capabilities):
    session = introduce(peer, {"capabilities": capabilities})
    assert session.client_capabilities == frozenset()


@pytest.mark.parametrize("name", [None, 5, {}, b"raw"])
def test_a_connection_name_that_is_no_text_is_none(peer, name):
    assert introduce(peer, {"connection_name": name}).connection_name == ""


def test_a_connection_name_can_always_be_printed(peer):
    session = introduce(peer, {"connection_name": b"caf\xe9".decode("utf-8", "surrogateescape")})
    assert session.connection_name == "caf?"
    assert session.connection_name.encode()


def test_messages_may_carry_the_login_and_no_other_user(peer):
    session = introduce(peer, {})
    assert session.user_name == "guest"
    assert session.auth_mechanism == "PLAIN"
    assert session.may_claim(b"guest")
    assert not session.may_claim(b"root")


def test_an_impersonator_may_claim_to_be_anybody():
    bench = AmqpBench()
    bench.house.users.add("relay", "secret", ["impersonator"])
    peer = bench.peer()
    peer.handshake(user="relay", password="secret")
    assert peer.session.may_claim(b"root")


def test_nothing_is_said_after_the_end(peer):
    peer.take()
    peer.leave()
    peer.session.send(b"late")
    assert peer.session.outgoing() == []
