"""``penstock groups``: how far behind each group is, and moving, deleting and switching them."""

import time
from datetime import datetime
from typing import Any, Final

import click

from penstock.cli.asking import (
    GROUP_COLUMNS,
    LAG_COLUMNS,
    Column,
    age_text,
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
from penstock.model.errors import PenstockError
from penstock.model.ids import size_text

_TOPIC = click.option("--topic", required=True, help="The topic it reads.")

_GROUPS: Final[tuple[Column, ...]] = (
    ("GROUP", lambda row: row["group"]),
    ("TOPIC", lambda row: row["topic"] or "-"),
    *GROUP_COLUMNS,
)
_QUEUES: Final[tuple[Column, ...]] = (
    ("QUEUE", lambda row: f"{row['queue']}"),
    ("OFFSET", lambda row: f"{row['offset']:,}"),
    ("END", lambda row: f"{row['end_offset']:,}"),
    *LAG_COLUMNS,
)


@click.group("groups", short_help="Lag of consumer groups; reset, delete or switch them.")
def command() -> None:
    """See how far behind consumer groups are, and reset, delete or switch them."""


@command.command("list")
@click.argument("contains", default="")
@click.option("--all", "is_hidden", is_flag=True, help="On internal topics, too.")
@as_json
@takes_address
def list_(contains: str, is_hidden: bool, is_json: bool, **where: Any) -> None:
    """List groups whose name contains CONTAINS, on every topic they read."""
    rows = all_rows("groups", contains=contains, is_hidden=is_hidden, **where)
    if is_json:
        print_json(rows)
        return
    print_rows(_GROUPS, rows)


@command.command("show")
@click.argument("group")
@as_json
@takes_address
def show(group: str, is_json: bool, **where: Any) -> None:
    """Show GROUP queue by queue, and who is in it."""
    found = asked("GET", path_of("groups", group), **where)
    if is_json:
        print_json(found)
        return
    for each in found["topics"]:
        share = f" (share {each['share']})" if each["share"] >= 0 else ""
        click.echo(
            f"{group} on {each['topic'] or 'no topic'}: {each['lag_messages']:,} messages, "
            f"{size_text(each['lag_bytes'])}, {age_text(each['lag_seconds'])} behind; "
            f"{each['mode'] or 'idle'}{share}"
        )
        if each["queues"]:
            print_rows(_QUEUES, each["queues"])
        for member in each["members"]:
            click.echo(f"  member {member}")


@command.command("reset")
@click.argument("group")
@_TOPIC
@in_space
@click.option(
    "--to",
    default="latest",
    show_default=True,
    help="earliest, latest, an offset, or a time: 2026-01-31T08:00, or 10m, 2h, 3d ago.",
)
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@as_json
@takes_address
def reset(
    group: str, topic: str, space: str, *, to: str, queue: int | None, is_json: bool, **where: Any
) -> None:
    """Let GROUP read on from elsewhere."""
    order = {"group": group, "topic": topic, "space": space, "to": _target(to), "queue": queue}
    answer = asked("POST", path_of("group-offsets"), order, **where)
    if is_json:
        print_json(answer)
        return
    click.echo(answer["done"])
    print_rows(_QUEUES, answer["queues"])


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _target(to: str) -> str | int:
    if to in ("earliest", "latest"):
        return to
    if to.isdecimal():
        return int(to)
    if to[:-1].isdecimal() and to[-1] in _UNITS_S:
        return f"time:{int((time.time() - int(to[:-1]) * _UNITS_S[to[-1]]) * 1000)}"
    try:
        return f"time:{int(datetime.fromisoformat(to).timestamp() * 1000)}"
    except ValueError:
        raise click.BadParameter(
            f"{to!r} is neither earliest, latest, an offset nor a time such as 2026-01-31T08:00 "
            "or 2h",
            param_hint="--to",
        ) from None


@command.command("delete")
@click.argument("group")
@click.option("--topic", default="", help="Only from this topic; else from all.")
@in_space
@as_json
@takes_address
def delete(group: str, topic: str, space: str, is_json: bool, **where: Any) -> None:
    """Delete GROUP with its offsets."""
    path = path_of("groups", group, topic=topic, space=space)
    tell(asked("DELETE", path, **where), is_json)


@command.command("mode")
@click.argument("group")
@_TOPIC
@click.argument("mode", type=click.Choice(["pop", "pull"]))
@click.option("--share", default=-1, help="With pop: members that help with a queue; -1 = all.")
@as_json
@takes_address
def mode_(group: str, topic: str, mode: str, share: int, is_json: bool, **where: Any) -> None:
    """Switch GROUP between pulling its queues and popping messages (RocketMQ 5).

    Every broker of the cluster is told; one that does not take it is named, the others are set.
    """
    # Imported only here: no other verb of groups speaks RocketMQ.
    from penstock.cli.cluster_mode import cluster_brokers, set_everywhere

    brokers = cluster_brokers(topic, **where)
    if not brokers:
        order = {"group": group, "topic": topic, "mode": mode, "share": share}
        tell(asked("POST", path_of("group-modes"), order, **where), is_json)
        return
    outcomes = set_everywhere(brokers, group, topic, mode=mode, share=share)
    done = f"group '{group}' reads '{topic}' by {mode}"
    if is_json:
        print_json({"done": done, "brokers": outcomes})
    failed = [each for each in outcomes if each["error"]]
    for each in outcomes:
        if not is_json and not each["error"]:
            click.echo(f"broker {each['broker']} at {each['address']}: {done}")
    if failed:
        raise PenstockError(
            "not set on "
            + "; ".join(
                f"broker {each['broker']} at {each['address']}: {each['error']}" for each in failed
            )
        )
