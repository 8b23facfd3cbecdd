"""Asking a running broker over its HTTP port, and how its refusals are told.

``@takes_endpoint`` gives a verb ``--endpoint`` and ``--data`` (``endpoint.py`` has the rule);
``asked(**where)`` sends the request.
Every failure is one sentence: no broker there, no HTTP port, or what the broker said.
"""

import http.client
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import click

from penstock.cli.endpoint import HTTP, find_endpoint
from penstock.model.errors import NotFound, PenstockError, SettingsError
from penstock.model.ids import size_text

ANSWER_SECONDS_MAX: Final = 15.0


as_json = click.option("--json", "is_json", is_flag=True, help="The answer as JSON.")
in_space = click.option("--space", default="", help="Namespace or virtual host; empty = default.")


def address(data: Path | None, endpoint: str) -> tuple[str, int]:
    """Host and HTTP port of the broker that is meant (``endpoint.py``)."""
    endpoint = find_endpoint(HTTP, endpoint, data)
    host, _, port = endpoint.removeprefix("http://").rstrip("/").rpartition(":")
    if not host or not port.isdecimal():
        raise SettingsError(f"endpoint {endpoint!r} is not host:port, as 127.0.0.1:15672")
    return host.strip("[]"), int(port)


def send(
    method: str,
    path: str,
    order: Any = None,
    *,
    at: tuple[str, int],
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """Status and JSON of an answer; raises when no broker answers there."""
    host, port = at
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS_MAX)
    body = None if order is None else json.dumps(order)
    try:
        given = {"content-type": "application/json", **(headers or {})}
        connection.request(method, path, body, given)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise PenstockError(
            f"no broker answers at {host}:{port} ({error}); start one with `penstock up`, or give "
            "the HTTP port of one that runs as --endpoint"
        ) from None
    finally:
        connection.close()


def asked(
    method: str, path: str, order: dict[str, Any] | None = None, *, data: Path | None, endpoint: str
) -> Any:
    """The JSON of a good answer; a refusal is raised in the broker's words."""
    status, answer = send(method, path, order, at=address(data, endpoint))
    if status == 200:
        return answer
    sentence = answer.get("error", f"status {status}") if isinstance(answer, dict) else str(status)
    raise (NotFound if status == 404 else PenstockError)(sentence)


def path_of(collection: str, name: str = "", **query: str) -> str:
    """``/api/COLLECTION/NAME?query``, quoted; empty values of the query are left out."""
    given = {key: value for key, value in query.items() if value}
    path = f"/api/{collection}" + (f"/{quote(name, safe='')}" if name else "")
    return path + (f"?{urlencode(given)}" if given else "")


def all_rows(collection: str, *, contains: str, is_hidden: bool, **where: Any) -> list[Any]:
    """Every row of a paged listing."""
    rows: list[Any] = []
    while True:
        query = {"contains": contains, "hidden": "1" if is_hidden else "", "offset": str(len(rows))}
        page = asked("GET", path_of(collection, **query), **where)
        rows += page["rows"]
        if not page["rows"] or len(rows) >= page["total"]:
            return rows


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def tell(answer: Any, is_json: bool) -> None:
    if is_json:
        print_json(answer)
    else:
        say(answer["done"])


def say(line: str) -> None:
    """Print a line. Clients choose names, and none of them may move the cursor of who looks."""
    click.echo(printable(line))


def printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


Column = tuple[str, Callable[[dict[str, Any]], str]]
"""Its head, and what it shows of a row."""

LAG_COLUMNS: Final[tuple[Column, ...]] = (
    ("LAG", lambda row: f"{row['lag_messages']:,}"),
    ("BYTES", lambda row: size_text(row["lag_bytes"])),
    ("BEHIND", lambda row: age_text(row["lag_seconds"])),
    ("UNACKED", lambda row: f"{row['unacked']:,}"),
)
GROUP_COLUMNS: Final[tuple[Column, ...]] = (
    *LAG_COLUMNS,
    ("CONSUMERS", lambda row: f"{row['consumers']}"),
    ("MODE", lambda row: row["mode"] or "-"),
)


def print_rows(columns: Sequence[Column], rows: Iterable[dict[str, Any]]) -> None:
    """A table of what the broker answered."""
    head, *lines = rows_as_lines(columns, rows)
    click.echo(click.style(head, bold=True))
    for line in lines:
        click.echo(line)


def rows_as_lines(columns: Sequence[Column], rows: Iterable[dict[str, Any]]) -> list[str]:
    """The same for who prints it with other things: text to the left, figures to the right."""
    head = tuple(head for head, _ in columns)
    return _table_lines(
        head, [tuple(printable(shown(row)) for _, shown in columns) for row in rows]
    )


def _table_lines(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = []
    for number, row in enumerate([head, *rows]):
        cells = [
            cell.ljust(width) if not _is_figure(cell, number) else cell.rjust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _is_figure(cell: str, row: int) -> bool:
    return row > 0 and cell[:1].isdigit()


def age_text(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
