"""``penstock why``: who is slow, who waits for whom and why, asked of a running broker."""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from penstock.cli.asking import address, as_json, path_of, print_json, send, takes_address
from penstock.cli.flow_chains import Page, narrowed
from penstock.cli.flow_lines import name_lines, why_lines
from penstock.cli.watching import Lines, Objects, Screen, watch
from penstock.model.errors import PenstockError

OK: Final = 200


@click.command("why", short_help="Why is it stuck? Who is slow, and who waits for whom.")
@click.argument("name", default="")
@click.option("--watch", "is_watched", is_flag=True, help="Look again every second, until Ctrl-C.")
@as_json
@takes_address
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
    if status == OK and isinstance(answer, dict) and "diagnosis" in answer:
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
