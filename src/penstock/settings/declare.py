"""How a setting is declared: a dataclass field with its meaning beside it.

``setting(default, "what it does")`` is all there is; ``load.py``, ``describe.py`` and the command
line read the metadata to build flags, environment names, ``penstock settings`` and the reference
page. A setting may have a flag of its own; every setting has ``--set part.name=value``.
"""

import re
from dataclasses import field
from typing import Any, Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


def setting(default: Any, doc: str, *, flag: str = "") -> Any:
    """A dataclass field that an operator may set; ``doc`` is shown wherever the setting is."""
    return field(default=default, metadata={"doc": doc, "flag": flag})


# ---- convert ------------------------------------------------------------------------------------
# Text from files, variables and flags -> the type a setting is declared with.
#
# Sizes may be written ``64MiB``, times ``10s``; a bare number is in the unit the setting's name
# ends with. Every wrong value is a ``ValueError`` that says what would be right; ``load.py`` adds
# which setting it was and where it came from.


_BYTES: Final = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024 * GIB,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}
_MILLISECONDS: Final = {"": 1, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")


def convert(name: str, kind: object, value: object) -> object:
    """``value`` as the type ``kind`` that the setting ``name`` has; ``ValueError`` when it is not.

    A TOML file gives numbers and booleans, everything else gives text: both are taken.
    """
    if kind is bool:
        return _boolean(value)
    if kind is int:
        return _whole_number(name, value)
    if kind is float:
        return _number(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError("it takes text")


def parse_bytes(text: str) -> int:
    """Bytes of ``64MiB``, ``1.5 GB`` or ``4096``."""
    return _scaled(text, _BYTES, "it takes a number of bytes, as 67108864, 64MiB or 1GiB")


def parse_ms(text: str) -> int:
    """Milliseconds of ``500``, ``500ms``, ``10s``, ``5min``, ``1h`` or ``2d``."""
    return _scaled(text, _MILLISECONDS, "it takes a time, as 500 (milliseconds), 10s, 5min or 1h")


def bytes_text(value: int) -> str:
    """The shortest exact way to write a number of bytes: ``64MiB``, else the plain number."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def is_size(name: str) -> bool:
    """True for the name of a setting that counts bytes."""
    return "bytes" in name.split("_")


def is_time(name: str) -> bool:
    """True for the name of a setting that counts milliseconds."""
    return "ms" in name.split("_")


def _whole_number(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("it cannot be negative")
        return value
    text = value.strip() if isinstance(value, str) else ""
    if is_size(name):
        return parse_bytes(text)
    if is_time(name):
        return parse_ms(text)
    digits = text.replace("_", "")
    if not digits.isdecimal():
        raise ValueError("it takes a whole number")
    return int(digits)


def _number(value: object) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if 0 <= number < float("inf"):
            return number
    raise ValueError("it takes a number, as 0.95")


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("it takes true or false")


def _scaled(text: str, factors: dict[str, int], advice: str) -> int:
    match = _AMOUNT.fullmatch(text.strip().replace("_", ""))
    factor = factors.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(advice)
    return round(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor
