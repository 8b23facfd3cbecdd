"""The trace of a simulation: every event as one line of text, hashed as it comes.

Same seed, same hash: a line holds names and numbers only, never an address, a hash of an object or
the order of a set. The last lines are kept for the report of a failure.
"""

from collections import deque
from hashlib import sha256
from typing import Final

SHOWN_MAX: Final = 30
"""Events shown when a law is broken."""


class Trace:
    """What happened, in order."""

    __slots__ = ("_hash", "count", "last", "step")

    def __init__(self) -> None:
        self.last: deque[str] = deque(maxlen=SHOWN_MAX)
        self.count = 0
        self.step = 0
        self._hash = sha256()

    def note(self, line: str) -> None:
        """One event."""
        self.count += 1
        self.last.append(f"{self.step:5} {line}")
        self._hash.update(line.encode())

    @property
    def digest(self) -> str:
        """Hash of every event so far."""
        return self._hash.hexdigest()
