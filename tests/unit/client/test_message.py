"""Messages to send and received ones."""

import zlib

import pytest

from penstock.client import message as module
from penstock.client.errors import BodyUnreadable, InvalidMessage
from penstock.client.message import (
    Message,
    ReceivedMessage,
    SendResult,
    SendStatus,
    decompress,
    received_messages,
)
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.message_id import encode_host
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import (
    BatchItem,
    StoredMessage,
    SysFlag,
    encode_stored,
    join_batch,
)

QUEUE = QueueRef("orders", "a", 3)


def stored(topic="orders", body=b"hello", **fields):
    properties = fields.pop("properties", {})
    return StoredMessage(
        topic=topic,
        body=body,
        properties=format_properties(properties),
        queue_id=3,
        queue_offset=17,
        commit_log_offset=4096,
        store_host=encode_host("10.0.0.1", 10911),
        **fields,
    )


def test_keys_may_be_one_or_many():
    assert Message("t", b"", keys="one").keys == ("one",)
    assert Message("t", b"", keys=["a", "b"]).keys == ("a", "b")


def test_a_body_is_bytes_or_can_be_seen_as_bytes():
    assert Message("t", bytearray(b"x")).body == b"x"
    with pytest.raises(InvalidMessage, match="not str; encode it"):
        Message("t", "text")


def test_properties_are_a_map_of_its_own():
    given = {"a": "1"}
    message = Message("t", b"", properties=given)
    message.properties["b"] = "2"
    assert given == {"a": "1"}


def test_a_received_message_shows_what_was_stored():
    message = ReceivedMessage(
        stored(properties={"TAGS": "new", "KEYS": "k1 k2", "UNIQ_KEY": "ABC", "mine": "x"}), QUEUE
    )
    assert (message.topic, message.body, message.tag) == ("orders", b"hello", "new")
    assert message.keys == ("k1", "k2")
    assert (message.offset, message.queue, message.message_id) == (17, QUEUE, "ABC")
    assert message.properties["mine"] == "x"
    assert message.property_value("mine") == "x"
    assert message.store_host == ("10.0.0.1", 10911)
    assert message.stored_bytes == 5
    assert message.ordering_key is None


def test_without_a_unique_key_the_offset_id_is_its_id():
    message = ReceivedMessage(stored(), QUEUE)
    assert message.message_id == message.offset_message_id == "0A00000100002A9F0000000000001000"


def test_a_retry_shows_the_topic_it_was_first_sent_to():
    retry = stored("%RETRY%readers", properties={"RETRY_TOPIC": "orders"}, reconsume_times=2)
    message = ReceivedMessage(retry, QUEUE._replace(topic="%RETRY%readers"))
    assert (message.topic, message.stored.topic) == ("orders", "%RETRY%readers")
    assert message.reconsume_times == 2


def test_a_compressed_body_is_unpacked_once_when_looked_at():
    packed = zlib.compress(b"x" * 10_000)
    message = ReceivedMessage(stored(body=packed, sys_flag=int(SysFlag.COMPRESSED)), QUEUE)
    assert message.stored_bytes == len(packed)
    assert message.body == b"x" * 10_000
    assert message.body is message.body


def test_the_body_of_an_answer_is_a_list_of_messages():
    body = encode_stored(stored(body=b"1")) + encode_stored(stored(body=b"2"))
    assert [each.body for each in received_messages(body, QUEUE)] == [b"1", b"2"]


@pytest.mark.parametrize("is_packed", [False, True])
def test_an_inner_batch_is_taken_apart(is_packed):
    batch = join_batch([BatchItem(b"1", b"TAGS\x01a\x02"), BatchItem(b"2")])
    flag = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    if is_packed:
        batch, flag = zlib.compress(batch), flag | SysFlag.COMPRESSED
    found = received_messages(encode_stored(stored(body=batch, sys_flag=int(flag))), QUEUE)
    assert [(each.body, each.offset, each.tag) for each in found] == [
        (b"1", 17, "a"),
        (b"2", 18, None),
    ]


def test_only_one_status_is_fully_well():
    ok = SendResult(SendStatus.SEND_OK, "m", "o", QUEUE, 1)
    assert ok.is_ok
    assert not SendResult(SendStatus.FLUSH_DISK_TIMEOUT, "m", "o", QUEUE, 1).is_ok


# ---- compression --------------------------------------------------------------------------------
# Compressed bodies.


@pytest.mark.parametrize("method", [0, 3])
def test_zlib_is_read_under_both_its_numbers(method):
    assert decompress(zlib.compress(b"hello"), 1 | method << 8) == b"hello"


@pytest.mark.parametrize("body", [b"", b"nonsense", zlib.compress(b"hello")[:-3]])
def test_what_is_no_zlib_is_refused(body):
    with pytest.raises(BodyUnreadable):
        decompress(body, 1)


def test_a_small_body_does_not_become_a_huge_one(monkeypatch):
    monkeypatch.setattr(module, "BODY_BYTES_MAX", 1000)
    assert len(decompress(zlib.compress(b"x" * 1000), 1)) == 1000
    with pytest.raises(BodyUnreadable, match="1000"):
        decompress(zlib.compress(b"x" * 1001), 1)


@pytest.mark.parametrize(("method", "name"), [(1, "lz4"), (2, "zstandard")])
def test_a_missing_library_is_named(monkeypatch, method, name):
    def missing(_):
        raise ImportError

    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(BodyUnreadable, match=f"install the package {name}"):
        decompress(b"x", 1 | method << 8)
