"""``penstock why``: who is slow, who waits for whom and why, asked of a running broker."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import click

from penstock.cli.endpoint import takes_endpoint
from penstock.cli.flow_lines import Page, name_lines, narrowed, why_lines
from penstock.cli.http_client import address, as_json, path_of, print_json, send
from penstock.model.errors import PenstockError

OK: Final = 200


@click.command("why", short_help="Why is it stuck? Who is slow, and who waits for whom.")
@click.argument("name", default="")
@click.option("--watch", "is_watched", is_flag=True, help="Look again every second, until Ctrl-C.")
@as_json
@takes_endpoint
def command(name: str, *, is_watched: bool, is_json: bool, **where: Any) -> None:
    """Say why the broker is stuck: who is slow, who waits for whom, since when.

    With NAME only what concerns connections, queues, subscriptions and consumers whose name
    contains it, held or not.

    Without a terminal --watch writes one line a second; with --json one object a line.

    Exit code 0: asked and answered, whatever the answer is. 1: no broker answers, or nothing has
    that name. 2: wrong usage.
    """
    if is_watched:
        watch(lambda: _look(name, is_json, where), Objects() if is_json else _shown())
    elif is_json:
        page = flow_page(**where)
        print_json(narrowed(page, name) if name else page)
    else:
        answer, *rest = _look(name, is_json, where)
        click.echo("\n".join([click.style(answer, bold=True), *rest]))


def flow_page(**where: Any) -> Page:
    """What ``/api/flow`` of the broker that is meant says now."""
    host, port = address(**where)
    status, answer = send("GET", path_of("flow"), at=(host, port))
    if status == OK and isinstance(answer, dict) and "answer" in answer:
        return answer
    said = answer.get("error", "") if isinstance(answer, dict) else ""
    raise PenstockError(
        f"what answers at {host}:{port} has no flow map (status {status}{said and f', {said}'}); "
        "it is no Penstock, or one that lets only its own machine ask; give the HTTP port that "
        "`penstock up` printed, as `penstock why --endpoint 127.0.0.1:15672`"
    )


def _look(name: str, is_json: bool, where: dict[str, Any]) -> Sequence[str]:
    page = flow_page(**where)
    narrow = narrowed(page, name) if name else page
    if is_json:
        return [json.dumps(narrow)]
    lines = name_lines(page, narrow) if name else why_lines(page)
    return [_printable(line) for line in lines]


def _printable(line: str) -> str:
    """Clients choose names, and none of them may move the cursor of who looks."""
    return "".join(each if each.isprintable() else "?" for each in line)


def _shown() -> Screen | Lines:
    return Screen() if sys.stdout.isatty() else Lines()


# ---- watching -----------------------------------------------------------------------------------
# Asking again every second, until Ctrl-C: one screen on a terminal, one line a look elsewhere.
#
# On a terminal each look is written over the one before and cut to the window, so nothing scrolls
# and the last one stays; sentences are wrapped, tables are cut. A look that fails is told in the
# place of its answer, so a broker that is started again is seen again; if the very first one fails,
# the command ends as any other verb does.


LOOK_SECONDS: Final = 1.0

_CLEAR: Final = "\x1b[2J"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"


class WatchOutput(Protocol):
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
        click.echo(f"{time.strftime('%H:%M:%S')}  {lines[0]}")

    def failed(self, sentence: str) -> None:
        """In the place of the answer."""
        self.show([sentence])


class Objects:
    """A program: every look is one line of JSON, and nothing else is on the output."""

    def show(self, lines: Sequence[str]) -> None:
        click.echo(lines[0])

    def failed(self, sentence: str) -> None:
        """Not JSON, so it goes elsewhere."""
        click.echo(sentence, err=True)


def watch(
    look: Callable[[], Sequence[str]],
    shown: WatchOutput,
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
