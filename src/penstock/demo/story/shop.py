"""The shop: places orders at a steady pace and keeps book of what became of each.

An order has a number that is never used twice, so whatever is stored can be traced to one answer.
A refusal makes the shop pause for a moment, as a sender should that is told to slow down.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

ITEMS: Final = ("teapot", "cup", "saucer", "kettle", "strainer")
TICK_S: Final = 0.02
PAUSE_S: Final = 0.1
"""After a refusal."""


class Shop:
    """Sends from all publishers, from ``open`` to ``close``."""

    def __init__(self, publishers: list[OrderPublisher], per_second: int) -> None:
        self.placed = 0
        self.amounts: list[int] = []
        """What each order comes to, by its number."""
        self.confirmed: set[int] = set()
        self.unknown: set[int] = set()
        self.refused = 0
        self.last_reason = ""
        self.sent_by: dict[str, int] = {}
        """Name of a publisher -> orders it sent."""
        self.per_second = per_second
        """Orders it places, may be changed at any time."""
        self.publishers: Final = publishers
        self._lock = threading.Lock()
        self._pause_until = 0.0
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shop", daemon=True)
        self._random = random.Random(5)

    @property
    def outstanding(self) -> int:
        """Orders without an answer yet."""
        return self.placed - len(self.confirmed) - len(self.unknown) - self.refused

    def open(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Place no more; answers still come."""
        self._is_closing.set()

    def close(self) -> None:
        """Place no more, wait for the answers, and leave."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join()
        for publisher in self.publishers:
            publisher.close()

    def _run(self) -> None:
        due = 0.0
        last = time.monotonic()
        while not self._is_closing.wait(TICK_S):
            now = time.monotonic()
            # What was missed while the window was full is not made up for.
            due = min(due + (now - last) * self.per_second, 1 + self.per_second / 5)
            last = now
            while due >= 1 and not self._is_closing.is_set() and now >= self._pause_until:
                due -= 1
                if not self._place():
                    break

    def _place(self) -> bool:
        """Send one order by a publisher that has room, in turn; False when none has."""
        number = self.placed
        first = number % len(self.publishers)
        free = [
            each for each in (*self.publishers[first:], *self.publishers[:first]) if each.has_room
        ]
        if not free:
            return False
        self.placed += 1
        item = self._random.choice(ITEMS)
        quantity, cents = self._random.randint(1, 5), self._random.randint(100, 5000)
        order = {"id": number, "item": item, "quantity": quantity, "cents": cents}

        self.amounts.append(quantity * cents)

        def on_fate(fate: SendOutcome, reason: str) -> None:
            self._note(number, fate, reason)

        free[0].send(f"order-{number}", json.dumps(order).encode(), on_fate)
        self.sent_by[free[0].name] = self.sent_by.get(free[0].name, 0) + 1
        return True

    def _note(self, number: int, fate: SendOutcome, reason: str) -> None:
        with self._lock:
            if fate is SendOutcome.CONFIRMED:
                self.confirmed.add(number)
            elif fate is SendOutcome.UNKNOWN:
                self.unknown.add(number)
                self.last_reason = reason
            else:
                self.refused += 1
                self.last_reason = reason
                self._pause_until = time.monotonic() + PAUSE_S


class SendOutcome(Enum):
    """What became of an order."""

    CONFIRMED = "confirmed"
    REFUSED = "refused"
    """The broker said so before it stored anything."""
    UNKNOWN = "unknown"
    """No answer came; it may have been stored."""


OnFate = Callable[[SendOutcome, str], None]
"""Told once per order, with the broker's reason for a refusal."""


class OrderPublisher(Protocol):
    """Sends orders by one protocol."""

    name: str
    title: str
    """For people."""

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
