"""``penstock log check`` and ``penstock log dump``: look into a data directory, changing nothing.

Both work beside a running broker, on a copy and on a read-only mount. ``check`` exits with 0 when
everything that was synced can be read, and with 1 when it cannot; an unfinished write at the end is
reported and is no damage: the next start cuts it off and keeps it aside.
"""

import base64
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from penstock.log.scan import Dump, ScanReport, SeenRecord, check, log_bytes
from penstock.log.segment import LOG_DIR
from penstock.log.storage import DiskStorage
from penstock.model.errors import LogError

DAMAGED: Final = 1
"""Exit code of ``check`` when something that was synced cannot be read."""

PROGRESS_BYTES_MIN: Final = 256 * 1024 * 1024
"""Smaller logs are walked in about a second."""

_DATA: Final = click.argument(
    "data", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
_JSON: Final = click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs")


@click.group("log", short_help="Look into the log of a data directory: check, dump.")
def command() -> None:
    """Look into the log of a data directory, changing nothing."""


@command.command("check")
@_DATA
@_JSON
def check_verb(data: Path, *, is_json: bool) -> None:
    """Read all of the log in DIR and report what is damaged; exit code 1 if anything is."""
    storage = _open(data)
    with _progress(log_bytes(storage), is_wanted=not is_json) as progress:
        report = check(storage, progress=progress)
    if is_json:
        click.echo(json.dumps(_report_row(report), indent=1))
    else:
        click.echo("\n".join(_report_lines(report)))
    if report.is_damaged:
        raise SystemExit(DAMAGED)


@command.command("dump")
@_DATA
@click.option(
    "--from",
    "from_position",
    type=click.IntRange(min=0),
    default=0,
    metavar="POSITION",
    help="Begin with the record at or around this log position",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records")
@click.option("--body", "has_body", is_flag=True, help="Print the payloads too")
@_JSON
def dump_verb(
    data: Path, *, from_position: int, limit: int | None, has_body: bool, is_json: bool
) -> None:
    """Print the records in the log of DIR, one line each (--json: one object per line)."""
    dump = Dump(_open(data), from_position=from_position)
    for seen in islice(dump.records(), limit):
        if is_json:
            click.echo(json.dumps(_record_row(seen, has_body=has_body)))
        else:
            click.echo(_record_line(seen, has_body=has_body))
    for sentence in dump.report.sentences():
        click.echo(f"penstock: {sentence}", err=True)


def _open(data: Path) -> DiskStorage:
    if not (data / LOG_DIR).is_dir():
        raise LogError(
            f"{data} holds no log (there is no {LOG_DIR} folder in it); name the directory that "
            "was given to `penstock up --data`"
        )
    return DiskStorage(data, is_read_only=True)


@contextmanager
def _progress(total_bytes: int, *, is_wanted: bool) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal when there is enough to wait for."""
    if not (is_wanted and sys.stderr.isatty() and total_bytes >= PROGRESS_BYTES_MIN):
        yield None
        return
    with click.progressbar(length=total_bytes, label="reading", file=sys.stderr) as bar:
        yield lambda done_bytes: bar.update(done_bytes - bar.pos)


def _report_lines(report: ScanReport) -> list[str]:
    lines = [
        f"segments {report.segments:,}",
        f"frames   {report.frames:,}",
        f"records  {report.records:,}",
        f"bytes    {report.bytes_read:,}",
        f"synced   up to position {report.durable_mark:,} for certain",
        f"end      position {report.end_position:,}",
    ]
    if report.is_damaged:
        lines.append(
            f"damaged  {report.damage_count:,} stretches, {report.records_lost:,} records lost"
        )
    lines += [f"  {sentence}" for sentence in report.sentences()]
    lines.append("the log is damaged" if report.is_damaged else "the log is good")
    return lines


def _report_row(report: ScanReport) -> dict[str, Any]:
    tail = report.torn_tail
    return {
        "is_damaged": report.is_damaged,
        "segments": report.segments,
        "frames": report.frames,
        "records": report.records,
        "bytes": report.bytes_read,
        "durable_mark": report.durable_mark,
        "end_position": report.end_position,
        "epoch": report.epoch,
        "damaged": [damage._asdict() for damage in report.damages],
        "damaged_count": report.damage_count,
        "records_lost": report.records_lost,
        "gaps": report.gaps,
        "chain_breaks": report.chain_breaks,
        "missing_tail": report.missing_tail,
        "torn_tail": tail._asdict() if tail is not None else None,
        "torn_frames": [damage._asdict() for damage in report.dropped],
        "sentences": report.sentences(),
    }


def _record_line(seen: SeenRecord, *, has_body: bool) -> str:
    stored = datetime.fromtimestamp(seen.store_ms / 1000, UTC).isoformat(timespec="milliseconds")
    words = [
        f"{seen.position:>14}",
        stored.replace("+00:00", "Z"),
        f"{seen.kind:<12}",
        f"{seen.wire:<8}",
        f"{seen.length:>7} B",
        " ".join(f"{queue_id}@{offset}" for queue_id, offset in seen.targets) or "-",
    ]
    if seen.messages != 1:
        words.append(f"messages={seen.messages}")
    words += seen.flags
    words += [f"{word}={text!r}" for word, text in (("key", seen.key), ("tag", seen.tag)) if text]
    if has_body:
        text = _text(seen.body)
        words.append(f"0x{seen.body.hex()}" if text is None else text)
    return " ".join(words)


def _record_row(seen: SeenRecord, *, has_body: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: getattr(seen, name) for name in seen.__struct_fields__ if name != "body"
    }
    if has_body:
        text = _text(seen.body)
        if text is not None:
            row["body"] = text
        else:
            row["body_base64"] = base64.b64encode(seen.body).decode()
    return row


def _text(body: bytes) -> str | None:
    """The body as text, if that is what it is."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None
