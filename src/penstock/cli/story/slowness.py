"""Makes Spark's transformation slow on demand: a file says what one row costs.

Runs in Spark's Python workers, which are started by Spark and can be reached by a file only.
"""

import time
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.2
_seen: dict[str, tuple[float, float]] = {}
"""Path -> (when it was read, seconds per row); one entry per story."""


def row_seconds(path: str) -> float:
    """What the file says, looked at now and then."""
    now = time.monotonic()
    read_at, seconds = _seen.get(path, (0.0, 0.0))
    if now - read_at > LOOK_S:
        try:
            seconds = float(Path(path).read_text() or 0)
        except (OSError, ValueError):
            seconds = 0.0
        _seen[path] = (now, seconds)
    return seconds


def set_row_seconds(path: Path, seconds: float) -> None:
    """Tell all workers."""
    draft = path.with_suffix(".new")
    draft.write_text(str(seconds))
    draft.replace(path)


class Amount:
    """Multiplies price and quantity, which may take its time."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, cents: int, quantity: int) -> int:
        """The amount of one order."""
        seconds = row_seconds(self._path)
        if seconds:
            time.sleep(seconds)
        return cents * quantity
