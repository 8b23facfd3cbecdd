"""Stored messages against bytes made by hand; the layout is also that of ali-ons' fixtures."""

import struct
import zlib

import pytest

from penstock.log.format import decode as decode_entry
from penstock.log.format import encode as encode_entry
from penstock.model.record import Facts, RecordFlag, Wire, tag_hash
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.message_id import encode_host
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import (
    MAGIC_BLANK,
    RocketmqFacts,
    StoredMessage,
    SysFlag,
    decode_all,
    decode_stored,
    encode_stored,
    plain_body,
    record_of,
    stored_record,
)

BORN = encode_host("10.62.60.82", 54073)
STORE = encode_host("10.218.145.166", 10700)
V6 = encode_host("2001:db8::7", 10911)

GOLDEN = (
    b"\x00\x00\x00\x73"  # 115 bytes
    b"\xda\xa3\x20\xa7"  # magic V1
    b"\x36\x10\xa6\x86"  # crc32("hello") = 0x3610a686
    b"\x00\x00\x00\x03"  # queueId
    b"\x00\x00\x00\x07"  # flag
    b"\x00\x00\x00\x00\x00\x00\x01\x14"  # queueOffset 276
    b"\x00\x00\x00\x65\x00\xe5\x9f\x3e"  # commitLogOffset
    b"\x00\x00\x00\x02"  # sysFlag
    b"\x00\x00\x01\x4f\xef\xa2\x5a\x93"  # bornTimestamp
    b"\x0a\x3e\x3c\x52\x00\x00\xd3\x39"  # 10.62.60.82:54073
    b"\x00\x00\x01\x4f\xef\xa2\x5a\xd5"  # storeTimestamp
    b"\x0a\xda\x91\xa6\x00\x00\x29\xcc"  # 10.218.145.166:10700
    b"\x00\x00\x00\x02"  # reconsumeTimes
    b"\x00\x00\x00\x00\x00\x00\x00\x09"  # prepared transaction
    b"\x00\x00\x00\x05hello"
    b"\x09TopicTest"
    b"\x00\x0aTAGS\x01TagA\x02"
)
MESSAGE = StoredMessage(
    topic="TopicTest",
    body=b"hello",
    properties=b"TAGS\x01TagA\x02",
    queue_id=3,
    queue_offset=276,
    commit_log_offset=0x6500E59F3E,
    flag=7,
    sys_flag=2,
    born_ms=0x14FEFA25A93,
    born_host=BORN,
    store_ms=0x14FEFA25AD5,
    store_host=STORE,
    reconsume_times=2,
    prepared_offset=9,
    body_crc=0x3610A686,
)


def test_a_stored_message_is_read_and_written_as_drawn():
    assert decode_stored(GOLDEN) == (MESSAGE, len(GOLDEN))
    assert encode_stored(MESSAGE) == GOLDEN
    assert MESSAGE.is_intact
    assert MESSAGE.offset_message_id == "0ADA91A6000029CC0000006500E59F3E"
    assert MESSAGE.property_map() == {"TAGS": "TagA"}


def test_the_checksum_is_without_its_sign_bit():
    body = next(b"%d" % n for n in range(100) if zlib.crc32(b"%d" % n) >> 31)
    record = stored_record("T", 0, body)
    assert struct.unpack_from(">I", record.origin, 8)[0] == zlib.crc32(body) & 0x7FFFFFFF
    message, _ = decode_stored(record.origin)
    assert message.is_intact
    message.body = b"other"
    assert not message.is_intact


def test_a_send_becomes_a_record_whose_spans_point_into_its_bytes():
    properties = b"KEYS\x01order-17 cust-4\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    record = stored_record("TopicTest", 3, b"hello", properties, born_ms=5, born_host=BORN)
    assert record.wire == Wire.ROCKETMQ
    assert (record.body, record.properties) == (b"hello", properties)
    assert (record.key, record.tag, record.born_ms) == (b"order-17", b"TagA", 5)
    assert (record.flags, record.messages) == (0, 1)
    assert decode_stored(record.origin)[0].queue_offset == 0


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        (b"__SHARDINGKEY\x01s\x02KEYS\x01k\x02", b"s"),
        (b"KEYS\x01k\x02__SHARDINGKEY\x01s\x02", b"s"),
        (b"KEYS\x01a b\x02", b"a"),
        (b"KEYS\x01  a b\x02", b"a"),
        (b"KEYS\x01  \x02", b""),
        (b"KEYS\x01\x02", b""),
        (b"MYKEYS\x01a\x02", b""),
        (b"", b""),
    ],
)
def test_the_key_is_the_sharding_key_else_the_first_of_keys(properties, key):
    record = stored_record("T", 0, b"", properties)
    assert record.key == key
    assert (record.shape.key_len > 0) == bool(key)


def test_the_append_stamps_offset_position_and_store_time():
    record = stored_record("TopicTest", 3, b"hello", b"TAGS\x01TagA\x02", born_host=BORN)
    entry = encode_entry(record, [(1, 276)], 4096, 1_700_000_000_123)
    found = decode_entry(entry, 0, 4096)
    assert found is not None
    message, _ = decode_stored(found[0].origin)
    assert message.queue_offset == 276
    assert message.commit_log_offset == 4096
    assert message.store_ms == 1_700_000_000_123
    assert (message.body, message.born_host) == (b"hello", BORN)
    assert (found[0].body, found[0].tag) == (b"hello", b"TagA")


