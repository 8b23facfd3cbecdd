"""What a publish becomes in the log, and what its header claims."""

import pytest

from penstock.model.record import Wire
from penstock.wire.amqp.methods import basic
from penstock.wire.amqp.origin import (
    NO_CLAIMS,
    publish_head,
    publish_record,
    read_content_header,
    secret_keys,
    with_secret_keys,
)
from penstock.wire.amqp.properties import Properties, encode_properties

NOW_MS = 1_700_000_000_000


def head(exchange="e", routing_key="k", **bits):
    return publish_head(basic.Publish(0, exchange, routing_key, **bits).encode())


def record(properties, exchange="e", routing_key="k", body=b"body"):
    raw = encode_properties(properties)
    return publish_record(head(exchange, routing_key), raw, body, NOW_MS)


def test_equal_publishes_share_one_head():
    assert head() is head()
    assert head(is_mandatory=True).is_mandatory
    assert head(is_immediate=True).is_immediate
    assert head("é", "ü").names == b"\x02\xc3\xa9\x02\xc3\xbc"


def test_equal_layouts_share_one_shape():
    first = record(Properties(message_id="a" * 36, delivery_mode=2))
    second = record(Properties(message_id="b" * 36, delivery_mode=2))
    assert first.shape is second.shape
    assert first.wire == Wire.AMQP


@pytest.mark.parametrize("body", [b"", b"body"])
def test_secret_keys_are_behind_the_body_and_no_part_of_anything_else(body):
    plain = record(Properties(message_id="m"), body=body)
    keys = ("a", "", "é" * 200, "\udcff")
    keyed = with_secret_keys(plain, keys)
    assert secret_keys(keyed) == keys
    assert (keyed.properties, keyed.body, keyed.key) == (plain.properties, body, b"k")
    assert keyed.shape is plain.shape
    assert secret_keys(plain) == ()
    assert with_secret_keys(plain, ()) is plain


def test_only_delivery_mode_2_is_persistent():
    modes = [record(Properties(delivery_mode=mode)).is_transient for mode in (None, 1, 2, 3)]
    assert modes == [True, True, False, True]


def test_the_key_is_the_routing_key_unless_the_default_exchange_was_used():
    headers = Properties(headers={"a": 1, "key": "mine"})
    assert record(headers).key == b"k"
    assert record(headers, "é", "ü").key == "ü".encode()
    assert record(headers, "", "q").key == b"mine"
    assert record(Properties(), "", "q").key == b""
    assert record(Properties(headers={"key": 5}), "", "q").key == b""


def test_the_tag_is_the_type():
    assert record(Properties(type="T", message_id="m")).tag == b"T"
    assert record(Properties()).tag == b""


def test_a_message_was_born_at_its_timestamp_or_now():
    assert record(Properties(timestamp=5)).born_ms == 5000
    assert record(Properties()).born_ms == NOW_MS
    assert record(Properties(timestamp=(1 << 64) - 1)).born_ms == NOW_MS


@pytest.mark.parametrize(
    ("text", "lives_ms"),
    [("0", 0), ("60000", 60_000), ("4294967295", 4294967295), ("4294967296", -1), ("-1", -1),
     ("", -1), ("1.5", -1), ("soon", -1), ("²", -1), ("9" * 200, -1)],
)  # fmt: skip
def test_an_expiration_is_a_number_of_milliseconds_or_a_claim_to_refuse(text, lives_ms):
    properties = Properties(expiration=text)
    assert read_content_header(encode_properties(properties)).claims.expiration_ms == lives_ms
    expected = 0 if lives_ms < 0 else NOW_MS + lives_ms
    assert record(properties).expire_ms == expected


def test_most_headers_claim_nothing():
    properties = Properties(content_type="a", message_id="m", delivery_mode=2, priority=5)
    assert read_content_header(encode_properties(properties)).claims is NO_CLAIMS
    assert NO_CLAIMS.expiration_ms is None


def test_claims_name_what_a_broker_must_look_at():
    properties = Properties(user_id="guest", reply_to="r", headers={"CC": ["a"]})
    claims = read_content_header(encode_properties(properties)).claims
    assert (claims.user_id, claims.reply_to) == (b"guest", b"r")
    assert claims.has_headers
    assert claims.has_copies
    only = read_content_header(encode_properties(Properties(headers={"cc": 1}))).claims
    assert (only.has_headers, only.has_copies) == (True, False)
