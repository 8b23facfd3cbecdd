"""Signatures as RocketMQ's access control checks them."""

import base64
import hashlib
import hmac

from penstock.client.signing import Signer
from penstock.wire.rocketmq.command import Command


def expected(secret, content):
    return base64.b64encode(hmac.new(secret, content, hashlib.sha1).digest()).decode()


def test_values_are_signed_in_the_order_of_their_names_with_the_body_behind():
    command = Command(10, {"topic": "t", "group": "g"}, b"body")
    Signer("ak", "sk").sign(command)
    assert command.ext["Signature"] == expected(b"sk", b"akgtbody")


def test_a_token_is_signed_too_and_signing_again_changes_nothing():
    command = Command(10, {"a": "1"})
    signer = Signer("ak", "sk", "token")
    signer.sign(command)
    first = dict(command.ext)
    signer.sign(command)
    assert command.ext == first
    assert first["Signature"] == expected(b"sk", b"aktoken1")


def test_the_map_of_the_caller_is_not_touched():
    ext = {"a": "1"}
    Signer("ak", "sk").sign(Command(10, ext))
    assert ext == {"a": "1"}