@pytest.mark.parametrize("born", [BORN, V6], ids=["born v4", "born v6"])
@pytest.mark.parametrize("store", [STORE, V6], ids=["store v4", "store v6"])
def test_every_mix_of_address_versions_is_stamped_and_read(born, store):
    record = stored_record("T", 1, b"body", b"a\x01b\x02", born_host=born, store_host=store)
    encode_entry(record, [(1, 7)], 64, 99)
    message, end = decode_stored(record.origin)
    assert end == len(record.origin) == 88 + 4 + 2 + 2 + 4 + (len(born) + len(store) - 16)
    assert (message.queue_offset, message.commit_log_offset, message.store_ms) == (7, 64, 99)
    assert (message.born_host, message.store_host) == (born, store)
    assert message.sys_flag == 0
    (flag,) = struct.unpack_from(">i", record.origin, 36)
    assert bool(flag & SysFlag.BORN_HOST_V6) == (len(born) == 20)
    assert bool(flag & SysFlag.STORE_HOST_V6) == (len(store) == 20)


def test_v6_bits_said_by_a_peer_do_not_count():
    record = stored_record("T", 0, b"", sys_flag=SysFlag.BORN_HOST_V6 | SysFlag.MULTI_TAGS)
    assert struct.unpack_from(">i", record.origin, 36)[0] == SysFlag.MULTI_TAGS


def test_topics_above_127_bytes_take_the_second_form():
    short, long = "t" * 127, "%RETRY%" + "t" * 248
    first = encode_stored(StoredMessage(topic=short))
    assert (first[4:8], first[88:90]) == (b"\xda\xa3\x20\xa7", b"\x7ft")
    second = encode_stored(StoredMessage(topic=long))
    assert (second[4:8], second[88:92]) == (b"\xda\xa3\x20\xab", b"\x00\xff%R")
    assert decode_stored(second)[0].topic == long
    assert stored_record(long, 0, b"x").body == b"x"
    with pytest.raises(Malformed, match="topic of 256 bytes, limit 255"):
        stored_record("t" * 256, 0, b"")


def test_properties_are_limited_by_a_signed_short():
    assert stored_record("T", 0, b"", b"p" * 32767).shape.props_len == 32767
    for build in (
        lambda: stored_record("T", 0, b"", b"p" * 32768),
        lambda: encode_stored(StoredMessage(topic="T", properties=b"p" * 32768)),
    ):
        with pytest.raises(Malformed, match="properties of 32768 bytes, limit 32767"):
            build()


def test_values_out_of_range_are_refused():
    with pytest.raises(Malformed, match="out of range"):
        stored_record("T", 1 << 31, b"")
    with pytest.raises(Malformed, match="out of range"):
        stored_record("T", 0, b"", born_host=b"short")
    with pytest.raises(Malformed, match="not Unicode"):
        stored_record("\ud800", 0, b"")


def test_a_compressed_body_is_flagged_for_other_readers():
    record = stored_record("T", 0, zlib.compress(b"x"), sys_flag=SysFlag.COMPRESSED)
    assert record.flags == RecordFlag.COMPRESSED


def test_a_message_can_be_stored_anew():
    record = record_of(MESSAGE, deliver_ms=77, expire_ms=88)
    assert (record.deliver_ms, record.expire_ms) == (77, 88)
    encode_entry(record, [(1, MESSAGE.queue_offset)], MESSAGE.commit_log_offset, MESSAGE.store_ms)
    assert record.origin == GOLDEN


def test_a_pull_is_a_concatenation():
    assert decode_all(GOLDEN * 3) == [MESSAGE] * 3
    assert decode_all(b"") == []


def test_a_blank_ends_the_messages_of_a_file():
    blank = struct.pack(">II", 500, MAGIC_BLANK) + bytes(492)
    assert decode_all(GOLDEN + blank) == [MESSAGE]


@pytest.mark.parametrize("cut", range(1, len(GOLDEN)))
def test_a_message_cut_anywhere_is_malformed(cut):
    with pytest.raises(Malformed):
        decode_all(GOLDEN[:cut])


@pytest.mark.parametrize("at", [0, 4, 84], ids=["total", "magic", "body"])
@pytest.mark.parametrize("value", [0, 2**31 - 1, 2**31, 2**32 - 1, 114])
def test_impossible_lengths_are_malformed(at, value):
    data = bytearray(GOLDEN)
    data[at : at + 4] = struct.pack(">I", value)
    with pytest.raises(Malformed):
        decode_stored(bytes(data))


@pytest.mark.parametrize(
    ("tag", "code"), [("TagA", 2598919), ("TagB", 2598920), ("hello", 99162322), ("", 0)]
)
def test_tag_codes_are_javas_hash_codes(tag, code):
    assert tag_hash(tag.encode()) == code


def test_java_hashes_utf16_units_and_wraps_at_32_bits():
    assert tag_hash("😀".encode()) == 31 * 0xD83D + 0xDE00
    assert tag_hash(b"polygenelubricants") == -(2**31)


# ---- facts --------------------------------------------------------------------------------------


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
