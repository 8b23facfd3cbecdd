"""``penstock topics``: make, list, look at and delete topics of a running broker."""

from typing import Any, Final

import click

from penstock.cli.asking import (
    GROUP_COLUMNS,
    Column,
    all_rows,
    as_json,
    asked,
    in_space,
    path_of,
    print_json,
    print_rows,
    takes_address,
    tell,
)
from penstock.model.sizes import size_text

_TOPICS: Final[tuple[Column, ...]] = (
    ("TOPIC", lambda row: row["name"]),
    ("SPACE", lambda row: row["space"] or "-"),
    ("QUEUES", lambda row: f"{row['queues']}"),
    ("MESSAGES", lambda row: f"{row['messages']:,}"),
    ("BYTES", lambda row: size_text(row["bytes"])),
    ("GROUPS", lambda row: f"{row['groups']}"),
)
_QUEUES: Final[tuple[Column, ...]] = (
    ("QUEUE", lambda row: f"{row['queue']}"),
    ("FIRST", lambda row: f"{row['min_offset']:,}"),
    ("END", lambda row: f"{row['end_offset']:,}"),
    ("BYTES", lambda row: size_text(row["bytes"])),
)


@click.group("topics", short_help="Create, list, show and delete topics.")
def command() -> None:
    """Create, list, show and delete topics of a running broker."""


@command.command("create")
@click.argument("topic")
@click.option("--queues", default=4, show_default=True, type=click.IntRange(1, 1024))
@in_space
@as_json
@takes_address
def create(topic: str, queues: int, space: str, is_json: bool, **where: Any) -> None:
    """Create TOPIC; it is an error when it exists."""
    order = {"name": topic, "space": space, "queues": queues}
    tell(asked("POST", path_of("topics"), order, **where), is_json)


@command.command("list")
@click.argument("contains", default="")
@click.option("--all", "is_hidden", is_flag=True, help="Internal ones, too (%RETRY%, %DLQ% ...).")
@as_json
@takes_address
def list_(contains: str, is_hidden: bool, is_json: bool, **where: Any) -> None:
    """List topics whose name contains CONTAINS."""
    rows = all_rows("topics", contains=contains, is_hidden=is_hidden, **where)
    if is_json:
        print_json(rows)
        return
    print_rows(_TOPICS, rows)


@command.command("show")
@click.argument("topic")
@in_space
@as_json
@takes_address
def show(topic: str, space: str, is_json: bool, **where: Any) -> None:
    """Show TOPIC queue by queue, and how far behind each group is."""
    found = asked("GET", path_of("topics", topic, space=space), **where)
    if is_json:
        print_json(found)
        return
    click.echo(
        f"{topic}: {found['queues']} queues, {found['messages']:,} messages, "
        f"{size_text(found['bytes'])}" + ("" if found["is_durable"] else ", not durable")
    )
    print_rows(_QUEUES, found["each_queue"])
    if found["each_group"]:
        click.echo()
        print_rows((("GROUP", lambda row: row["group"]), *GROUP_COLUMNS), found["each_group"])


@command.command("delete")
@click.argument("topic")
@in_space
@as_json
@takes_address
def delete(topic: str, space: str, is_json: bool, **where: Any) -> None:
    """Delete TOPIC with its messages."""
    tell(asked("DELETE", path_of("topics", topic, space=space), **where), is_json)
