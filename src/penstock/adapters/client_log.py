"""Lines about clients in the log, for every protocol.

A peer decides how many there are and what stands in them. So they are folded, whatever it says is
made harmless, and nobody hands a password to them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.adapters.contract import Peer
    from penstock.model.clock import Clock

FOLD_LINES_MAX: Final = 10
FOLD_MS: Final = 10_000
"""So many lines of one kind about one address in so much time; the rest is told as a number."""
FOLDED_MAX: Final = 256
"""Kinds and addresses with lines of their own; those that come then share theirs."""
LOGGED_TEXT_MAX: Final = 300
"""Characters of a field that a client had a hand in."""


class ClientLog:
    """Who came, who went, who was refused and why; a task of the timers.

    The first lines of a kind about an address are written as they are; those behind them are
    counted, and the number is told when ``FOLD_MS`` are over. Bound: ``FOLDED_MAX`` entries.
    """

    def __init__(self, clock: Clock, logger: logging.Logger) -> None:
        self._clock: Final = clock
        self._logger: Final = logger
        self._folds: dict[tuple[str, str], LineFold] = {}

    def say(self, level: int, message: str, peer: Peer, **fields: object) -> None:
        """One line; texts in ``fields`` may come from the client as they are."""
        now_ms = self._clock.monotonic_ms()
        if self._folds and now_ms >= next(iter(self._folds.values())).until_ms:
            self.due(now_ms)
        key = (message, peer.host)
        if key not in self._folds and len(self._folds) >= FOLDED_MAX:
            key = (message, "other addresses")
        fold = self._folds.get(key)
        if fold is None:
            fold = self._folds[key] = LineFold(level, now_ms + FOLD_MS)
        fold.lines += 1
        if fold.lines <= FOLD_LINES_MAX:
            self._logger.log(level, message, extra={"peer": str(peer), **_harmless(fields)})

    def next_deadline_ms(self) -> int | None:
        """When the oldest number is to be told; entries are in the order of their time."""
        fold = next(iter(self._folds.values()), None)
        return None if fold is None else fold.until_ms

    def due(self, now_ms: int) -> None:
        over = [key for key, fold in self._folds.items() if now_ms >= fold.until_ms]
        for key in over:
            fold = self._folds.pop(key)
            if fold.lines > FOLD_LINES_MAX:
                message, host = key
                extra = {"count": fold.lines - FOLD_LINES_MAX, "host": host}
                self._logger.log(fold.level, f"{message}: more of the same", extra=extra)


class LineFold:
    """Lines of one kind about one address, in one stretch of time."""

    __slots__ = ("level", "lines", "until_ms")

    def __init__(self, level: int, until_ms: int) -> None:
        self.level: Final = level
        self.lines = 0
        self.until_ms: Final = until_ms


def _harmless(fields: dict[str, object]) -> dict[str, object]:
    """No line break, escape or half character can come from a client into a line."""
    return {
        name: _printable(value) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _printable(text: str) -> str:
    text = text[:LOGGED_TEXT_MAX]
    return "".join([each if each.isprintable() else ascii(each)[1:-1] for each in text])
