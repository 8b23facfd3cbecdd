"""Durations, sizes, numbers and times as people write them in options: "5s", "64m", "200 ms".

Not here: which option means what (``options.py``).
"""

import re
from datetime import UTC, datetime
from typing import Final

_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_SECONDS: Final = {
    "ms": 0.001, "millisecond": 0.001, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60,
    "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip
_BYTES: Final = {
    "": 1, "b": 1, "k": 2**10, "kb": 2**10, "kib": 2**10, "m": 2**20, "mb": 2**20, "mib": 2**20,
    "g": 2**30, "gb": 2**30, "gib": 2**30, "t": 2**40, "tb": 2**40, "tib": 2**40,
}  # fmt: skip
_TRUTHS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def seconds(text: str) -> float:
    """``5s``, ``200ms``, ``1.5 min``; a plain number is milliseconds, as Spark reads it."""
    number, unit = _parts(text)
    if not unit:
        return number / 1000
    factor = _SECONDS.get(unit) or _SECONDS.get(unit.removesuffix("s"))
    if factor is None:
        raise ValueError(f"{text!r} is no duration; write it like 5s, 200ms or 15m")
    return number * factor


def size(text: str) -> int:
    """``64m``, ``1 GiB``, or plain bytes; units are powers of 1024."""
    number, unit = _parts(text)
    if unit not in _BYTES:
        raise ValueError(f"{text!r} is no size; write it like 64m, 1g or plain bytes")
    return int(number * _BYTES[unit])


def count(text: str) -> int:
    """A whole number from 1 on; underscores may stand in it."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{text!r} is no whole number from 1 on")
    return number


def truth(text: str) -> bool:
    """True or false."""
    try:
        return _TRUTHS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def wall_ms(text: str) -> int:
    """Milliseconds since 1970, or ISO 8601; without a zone it is UTC."""
    if text.strip().isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is no time; give milliseconds since 1970 or 2026-01-31T12:00:00Z"
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _parts(text: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} does not begin with a number, or something stands behind it")
    return float(found[1]), found[2].lower()
