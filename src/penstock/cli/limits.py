"""``penstock limits``: what raises the alarms, and the credit of the hops, of a running broker.

A change holds at once and until the next start, which takes the settings again: what is to stay is
a setting (``flow.memory_limit``, ``flow.disk_free_limit``, ``flow.*_credit``).
"""

from typing import Any, Final

import click

from penstock.cli.endpoint import takes_endpoint
from penstock.cli.http_client import Column, as_json, asked, path_of, print_json, print_rows, say
from penstock.model.ids import size_text

_WORDS: Final = {"memory": "used", "disk": "free"}
_ALARMS: Final[tuple[Column, ...]] = (
    ("ALARM", lambda row: row["name"]),
    ("LIMIT", lambda row: size_text(row["limit_bytes"])),
    ("NOW", lambda row: f"{size_text(row['now_bytes'])} {_WORDS[row['name']]}"),
    ("OF", lambda row: size_text(row["total_bytes"])),
    ("RAISED", lambda row: "yes" if row["is_raised"] else "no"),
    ("SETTING", lambda row: row["setting"]),
)
_HOPS: Final[tuple[Column, ...]] = (
    ("HOP", lambda row: row["name"]),
    ("CREDIT", lambda row: f"{row['credit']:,}"),
    ("MORE", lambda row: f"{row['more']:,}"),
)


@click.group("limits", short_help="Alarm limits and credits of a running broker.")
def command() -> None:
    """See and change what raises the alarms (F3) and the credit of the hops (F1), while it runs.

    Changes last until the next start; settings last.
    """


@command.command("show")
@as_json
@takes_endpoint
def show(is_json: bool, **where: Any) -> None:
    """Limits of the memory and the disk alarm, where they stand, and credits."""
    _tell(
        asked("GET", path_of("flow/limits"), **where),
        asked("GET", path_of("flow/credit"), **where),
        is_json,
    )


@command.command("set")
@click.option("--memory", metavar="LIMIT", help="Memory in use: 2GiB, 0.6 of what there is, or 0.")
@click.option("--disk-free", metavar="LIMIT", help="Disk that must be free: 1GiB, 5%, auto, or 0.")
@click.option("--hop", help="Whose credit: reader_channel, channel_queue or queue_log.")
@click.option("--credit", type=click.IntRange(1), help="How far that hop may be ahead.")
@click.option("--more", type=click.IntRange(1), help="How much of it is given back at a time.")
@as_json
@takes_endpoint
def set_limits(
    memory: str | None,
    disk_free: str | None,
    hop: str | None,
    *,
    credit: int | None,
    more: int | None,
    is_json: bool,
    **where: Any,
) -> None:
    """Change limits or the credit of one hop, at once and until the next start.

    With a limit of 0 publishers wait until it is another.
    """
    order = {name: text for name, text in (("memory", memory), ("disk", disk_free)) if text}
    is_credit = [each is not None for each in (hop, credit, more)]
    if any(is_credit) and not all(is_credit):
        raise click.UsageError("--hop, --credit and --more go together")
    if not order and hop is None:
        raise click.UsageError("nothing to change: give --memory, --disk-free, or --hop")
    if order:
        asked("PUT", path_of("flow/limits"), order, **where)
    if hop is not None:
        change = {"hop": hop, "credit": credit, "more": more}
        asked("PUT", path_of("flow/credit"), change, **where)
    _tell(
        asked("GET", path_of("flow/limits"), **where),
        asked("GET", path_of("flow/credit"), **where),
        is_json,
    )
    if not is_json:
        say("Until the next start; settings last.")


def _tell(limits: dict[str, Any], hops: dict[str, Any], is_json: bool) -> None:
    if is_json:
        print_json({"limits": limits, "credits": hops})
        return
    print_rows(_ALARMS, [{"name": name, **row} for name, row in limits.items()])
    click.echo()
    print_rows(_HOPS, [{"name": name, **row} for name, row in hops.items()])
