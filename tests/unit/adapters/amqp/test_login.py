"""What clients say to prove who they are."""

import pytest

from penstock.adapters.amqp.login import Credentials, credentials
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import encode_table


def test_plain_is_user_and_password_behind_nuls():
    assert credentials("PLAIN", b"\0guest\0secret") == Credentials("guest", "secret")


@pytest.mark.parametrize("response", [b"", b"guest", b"\0guest", b"\0a\0b\0c"])
def test_a_plain_response_of_another_form_says_nothing(response):
    assert credentials("PLAIN", response) is None


def test_amqplain_is_a_table_without_its_length():
    response = encode_table({"LOGIN": "guest", "PASSWORD": "secret"})[4:]
    assert credentials("AMQPLAIN", response) == Credentials("guest", "secret")


@pytest.mark.parametrize(
    "response", [b"", b"\xff\xff", encode_table({"LOGIN": "x"})[4:], encode_table({"LOGIN": 5})[4:]]
)
def test_an_amqplain_response_without_both_says_nothing(response):
    assert credentials("AMQPLAIN", response) is None


def test_another_mechanism_is_an_invalid_command():
    with pytest.raises(AmqpError) as caught:
        credentials("EXTERNAL", b"")
    assert caught.value.code is ReplyCode.COMMAND_INVALID
