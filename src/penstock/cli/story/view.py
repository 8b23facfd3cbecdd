"""What is seen while the story goes on: a few lines that change in place, or plain lines.

On a terminal the board (rates, states, who waits for whom) is drawn over itself twice a second and
narration scrolls above it. Anywhere else there is one line per narration and one every few seconds,
so that a log of it can be read. Only ANSI sequences that every terminal knows.
"""

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Final, TextIO

import click

BOARD_S: Final = 0.5
PLAIN_S: Final = 3.0
_UP: Final = "\x1b[{}A"
_REST: Final = "\x1b[J"


class Screen:
    """Shows; knows nothing of what it shows."""

    def __init__(self, out: TextIO | None = None, *, is_silent: bool = False) -> None:
        self._out = out or sys.stdout
        self._is_silent = is_silent
        self._is_terminal = self._out.isatty() and not is_silent
        self._began = time.monotonic()
        self._drawn = 0
        self._due = 0.0
        self._plain_due = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() >= self._due

    @property
    def elapsed_s(self) -> float:
        """Since the story began."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """One line of narration."""
        if self._is_silent:
            return
        self._wipe()
        self._write(f"{self.elapsed_s:5.0f} s  {text}\n")

    def show(self, board: Sequence[str], plain: str, *, is_news: bool = False) -> None:
        """The board as it is now; ``plain`` is the same in one line, and news does not wait."""
        now = time.monotonic()
        self._due = now + BOARD_S
        if self._is_silent:
            return
        if not self._is_terminal:
            if is_news or now >= self._plain_due:
                self._plain_due = now + PLAIN_S
                self._write(f"{self.elapsed_s:5.0f} s  {plain}\n")
            return
        width = shutil.get_terminal_size().columns - 1
        self._wipe()
        # A line that wraps would be two, and the next wipe would leave one behind.
        self._write("".join(f"{_cut(each, width)}\n" for each in board))
        self._drawn = len(board)

    def end(self, lines: Sequence[str]) -> None:
        """The last words; they stay."""
        self._wipe()
        if not self._is_silent:
            self._write("".join(f"{each}\n" for each in lines))

    def _wipe(self) -> None:
        if self._drawn:
            self._write(_UP.format(self._drawn) + "\r" + _REST)
            self._drawn = 0

    def _write(self, text: str) -> None:
        click.echo(text, file=self._out, nl=False)


def _cut(line: str, width: int) -> str:
    """A line that is too long loses its colours with its end."""
    seen = click.unstyle(line)
    return line if len(seen) <= width else seen[:width]


class Rates:
    """Things per second, from counts that only grow."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int]] = {}

    def of(self, name: str, count: int) -> float:
        """Since this was asked the last time."""
        now = time.monotonic()
        at, before = self._before.get(name, (now, count))
        self._before[name] = (now, count)
        return (count - before) / (now - at) if now > at else 0.0
