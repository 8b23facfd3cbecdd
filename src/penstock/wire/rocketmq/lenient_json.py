"""JSON bodies as real peers write them: nulls, quoted numbers, fastjson's keys.

Standard JSON of the right shape is read directly. What that refuses is tried again: nulls are
taken for absent, and keys that are no strings (old fastjson writes ``{0:"host:port"}`` and
even ``{{"queueId":1}:5}``) become strings of the same text. C++ ends bodies with a newline.

Time and memory are linear in the size of the body, which is bounded.

Not here: the shapes (``bodies.py``, ``route_bodies.py``).
"""

import re
from typing import Any, Final, TypeVar

import msgspec

from penstock.wire.rocketmq.command import Malformed

BODY_BYTES_MAX: Final = 256 * 1024
"""Largest JSON body a broker reads: a heartbeat of 1,000 subscriptions. A client that asks a
large cluster for its topics passes more."""
ODD_SHARE: Final = 4
"""Rewriting keys costs a microsecond a token: only a fourth of the limit may need it (50 ms)."""
NESTING_MAX: Final = 64

T = TypeVar("T")

_TOKEN: Final = re.compile(rb'"(?:[^"\\]+|\\.)*+"?|[{}\[\]:,]|[^\s"{}\[\]:,]++', re.DOTALL)
"""A string without its end reaches to the end of the text: looking for it again would be slow."""
_BRACKETS: Final = {b"}": b"{", b"]": b"["}
_ENCODE: Final = msgspec.json.Encoder().encode
_DECODERS: Final[dict[Any, Any]] = {}
"""One per shape; shapes are ours, peers cannot add any."""


def decode_body(data: bytes, kind: type[T], *, bytes_max: int = BODY_BYTES_MAX) -> T:
    """The body of a command; raises ``Malformed`` naming the place that is wrong."""
    if len(data) > bytes_max:
        raise Malformed(f"{kind.__name__} of {len(data)} bytes, limit {bytes_max}")
    try:
        return _decoder(kind).decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        return msgspec.convert(
            _without_nulls(_parse(data, bytes_max // ODD_SHARE)), kind, strict=False
        )
    except (ValueError, RecursionError) as problem:
        raise Malformed(f"{kind.__name__} cannot be read: {problem}") from None


def encode_body(body: object) -> bytes:
    """Standard JSON: every client known reads it."""
    return _ENCODE(body)


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    found = _DECODERS.get(kind)
    if found is None:
        found = _DECODERS[kind] = msgspec.json.Decoder(kind, strict=False)
    return found


def _parse(data: bytes, odd_bytes_max: int) -> Any:
    text = data.strip(b"\0 \r\n\t").decode("utf-8", "replace")
    try:
        return msgspec.json.decode(text)
    except ValueError:
        if len(data) > odd_bytes_max:
            raise
        return msgspec.json.decode(standard_json(text.encode()))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value if each is not None]
    return value


def standard_json(data: bytes) -> bytes:
    """The same JSON with every key a string: numbers are quoted, objects become their text."""
    out: list[bytes] = []
    open_brackets: list[bytes] = []
    key_at, key_depth = -1, 0
    """Where in ``out`` the object begins that is a key, and how deep; -1: none is open."""
    wants_key = False
    for match in _TOKEN.finditer(data):
        token = match.group()
        if token in (b"{", b"["):
            if len(open_brackets) >= NESTING_MAX:
                raise Malformed(f"JSON nested deeper than {NESTING_MAX}")
            if wants_key:
                # Each level would double the backslashes; no peer has more than one.
                if key_at >= 0:
                    raise Malformed("JSON object as key inside a key")
                key_at, key_depth = len(out), len(open_brackets)
            open_brackets.append(token)
            out.append(token)
            wants_key = token == b"{"
        elif token in _BRACKETS:
            if not open_brackets or open_brackets.pop() != _BRACKETS[token]:
                raise Malformed("JSON brackets do not match")
            out.append(token)
            if key_at >= 0 and key_depth == len(open_brackets):
                out[key_at:] = [_ENCODE(b"".join(out[key_at:]).decode("utf-8", "replace"))]
                key_at = -1
            wants_key = False
        elif token == b",":
            out.append(token)
            wants_key = bool(open_brackets) and open_brackets[-1] == b"{"
        elif token == b":":
            out.append(token)
            wants_key = False
        else:
            is_bare_key = wants_key and not token.startswith(b'"')
            out.append(b'"%b"' % token if is_bare_key else token)
            wants_key = False
    return b"".join(out)
