"""``penstock queries``: Spark queries of a running broker, how far behind each is and why."""

from typing import Any, Final

import click

from penstock.cli.endpoint import takes_endpoint
from penstock.cli.http_client import (
    Column,
    age_text,
    as_json,
    asked,
    path_of,
    print_json,
    print_rows,
    say,
    tell,
)
from penstock.model.ids import size_text

_QUERIES: Final[tuple[Column, ...]] = (
    ("QUERY", lambda row: row["name"]),
    ("SPARK QUERY", lambda row: _spark_query(row["last_batch"])),
    ("STATE", lambda row: row["state"]),
    ("LAG", lambda row: f"{row['lag_messages']:,}"),
    ("BYTES", lambda row: size_text(row["lag_bytes"])),
    ("BEHIND", lambda row: age_text(row["lag_seconds"])),
    ("PER SECOND", lambda row: f"{row['messages_per_s']:,.0f}"),
    ("SLOW PART", lambda row: row["slow_part"] or "-"),
    ("LEASE", lambda row: row["lease"]),
)


def _spark_query(batch: dict[str, Any]) -> str:
    """The name the user gave it in Spark, else Spark's id, as far as either is known."""
    return str(batch["query_name"] or batch["query_id"][:8] or "-")


@click.group("queries", short_help="Spark queries: lag, rate, lease.", invoke_without_command=True)
@as_json
@takes_endpoint
@click.pass_context
def command(context: click.Context, /, is_json: bool, **where: Any) -> None:
    """List Spark queries: where each stands, how far behind it is, what is kept for it.

    Queries that share a subscription have a row each: the first is named as the subscription, the
    others with # and the beginning of the id in their checkpoint.
    """
    if context.invoked_subcommand is not None:
        return
    rows = asked("GET", path_of("queries"), **where)["queries"]
    if is_json:
        print_json(rows)
        return
    print_rows(_QUERIES, rows)
    for row in rows:
        for text in (row["text"], row["held"], row["lease_text"]):
            if text:
                say(f"  {row['name']}: {text}")


@command.command("forget")
@click.argument("query")
@as_json
@takes_endpoint
def forget(query: str, is_json: bool, **where: Any) -> None:
    """Forget QUERY with its positions; nothing is kept for it any more."""
    tell(asked("DELETE", path_of("queries", query), **where), is_json)
