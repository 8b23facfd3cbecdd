"""CC and BCC: further keys; who was copied in secret is for no reader to see."""

import pytest

from penstock.adapters.amqp.burial import letter_head
from penstock.adapters.amqp.copies import BCC, CC, COPIES_MAX, copy_keys, with_copies
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.origin import publish_record, secret_keys
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties

HEAD = letter_head("e", "k")


def record(**headers):
    raw = encode_properties(Properties(headers=headers, delivery_mode=2, message_id="m"))
    return publish_record(HEAD, raw, b"body", 5)


def test_all_keys_count_each_once_the_published_one_first():
    _, keys = with_copies(HEAD, record(CC=["a", "k", "b"], BCC=["c", "a"]), 5)
    assert keys == ("k", "a", "b", "c")


def test_bcc_is_in_no_header_and_everything_else_is():
    stored, _ = with_copies(HEAD, record(CC=["a"], BCC=["c"], other=1), 5)
    properties = decode_properties(stored.properties)
    assert properties.headers == {"CC": ["a"], "other": 1}
    assert (properties.delivery_mode, properties.message_id, stored.body) == (2, "m", b"body")
    assert secret_keys(stored) == ("c",)
    assert secret_keys(record(CC=["a"])) == ()


def test_without_bcc_the_record_is_the_one_that_came():
    came = record(CC=["a"])
    assert with_copies(HEAD, came, 5)[0] is came


def test_what_is_no_text_in_the_array_is_passed_over():
    assert copy_keys(record(CC=["a", 7, None]).properties, CC) == ("a",)


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_a_header_that_is_no_array_is_refused(name):
    with pytest.raises(AmqpError, match=f"PRECONDITION_FAILED - invalid message: header {name}"):
        with_copies(HEAD, record(**{name: "a"}), 5)


def test_no_headers_no_copies():
    assert copy_keys(b"\0\0", BCC) == ()


def test_too_many_copies_are_refused():
    keys = [str(number) for number in range(COPIES_MAX)]
    assert len(with_copies(HEAD, record(CC=keys), 5)[1]) == COPIES_MAX + 1
    with pytest.raises(AmqpError, match=f"at most {COPIES_MAX}"):
        with_copies(HEAD, record(CC=keys, BCC=["one too many"]), 5)
