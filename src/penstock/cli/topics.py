"""``penstock topics``: make, list, look at and delete topics of a running broker."""

from typing import Any

import click

from penstock.cli.asking import (
    age_text,
    all_rows,
    as_json,
    asked,
    path_of,
    print_json,
    print_table,
    takes_address,
)
from penstock.model.sizes import size_text

_SPACE = click.option("--space", default="", help="Namespace or virtual host; empty = default.")


@click.group("topics", short_help="Create, list, show and delete topics.")
def command() -> None:
    """Create, list, show and delete topics of a running broker."""


@command.command("create")
@click.argument("topic")
@click.option("--queues", default=4, show_default=True, type=click.IntRange(1, 1024))
@_SPACE
@as_json
@takes_address
def create(topic: str, queues: int, space: str, is_json: bool, **where: Any) -> None:
    """Create TOPIC; it is an error when it exists."""
    order = {"name": topic, "space": space, "queues": queues}
    _told(asked("POST", path_of("topics"), order, **where), is_json)


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
    print_table(
        ("TOPIC", "SPACE", "QUEUES", "MESSAGES", "BYTES", "GROUPS"),
        [
            (
                row["name"],
                row["space"] or "-",
                f"{row['queues']}",
                f"{row['messages']:,}",
                size_text(row["bytes"]),
                f"{row['groups']}",
            )
            for row in rows
        ],
    )


@command.command("show")
@click.argument("topic")
@_SPACE
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
    queues = found["each_queue"]
    print_table(
        ("QUEUE", "FIRST", "END", "BYTES"),
        [
            (
                f"{each['queue']}",
                f"{each['min_offset']:,}",
                f"{each['end_offset']:,}",
                size_text(each["bytes"]),
            )
            for each in queues
        ],
    )
    if found["each_group"]:
        click.echo()
        print_table(
            ("GROUP", "LAG", "BYTES", "BEHIND", "UNACKED", "CONSUMERS", "MODE"),
            [
                (
                    each["group"],
                    f"{each['lag_messages']:,}",
                    size_text(each["lag_bytes"]),
                    age_text(each["lag_seconds"]),
                    f"{each['unacked']:,}",
                    f"{each['consumers']}",
                    each["mode"],
                )
                for each in found["each_group"]
            ],
        )


@command.command("delete")
@click.argument("topic")
@_SPACE
@as_json
@takes_address
def delete(topic: str, space: str, is_json: bool, **where: Any) -> None:
    """Delete TOPIC with its messages."""
    _told(asked("DELETE", path_of("topics", topic, space=space), **where), is_json)


def _told(answer: Any, is_json: bool) -> None:
    if is_json:
        print_json(answer)
    else:
        click.echo(answer["done"])
