"""Compression of payloads, as every Pulsar client reads it.

zlib is Python's own; LZ4 (a raw block), ZSTD and SNAPPY (raw) come from the library ``cramjam``,
which has no wheel for some machines: ``check`` says so before anything is sent.

Not here: inflating, with its bounds (``wire/pulsar/facts.py``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final

from penstock.client.pulsar.errors import InvalidUse


class Compression(Enum):
    """How a producer compresses payloads; the values are Pulsar's."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


_CODECS: Final[dict[Compression, Callable[[bytes], bytes]]] = {
    Compression.NONE: bytes,
    Compression.ZLIB: zlib.compress,
}
with suppress(ImportError):
    from cramjam import lz4, snappy, zstd

    _CODECS[Compression.LZ4] = lambda data: bytes(lz4.compress_block(data, store_size=False))
    _CODECS[Compression.ZSTD] = lambda data: bytes(zstd.compress(data))
    _CODECS[Compression.SNAPPY] = lambda data: bytes(snappy.compress_raw(data))


def compress(payload: bytes, how: Compression) -> bytes:
    """Raises ``InvalidUse`` where the library is missing."""
    codec = _CODECS.get(how)
    if codec is None:
        raise InvalidUse(
            f"compression {how.name} needs the library cramjam, which is not installed; install it"
            f" or use Compression.ZLIB"
        )
    return codec(payload)


def check(how: Compression) -> None:
    """Raises ``InvalidUse`` where the library is missing."""
    compress(b"", how)
