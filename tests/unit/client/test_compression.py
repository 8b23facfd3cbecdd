"""Compressed bodies."""

import zlib

import pytest

from penstock.client import compression as module
from penstock.client.compression import decompress
from penstock.client.errors import BodyUnreadable


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
