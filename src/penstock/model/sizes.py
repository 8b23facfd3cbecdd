"""Numbers of bytes as people read them."""

from typing import Final

_STEPS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(count: int) -> str:
    """Bytes for people: 16 MiB, 1.5 GiB."""
    value = float(count)
    for step in _STEPS[:-1]:
        if value < 1024:
            return f"{value:.{0 if value == int(value) else 1}f} {step}"
        value /= 1024
    return f"{value:.1f} {_STEPS[-1]}"
