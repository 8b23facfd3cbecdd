"""Bloom bits: which bits stand for a name, and whether a bit map can hold it.

A map of ``bits`` is computed for a message from the names of all readers whose filter it matches. A
reader whose bits are not all set is surely not among them; the other way round it may be chance, by
design about once in five when the map holds as many names as it is made for.

A map is an integer of ``bits`` bits; bit 0 is position 0. The positions are fixed by arithmetic
that other programs share (Kirsch and Mitzenmacher over 64 bits of murmur3): see the golden test.

Not here: maps of messages (``bit_maps.py``).
"""

import math
from dataclasses import dataclass, field
from typing import Final

ERROR_PERCENT: Final = 20
"""Chance of a wrong "maybe" when the map is as full as planned."""

NAMES_PLANNED: Final = 32
"""Readers with a filter on one topic for which the map is sized."""

_MASK_64: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomShape:
    """How many bits a map has, and how many of them stand for one name."""

    error_percent: int = ERROR_PERCENT
    names_planned: int = NAMES_PLANNED
    hashes: int = field(init=False)
    bits: int = field(init=False)
    """A multiple of 8."""

    def __post_init__(self) -> None:
        if not 1 <= self.error_percent < 100:
            raise ValueError(f"error_percent is {self.error_percent}; it must be 1 to 99")
        if self.names_planned < 1:
            raise ValueError(f"names_planned is {self.names_planned}; it must be at least 1")
        halvings = math.log2(100 / self.error_percent)
        object.__setattr__(self, "hashes", math.ceil(halvings))
        bits = math.ceil(self.names_planned * halvings * math.log2(math.e))
        object.__setattr__(self, "bits", -(-bits // 8) * 8)

    @property
    def all_set(self) -> int:
        """The map that can hold every name."""
        return (1 << self.bits) - 1

    def positions(self, name: str) -> list[int]:
        """The bits that stand for a name, in order of their making."""
        low, _ = murmur3_128(name.encode())
        first, second = _signed(low), _signed(low >> 32)
        made = []
        for turn in range(1, self.hashes + 1):
            combined = _signed(first + turn * second)
            made.append((~combined if combined < 0 else combined) % self.bits)
        return made

    def mask(self, name: str) -> int:
        """The map that holds this name and nothing else."""
        mask = 0
        for position in self.positions(name):
            mask |= 1 << position
        return mask


def murmur3_128(data: bytes) -> tuple[int, int]:
    """murmur3, 128 bits, x64 variant, seed 0: (low, high) 64 bits."""
    low = high = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        low ^= _mixed_low(int.from_bytes(data[at : at + 8], "little"))
        low = (_rotated(low, 27) + high) * 5 + 0x52DCE729 & _MASK_64
        high ^= _mixed_high(int.from_bytes(data[at + 8 : at + 16], "little"))
        high = (_rotated(high, 31) + low) * 5 + 0x38495AB5 & _MASK_64
    low ^= _mixed_low(int.from_bytes(data[whole : whole + 8], "little"))
    high ^= _mixed_high(int.from_bytes(data[whole + 8 :], "little"))
    low ^= len(data)
    high ^= len(data)
    low = low + high & _MASK_64
    high = high + low & _MASK_64
    low, high = _finished(low), _finished(high)
    low = low + high & _MASK_64
    return low, high + low & _MASK_64


def _mixed_low(word: int) -> int:
    return _rotated(word * _C1 & _MASK_64, 31) * _C2 & _MASK_64


def _mixed_high(word: int) -> int:
    return _rotated(word * _C2 & _MASK_64, 33) * _C1 & _MASK_64


def _rotated(word: int, count: int) -> int:
    return (word << count | word >> (64 - count)) & _MASK_64


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK_64
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK_64
    return word ^ word >> 33


def _signed(word: int) -> int:
    word &= 0xFFFF_FFFF
    return word - (1 << 32) if word >> 31 else word
