"""Bodies that were compressed by their sender: zlib always, LZ4 and ZSTD where a library is there.

Bits 8 to 10 of sysFlag name the method (0: zlib as older clients wrote it, 1: LZ4, 2: ZSTD,
3: zlib).

Invariant: a small body never becomes more than ``BODY_BYTES_MAX``, whatever it claims.
Not here: when a producer compresses (``producer/encoding.py``).
"""

import zlib
from importlib import import_module
from typing import Final

from penstock.client.errors import BodyUnreadable

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Brokers take 4 MiB compressed by default; 16 times that is text at its most repetitive."""

_LZ4: Final = 1
_ZSTD: Final = 2
_LIBRARIES: Final = {_LZ4: ("LZ4", "lz4.frame", "lz4"), _ZSTD: ("ZSTD", "zstandard", "zstandard")}


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as it was before compression."""
    method = sys_flag >> 8 & 7
    if method in _LIBRARIES:
        return _by_library(body, method)
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(body, BODY_BYTES_MAX)
    except zlib.error as problem:
        raise BodyUnreadable(f"body of {len(body)} bytes is no zlib data: {problem}") from None
    if not unpacker.eof:
        what = "has more than" if unpacker.unconsumed_tail else "ends before its end; limit"
        raise BodyUnreadable(f"body of {len(body)} bytes {what} {BODY_BYTES_MAX} bytes")
    return plain


def _by_library(body: bytes, method: int) -> bytes:
    name, module, package = _LIBRARIES[method]
    try:
        library = import_module(module)
    except ImportError:
        raise BodyUnreadable(
            f"body is compressed with {name}; install the package {package} to read it"
        ) from None
    try:
        if method == _LZ4:
            unpacker = library.LZ4FrameDecompressor()
            plain = bytes(unpacker.decompress(body, max_length=BODY_BYTES_MAX))
        else:
            limit = BODY_BYTES_MAX
            plain = bytes(library.ZstdDecompressor().decompress(body, max_output_size=limit))
    except Exception as problem:
        raise BodyUnreadable(f"body of {len(body)} bytes is no {name} data: {problem}") from None
    return plain
