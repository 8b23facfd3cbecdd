"""How many peers may be connected, and who was turned away and why.

Protocol listeners share one set of places, HTTP has its own, so that it answers in a flood. The
number of places never reaches into the file handles that the log needs (T9): a flood of peers is
refused long before a segment cannot be opened.
"""

import resource
from collections import Counter
from typing import Final

from penstock.settings.broker import ListenerSettings

RESERVED_FILES: Final = 96
"""Handles kept for log segments, indexes, SQLite and ourselves when the process may have few."""

TOO_MANY: Final = "too many connections"
TOO_MANY_OF_ADDRESS: Final = "too many from one address"
NO_FILES: Final = "no file handles"


class Places:
    """A bounded number of connections, also bounded per address."""

    __slots__ = ("_per_address", "_per_address_max", "accepted", "places_max", "refused", "taken")

    def __init__(self, places_max: int, *, per_address_max: int) -> None:
        self.places_max = places_max
        self._per_address_max = per_address_max
        self._per_address: Counter[str] = Counter()
        self.taken = 0
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        """Reason -> how many; the reasons are the constants of this module."""

    def take(self, address: str) -> bool:
        """Take a place; False when there is none, counted. Pair with ``leave``."""
        if self.taken >= self.places_max:
            self.refused[TOO_MANY] += 1
            return False
        if self._per_address[address] >= self._per_address_max:
            self.refused[TOO_MANY_OF_ADDRESS] += 1
            return False
        self.taken += 1
        self._per_address[address] += 1
        self.accepted += 1
        return True

    def leave(self, address: str) -> None:
        """Give the place back."""
        self.taken -= 1
        self._per_address[address] -= 1
        if self._per_address[address] <= 0:
            del self._per_address[address]


def protocol_places(settings: ListenerSettings) -> Places:
    """Places of all protocol listeners together, within what the process may open."""
    room = files_max() - RESERVED_FILES - settings.http_connections_max
    return Places(
        max(1, min(settings.connections_max, room)),
        per_address_max=settings.connections_per_address_max,
    )


def http_places(settings: ListenerSettings) -> Places:
    """Places of HTTP, kept apart from those of the protocols."""
    places = settings.http_connections_max
    return Places(places, per_address_max=places)


def files_max() -> int:
    """Files this process may have open, after raising the soft limit as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # macOS has a hard limit that it does not grant
            pass
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
