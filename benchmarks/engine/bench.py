"""``penstock bench``: measure this machine with Penstock's own yardsticks.

``penstock bench engine`` prints the table that ``benchmarks/README.md`` keeps: CPU per message of
the core, memory of a backlog, time to start, time to recover. Figures are for comparing runs on one
machine; nothing here is a test, and nothing fails because it is slow.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

GIB: Final = 1 << 30
MIB: Final = 1 << 20
PARTS: Final = ("cpu", "backlog", "start", "recovery")


class Row(NamedTuple):
    """One line of the table."""

    figure: str
    value: str
    goal: str
    how: str


@click.group("bench", short_help="Measure the core: CPU, memory, start-up, recovery.")
def command() -> None:
    """Measure this machine with Penstock's own yardsticks."""


@command.command("engine")
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Only these figures.")
@click.option("--messages", default=200_000, show_default=True, help="Messages of the CPU figure.")
@click.option("--size", default=128, show_default=True, help="Bytes of a body.")
@click.option("--list", "list_size", default=100, show_default=True, help="Messages per publish.")
@click.option("--backlog", default=10_000_000, show_default=True, help="Messages of the backlog.")
@click.option("--log-size", default=GIB, show_default=True, help="Bytes of the recovered log.")
@click.option("--rounds", default=5, show_default=True, help="Median of so many (cpu, start).")
@click.option(
    "--dir",
    "parent",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where the throw-away data goes; the disk is part of what is measured.",
)
@click.option("--json", "as_json", is_flag=True, help="The table as JSON.")
def engine(*, only: tuple[str, ...], parent: Path | None, as_json: bool, **sizes: int) -> None:
    """In-process, no sockets: publish, append, dispatch, settle; backlog; start; recovery."""
    measures: dict[str, Callable[..., Iterator[Row]]] = {
        "cpu": _cpu, "backlog": _backlog, "start": _start, "recovery": _recovery
    }  # fmt: skip
    rows: list[Row] = []
    for part in only or PARTS:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=parent) as directory:
            click.echo(f"measuring {part} ...", err=True)
            rows += measures[part](Path(directory), **sizes)
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=2))
        return
    click.echo(f"\n{_machine()}\n\n| figure | measured | goal | how |\n|---|---|---|---|")
    for row in rows:
        click.echo(f"| {row.figure} | {row.value} | {row.goal} | {row.how} |")


def _cpu(
    directory: Path, *, messages: int, size: int, list_size: int, rounds: int, **_: int
) -> Iterator[Row]:
    from benchmarks.engine.cpu import measure_cpu
    from penstock.server.lifecycle import settle_heap

    settle_heap()
    for connections in (1, 4):
        figures = [
            measure_cpu(
                directory / f"{connections}-{number}",
                messages=messages,
                body_bytes=size,
                list_size=list_size,
                connections=connections,
            )
            for number in range(rounds)
        ]
        core = sorted(each.core_us for each in figures)
        rate = statistics.median(each.messages_per_s for each in figures)
        yield Row(
            f"publish -> append -> dispatch -> settle, CPU per message, publishers: {connections}",
            f"{statistics.median(core):.2f} us ({core[0]:.2f} to {core[-1]:.2f})",
            "<= 3 us",
            f"{size} B, lists of {list_size}, durable; median of {rounds} runs of {messages:,}; "
            f"{rate:,.0f} messages/s with the syncs in line",
        )


def _backlog(directory: Path, *, backlog: int, size: int, **_: int) -> Iterator[Row]:
    from benchmarks.engine.backlog import BacklogFigures

    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[BacklogFigures] = context.Queue()
    child = context.Process(target=_backlog_child, args=(directory, backlog, size, results))
    child.start()
    figures = results.get()
    child.join()
    yield Row(
        f"resident memory added by a backlog of {figures.messages:,}",
        f"{figures.added_bytes / MIB:.1f} MiB",
        "<= 16 MiB for 10 M",
        f"{size} B bodies; {figures.before_bytes / MIB:.0f} MiB before, "
        f"{figures.after_bytes / MIB:.0f} MiB after",
    )


def _backlog_child(
    directory: Path, messages: int, size: int, results: multiprocessing.Queue[object]
) -> None:
    from benchmarks.engine.backlog import fill_backlog

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r  {done:,} of {total:,} messages", end="", file=sys.stderr)

    results.put(
        fill_backlog(directory / "data", messages=messages, body_bytes=size, progress=progress)
    )


def _start(directory: Path, *, rounds: int, **_: int) -> Iterator[Row]:
    from benchmarks.engine.starting import time_to_ready

    seconds = sorted(time_to_ready(directory / str(number) / "data") for number in range(rounds))
    yield Row(
        "start to ready, empty directory",
        f"{statistics.median(seconds):.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})",
        "<= 0.4 s",
        f"`penstock up` from exec to its ready file, HTTP on; median of {rounds}",
    )


def _recovery(directory: Path, *, log_size: int, **_: int) -> Iterator[Row]:
    from benchmarks.engine.starting import drop_indexes, killed_log, time_to_ready

    for body_bytes in (1024, 128):
        data = directory / f"data-{body_bytes}"
        size = killed_log(data, log_bytes=log_size, body_bytes=body_bytes)
        how = f"{size / GIB:.2f} GiB of {body_bytes} B bodies, exec to ready file"
        yield Row(
            f"start after kill -9, {body_bytes} B bodies",
            f"{time_to_ready(data):.2f} s", "< 2 s", how,
        )  # fmt: skip
        drop_indexes(data)
        yield Row(
            f"start with indexes deleted, {body_bytes} B bodies",
            f"{time_to_ready(data):.2f} s", "< 10 s", how,
        )  # fmt: skip


def _machine() -> str:
    return (
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{multiprocessing.cpu_count()} cores"
    )
