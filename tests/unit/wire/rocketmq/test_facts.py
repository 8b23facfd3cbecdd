import zlib

import pytest

from penstock.log.format import decode as decode_entry
from penstock.log.format import encode as encode_entry
from penstock.model.record import Facts
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.facts import RocketmqFacts, plain_body
from penstock.wire.rocketmq.message_id import encode_host
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import SysFlag, stored_record

FACTS = RocketmqFacts()


def from_disk(record):
    """The record as a reader gets it."""
    found = decode_entry(encode_entry(record, [(1, 0)], 0, 5), 0, 0)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("host", ["10.0.0.1", "2001:db8::7"])
def test_the_golden_table_holds_for_a_message_from_disk(host):
    properties = {
        "TAGS": "TagA",
        "KEYS": "order-17 cust-4",
        "UNIQ_KEY": "AC11",
        "WAIT": "true",
        "TIMER_DELIVER_MS": "1800000000000",
        "colour": "red",
        "größe": "L",
    }
    record = stored_record(
        "T",
        0,
        b"hello",
        format_properties(properties),
        born_ms=1_700_000_000_000,
        born_host=encode_host(host, 1),
        reconsume_times=3,
        expire_ms=9,
    )
    assert FACTS.facts(from_disk(record)) == Facts(
        key="order-17",
        tag="TagA",
        message_id="AC11",
        born_ms=1_700_000_000_000,
        expire_ms=9,
        deliver_ms=1_800_000_000_000,
        attempts=3,
        properties={"colour": "red", "größe": "L"},
    )
    assert FACTS.properties(record) == properties
    assert FACTS.body(record, 100) == b"hello"


def test_a_plain_message_has_no_facts_but_its_birth():
    assert FACTS.facts(stored_record("T", 0, b"", born_ms=4)) == Facts(born_ms=4)


@pytest.mark.parametrize(
    ("properties", "deliver_ms"),
    [
        ({"__STARTDELIVERTIME": "5"}, 5),
        ({"TIMER_DELIVER_MS": "6", "__STARTDELIVERTIME": "5"}, 6),
        ({"TIMER_DELIVER_MS": "soon"}, 0),
        ({"TIMER_DELIVER_MS": "9" * 19}, 0),
        ({"TIMER_DELIVER_MS": "٣"}, 0),
    ],
)
def test_the_time_of_delivery_may_be_said_in_two_ways(properties, deliver_ms):
    record = stored_record("T", 0, b"", format_properties(properties))
    assert FACTS.facts(record).deliver_ms == deliver_ms


def test_the_delay_the_broker_decided_on_comes_first():
    record = stored_record("T", 0, b"", b"TIMER_DELIVER_MS\x016\x02", deliver_ms=7)
    assert FACTS.facts(record).deliver_ms == 7


@pytest.mark.parametrize(
    ("properties", "keys"),
    [
        ({"UNIQ_KEY": "U", "KEYS": "a b  c"}, [b"U", b"a", b"b", b"c"]),
        ({"KEYS": "a"}, [b"a"]),
        ({"UNIQ_KEY": "U"}, [b"U"]),
        ({"__SHARDINGKEY": "s"}, []),
    ],
)
def test_a_message_is_looked_up_by_its_unique_key_and_each_of_its_keys(properties, keys):
    assert FACTS.keys(stored_record("T", 0, b"", format_properties(properties))) == keys


BODY = b"x" * 5000


@pytest.mark.parametrize("flag", [0x1, 0x301], ids=["old zlib", "zlib"])
def test_a_compressed_body_is_inflated_up_to_the_limit(flag):
    record = stored_record("T", 0, zlib.compress(BODY), sys_flag=flag)
    assert FACTS.body(record, 5000) == BODY
    with pytest.raises(Malformed, match="more than 4999 bytes"):
        FACTS.body(record, 4999)
    assert record.body != BODY


@pytest.mark.parametrize(
    ("body", "flag", "words"),
    [
        (zlib.compress(BODY), 0x101, "compressed with LZ4"),
        (zlib.compress(BODY), 0x201, "compressed with ZSTD"),
        (zlib.compress(BODY), 0x501, "type 5"),
        (b"nonsense", 0x1, "cannot be inflated"),
        (zlib.compress(BODY)[:-6], 0x1, "in the middle"),
        (b"", 0x1, "in the middle"),
    ],
)
def test_what_cannot_be_inflated_says_why(body, flag, words):
    with pytest.raises(Malformed, match=words):
        plain_body(body, flag, 10_000)


def test_an_uncompressed_body_is_never_measured():
    assert plain_body(BODY, SysFlag.MULTI_TAGS, 10) == BODY
