"""Pages that cost time are kept for a while: looking must not slow what is looked at.

A page that took 1 ms to make is made anew after 4 ms; one that took 100 ms (10,000 connections, all
of them held) is shown for 400 ms. So all viewers together take at most ``SHARE`` of the loop,
however many they are and however often they ask, and a small broker's pages are always fresh.
"""

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SHARE: Final = 0.2


class Rationed(Generic[T]):
    """The latest page, made again when its age allows."""

    __slots__ = ("_cost", "_made_at", "_make", "_page", "_timer")

    def __init__(
        self, make: Callable[[], T], timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._make = make
        self._timer = timer
        self._page: T | None = None
        self._made_at = 0.0
        self._cost = 0.0

    def get(self) -> T:
        """The page, at most ``cost / SHARE`` seconds old."""
        began = self._timer()
        page = self._page
        if page is None or began - self._made_at >= self._cost * (1 / SHARE - 1):
            page = self._page = self._make()
            self._made_at = self._timer()
            self._cost = self._made_at - began
        return page
