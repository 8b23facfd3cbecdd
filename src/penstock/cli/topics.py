"""``penstock topics``: make, list, look at, set, purge and delete topics of a running broker."""

from collections.abc import Callable
from typing import Any, Final

import click

from penstock.cli.endpoint import takes_endpoint
from penstock.cli.http_client import (
    GROUP_COLUMNS,
    Column,
    all_rows,
    as_json,
    asked,
    in_space,
    path_of,
    print_json,
    print_rows,
    say,
    tell,
)
from penstock.model.errors import PenstockError
from penstock.model.ids import size_text
from penstock.settings.declare import convert

_TOPICS: Final[tuple[Column, ...]] = (
    ("TOPIC", lambda row: row["name"]),
    ("SPACE", lambda row: row["space"] or "-"),
    ("QUEUES", lambda row: f"{row['queues']}"),
    ("READY", lambda row: f"{row['ready']:,}"),
    ("STORED", lambda row: f"{row['messages']:,}"),
    ("BYTES", lambda row: size_text(row["bytes"])),
    ("GROUPS", lambda row: f"{row['groups']}"),
)
_QUEUES: Final[tuple[Column, ...]] = (
    ("QUEUE", lambda row: f"{row['queue']}"),
    ("FIRST", lambda row: f"{row['min_offset']:,}"),
    ("END", lambda row: f"{row['end_offset']:,}"),
    ("BYTES", lambda row: size_text(row["bytes"])),
)


@click.group("topics", short_help="Create, list, show, set, purge and delete topics.")
def command() -> None:
    """Create, list, show, set, purge and delete topics of a running broker."""


@command.command("create")
@click.argument("topic")
@click.option("--queues", default=4, show_default=True, type=click.IntRange(1, 1024))
@in_space
@as_json
@takes_endpoint
def create(topic: str, queues: int, space: str, is_json: bool, **where: Any) -> None:
    """Create TOPIC; it is an error when it exists."""
    order = {"name": topic, "space": space, "queues": queues}
    tell(asked("POST", path_of("topics"), order, **where), is_json)


@command.command("list")
@click.argument("contains", default="")
@click.option("--all", "is_hidden", is_flag=True, help="Internal ones, too (%RETRY%, %DLQ% ...).")
@as_json
@takes_endpoint
def list_(contains: str, is_hidden: bool, is_json: bool, **where: Any) -> None:
    """List topics whose name contains CONTAINS.

    READY is what the group that is furthest behind has still to get, STORED what can still be read:
    settled messages stay until retention takes them.
    """
    rows = all_rows("topics", contains=contains, is_hidden=is_hidden, **where)
    if is_json:
        print_json(rows)
        return
    print_rows(_TOPICS, rows)


@command.command("show")
@click.argument("topic")
@in_space
@as_json
@takes_endpoint
def show(topic: str, space: str, is_json: bool, **where: Any) -> None:
    """Show TOPIC queue by queue, and how far behind each group is."""
    found = asked("GET", path_of("topics", topic, space=space), **where)
    if is_json:
        print_json(found)
        return
    say(
        f"{topic}: {found['queues']} queues, {found['ready']:,} messages ready, "
        f"{found['messages']:,} stored, "
        f"{size_text(found['bytes'])}" + ("" if found["is_durable"] else ", not durable")
    )
    print_rows(_QUEUES, found["each_queue"])
    if found["each_group"]:
        click.echo()
        print_rows((("GROUP", lambda row: row["group"]), *GROUP_COLUMNS), found["each_group"])


