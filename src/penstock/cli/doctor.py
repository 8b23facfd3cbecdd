"""``penstock doctor``: say whether ``penstock up`` with the same flags would start here, and well.

Looks, and changes nothing: the data directory is not created, a port is bound for a moment and let
go. ``fail`` means ``up`` would refuse (exit code 1); ``warn`` means it starts but less well.
Beside the broker that runs on the same data directory it says so, and takes that broker's own ports
for what they would be without it.
"""

import json
import os
import resource
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from penstock.cli.flags import takes_settings
from penstock.model.errors import NotFound
from penstock.server.probes import Machine
from penstock.server.ready_file import Ready, find_ready
from penstock.settings.broker import PROTOCOLS
from penstock.settings.declare import MIB, bytes_text
from penstock.settings.load import Settings

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"

PYTHON_MIN: Final = (3, 11)
OPTIMIZED: Final = "--enable-optimizations"
"""How Python is told to be built with profiles of itself."""
MEMORY_BYTES_MIN: Final = 512 * MIB
"""In-flight pool (256 MiB) and process together; below this the memory alarm is always near."""
DISK_BYTES_MIN: Final = 1024 * MIB
"""The largest value that the disk alarm takes by itself."""
FILES_PER_CONNECTION: Final = 1
FILES_OF_OUR_OWN: Final = 256
"""Log segments, index files and the catalog, with room to spare."""

