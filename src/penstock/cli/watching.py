"""Asking again every second, until Ctrl-C: one screen on a terminal, one line a look elsewhere.

On a terminal each look is written over the one before and cut to the window, so nothing scrolls
and the last one stays; sentences are wrapped, tables are cut. A look that fails is told in the
place of its answer, so a broker that is started again is seen again; if the very first one fails,
the command ends as any other verb does.
"""

import contextlib
import shutil
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import click

from penstock.model.errors import PenstockError

LOOK_SECONDS: Final = 1.0

_CLEAR: Final = "\x1b[2J"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"


class Shown(Protocol):
    """Where looks go."""

    def show(self, lines: Sequence[str]) -> None:
        """The newest look; its first line is the answer."""
        ...

    def failed(self, sentence: str) -> None:
        """This time there was no answer."""
        ...


class Screen:
    """A terminal: every look in the place of the last."""

    def __init__(self) -> None:
        self._is_clear = False

    def show(self, lines: Sequence[str]) -> None:
        """Over what is there, cut to the window."""
        width, height = shutil.get_terminal_size()
        # The last row stays free: a newline in it would scroll.
        rows = [row for line in lines for row in _fitted(line, width)]
        shown = rows[: max(1, height - 1)]
        if len(rows) > len(shown):
            shown[-1] = f"... {len(rows) - len(shown) + 1} more lines; the window is full"[:width]
        start = _HOME if self._is_clear else _CLEAR + _HOME
        self._is_clear = True
        text = "".join(f"{row}{_REST_OF_LINE}\n" for row in shown)
        click.echo(start + text + _REST_OF_SCREEN, nl=False)

    def failed(self, sentence: str) -> None:
        """In the place of the answer."""
        self.show([sentence])


class Lines:
    """A file or a pipe: only the answer, on one line."""

    def show(self, lines: Sequence[str]) -> None:
        """One more line."""
        click.echo(f"{time.strftime('%H:%M:%S')}  {lines[0]}")

    def failed(self, sentence: str) -> None:
        """In the place of the answer."""
        self.show([sentence])


class Objects:
    """A program: every look is one line of JSON, and nothing else is on the output."""

    def show(self, lines: Sequence[str]) -> None:
        """One more object."""
        click.echo(lines[0])

    def failed(self, sentence: str) -> None:
        """Not JSON, so it goes elsewhere."""
        click.echo(sentence, err=True)


def watch(
    look: Callable[[], Sequence[str]],
    shown: Shown,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Look and show, again and again, until somebody interrupts."""
    with contextlib.suppress(KeyboardInterrupt):
        shown.show(look())
        while True:
            wait(LOOK_SECONDS)
            try:
                lines = look()
            except PenstockError as error:
                shown.failed(f"penstock: {error}")
            else:
                shown.show(lines)


def _fitted(line: str, width: int) -> list[str]:
    # Cells of a table are two blanks or more apart, words of a sentence one.
    if "  " in line.strip():
        return [line[:width]]
    return textwrap.wrap(line, width, subsequent_indent="  ") or [""]
