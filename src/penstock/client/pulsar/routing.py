"""Which partition a message goes to.

A message with a key goes to the partition of its key's hash, always. Without a key:

    Routing.ROUND_ROBIN   the next partition after every batch; without batches, after every message
    Routing.SINGLE        one partition, chosen at random when the producer is opened
    a function            ``choose(message, partitions)`` gives the number, for every message

Hashes are those of Pulsar's other clients, so that all of them put a key into the same partition:

    Hashing.JAVA_STRING   the default of Java's client, and here. Java hashes UTF-16 units and C++
                          bytes, which differ for keys that are not ASCII; here it is Java's
    Hashing.MURMUR3       the other one that all have
    Hashing.BOOST         the default of C++, and the only one of Python's official client (3.13)

Not here: partitions of which there are more than yesterday (``producer.py``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from struct import iter_unpack
from typing import Final

from penstock.client.pulsar.errors import InvalidUse
from penstock.client.pulsar.message import Message
from penstock.model.murmur import murmur3_31

_POSITIVE: Final = 0x7FFFFFFF
KEYS_CACHED_MAX: Final = 16_384
"""Keys whose hash is remembered."""

Choose = Callable[[Message, int], int]
"""Of a message and the number of partitions: the one it goes to."""


class Routing(Enum):
    """Where messages without a key go."""

    ROUND_ROBIN = "round robin"
    SINGLE = "single"


class Hashing(Enum):
    """How keys become partitions."""

    JAVA_STRING = "Java's string hash"
    MURMUR3 = "murmur3"
    BOOST = "Boost's hash"

    def __call__(self, key: str) -> int:
        """0 to 2^31 - 1."""
        if self is Hashing.MURMUR3:
            return murmur3_31(key.encode())
        return boost_hash(key) if self is Hashing.BOOST else java_string_hash(key)


@lru_cache(maxsize=KEYS_CACHED_MAX)
def java_string_hash(text: str) -> int:
    """``String.hashCode()`` without its sign bit."""
    value = 0
    for (unit,) in iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        value = value * 31 + unit & 0xFFFFFFFF
    return value & _POSITIVE


_BITS: Final = 2**64 - 1
_STEP: Final = 0x9E3779B97F4A7C15
_FACTOR: Final = _STEP * _STEP & _BITS


@lru_cache(maxsize=KEYS_CACHED_MAX)
def boost_hash(text: str) -> int:
    """What C++'s client has from Boost 1.81 and later, without its sign bit.

    Eight bytes at a time are multiplied to 128 bits, whose halves are folded into one.
    """
    data = text.encode()
    whole = len(data) & ~7
    weight = _fold(_STEP)
    value = weight ^ len(data)
    # Of the rest that is shorter, the missing bytes count as zeros; an empty rest counts, too.
    for at in range(0, whole + 1, 8):
        weight = weight + _STEP & _BITS
        value ^= _fold(int.from_bytes(data[at : at + 8], "little") + weight & _BITS)
    return _fold(value + weight & _BITS) & _POSITIVE


def _fold(number: int) -> int:
    product = number * _FACTOR
    return product & _BITS ^ product >> 64


class BatchLimits:
    """When a batch is full: what the round robin counts by, too."""

    __slots__ = ("bytes_max", "delay_ms", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int, delay_ms: float) -> None:
        self.messages_max: Final = messages_max
        self.bytes_max: Final = bytes_max
        self.delay_ms: Final = delay_ms


class PartitionRouter:
    """The choices of one producer for messages that nobody chose for; on the client's thread."""

    def __init__(
        self,
        routing: Routing,
        hashing: Hashing,
        *,
        limits: BatchLimits | None,
        first: int | None = None,
    ) -> None:
        """``limits`` of its batches, if it makes any; ``first`` partition, else a random one."""
        self._routing = routing
        self._hash = hashing
        self._limits = limits
        self._at = secrets.randbits(16) if first is None else first
        self._messages = 0
        self._bytes = 0
        self._since_ms = 0

    def choose(self, key: str | None, size_bytes: int, partitions: int, now_ms: int) -> int:
        """The partition of one message."""
        if partitions == 1:
            return 0
        if key is not None:
            return self._hash(key) % partitions
        if self._routing is Routing.ROUND_ROBIN:
            self._step(size_bytes, now_ms)
        return self._at % partitions

    def _step(self, size_bytes: int, now_ms: int) -> None:
        limits = self._limits
        if limits is None:
            self._at += 1
            return
        is_full = (
            self._messages >= limits.messages_max
            or self._bytes + size_bytes > limits.bytes_max
            or now_ms - self._since_ms > limits.delay_ms
        )
        if is_full:
            # The batch that the last ones went into is on its way: begin one elsewhere.
            self._at += bool(self._messages)
            self._messages = self._bytes = 0
            self._since_ms = now_ms
        self._messages += 1
        self._bytes += size_bytes


def chosen_by(choose: Choose, message: Message, partitions: int) -> int:
    """What a function of the user's says; raises ``InvalidUse``."""
    chosen = choose(message, partitions)
    if not isinstance(chosen, int) or not 0 <= chosen < partitions:
        raise InvalidUse(
            f"the routing function chose partition {chosen!r}; it must be 0 to {partitions - 1}"
        )
    return chosen
