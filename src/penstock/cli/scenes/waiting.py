"""Waiting in a scene that runs beside the broker's loop; on the loop it is ``House.until``."""

import time
from collections.abc import Callable

POLL_SECONDS = 0.02


def comes_true(condition: Callable[[], bool], seconds_max: float) -> bool:
    """Wait for a condition; False when it did not come true in time."""
    end = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True
