"""Wait for something that another process brings about: ask again and again until a deadline.

    eventually(lambda: len(received) == 3)
    offset = eventually(lambda: admin.committed(group, queue), 10, "nothing was committed")

Not here: waiting without a clock (``penstock.testing.clock.ManualClock``).
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

POLL_SECONDS: Final = 0.01
SECONDS_MAX: Final = 20.0
"""Long enough for a machine that does eight other things; a green test waits a fraction of it."""

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = SECONDS_MAX, what: str = "") -> T:
    """The first true value of ``condition``; ``AssertionError`` with the last one in time."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > until:
            name = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"{name}: not within {seconds} s; last seen: {value!r}")
        time.sleep(POLL_SECONDS)
    return value
