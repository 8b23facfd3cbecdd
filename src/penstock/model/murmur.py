"""MurmurHash3 x86 32-bit, seed 0: the hash by which Pulsar's brokers and clients split keys.

Public-domain algorithm of Austin Appleby. Pure Python costs a microsecond or two for a short key,
so results are cached: keys repeat, that is what keys are for.
"""

from functools import lru_cache
from struct import iter_unpack
from typing import Final

_MASK: Final = 0xFFFFFFFF
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593

KEYS_CACHED_MAX: Final = 16_384
"""Keys whose hash is remembered; about 2 MiB of short keys."""


@lru_cache(maxsize=KEYS_CACHED_MAX)
def murmur3_31(key: bytes) -> int:
    """The hash without its sign bit: 0 .. 2^31 - 1."""
    return murmur3_32(key) & 0x7FFFFFFF


def murmur3_32(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, unsigned."""
    value = 0
    whole = len(data) & ~3
    for (block,) in iter_unpack("<I", data[:whole]):
        value ^= _scramble(block)
        value = ((value << 13) | (value >> 19)) & _MASK
        value = (value * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        value ^= _scramble(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _MASK
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _MASK
    return value ^ (value >> 16)


def _scramble(block: int) -> int:
    block = (block * _C1) & _MASK
    block = ((block << 15) | (block >> 17)) & _MASK
    return (block * _C2) & _MASK
