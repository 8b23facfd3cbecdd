"""``penstock queues|exchanges|bindings|connections|policies``: AMQP's objects of a running broker.

Asked of RabbitMQ's management API, which wants a user: ``--user`` and ``--password``, else the
environment, else guest. JSON rows are the API's own, with all of their fields.

Not here: topics and groups, which every protocol has (``topics.py``, ``groups.py``).
"""

import json
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
    say,
    send,
)
from penstock.model.errors import NotFound, PenstockError, SettingsError

PAGE_ROWS: Final = 500


def _definition(definition: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(definition.items())) or "-"


def _policy_names(row: dict[str, Any]) -> str:
    names = [row["policy"], row["operator_policy"] and f"{row['operator_policy']} (operators)"]
    return " + ".join([name for name in names if name]) or "-"


_QUEUES: Final[tuple[Column, ...]] = (
    ("QUEUE", lambda row: row["name"]),
    ("VHOST", lambda row: row["vhost"]),
    ("READY", lambda row: f"{row['messages_ready']:,}"),
    ("UNACKED", lambda row: f"{row['messages_unacknowledged']:,}"),
    ("CONSUMERS", lambda row: f"{row['consumers']}"),
    ("DURABLE", lambda row: _yes(row["durable"])),
    ("STATE", lambda row: row["state"]),
    ("POLICY", _policy_names),
    ("IN EFFECT", lambda row: _definition(row["effective_policy_definition"])),
)
_EXCHANGES: Final[tuple[Column, ...]] = (
    ("EXCHANGE", lambda row: row["name"] or "(default)"),
    ("VHOST", lambda row: row["vhost"]),
    ("TYPE", lambda row: row["type"]),
    ("DURABLE", lambda row: _yes(row["durable"])),
    ("INTERNAL", lambda row: _yes(row["internal"])),
    ("POLICY", _policy_names),
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


_POLICIES: Final[tuple[Column, ...]] = (
    ("POLICY", lambda row: row["name"]),
    ("VHOST", lambda row: row["vhost"]),
    ("OF", lambda row: row["of"]),
    ("PATTERN", lambda row: row["pattern"]),
    ("APPLY TO", lambda row: row["apply-to"]),
    ("PRIORITY", lambda row: f"{row['priority']}"),
    ("DEFINITION", lambda row: _definition(row["definition"])),
)
APPLY_TO: Final = (
    "all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams",
)  # fmt: skip
NAMES_SHOWN: Final = 10
"""Of the objects for which a policy is in effect; the count is exact."""


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
    told = {"x-reason": quote(reason, safe=" '`:,.!?-_/()")}
    _manage("DELETE", path, where, told, what="such connection")
    click.echo(f"connection '{connection}' closed")


# ---- policies -----------------------------------------------------------------------------------


@click.group("policies", short_help="AMQP policies: list, show, set, clear.")
def policies() -> None:
    """See and change the policies of a running broker: arguments of many queues and exchanges."""


def _takes_policy(verb: Callable[..., None]) -> Callable[..., None]:
    """Which policy is meant."""
    options = (
        click.option("--operator", "is_operator", is_flag=True, help="One of operators."),
        click.option("--vhost", default="/", show_default=True, help="Its virtual host."),
        click.argument("name"),
    )
    for option in options:
        verb = option(verb)
    return verb


@policies.command("list")
@click.argument("contains", default="")
@click.option("--vhost", default="", help="Only of this virtual host; empty = all.")
@as_json
@takes_user
@takes_endpoint
def list_policies(contains: str, *, vhost: str, is_json: bool, **where: Any) -> None:
    """List policies in which CONTAINS occurs, those of operators as well."""
    rows = [
        {"of": who, **row}
        for who, collection in (("users", "policies"), ("operators", "operator-policies"))
        for row in _all_rows(collection, vhost, where)
    ]
    rows = [row for row in rows if any(contains in shown(row) for _, shown in _POLICIES)]
    if is_json:
        print_json(rows)
    else:
        print_rows(_POLICIES, rows)


@policies.command("show")
@_takes_policy
@as_json
@takes_user
@takes_endpoint
def show(name: str, *, vhost: str, is_operator: bool, is_json: bool, **where: Any) -> None:
    """Show policy NAME, and for which queues and exchanges it is in effect."""
    row = _manage("GET", _policy_path(vhost, name, is_operator), where, what=f"policy '{name}'")
    field = "operator_policy" if is_operator else "policy"
    for kind in ("queues", "exchanges"):
        objects = _all_rows(kind, vhost, where)
        row[kind] = [each["name"] for each in objects if each[field] == name]
    if is_json:
        print_json(row)
        return
    for key, value in row.items():
        if key in ("queues", "exchanges"):
            shown = ", ".join([each or "(default)" for each in value[:NAMES_SHOWN]])
            more = ", ..." if len(value) > NAMES_SHOWN else ""
            say(f"{key}: {len(value)}" + (f" ({shown}{more})" if value else ""))
        elif key == "ignored":
            _say_ignored(value)
        else:
            say(f"{key}: {_definition(value) if key == 'definition' else value}")


@policies.command("set")
@_takes_policy
@click.argument("pattern")
@click.argument("definition")
@click.option("--priority", default=0, show_default=True, help="The highest is in effect.")
@click.option(
    "--apply-to", type=click.Choice(APPLY_TO), default="all", show_default=True, help="What."
)
@takes_user
@takes_endpoint
def set_policy(
    name: str, pattern: str, definition: str, *, vhost: str, is_operator: bool, priority: int,
    apply_to: str, **where: Any,
) -> None:  # fmt: skip
    """Set policy NAME for all whose names PATTERN is found in; DEFINITION is JSON.

    At most one policy, and one of operators, is in effect for a queue or exchange. Of numbers in
    arguments and policies the smallest counts.
    """
    try:
        wanted = json.loads(definition)
    except ValueError as problem:
        raise SettingsError(f"DEFINITION is no JSON ({problem}); as '{_EXAMPLE}'") from None
    if not isinstance(wanted, dict):
        raise SettingsError(f"DEFINITION is no JSON object; as '{_EXAMPLE}'")
    path = _policy_path(vhost, name, is_operator)
    order = {"pattern": pattern, "definition": wanted, "priority": priority, "apply-to": apply_to}
    _manage("PUT", path, where, order=order, what=f"virtual host '{vhost}'")
    say(f"policy '{name}' set")
    _say_ignored(_manage("GET", path, where, what=f"policy '{name}'")["ignored"])


@policies.command("clear")
@_takes_policy
@takes_user
@takes_endpoint
def clear(name: str, *, vhost: str, is_operator: bool, **where: Any) -> None:
    """Delete policy NAME; what it set is as it was declared."""
    path = _policy_path(vhost, name, is_operator)
    _manage("DELETE", path, where, what=f"policy '{name}' in virtual host '{vhost}'")
    say(f"policy '{name}' cleared")


_EXAMPLE: Final = '{"max-length": 1000}'


def _policy_path(vhost: str, name: str, is_operator: bool) -> str:
    collection = "operator-policies" if is_operator else "policies"
    return f"{path_of(collection, vhost)}/{quote(name, safe='')}"


def _say_ignored(keys: list[str]) -> None:
    if keys:
        say(f"without meaning here: {', '.join(keys)}")


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
    method: str,
    path: str,
    where: dict[str, Any],
    headers: dict[str, str] | None = None,
    *,
    order: dict[str, Any] | None = None,
    what: str = "such virtual host, or no AMQP port",
) -> Any:
    """The answer of the management API; a refusal is raised in its words."""
    place = {name: where[name] for name in ("data", "endpoint")}
    login = b64encode(f"{where['user']}:{where['password']}".encode()).decode()
    asking = {"authorization": f"Basic {login}", **(headers or {})}
    status, answer = send(method, path, order, at=address(**place), headers=asking)
    if status in (200, 201, 204):
        return answer
    reason = answer.get("reason") or answer.get("error") if isinstance(answer, dict) else answer
    if status == 401:
        raise PenstockError(
            f"user '{where['user']}' may not ask ({reason}); give --user and --password of one "
            "with the tag management"
        )
    if status == 404:
        raise NotFound(f"there is no {what} here ({reason}); the verb `list` shows what there is")
    raise PenstockError(f"the broker refused: {reason}")


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
