"""Compressed registrations as RocketMQ's brokers write them."""

import struct
import zlib

import pytest

from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.packed_registration import unpack_registration

VERSION = b'{"counter":3,"stateVersion":0,"timestamp":1700000000000}'
BYTES_MAX = 10_000


def piece(data):
    return struct.pack(">i", len(data)) + data


def packed(*topics, version=VERSION, count=None, rest=b""):
    count = len(topics) if count is None else count
    plain = piece(version) + struct.pack(">i", count) + b"".join(map(piece, topics))
    return zlib.compress(plain + piece(b"[]") + rest)


def test_topics_and_version_are_read():
    body = unpack_registration(
        packed(b"orders 4 8 6 SINGLE_TAG", b"TBW102 8 8 7 SINGLE_TAG"), BYTES_MAX
    )
    table = body.topics.topic_config_table
    orders = table["orders"]
    assert list(table) == ["orders", "TBW102"]
    assert (orders.read_queue_nums, orders.write_queue_nums, orders.perm) == (4, 8, 6)
    assert orders.topic_filter_type == "SINGLE_TAG"
    assert (body.topics.data_version.counter, body.topics.data_version.timestamp) == (
        3,
        1700000000000,
    )


def test_attributes_and_what_follows_since_5_0_are_passed_over():
    topic = b'orders 4 4 6 SINGLE_TAG {"+message.type":"NORMAL OR NOT"}'
    body = unpack_registration(packed(topic, rest=struct.pack(">i", 0)), BYTES_MAX)
    assert body.topics.topic_config_table["orders"].read_queue_nums == 4


def test_json_that_was_deflated_as_a_whole_is_read():
    body = unpack_registration(
        zlib.compress(
            b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"topicName":"t"}}}}'
        ),
        BYTES_MAX,
    )
    assert list(body.topics.topic_config_table) == ["t"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no deflate",
        zlib.compress(b""),
        zlib.compress(b"\x00\x00"),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(struct.pack(">i", 1 << 30)),
        packed(version=b"[]"),
        packed(count=1 << 30),
        packed(b"orders 4 4 6"),
        packed(b"orders four 4 6 SINGLE_TAG"),
        packed(b"orders 4 4 6 SINGLE_TAG")[:-12],
    ],
    ids=str,
)
def test_what_cannot_be_read_is_malformed(data):
    with pytest.raises(Malformed):
        unpack_registration(data, BYTES_MAX)


def test_what_inflates_beyond_the_limit_is_not_read():
    with pytest.raises(Malformed, match="more than 10000 bytes"):
        unpack_registration(zlib.compress(bytes(BYTES_MAX + 1)), BYTES_MAX)