_SPARK_EXTRA: Final = "pip install 'penstock-broker[spark]'"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found out."""

    name: str
    state: str
    text: str


@click.command("doctor", short_help="Check whether the broker could start here, and run well.")
@takes_settings
@click.option("--json", "is_json", is_flag=True, help="The findings as JSON")
def command(settings: Settings, *, is_json: bool) -> None:
    """Check whether `up` with the same flags would start here, and run well.

    Looks, and changes nothing. Exit code 1 when something would keep the broker from starting.
    """
    findings = list(examine(settings))
    if is_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            click.echo(f"{finding.state:<5} {finding.name:<20} {finding.text}")
    if any(finding.state == FAIL for finding in findings):
        raise SystemExit(1)


def examine(settings: Settings) -> Iterator[Finding]:
    """Every finding, in the order in which ``up`` would meet the trouble."""
    yield _python()
    yield _event_loop()
    running = _running(Path(settings.broker.data))
    if running is not None:
        yield _broker(running)
    yield _data_directory(Path(settings.broker.data))
    yield _disk(Path(settings.broker.data))
    yield _memory()
    yield _open_files(settings.listeners.connections_max)
    for protocol in PROTOCOLS:
        port = settings.listeners.port(protocol)
        if port:
            own = running.endpoints.get(protocol, "") if running is not None else ""
            if own.endswith(f":{port}"):
                yield Finding(f"port {protocol}", OK, f"{port} is its own; free without it")
            else:
                yield _port(protocol, settings.listeners.addresses, port)
    yield _bulk_lane(is_wanted=settings.listeners.port("flight") is not None)
    yield from _spark()


def _running(data: Path) -> Ready | None:
    """The broker that is ready on the directory; one that was killed leaves its file behind."""
    try:
        ready = find_ready(data)
        os.kill(ready.pid, 0)
    except PermissionError:
        return ready  # another user's
    except (NotFound, OSError, OverflowError):
        return None
    return ready


def _broker(running: Ready) -> Finding:
    places = ", ".join(f"{name} {place}" for name, place in running.endpoints.items())
    return Finding(
        "broker",
        OK,
        f"runs here as process {running.pid} ({places or 'no listener'}); a second `up` would be "
        "refused, and what follows is said as if it did not run",
    )


def _python() -> Finding:
    text = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    if sys.version_info < PYTHON_MIN:
        return Finding("python", FAIL, f"{text}; Penstock needs 3.11 or newer")
    # Distributions optimize in their own way and do not say so; pyenv does not unless told to.
    how = str(sysconfig.get_config_var("CONFIG_ARGS") or OPTIMIZED)
    if OPTIMIZED not in how and sys.base_prefix != "/usr":
        text += f", built without {OPTIMIZED} (pyenv's usual way): 10 to 25 % slower"
        advice = "to use another one, delete .venv and name it with PENSTOCK_PYTHON"
        return Finding("python", WARN, f"{text}; {advice}")
    return Finding("python", OK, text)


def _event_loop() -> Finding:
    if find_spec("uvloop") is None:
        return Finding("event loop", WARN, "asyncio; `pip install uvloop` roughly halves its cost")
    return Finding("event loop", OK, "uvloop")


def _data_directory(data: Path) -> Finding:
    where = _nearest_existing(data)
    if where == data and not data.is_dir():
        return Finding("data directory", FAIL, f"{data} is not a directory; choose another --data")
    if not os.access(where, os.W_OK | os.X_OK):
        return Finding(
            "data directory", FAIL, f"{where} is not writable by this user; choose another --data"
        )
    return Finding("data directory", OK, f"{data}{'' if where == data else ' (will be made)'}")


def _disk(data: Path) -> Finding:
    free = shutil.disk_usage(_nearest_existing(data)).free
    text = f"{_about(free)} free"
    if free < DISK_BYTES_MIN:
        return Finding(
            "disk", WARN, f"{text}; the disk alarm may hold publishers, see --disk-free-limit"
        )
    return Finding("disk", OK, text)


def _memory() -> Finding:
    machine = Machine()
    amount = machine.memory_bytes()
    machine.close()
    if amount < MEMORY_BYTES_MIN:
        text = f"{_about(amount)}; lower flow.inflight_bytes_max to fit"
        return Finding("memory", WARN, text)
    return Finding("memory", OK, f"{_about(amount)} (RAM or cgroup limit, the smaller)")


def _open_files(connections_max: int) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections_max * FILES_PER_CONNECTION + FILES_OF_OUR_OWN
    if soft != resource.RLIM_INFINITY and soft < needed:
        return Finding(
            "open files",
            WARN,
            f"{soft} allowed, {needed} wanted for listeners.connections_max={connections_max}; "
            f"raise it with `ulimit -n` (up to {hard})",
        )
    return Finding("open files", OK, "no limit" if soft == resource.RLIM_INFINITY else str(soft))


def _port(protocol: str, addresses: tuple[str, ...], port: int) -> Finding:
    name = f"port {protocol}"
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            if address == "::1" and len(addresses) > 1:
                continue  # a machine without IPv6 still has the other loopback
            flag = protocol.replace("_", "-")
            return Finding(
                name, FAIL, f"{address}:{port}: {error.strerror}; choose another with --{flag} PORT"
            )
    return Finding(name, OK, f"{port} is free")


def _bulk_lane(*, is_wanted: bool) -> Finding:
    if find_spec("pyarrow") is not None and find_spec("numpy") is not None:
        return Finding("pyarrow", OK, version("pyarrow"))
    text = f"not installed; only bulk reads and Spark need it: {_SPARK_EXTRA}"
    return Finding("pyarrow", WARN if is_wanted else OK, text)


def _spark() -> Iterator[Finding]:
    """Which Java Spark would use, and why; nobody who only runs the broker needs either."""
    if find_spec("pyspark") is None:
        yield Finding("spark", OK, f"not installed; only Spark queries need it: {_SPARK_EXTRA}")
        return
    yield Finding("spark", OK, version("pyspark"))
    from penstock.spark.java import JavaMissing, find_java

    try:
        yield Finding("java", OK, str(find_java()))
    except JavaMissing as missing:
        yield Finding("java", WARN, str(missing))


def _nearest_existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _about(amount: int) -> str:
    return bytes_text(amount // MIB * MIB) if amount < 10 * 1024 * MIB else f"{amount >> 30}GiB"
