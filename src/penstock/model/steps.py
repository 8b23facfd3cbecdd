"""Work that is made in steps, so that others have their turns in between.

A generator says after each part how many steps that was, about as much work as a look at one topic
each; whoever runs it decides after how many of them everybody else comes (``server/view.py``).
"""

from collections.abc import Generator
from typing import Final, TypeVar, cast

T = TypeVar("T")
Steps = Generator[float, None, T]

COUNTER_LOOK: Final = 0.12
"""Steps that a look at a counter is."""


A_QUEUE: Final = 0.03
A_RECORD: Final = 0.12
"""Steps that a look at one queue of very many is, and one at the entry of a record in it."""


def finished(steps: Steps[T]) -> T:
    """What comes of steps that are all made at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)
