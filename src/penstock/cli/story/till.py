"""A till: what the shop knows of the place from which it sends orders by one protocol."""

from collections.abc import Callable
from enum import Enum
from typing import Protocol


class Fate(Enum):
    """What became of an order."""

    CONFIRMED = "confirmed"
    REFUSED = "refused"
    """The broker said so before it stored anything."""
    UNKNOWN = "unknown"
    """No answer came; it may have been stored."""


OnFate = Callable[[Fate, str], None]
"""Told once per order, with the broker's reason for a refusal."""


class Till(Protocol):
    """Sends orders by one protocol."""

    name: str

    @property
    def has_room(self) -> bool:
        """False while it has too many orders without an answer to take one more."""
        ...

    def send(self, key: str, body: bytes, on_fate: OnFate) -> None:
        """Send one order; blocks only while the client's own window is full."""
        ...

    def close(self) -> None:
        """Wait for answers under way and leave."""
        ...
