"""One simulated file: what the process reads back, and what the medium will hold after a power cut.

The cache is one bytearray; the medium agrees with a prefix of it (files are append-only), except
after an unsynced truncation, when it still holds more. See ``storage.py`` for the whole disk.
"""

import random
from typing import Final

HOLE_BYTES: Final = 512
"""Granularity in which unsynced bytes may be missing after a power cut: one sector."""


class Node:
    """A file's bytes as the process sees them, and how far the medium agrees."""

    __slots__ = ("content", "doomed", "durable_bytes", "shadow")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable_bytes = 0
        # What the medium holds when the cache was cut below it; None while it is a prefix.
        self.shadow: bytes | None = None
        # Ranges that read back well and will not survive a power cut, synced or not.
        self.doomed: list[tuple[int, int]] = []

    def truncate(self, size: int) -> None:
        """Cut the cache; the medium may still hold more."""
        if size < self.durable_bytes and self.shadow is None:
            self.shadow = bytes(self.content[: self.durable_bytes])
        self.durable_bytes = min(self.durable_bytes, size)
        del self.content[size:]
        self.doomed = [(a, min(b, size)) for a, b in self.doomed if a < size]

    def sync(self) -> None:
        """The medium holds what the cache holds."""
        self.durable_bytes = len(self.content)
        self.shadow = None

    def sync_failed(self) -> None:
        """The kernel forgot that these bytes are dirty: no later sync writes them."""
        if self.durable_bytes < len(self.content):
            self.doomed.append((self.durable_bytes, len(self.content)))

    def after_power_cut(self, rng: random.Random) -> "Node":
        """What is found when power is back."""
        survivor = Node()
        written, synced = len(self.content), self.durable_bytes
        fate = rng.randrange(4) if written > synced or self.shadow is not None else 0
        if fate == 0 and self.shadow is not None:
            survivor.content = bytearray(self.shadow)
        elif fate == 0:
            survivor.content = self.content[:synced]
        elif fate == 1:
            survivor.content = bytearray(self.content)
        else:
            survivor.content = self.content[: rng.randint(synced, written)]
            if fate == 3:
                _punch(survivor.content, synced, rng)
        for start, end in self.doomed:
            if rng.random() < 0.5:
                stop = min(end, len(survivor.content))
                survivor.content[start:stop] = bytes(max(0, stop - start))
        survivor.sync()
        return survivor


def _punch(content: bytearray, start: int, rng: random.Random) -> None:
    """Zero some of the sectors since the last sync: they reach the medium in any order."""
    for at in range(start, len(content), HOLE_BYTES):
        if rng.random() < 0.3:
            end = min(at + HOLE_BYTES, len(content))
            content[at:end] = bytes(end - at)
