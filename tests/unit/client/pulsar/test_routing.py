"""Which partition a message goes to; hashes are those of Java's and C++'s clients."""

import pytest

from penstock.client.pulsar.errors import InvalidUse
from penstock.client.pulsar.message import Message
from penstock.client.pulsar.routing import (
    BatchLimits,
    Hashing,
    PartitionRouter,
    Routing,
    chosen_by,
    java_string_hash,
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("key1", 3288498),
        ("key2", 3288499),
        ("hello", 99162322),
        # Its hashCode() is the least int of all: nothing but the sign bit.
        ("polygenelubricants", 0),
        ("ü", 252),
        ("\U0001f600", 31 * 0xD83D + 0xDE00),
    ],
)
def test_javas_string_hash_is_that_of_javas_hash_code(key, expected):
    assert java_string_hash(key) == expected


def java_by_hand(text):
    value = 0
    for letter in text:
        value = (value * 31 + ord(letter)) % 2**32
    return value & 0x7FFFFFFF


def test_a_long_key_wraps_as_an_int_of_java_does():
    text = "persistent://public/default/some-rather-long-key"
    assert java_string_hash(text) == java_by_hand(text)


def test_murmur3_is_that_of_pulsars_tests():
    # From the vectors that Pulsar's Java and C++ clients are tested with.
    assert Hashing.MURMUR3("k1") == 2110152746
    assert Hashing.MURMUR3("k2") == 1479966664
    assert Hashing.MURMUR3("key1") == 462881061
    assert Hashing.MURMUR3("key2") == 1936800180


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        ("a", 12), ("ab", 6), ("abc", 13), ("abcd", 2), ("abcdefgh", 14), ("abcdefghi", 14),
        ("abcdefghijklmnopqrstuvwxyz", 8), ("\u00fc", 4), ("key-7", 10),
    ],
)  # fmt: skip
def test_boosts_hash_is_that_of_the_cpp_client(key, partition):
    # Seen on a topic with 16 partitions, with pulsar-client 3.13.
    assert Hashing.BOOST(key) % 16 == partition


def test_a_key_always_has_the_same_partition():
    router = PartitionRouter(Routing.ROUND_ROBIN, Hashing.JAVA_STRING, limits=None, first=0)
    found = {router.choose("key1", 1, 5, 0) for _ in range(10)}
    assert found == {3288498 % 5}


def test_without_batches_every_message_goes_to_the_next_partition():
    router = PartitionRouter(Routing.ROUND_ROBIN, Hashing.JAVA_STRING, limits=None, first=0)
    assert [router.choose(None, 1, 3, 0) for _ in range(6)] == [1, 2, 0, 1, 2, 0]


def test_with_batches_the_partition_changes_when_a_batch_is_full():
    limits = BatchLimits(2, 100, 10)
    router = PartitionRouter(Routing.ROUND_ROBIN, Hashing.JAVA_STRING, limits=limits, first=0)
    assert [router.choose(None, 1, 3, 0) for _ in range(6)] == [0, 0, 1, 1, 2, 2]


def test_with_batches_bytes_and_time_change_it_too():
    limits = BatchLimits(100, 100, 10)
    router = PartitionRouter(Routing.ROUND_ROBIN, Hashing.JAVA_STRING, limits=limits, first=0)
    assert [router.choose(None, 60, 3, 0) for _ in range(3)] == [0, 1, 2]
    router = PartitionRouter(Routing.ROUND_ROBIN, Hashing.JAVA_STRING, limits=limits, first=0)
    assert [router.choose(None, 1, 3, at_ms) for at_ms in (0, 5, 11, 30)] == [0, 0, 1, 2]


def test_single_stays_with_one_partition_but_keys_have_their_own():
    router = PartitionRouter(Routing.SINGLE, Hashing.JAVA_STRING, limits=None, first=7)
    assert {router.choose(None, 1, 5, 0) for _ in range(4)} == {2}
    assert router.choose("a", 1, 5, 0) == 97 % 5


def test_one_partition_is_the_only_choice():
    router = PartitionRouter(Routing.ROUND_ROBIN, Hashing.MURMUR3, limits=None)
    assert router.choose("key", 1, 1, 0) == 0


@pytest.mark.parametrize("wrong", [3, -1, "1", None])
def test_a_function_that_chooses_no_partition_is_told_so(wrong):
    with pytest.raises(InvalidUse, match=r"chose partition .*; it must be 0 to 2"):
        chosen_by(lambda message, count: wrong, Message(b""), 3)
    assert chosen_by(lambda message, count: count - 1, Message(b""), 3) == 2