@command.command("set")
@click.argument("topic")
@click.option(
    "--spark-backpressure",
    type=click.Choice(["off", "soft", "hard", "default"]),
    help="What a Spark query behind its bound does to publishers.",
)
@click.option("--spark-backlog-max", help="That bound in messages; 0 = none.")
@click.option("--spark-backlog-bytes-max", help="That bound in bytes, as 1GiB; 0 = none.")
@click.option("--spark-backlog-age-max", help="That bound as time, as 10min; 0 = none.")
@click.option("--length-max", help="Messages that may wait in it; 0 = no limit.")
@click.option("--bytes-max", help="Bytes that may wait in it, as 1GiB; 0 = no limit.")
@click.option(
    "--overflow",
    type=click.Choice(["drop-head", "reject", "reject-dead-letter", "hold"]),
    help="What becomes of a publish beyond those two.",
)
@click.option("--publish-rate", help="Messages a second that may be published; 0 = no limit.")
@click.option("--publish-bytes-rate", help="Bytes a second, as 1MiB; 0 = no limit.")
@click.option("--quota-bytes-max", help="What its slowest reader may be behind; 0 = no limit.")
@click.option("--quota-age-max", help="The same as time, as 1h; 0 = no limit.")
@click.option("--unacked", help="What consumers of a group may have unacked; 0 = no limit.")
@in_space
@as_json
@takes_endpoint
def set_(topic: str, space: str, *, is_json: bool, **given: Any) -> None:
    """Change the policy of TOPIC; what is not given stays, "default" is what the settings say."""
    where = {name: given.pop(name) for name in ("data", "endpoint")}
    order: dict[str, Any] = {"topic": topic, "space": space}
    for option, (field, parse) in POLICY_OPTIONS.items():
        text = given[option]
        if text is not None:
            order[field] = parse(option, text)
    if len(order) == 2:
        raise click.UsageError("nothing to set; `penstock topics set --help` lists what there is")
    tell(asked("POST", path_of("topic-policies"), order, **where), is_json)


def _amount(option: str, text: str) -> int:
    if text == "default":
        return -1
    # Names of settings decide which units are understood.
    is_bytes = "bytes" in option
    name = "bytes" if is_bytes else "ms" if option.endswith("_age_max") else "count"
    try:
        return int(str(convert(name, int, text)))
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint=f"--{option.replace('_', '-')}") from None


def _limit(option: str, text: str) -> int:
    """One that no setting stands behind: "default" is none."""
    amount = 0 if text == "default" else _amount(option, text)
    if amount < 0:
        raise click.BadParameter("give 0 or more", param_hint=f"--{option.replace('_', '-')}")
    return amount


POLICY_OPTIONS: Final[dict[str, tuple[str, Callable[[str, str], str | int]]]] = {
    "spark_backpressure": (
        "spark_backpressure",
        lambda _option, text: "" if text == "default" else text,
    ),
    "spark_backlog_max": ("spark_backlog_messages_max", _amount),
    "spark_backlog_bytes_max": ("spark_backlog_bytes_max", _amount),
    "spark_backlog_age_max": ("spark_backlog_age_ms_max", _amount),
    "length_max": ("length_max", _limit),
    "bytes_max": ("bytes_max", _limit),
    "overflow": ("overflow", lambda _option, text: text.replace("-", "_")),
    "publish_rate": ("publish_messages_per_s", _limit),
    "publish_bytes_rate": ("publish_bytes_per_s", _limit),
    "quota_bytes_max": ("quota_bytes_max", _limit),
    "quota_age_max": ("quota_age_ms_max", _limit),
    "unacked": ("unacked_max", _amount),
}
"""Option -> (field of the policy, how its text is read)."""


_YES: Final = click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")


@command.command("delete")
@click.argument("topic")
@_YES
@in_space
@as_json
@takes_endpoint
def delete(topic: str, space: str, *, is_sure: bool, is_json: bool, **where: Any) -> None:
    """Delete TOPIC with its messages; asks first, unless --yes."""
    if not is_sure:
        found = asked("GET", path_of("topics", topic, space=space), **where)
        _confirm(f"Delete {topic} with {_contents(found)}?")
    tell(asked("DELETE", path_of("topics", topic, space=space), **where), is_json)


@command.command("purge")
@click.argument("topic")
@_YES
@in_space
@as_json
@takes_endpoint
def purge(topic: str, space: str, *, is_sure: bool, is_json: bool, **where: Any) -> None:
    """Settle what TOPIC holds for all of its groups; asks first, unless --yes.

    Every group goes on with the next message that is published. What AMQP consumers have and did
    not settle yet stays theirs; what is stored stays until retention takes it.
    """
    if not is_sure:
        found = asked("GET", path_of("topics", topic, space=space), **where)
        _confirm(f"Purge {topic}, {_contents(found)}?")
    order = {"topic": topic, "space": space}
    tell(asked("POST", path_of("topic-purges"), order, **where), is_json)


def _contents(found: dict[str, Any]) -> str:
    return (
        f"{found['ready']:,} messages ready and {found['messages']:,} stored for "
        f"{found['groups']} groups"
    )


def _confirm(question: str) -> None:
    """Ends the command unless somebody says yes; without a terminal there is nobody."""
    try:
        is_sure = click.confirm(question, err=True)
    except click.Abort:
        is_sure = False
    if not is_sure:
        raise PenstockError("nothing was changed; --yes does it without asking")
