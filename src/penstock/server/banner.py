"""What ``penstock up`` prints when it is ready: where to connect, and the limits in force."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from penstock import __version__
from penstock.model.ids import size_text
from penstock.server.flight import MISSING
from penstock.settings.load import Settings

AMBER: Final = "\x1b[33m"
PLAIN: Final = "\x1b[0m"
SCHEMES: Final = {"http": "http://", "amqp": "amqp://guest:guest@", "pulsar": "pulsar://"}
"""So that what is shown can be given to a client as it is (``pika.URLParameters``)."""


class Figures(NamedTuple):
    """What was measured while starting."""

    memory_total: int
    memory_limit: int
    disk_free: int
    disk_limit: int
    is_rss_exact: bool = True


def amber_marks(settings: Settings) -> list[str]:
    """Promises that were weakened by choice; shown wherever the broker shows itself (P3)."""
    marks = []
    durability = settings.storage.durability
    if durability != "fsync":
        marks.append(f"durability {durability}: a confirm does not mean that the disk has it")
    if not settings.listeners.is_loopback:
        marks.append(f"insecure: {settings.listeners.bind} is open to others without TLS or login")
    if settings.broker.faults:
        marks.append("faults: anybody on this machine can make the disk fail on purpose")
    return marks


def banner_lines(
    settings: Settings,
    data: Path,
    endpoints: Mapping[str, str],
    figures: Figures,
    *,
    start_seconds: float,
    is_arrow_missing: bool = False,
) -> list[str]:
    """The lines, without colour."""
    flow, storage = settings.flow, settings.storage
    lines = [f"Penstock {__version__} is ready after {start_seconds:.2f} s"]
    lines += [f"  {name:<16} {SCHEMES.get(name, '')}{at}" for name, at in endpoints.items()]
    if is_arrow_missing:
        lines.append(f"  {'flight':<16} {MISSING}")
    if not endpoints:
        lines.append("  no listener is on")
    lines.append(f"  {'data':<16} {data}, {size_text(figures.disk_free)} free")
    if storage.durability == "fsync":
        lines.append(f"  {'durability':<16} fsync: a confirm means that the disk has it")
    lines += [
        f"  {'memory limit':<16} {size_text(figures.memory_limit)} of "
        f"{size_text(figures.memory_total)}; publishers wait above it",
        f"  {'disk limit':<16} {size_text(figures.disk_limit)} free; publishers wait below it",
        f"  {'in flight':<16} at most {size_text(flow.inflight_bytes_max)} of messages in memory",
        f"  {'write buffers':<16} {storage.write_buffers_max} of "
        f"{size_text(storage.write_buffer_bytes)} for bytes the disk does not have yet",
    ]
    if not figures.is_rss_exact:
        lines.append("  memory is the peak, not the present: this system does not tell it")
    return lines


def print_banner(lines: list[str], marks: list[str], out: TextIO | None = None) -> None:
    """Print the lines and, in amber where there is colour, the marks."""
    out = sys.stdout if out is None else out
    is_colourful = out.isatty()
    for line in lines:
        print(line, file=out)
    for mark in marks:
        text = f"  ! {mark}"
        print(f"{AMBER}{text}{PLAIN}" if is_colourful else text, file=out)
    print("  Ctrl-C or SIGTERM stops it cleanly", file=out, flush=True)
