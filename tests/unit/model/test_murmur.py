"""The hash that Pulsar's clients expect; the values are the published test vectors."""

import pytest

from penstock.model.murmur import murmur3_31, murmur3_32


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"\0\0\0\0", 0x2362F9DE),
        (b"\0\0\0", 0x85F0B427),
        (b"\0\0", 0x30F4C306),
        (b"\0", 0x514E28B7),
        (b"\xff\xff\xff\xff", 0x76293B50),
        (b"test", 0xBA6BD213),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_published_vectors(data, expected):
    assert murmur3_32(data) == expected
    assert murmur3_31(data) == expected & 0x7FFFFFFF
