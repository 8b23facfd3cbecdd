"""``penstock queues|exchanges|bindings|connections``: AMQP's objects of a running broker.

Asked of RabbitMQ's management API, which wants a user: ``--user`` and ``--password``, else the
environment, else guest. JSON rows are the API's own, with all of their fields.

Not here: topics and groups, which every protocol has (``topics.py``, ``groups.py``).
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from penstock.cli.endpoint import takes_endpoint
from penstock.cli.http_client import (
    Column,
    address,
    as_json,
    path_of,
    print_json,
    print_rows,
    send,
)
from penstock.model.errors import NotFound, PenstockError

PAGE_ROWS: Final = 500

_QUEUES: Final[tuple[Column, ...]] = (
    ("QUEUE", lambda row: row["name"]),
    ("VHOST", lambda row: row["vhost"]),
    ("READY", lambda row: f"{row['messages_ready']:,}"),
    ("UNACKED", lambda row: f"{row['messages_unacknowledged']:,}"),
    ("CONSUMERS", lambda row: f"{row['consumers']}"),
    ("DURABLE", lambda row: _yes(row["durable"])),
    ("STATE", lambda row: row["state"]),
)
_EXCHANGES: Final[tuple[Column, ...]] = (
    ("EXCHANGE", lambda row: row["name"] or "(default)"),
    ("VHOST", lambda row: row["vhost"]),
    ("TYPE", lambda row: row["type"]),
    ("DURABLE", lambda row: _yes(row["durable"])),
    ("INTERNAL", lambda row: _yes(row["internal"])),
)
_BINDINGS: Final[tuple[Column, ...]] = (
    ("SOURCE", lambda row: row["source"] or "(default)"),
    ("DESTINATION", lambda row: row["destination"]),
    ("KIND", lambda row: row["destination_type"]),
    ("KEY", lambda row: row["routing_key"] or "-"),
    ("VHOST", lambda row: row["vhost"]),
)
_CONNECTIONS: Final[tuple[Column, ...]] = (
    ("CONNECTION", lambda row: row["name"]),
    ("NAME", lambda row: row["user_provided_name"] or "-"),
    ("USER", lambda row: row["user"]),
    ("VHOST", lambda row: row["vhost"]),
    ("STATE", lambda row: row["state"]),
    ("CHANNELS", lambda row: f"{row['channels']}"),
)


def takes_user(verb: Callable[..., None]) -> Callable[..., None]:
    """As whom the management API is asked."""
    for name in ("password", "user"):
        verb = click.option(
            f"--{name}",
            default="guest",
            show_default=True,
            envvar=f"PENSTOCK_{name.upper()}",
            show_envvar=True,
            help=f"{name.capitalize()} of AMQP.",
        )(verb)
    return verb


@click.group("queues", short_help="AMQP queues: list.")
def queues() -> None:
    """See the AMQP queues of a running broker."""


@click.group("exchanges", short_help="AMQP exchanges: list.")
def exchanges() -> None:
    """See the AMQP exchanges of a running broker."""


@click.group("bindings", short_help="AMQP bindings: list.")
def bindings() -> None:
    """See the AMQP bindings of a running broker."""


@click.group("connections", short_help="AMQP connections: list, close.")
def connections() -> None:
    """See the AMQP connections of a running broker, and close them."""


def _add_list(group: click.Group, columns: Sequence[Column]) -> None:
    """``list`` is the same for all of them: rows that contain a text, of one vhost or all."""

    @group.command("list", help=f"List {group.name} in which CONTAINS occurs.")
    @click.argument("contains", default="")
    @click.option("--vhost", default="", help="Only of this virtual host; empty = all.")
    @as_json
    @takes_user
    @takes_endpoint
    def list_(contains: str, *, vhost: str, is_json: bool, **where: Any) -> None:
        rows = [
            row
            for row in _all_rows(str(group.name), vhost, where)
            if any(contains in shown(row) for _, shown in columns)
        ]
        if is_json:
            print_json(rows)
        else:
            print_rows(columns, rows)


_add_list(queues, _QUEUES)
_add_list(exchanges, _EXCHANGES)
_add_list(bindings, _BINDINGS)
_add_list(connections, _CONNECTIONS)


@connections.command("close")
@click.argument("connection")
@click.option("--reason", default="closed with `penstock connections close`", help="Told to it.")
@takes_user
@takes_endpoint
def close(connection: str, reason: str, **where: Any) -> None:
    """Close CONNECTION, named as `connections list` shows it (host:port -> host:port)."""
    path = path_of("connections", connection)
    _manage("DELETE", path, where, {"x-reason": quote(reason, safe=" '`:,.!?-_/()")})
    click.echo(f"connection '{connection}' closed")


def _all_rows(collection: str, vhost: str, where: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for page in range(1, 1 << 20):
        paging = {"page": str(page), "page_size": str(PAGE_ROWS)}
        if collection == "connections" and vhost:
            path = path_of("vhosts") + f"/{quote(vhost, safe='')}/connections"
            path += f"?page={page}&page_size={PAGE_ROWS}"
        else:
            path = path_of(collection, vhost, **paging)
        answer = _manage("GET", path, where)
        rows += answer["items"]
        if page >= answer["page_count"]:
            break
    return rows


def _manage(
    method: str, path: str, where: dict[str, Any], headers: dict[str, str] | None = None
) -> Any:
    """The answer of the management API; a refusal is raised in its words."""
    place = {name: where[name] for name in ("data", "endpoint")}
    login = b64encode(f"{where['user']}:{where['password']}".encode()).decode()
    asking = {"authorization": f"Basic {login}", **(headers or {})}
    status, answer = send(method, path, at=address(**place), headers=asking)
    if status in (200, 204):
        return answer
    reason = answer.get("reason") or answer.get("error") if isinstance(answer, dict) else answer
    if status == 401:
        raise PenstockError(
            f"user '{where['user']}' may not ask ({reason}); give --user and --password of one "
            "with the tag management"
        )
    if status == 404:
        missing = "such connection" if method == "DELETE" else "such virtual host, or no AMQP port"
        raise NotFound(
            f"there is no {missing} here ({reason}); the verb `list` shows what there is"
        )
    raise PenstockError(f"the broker refused: {reason}")


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
