"""Payloads are compressed so that every reader of Pulsar's can inflate them."""

import pytest

from penstock.client.pulsar import compression
from penstock.client.pulsar.compression import Compression, check, compress
from penstock.client.pulsar.errors import InvalidUse
from penstock.wire.pulsar.facts import inflate

TEXT = b"the same again, " * 200


@pytest.mark.parametrize("how", [each for each in Compression if each is not Compression.NONE])
def test_what_is_compressed_comes_back(how):
    data = compress(TEXT, how)
    assert len(data) < len(TEXT) / 2
    assert inflate(data, how.value, len(TEXT), len(TEXT)) == TEXT


@pytest.mark.parametrize("how", [each for each in Compression if each is not Compression.NONE])
def test_nothing_can_be_compressed_too(how):
    check(how)
    assert inflate(compress(b"", how), how.value, 0, 10) == b""


def test_a_missing_library_is_told_before_anything_is_sent(monkeypatch):
    monkeypatch.delitem(compression._CODECS, Compression.ZSTD)
    with pytest.raises(
        InvalidUse, match=r"ZSTD needs the library cramjam.*or use Compression\.ZLIB"
    ):
        check(Compression.ZSTD)
