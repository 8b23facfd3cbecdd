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


_SINKS: Final[tuple[Column, ...]] = (
    ("SINK", lambda row: row["sink"]),
    ("QUERY", lambda row: row["query"][:20]),
    ("STATE", lambda row: row["state"]),
    ("LAST BATCH", lambda row: "-" if row["batch"] < 0 else str(row["batch"])),
    ("ROWS", lambda row: f"{row['rows']:,}"),
    ("AGO", lambda row: _ago(row["committed_ms_ago"])),
    ("STAGED", lambda row: size_text(row["staged_bytes"])),
    ("SINCE", lambda row: _ago(row["staged_ms_ago"] if row["staged_bytes"] else -1)),
)


def _ago(ms: int) -> str:
    return "-" if ms < 0 else age_text(ms / 1000)


def _spark_query(batch: dict[str, Any]) -> str:
    """The name the user gave it in Spark, else Spark's id, as far as either is known."""
    return str(batch["query_name"] or batch["query_id"][:8] or "-")


@click.group("queries", short_help="Spark queries: lag, rate, lease.", invoke_without_command=True)
@as_json
@takes_endpoint
@click.pass_context
def command(context: click.Context, /, is_json: bool, **where: Any) -> None:
    """List Spark queries: where each stands, how far behind it is, what is kept for it; and sinks.

    Queries that share a subscription have a row each: the first is named as the subscription, the
    others with # and the beginning of the id in their checkpoint.
    """
    if context.invoked_subcommand is not None:
        return
    found = asked("GET", path_of("queries"), **where)
    rows, sinks = found["queries"], found["sinks"]
    if is_json:
        print_json(rows)
        return
    print_rows(_QUERIES, rows)
    for row in rows:
        for text in (row["text"], row["held"], row["lease_text"]):
            if text:
                say(f"  {row['name']}: {text}")
    if sinks:
        say("")
        print_rows(_SINKS, sinks)
    for sink in sinks:
        if sink["held"]:
            say(f"  {sink['sink']}: {sink['held']}")


@command.command("sinks")
@as_json
@takes_endpoint
def sinks(is_json: bool, **where: Any) -> None:
    """List what Spark writes: the last batch of each sink, and rows that are not committed yet."""
    found = asked("GET", path_of("queries"), **where)["sinks"]
    if is_json:
        print_json(found)
        return
    print_rows(_SINKS, found)
    for sink in found:
        if sink["held"]:
            say(f"  {sink['sink']}: {sink['held']}")


@command.command("forget")
@click.argument("query")
@as_json
@takes_endpoint
def forget(query: str, is_json: bool, **where: Any) -> None:
    """Forget QUERY with its positions; nothing is kept for it any more."""
    tell(asked("DELETE", path_of("queries", query), **where), is_json)
