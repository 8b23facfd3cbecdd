"""The bytes of a send, read back by the broker's own eyes."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.errors import InvalidMessage
from penstock.client.message import Message
from penstock.client.producer.encoding import (
    TOPIC_PARTS_MAX,
    Encoder,
    batch_body,
    check_batch,
    item_bytes,
)
from penstock.client.producer.encoding import split_batch as encoding_split_batch
from penstock.model.assignment import QueueRef
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.frames import decode, parse_send
from penstock.wire.rocketmq.headers import fields, parse_send_header
from penstock.wire.rocketmq.message_id import UniqueKeys
from penstock.wire.rocketmq.properties import parse_properties
from penstock.wire.rocketmq.stored import split_batch

QUEUE = QueueRef("orders", "broker-a", 3)
CLOCK = ManualClock()


def encoder(**options):
    return Encoder("group", UniqueKeys("10.0.0.1", 7, CLOCK), CLOCK, **options)


def sent(message, queue=QUEUE, **options):
    """(header, properties, body) as a broker reads them."""
    encoded = encoder(**options).encode(message)
    frame = encoded.frame(queue, 5)
    send = parse_send(frame)
    assert send is not None, "the broker's short cut must understand it"
    assert (send.opaque, send.flag) == (5, 0)
    return send.header, parse_properties(send.header.properties.encode()), send.body


def test_a_plain_message_says_who_what_where_and_when():
    header, properties, body = sent(Message("orders", b"hello"))
    assert (header.producer_group, header.topic, header.queue_id) == ("group", "orders", 3)
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert (header.broker_name, header.born_timestamp) == ("broker-a", CLOCK.wall_ms())
    assert (header.sys_flag, header.flag, header.batch, header.reconsume_times) == (0, 0, False, 0)
    assert list(properties) == ["UNIQ_KEY"]
    assert body == b"hello"


def test_fields_of_a_message_become_properties():
    _, properties, _ = sent(
        Message(
            "orders", b"x", tag="t", keys=["k1", "k2"], properties={"a": "ä\x03"},
            ordering_key="o", delay_level=3, wait_store_ok=False,
        )
    )  # fmt: skip
    properties.pop("UNIQ_KEY")
    assert properties == {
        "TAGS": "t", "KEYS": "k1 k2", "a": "ä\x03", "__SHARDINGKEY": "o", "DELAY": "3",
        "WAIT": "false",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("timed", "name", "value"),
    [
        ({"delay_ms": 5000}, "TIMER_DELAY_MS", "5000"),
        ({"deliver_at_ms": 99}, "TIMER_DELIVER_MS", "99"),
        ({"delay_level": 18}, "DELAY", "18"),
    ],
)
def test_each_kind_of_delay_has_its_property(timed, name, value):
    _, properties, _ = sent(Message("orders", b"x", **timed))
    assert properties[name] == value


def test_every_message_has_a_key_of_its_own_that_all_tries_share():
    one = encoder()
    first, second = one.encode(Message("t", b"x")), one.encode(Message("t", b"x"))
    assert first.unique_key != second.unique_key
    assert first.unique_key.encode() in first.frame(QUEUE, 1)
    assert first.unique_key.encode() in first.frame(QUEUE, 2)


def test_a_large_body_is_compressed_and_says_so():
    body = b"abc" * 2000
    header, _, packed = sent(Message("orders", body))
    assert header.sys_flag == 1
    assert zlib.decompress(packed) == body


def test_below_the_size_nothing_is_compressed():
    header, _, body = sent(Message("orders", b"a" * 4095))
    assert (header.sys_flag, len(body)) == (0, 4095)
    header, _, _ = sent(Message("orders", b"a" * 4096))
    assert header.sys_flag == 1


def test_a_body_that_does_not_get_smaller_is_sent_as_it_is():
    noise = zlib.compress(bytes(range(256)) * 3)
    header, _, body = sent(Message("orders", noise), compress_bytes_min=1)
    assert (header.sys_flag, body) == (0, noise)


def test_a_half_message_says_that_it_is_one():
    encoded = encoder().encode(Message("orders", b"x"), is_half=True)
    header = parse_send(encoded.frame(QUEUE, 1)).header
    properties = parse_properties(header.properties.encode())
    assert header.sys_flag == 4
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "group")


def test_a_message_on_its_way_back_tells_in_the_header_how_often_it_was_tried():
    given_ = {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16", "RETRY_TOPIC": "orders"}
    message = Message("%RETRY%g", b"x", properties=given_, delay_level=6)
    header, properties, _ = sent(message, QueueRef("%RETRY%g", "b", 0))
    assert (header.reconsume_times, header.max_reconsume_times) == (3, 16)
    assert properties.keys() == {"UNIQ_KEY", "DELAY", "RETRY_TOPIC"}


def test_a_batch_is_one_request_of_messages_with_keys_of_their_own():
    messages = [Message("orders", b"b%d" % number, tag="t", flag=number) for number in range(3)]
    encoded = encoder().encode_batch(messages)
    frame = encoded.frame(QUEUE, 1)
    send = parse_send(frame)
    assert (send.code, send.header.batch) == (320, True)
    items = split_batch(send.body)
    assert [(each.body, each.flag) for each in items] == [(b"b0", 0), (b"b1", 1), (b"b2", 2)]
    keys = [parse_properties(each.properties)["UNIQ_KEY"] for each in items]
    assert ",".join(keys) == encoded.unique_key


def test_a_batch_says_nothing_that_would_shadow_what_its_messages_say():
    encoded = encoder().encode_batch([Message("orders", b"x", wait_store_ok=False)])
    assert parse_properties(encoded.properties.encode()) == {"WAIT": "false"}


@pytest.mark.parametrize("name", ["tag", "ordering_key"])
@pytest.mark.parametrize("bad", ["a\x01b", "a\x02b"])
def test_a_separator_inside_a_value_is_refused(name, bad):
    with pytest.raises(InvalidMessage, match="separators"):
        encoder().encode(Message("t", b"x", **{name: bad}))


def test_text_that_is_not_unicode_is_refused():
    with pytest.raises(InvalidMessage, match="not Unicode"):
        encoder().encode(Message("t", b"x", tag="\ud800"))


def test_properties_are_limited_by_their_bytes():
    encoder().encode(Message("t", b"x", properties={"a": "x" * 32_000}))
    with pytest.raises(InvalidMessage, match="limit 32767"):
        encoder().encode(Message("t", b"x", properties={"a": "ä" * 16_400}))


def test_headers_of_many_topics_do_not_fill_the_memory():
    one = encoder()
    for number in range(TOPIC_PARTS_MAX + 5):
        one.topic_part(f"t{number}", False)
    assert len(one._topic_parts) == TOPIC_PARTS_MAX


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)


@given(
    topic=texts, group=texts, broker=texts, tag=texts, flag=st.integers(-(1 << 31), (1 << 31) - 1)
)
def test_the_short_way_and_the_long_way_write_the_same_request(topic, group, broker, tag, flag):
    made = Encoder(group, UniqueKeys("10.0.0.1", 7, CLOCK), CLOCK)
    encoded = made.encode(Message(topic, b"body", tag=tag, flag=flag))
    queue = QueueRef(topic, broker, 2)
    short, long = decode(encoded.frame(queue, 9)), encoded.command(queue)
    assert fields(parse_send_header(short)) == fields(parse_send_header(long))
    assert (short.code, short.body, short.language, short.version, short.flag) == (
        long.code, long.body, long.language, long.version, long.flag,
    )  # fmt: skip


# ---- batch --------------------------------------------------------------------------------------
# Which messages may be one batch, and how a long list becomes batches.


MAX = 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "at least one"),
        ([Message("a", b"x"), Message("b", b"x")], "one topic"),
        ([Message("%RETRY%g", b"x")], "retry topic"),
        ([Message("a", b"x", delay_level=1)], "delayed"),
        ([Message("a", b"x", delay_ms=10)], "delayed"),
        ([Message("a", b"x", deliver_at_ms=10)], "delayed"),
        ([Message("a", b"x"), Message("a", b"x", wait_store_ok=False)], "wait_store_ok"),
        ([Message("a", b"x"), Message("a", b"x", ordering_key="k")], "ordering_key"),
    ],
)
def test_messages_that_do_not_go_together_are_refused(messages, said):
    with pytest.raises(InvalidMessage, match=said):
        check_batch(messages, MAX)


def test_a_batch_that_is_too_large_names_what_helps():
    with pytest.raises(InvalidMessage, match="split_batch"):
        check_batch([Message("a", b"x" * 600)] * 2, 1000)


def test_a_list_is_split_where_messages_do_not_go_together():
    messages = [
        Message("a", b"1"), Message("a", b"2"), Message("b", b"3"), Message("b", b"4", delay_ms=5),
        Message("b", b"5"), Message("b", b"6", ordering_key="k"),
    ]  # fmt: skip
    found = [[each.body for each in batch] for batch in encoding_split_batch(messages)]
    assert found == [[b"1", b"2"], [b"3"], [b"4"], [b"5"], [b"6"]]


def test_a_list_is_split_by_number():
    batches = list(encoding_split_batch([Message("a", b"x")] * 5, messages_max=2))
    assert list(map(len, batches)) == [2, 2, 1]


@given(st.lists(st.integers(1, 900), max_size=40), st.integers(300, 2000))
def test_nothing_is_lost_or_reordered_and_every_batch_fits_unless_one_message_does_not(
    sizes, bytes_max
):
    messages = [Message("a", bytes([at % 256]) * size) for at, size in enumerate(sizes)]
    batches = list(encoding_split_batch(messages, bytes_max=bytes_max))
    assert [each for batch in batches for each in batch] == messages
    for batch in batches:
        size = len(batch_body(batch, ["K" * 32] * len(batch)))
        assert size <= sum(map(item_bytes, batch))
        if len(batch) > 1:
            check_batch(batch, bytes_max)
